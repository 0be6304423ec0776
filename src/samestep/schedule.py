"""Owns the answer to "is a checkpoint due?" from `save_every`. Never saves anything itself."""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from samestep.errors import SamestepError
from samestep.wording import shown

_SECONDS = {
    "s": 1.0,
    "sec": 1.0,
    "second": 1.0,
    "min": 60.0,
    "minute": 60.0,
    "h": 3600.0,
    "hour": 3600.0,
}
_WRITTEN = re.compile(r"\s*(\d+(?:\.\d+)?)?\s*([a-z]+?)s?\s*", re.IGNORECASE)


@dataclass
class Schedule:
    """When the next checkpoint is due: every so many steps, epochs or seconds.

    Args:
        steps: Completed updates between two checkpoints.
        epochs: Epochs between two checkpoints.
        seconds: Seconds of wall-clock time between two checkpoints.
        clock: Gives the time in seconds; it never goes backwards.
    """

    steps: int | None = None
    epochs: int | None = None
    seconds: float | None = None
    clock: Callable[[], float] = field(default=time.monotonic, repr=False)

    def __post_init__(self) -> None:
        self.saved(0, 0)

    def saved(self, completed_steps: int, epoch: int) -> None:
        """Count from here: a checkpoint has just been taken, or a resume has just happened."""
        self._step, self._epoch, self._time = completed_steps, epoch, self.clock()

    def due(self, completed_steps: int, epoch: int) -> bool:
        """Tell whether a checkpoint is due at this step and epoch."""
        if self.steps is not None and completed_steps // self.steps > self._step // self.steps:
            return True
        if self.epochs is not None and epoch // self.epochs > self._epoch // self.epochs:
            return True
        return self.seconds is not None and completed_steps > self._step and self.clock() - self._time >= self.seconds

    def overdue(self, completed_steps: int) -> bool:
        """Tell whether a checkpoint has long been due, and the loop has passed no place where it could be taken."""
        since = completed_steps - self._step
        if since < _MANY_STEPS:
            return False
        if self.steps is not None:
            return since >= 2 * self.steps + _MANY_STEPS
        return self.seconds is not None and self.clock() - self._time >= 2 * self.seconds + _MANY_SECONDS


_MANY_STEPS = 16
_MANY_SECONDS = 30.0
"""What a body with several updates may take until it is done, beyond the time of two checkpoints."""


def parse_schedule(save_every: int | str | None) -> Schedule:
    """Read what a user gave as `save_every`.

    Args:
        save_every: An int (updates), a string such as "100 steps", "1 epoch", "30 s", "5 min" or "2 h",
            or None: only when asked for, at signals and at the end.

    Returns:
        The schedule.

    Raises:
        SamestepError: If the value says none of these.

    Example:
        >>> parse_schedule("5 min")
        Schedule(steps=None, epochs=None, seconds=300.0)
    """
    if save_every is None:
        return Schedule()
    if isinstance(save_every, int) and not isinstance(save_every, bool) and save_every > 0:
        return Schedule(steps=save_every)
    if isinstance(save_every, str):
        match = _WRITTEN.fullmatch(save_every)
        if match and (number := float(match[1] or 1)) > 0:
            unit = match[2].lower()
            if unit in _SECONDS:
                return Schedule(seconds=number * _SECONDS[unit])
            if unit == "step" and number.is_integer():
                return Schedule(steps=int(number))
            if unit == "epoch" and number.is_integer():
                return Schedule(epochs=int(number))
    raise SamestepError(
        "save_every is not understood.",
        path="Run(save_every=…)",
        expected='a number of steps, or text such as "100 steps", "1 epoch", "30 s", "5 min", "2 h", or None',
        found=shown(save_every),
    )
