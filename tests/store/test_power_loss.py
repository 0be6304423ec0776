"""Claims about power loss: whatever the disk has lost, what the store had promised is there."""

import shutil

import pytest
import torch
from power_loss import LossyDisk, NoWaiting, lay_out
from sample_snapshots import same_snapshot

from samestep.errors import SamestepError
from samestep.state.snapshot import Item, Snapshot
from samestep.store import files, folder
from samestep.store.retention import Keep
from samestep.store.store import Store


def snapshot_of(step, metrics=None):
    """Make a snapshot of two files whose values depend on the step alone."""
    weight = torch.arange(4) + step
    items = {
        name: Item(kind=kind, tree={"weight": {"$tensor": "weight"}}, tensors={"weight": weight})
        for name, kind in (("model", "module"), ("random", "random"))
    }
    return Snapshot(step=step, epoch=0, items=items, metrics=metrics or {})


# --- what happens before the power goes: each tells from when on a step is promised -------------------------


def saves(directory, promised):
    """Save from an empty disk on: new steps, retention of the last and the best, one step twice."""
    store = Store(directory, keep=Keep(last=1, best=1, metric="acc"))
    for step, acc in ((1, 0.5), (2, 0.9), (3, 0.1), (4, 0.2), (4, 0.3)):
        store.write(snapshot_of(step, {"acc": acc}))
        promised(step)


def going_back(directory, promised):
    """Go back to step 1, which sets the later ones aside, and take another way."""
    Store(directory).write(snapshot_of(1))
    Store(directory).write(snapshot_of(2))
    promised(1)
    store = Store(directory)
    store.fallback.set_aside_after(1)
    store.write(snapshot_of(3))
    promised(3)


def tidying(directory, promised):
    """Find the draft and the trash of a killed writer, and go on."""
    Store(directory).write(snapshot_of(1))
    promised(1)
    for name in (folder.DRAFT_PREFIX, folder.TRASH_PREFIX):
        files.system.mkdir(directory / f"{name}left")
        files.write_file(directory / f"{name}left" / "manifest.json", b"{")
    Store(directory).write(snapshot_of(2))
    promised(2)


def a_save_and_its_retention(directory, promised):
    """Save twice and keep one."""
    for step in (1, 2):
        Store(directory, keep=Keep(last=1)).write(snapshot_of(step))
        promised(step)


# --- what is there afterwards ---------------------------------------------------------------------------


@pytest.fixture
def play(tmp_path, use_system):
    """Play a scene on a disk that forgets, and give the disk."""

    def on(scene, before=(), promise=0, deaf_to=None):
        lay_out(before, tmp_path / "disk")
        disk = use_system(LossyDisk(tmp_path / "disk", promise=promise, deaf_to=deaf_to))
        scene(tmp_path / "disk" / "run", disk.promised)
        use_system(files.System())
        shutil.rmtree(tmp_path / "disk")
        return disk

    return on


@pytest.fixture
def fault(tmp_path, use_system):
    """Give what says what is wrong after a power loss, or None when all is well and the next save works."""

    def of(state, promise):
        use_system(NoWaiting())
        lay_out(state, tmp_path / "after")
        try:
            return _fault(tmp_path / "after" / "run", promise)
        except (SamestepError, UserWarning) as error:
            return f"{type(error).__name__}: {error}"
        finally:
            shutil.rmtree(tmp_path / "after")
            use_system(files.System())

    return of


def _fault(directory, promised):
    store = Store(directory)
    found = store.latest_good()
    step = 0 if found is None else found[0].step
    if step < promised:
        return f"step {promised} was promised, step {step} is there"
    if found and not same_snapshot(found[1], snapshot_of(step, found[1].metrics)):
        return f"step {step} has other bits"
    if problems := [problem for each in store.checkpoints() for problem in each.verify()]:
        return f"torn: {problems}"
    Store(directory).write(snapshot_of(9))
    left = [path.name for path in directory.glob(".*")]
    return f"left over: {left}" if left else None


SCENES = [saves, going_back, tidying]


@pytest.mark.parametrize("scene", SCENES)
def test_a_power_loss_at_any_call_keeps_what_was_promised(scene, play, fault, record_property):
    """Whatever a disk lost or reordered, a promised step or a newer one is there, none is torn, nothing is left over.

    Of states that differ only inside drafts and trash, five are looked at here, and all in the slow form.
    """
    groups = play(scene).by_what_shows()
    record_property("states", sum(len(group) for group, _ in groups))
    record_property("outside drafts and trash", len(groups))
    looked_at = [(state, promise) for group, promise in groups for state in group[:: max(1, len(group) // 5)]]
    assert {state: why for state, promise in looked_at if (why := fault(state, promise))} == {}


@pytest.mark.slow
@pytest.mark.parametrize("scene", SCENES)
def test_a_power_loss_at_any_call_in_every_state(scene, play, fault):
    """Each single state that the disk may be in, drafts and trash included, keeps what was promised."""
    disk = play(scene)
    assert {state: why for state, promises in disk.states.items() if (why := fault(state, max(promises)))} == {}


@pytest.mark.parametrize("scene", SCENES)
def test_a_second_power_loss_during_the_recovery_from_the_first(scene, play, fault, record_property):
    """The power may go again while the next process tidies and saves: the promise of before still holds."""

    def recover(directory, promised):
        store = Store(directory, keep=Keep(last=1))
        store.latest_good()
        store.write(snapshot_of(8))
        promised(8)

    count = 0
    for group, promise in play(scene).by_what_shows():
        for later, promised in play(recover, before=group[-1], promise=promise).by_what_shows():
            count += 1
            assert fault(later[-1], promised) is None
    record_property("states", count)
    assert count > 50


def test_every_synchronisation_is_needed(play, fault):
    """With any one `fsync` left out the disk has a state that breaks the promise: the model sees, none is in vain."""
    synced = play(a_save_and_its_retention).syncs
    harmless = []
    for number in range(len(synced)):
        disk = play(a_save_and_its_retention, deaf_to=number)
        if not any(fault(group[-1], promise) for group, promise in disk.by_what_shows()):
            harmless.append((number, synced[number].name))
    assert len(synced) > 10
    assert harmless == []
