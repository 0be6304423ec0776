"""Owns the warnings of what a script does that cannot be meant, each said once. Changes and saves nothing."""

import atexit
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from samestep.messages import warn_user
from samestep.schedule import Schedule
from samestep.state.restoration import shortened
from samestep.wording import printable

_MANY_UPDATES = 8
"""Updates after which a loop that never calls run.step has forgotten it, and does not just accumulate."""

_MANY_LOOPS = 8
"""Loops of one script after which the checkpoints at their ends are worth a word."""

_MANY_CALLS = 64
"""Calls of run.step after which half as many updates are a mistake, and not a scaler that finds its scale."""


class _Work(Protocol):
    """One process at work on a run."""

    directory: Path
    is_closed: bool


class MistakeWatch:
    """Looks at what the loop says and does, and names what does not go together.

    Args:
        directory: The run's directory.
        schedule: How often a checkpoint is due.
    """

    def __init__(self, directory: Path, schedule: Schedule) -> None:
        self._directory, self._schedule = directory, schedule
        self._calls = self.saved_at = 0
        self._said: set[str] = set()

    def saved(self, completed_steps: int) -> None:
        """Note that the state of this step is in a checkpoint."""
        self.saved_at = completed_steps

    def step(self, completed_steps: int, updates: int) -> None:
        """Look when the loop says that an update is completed.

        Args:
            completed_steps: How often it has said so in all.
            updates: How many updates the tracked optimizers have made in this process.
        """
        self._calls += 1
        if self._schedule.overdue(completed_steps):
            self._say(
                f"No checkpoint for {completed_steps - self.saved_at} steps: the loop comes to no place where one can"
                " be taken. Inside an epoch these are the batches of a tracked samestep.DataLoader, asked for at one"
                " place of the script.",
                what="delay",
                to_do="Loop over a samestep.DataLoader and track it, and ask it nowhere else: look at loader.dataset[0]"
                " before the loop. Or call run.boundary() at the end of the body.",
            )
        if self._calls >= _MANY_CALLS and 0 < 2 * updates <= self._calls:
            self._say(
                f"run.step() was called {self._calls} times, and the tracked optimizers have made {updates} updates.",
                what="calls",
                to_do="Call it once behind each optimizer.step(): it says that one update is completed.",
            )

    def boundary(self, completed_steps: int, updates: int, *, ends_loop: bool = False) -> None:
        """Look between two bodies, or behind the last one."""
        if updates >= (1 if ends_loop else _MANY_UPDATES) and not completed_steps:
            self._say(
                "The optimizers have stepped, but run.step() was never called: it counts the completed updates.",
                what="step",
                to_do="Call run.step(loss=loss) once behind each optimizer.step().",
            )

    def fewer_epochs(self, done: int, bound: float) -> None:
        """Look when a loop over epochs has nothing to do: this may be the directory of an old training."""
        if done > bound:
            self._say(
                f"{done} epochs of this run are done, and run.epochs({bound}) asks for fewer: nothing is trained.",
                what=f"epochs {bound}",
                to_do="A new training needs a directory of its own; this one goes on with more epochs.",
            )

    def many_loops(self, ends: int) -> None:
        """Look at a loop's end how many earlier loops have left a checkpoint that stays."""
        if ends >= _MANY_LOOPS:
            self._say(
                f"{ends} loops of this script have ended, and the checkpoint at the end of each is kept for good,"
                " whatever keep= says: a resume needs it for the statements between the loops.",
                what="loops",
                to_do="Make it one loop, and tell the phases apart inside it: by run.completed_steps or run.epoch.",
            )

    def settings(self, ignored: Mapping[str, tuple[Any, Any]]) -> None:
        """Name, after a resume, what the script says anew and the checkpoint has put back.

        Args:
            ignored: What the script said before and says now, by path.
        """
        lines = shortened([printable(f"{path}: {then!r} -> {now!r}") for path, (then, now) in ignored.items()])
        if lines:
            self._say(
                "The script builds these with other settings than before, which has no effect: a resume brings back"
                " those of the checkpoint:" + "".join(f"\n  {each}" for each in lines),
                what="settings",
                to_do='Set new ones in the loop, which comes behind the restore; or begin anew: resume="never".',
            )

    def left_early(self, work: _Work, completed_steps: int) -> None:
        """Say at the end of the process that a loop was left by break or return, if nobody went on with the run.

        Only then it is known that no exception did it; of that one Python tells.
        """
        if completed_steps > self.saved_at:
            _left[work] = self.saved_at, completed_steps

    def _say(self, message: str, *, what: str, to_do: str) -> None:
        if what not in self._said:
            self._said.add(what)
            warn_user(f"{message}\n  where:    {self._directory}\n  to do:    {to_do}")


_left: WeakKeyDictionary[_Work, tuple[int, int]] = WeakKeyDictionary()
"""The runs whose loops were left early, with the steps that were saved and done."""


def _say_what_is_lost() -> None:
    for work, (saved, done) in list(_left.items()):
        if work.is_closed or hasattr(sys, "last_value"):
            continue
        warnings.warn(
            f"The loop was left at step {done} by break or return, which saves nothing: the newest checkpoint is of"
            f" step {saved}.\n  where:    {work.directory}\n  to do:    End a loop early with run.stop().",
            stacklevel=1,
        )


atexit.register(_say_what_is_lost)
