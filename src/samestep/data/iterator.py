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
        self.asked = False
        self._ended = False
        self._refusal: tuple[str, str] | None = None
        self._left_behind = False

    def __iter__(self) -> "EpochIterator":
        return self

    def __len__(self) -> int:
        return len(self._loader)

    def __next__(self) -> Any:
        self.take_up()
        if self._ended:
            raise StopIteration
        self.asked = True
        if self._loader.iterator is self and self._loader.before_next is not None:
            self._loader.before_next()
            self.take_up()  # the hook may have loaded a state
        try:
            handed = next(self._batches)
        except StopIteration:
            self._end()
            raise
        if self._loader.iterator is self:
            self._loader.handed(handed)
        return handed[1]

    def __del__(self) -> None:
        # A loop that breaks drops its iterator: the epoch is over, though not all of it was read.
        if not self._ended:
            self._loader.close(self)

    def refuse(self, message: str, hint: str) -> None:
        """Let go of the workers and answer every further `next` with `WrongPlace`."""
        self._refusal = message, hint
        self._batches = iter(())

    def leave_behind(self) -> None:
        """Let go of the workers: a state was loaded, and the next `next` goes on from there."""
        self._left_behind = True
        self._batches = iter(())

    def take_up(self) -> None:
        """Go on from a state that was loaded meanwhile, if there is one."""
        self._check()
        if self._left_behind:
            self._batches = self._loader.reopen(self)
            self._left_behind = False

    def _check(self) -> None:
        # Raised anew each time: a kept exception would hold this iterator through its traceback, so that the
        # workers would not end with the last reference to it.
        if self._refusal is not None:
            message, hint = self._refusal
            raise WrongPlace(message, path="iter(DataLoader)", hint=hint)

    def _end(self) -> None:
        self._ended = True
        self._batches = iter(())
        self._loader.close(self)
