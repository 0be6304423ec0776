"""Losses of checkpoints that users of other libraries have reported, each as the smallest case of its kind."""

import errno
import os

import pytest
import torch
from failing_systems import FailAt
from sample_snapshots import make_snapshot, same_snapshot

from samestep.errors import SaveFailed
from samestep.store import files
from samestep.store.retention import Entry, Keep, decide
from samestep.store.store import Store


def steps(store):
    """List the steps of a store's checkpoints."""
    return [checkpoint.step for checkpoint in store.checkpoints()]


def test_steps_are_ordered_as_numbers_whatever_the_files_times(tmp_path):
    """With modification times equal or reversed, of 900, 1000 and 1100 the 900 goes (transformers#26961)."""
    for times in ([0, 0, 0], [3, 2, 1]):
        store = Store(tmp_path / str(times), keep=Keep(last=3))
        for step, time in zip((900, 1000, 1100), times, strict=True):
            checkpoint = store.write(make_snapshot(step))
            for path in (checkpoint.path, *checkpoint.path.iterdir()):
                os.utime(path, (time, time))
        assert Store(store.directory).latest().step == 1100
        assert [path.step for path in map(store.find, ["step-900", "step-1000", "step-1100"])] == [900, 1000, 1100]
        two = Store(store.directory, keep=Keep(last=2))
        two.retain()
        assert steps(two) == [1000, 1100]


def test_checkpoints_of_one_instant_are_ordered_by_step():
    """Checkpoints that were created in the same instant leave by their steps, in any order of listing."""
    tied = [Entry(f"step-{step}", step, created=7.0) for step in (1100, 900, 1000)]
    assert decide(Keep(last=2), tied).deleted == decide(Keep(last=2), tied[::-1]).deleted == ("step-900",)


def test_the_old_one_goes_only_after_the_new_one_is_there(tmp_path, monkeypatch):
    """With one checkpoint kept, the old one is deleted after the new one's commit, never before (accelerate#1163)."""
    store = Store(tmp_path, keep=Keep(last=1))
    store.write(make_snapshot(1))
    seen = []

    class Watching(files.System):
        def rename(self, source, target):
            seen.append((target.name, steps(store)))
            super().rename(source, target)

    monkeypatch.setattr(files, "system", Watching())
    store.write(make_snapshot(2))
    (committed, before), (trashed, between) = seen
    assert (committed, before) == ("step-000000002", [1])
    assert trashed.startswith(".trash-step-000000001")
    assert between == [1, 2]


@pytest.mark.parametrize("at", range(0, 40, 3))
def test_a_save_that_fails_deletes_nothing(tmp_path, monkeypatch, at):
    """A save that fails, wherever it does, deletes neither the last checkpoint nor the best one (Lightning#1150)."""
    store = Store(tmp_path, keep=Keep(last=1, best=1, metric="acc"))
    store.write(make_snapshot(1, metrics={"acc": 0.9}))
    store.write(make_snapshot(2, metrics={"acc": 0.1}))
    assert steps(store) == [1, 2]
    monkeypatch.setattr(files, "system", FailAt(at, errno.ENOSPC))
    try:
        store.write(make_snapshot(3, metrics={"acc": 0.2}))
        kept = {1, 3}
    except SaveFailed:
        kept = {1, 2}
    monkeypatch.setattr(files, "system", files.System())
    assert kept <= set(steps(store))
    assert store.best().step == 1


def test_what_is_changed_right_after_a_save_is_not_in_it(tmp_path):
    """Weights changed in place once save has returned are not in it (Lightning PR#21079, NeMo-RL#3312)."""
    model = torch.nn.Linear(300, 300)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(1, 300)).sum().backward()
    optimizer.step()
    expected = {name: value.clone() for name, value in model.state_dict().items()}
    checkpoint = Store(tmp_path).save({"model": model, "optimizer": optimizer}, step=1)
    for tensor in (*model.parameters(), *(each["momentum_buffer"] for each in optimizer.state.values())):
        tensor.detach().zero_()
    assert checkpoint.verify() == []
    for name, value in expected.items():
        assert torch.equal(checkpoint.tensor("model", name), value)


def test_the_whole_folder_may_move(tmp_path):
    """The best checkpoint is found after its folder was moved: no absolute path is kept (transformers PR#48319)."""
    keep = Keep(last=1, best=1, metric="acc")
    store = Store(tmp_path / "here", keep=keep)
    for step, acc in ((1, 0.9), (2, 0.1)):
        store.write(make_snapshot(step, metrics={"acc": acc}))
    (tmp_path / "here").rename(tmp_path / "there")
    moved = Store(tmp_path / "there", keep=keep)
    assert same_snapshot(moved.best().read(), make_snapshot(1, metrics={"acc": 0.9}))
    moved.write(make_snapshot(3, metrics={"acc": 0.5}))
    assert steps(moved) == [1, 3]
    assert not any(b"here" in path.read_bytes() for path in (tmp_path / "there").rglob("*.json"))
