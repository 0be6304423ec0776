"""Owns the fetching of one batch in the process that reads it, with keyed random numbers. Never orders."""

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

from torch.utils.data import Dataset, StackDataset, Subset

from samestep.data.randomness import OwnedGenerators, keyed, put_back
from samestep.generators import derive_seed


class Task(NamedTuple):
    """One batch to fetch: everything that decides its bits.

    Args:
        seed: The loader's seed.
        epoch: The epoch.
        number: The batch's number in the epoch.
        first: Samples of the epoch that come before it.
        indices: A list of indices; a single index when the loader does not batch.
    """

    seed: int
    epoch: int
    number: int
    first: int
    indices: Any


class KeyedSamples(Dataset[Any]):
    """The user's data set, read one task at a time, each sample under its own seed.

    A sample's seed is hashed from (seed, epoch, place in the epoch's order, index). The place tells apart two
    draws of one index when sampling with replacement; the index tells apart equal places of several ranks.

    Args:
        dataset: The user's data set.
        collate_fn: Merges samples, or converts the single one.
        batched: Whether a task holds a list of indices.
        randomness: "sample" (one seed a sample) or "batch" (one seed a batch).
    """

    def __init__(self, dataset: Any, collate_fn: Callable[[Any], Any], *, batched: bool, randomness: str) -> None:
        self.dataset = dataset
        self._collate_fn = collate_fn
        self._batched = batched
        self._at_once = batched and reads_batches(dataset)
        self._per_batch = randomness == "batch" or self._at_once
        self._owned = OwnedGenerators(dataset, collate_fn)
        self._looked = False

    def __getitem__(self, task: Task) -> list[Any]:
        if not self._looked:
            self._owned.look()
        with put_back(self._owned):
            return [task.number, self._batch(task)]

    def _batch(self, task: Task) -> Any:
        key = derive_seed(task.seed, "batch", task.epoch, task.number)
        if self._per_batch:
            return self._keyed(lambda: self._collate_fn(self._read(task.indices)), key)
        if not self._batched:
            samples = self._sample(task, 0, task.indices)
        else:
            samples = [self._sample(task, offset, index) for offset, index in enumerate(task.indices)]
        return self._keyed(lambda: self._collate_fn(samples), key)

    def _sample(self, task: Task, offset: int, index: Any) -> Any:
        key = derive_seed(task.seed, "sample", task.epoch, task.first + offset, name_of(index))
        return self._keyed(lambda: self.dataset[index], key)

    def _read(self, indices: Any) -> Any:
        if not self._batched:
            return self.dataset[indices]
        return self.dataset.__getitems__(indices) if self._at_once else [self.dataset[each] for each in indices]

    def _keyed(self, read: Callable[[], Any], seed: int) -> Any:
        with keyed(self._owned, seed):
            value = read()
        if not self._looked:
            self._looked = True
            # A data set may create its generator when the first sample needs it. That sample is read again, keyed
            # like every later one; else its numbers would depend on which process reads its first sample when.
            if self._owned.look():
                return self._keyed(read, seed)
        return value


def name_of(index: Any) -> str:
    """Name an index by its value; the empty string where its value cannot be told from its text."""
    if isinstance(index, str):
        return repr(index)
    if isinstance(index, (tuple, list)):
        return "(" + ",".join(name_of(each) for each in index) + ")"
    try:
        return str(operator.index(index))
    except TypeError:
        return ""


def reads_batches(dataset: Any) -> bool:
    """Tell whether a data set has a `__getitems__` of its own, which only reads several samples at once.

    `Subset` and `StackDataset` define one that merely passes on to their parts: without such a part beneath them
    each sample is read, and keyed, by itself.
    """
    method = getattr(type(dataset), "__getitems__", None)
    if method is Subset.__getitems__:
        return reads_batches(dataset.dataset)
    if method is StackDataset.__getitems__:
        parts = dataset.datasets
        return any(reads_batches(part) for part in (parts.values() if isinstance(parts, dict) else parts))
    return callable(getattr(dataset, "__getitems__", None))
