"""Claims about the store: which checkpoint is taken, which ones stay, and what happens to damaged ones."""

import errno
import json
import shutil
import subprocess
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from sample_snapshots import make_snapshot, same_snapshot
from test_manifest import seal

from samestep.errors import CorruptCheckpoint, NoCheckpoint, SamestepError, SaveFailed, StateMismatch
from samestep.state.random import RandomState
from samestep.store import files, folder, keeping
from samestep.store.manifest import NewerFormat
from samestep.store.retention import Decision, Keep
from samestep.store.store import Store

ALL = Keep(last=100)


def filled(directory, *steps, keep=ALL):
    """Make a store with checkpoints of these steps, in this order."""
    store = Store(directory, keep=keep)
    for step in steps:
        store.write(make_snapshot(step))
    return store


def names(store):
    """List the names of a store's checkpoints."""
    return [checkpoint.name for checkpoint in store.checkpoints()]


def flip(path, index=-1):
    """Flip one bit of a file."""
    data = bytearray(path.read_bytes())
    data[index] ^= 1
    path.write_bytes(data)


def cut(path):
    """Cut the last byte off a file."""
    path.write_bytes(path.read_bytes()[:-1])


# --- which one is taken --------------------------------------------------------------------------------


def test_nothing_there(tmp_path):
    """A folder that is missing or empty holds no checkpoint, and looking makes nothing."""
    store = Store(tmp_path / "none")
    assert store.checkpoints() == []
    assert store.latest() is None
    assert store.latest_good() is None
    assert store.best("acc") is None
    assert store.tidy() == []
    with pytest.raises(NoCheckpoint):
        store.load({})
    with pytest.raises(NoCheckpoint):
        store.load({}, which=400)
    assert not (tmp_path / "none").exists()


def test_a_file_in_the_folders_place(tmp_path):
    """A folder that cannot be read is an error, never an empty store: a run would start anew."""
    store = Store(tmp_path / "checkpoints")
    (tmp_path / "checkpoints").write_bytes(b"")
    with pytest.raises(SamestepError, match="cannot be read"):
        store.latest()
    with pytest.raises(SaveFailed, match="Not a directory"):
        store.write(make_snapshot(1))


def test_a_draft_that_could_not_be_removed_goes_with_the_next_save(tmp_path, use_system):
    """A failing disk that keeps even the draft from being removed leaves nothing once it works again."""

    class Failing(files.System):
        def fsync(self, _descriptor):
            raise OSError(errno.EIO, "Input/output error")

        def unlink(self, _path):
            raise OSError(errno.EIO, "Input/output error")

    store = filled(tmp_path, 1)
    use_system(Failing())
    with pytest.raises(SaveFailed):
        store.write(make_snapshot(2))
    assert len(list(tmp_path.iterdir())) == 2
    use_system(files.System())
    store.write(make_snapshot(2))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000000001", "step-000000002"]


def test_latest_is_the_highest_step(tmp_path):
    """The latest is the highest step, whatever the order of writing and of names (transformers#26961)."""
    store = filled(tmp_path, 9900, 1_000_000_000, 900, 10_000)
    assert store.latest().step == 1_000_000_000
    assert [each.step for each in store.checkpoints()] == [900, 9900, 10_000, 1_000_000_000]


def test_the_same_step_again(tmp_path):
    """Saving a step again supersedes the earlier one, which goes only afterwards."""
    store = Store(tmp_path)
    for epoch in range(12):
        store.write(make_snapshot(400, epoch=epoch))
    assert names(store) == ["step-000000400.11"]
    assert store.latest().epoch == 11


def test_the_higher_suffix_counts(tmp_path):
    """Of two checkpoints of one step the later one is taken, also as the eleventh."""
    store = Store(tmp_path)
    store.write(make_snapshot(400, epoch=1))
    for order in (2, 10):
        shutil.copytree(tmp_path / "step-000000400", tmp_path / f"step-000000400.{order}")
    assert [each.order for each in store.checkpoints()] == [0, 2, 10]
    assert store.latest().order == 10
    assert store.find("step-400.2").order == 2
    assert store.find(400).order == 10


def test_other_names_are_no_checkpoints(tmp_path):
    """Folders and files of other names are neither read, moved nor deleted."""
    store = filled(tmp_path, 1)
    for name in ("step-1", "step-000000001.0", "step-000000001.01", "step-0000000001", "best", "step-abcdefghi"):
        shutil.copytree(tmp_path / "step-000000001", tmp_path / name)
    (tmp_path / "step-000000009").write_bytes(b"a file")
    assert names(store) == ["step-000000001"]
    assert store.latest().step == 1
    store.write(make_snapshot(2))
    assert (tmp_path / "best").is_dir()


@pytest.mark.parametrize("which", ["step-2", "step-000000002", 2])
def test_a_named_step(tmp_path, which):
    """A checkpoint is found by its step, in words or as a number."""
    assert filled(tmp_path, 1, 2, 3).find(which).step == 2


@pytest.mark.parametrize("which", ["step-4", 4, "2", "newest", "step-2.1", "step--2", -2, "../step-2"])
def test_a_name_of_nothing(tmp_path, which):
    """A step that is not there is an error that lists what is."""
    with pytest.raises(NoCheckpoint) as caught:
        filled(tmp_path, 1, 2).find(which)
    assert caught.value.found in {repr(which), "step-000000001, step-000000002"}


def test_best(tmp_path):
    """The best has the highest (or lowest) score, the earlier of two equal ones; NaN never wins."""
    store = Store(tmp_path, keep=Keep(last=100, best=1, metric="acc"))
    for step, score in enumerate([0.1, 0.9, float("nan"), 0.9, None, 0.5]):
        store.write(make_snapshot(step, metrics={} if score is None else {"acc": score}))
    assert store.best().step == 1
    assert store.best(mode="min").step == 0
    assert store.best("loss") is None
    with pytest.raises(SamestepError, match="by which score"):
        Store(tmp_path).best()


# --- damage --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", ["manifest.json", "model.safetensors", "random.safetensors"])
@pytest.mark.parametrize("damage", [flip, cut, Path.unlink], ids=["flip", "cut", "missing"])
def test_a_damaged_one_is_set_aside_and_the_one_before_is_taken(tmp_path, file, damage):
    """A damaged checkpoint is reported by name, moved into quarantine, and the one before it is taken."""
    store = filled(tmp_path, 1, 2, 3)
    for step in (2, 3):
        damage(tmp_path / f"step-00000000{step}" / file)
    with pytest.warns(UserWarning, match="is damaged") as caught:
        checkpoint, snapshot = store.latest_good()
    assert ["step-000000003" in str(caught[0].message), "step-000000002" in str(caught[1].message)] == [True, True]
    assert checkpoint.step == 1
    assert same_snapshot(snapshot, make_snapshot(1))
    assert names(store) == ["step-000000001"]
    assert sorted(path.name for path in (tmp_path / "quarantine").iterdir()) == [
        "step-000000002",
        "step-000000003",
    ]


def test_latest_looks_at_manifest_and_sizes(tmp_path):
    """latest() passes over a torn one, and takes one whose damage only the digests show."""
    store = filled(tmp_path, 1, 2, 3)
    cut(tmp_path / "step-000000003/model.safetensors")
    flip(tmp_path / "step-000000002/model.safetensors")
    with pytest.warns(UserWarning, match="step-000000003"):
        assert store.latest().step == 2


def test_all_are_damaged(tmp_path):
    """When all are damaged there is none to load, and all are kept for a look at them."""
    store = filled(tmp_path, 1, 2)
    for path in tmp_path.glob("*/model.safetensors"):
        flip(path)
    with pytest.warns(UserWarning, match="is damaged"), pytest.raises(NoCheckpoint, match="no sound checkpoint"):
        store.load({})
    assert len(list((tmp_path / "quarantine").iterdir())) == 2


def test_a_named_damaged_one_is_an_error(tmp_path):
    """A checkpoint asked for by name does not give way to another one in silence."""
    store = filled(tmp_path, 1, 2)
    flip(tmp_path / "step-000000002/model.safetensors")
    with pytest.raises(CorruptCheckpoint) as caught:
        store.load({}, which="step-2")
    assert caught.value.path.endswith("step-000000002/model.safetensors: weight")
    assert names(store) == ["step-000000001", "step-000000002"]


def test_the_best_is_damaged(tmp_path):
    """When the best is damaged the next best is taken."""
    store = Store(tmp_path, keep=Keep(last=100, best=1, metric="acc"))
    for step, score in enumerate([0.1, 0.9, 0.5]):
        store.write(make_snapshot(step, metrics={"acc": score}))
    flip(tmp_path / "step-000000001/model.safetensors")
    candidates = store._best_first(None, None)
    with pytest.warns(UserWarning, match="step-000000001"):
        assert store.fallback.first_good(candidates, None)[0].step == 2


def test_the_same_name_twice_in_quarantine(tmp_path):
    """Quarantine keeps both when a step is damaged twice."""
    store = Store(tmp_path)
    for _ in range(2):
        store.write(make_snapshot(1))
        cut(tmp_path / "step-000000001/manifest.json")
        with pytest.warns(UserWarning, match="is damaged"):
            assert store.latest() is None
    assert len(list((tmp_path / "quarantine").iterdir())) == 2


def test_a_read_only_folder(small_disk):
    """Where nothing can be moved, the damaged one is reported once and passed over every time."""
    store = filled(small_disk, 1, 2)
    flip(small_disk / "step-000000002/model.safetensors")
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with pytest.warns(UserWarning, match="cannot be changed"):
        assert store.latest_good()[0].step == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert store.latest_good()[0].step == 1
    with pytest.raises(SaveFailed) as caught:
        store.write(make_snapshot(3))
    assert "read-only" in caught.value.hint


def test_a_newer_format_is_never_set_aside(tmp_path):
    """A checkpoint of a newer samestep stops the resume and stays where it is."""
    store = filled(tmp_path, 1, 2)
    path = tmp_path / "step-000000002/manifest.json"
    content = json.loads(path.read_bytes())
    del content["digest"]
    path.write_bytes(seal(content | {"format": 2}))
    with pytest.raises(NewerFormat):
        store.latest_good()
    assert names(store) == ["step-000000001", "step-000000002"]


def test_a_checkpoint_that_vanishes_is_no_damage(tmp_path):
    """A checkpoint that another process's retention deletes meanwhile is passed over without a word."""
    store = filled(tmp_path, 1, 2)
    candidates = store.fallback.newest_first()
    shutil.rmtree(tmp_path / "step-000000002")
    assert next(store.fallback.sound(candidates)).step == 1
    assert not (tmp_path / "quarantine").exists()


# --- which ones stay -----------------------------------------------------------------------------------


def test_the_last_two_stay(tmp_path):
    """By default the last two stay."""
    assert names(filled(tmp_path, 1, 2, 3, 4, keep=Keep())) == ["step-000000003", "step-000000004"]


def test_the_best_stays(tmp_path):
    """The best stays however old, and the pinned one too (Lightning#1150)."""
    store = Store(tmp_path, keep=Keep(last=1, best=1, metric="acc"))
    for step, score in enumerate([0.1, 0.9, 0.2, 0.3, 0.4]):
        store.write(make_snapshot(step, metrics={"acc": score}), tags=["pinned"] if step == 2 else [])
    assert [each.step for each in store.checkpoints()] == [1, 2, 4]


@pytest.mark.parametrize("damage", [flip, cut])
def test_a_damaged_one_does_not_count_as_kept(tmp_path, damage):
    """A damaged checkpoint takes no place among the last two, and is not deleted."""
    store = filled(tmp_path, 1, 2, keep=Keep())
    damage(tmp_path / "step-000000002/manifest.json")
    Store(tmp_path).write(make_snapshot(3))
    assert names(store) == ["step-000000001", "step-000000002", "step-000000003"]


def test_nothing_goes_for_a_checkpoint_that_does_not_read_back(tmp_path, monkeypatch):
    """When the new checkpoint does not read back, the save fails and nothing older is deleted."""
    store = filled(tmp_path, 1, keep=Keep(last=1))
    original = folder.commit

    def commit(draft, step):
        path = original(draft, step)
        cut(path / "model.safetensors")
        return path

    monkeypatch.setattr(folder, "commit", commit)
    with pytest.raises(SaveFailed, match="does not read back"):
        store.write(make_snapshot(2))
    with pytest.warns(UserWarning, match="step-000000002"):
        assert store.latest_good()[0].step == 1


def test_what_cannot_be_deleted_does_not_fail_the_save(tmp_path, use_system):
    """When an old checkpoint cannot be deleted the save has succeeded all the same."""
    store = filled(tmp_path, 1, keep=Keep(last=1))

    class Stubborn(files.System):
        def rename(self, source, target):
            if target.name.startswith(".trash-"):
                raise OSError(errno.EBUSY, "busy")
            super().rename(source, target)

    use_system(Stubborn())
    assert store.write(make_snapshot(2)).step == 2
    assert [each.step for each in store.checkpoints()] == [1, 2]
    use_system(files.System())
    store.write(make_snapshot(3))
    assert [each.step for each in store.checkpoints()] == [3]


def test_a_lower_step_than_the_latest_is_kept(tmp_path):
    """After going back in steps the checkpoint just written is not the one that goes."""
    store = filled(tmp_path, 500, 600, keep=Keep(last=1))
    store.write(make_snapshot(300))
    assert store.find(300).step == 300


def test_the_clock_does_not_decide_over_the_newest(tmp_path):
    """Neither the checkpoint just written nor the highest step goes, even if the clock was set back by years."""
    store = filled(tmp_path, 500, 600, keep=Keep(last=1))
    for path in tmp_path.glob("*/manifest.json"):
        content = json.loads(path.read_bytes())
        del content["digest"]
        path.write_bytes(seal(content | {"created": "2099-01-01T00:00:00Z"}))
    Store(tmp_path, keep=Keep(last=1)).write(make_snapshot(300))
    assert [each.step for each in store.checkpoints()] == [300, 600]


def test_the_newest_never_goes(tmp_path, monkeypatch):
    """Even a policy that lets everything go leaves the newest complete checkpoint."""
    store = filled(tmp_path, 1, 2, 3)
    monkeypatch.setattr(keeping, "decide", lambda *_, **__: Decision({}, tuple(names(store))))
    assert keeping.Shelf(tmp_path).retain(ALL) == ["step-000000001", "step-000000002"]
    assert names(store) == ["step-000000003"]


def test_going_back(tmp_path):
    """A run that goes back sets later checkpoints aside, the newest last: no kill leaves it in the middle."""
    store = filled(tmp_path, 100, 200, 300)
    assert [path.name for path in store.fallback.set_aside_after(100)] == ["step-000000200", "step-000000300"]
    assert store.latest().step == 100


def test_a_second_store_sees_the_same(tmp_path):
    """What one store wrote another one counts, also after it looked before."""
    first, second = Store(tmp_path), Store(tmp_path)
    for step in range(1, 8):
        (first if step % 2 else second).write(make_snapshot(step))
    assert names(first) == names(second) == ["step-000000006", "step-000000007"]


@pytest.mark.parametrize("step", [-1, 1.0, True, "1", None, 2**62])
def test_a_step_that_is_none(tmp_path, step):
    """A step that is no number of updates is an error, and nothing is written."""
    with pytest.raises(SamestepError, match="not a number of completed updates"):
        Store(tmp_path).write(make_snapshot(step, fill=0.0))
    assert list(tmp_path.iterdir()) == []


def test_moving_and_renaming_the_folder(tmp_path):
    """A folder works after it was moved, with spaces and any script in its path (transformers PR#48319)."""
    filled(tmp_path / "a", 1, 2)
    (tmp_path / "a").rename(tmp_path / "ein Ordner 层")
    store = Store(tmp_path / "ein Ordner 层")
    assert same_snapshot(store.latest_good()[1], make_snapshot(2))


def test_temporary_files_lie_beside_the_final_ones(tmp_path, monkeypatch):
    """The system's TMPDIR is never used: a rename out of it could be a copy."""
    monkeypatch.setenv("TMPDIR", str(tmp_path / "no such folder"))
    assert filled(tmp_path / "checkpoints", 1).latest().step == 1


def test_file_permissions_are_the_users(tmp_path):
    """Files get the permissions that the umask leaves, not those of a private temporary file."""
    checkpoint = filled(tmp_path, 1).latest()
    (tmp_path / "plain").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    assert {path.stat().st_mode for path in checkpoint.path.iterdir()} == {(tmp_path / "plain").stat().st_mode}
    assert checkpoint.path.stat().st_mode == (tmp_path / "folder").stat().st_mode


# --- objects -------------------------------------------------------------------------------------------


def training(seed):
    """Make a model with its optimizer and a scheduler, three steps trained."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    objects = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "random": RandomState()}
    for _ in range(3):
        update(objects)
    return objects


def update(objects):
    """Do one step on random numbers, and give its loss."""
    loss = objects["model"](torch.randn(16, 4)).pow(2).mean()
    objects["optimizer"].zero_grad()
    loss.backward()
    objects["optimizer"].step()
    objects["optimizer"].zero_grad()
    objects["scheduler"].step()
    return loss.item()


def test_objects_are_saved_and_loaded(tmp_path):
    """A training that is loaded into fresh objects goes on to the same bits."""
    store = Store(tmp_path)
    objects = training(seed=0)
    store.save(objects, step=3, epoch=0, metrics={"loss": 0.5}, tags=["first"])
    expected = [update(objects) for _ in range(3)]
    fresh = training(seed=1)
    checkpoint = store.load(fresh)
    assert (checkpoint.step, checkpoint.metrics, checkpoint.tags) == (3, {"loss": 0.5}, ["first"])
    assert checkpoint.environment["versions"]["torch"] == torch.__version__
    assert [update(fresh) for _ in range(3)] == expected
    assert checkpoint.verify() == []


def test_what_changes_right_after_a_save_is_not_in_it(tmp_path):
    """Lightning PR#21079, NeMo-RL#3312: when save returns the checkpoint is whole; later writes do not reach it."""
    objects, store = training(seed=0), Store(tmp_path)
    update(objects)
    whole = store.save(objects, step=1)
    expected = [update(objects) for _ in range(2)]
    with torch.no_grad():
        for each in objects["model"].parameters():
            each.fill_(7.0)
            for value in objects["optimizer"].state[each].values():
                value.fill_(7.0)
    fresh = training(seed=1)
    store.load(fresh)
    assert [update(fresh) for _ in range(2)] == expected
    assert whole.verify() == []


def test_loading_falls_back_before_anything_is_changed(tmp_path):
    """With the newest damaged the objects get the state of the one before, none of the newest."""
    store = Store(tmp_path)
    objects = training(seed=0)
    store.save(objects, step=3)
    expected = [update(objects)]
    store.save(objects, step=4)
    flip(tmp_path / "step-000000004/optimizer.safetensors")
    fresh = training(seed=1)
    with pytest.warns(UserWarning, match="step-000000004"):
        assert store.load(fresh).step == 3
    assert [update(fresh)] == expected


def test_what_does_not_belong_together_changes_nothing(tmp_path):
    """Objects of another architecture are refused, and keep their state."""
    store = Store(tmp_path)
    store.save(training(seed=0), step=3)
    other = {"model": torch.nn.Linear(4, 1)}
    before = other["model"].weight.clone()
    with pytest.raises(StateMismatch):
        store.load(other, allow_missing=["optimizer", "scheduler", "random"])
    assert other["model"].weight.equal(before)


def test_what_is_allowed_to_be_missing(tmp_path):
    """Names in allow_missing may be missing on either side."""
    store = Store(tmp_path)
    objects = training(seed=0)
    store.save(objects, step=3)
    model = training(seed=1)["model"]
    with pytest.raises(StateMismatch):
        store.load({"model": model})
    store.load({"model": model}, which="step-3", allow_missing=["optimizer", "scheduler", "random"])
    assert model[0].weight.equal(objects["model"][0].weight)


def test_the_inference_file_is_the_state_dict(tmp_path):
    """model.safetensors holds exactly what the module's state_dict does, and loads without samestep."""
    objects = training(seed=0)
    checkpoint = Store(tmp_path).save(objects, step=3)
    loaded = load_file(checkpoint.path / "model.safetensors")
    assert loaded.keys() == objects["model"].state_dict().keys()
    assert all(loaded[name].equal(value) for name, value in objects["model"].state_dict().items())


def test_tied_weights_come_back_tied(tmp_path):
    """Tied weights are written once and are one tensor again."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 3, bias=False), torch.nn.Linear(3, 3, bias=False))
    model[1].weight = model[0].weight
    checkpoint = Store(tmp_path).save({"model": model}, step=1)
    assert len(load_file(checkpoint.path / "model.safetensors")) == 1
    saved = model[0].weight.clone()
    with torch.no_grad():
        model[0].weight.zero_()
    Store(tmp_path).load({"model": model})
    assert model[0].weight is model[1].weight
    assert model[0].weight.equal(saved)


def test_a_stranger_with_the_last_number_of_a_step_is_named(tmp_path):
    """Where no name for a step is left, saving it fails with the folder's name; other steps are saved and found."""
    store = filled(tmp_path, 1)
    stranger = tmp_path / "step-000000002.999999999"
    shutil.copytree(store.checkpoints()[0].path, stranger)
    with pytest.raises(SaveFailed, match="no name for another checkpoint of step 2") as caught:
        store.write(make_snapshot(2))
    assert caught.value.path == str(stranger)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000000001", stranger.name]
    store.write(make_snapshot(3))
    assert store.latest().name == "step-000000003"
