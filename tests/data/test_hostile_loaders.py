"""Claims about loader states that fit no epoch: refused, since an empty epoch would pass for a finished one."""

import copy

import numpy as np
import pytest
import torch

import samestep
from samestep.errors import StateMismatch


class Fewer:
    """A sampler that yields as many indices as it is told."""

    def __init__(self, count):
        self.count = count

    def __iter__(self):
        return iter(range(self.count))


def inside(loader):
    """Give the state of a loader that has handed out two batches."""
    batches = iter(loader)
    next(batches), next(batches)
    return loader.state_dict()


def make(randomness, **options):
    """Make a loader of six items."""
    return samestep.DataLoader(list(range(6)), batch_size=2, randomness=randomness, **options)


@pytest.mark.parametrize("randomness", ["sample", "torch"])
def test_a_sampler_that_ends_before_the_saved_position_is_refused(randomness):
    """A sampler that yields less than the loop has had is not repeated: an error, and no epoch without batches."""
    state = inside(make(randomness, sampler=Fewer(6)))
    loader = make(randomness, sampler=Fewer(2))
    loader.load_state_dict(state)
    with pytest.raises(StateMismatch, match="does not repeat"):
        list(loader)


@pytest.mark.parametrize("drop_last", [False, True])
def test_the_last_position_is_the_number_of_batches(drop_last):
    """A state at the end of its epoch is taken, and one batch behind it is refused; the loader is as it was."""
    loader = samestep.DataLoader(list(range(7)), batch_size=2, drop_last=drop_last, seed=1)
    state = inside(loader)
    last = 3 if drop_last else 4
    loader.load_state_dict(state | {"position": last})
    assert list(loader) == []
    loader.load_state_dict(state)
    before = loader.state_dict()
    with pytest.raises(StateMismatch, match="behind the end") as caught:
        loader.load_state_dict(state | {"position": last + 1})
    assert caught.value.path == "position"
    assert loader.state_dict() == before


@pytest.mark.parametrize("randomness", ["sample", "torch"])
@pytest.mark.parametrize("lost", ["start", "samples", "digest"])
def test_a_samplers_state_without_a_part_is_refused(randomness, lost):
    """What tells where a sampler stands is asked for when a state is loaded, not when the epoch has begun."""
    loader = make(randomness, sampler=Fewer(6))
    state = copy.deepcopy(inside(loader))
    del state["sampler"][lost]
    with pytest.raises(StateMismatch, match="incomplete") as caught:
        loader.load_state_dict(state)
    assert caught.value.path == "sampler"


def test_streams_without_the_process_are_refused():
    """With randomness="torch" a state inside an epoch needs the generators of the process."""
    loader = make("torch", shuffle=True)
    state = inside(loader)
    for streams in (5, {}, {**state["streams"], "process": None}):
        with pytest.raises(StateMismatch) as caught:
            loader.load_state_dict(state | {"streams": streams})
        assert caught.value.path.startswith("streams")
    loader.load_state_dict(state)
    assert torch.cat(list(loader)).numel() == 2


def test_a_seed_of_numpy_is_a_seed():
    """A seed that is an integer of NumPy's comes back as one."""
    loader = samestep.DataLoader(list(range(6)), shuffle=True, seed=np.int64(3))
    state = inside(loader)
    rest = list(loader)
    loader.load_state_dict(state)
    assert len(list(loader)) == 4
    assert len(rest) == 6
