"""Owns the inside of a running epoch: its top, who leads it, and where its boundaries are. Saves nothing itself."""

from collections.abc import Callable
from functools import partial
from typing import Any

from samestep.keeper import Keeper
from samestep.leading import Leading
from samestep.messages import user_frame
from samestep.progress import Progress
from samestep.state.held import HeldSamples
from samestep.tracked import Tracked


class EpochInside:
    """The inside of the epoch that is running.

    Args:
        tracked: The tracked objects.
        progress: Where the training is.
        keeper: What restores again behind the top, and puts off.
        boundary: Gives what takes a boundary; None when the run is gone.
    """

    def __init__(
        self, tracked: Tracked, progress: Progress, keeper: Keeper, boundary: Callable[[], Callable[..., Any] | None]
    ) -> None:
        self._tracked, self._progress, self._keeper, self._boundary = tracked, progress, keeper, boundary
        self._leading = Leading(tracked.loaders)
        self._held = HeldSamples()
        self._has_stepped = self._is_marked = False

    def follow_loaders(self) -> None:
        """Look for the leader among the loaders that are tracked now."""
        self._leading = Leading(self._tracked.loaders)

    def begin(self) -> None:
        """Stand at the top of an epoch: a new one, or one that is resumed inside and draws there what it drew."""
        progress, self._has_stepped, self._is_marked = self._progress, False, False
        self._held.begin_epoch(user_frame())
        if self._keeper.is_inside and progress.top is not None:
            self._tracked.return_to_top(progress.top, None if progress.asked_at_top else progress.leader)
            self._leading.begin_epoch(progress.leader, progress.asked_at_top)
        else:
            progress.inside, progress.leader, progress.top = True, None, self._tracked.state_at_top()
            self._leading.begin_epoch()

    def step(self) -> None:
        """Note that an update is completed: the first one of an epoch shows who leads it."""
        self._leading.step()
        self._held.note_loop(user_frame())
        self._has_stepped = True
        self._progress.leader = self._leading.name

    def mark_by_hand(self) -> None:
        """Let the script mark the boundaries of this epoch, from here on."""
        self._leading.give_way()
        self._progress.leader = None
        if not self._is_marked:
            self._is_marked, self._progress.ends_bodies = True, self._has_stepped
        self._keeper.restore_again(None)

    def asked(self, loader: str) -> None:
        """Take the boundary that a loader makes when the loop asks it for the next batch."""
        frame = user_frame()
        held = self._held.find(frame)
        is_boundary = self._leading.asks(loader, self._held.path(frame), partial(self._held.is_look, frame))
        if is_boundary:
            asked = self._progress.asked_at_top = self._leading.asked_at_top
            self._keeper.restore_again(None if asked else loader)
        if held and loader == self._leading.name:
            self._keeper.put_off(held)
        elif is_boundary and (boundary := self._boundary()) is not None:
            boundary(ends_epoch=self._leading.is_exhausted)
