"""Owns the place in a reference at which a resumed training goes on. Knows no process and no cause."""

from collections.abc import Sequence
from dataclasses import dataclass

from samestep.proof.ledger import Step

_SOUGHT = (("parameters", "optimizer"), ("parameters",), ("optimizer",), ("copies",), ("learning_rate",))
_START = ("parameters", "optimizer", "learning_rate", "batch")


@dataclass(frozen=True)
class Alignment:
    """Where a resumed training stands.

    Args:
        at: The reference's step that its first one corresponds to.
        by: What it was recognised by: "completed" (samestep's own count), a part of the state, or "length"; "start"
            where nothing matches.
    """

    at: int
    by: str


def align(found: Sequence[Step], expected: Sequence[Step], latest: int, end: Step | None = None) -> Alignment:
    """Find the step of the reference at which a resumed training goes on.

    It is sought by what was restored: parameters and optimizer state, then either of them (weights may have been saved
    in half precision, or as an average only), then the learning rate, then the number of steps to the end.

    Args:
        found: The steps of the resumed process; at least one.
        expected: The steps of the reference.
        latest: The number of steps that were done before: a resume can go on from there at most.
        end: What the reference left at its end.
    """
    length = len(expected)
    known = by_count(found[0], expected) or by_state(found, expected, latest, end)
    if known is not None:
        return known
    left = length - len(found)
    return Alignment(left, "length") if 0 < left <= latest else Alignment(0, "start")


def by_state(found: Sequence[Step], expected: Sequence[Step], latest: int, end: Step | None = None) -> Alignment | None:
    """Find the step that begins with the same state as the first one found; arguments as those of `align`.

    Where a training stands still several do: then the one that leaves as many steps as were found.
    """
    first, count, length = found[0], len(found), len(expected)
    if _is_same(_START, first, expected[0]):
        return Alignment(0, "start")
    for parts in _SOUGHT:
        places = [at for at in range(1, min(latest + 1, length)) if _is_same(parts, first, expected[at])]
        if not places and latest >= length and end is not None and _is_same(("parameters",), first, end):
            return Alignment(length, "parameters")  # what is left at the end holds no optimizer state
        if places and _is_telling(parts, first, expected):
            fits = length - count
            return Alignment(max(places, key=lambda at: (_agreement(first, expected[at]), at == fits, at)), parts[0])
    return None


def by_count(first: Step, expected: Sequence[Step]) -> Alignment | None:
    """Find the step at which samestep had counted as many as at a first one."""
    count = first.notes.get("completed")
    places = [at for at, each in enumerate(expected) if count is not None and each.notes.get("completed") == count]
    return Alignment(places[0], "completed") if places else None


def _is_same(parts: Sequence[str], first: Step, there: Step) -> bool:
    # Not by the optimizer's number: a resumed process may never use that of an earlier phase.
    return all(first.parts.get(part) == there.parts.get(part) for part in parts)


def _is_telling(parts: Sequence[str], first: Step, expected: Sequence[Step]) -> bool:
    """Tell whether to be the same says something: a rate that never changes says nothing."""
    return any(any(each.parts.get(part) != first.parts.get(part) for each in expected) for part in parts) and (
        any(part in first.parts for part in parts)
    )


def _agreement(first: Step, there: Step) -> int:
    return sum(first.parts.get(part) == digest for part, digest in there.parts.items())
