"""What a user gives to samestep.Store and cannot mean: refused in one sentence, and nothing is written."""

import numpy as np
import pytest
import torch
from torch import nn

import samestep
from samestep.errors import NoCheckpoint, SamestepError, StateMismatch


def model():
    return nn.Linear(2, 1)


def shortly(value):
    """Name a value in a test's name; Python writes no integer of more than 4,300 digits."""
    return value if isinstance(value, str) else type(value).__name__


OBJECTS = {
    "a module": (model, "found:    Linear"),
    "a list": (lambda: [model()], "found:    list"),
    "a number as a name": (lambda: {1: model()}, "the name 1"),
    "None as a name": (lambda: {"model": model(), None: model()}, "the name None"),
}


@pytest.mark.parametrize("kind", OBJECTS)
def test_objects_come_by_names(kind, tmp_path):
    """What is no dict by names is refused when it is saved and when it is loaded, with how it is written."""
    make, found = OBJECTS[kind]
    store = samestep.Store(tmp_path)
    for call in (lambda: store.save(make(), step=1), lambda: store.load(make())):
        with pytest.raises(SamestepError, match="not given by names") as caught:
            call()
        assert found in str(caught.value)
        assert '{"model": model' in caught.value.expected
    assert list(tmp_path.iterdir()) == []


MARKS = {
    "step": [1.5, -1, "1", True, None, 10**5000],
    "epoch": ["first", 1.5, True],
    "metrics": [[0.5], {"acc": "high"}, {"acc": torch.ones(3)}, {"acc": None}, {"acc": 10**400}],
    "tags": ["pinned", [3], None, [10**5000]],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in MARKS.items() for value in values], ids=shortly
)
def test_marks_that_cannot_be_written_are_refused(name, value, tmp_path):
    """Step, epoch, scores and tags are refused by their names; tags="pinned" is no six tags of one letter."""
    with pytest.raises(SamestepError) as caught:
        samestep.Store(tmp_path).save({"model": model()}, **{"step": 1, name: value})
    assert name in str(caught.value)
    assert caught.value.expected
    assert list(tmp_path.iterdir()) == []


def test_integers_of_numpy_and_torch_are_steps(tmp_path):
    """A step may be an integer of any library."""
    store = samestep.Store(tmp_path)
    assert store.save({"model": model()}, step=np.int64(4)).step == 4
    assert store.save({"model": model()}, step=torch.tensor(5)).step == 5


@pytest.mark.parametrize(
    "which", ["newest", None, 1.0, "checkpoints/step-1", [], {}, True, np.ones(3), 10**5000], ids=shortly
)
def test_what_names_no_checkpoint_is_refused(which, tmp_path):
    """Whatever is given as the checkpoint to load, the answer says what can be given."""
    store = samestep.Store(tmp_path)
    store.save({"model": model()}, step=1)
    with pytest.raises(NoCheckpoint, match="names no checkpoint") as caught:
        store.load({"model": model()}, which)
    assert '"latest", "best", 400' in caught.value.expected


def test_a_mode_that_is_misspelt_does_not_find_the_worst(tmp_path):
    """`best("acc", "highest")` is refused: it would find the lowest."""
    store = samestep.Store(tmp_path)
    store.save({"model": model()}, step=1, metrics={"acc": 0.9})
    with pytest.raises(SamestepError, match="The mode says neither"):
        store.best("acc", "highest")


def test_files_and_single_checkpoints_are_no_stores(tmp_path):
    """A file is described by what it is, and for a single checkpoint its folder is named; neither looks empty."""
    torch.save(model().state_dict(), tmp_path / "model.pt")
    with pytest.raises(SamestepError, match="This is a file") as caught:
        samestep.Store(tmp_path / "model.pt")
    assert "a PyTorch file" in caught.value.found
    checkpoint = samestep.Store(tmp_path / "store").save({"model": model()}, step=1)
    with pytest.raises(SamestepError, match="not a folder of checkpoints") as caught:
        samestep.Store(checkpoint.path)
    assert str(tmp_path / "store") in caught.value.hint


def test_a_keep_that_is_a_number_is_refused(tmp_path):
    """`Store(directory, keep=3)` is refused at once, and not behind the first save."""
    with pytest.raises(SamestepError, match="not understood") as caught:
        samestep.Store(tmp_path, keep=3)
    assert "samestep.Keep" in caught.value.expected


def test_what_is_missing_can_be_copied_into_allow_missing(tmp_path):
    """Loading the model alone names what else is saved, as the argument that allows it is written."""
    store = samestep.Store(tmp_path)
    store.save({"model": model(), "noise": torch.Generator()}, step=1)
    with pytest.raises(StateMismatch, match="do not track the same") as caught:
        store.load({"model": model()})
    assert 'allow_missing=["noise"]' in caught.value.hint
    assert store.load({"model": model()}, allow_missing=["noise"]).step == 1


def test_nothing_to_load_is_said_with_the_place(tmp_path):
    """An empty folder and a score that nobody gave are no checkpoints, and the message says what to look at."""
    store = samestep.Store(tmp_path, keep=samestep.Keep(best=1, metric="acc"))
    with pytest.raises(NoCheckpoint, match="as 'latest'") as caught:
        store.load({"model": model()})
    assert caught.value.hint == "Check the directory."
    store.save({"model": model()}, step=1)
    with pytest.raises(NoCheckpoint, match="as 'best'") as caught:
        store.load({"model": model()}, "best")
    assert "score's name" in caught.value.hint


NOWHERE = {
    "a device that is not there": "cuda:99",
    "a device of a type that is not there": torch.device("xpu"),
    "one that there never was": "bogus",
    "a fraction": 3.5,
    "a huge number": 10**5000,
    "a list": [],
    "bytes": b"cpu",
    "a tensor": torch.ones(3),
    "a place without values": "meta",
    "nowhere, in a dict": {"cpu": "bogus"},
    "a function that gives no storage": lambda *_: 7,
    "a function that fails": lambda *_: 1 / 0,
}


@pytest.mark.parametrize("kind", NOWHERE)
def test_tensors_that_can_go_nowhere_are_no_damage(kind, tmp_path):
    """A map_location that leads nowhere is refused by its name, and no sound checkpoint is called damaged or moved."""
    store, live = samestep.Store(tmp_path), model()
    for step in (1, 2):
        store.save({"model": live}, step=step)
    before, found = sorted(tmp_path.rglob("*")), live.weight.detach().clone()
    nn.init.zeros_(live.weight)
    for which in ("latest", 2):
        with pytest.raises(SamestepError) as caught:
            store.load({"model": live}, which, map_location=NOWHERE[kind])
        assert type(caught.value) is SamestepError
        assert caught.value.path == "map_location"
    assert sorted(tmp_path.rglob("*")) == before
    assert not live.weight.any()
    store.load({"model": live}, map_location="cpu")
    assert torch.equal(live.weight, found)


def test_other_arguments_of_a_store_are_named(tmp_path):
    """A name that is no text is refused where it is given: allow_missing, a score's name, a mode, what is protected."""
    store = samestep.Store(tmp_path)
    checkpoint = store.save({"model": model()}, step=1)
    calls = {
        "allow_missing": lambda odd: store.load({"model": model()}, allow_missing=odd),
        "metric": store.best,
        "mode": lambda odd: store.best("acc", odd),
        "protect": store.retain,
        "tensor": lambda odd: checkpoint.tensor(odd, "weight"),
        "found": lambda odd: checkpoint.tensor("model", odd),
    }
    for name, call in calls.items():
        for odd in (3.5, b"x", 10**5000, torch.ones(3), [10**5000], {"a": 1}.items()):
            with pytest.raises(SamestepError) as caught:
                call(odd)
            assert name in str(caught.value)


def test_a_snapshot_is_written_with_tags_that_are_a_list(tmp_path):
    """`Store.write` refuses tags="pinned" as `Store.save` does: it is no six tags of one letter."""
    store = samestep.Store(tmp_path)
    snapshot = store.save({"model": model()}, step=1).read()
    with pytest.raises(SamestepError, match="not understood") as caught:
        store.write(snapshot, tags="pinned")
    assert "tags" in str(caught.value)
