"""Claims about damage that a folder of checkpoints meets: flipped bits, cuts, lost pages, and parts put elsewhere."""

import shutil
import warnings

import pytest
import torch
from sample_snapshots import make_snapshot, same_snapshot

from samestep.state.snapshot import Item, Snapshot
from samestep.store import files
from samestep.store.folder import QUARANTINE
from samestep.store.store import Store

PAGE = 4096


def tiny(step):
    """Make a snapshot of two files with three tensors."""
    tensors = {"a": torch.full((2,), float(step)), "b": torch.tensor(step), "c": torch.tensor([-float(step)])}
    return Snapshot(step, 0, {"m": Item("module", {"a": {"$tensor": "a"}}, tensors, frozenset("c"))}, {"acc": 0.5})


@pytest.fixture
def two(tmp_path):
    """Write checkpoints of steps 1 and 2; give their folder."""
    store = Store(tmp_path / "checkpoints")
    for step in (1, 2):
        store.write(tiny(step))
    return store.directory


def falls_back(directory, name):
    """Load the newest good one: it must be step 1, and the damage of step 2 named; put step 2 back."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        checkpoint, snapshot = Store(directory).latest_good()
        assert (checkpoint.step, same_snapshot(snapshot, tiny(1))) == (1, True)
    (message,) = [str(each.message) for each in said]
    assert message.startswith("Checkpoint step-000000002 is damaged")
    assert name in message
    (directory / QUARANTINE / "step-000000002").rename(directory / "step-000000002")


class Unsynchronised(files.System):
    """The operating system, which makes nothing durable: thousands of moves into quarantine need no disk."""

    def fsync(self, descriptor):
        """Do nothing."""


def sweep(directory, bits):
    """Flip bits in every byte of every file of step 2, and cut it at every length; count what was found."""
    flips = cuts = 0
    for path in sorted((directory / "step-000000002").iterdir()):
        whole = path.read_bytes()
        for index in range(len(whole)):
            for bit in bits(index):
                flipped = bytearray(whole)
                flipped[index] ^= 1 << bit
                path.write_bytes(flipped)
                falls_back(directory, path.name)
                flips += 1
            path.write_bytes(whole[:index])
            falls_back(directory, path.name)
            cuts += 1
        path.write_bytes(whole)
    found, snapshot = Store(directory).latest_good()
    assert (found.step, same_snapshot(snapshot, tiny(2))) == (2, True)
    print(f"{flips} flipped bits and {cuts} cuts, all found, each time the one before was taken")  # noqa: T201


def test_the_one_before_is_taken_whichever_byte_is_damaged(two, use_system):
    """One flipped bit in any byte of any file, or any cut of it, is named, and the checkpoint before is taken."""
    use_system(Unsynchronised())
    sweep(two, lambda index: [index % 8])


@pytest.mark.slow
def test_the_one_before_is_taken_whichever_bit_is_flipped(two, use_system):
    """Each single flipped bit of each file is named, and the checkpoint before is taken."""
    use_system(Unsynchronised())
    sweep(two, lambda _index: range(8))


# --- parts that were lost, or put elsewhere ------------------------------------------------------------


def spoil_by(change):
    """Apply a change of bytes to a file."""
    return lambda path, _other: path.write_bytes(change(path.read_bytes()))


def swap(path, other):
    """Exchange two files."""
    mine, theirs = path.read_bytes(), other.read_bytes()
    path.write_bytes(theirs)
    other.write_bytes(mine)


def without_last_block(data):
    """Lose the last block of the disk as a power loss does: the size is right, the bytes are zero."""
    begin = (len(data) - 1) // PAGE * PAGE
    return data[:begin] + bytes(len(data) - begin)


SPOILS = {
    "empty": spoil_by(lambda _data: b""),
    "all zeroes": spoil_by(lambda data: bytes(len(data))),
    "zeroes from the first block's end": spoil_by(lambda data: data[:PAGE] + bytes(len(data) - PAGE)),
    "zeroes in the last block": spoil_by(without_last_block),
    "first block twice": spoil_by(lambda data: data[:PAGE] + data[:PAGE] + data[2 * PAGE :]),
    "two blocks exchanged": spoil_by(lambda data: data[PAGE : 2 * PAGE] + data[:PAGE] + data[2 * PAGE :]),
    "first block lost": spoil_by(lambda data: data[PAGE:]),
    "one block more": spoil_by(lambda data: data + data[-PAGE:]),
    "of the checkpoint before": lambda path, other: path.write_bytes(other.read_bytes()),
    "exchanged with the checkpoint before": swap,
}


def large(step):
    """Make a snapshot whose files take several blocks of the disk each, the manifest too."""
    generator = torch.Generator().manual_seed(step)
    weights = {f"layer.{index}.weight": torch.randn(40, generator=generator) for index in range(60)}
    moments = {f"layer.{index}.moment": torch.randn(40, generator=generator) for index in range(60)}
    return Snapshot(step, 0, {"model": Item("module", {}, weights), "optimizer": Item("optimizer", {}, moments)})


def written(directory, *snapshots):
    """Write snapshots and give their checkpoints."""
    store = Store(directory)
    return [store.write(each) for each in snapshots]


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "manifest.json"])
@pytest.mark.parametrize("spoil", SPOILS)
def test_lost_and_exchanged_blocks_are_found(tmp_path, name, spoil):
    """A file that is empty, zeroed, cut or mixed up by blocks, or another checkpoint's, is named and not taken."""
    before, newest = written(tmp_path, large(1), large(2))
    assert (newest.path / name).stat().st_size > 3 * PAGE
    SPOILS[spoil](newest.path / name, before.path / name)
    with pytest.warns(UserWarning, match=r"step-00000000[12] is damaged") as said:
        found = Store(tmp_path).latest_good()
    assert "step-000000002" in str(said[0].message)
    if spoil == "exchanged with the checkpoint before":
        assert found is None
        assert len(said) == 2
    else:
        assert (found[0].step, same_snapshot(found[1], large(1))) == (1, True)
    assert len(list((tmp_path / QUARANTINE).iterdir())) == len(said)


def test_two_files_of_one_checkpoint_that_are_exchanged_are_found(tmp_path):
    """Two files of the same size in one checkpoint, each whole, in each other's place, are found."""
    tensors = {"weight": torch.ones(8)}
    items = {"one": Item("module", {}, tensors), "two": Item("module", {}, {"weight": torch.zeros(8)})}
    (checkpoint,) = written(tmp_path, Snapshot(1, 0, items))
    swap(checkpoint.path / "one.safetensors", checkpoint.path / "two.safetensors")
    assert [(each.file, each.tensor) for each in checkpoint.verify()] == [
        ("one.safetensors", "weight"),
        ("two.safetensors", "weight"),
    ]


def test_a_whole_checkpoint_in_the_folder_of_another_step_is_found(tmp_path):
    """All files of step 1, manifest and digests right, in the folder of step 2: the step is compared."""
    before, newest = written(tmp_path, make_snapshot(1), make_snapshot(2))
    shutil.rmtree(newest.path)
    shutil.copytree(before.path, newest.path)
    with pytest.warns(UserWarning, match=r"step-000000002 is damaged: .*different steps"):
        found, snapshot = Store(tmp_path).latest_good()
    assert (found.step, same_snapshot(snapshot, make_snapshot(1))) == (1, True)


def test_a_file_of_another_runs_checkpoint_is_found(tmp_path):
    """The same file of another run's checkpoint of the same step, of the same size, is not taken for its own."""
    _, mine = written(tmp_path / "a", make_snapshot(1), make_snapshot(2))
    (theirs,) = written(tmp_path / "b", make_snapshot(2, fill=9.0))
    name = "model.safetensors"
    assert (mine.path / name).stat().st_size == (theirs.path / name).stat().st_size
    shutil.copy(theirs.path / name, mine.path / name)
    with pytest.warns(UserWarning, match=r"step-000000002 is damaged.*model\.safetensors: weight"):
        found, _ = Store(tmp_path / "a").latest_good()
    assert found.step == 1
