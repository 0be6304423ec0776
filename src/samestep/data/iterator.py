"""Owns one epoch as the loop sees it: hook, next batch, word to the loader. Never orders or fetches."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from samestep.errors import WrongPlace

if TYPE_CHECKING:
    from samestep.data.loader import DataLoader


class EpochIterator:
    """The batches of one epoch, or of what is left of it.

    Args:
        loader: The loader that it belongs to.
        batches: Yields `[number, batch, …]`, in order.
    """

    def __init__(self, loader: "DataLoader[Any]", batches: Iterator[list[Any]]) -> None:
        self._loader = loader
        self._batches = batches
        self._ended = False
        self.refusal: WrongPlace | None = None

    def __iter__(self) -> "EpochIterator":
        return self

    def __len__(self) -> int:
        return len(self._loader)

    def __next__(self) -> Any:
        if self._ended:
            raise StopIteration
        self._refuse()
        if self._loader.iterator is self and self._loader.before_next is not None:
            self._loader.before_next()
            self._refuse()  # the hook may have loaded a state
        try:
            handed = next(self._batches)
        except StopIteration:
            self._ended = True
            self._loader.close(self)
            raise
        if self._loader.iterator is self:
            self._loader.handed(handed)
        return handed[1]

    def __del__(self) -> None:
        # A loop that breaks drops its iterator: the epoch is over, though not all of it was read.
        if not self._ended:
            self._loader.close(self)

    def _refuse(self) -> None:
        if self.refusal is not None:
            raise self.refusal
