import itertools

import pytest
import torch
from noisy_data import Noisy, equal, seed_all
from torch.utils.data import DistributedSampler, RandomSampler

from samestep.data.loader import DataLoader
from samestep.generators import global_state, set_global_state

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

EPOCHS = 4


def drawn():
    return {"sampler": RandomSampler(range(13), replacement=True, num_samples=17, generator=torch.Generator())}


def top_of(loader, epoch):
    """Prepare the sampler for its epoch, as loops do before they make their iterator."""
    if isinstance(loader.sampler, DistributedSampler):
        loader.sampler.set_epoch(epoch)
    elif isinstance(loader.sampler, RandomSampler) and loader.sampler.generator is not None and epoch % 2:
        loader.sampler.generator.manual_seed(epoch)


ORDERS = {
    "shuffled": lambda: {"shuffle": True},
    "own generator": drawn,
    "set_epoch": lambda: {"sampler": DistributedSampler(range(13), 1, 0)},
}


def build(order, randomness, workers, persistent=False):
    options = {"num_workers": workers, "persistent_workers": persistent, "randomness": randomness}
    return DataLoader(Noisy(sample_rng=False), batch_size=3, **ORDERS[order](), **options)


def train(loader, bodies, first=0, note=lambda *_: None):
    """Ask a new iterator for its first batches in each epoch, and keep it in a name until the next one is there."""
    handed = []
    for epoch in range(first, EPOCHS):
        note(epoch, loader, len(handed))
        top_of(loader, epoch)
        batches = iter(loader)
        turns = range(bodies or len(loader))
        handed += [torch.cat([next(batches).flatten(), torch.rand(1)]) for _ in turns]
    return handed


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
@pytest.mark.parametrize("randomness", ["sample", "torch"])
@pytest.mark.parametrize(("order", "bodies"), [*itertools.product(ORDERS, [None, 2])])
def test_a_new_iterator_begins_a_new_epoch_after_a_resume_too(order, bodies, randomness, workers, persistent):
    """An epoch that a kept iterator holds open ends, after a resume at its edge, where a new iterator ended it."""
    options = (order, randomness, workers, persistent)
    seed_all(1)
    saved = []
    reference = train(
        build(*options),
        bodies,
        note=lambda epoch, loader, done: saved.append((epoch, done, loader.state_dict(), global_state())),
    )
    for epoch, done, state, process in saved[:: 1 if workers == 0 else 2]:
        assert state["open"] is (epoch > 0)
        seed_all(2)
        resumed = build(*options)
        resumed.load_state_dict(state)
        set_global_state(process)
        resumed.expect_new_epoch()
        assert resumed.state_dict()["position"] == state["position"]
        assert equal(train(resumed, bodies, epoch), reference[done:])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("randomness", ["sample", "torch"])
@pytest.mark.parametrize("order", ORDERS)
def test_an_iterator_made_before_the_loop_goes_on_inside_its_epoch(order, randomness, workers):
    """The same state, for a loop that keeps one iterator across its epochs, goes on behind the last batch."""
    seed_all(1)
    loader = build(order, randomness, workers)
    batches = iter(loader)
    next(batches)
    next(batches)
    state, process = loader.state_dict(), global_state()
    reference = list(batches)
    seed_all(2)
    resumed = build(order, randomness, workers)
    kept = iter(resumed)
    resumed.load_state_dict(state)
    set_global_state(process)
    resumed.expect_new_epoch()
    assert equal(list(kept), reference)
    assert (resumed.epoch, resumed.position) == (loader.epoch, 0)


def test_an_iterator_that_was_only_made_counts_as_open():
    """A state in front of the first batch says whether the epoch was open, for a new iterator would end it."""
    loader = build("shuffled", "sample", 0)
    closed = loader.state_dict()
    kept = iter(loader)
    opened = loader.state_dict()
    assert (closed["open"], opened["open"], kept.asked) == (False, True, False)
    for state, epoch in ((closed, 0), (opened, 1)):
        resumed = build("shuffled", "sample", 0)
        resumed.load_state_dict(state)
        assert resumed.state_dict() == state
        resumed.expect_new_epoch()
        kept = iter(resumed)
        assert (resumed.epoch, resumed.position, kept.asked) == (epoch, 0, False)


def test_a_state_that_does_not_say_whether_it_was_open_is_read_by_its_position():
    """States from before this was saved resume as they did."""
    loader = build("shuffled", "sample", 0)
    batches = iter(loader)
    for position, epoch in ((0, 0), (1, 1)):
        state = loader.state_dict()
        del state["open"]
        resumed = build("shuffled", "sample", 0)
        resumed.load_state_dict(state)
        resumed.expect_new_epoch()
        kept = iter(resumed)
        assert (loader.position, resumed.epoch, kept.asked) == (position, epoch, False)
        next(batches)


def test_is_open_tells_whether_the_loop_is_in_the_epoch():
    """An epoch is open from the first time that a batch is asked for, until its iterator ends or is dropped."""
    loader, seen = build("shuffled", "sample", 0), []
    loader.before_next = lambda: seen.append(loader.is_open)
    batches = iter(loader)
    assert not loader.is_open
    next(batches)
    assert loader.is_open
    list(batches)
    assert not loader.is_open
    assert seen == [True] * 6
    batches = iter(loader)
    next(batches)
    del batches
    assert not loader.is_open
