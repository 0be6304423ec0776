"""Owns the random numbers of one sample or batch while it is fetched. Never decides which sample comes next."""

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.utils.data import get_worker_info

from samestep.errors import StateMismatch, WrongPlace
from samestep.generators import (
    Generator,
    derive_seed,
    find_generators,
    generator_state,
    global_state,
    seed_generator,
    seed_process,
    set_generator_state,
    set_global_state,
)


class _Keyed:
    """What is being fetched in this process right now: its seed and, once asked for, its NumPy generator."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.generator: np.random.Generator | None = None


_current: _Keyed | None = None


def sample_rng() -> np.random.Generator:
    """Give the NumPy generator of the sample that is being fetched.

    It depends on the loader's seed, the epoch, and the sample's place and index alone, so the numbers are the same
    in whichever process the sample is fetched. Two calls inside one sample give the same object, which goes on.

    Returns:
        A Philox generator: of the sample with `randomness="sample"`, of the batch with `randomness="batch"`
        and inside `collate_fn` or `__getitems__`.

    Raises:
        WrongPlace: Outside a data set that a samestep loader reads, or with `randomness="torch"`.

    Example:
        >>> import samestep
        >>> class Noise:
        ...     def __len__(self):
        ...         return 4
        ...     def __getitem__(self, index):
        ...         return samestep.sample_rng().random()
        >>> first = [batch.tolist() for batch in samestep.DataLoader(Noise(), batch_size=2, seed=0)]
        >>> first == [batch.tolist() for batch in samestep.DataLoader(Noise(), batch_size=2, seed=0)]
        True
    """
    if _current is None:
        raise WrongPlace(
            "sample_rng() was called where no sample is being fetched.",
            path="samestep.sample_rng",
            hint="Call it inside a data set or a transform that a samestep.DataLoader reads"
            ' with randomness="sample" or "batch".',
        )
    if _current.generator is None:
        bits = np.random.Philox(key=derive_seed(_current.seed, "sample_rng"))
        _current.generator = np.random.Generator(bits)
    return _current.generator


_GLOBAL = (torch.default_generator, np.random.mtrand._rand, random._inst)  # noqa: SLF001


def own_generators(root: object, path: str, *, without: tuple[object, ...] = ()) -> dict[str, Generator]:
    """Find the generator objects that an object draws from, but for the process's own three.

    Args:
        root: The object to look through.
        path: The name to put before each path.
        without: Objects that are not entered.

    Returns:
        Generators by their path.
    """
    found = find_generators(root, path, without=without)
    in_worker = get_worker_info() is not None
    return {
        path: each
        for path, each in found.items()
        if not any(each is other for other in _GLOBAL) and not (in_worker and _is_of_device(each))
    }


def _is_of_device(generator: Generator) -> bool:
    """Tell whether a generator lives on a device, which a forked worker must not touch, nor can draw from."""
    return isinstance(generator, torch.Generator) and generator.device.type != "cpu"


class OwnedGenerators:
    """The generator objects that a data set and its collate function draw from, found once in each process.

    Others may draw from them too, the loop for one: they are put back after each fetch in the main process.

    Args:
        dataset: The data set, with the transforms that hang on it.
        collate_fn: The collate function.
    """

    def __init__(self, dataset: object, collate_fn: object) -> None:
        self._dataset = dataset
        self._collate = collate_fn
        self._found: dict[str, Generator] = {}

    def look(self) -> bool:
        """Look for generator objects; tell whether there are any that were not there before."""
        found = own_generators(self._dataset, "dataset") | own_generators(self._collate, "collate_fn")
        known = {id(each) for each in self._found.values()}
        self._found = found
        return any(id(each) not in known for each in found.values())

    def seed(self, seed: int) -> None:
        """Seed every generator object from a seed and the path at which it was found."""
        for path, generator in self._found.items():
            seed_generator(generator, derive_seed(seed, path))

    def objects(self) -> list[Generator]:
        """Give the generator objects themselves."""
        return list(self._found.values())

    def states(self) -> dict[str, Any]:
        """Read the states by path."""
        return {path: generator_state(generator) for path, generator in self._found.items()}

    def set_states(self, states: Mapping[str, Any]) -> None:
        """Set the states by path; raise `StateMismatch` for one whose generator is not there."""
        for path, state in states.items():
            if path not in self._found:
                raise StateMismatch(
                    "The data set has lost a generator that the saved state names.",
                    path=path,
                    found=", ".join(self._found) or "no generator",
                    hint="Create it in the data set's __init__ or in worker_init_fn, not when it is first used.",
                )
            set_generator_state(self._found[path], state)


@contextmanager
def put_back(owned: OwnedGenerators) -> Iterator[None]:
    """Put the process's generators and the data set's own back at the end, also after an exception.

    A fetch in the main process then leaves no more trace there than one in a worker.
    """
    process = global_state(devices=False)
    objects = [(each, generator_state(each)) for each in owned.objects()]
    try:
        yield
    finally:
        for generator, state in objects:
            set_generator_state(generator, state)
        set_global_state(process)


@contextmanager
def keyed(owned: OwnedGenerators, seed: int) -> Iterator[None]:
    """Let everything inside draw from streams that start at a seed, `sample_rng` among them."""
    global _current  # noqa: PLW0603 - data sets reach it from anywhere, so it belongs to the process
    before = _current
    _current = _Keyed(seed)
    seed_process(seed)
    owned.seed(seed)
    try:
        yield
    finally:
        _current = before
