"""What looking at a run says while its training saves new checkpoints and deletes old ones."""

import shutil

import pytest
from small_training import snapshot

from samestep.store import folder
from samestep.store.retention import Keep
from samestep.store.store import Store


@pytest.fixture
def trains_on(digits, monkeypatch):
    """Have the run save a newer checkpoint, and lose all older ones, right after its folder was listed for a look."""
    list_folders = folder.list_folders
    steps = iter([400])

    def listed(directory):
        found = list_folders(directory)
        for step in steps:  # once
            Store(directory, keep=Keep(every=1)).write(snapshot(step, seed=step))
            for path in found:
                shutil.rmtree(path)
        return found

    monkeypatch.setattr(folder, "list_folders", listed)
    return digits


def test_verify_calls_no_deleted_checkpoint_damaged(trains_on, samestep_json):
    """Checkpoints that the training deletes while verify looks are left out, and the one saved since is verified."""
    status, found = samestep_json("verify", trains_on)
    assert status == 0
    assert [(each["name"], each["ok"]) for each in found["checkpoints"]] == [("step-000000400", True)]


def test_ls_calls_no_deleted_checkpoint_torn(trains_on, samestep_json):
    """Checkpoints that the training deletes while ls looks are left out."""
    status, found = samestep_json("ls", trains_on)
    assert (status, found["checkpoints"]) == (0, [])


def test_inspect_finds_the_latest_although_all_listed_ones_go(trains_on, samestep_json):
    """RUN means the latest checkpoint also when the training deletes all that were there at the first look."""
    status, found = samestep_json("inspect", trains_on)
    assert (status, found["step"]) == (0, 400)


def test_a_reader_finds_the_latest_although_all_listed_ones_go(trains_on):
    """Store.latest_good, in a process that only reads, finds what was saved after its first look."""
    checkpoint, _ = Store(trains_on / "checkpoints").latest_good()
    assert checkpoint.step == 400


def test_a_checkpoint_that_is_gone_is_no_damage(digits, samestep_json):
    """Naming a checkpoint that was deleted meanwhile is "none here" with status 2, not damage with status 1."""
    from samestep.errors import NoCheckpoint
    from samestep.store.reading import Checkpoint

    gone = Checkpoint(digits / "checkpoints" / "step-000000100")
    shutil.rmtree(gone.path)
    for look in (gone.check, gone.require_sound, gone.verify):
        with pytest.raises(NoCheckpoint, match="not any more"):
            look()
    assert samestep_json("inspect", gone.path)[0] == 2
