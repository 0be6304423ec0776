"""Owns the order of an epoch that the loader computes itself: sequential or shuffled. Never touches a sampler."""

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

from samestep.data.permutation import Permutation
from samestep.generators import derive_seed

_CHUNK = 4_096
"""Indices computed at once: NumPy's cost per call is then spread over many batches."""


class Draw(NamedTuple):
    """The indices of one batch.

    Args:
        number: The batch's number in the epoch.
        first: Samples of the epoch that come before it.
        indices: A list of indices; a single index when the loader does not batch.
    """

    number: int
    first: int
    indices: Any


class Course(Protocol):
    """The draws of one epoch from some batch on, and the state that finds the way back to each of them."""

    def __next__(self) -> Draw:
        """Draw the next batch, which may be one that is fetched ahead."""

    def handed(self, number: int) -> None:
        """Note that the loop has been handed this batch."""

    def state(self) -> dict[str, Any] | None:
        """Give what the course must know to start again behind the batch that was handed last."""

    def settle(self, saved: dict[str, Any] | None) -> None:
        """Note that fetching has begun where the state that was saved was taken; None for a new epoch."""


class ComputedCourse:
    """An epoch whose order is a function of (seed, epoch): any position is reached at once.

    Args:
        length: Items of the data set.
        batch_size: Indices a batch; None for single indices.
        drop_last: Whether an incomplete last batch is left out.
        shuffle_seed: The seed of the epoch's permutation; None for sequential order.
        start: The number of the first batch to draw.
    """

    def __init__(
        self, length: int, batch_size: int | None, *, drop_last: bool, shuffle_seed: int | None, start: int
    ) -> None:
        self._batching = {"batch_size": batch_size, "drop_last": drop_last}
        self._draws = _draws(length, batch_size, drop_last, shuffle_seed, start)

    def __next__(self) -> Draw:
        return next(self._draws)

    def handed(self, number: int) -> None:
        """Do nothing: the position says everything."""

    def state(self) -> dict[str, Any]:
        """Give how this epoch is batched, which a change meanwhile leaves alone; the position says the rest."""
        return self._batching

    def settle(self, saved: dict[str, Any] | None) -> None:
        """Do nothing: nobody else shares the order."""


def order_seed(seed: int, epoch: int) -> int:
    """Derive the seed of an epoch's permutation."""
    return derive_seed(seed, "order", epoch)


def _draws(
    length: int, batch_size: int | None, drop_last: bool, shuffle_seed: int | None, start: int
) -> Iterator[Draw]:
    size = batch_size or 1
    stop = length - length % size if drop_last else length
    span = size * max(1, _CHUNK // size)
    order = None if shuffle_seed is None else Permutation(length, shuffle_seed)
    for low in range(start * size, stop, span):
        high = min(low + span, stop)
        indices = list(range(low, high)) if order is None else order.take(low, high).tolist()
        for first in range(low, high, size):
            batch = indices[first - low : first - low + size]
            yield Draw(first // size, first, batch[0] if batch_size is None else batch)
