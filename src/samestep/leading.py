"""Owns which tracked loader leads an epoch: its batches are the boundaries of the loop. Never reads a batch."""

import threading
from collections.abc import Mapping
from typing import Any

from samestep.messages import warn_user


class Leading:
    """Knows the loader whose requests are boundaries: where it is asked, the whole body before is done.

    It shows at the first `run.step` of an epoch: of the loaders that are being read, the one whose last request is the
    oldest is asked at the top of the body: the outer one of two nested loops, the first one of a `zip`. A validation
    loader that has been read to its end before is none of them. A second pass over the leader makes no boundaries: a
    resume would take it for the first.

    Args:
        loaders: The tracked loaders by name.
    """

    def __init__(self, loaders: Mapping[str, Any]) -> None:
        self._loaders = loaders
        self._asked: list[str] = []
        self._epoch: int | None = None
        self._by_hand = self._has_warned = False
        self._thread = threading.get_ident()
        self._places: dict[str, object] = {}
        self.name: str | None = None

    def begin_epoch(self, name: str | None = None) -> None:
        """Forget the last epoch; when it is resumed inside, its leader is known."""
        self._asked.clear()
        self._places.clear()
        self._thread = threading.get_ident()
        self._by_hand = False
        self.name = name if name in self._loaders else None
        self._epoch = None if self.name is None else self._loaders[self.name].epoch

    def asks(self, name: str, place: object) -> bool:
        """Note that a loader is asked for a batch; tell whether this is a boundary.

        Args:
            name: The loader.
            place: Where in the script: a `next(batches)` elsewhere in the body is no boundary.
        """
        if threading.get_ident() != self._thread:
            self._warn_of_thread()
            return False
        first = self._places.setdefault(name, place)
        if self.name is None:
            self._asked = [*(each for each in self._asked if each != name), name]
            return False
        return name == self.name and place == first and self._loaders[name].epoch == self._epoch

    def step(self) -> None:
        """Note that an update is completed: the first one of an epoch shows who leads it."""
        if self.name is not None or self._by_hand:
            return
        reading = [name for name in self._asked if self._loaders[name].is_open]
        if reading:
            self.name, self._epoch = reading[0], self._loaders[reading[0]].epoch

    def _warn_of_thread(self) -> None:
        """Say, once, that a request in another thread says nothing about where the loop is."""
        if not self._has_warned:
            self._has_warned = True
            warn_user(
                "The loader is read in another thread than the loop's, so checkpoints are taken at the ends of epochs"
                " only; without workers, what samples draw mixes with what the loop draws.\n  to do:    Leave reading"
                " ahead to the loader: samestep.DataLoader(…, num_workers=2, prefetch_factor=2)."
            )

    def give_way(self) -> None:
        """Let nobody lead this epoch: its boundaries are marked by hand."""
        self._by_hand, self.name = True, None

    @property
    def is_exhausted(self) -> bool:
        """Whether the leader has handed out the last batch of its epoch, as far as its length says."""
        loader = self._loaders.get(self.name or "")
        try:
            return loader is not None and loader.position >= len(loader)
        except TypeError:  # a sampler without a length
            return False
