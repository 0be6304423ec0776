"""Owns where the training is: steps, epoch, best scores, and the loop's own values. Never touches a file."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from samestep.errors import SamestepError, WrongPlace
from samestep.messages import warn_user
from samestep.state.in_place import assign_in_place


class Values:
    """The loop's own values, tracked: `run.state.total += 1`.

    Any value that the tree codec knows can be set: numbers, strings, lists, dicts, sets, dates, tensors, arrays.
    Values set before the loop are the start; a resume replaces them.

    Example:
        >>> values = Values()
        >>> values.total = 0
        >>> values.total += 1
        >>> values.state_dict()
        {'total': 1}
    """

    def __getattr__(self, name: str) -> Any:
        # Only called when the name is missing.
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(f"run.state has no value {name!r}: set it before the loop, e.g. run.state.{name} = 0")

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("state_dict", "load_state_dict"):
            raise AttributeError(f"run.state.{name} is a method; choose another name for the value.")
        super().__setattr__(name, value)

    def state_dict(self) -> dict[str, Any]:
        """Return the values by name."""
        return dict(vars(self))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set the values, in place where they can be: a name that the script gave one of them stays its name."""
        assign_in_place(vars(self), {**vars(self), **state})


@dataclass
class Progress:
    """Where the training is.

    Args:
        completed_steps: Optimizer updates that are done; the next is the one after.
        epoch: Epochs that are done; also the number of the epoch that is running.
        inside: Whether an epoch has begun: then a resume enters it again.
        loop: The number of the loop in the script, from 1.
        kind: What it loops over: "epochs" or "steps".
        finished_at: The bound of the loop that `run.stop` ended; 0 while it goes on.
        stopping: Whether `run.stop` has been called and the loop has not ended yet.
        leader: Inside an epoch, the tracked loader whose batches are its boundaries; None when there is none.
        ends_bodies: Whether the epoch's boundaries are marked by hand at the end of its bodies.
        top: Inside an epoch, the random state and the tracked loaders at its top.
        loop_ends: With which checkpoint each loop of the script ended, by the loop's number: (kind, bound, name).
        best: The best scores so far, best first, as (value, step).
        metrics_bytes: How much of `metrics.jsonl` belongs to this state; None when it could not be written then.
        metrics_digest: The digest of that much of it; None where an earlier version has not recorded it.
        values: The loop's own values.
    """

    completed_steps: int = 0
    epoch: int = 0
    inside: bool = False
    loop: int = 1
    kind: str = ""
    finished_at: int = 0
    stopping: bool = False
    leader: str | None = None
    ends_bodies: bool = False
    top: dict[str, Any] | None = None
    loop_ends: dict[int, tuple[str, int, str]] = field(default_factory=dict)
    best: list[tuple[float, int]] = field(default_factory=list)
    metrics_bytes: int | None = 0
    metrics_digest: str | None = None
    values: Values = field(default_factory=Values)

    def leave_epoch(self) -> None:
        """Count an epoch as done."""
        self.epoch, self.inside, self.ends_bodies, self.top = self.epoch + 1, False, False, None

    def state_dict(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        return {name: getattr(self, name) for name in (*_PLAIN, *_LATER)} | {"values": self.values.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave."""
        missing = [name for name in (*_PLAIN, "values") if name not in state]
        if missing:
            raise SamestepError("The saved progress of the run is incomplete.", found=f"no {', '.join(missing)}")
        for name in _PLAIN:
            setattr(self, name, state[name])
        for name in _LATER:
            setattr(self, name, state.get(name))
        self.best = [(float(value), int(step)) for value, step in state["best"]]
        self.values.load_state_dict(state["values"])


_PLAIN = (
    "completed_steps",
    "epoch",
    "inside",
    "loop",
    "kind",
    "finished_at",
    "stopping",
    "leader",
    "ends_bodies",
    "top",
    "loop_ends",
    "best",
    "metrics_bytes",
)
_LATER = ("metrics_digest",)
"""What the first checkpoints of format 1 do not have."""


class Scoring:
    """Which scores belong to the present weights, and whether those weights still have to be saved.

    Args:
        best: How many best checkpoints are kept.
        metric: The score that decides what is best; None: no score makes a checkpoint due.
        mode: "max" or "min".
    """

    def __init__(self, best: int, metric: str | None, mode: str) -> None:
        self._best, self._metric, self._sign = best, metric, 1 if mode == "max" else -1
        self._scores: dict[str, float] = {}
        self._updates: object = None
        self._warned = False
        self.due = False

    def note(self, scores: Mapping[str, float], progress: Progress, updates: object) -> None:
        """Take scores of the present weights; a checkpoint is due when they are among the best."""
        earlier = self._scores if updates == self._updates else {}
        self._scores, self._updates = earlier | dict(scores), updates
        if self._metric is not None and self._metric not in scores and not self._warned:
            self._warned = True
            warn_user(f"Keep decides by {self._metric!r}, and run.score was given {', '.join(scores) or 'nothing'}.")
        value = scores.get(self._metric or "")
        if value is not None and self._enters_best(value, progress):
            self.due = True

    def restored(self, scores: Mapping[str, float], updates: object) -> None:
        """Take the scores that were saved with the present weights; they are saved already."""
        self._scores, self._updates = dict(scores), updates

    def belonging(self, updates: object) -> dict[str, float]:
        """Return the scores of the present weights: none once an update has come."""
        return dict(self._scores) if updates == self._updates else {}

    def refuse_update(self, updates: object) -> None:
        """Raise if the scored weights were due to be saved and an update has come before a boundary."""
        if not self.due or updates == self._updates:
            return
        self.due = False
        raise WrongPlace(
            "The weights were scored as the best so far, and an update came before they could be saved.",
            path="run.score",
            hint="Call run.score after the step's run.step and before the next batch, or behind the loop.",
        )

    def _enters_best(self, value: float, progress: Progress) -> bool:
        if math.isnan(value) or not self._best:
            return False
        ranked = [*progress.best, (value, progress.completed_steps)]
        ranked.sort(key=lambda each: -self._sign * each[0])  # stable: of equal scores the earlier one is better
        progress.best = ranked[: self._best]
        return (value, progress.completed_steps) in progress.best
