"""What a user gives to samestep.Store and cannot mean: refused in one sentence, and nothing is written."""

import numpy as np
import pytest
import torch
from torch import nn

import samestep
from samestep.errors import NoCheckpoint, SamestepError, StateMismatch


def model():
    return nn.Linear(2, 1)


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
    "step": [1.5, -1, "1", True, None],
    "epoch": ["first", 1.5, True],
    "metrics": [[0.5], {"acc": "high"}, {"acc": torch.ones(3)}, {"acc": None}],
    "tags": ["pinned", [3], None],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in MARKS.items() for value in values])
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


@pytest.mark.parametrize("which", ["newest", None, 1.0, "checkpoints/step-1"])
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
