"""Owns fetching under streams that go on from batch to batch, as in plain PyTorch, and reads where they stand."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch.utils.data import Dataset, get_worker_info

from samestep.data.randomness import OwnedGenerators
from samestep.generators import global_state, set_global_state

NO_BATCH = -1
"""The number of a task that fetches nothing: it only takes a worker's turn."""


class StreamTask(NamedTuple):
    """One batch to fetch.

    Args:
        number: The batch's number in the epoch, or `NO_BATCH`.
        indices: A list of indices; a single index when the loader does not batch.
        streams: Where to set the worker's generators first; None to let them go on.
    """

    number: int
    indices: Any
    streams: Mapping[str, Any] | None


class StreamedSamples(Dataset[Any]):
    """The user's data set, read as PyTorch reads it, with the worker's streams sent along behind each batch.

    Args:
        dataset: The user's data set.
        collate_fn: Merges samples, or converts the single one.
        batched: Whether a task holds a list of indices.
    """

    def __init__(self, dataset: Any, collate_fn: Callable[[Any], Any], *, batched: bool) -> None:
        self.dataset = dataset
        self.owned = OwnedGenerators(dataset, collate_fn)
        self._collate_fn = collate_fn
        self._batched = batched
        self._read_any = False

    def __getitem__(self, task: StreamTask) -> list[Any]:
        if task.streams is not None:
            self._set(task.streams)
        if task.number == NO_BATCH:
            return [NO_BATCH, None, None]
        batch = self._collate_fn(self._read(task.indices))
        if get_worker_info() is None:
            return [task.number, batch, None]
        if not self._read_any:
            self._read_any = True
            self.owned.look()
        return [task.number, batch, self._streams()]

    def _read(self, indices: Any) -> Any:
        if not self._batched:
            return self.dataset[indices]
        # As PyTorch's fetcher decides it.
        if getattr(self.dataset, "__getitems__", None):
            return self.dataset.__getitems__(indices)
        return [self.dataset[each] for each in indices]

    def _set(self, streams: Mapping[str, Any]) -> None:
        self.owned.look()
        self.owned.set_states({path: _tensor(state) for path, state in streams["objects"].items()})
        set_global_state({**streams["process"], "torch": _tensor(streams["process"]["torch"])})

    def _streams(self) -> dict[str, Any]:
        process = global_state(devices=False)
        return {
            "process": {**process, "torch": _array(process["torch"])},
            "objects": {path: _array(state) for path, state in self.owned.states().items()},
        }


def _array(state: Any) -> Any:
    # A tensor would go to the main process as a file descriptor, which costs more than its 5 kB.
    return state.numpy() if isinstance(state, torch.Tensor) else state


def _tensor(state: Any) -> Any:
    return state if isinstance(state, (dict, tuple, list)) else torch.as_tensor(state)
