"""Owns where the training is: steps, epoch, best scores, and the loop's own values. Never touches a file."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, cast

import numpy as np

from samestep.errors import CorruptCheckpoint, WrongPlace
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
        if name in _METHODS:
            raise AttributeError(f"run.state.{name} is a method; choose another name for the value.")
        super().__setattr__(name, value)

    def state_dict(self) -> dict[str, Any]:
        """Return the values by name."""
        return dict(vars(self))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set the values, in place where they can be: a name that the script gave one of them stays its name."""
        for name in state:
            if not isinstance(name, str) or name in _METHODS:
                raise CorruptCheckpoint("A value of the run has a name that none can have.", path=f"run.state.{name}")
        assign_in_place(vars(self), {**vars(self), **state})


_METHODS = ("state_dict", "load_state_dict")


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
        top: Inside an epoch, the random state and the tracked loaders at its top, and how often it asks the leader.
        loop_ends: With which checkpoint each loop of the script ended, by the loop's number: (kind, bound, name).
        best: The best scores so far, best first, as (value, step).
        metrics_bytes: How much of `metrics.jsonl` belongs to this state; None when it could not be written.
        metrics_digest: The digest of that much of it; None where it is not known.
        values: The loop's own values.
    """

    completed_steps: int = 0
    epoch: int = 0
    inside: bool = False
    loop: int = 1
    kind: str = ""
    finished_at: float = 0
    stopping: bool = False
    leader: str | None = None
    ends_bodies: bool = False
    top: dict[str, Any] | None = None
    loop_ends: dict[int, tuple[str, float, str]] = field(default_factory=dict)
    best: list[tuple[float, int]] = field(default_factory=list)
    metrics_bytes: int | None = 0
    metrics_digest: str | None = None
    values: Values = field(default_factory=Values)

    @property
    def asked_at_top(self) -> int:
        """How often the epoch's top asks the leader for a batch, before the loop does."""
        return 0 if self.top is None else self.top.get("asked", 0)

    @asked_at_top.setter
    def asked_at_top(self, number: int) -> None:
        if number and self.top is not None:
            self.top["asked"] = number

    def leave_epoch(self) -> None:
        """Count an epoch as done."""
        self.epoch, self.inside, self.ends_bodies, self.top = self.epoch + 1, False, False, None

    def state_dict(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        return {name: getattr(self, name) for name in (*_PLAIN, *_LATER)} | {"values": self.values.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave."""
        _require_valid(state)
        for name in _PLAIN:
            setattr(self, name, state[name])
        for name in _LATER:
            setattr(self, name, state.get(name))
        self.best = [(float(value), int(step)) for value, step in state["best"]]
        self.values.load_state_dict(state["values"])


# --- what a saved progress must be ----------------------------------------------------------------------


def _is_count(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and type(value) is not bool and 0 <= int(value) <= _MOST


def _is_bound(value: Any) -> bool:
    """Allow what a loop may go to: also infinity, and other numbers that a script computes."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    return bool(cast("Any", value) >= 0)


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_name(value: object) -> bool:
    return value is None or _is_text(value)


def _is_top(value: object) -> bool:
    if not isinstance(value, Mapping):
        return value is None
    parts = [value.get(name) for name in ("values", "random", "loaders")]
    counts = value.get("completed_steps"), value.get("asked", 0)
    return all(map(_is_count, counts)) and all(isinstance(part, Mapping) for part in parts)


def _are_ends(value: object) -> bool:
    return isinstance(value, Mapping) and all(
        _is_count(number) and isinstance(end, tuple) and len(end) == 3 and _is_text(end[0]) and _is_text(end[2])  # noqa: PLR2004
        for number, end in value.items()
    )


def _are_scores(value: object) -> bool:
    return isinstance(value, (list, tuple)) and all(
        isinstance(pair, (list, tuple)) and len(pair) == 2 and isinstance(pair[0], Real) and _is_count(pair[1])  # noqa: PLR2004
        for pair in value
    )


_MOST = 2**63 - 1
_PLAIN: dict[str, Callable[[object], bool]] = {
    "completed_steps": _is_count,
    "epoch": _is_count,
    "inside": _is_flag,
    "loop": _is_count,
    "kind": _is_text,
    "finished_at": _is_bound,
    "stopping": _is_flag,
    "leader": _is_name,
    "ends_bodies": _is_flag,
    "top": _is_top,
    "loop_ends": _are_ends,
    "best": _are_scores,
    "metrics_bytes": lambda value: value is None or _is_count(value),
}
_LATER: dict[str, Callable[[object], bool]] = {"metrics_digest": _is_name}
"""What the first checkpoints of format 1 do not have."""


def _require_valid(state: Mapping[str, Any]) -> None:
    """Raise for a progress that no run has: it must not come to light in the middle of a loop."""
    checks = _PLAIN | {"values": lambda value: isinstance(value, Mapping)}
    if not isinstance(state, Mapping):
        raise CorruptCheckpoint("The saved progress of the run is none.", path="run", found=type(state).__name__)
    checks |= {name: is_valid for name, is_valid in _LATER.items() if name in state}
    for name, is_valid in checks.items():
        if name not in state:
            raise CorruptCheckpoint("The saved progress of the run is incomplete.", path=f"run.{name}")
        if not is_valid(state[name]):
            raise CorruptCheckpoint(
                "The saved progress of the run holds what no run comes to.",
                path=f"run.{name}",
                found=f"{type(state[name]).__name__} {_shown(state[name])}",
            )


def _shown(value: object) -> str:
    return f"{value:#x}"[:40] if isinstance(value, int) else f"{value!r}"[:40]


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
        self._warned = self._has_scores = False
        self.due = False

    def note(self, scores: Mapping[str, float], progress: Progress, updates: object) -> None:
        """Take scores of the present weights; a checkpoint is due when they are among the best."""
        self._has_scores = True
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

    def warn_if_unscored(self, progress: Progress) -> None:
        """Say at a loop's end that no score has come by which the best checkpoint is kept."""
        if self._best and not self._has_scores and not progress.best:
            self._has_scores = True
            warn_user(
                f"Keep decides by {self._metric!r}, and run.score was never called: no checkpoint is kept as the best."
            )

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
