import pickle

import pytest
import torch
from noisy_data import Noisy, equal, seed_all
from torch.utils.data import DistributedSampler, RandomSampler

from samestep.data.loader import DataLoader
from samestep.generators import global_state, set_global_state

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

EPOCHS = 3


class Hidden:
    """A sampler that keeps what set_epoch tells it under a name of its own, and not as it was told."""

    def __init__(self):
        self.turn = 0

    def set_epoch(self, epoch):
        self.turn = 3 * epoch

    def __iter__(self):
        return iter(torch.randperm(13, generator=torch.Generator().manual_seed(self.turn)).tolist())

    def __len__(self):
        return 13


def ranks(randomness, workers):
    sampler = DistributedSampler(range(13), 2, 1)
    return DataLoader(Noisy(sample_rng=False), 2, sampler=sampler, randomness=randomness, num_workers=workers)


def hidden(randomness, workers):
    return DataLoader(Noisy(sample_rng=False), 3, sampler=Hidden(), randomness=randomness, num_workers=workers)


def drawn(randomness, workers):
    sampler = RandomSampler(range(13), generator=torch.Generator())
    return DataLoader(Noisy(sample_rng=False), 3, sampler=sampler, randomness=randomness, num_workers=workers)


def shuffled(randomness, workers):
    options = {"generator": torch.Generator(), "randomness": randomness, "num_workers": workers}
    return DataLoader(Noisy(sample_rng=False), 3, shuffle=True, **options)


def own(randomness, workers):
    return DataLoader(Noisy(sample_rng=False), 3, randomness=randomness, num_workers=workers)


TOPS = {
    "set_epoch": (ranks, lambda loader, epoch: loader.sampler.set_epoch(epoch)),
    "set_epoch of the next": (ranks, lambda loader, epoch: loader.sampler.set_epoch(epoch=epoch + 1)),
    "set_epoch of a constant": (ranks, lambda loader, _: loader.sampler.set_epoch(5)),
    "set_epoch of another number": (ranks, lambda loader, epoch: loader.sampler.set_epoch(epoch * 7 + 1)),
    "set_epoch now and then": (ranks, lambda loader, epoch: epoch == 1 and loader.sampler.set_epoch(9)),
    "set_epoch under another name": (hidden, lambda loader, epoch: loader.sampler.set_epoch(epoch * 7 + 1)),
    "no set_epoch under another name": (hidden, lambda _loader, _epoch: None),
    "no set_epoch": (ranks, lambda _loader, _epoch: None),
    "the attribute": (ranks, lambda loader, epoch: setattr(loader.sampler, "epoch", 3 * epoch)),
    "a sampler's generator": (drawn, lambda loader, epoch: loader.sampler.generator.manual_seed(epoch + 9)),
    "the loader's generator": (shuffled, lambda loader, epoch: loader.generator.manual_seed(epoch + 9)),
    "the data set's generator": (own, lambda loader, epoch: loader.dataset.own["torch"].manual_seed(epoch + 9)),
}


def train(loader, top, note=lambda _done: None):
    """Read what is left of three epochs, each after the statement at its top."""
    handed = []
    for epoch in range(loader.epoch, EPOCHS):
        top(loader, epoch)
        loader.before_next = lambda: note(len(handed))
        handed.extend(batch for batch in loader)  # not a list: the hook reads the length
        loader.before_next = None
        note(len(handed))
    return handed


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("randomness", ["sample", "torch"])
@pytest.mark.parametrize("name", TOPS)
def test_what_a_loop_does_at_the_top_of_an_epoch_holds_after_a_resume(name, randomness, workers):
    """A sampler or generator that is set at each epoch's top gives the same order after any resume."""
    build, top = TOPS[name]
    seed_all(1)
    loader, saved = build(randomness, workers), []
    reference = train(loader, top, lambda done: saved.append((done, loader.state_dict(), global_state())))
    closed = [each for each in saved if each[1]["position"] == 0]
    assert len(closed) >= EPOCHS
    for done, state, process in saved if workers == 0 else [*closed, saved[1], saved[-3]]:
        seed_all(2)
        resumed = build(randomness, workers)
        resumed.load_state_dict(state)
        set_global_state(process)
        assert equal(train(resumed, top), reference[done:])


def test_a_sampler_that_is_told_its_epoch_by_the_user_is_left_alone():
    """Once the user has called set_epoch, the loader never calls it again, whatever the number."""
    loader = ranks("sample", 0)
    loader.sampler.set_epoch(0)
    first, second = list(loader), list(loader)
    assert [batch[:, 0].tolist() for batch in first] == [batch[:, 0].tolist() for batch in second]
    assert loader.sampler.epoch == 0


def test_a_loader_whose_sampler_is_listened_to_can_be_pickled():
    """Listening to set_epoch does not keep a loader from being copied, and the copy has a sampler of its own."""
    loader = ranks("sample", 0)
    twin = pickle.loads(pickle.dumps(loader))  # noqa: S301
    twin.sampler.set_epoch(4)
    assert (twin.sampler.epoch, loader.sampler.epoch) == (4, 0)
    list(loader)
    list(twin)
    assert (twin.sampler.epoch, loader.sampler.epoch) == (4, 0)
