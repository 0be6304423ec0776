"""Claims about what strangers leave in a run's directory: links, pipes, records and manifests made to deceive."""

import json
import math
import os
import subprocess
import zipfile
from pathlib import Path

import pytest
import torch
from confinement import confined
from sample_snapshots import make_snapshot
from sealing import edit

from samestep.cli import group
from samestep.errors import CorruptCheckpoint, SamestepError
from samestep.state.snapshot import Item, Snapshot
from samestep.store import foreign
from samestep.store.attempts import Attempt, read_attempts
from samestep.store.files import remove_tree
from samestep.store.folder import tidy
from samestep.store.keeping import Shelf
from samestep.store.lock import RunLock, describe_owner
from samestep.store.metrics import Metrics, read_metrics
from samestep.store.reading import Checkpoint, find_checkpoints
from samestep.store.records import open_run, read_run
from samestep.store.writing import write_checkpoint

READERS = {
    "run.json": [read_run, lambda directory: open_run(directory, {"a": 1}, version="1")],
    "attempts.jsonl": [read_attempts, lambda directory: Attempt.begin(directory, {})],
    "metrics.jsonl": [
        read_metrics,
        lambda directory: Metrics(directory).cut(0, 5),
        lambda directory: Metrics(directory).cut(10**9, 5),
        lambda directory: Metrics(directory).position(),
    ],
}


def call_all(name, directory):
    """Read one of the run's own files in every way; each answer is a value or an error of ours."""
    said = []
    for read in READERS[name]:
        try:
            said.append(repr(read(directory)))
        except SamestepError as error:
            said.append(error.message)
    raise AssertionError(" | ".join(said))


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_a_runs_own_file_that_is_none(tmp_path, name, make):
    """A pipe, a folder or a device in place of a run's file is refused at once, and none of it is read."""
    make(tmp_path / name)
    said = confined(lambda: call_all(name, tmp_path))
    assert said == "AssertionError: " + " | ".join(["A file of the run is no regular file."] * len(READERS[name]))


LINES = {
    "deep list": b"[" * 100_000,
    "deep dict": b'{"attempt":' * 100_000,
    "number of 4300 digits": b'{"attempt":' + b"9" * 4300 + b',"step":1}\n',
    "number of 5000 digits": b'{"attempt":' + b"9" * 5000 + b',"step":1}\n',
    "NaN": b'{"attempt":1,"step":NaN}\n',
    "true": b'{"attempt":true,"step":true}\n',
    "text": b'{"attempt":1,"step":"high"}\n',
    "negative": b'{"attempt":-5,"step":-1}\n',
    "UTF-16": '{"attempt":1,"step":1}\n'.encode("utf-16"),
    "no text": b'{"attempt":1,"\xff":1}\n',
    "lone surrogate": b'{"attempt":1,"host":"\\ud800"}\n',
    "record": b'{"id":"\\ud800","created":1,"samestep":[],"config":5}',
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("line", LINES)
def test_records_of_a_stranger(tmp_path, name, line):
    """Whatever a run's files hold, they are read, passed over or refused by an error of ours."""
    (tmp_path / name).write_bytes(LINES[line])
    assert confined(lambda: call_all(name, tmp_path)).startswith("AssertionError: ")


@pytest.mark.parametrize(
    "spoil", [{"id": "A" * 32}, {"id": "1"}, {"id": 1}, {"created": 1}, {"samestep": None}, {"config": [1]}], ids=str
)
def test_a_record_of_other_types(tmp_path, spoil):
    """A run.json whose values are not those of a run is damaged: its id would end in every checkpoint."""
    right = {"id": "0" * 32, "created": "2026-11-29T23:26:29Z", "samestep": "0.1.0", "config": {}}
    (tmp_path / "run.json").write_text(json.dumps(right))
    assert read_run(tmp_path).id == "0" * 32
    (tmp_path / "run.json").write_text(json.dumps(right | spoil))
    with pytest.raises(SamestepError, match="damaged"):
        read_run(tmp_path)


@pytest.mark.parametrize("content", [b"[" * 100_000, b"[1]", b'{"pid":{"a":[1]}}', b"\xff"])
def test_an_owner_of_a_stranger(tmp_path, content):
    """Whatever lock.json holds, it only makes a message."""
    (tmp_path / "lock.json").write_bytes(content)
    assert describe_owner(tmp_path).startswith(("an unknown process", "process {'a': [1]} on ?"))


def test_nothing_is_written_through_links(tmp_path):
    """A metrics.jsonl or .lock that is a link leads no byte into another file, and cuts none off."""
    victim, run = tmp_path / "victim", tmp_path / "run"
    victim.write_text("precious\n")
    run.mkdir()
    (run / "metrics.jsonl").symlink_to(victim)
    (run / ".lock").symlink_to(tmp_path / "made")
    metrics = Metrics(run)
    metrics.append({"step": 1})
    for change in (metrics.flush, lambda: metrics.cut(0, 0), lambda: metrics.cut(10**6, 0), RunLock(run).acquire):
        with pytest.raises(SamestepError):
            change()
    assert victim.read_text() == "precious\n"
    assert not (tmp_path / "made").exists()


def test_tidying_after_a_stranger(tmp_path):
    """Pipes, links and folders of 1,500 levels under the names of drafts are removed, and nothing behind them."""
    (tmp_path / "kept").mkdir()
    folder = tmp_path / "drafts"
    folder.mkdir()
    os.mkfifo(folder / ".tmp-pipe")
    (folder / ".tmp-link").symlink_to(tmp_path / "kept")
    subprocess.run(["mkdir", "-p", folder / ".trash-deep" / "/".join("a" * 1500)], check=True)
    assert confined(lambda: tidy(folder)) == "returned"
    assert list(folder.iterdir()) == []
    assert (tmp_path / "kept").is_dir()


def test_a_tree_of_folders_goes_with_its_files(tmp_path):
    """A folder is removed with its files and folders at any depth, and what a link in it names stays."""
    (tmp_path / "kept").write_text("kept")
    (tmp_path / "gone" / "a" / "b").mkdir(parents=True)
    (tmp_path / "gone" / "a" / "file").write_text("")
    (tmp_path / "gone" / "a" / "link").symlink_to(tmp_path / "kept")
    remove_tree(tmp_path / "gone")
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


# --- tensors -------------------------------------------------------------------------------------------


def written(directory, tensor):
    """Write a checkpoint of one tensor."""
    return write_checkpoint(
        directory, Snapshot(1, None, {"model": Item("module", {"a": {"$tensor": "a"}}, {"a": tensor})}), {}
    ).path


@pytest.mark.parametrize("strides", [[0, 0], [1, 1], [0, 1], [2, 1]])
def test_strides_that_lay_elements_over_one_another(tmp_path, strides):
    """Strides that put elements which differ on one place are refused: the tensor would not be the written one."""
    path = written(tmp_path, torch.arange(6.0).reshape(2, 3))
    edit(path, lambda content: content["items"]["model"]["tensors"]["a"].update(strides=strides))
    assert Checkpoint(path).verify() == []
    with pytest.raises(CorruptCheckpoint, match="differ on one place"):
        Checkpoint(path).tensor("model", "a")


def test_strides_far_apart_in_dimensions_of_one(tmp_path):
    """Strides of 2**61 where they reach nothing take no memory."""
    path = written(tmp_path, torch.ones([1] * 62 + [2]))
    strides = [2**61] * 62 + [1]
    edit(path, lambda content: content["items"]["model"]["tensors"]["a"].update(strides=strides))
    assert list(Checkpoint(path).tensor("model", "a").stride()) == strides


def test_looking_takes_no_memory_for_claims(tmp_path):
    """A file that says it is 2**60 bytes long, and a tensor that fills it, are refused without the memory for it."""
    path = written(tmp_path, torch.ones(4))

    def spoil(content):
        content["files"][0]["bytes"] = 2**60
        content["items"]["model"]["tensors"]["a"].update(shape=[2**57], strides=[1])

    edit(path, spoil)
    assert confined(lambda: Checkpoint(path).read()).startswith("CorruptCheckpoint: A file of the checkpoint does not")
    assert confined(lambda: Checkpoint(path).tensor("model", "a")).startswith("CorruptCheckpoint")


# --- the command line ----------------------------------------------------------------------------------


@pytest.fixture
def runs(tmp_path):
    """Write two runs, and give the folder of the checkpoint in each."""
    return [write_checkpoint(tmp_path / name / "checkpoints", make_snapshot(4), {}).path for name in ("a", "b")]


def value_at(*path, value):
    """Make a change of a manifest at one place."""

    def spoil(content):
        for key in path[:-1]:
            content = content[key]
        content[path[-1]] = value

    return spoil


def nested(levels, leaf):
    """Make lists in lists."""
    for _ in range(levels):
        leaf = [leaf]
    return leaf


MANIFESTS = {
    "a tensor that is a number": value_at("items", "model", "tensors", "weight", value=5),
    "a tensor without a shape": value_at("items", "model", "tensors", "weight", value={"dtype": "float32"}),
    "a module without a state": value_at("items", "model", "tree", value=[1]),
    "a state that is a number": value_at("items", "model", "tree", value={"state": 5}),
    "a kind that is a list": value_at("items", "values", "tree", value={"$kind": [], "value": [[1, 2]]}),
    "a kind that is a dict": value_at("items", "values", "tree", value={"$kind": {}, "value": [[{}, 2]]}),
    "a number of 4000 digits": value_at("items", "values", "tree", value={"a": 10**4000}),
    "400 levels": value_at("items", "values", "tree", value=nested(400, 1)),
    "900 levels": value_at("items", "values", "tree", value=nested(900, 1)),
    "another step": value_at("step", value=7),
    "an unknown policy": value_at("environment", value={"run": {"keep": {"luck": 1}, "protect": 5}}),
    "a policy by a list": value_at("environment", value={"run": {"keep": {"best": 1, "metric": [1]}, "protect": 5}}),
    "protected numbers": value_at("environment", value={"run": {"keep": {"last": 1}, "protect": [5, [1]]}}),
    "a run that is a list": value_at("environment", value={"run": [1]}),
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_the_command_line_on_hostile_manifests(runs, capsys, name):
    """Every verb answers on a manifest made to deceive, or refuses it; none calls that a defect of its own."""
    a, b = runs
    edit(a, MANIFESTS[name])
    edit(b, MANIFESTS[name] if "levels" in name else lambda _: None)
    if "levels" in name:
        edit(b, value_at("items", "values", "tree", value=nested(int(name.split()[0]), 2)))
    words = [
        ["inspect", a, "--tensors"],
        *(["verify", a], ["ls", a.parents[1]], ["diff", a, b, "--all"], ["diff", b, a]),
        ["export", a, "--item", "model", "--out", a.parents[1] / "x.safetensors"],
        ["prune", a.parents[1]],
    ]
    for each in words:
        assert group.run([*map(str, each), "--json"]) in {0, 1, 2}
        assert "Defect" not in capsys.readouterr().out


def test_a_checkpoint_under_another_step_is_listed_as_damaged(runs, capsys):
    """A manifest of another step than its folder's name says is damaged in the list, as it is for a resume."""
    edit(runs[0], value_at("step", value=7))
    group.run(["ls", str(runs[0].parents[1]), "--json"])
    (listed,) = json.loads(capsys.readouterr().out)["checkpoints"]
    assert (listed["status"], listed["step"]) == ("damaged", 4)


def test_foreign_files_that_never_end(tmp_path):
    """A pipe is named without waiting for its writer, and of a pickle that unpacks to gigabytes little is unpacked."""
    os.mkfifo(tmp_path / "pipe")
    assert confined(lambda: _say(foreign.describe(tmp_path / "pipe"))) == "AssertionError: a pipe, device or socket"
    path, deflated = tmp_path / "bomb.pt", zipfile.ZIP_DEFLATED
    with zipfile.ZipFile(path, "w", deflated) as archive, archive.open("x/data.pkl", "w", force_zip64=True) as file:
        file.write(b"\x80\x04\x8d" + (3 * 10**9).to_bytes(8, "little"))
        for _ in range(30):
            file.write(bytes(10**7))
    assert "weights" in confined(lambda: _say(foreign.describe(path)), megabytes=128)


def _say(text):
    raise AssertionError(text)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody without rights, and then lose them")
def test_a_folder_without_permission(tmp_path):
    """A checkpoint whose folder may not be entered is there, cannot be opened, and does not count in retention."""
    tmp_path.chmod(0o755)
    for parent in tmp_path.parents:
        if parent.name.startswith(("pytest-", "popen-")):
            parent.chmod(0o755)
    checkpoint = write_checkpoint(tmp_path / "checkpoints", make_snapshot(4), {})
    checkpoint.path.chmod(0)

    def look():
        os.setuid(65534)
        (found,) = find_checkpoints(tmp_path / "checkpoints")
        assert Shelf(tmp_path / "checkpoints").entries() == []
        found.check()

    said = confined(look)
    checkpoint.path.chmod(0o755)
    assert said.startswith("SamestepError: The checkpoint cannot be opened; it may be intact.")
    assert math.isfinite(checkpoint.step)
