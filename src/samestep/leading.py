"""Owns which tracked loader leads an epoch: its batches are the boundaries of the loop. Never reads a batch."""

import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from samestep.messages import Path, warn_user

_NO_EPOCH = -1


@dataclass(slots=True)
class _Top:
    """What the top of an epoch has asked of a loader.

    Args:
        epoch: The loader's own epoch, of the last requests that were counted.
        was_open: Whether it was being read before the top, so that a resume cannot begin it there.
        asked: Requests in all.
        before: Requests before the first one at the place where the loop asks.
    """

    epoch: int
    was_open: bool
    asked: int = 0
    before: int = 0


class Leading:
    """Knows the loader whose requests are boundaries: where it is asked, the whole body before is done.

    It shows at the first `run.step` of an epoch: of the loaders that are being read, the one whose last request is the
    oldest is asked at the top of the body: the outer one of two nested loops, the first one of a `zip`. A validation
    loader that has been read to its end before is none of them. A second pass over the leader makes no boundaries: a
    resume would take it for the first. What the leader was asked for at the top of the epoch, in an epoch of its own or
    for a look at its first batch, is counted: when the epoch is resumed the top gets it again.

    Args:
        loaders: The tracked loaders by name.
    """

    def __init__(self, loaders: Mapping[str, Any]) -> None:
        self._loaders = loaders
        self._asked: list[str] = []
        self._epoch: int | None = None
        self._by_hand = self._has_warned = False
        self._thread = threading.get_ident()
        self._places: dict[str, Path] = {}
        self._at_top: dict[str, _Top] = {}
        self._to_come = self.asked_at_top = 0
        self._made_before: set[str] | None = None
        self._open_before: dict[str, weakref.ref[Any]] = {}
        self.name: str | None = None

    def begin_epoch(self, name: str | None = None, asked_at_top: int = 0) -> None:
        """Forget the last epoch; when it is resumed inside, its leader is known, and how often the top asks it."""
        self._asked.clear()
        self._places.clear()
        self._at_top = {each: _Top(loader.epoch, loader.is_open) for each, loader in self._loaders.items()}
        self._thread = threading.get_ident()
        self._by_hand = False
        self.name = name if name in self._loaders else None
        self._to_come = self.asked_at_top = 0 if self.name is None else asked_at_top
        self._epoch = None if self.name is None or asked_at_top else self._loaders[self.name].epoch
        self._warn_of_kept_iterators()

    def _warn_of_kept_iterators(self) -> None:
        """Name loaders whose iterator was made inside the loop and outlives an epoch: no resume makes it there again.

        One that was made before the loop is made again there, and goes on where the checkpoint stands.
        """
        is_open = {name: each for name, loader in self._loaders.items() if (each := loader.iterator) is not None}
        if self._made_before is None:
            self._made_before = {name for name, loader in self._loaders.items() if loader.has_been_read}
        for name in is_open.keys() - self._made_before:
            before = self._open_before.get(name)
            if before is not None and before() is is_open[name]:
                self._made_before.add(name)  # once is enough
                warn_user(
                    f"An iterator of {name!r} was made inside the loop and is kept from one epoch to the next. A resume"
                    " at the edge of an epoch makes a new one, which begins the loader's next epoch: other batches."
                    "\n  to do:    Make it before the loop: batches = iter(loader), and anew only at StopIteration."
                )
        self._open_before = {name: weakref.ref(each) for name, each in is_open.items()}

    def asks(self, name: str, place: Path, is_look: Callable[[Path], bool]) -> bool:
        """Note that a loader is asked for a batch; tell whether this is a boundary.

        Args:
            name: The loader.
            place: The way to it in the script: a `next(batches)` elsewhere in the body is no boundary.
            is_look: Tells whether a request at another place before was a look only, and the loop begins here.
        """
        if threading.get_ident() != self._thread:
            self._warn_of_thread()
            return False
        if self._to_come and name == self.name:
            self._to_come -= 1
            return False
        first = self._places.setdefault(name, place)
        if self.name is None:
            self._asked = [*(each for each in self._asked if each != name), name]
            self._count(name, place, is_look)
            return False
        if name != self.name:
            return False
        if self._epoch is None:
            self._epoch = self._loaders[name].epoch
        if place != first and self.asked_at_top:
            self._epoch = _NO_EPOCH  # a second look is none of the top's
        return place == first and self._loaders[name].epoch == self._epoch

    def _count(self, name: str, place: Path, is_look: Callable[[Path], bool]) -> None:
        """Count what the top of an epoch asks for, until the place is reached where the loop asks."""
        top, epoch = self._at_top[name], self._loaders[name].epoch
        top.asked += 1
        is_elsewhere = place != self._places[name]
        if top.was_open or (epoch == top.epoch and not is_elsewhere):
            return
        if not is_elsewhere or is_look(self._places[name]):
            self._places[name], top.epoch, top.before = place, epoch, top.asked - 1

    def step(self) -> None:
        """Note that an update is completed: the first one of an epoch shows who leads it."""
        if self.name is not None or self._by_hand:
            return
        reading = [name for name in self._asked if self._loaders[name].is_open]
        if reading:
            self.name, self._epoch = reading[0], self._loaders[reading[0]].epoch
            self.asked_at_top = self._at_top[self.name].before

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
        self._by_hand, self.name, self.asked_at_top = True, None, 0

    @property
    def is_exhausted(self) -> bool:
        """Whether the leader has handed out the last batch of its epoch, as far as its length says."""
        loader = self._loaders.get(self.name or "")
        try:
            return loader is not None and loader.position >= len(loader)
        except TypeError:  # a sampler without a length
            return False
