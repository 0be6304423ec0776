import itertools
import random

import numpy as np
import pytest
import torch
from noisy_data import Noisy, equal, read, seed_all
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, WeightedRandomSampler

from samestep.data.loader import DataLoader
from samestep.errors import StateMismatch
from samestep.generators import global_state

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

EPOCHS = 3


class OwnGenerator:
    """A batch sampler with its own generator and batches of random length."""

    def __init__(self, seed=0):
        self.rng = np.random.default_rng(seed)

    def __iter__(self):
        order = self.rng.permutation(13).tolist()
        while order:
            size = int(self.rng.integers(1, 4))
            yield order[:size]
            order = order[size:]


class GlobalDraws:
    """A sampler that draws from the three global generators while it goes."""

    def __iter__(self):
        for _ in range(13):
            yield (random.randrange(13) + np.random.randint(13) + int(torch.randint(13, ()))) % 13

    def __len__(self):
        return 13


class Stateful:
    """A sampler with state_dict: it can go on from any place, its epoch's order included."""

    def __init__(self):
        self.epoch = self.done = 0

    def __iter__(self):
        order = np.random.default_rng(self.epoch).permutation(13).tolist()
        while self.done < 13:
            self.done += 1
            yield order[self.done - 1]
        self.epoch, self.done = self.epoch + 1, 0

    def __len__(self):
        return 13

    def state_dict(self):
        return {"epoch": self.epoch, "done": self.done}

    def load_state_dict(self, state):
        self.epoch, self.done = state["epoch"], state["done"]


def lazy(generator):
    return RandomSampler(range(13), replacement=True, num_samples=40, generator=generator)


SAMPLERS = {
    "batch sampler with a generator": lambda: {"batch_sampler": OwnGenerator()},
    "global generators": lambda: {"sampler": GlobalDraws(), "batch_size": 3},
    "own state": lambda: {"sampler": Stateful(), "batch_size": 3},
    "shared torch generator": lambda: {
        "batch_sampler": BatchSampler(lazy(torch.Generator().manual_seed(3)), 3, drop_last=False)
    },
    "weights": lambda: {
        "sampler": WeightedRandomSampler([1.0] * 12 + [9.0], 13),
        "batch_size": 3,
        "drop_last": True,
    },
    "set_epoch": lambda: {"sampler": DistributedSampler(range(13), 2, 1), "batch_size": 2},
    "unbatched": lambda: {"sampler": GlobalDraws(), "batch_size": None},
}


def build(name, workers=0, **options):
    return DataLoader(Noisy(), seed=1, num_workers=workers, **SAMPLERS[name](), **options)


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_sampler_resumes_at_every_position(name):
    """Every kind of sampler resumes at every position of three epochs, with the bits that followed."""
    loader, states, reference = build(name), [], []
    loader.before_next = lambda: states.append((loader.state_dict(), len(reference)))
    for _ in range(EPOCHS):
        reference.extend(batch for batch in loader)  # not a comprehension: the hook reads the length
        states.append((loader.state_dict(), len(reference)))
    for state, handed in states:
        resumed = build(name)
        resumed.load_state_dict(state)
        assert equal(read(resumed, EPOCHS - state["epoch"]), reference[handed:])


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_sampler_resumes_with_workers(name):
    """Prefetching moves the sampler ahead, not the state: another number of workers gives the same bits."""
    reference = read(build(name), EPOCHS)
    first = build(name, 2)
    list(first)
    batches = iter(first)
    handed = 2 + len(read(build(name), 1))
    next(batches)
    next(batches)
    for workers in (0, 3):
        resumed = build(name, workers, persistent_workers=workers > 0)
        resumed.load_state_dict(first.state_dict())
        assert equal(read(resumed, EPOCHS - 1), reference[handed:])


@pytest.mark.parametrize("randomness", ["sample", "torch"])
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("batch_size", [1, 3])
def test_a_sampler_with_state_ends_its_epoch_once_though_workers_ask_often(batch_size, persistent, randomness):
    """Resumed behind an epoch's last batch, a sampler with state gives nothing, and then a full epoch."""

    def build_stateful():
        options = {"num_workers": 2, "persistent_workers": persistent, "randomness": randomness}
        return DataLoader(range(13), batch_size=batch_size, sampler=Stateful(), **options)

    loader = build_stateful()
    batches = iter(loader)
    for _ in range(len(loader)):
        next(batches)
    state = loader.state_dict()
    next(batches, None)
    reference = read(loader, 2)
    for _ in range(3):
        resumed = build_stateful()
        resumed.load_state_dict(state)
        assert list(resumed) == []
        assert equal(read(resumed, 2), reference)


def test_a_sampler_takes_nothing_from_the_global_generators():
    """A sampler that draws globally draws from a stream of its own."""
    seed_all(4)
    before = global_state()
    batches = iter(build("global generators", 2))
    next(batches)
    after = global_state()
    assert after["python"] == before["python"]
    assert torch.equal(after["torch"], before["torch"])


def test_epochs_of_a_globally_drawing_sampler_differ():
    """The private stream is another one in each epoch."""
    loader = build("global generators")
    assert not equal(list(loader), list(loader))


def test_ranks_get_another_order_each_epoch_without_a_call():
    """`set_epoch` is called by the loader when the user forgets it (pytorch#31771), and left when he does not."""
    forgotten, called = build("set_epoch"), build("set_epoch")
    orders = []
    for epoch in range(3):
        called.sampler.set_epoch(epoch)
        orders.append([batch[:, 0].tolist() for batch in forgotten])
        assert orders[-1] == [batch[:, 0].tolist() for batch in called]
    assert orders[0] != orders[1] != orders[2]
    called.sampler.set_epoch(40)
    list(called)
    assert called.sampler.epoch == 40


@pytest.mark.parametrize("workers", [0, 2])
def test_a_generator_shared_with_the_loop_goes_on_where_it_stood(workers):
    """A sampler's generator from which the loop draws too is put where both had left it."""

    def run(state=None, stop=None):
        generator = torch.Generator().manual_seed(3)
        sampler = RandomSampler(range(13), generator=generator)
        loader = DataLoader(Noisy(), batch_size=3, sampler=sampler, num_workers=workers, seed=1)
        if state is not None:
            loader.load_state_dict(state)
        drawn = []
        for _ in range(loader.epoch, EPOCHS):
            for batch in loader:
                drawn.append(torch.cat([batch.flatten(), torch.rand(1, generator=generator)]))
                if len(drawn) == stop:
                    return drawn, loader.state_dict()
        return drawn, None

    reference, _ = run()
    for stop in (1, 4, 5, 7):
        first, state = run(stop=stop)
        rest, _ = run(state)
        assert equal(first + rest, reference)


def test_an_infinite_sampler_is_pulled_lazily():
    """A sampler without end works, and resumes."""
    loader = DataLoader(Noisy(), batch_sampler=([each % 13] for each in itertools.count()), seed=1, num_workers=1)
    assert [int(batch[0, 0]) for batch in itertools.islice(loader, 4)] == [0, 1, 2, 3]


class Forgetful:
    """A sampler whose order depends on how often it was used, which it tells nobody."""

    def __init__(self):
        self.calls = 0

    def __iter__(self):
        self.calls += 1
        return iter(np.random.default_rng(self.calls).permutation(13).tolist())


def test_a_sampler_that_does_not_repeat_is_refused():
    """A sampler with hidden state cannot be replayed, and that is said instead of going on wrongly."""

    def build_forgetful():
        return DataLoader(Noisy(), sampler=Forgetful(), batch_size=None, seed=1)

    first = build_forgetful()
    list(first)
    batches = iter(first)
    next(batches)
    resumed = build_forgetful()
    resumed.load_state_dict(first.state_dict())
    with pytest.raises(StateMismatch, match="does not repeat the order"):
        iter(resumed)


class Slow(Noisy):
    def __getitem__(self, index):
        raise AssertionError("no sample is read")


def test_replaying_reads_no_sample():
    """A replay draws indices only."""
    first = DataLoader(Noisy(), sampler=GlobalDraws(), batch_size=1, seed=1)
    batches = iter(first)
    for _ in range(9):
        next(batches)
    state = first.state_dict()
    state["dataset"]["type"] = "Slow"
    resumed = DataLoader(Slow(), sampler=GlobalDraws(), batch_size=1, seed=1)
    resumed.load_state_dict(state)
    assert resumed.position == 9
    iter(resumed)


def test_two_million_items_are_sought_at_once(count_calls):
    """The end of a shuffled epoch of 2,000,000 items is reached with a few thousand calls, not with one an item."""
    loader = DataLoader(range(2_000_000), shuffle=True, seed=1)
    state = {**loader.state_dict(), "position": 1_999_999}
    loader.load_state_dict(state)
    last = []
    assert count_calls(lambda: last.extend(loader)) < 5_000
    assert len(last) == 1


def test_a_sampler_of_the_global_generator_leaves_it_alone():
    """A sampler that holds torch's global generator as an object draws from its private stream all the same."""

    def build_global(workers=0):
        sampler = RandomSampler(range(13), generator=torch.default_generator)
        return DataLoader(Noisy(), batch_size=3, sampler=sampler, seed=1, num_workers=workers)

    seed_all(0)
    before = global_state()["torch"]
    first = build_global()
    batches = iter(first)
    next(batches)
    state, rest = first.state_dict(), list(batches)
    assert torch.equal(global_state()["torch"], before)
    seed_all(5)
    resumed = build_global(2)
    resumed.load_state_dict(state)
    assert equal(list(resumed), rest)
    assert torch.equal(global_state()["torch"], torch.manual_seed(5).get_state())


def test_a_data_sets_generator_is_not_taken_for_the_samplers():
    """A sampler that holds the data set does not make the data set's generators its own."""
    dataset = Noisy()
    loader = DataLoader(dataset, sampler=RandomSampler(dataset), seed=1)
    next(iter(loader))
    assert loader.state_dict()["sampler"]["start"] == {}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sampler_gives_the_same_alone_and_in_a_loader(workers):
    """A sampler with a generator of its own yields the same indices alone and inside a loader (pytorch#7209)."""

    def build(kind):
        return kind(range(13), generator=torch.Generator().manual_seed(3))

    def doubled(dataset, generator):
        return WeightedRandomSampler([1.0] * len(dataset), 20, generator=generator)

    for kind in (RandomSampler, doubled):
        for randomness in ("sample", "torch"):
            alone = build(kind)
            loader = DataLoader(
                Noisy(sample_rng=False), 3, sampler=build(kind), num_workers=workers, randomness=randomness
            )
            for _ in range(EPOCHS):
                indices = [int(index) for batch in loader for index in batch[:, 0]]
                assert indices == list(alone)
