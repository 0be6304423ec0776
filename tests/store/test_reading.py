"""Claims about reading: what was written comes back, what was changed is found."""

import json
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import load_file
from sample_snapshots import make_snapshot, same, same_snapshot

from samestep.errors import CorruptCheckpoint, NoCheckpoint, SamestepError, UnsupportedValue
from samestep.state.snapshot import Item, Snapshot
from samestep.store.dtypes import ELEMENT_TYPES
from samestep.store.manifest import Manifest, encode_manifest
from samestep.store.reading import Checkpoint, find_checkpoints
from samestep.store.verifying import Problem
from samestep.store.writing import write_checkpoint

GOLDEN = Path(__file__).parent / "golden"


def snapshot_of(**tensors):
    """Make a snapshot of one module with these tensors."""
    return Snapshot(1, None, {"model": Item("module", {name: {"$tensor": name} for name in tensors}, tensors)})


def round_trip(directory, snapshot):
    """Write and read a snapshot."""
    checkpoint = write_checkpoint(directory, snapshot, {})
    assert checkpoint.verify() == []
    return checkpoint.read()


# --- what was written comes back -----------------------------------------------------------------------


@pytest.mark.parametrize("name", ELEMENT_TYPES)
def test_every_element_type(tmp_path, name):
    """Every element type that torch has comes back bit for bit, in every pattern of its bits."""
    dtype = getattr(torch, name, None)
    if dtype is None:
        pytest.skip("this torch does not have it")
    raw = torch.arange(256, dtype=torch.uint8).repeat(16)
    values = (raw % 2 if name == "bool" else raw).view(dtype).reshape(2, -1)
    assert same(round_trip(tmp_path, snapshot_of(a=values)).items["model"].tensors["a"], values)


def test_element_types_are_all_of_torch():
    """Each element type of torch is known, or one that no tensor with bytes of its own can have."""
    known = {getattr(torch, name) for name in ELEMENT_TYPES if hasattr(torch, name)}
    rest = {str(each) for each in vars(torch).values() if isinstance(each, torch.dtype) and each not in known}
    assert {name for name in rest if not name.startswith(("torch.q", "torch.bits", "torch.int", "torch.uint"))} == set()


LAYOUTS = {
    "scalar": torch.tensor(1.5),
    "empty": torch.empty(0),
    "empty of 3 dimensions": torch.empty(2, 0, 3),
    "one element of 5 dimensions": torch.ones(1, 1, 1, 1, 1),
    "channels_last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "channels_last of one channel": torch.randn(2, 1, 4, 4).to(memory_format=torch.channels_last),
    "channels_last_3d": torch.randn(2, 3, 4, 5, 6).to(memory_format=torch.channels_last_3d),
    "transposed": torch.randn(3, 4).t(),
    "every second": torch.arange(10)[::2],
    "column": torch.randn(5, 7)[:, 2],
    "expanded": torch.randn(3, 1).expand(3, 4),
    "conjugate": torch.randn(3, dtype=torch.complex64).conj(),
    "NaN with a payload": torch.tensor([0x7FC12345, -1, 0x7F800001], dtype=torch.int32).view(torch.float32),
    "negative zero": torch.tensor([-0.0, 0.0]),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout(tmp_path, name):
    """Shape, strides and bits of every layout come back."""
    values = LAYOUTS[name]
    found = round_trip(tmp_path, snapshot_of(a=values)).items["model"].tensors["a"]
    assert same(found, values.resolve_conj())


def test_a_column_of_a_wide_table_takes_no_more_than_its_elements(tmp_path):
    """Strides that span far more memory than their elements come back as row-major."""
    values = torch.randn(300, 5000)[:, 0]
    found = round_trip(tmp_path, snapshot_of(a=values)).items["model"].tensors["a"]
    assert found.stride() == (1,)
    assert found.equal(values)


NAMES = ["__metadata__", "__metadata__.", "", " ", "a/../b", "\0", "層", 'quote"', "a" * 5000, "a\nb"]


def test_every_name(tmp_path):
    """Any text is a tensor's name and an item's name; no file leads out of the folder."""
    tensors = {name: torch.full((2,), float(index)) for index, name in enumerate(NAMES)}
    items = {
        name: Item("module", {}, tensors) for name in [*NAMES, "Model", "model", "MODEL", "model.extra", "..", "/x"]
    }
    snapshot = Snapshot(1, None, items)
    assert same_snapshot(round_trip(tmp_path / "checkpoints", snapshot), snapshot)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoints"]


@pytest.mark.parametrize("where", ["item", "tensor"])
def test_names_that_are_no_text(tmp_path, where):
    """A lone surrogate in a name is an error that leaves nothing behind."""
    item = Item("module", {}, {"\ud800" if where == "tensor" else "a": torch.ones(1)})
    with pytest.raises(UnsupportedValue):
        write_checkpoint(tmp_path, Snapshot(1, None, {"\ud800" if where == "item" else "a": item}), {})
    assert list(tmp_path.iterdir()) == []


def test_opens_in_the_safetensors_library(tmp_path):
    """model.safetensors is the inference file: the module's tensors and nothing else."""
    snapshot = make_snapshot(3)
    checkpoint = write_checkpoint(tmp_path, snapshot, {})
    loaded = load_file(checkpoint.path / "model.safetensors")
    assert list(loaded) == ["weight"]
    assert same(loaded["weight"], snapshot.items["model"].tensors["weight"])
    assert sorted(path.name for path in checkpoint.path.iterdir()) == [
        "manifest.json",
        "model.extra.safetensors",
        "model.safetensors",
        "random.safetensors",
    ]


def test_a_real_module_and_optimizer_come_back(tmp_path):
    """Trained weights with a tied layer and the state of Adam come back through the inference file's names."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 3))
    checkpoint = write_checkpoint(tmp_path, snapshot_of(**model.state_dict()), {})
    other = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 3))
    other.load_state_dict(load_file(checkpoint.path / "model.safetensors"))
    assert all(same(a, b) for a, b in zip(model.state_dict().values(), other.state_dict().values(), strict=True))


def test_what_a_checkpoint_says(tmp_path):
    """A checkpoint says step, epoch, scores, tags, size and environment."""
    written = write_checkpoint(
        tmp_path, make_snapshot(400, epoch=3, metrics={"acc": float("nan")}), {"torch": "2.13.0"}, ["pinned"]
    )
    checkpoint = Checkpoint(str(written.path))
    assert (checkpoint.name, checkpoint.step, checkpoint.order, checkpoint.epoch) == ("step-000000400", 400, 0, 3)
    assert repr(checkpoint.metrics) == "{'acc': nan}"
    assert (checkpoint.tags, checkpoint.environment) == (["pinned"], {"torch": "2.13.0"})
    assert checkpoint.bytes == sum(path.stat().st_size for path in checkpoint.path.iterdir())
    assert checkpoint == written
    assert checkpoint.created.startswith("20")
    assert checkpoint.created.endswith("Z")


def test_one_tensor(tmp_path):
    """One tensor is read by item and name; a name that is not there is an error."""
    checkpoint = write_checkpoint(tmp_path, make_snapshot(5), {})
    assert checkpoint.tensor("model", "grad").equal(torch.full((2, 3), -5.0))
    for item, name in [("model", "nothing"), ("nothing", "weight")]:
        with pytest.raises(NoCheckpoint):
            checkpoint.tensor(item, name)


def test_golden_checkpoint():
    """The checkpoint of format 1 that was committed with the first release stays readable, bit for bit."""
    (checkpoint,) = find_checkpoints(GOLDEN)
    assert checkpoint.verify() == []
    snapshot = checkpoint.read()
    assert (snapshot.step, snapshot.epoch, repr(snapshot.metrics)) == (7, 2, "{'accuracy': 0.5, 'loss': nan}")
    assert (checkpoint.tags, checkpoint.environment) == (["pinned"], {"torch": "2.13.0"})
    model, random = snapshot.items["model"], snapshot.items["random"]
    assert (model.kind, model.tree, model.extra) == (
        "module",
        {"weight": {"$tensor": "weight"}},
        frozenset({"grad"}),
    )
    assert (random.kind, random.tree) == ("random", {"python": [3, [1, 2], None]})
    weight = torch.arange(8.0).reshape(1, 2, 2, 2).to(memory_format=torch.channels_last)
    assert same(model.tensors["weight"], weight)
    assert same(model.tensors["grad"], torch.tensor([1.5, -0.0], dtype=torch.bfloat16))
    assert same(model.tensors["__metadata__"], torch.tensor([1 + 2j], dtype=torch.complex128))
    assert same(model.tensors["count"], torch.tensor(3))
    assert same(model.tensors["nothing"], torch.empty(0, 2))
    assert same(random.tensors["torch"], torch.arange(5, dtype=torch.uint8))


# --- map_location --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "map_location",
    [
        "meta",
        torch.device("meta"),
        {"cpu": "meta"},
        lambda storage, _: torch.empty(storage.nbytes() // 4, device="meta").untyped_storage(),
    ],
    ids=["name", "device", "dict", "function"],
)
def test_map_location(tmp_path, map_location):
    """map_location moves the tensors as torch.load does, but never the random state (ignite#2076)."""
    snapshot = write_checkpoint(tmp_path, make_snapshot(3), {}).read(map_location)
    assert snapshot.items["model"].tensors["weight"].device.type == "meta"
    assert snapshot.items["random"].tensors["torch"].equal(torch.arange(8))


@pytest.mark.parametrize("map_location", [None, "cpu", {"cuda:0": "meta"}, lambda storage, _: storage, lambda *_: None])
def test_map_location_that_stays(tmp_path, map_location):
    """A map_location that does not concern the CPU leaves the tensors there."""
    snapshot = write_checkpoint(tmp_path, make_snapshot(3), {}).read(map_location)
    assert same_snapshot(snapshot, make_snapshot(3))


# --- what was changed is found -------------------------------------------------------------------------


@pytest.fixture
def tiny(tmp_path):
    """Write a checkpoint of two files of tensors and a manifest."""
    snapshot = Snapshot(
        1,
        0,
        {"model": Item("module", {"a": {"$tensor": "a"}}, {"a": torch.ones(2), "b": torch.ones(1)}, frozenset("b"))},
    )
    return write_checkpoint(tmp_path, snapshot, {})


def spoiled(checkpoint, path, data):
    """Put other bytes into a file, read the checkpoint, put the file right; tell what was found."""
    right = path.read_bytes()
    path.write_bytes(data)
    try:
        fresh = Checkpoint(checkpoint.path)
        problems = fresh.verify()
        with pytest.raises(CorruptCheckpoint) as caught:
            fresh.read()
        return problems, caught.value
    finally:
        path.write_bytes(right)


def test_every_flipped_bit_is_found(tiny):
    """Each single flipped bit of each file is found and the file is named."""
    count = 0
    for path in tiny.path.iterdir():
        right = path.read_bytes()
        for index in range(len(right)):
            data = bytearray(right)
            data[index] ^= 1 << index % 8
            problems, error = spoiled(tiny, path, bytes(data))
            assert {problem.file for problem in problems} == {path.name}
            assert path.name in error.path
            count += 1
    print(f"{count} flipped bits, all found")  # noqa: T201
    assert tiny.verify() == []


def test_every_cut_is_found(tiny):
    """Each file cut at each length, or longer by one byte, is found and named."""
    count = 0
    for path in tiny.path.iterdir():
        right = path.read_bytes()
        for data in [right[:length] for length in range(len(right))] + [
            right + b"\0",
            right + b"\n",
            right + b" ",
        ]:
            problems, error = spoiled(tiny, path, data)
            assert {problem.file for problem in problems} == {path.name}
            assert path.name in error.path
            count += 1
    print(f"{count} cuts, all found")  # noqa: T201


def test_the_tensor_is_named(tmp_path):
    """A flipped bit in a tensor is reported with file and tensor, and only there."""
    checkpoint = write_checkpoint(tmp_path, make_snapshot(3), {})
    path = checkpoint.path / "model.extra.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert checkpoint.verify() == [
        Problem("model.extra.safetensors", "grad", "The tensor's bytes are not those that were written.")
    ]
    with pytest.raises(CorruptCheckpoint, match="not those that were written") as caught:
        checkpoint.read()
    assert caught.value.path.endswith("model.extra.safetensors: grad")
    assert checkpoint.tensor("model", "weight").equal(torch.full((2, 3), 3.0))
    with pytest.raises(CorruptCheckpoint):
        checkpoint.read(verify=False).items["model"].tensors["grad"]


def test_a_right_digest_over_a_wrong_layout_is_found(tiny):
    """A manifest that claims another dtype of the same size is refused by the file's own header."""
    content = json.loads((tiny.path / "manifest.json").read_bytes())
    content["items"]["model"]["tensors"]["a"]["dtype"] = "int32"
    del content["digest"]
    (tiny.path / "manifest.json").write_bytes(encode_manifest(msgspec.convert(content, Manifest)))
    (problem,) = Checkpoint(tiny.path).verify()
    assert "describe a tensor differently" in problem.problem


@pytest.mark.parametrize("kind", ["missing", "link", "folder", "pipe"])
@pytest.mark.parametrize("name", ["manifest.json", "model.safetensors"])
def test_files_that_are_none(tiny, tmp_path, kind, name):
    """A missing file, a symbolic link, a folder or a pipe in a file's place is refused at once."""
    path = tiny.path / name
    path.rename(tmp_path / "elsewhere")
    if kind == "link":
        path.symlink_to(tmp_path / "elsewhere")
    elif kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    checkpoint = Checkpoint(tiny.path)
    assert [problem.file for problem in checkpoint.verify()] == [name]
    with pytest.raises(CorruptCheckpoint):
        checkpoint.check()
    with pytest.raises(CorruptCheckpoint):
        checkpoint.read()


def test_a_renamed_folder_is_found(tiny):
    """A folder renamed to another step is refused, since it would resume elsewhere than its name says."""
    tiny.path.rename(tiny.path.with_name("step-000000900"))
    with pytest.raises(CorruptCheckpoint, match="different steps"):
        Checkpoint(tiny.path.with_name("step-000000900")).read()


def test_a_copied_checkpoint_opens_under_any_name(tiny, tmp_path):
    """A checkpoint that was copied to a name of the user's own opens there."""
    shutil.copytree(tiny.path, tmp_path / "my best")
    assert Checkpoint(tmp_path / "my best").step == 1
    assert Checkpoint(tmp_path / "my best").verify() == []


def test_what_cannot_be_opened_is_not_called_corrupt(tiny):
    """Too many open files, or a lack of permission, does not make a checkpoint corrupt."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        with pytest.raises(SamestepError, match="may be intact") as caught:
            Checkpoint(tiny.path).check()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert not isinstance(caught.value, CorruptCheckpoint)


# --- without torch -------------------------------------------------------------------------------------


def test_looking_and_verifying_need_no_torch(tmp_path):
    """Finding, reading manifests and verifying import neither torch nor NumPy."""
    write_checkpoint(tmp_path, make_snapshot(3, metrics={"acc": 0.5}), {})
    script = f"""
import sys
from samestep.store import keeping, folder, retention
from samestep.store.reading import find_checkpoints
(checkpoint,) = find_checkpoints({str(tmp_path)!r})
assert checkpoint.metrics == {{"acc": 0.5}} and checkpoint.verify() == []
assert keeping.Shelf(checkpoint.path.parent).doomed(retention.Keep()) == []
print(sorted({{"torch", "numpy"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_ten_thousand_tensors(tmp_path, record_property):
    """A checkpoint of 10,000 tensors is written, looked at and read; its times are noted."""
    tensors = {f"layer.{index}.weight": torch.full((3,), float(index)) for index in range(10_000)}
    begin = time.perf_counter()
    checkpoint = write_checkpoint(tmp_path, snapshot_of(**tensors), {})
    written = time.perf_counter()
    assert len(Checkpoint(checkpoint.path).manifest.items["model"].tensors) == 10_000
    looked = time.perf_counter()
    found = checkpoint.read().items["model"].tensors
    assert found["layer.9999.weight"].equal(tensors["layer.9999.weight"])
    read = time.perf_counter()
    record_property("write", f"{written - begin:.3f} s")
    record_property("manifest", f"{looked - written:.3f} s")
    record_property("verify", f"{read - looked:.3f} s")
