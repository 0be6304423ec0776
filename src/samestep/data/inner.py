"""Owns the plain PyTorch loader behind ours, which runs the workers. Never decides what they fetch."""

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any, Protocol

import torch
import torch.utils.data

from samestep.data.workers import WorkerStart, signals_held_back
from samestep.errors import SamestepError
from samestep.wording import told


class Feed(Protocol):
    """Yields tasks; stands where a sampler stands in PyTorch's loader."""

    def __iter__(self) -> Iterator[Any]:
        """Start to yield; PyTorch calls this once or twice an epoch."""


class InnerLoader(torch.utils.data.DataLoader[Any]):
    """A PyTorch loader that reads whole tasks: batches are formed and merged by the samples object it is given.

    Args:
        outer: The loader whose workers, pinning and timeouts to use.
        samples: Maps a task to what is handed back.
        feed: Yields the tasks.
        generator: Where PyTorch draws the workers' seeds from; None for the global generator.
    """

    def __init__(
        self,
        outer: torch.utils.data.DataLoader[Any],
        samples: torch.utils.data.Dataset[Any],
        feed: Feed,
        generator: torch.Generator | None,
    ) -> None:
        workers = outer.num_workers > 0
        self._starts_workers = workers
        super().__init__(
            samples,
            batch_size=None,
            sampler=feed,
            num_workers=outer.num_workers,
            collate_fn=_as_it_is,
            pin_memory=outer.pin_memory,
            timeout=outer.timeout,
            worker_init_fn=WorkerStart(outer.dataset, outer.worker_init_fn) if workers else None,
            multiprocessing_context=outer.multiprocessing_context,
            generator=generator,
            prefetch_factor=outer.prefetch_factor,
            persistent_workers=outer.persistent_workers,
            pin_memory_device=outer.pin_memory_device,
        )

    def __iter__(self) -> Any:
        # Not when kept workers begin a new epoch: PyTorch then waits for them, and Ctrl-C must get through.
        with signals_held_back(self.multiprocessing_context) if self._starts_workers else nullcontext():
            batches = self._started()
        self._starts_workers = self._starts_workers and not self.persistent_workers
        return batches

    def _started(self) -> Any:
        try:
            return super().__iter__()
        except Exception as error:
            if not (self._starts_workers and "pickle" in f"{type(error).__name__} {error}".lower()):
                raise
            raise SamestepError(
                "The workers cannot be started: what they read from cannot be sent to them.",
                path="DataLoader(num_workers=…)",
                expected="a data set, collate_fn and worker_init_fn of functions and classes that modules define",
                found=told(error),
                hint="Write `def` at a module's level in place of the lambda or inner function; or start workers by"
                ' fork (multiprocessing_context="fork"), or none.',
            ) from error

    def check_worker_number_rationality(self) -> None:
        """Say nothing: the outer loader has warned already."""


def _as_it_is(value: Any) -> Any:
    return value
