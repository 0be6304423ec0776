import functools
import random

import numpy as np
import pytest
import torch
from noisy_data import equal, read, seed_all

from samestep.data.loader import DataLoader
from samestep.generators import find_generators, global_state, set_global_state

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

RNG = np.random.default_rng(7)


def jitter(value):
    """Draw from a module's generator, through a function that another one calls."""
    return value + RNG.random()


def added(value, rng):
    return value + rng.random()


def closure():
    rng = random.Random(3)
    return lambda value: value + rng.random()


def by_default(value, rng=RNG):
    return value + rng.random()


class Slotted:
    __slots__ = ("rng",)

    def __init__(self):
        self.rng = np.random.default_rng(1)

    def __call__(self, value):
        return value + self.rng.random()


class OfClass:
    rng = RNG

    def __call__(self, value):
        return value + type(self).rng.random()


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.rng = torch.Generator().manual_seed(1)

    def forward(self, value):
        return value + torch.rand((), generator=self.rng).item()


class Transformed(torch.utils.data.Dataset):
    def __init__(self, transform):
        self.transform = transform

    def __len__(self):
        return 7

    def __getitem__(self, index):
        return torch.tensor([self.transform(float(index))], dtype=torch.float64)


class Direct(Transformed):
    def __getitem__(self, index):
        return torch.tensor([index + sum(RNG.random() for _ in range(2))], dtype=torch.float64)


DATA = {
    "a global name": lambda: Direct(None),
    "a global name of a function": lambda: Transformed(lambda value: -jitter(value)),
    "a partial": lambda: Transformed(functools.partial(added, rng=np.random.default_rng(1))),
    "a bound method": lambda: Transformed(Slotted().__call__),
    "a bound method of the generator": lambda: Transformed(np.random.default_rng(1).normal),
    "a closure": lambda: Transformed(closure()),
    "a default": lambda: Transformed(by_default),
    "slots": lambda: Transformed(Slotted()),
    "a class": lambda: Transformed(OfClass()),
    "a module of torch": lambda: Transformed(torch.nn.Sequential(torch.nn.Identity(), Layer())),
}


@pytest.fixture(autouse=True)
def _own_seed():
    RNG.bit_generator.state = np.random.default_rng(7).bit_generator.state


@pytest.mark.parametrize("name", DATA)
def test_each_sample_draws_the_same_wherever_it_is_fetched(name):
    """A generator that a data set reaches in any way is keyed: the same numbers with any number of workers."""
    build = lambda workers: DataLoader(DATA[name](), batch_size=2, seed=0, num_workers=workers)  # noqa: E731
    reference = read(build(0), 2)
    assert len(set(torch.cat(reference).flatten().tolist())) == 14
    before = RNG.bit_generator.state
    assert equal(read(build(2), 2), reference)
    assert equal(read(build(0), 2), reference)
    assert RNG.bit_generator.state == before, "the loop may draw from it, so a fetch leaves it as it was"


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", DATA)
def test_with_pytorchs_randomness_its_state_is_saved(name, workers):
    """With randomness="torch" a generator that a data set reaches in any way goes on where it stood."""

    def build():
        return DataLoader(DATA[name](), batch_size=2, num_workers=workers, randomness="torch")

    seed_all(0)
    start = RNG.bit_generator.state
    loader = build()
    batches = iter(loader)
    next(batches)
    next(batches)
    state, process = loader.state_dict(), global_state()
    reference = list(batches)
    RNG.bit_generator.state = start
    resumed = build()
    resumed.load_state_dict(state)
    set_global_state(process)
    assert equal(list(resumed), reference)


def test_what_is_installed_is_not_entered():
    """Functions of packages, and Python modules, are not looked through: their generators are their own."""
    assert find_generators([torch.nn.functional.dropout, torch.nn.Linear, np, random.Random]) == {}


def test_looking_has_an_end():
    """A large net of objects is looked through in a moment, the nearest objects first."""
    chain = None
    for _ in range(100_000):
        chain = [chain]
    found = find_generators({"far": chain, "near": {"rng": RNG}})
    assert found == {"['near']['rng']": RNG}
