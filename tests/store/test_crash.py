"""Claims about saves that die or fail in the middle."""

import errno
import os
import shutil
import signal
import tempfile
from pathlib import Path

import pytest
import torch
from failing_systems import Counting, FailAt, KillAt, ShortWrites, in_child
from sample_snapshots import make_snapshot, same_snapshot

from samestep.errors import SaveFailed
from samestep.state.snapshot import Item, Snapshot
from samestep.store import files, folder
from samestep.store.retention import Keep
from samestep.store.store import Store
from samestep.store.writing import write_checkpoint


@pytest.fixture(params=[30, 20], ids=["new step and retention", "superseding"])
def scene(request, tmp_path, monkeypatch):
    """Make a store of two checkpoints (10 and 20), and the snapshot to be saved next, in small writes."""
    monkeypatch.setattr(files, "CHUNK", 256)
    base = tmp_path / "base"
    for step in (10, 20):
        Store(base).write(make_snapshot(step))
    return base, make_snapshot(request.param, fill=7.0)


def calls_of(base, snapshot, use_system, tmp_path):
    """Count the calls of an undisturbed save."""
    shutil.copytree(base, tmp_path / "undisturbed")
    system = use_system(Counting())
    Store(tmp_path / "undisturbed").write(snapshot)
    use_system(files.System())
    return [name for name, _ in system.calls]


def failure_of(directory, snapshot):
    """Save, and give the message of the failure; None when there was none."""
    try:
        Store(directory).write(snapshot)
    except SaveFailed as error:
        return error.message
    return None


def leftovers(directory):
    """List what should not be there."""
    return [path.name for path in directory.iterdir() if folder.parse_name(path.name) is None]


def test_kill_at_every_call(scene, tmp_path, use_system):
    """Whichever file call of a save or its retention is killed, the newest complete checkpoint is found.

    Reported as Lightning#688, transformers#35782.
    """
    base, snapshot = scene
    calls = calls_of(base, snapshot, use_system, tmp_path)
    committed = calls.index("rename")
    for at in range(len(calls)):
        directory = tmp_path / f"killed {at}"
        shutil.copytree(base, directory)

        def save(at=at, directory=directory):
            files.system = KillAt(at)
            Store(directory).write(snapshot)

        assert os.WTERMSIG(in_child(save)) == signal.SIGKILL
        store = Store(directory)
        expected = snapshot if at > committed else make_snapshot(20)
        _, found = store.latest_good()
        assert same_snapshot(found, expected), (at, calls[at])
        assert all(checkpoint.verify() == [] for checkpoint in store.checkpoints())
        store.write(make_snapshot(40))
        assert leftovers(directory) == []
        assert len(store.checkpoints()) == 2
        shutil.rmtree(directory)


def big_snapshot(step):
    """Make a snapshot of the size of a small real model: 2 MB in tensors of a few sizes and types."""
    generator = torch.Generator().manual_seed(step)
    sizes = {"embedding": (300, 256), "layer": (512, 300), "head": (256, 300), "bias": (300,), "step": ()}
    weights = {name: torch.randn(size, generator=generator) for name, size in sizes.items()}
    moments = {name: value.bfloat16() for name, value in weights.items()}
    items = {"model": Item("module", {"step": step}, weights), "optimizer": Item("optimizer", {}, moments)}
    return Snapshot(step, 0, items)


def kill_while_the_data_is_written(tmp_path, monkeypatch, every):
    """Kill a save of 2 MB in every so many of its writes of 4 kB, each in its middle; count the kills."""
    monkeypatch.setattr(files, "CHUNK", 4096)
    base = tmp_path / "base"
    earlier, later = big_snapshot(10), big_snapshot(20)  # here: a fork that computes waits for threads that it lacks
    Store(base).write(earlier)
    system = Counting()
    monkeypatch.setattr(files, "system", system)
    Store(shutil.copytree(base, tmp_path / "undisturbed")).write(later)
    monkeypatch.setattr(files, "system", files.System())
    writes = [at for at, (name, _) in enumerate(system.calls) if name == "write"]
    for at in writes[::every]:
        directory = shutil.copytree(base, tmp_path / "killed")

        def save(at=at, directory=directory):
            files.system = KillAt(at)
            Store(directory).write(later)

        assert os.WTERMSIG(in_child(save)) == signal.SIGKILL
        (torn,) = leftovers(directory)
        assert torn.startswith(folder.DRAFT_PREFIX), at
        store = Store(directory)
        found, snapshot = store.latest_good()
        assert (found.name, same_snapshot(snapshot, earlier)) == ("step-000000010", True), at
        assert [path.name for path in store.tidy()] == [torn]
        assert leftovers(directory) == []
        shutil.rmtree(directory)
    return len(writes[::every]), len(writes)


def test_kill_in_the_middle_of_megabytes(tmp_path, monkeypatch):
    """A save of 2 MB killed amid its data, between and inside writes of 4 kB, is never taken, and is tidied up."""
    print(*kill_while_the_data_is_written(tmp_path, monkeypatch, 23), "kills, writes")  # noqa: T201


@pytest.mark.slow
def test_kill_in_every_write_of_megabytes(tmp_path, monkeypatch):
    """Whichever write of 4 kB of a save of 2 MB is killed, the torn checkpoint is never taken, and is tidied up."""
    print(*kill_while_the_data_is_written(tmp_path, monkeypatch, 1), "kills, writes")  # noqa: T201


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EROFS])
def test_failure_at_every_call(scene, tmp_path, use_system, number):
    """Whichever file call of a save fails, it says so or has saved, and earlier checkpoints stay."""
    base, snapshot = scene
    calls = calls_of(base, snapshot, use_system, tmp_path)
    for at in range(len(calls)):
        directory = tmp_path / f"failed {at}"
        shutil.copytree(base, directory)
        use_system(FailAt(at, number))
        message = failure_of(directory, snapshot)
        saved = message is None
        assert saved or "disk is full" in message or os.strerror(number) in message
        use_system(files.System())
        _, found = Store(directory).latest_good()
        assert saved is (at > calls.index("fsync", calls.index("rename")) + 1) or calls[at] == "close"
        assert same_snapshot(found, snapshot) or (not saved and same_snapshot(found, make_snapshot(20)))
        Store(directory).write(make_snapshot(40))
        assert leftovers(directory) == []
        shutil.rmtree(directory)


def test_short_writes(tmp_path, use_system):
    """A system that takes a few bytes a call gets all of them, in order."""
    use_system(ShortWrites())
    snapshot = make_snapshot(3)
    assert same_snapshot(write_checkpoint(tmp_path, snapshot, {}).read(), snapshot)


def test_system_that_writes_nothing(tmp_path, use_system):
    """A system that takes no byte and reports no error ends in an error, not in an endless loop."""
    system = use_system(files.System())
    system.write = lambda _descriptor, _data: 0
    with pytest.raises(SaveFailed, match="wrote nothing"):
        write_checkpoint(tmp_path, make_snapshot(3), {})


def test_everything_is_synchronised_before_the_rename(tmp_path, use_system):
    """Each file and the folder are synchronised before the checkpoint gets its name, the parent folder after."""
    system = use_system(Counting())
    write_checkpoint(tmp_path, make_snapshot(3), {})
    renamed = next(index for index, (name, _) in enumerate(system.calls) if name == "rename")
    opened, synced = {}, []
    for index, (name, arguments) in enumerate(system.calls):
        if name == "open":
            opened[len(opened)] = (arguments[0], index)
        if name == "fsync":
            synced.append((max(opened.values(), key=lambda each: each[1])[0], index))
    before = {path.name for path, index in synced if index < renamed}
    created = {path.name for path, _ in opened.values() if path.suffix in {".json", ".safetensors"}}
    assert created
    assert created <= before
    assert any(path.name.startswith(".tmp-") for path, index in synced if index < renamed)
    assert [path for path, index in synced if index > renamed] == [tmp_path]


def test_interrupt_leaves_nothing(tmp_path, use_system):
    """Ctrl-C during a save leaves no draft behind."""

    class Interrupt(Counting):
        def before(self, name, _arguments):
            if name == "fsync" and len(self.calls) > 5:
                self.before = lambda *_: None
                raise KeyboardInterrupt

    use_system(Interrupt())
    with pytest.raises(KeyboardInterrupt):
        write_checkpoint(tmp_path, make_snapshot(3), {})
    assert list(tmp_path.iterdir()) == []


def test_full_disk(small_disk):
    """On a full disk the error names needed and free bytes, and what was saved before stays."""
    store = Store(small_disk)
    store.write(make_snapshot(1))
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"0" * 200_000)
    big = make_snapshot(2)
    big.items["model"].tensors["weight"] = big.items["model"].tensors["weight"].repeat(100, 100)
    with pytest.raises(SaveFailed) as caught:
        store.write(big)
    assert "disk is full" in caught.value.message
    assert caught.value.expected.startswith("240088 bytes")
    assert 0 < int(caught.value.found.split()[0]) < 60_000
    assert leftovers(small_disk) == ["ballast"]
    assert same_snapshot(store.latest_good()[1], make_snapshot(1))
    ballast.unlink()
    store.write(make_snapshot(3))
    assert store.latest().step == 3


def test_a_living_writer_is_not_tidied(tmp_path):
    """Tidying removes the drafts of dead writers and leaves that of a living one."""
    with folder.draft(tmp_path) as living:
        dead = tmp_path / ".tmp-dead"
        dead.mkdir()
        (dead / "model.safetensors").write_bytes(b"half")
        assert in_child(lambda: Store(tmp_path).tidy()) == 0
        assert [living] == list(tmp_path.iterdir())


def test_failing_save_deletes_nothing(tmp_path, use_system):
    """With only one checkpoint kept, a failing save leaves that one (Lightning#1150)."""
    store = Store(tmp_path, keep=Keep(last=1))
    store.write(make_snapshot(1))
    use_system(FailAt(12))
    with pytest.raises(SaveFailed):
        store.write(make_snapshot(2))
    use_system(files.System())
    assert [checkpoint.step for checkpoint in store.checkpoints()] == [1]


def test_nothing_of_a_save_goes_through_the_systems_folder_for_temporary_files(tmp_path, use_system, monkeypatch):
    """With TMPDIR on another volume each draft lies beside its final name, so that the rename is one, never a copy."""
    elsewhere = tmp_path / "tmp"
    elsewhere.mkdir()
    for name in ("TMPDIR", "TMP", "TEMP"):
        monkeypatch.setenv(name, str(elsewhere))
    monkeypatch.setattr(tempfile, "tempdir", None)  # asked anew
    system = use_system(Counting())
    store = Store(tmp_path / "checkpoints", keep=Keep(last=1))
    for step in (1, 2):
        store.write(make_snapshot(step))
    files.replace_file(tmp_path / "run.json", b"{}")
    renames = [arguments for name, arguments in system.calls if name == "rename"]
    assert renames
    assert all(source.parent == target.parent for source, target in renames)
    touched = {each for _, arguments in system.calls for each in arguments if isinstance(each, Path)}
    assert touched
    assert not any(path.is_relative_to(elsewhere) for path in touched)
    assert list(elsewhere.iterdir()) == []


def test_a_save_between_two_volumes(tmp_path, small_disk, monkeypatch):
    """With the checkpoints on another volume than TMPDIR a save commits by one rename within its own volume."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    assert small_disk.stat().st_dev != tmp_path.stat().st_dev
    before = sorted(tmp_path.iterdir())
    Store(small_disk).write(make_snapshot(1))
    assert same_snapshot(Store(small_disk).latest_good()[1], make_snapshot(1))
    assert sorted(tmp_path.iterdir()) == before
