"""Owns the decision which checkpoints stay and why; never touches storage and deletes nothing itself."""

import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from samestep.errors import SamestepError
from samestep.wording import shown

PINNED = "pinned"
"""The tag that keeps a checkpoint by hand."""


_UNSAID = "max, as nothing was said"
_LOWER_IS_BETTER = re.compile(
    r"(^|[^a-z])(loss|error|err|perplexity|ppl|mse|rmse|mae|nll|wer|cer|fid|bpb|bpc)($|[^a-z])", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Keep:
    """Which checkpoints of a run stay; the policies add up, and the newest checkpoint always stays.

    Args:
        last: How many of the highest steps stay, at least 1 (default 2: one more to fall back to).
        best: How many with the best `metric` stay (default 0).
        metric: The name of the score that decides what is best; needed when `best` is not 0.
        mode: "max" when a higher score is better (default), "min" when a lower one is. It must be said for a score
            of which the lowest sounds best, such as "val_loss".
        every: Of every so many steps the first checkpoint stays for good (default None: none; 1 keeps all).

    Raises:
        SamestepError: The arguments contradict each other.

    Example:
        >>> Keep(last=2, best=1, metric="val_acc")
        Keep(last=2, best=1, metric='val_acc', mode='max', every=None)
    """

    last: int = 2
    best: int = 0
    metric: str | None = None
    mode: str = _UNSAID
    every: int | None = None

    def __post_init__(self) -> None:
        _check_count("last", self.last, at_least=1)
        _check_count("best", self.best, at_least=0)
        if self.every is not None:
            _check_count("every", self.every, at_least=1)
        require_mode(self.mode, "Keep.mode")
        if self.metric is not None and not isinstance(self.metric, str):
            raise SamestepError(
                "The metric is not the name of a score.",
                path="Keep.metric",
                expected="a text",
                found=shown(self.metric),
            )
        if self.best and not self.metric:
            raise SamestepError(
                "The best checkpoints cannot be kept without knowing by which score.",
                path="Keep.metric",
                expected="the name of a score",
                found=shown(self.metric),
                hint="Name it as it is given to run.score: Keep(best=1, metric='val_acc').",
            )
        if self.metric is not None and not self.best:
            raise SamestepError(
                "A score is named, and no checkpoint is kept for it.",
                path="Keep.best",
                expected="how many with the best score stay, at least 1",
                found=shown(self.best),
                hint=f"Say how many: Keep(best=1, metric={self.metric!r}).",
            )
        if self.mode is _UNSAID:
            self._say_mode()

    def _say_mode(self) -> None:
        if self.metric is not None and _LOWER_IS_BETTER.search(self.metric):
            raise SamestepError(
                f"The lowest {self.metric!r} sounds best, and without a mode the highest would be kept.",
                path="Keep.mode",
                expected="'min', or 'max' if the highest is meant",
                hint=f"Keep(best={shown(self.best)}, metric={self.metric!r}, mode='min').",
            )
        object.__setattr__(self, "mode", "max")  # frozen, and a plain text in records


def require_mode(mode: object, where: str) -> None:
    """Raise if a mode says neither that higher nor that lower scores are better."""
    if not isinstance(mode, str) or mode not in {"max", "min", _UNSAID}:
        raise SamestepError(
            "The mode says neither that higher nor that lower scores are better.",
            path=where,
            expected="'max' or 'min'",
            found=shown(mode),
        )


def _check_count(name: str, value: object, *, at_least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
        raise SamestepError(
            f"Keep.{name} is not a number of {'steps' if name == 'every' else 'checkpoints'}.",
            path=f"Keep.{name}",
            expected=f"a whole number of at least {at_least}",
            found=shown(value),
            hint="The newest checkpoint always stays." if name == "last" else None,
        )


@dataclass(frozen=True, slots=True)
class Entry:
    """What retention needs to know of one complete checkpoint.

    Args:
        name: Its folder's name, unique in the run.
        step: Completed optimizer updates.
        order: Tells checkpoints of one step apart; the higher was written later.
        metrics: Its scores by name.
        tags: Marks given by the user; "pinned" keeps it.
        created: When it was written, in seconds since 1970.
    """

    name: str
    step: int
    order: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    tags: Collection[str] = frozenset()
    created: float = 0.0


@dataclass(frozen=True, slots=True)
class Decision:
    """What retention decided.

    Args:
        kept: The reasons by the name of each checkpoint that stays, lowest step first.
        deleted: The names of those that may go, lowest step first.
    """

    kept: Mapping[str, tuple[str, ...]]
    deleted: tuple[str, ...]


def decide(
    keep: Keep, entries: Iterable[Entry], *, protect: Collection[str] = (), written_last: str | None = None
) -> Decision:
    """Decide which checkpoints stay, and why; of several of one step only the one written last counts.

    Args:
        keep: The policy.
        entries: All complete checkpoints of the run, in any order; damaged ones do not belong here, so that
            they never count as "last".
        protect: Names that must stay whatever the policy says, such as the checkpoint that was resumed from.
        written_last: The name of the one that was written last, where that is known; else `created` says it, which
            keeps a few too many when the clock was set back since.

    Returns:
        The decision; applying it and deciding again deletes nothing more.

    Example:
        >>> entries = [Entry("a", 100), Entry("b", 200), Entry("c", 300, tags={"pinned"}), Entry("d", 400)]
        >>> decide(Keep(last=1), entries, protect=["b"])
        Decision(kept={'b': ('in use',), 'c': ('pinned',), 'd': ('newest', 'last 1')}, deleted=('a',))
    """
    ordered = sorted(entries, key=_position)
    reasons: dict[str, list[str]] = {entry.name: [] for entry in ordered}
    for reason, kept in _claims(keep, ordered, protect, written_last):
        for entry in kept:
            reasons[entry.name].append(reason)
    return Decision(
        kept={name: tuple(why) for name, why in reasons.items() if why},
        deleted=tuple(name for name, why in reasons.items() if not why),
    )


def is_best(keep: Keep, value: float, entries: Iterable[Entry]) -> bool:
    """Tell whether a checkpoint with this score would be among the best that are kept.

    Args:
        keep: The policy.
        value: The score of `keep.metric`; NaN is never best, and a tie does not displace the earlier one.
        entries: The checkpoints that exist already.

    Returns:
        True when it would be kept as one of the best.

    Example:
        >>> is_best(Keep(best=1, metric="acc"), 0.9, [Entry("a", 100, metrics={"acc": 0.8})])
        True
    """
    if not keep.best or math.isnan(value):
        return False
    best = best_entries(keep, entries)
    return len(best) < keep.best or _merit(keep, value) > _merit(keep, best[-1].metrics[str(keep.metric)])


def best_entries(keep: Keep, entries: Iterable[Entry]) -> list[Entry]:
    """Find the checkpoints that are kept for their score.

    Args:
        keep: The policy.
        entries: The checkpoints, in any order.

    Returns:
        At most `keep.best` of them, best first; of equal scores the earlier comes first, NaN never.

    Example:
        >>> scored = [Entry("a", 100, metrics={"acc": 0.8}), Entry("b", 200, metrics={"acc": 0.9})]
        >>> [entry.name for entry in best_entries(Keep(best=2, metric="acc"), scored)]
        ['b', 'a']
    """
    ordered = sorted(entries, key=_position)
    scored = [entry for entry in _current(ordered) if keep.best and _is_score(entry.metrics.get(str(keep.metric)))]
    scored.sort(key=lambda entry: -_merit(keep, entry.metrics[str(keep.metric)]))
    return scored[: keep.best]


def _claims(
    keep: Keep, ordered: list[Entry], protect: Collection[str], written_last: str | None
) -> list[tuple[str, list[Entry]]]:
    """List every reason to keep something, with what it keeps."""
    current = _current(ordered)
    place = _written_last(current, written_last)
    return [
        ("newest", [entry for at, entry in enumerate(current) if at in {place, len(current) - 1}]),
        (f"last {keep.last}", _last(keep, current, place)),
        (f"best {keep.best} {keep.metric}", best_entries(keep, current)),
        (f"every {keep.every} steps", _every(keep, current)),
        (PINNED, [entry for entry in ordered if PINNED in entry.tags]),
        ("in use", [entry for entry in ordered if entry.name in protect]),
    ]


def _current(ordered: list[Entry]) -> list[Entry]:
    """Leave out what a later checkpoint of the same step has replaced: no policy counts it."""
    return list({entry.step: entry for entry in ordered}.values())


def _position(entry: Entry) -> tuple[int, int]:
    return (entry.step, entry.order)


def _written_last(ordered: list[Entry], name: str | None) -> int:
    """Find the place of the one written last; going back in steps parts it from the one that a resume takes."""
    named = [place for place, entry in enumerate(ordered) if entry.name == name]
    by_clock = sorted(range(len(ordered)), key=lambda place: (ordered[place].created, place))
    return (named or by_clock or [0])[-1]


def _last(keep: Keep, ordered: list[Entry], written_last: int) -> list[Entry]:
    """Find the highest steps, and after going back in steps also those up to the one written last.

    Without the second part, a run that went back from step 600 to 200 would lose its checkpoint at 300 as soon
    as it writes 350: the abandoned 600 and 500 would count as its last two for ever.
    """
    line = ordered[: written_last + 1]
    return [entry for entry in ordered if entry in ordered[-keep.last :] or entry in line[-keep.last :]]


def _every(keep: Keep, ordered: list[Entry]) -> list[Entry]:
    """Find the first one at or after each multiple: saves by time rarely hit the multiples themselves."""
    if keep.every is None:
        return []
    first: dict[int, Entry] = {}
    for entry in ordered:
        first.setdefault(entry.step // keep.every, entry)
    return [entry for window, entry in first.items() if window > 0]


def _is_score(value: object) -> bool:
    return isinstance(value, int | float) and not math.isnan(value)


def _merit(keep: Keep, value: float) -> float:
    return value if keep.mode == "max" else -value
