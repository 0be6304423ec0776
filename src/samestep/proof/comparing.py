"""Owns the comparison of ledgers: the first step and part in which two trainings differ. Knows no process."""

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from samestep.proof.ledger import LARGE, PARTS, PASSING, Ledger, Step

_SHOWN = 5


@dataclass(frozen=True)
class Difference:
    """Where two trainings differ first.

    Args:
        step: Which call of an optimizer's `step`, from 0.
        part: The part of the step that differs, the one nearest to a cause; "steps" where one training is shorter.
        detail: What differs in it: tensors by name, samples by index.
        parts: All parts that differ in this step.
        rank: The rank of the process.
    """

    step: int
    part: str
    detail: str
    parts: tuple[str, ...]
    rank: int = 0

    def as_json(self) -> dict[str, Any]:
        """Give it as the command line's `--json` does."""
        return asdict(self) | {"parts": list(self.parts)}


def first_difference(
    expected: Sequence[Step], found: Sequence[Step], *, ignored: Collection[str] = (), rank: int = 0
) -> Difference | None:
    """Compare two trainings step by step.

    Args:
        expected: The steps of one.
        found: The steps of the other, in the same order.
        ignored: Parts that do not count.
        rank: The rank of both.

    Returns:
        The first difference; None if every step is the same in every part but `variables`, which may hold a clock.
    """
    for left, right in zip(expected, found, strict=False):
        parts = differing(left, right, ignored)
        causes = [part for part in parts if part != "variables"]  # a clock, a path: nothing follows from them
        if causes:
            return Difference(left.number, causes[0], detail(causes[0], left, right), tuple(parts), rank)
    if len(expected) == len(found):
        return None
    shorter = min(len(expected), len(found))
    return Difference(shorter, "steps", f"{len(expected)} steps and {len(found)}", ("steps",), rank)


def compare_ledgers(
    expected: Sequence[Ledger], found: Sequence[Ledger], *, ignored: Collection[str] = ()
) -> Difference | None:
    """Compare two recordings rank by rank; of several differences the one at the earliest step is given."""
    pairs = zip(expected, found, strict=False)
    differences = [first_difference(left.steps, right.steps, ignored=ignored, rank=left.rank) for left, right in pairs]
    if len(expected) != len(found):
        detail = f"{len(expected)} ledgers and {len(found)}"
        differences.append(Difference(0, "steps", detail, ("steps",), min(len(expected), len(found))))
    return min((each for each in differences if each is not None), key=lambda each: each.step, default=None)


def differing(left: Step, right: Step, ignored: Collection[str] = ()) -> list[str]:
    """Name the parts in which two steps differ, causes first; large parts count where both have noted them."""
    names = [*PARTS, *sorted({*left.parts, *right.parts} - {*PARTS})]
    if not (left.is_whole and right.is_whole):
        ignored = {*ignored, *LARGE}
    parts = [name for name in names if name not in ignored and left.parts.get(name) != right.parts.get(name)]
    return [part for part in parts if part not in PASSING or _differing_in_both(part, left, right)]


def _differing_in_both(part: str, left: Step, right: Step) -> list[str]:
    """Name what both have with other values: variables come and go, such as a checkpoint that was loaded."""
    here, there = left.tensors.get(part, {}), right.tensors.get(part, {})
    return [name for name in here if there.get(name, here[name]) != here[name]]


def detail(part: str, left: Step, right: Step, names: Sequence[str] | None = None) -> str:
    """Say in a few words what differs in a part.

    Args:
        part: The part.
        left: The expected step.
        right: The step that was found.
        names: Of the variables those that count; None: all of them.
    """
    if part == "batch":
        return _samples(left.notes.get("indices"), right.notes.get("indices"))
    if part == "loss":
        return f"{_listed(left.notes.get('loss'))} and {_listed(right.notes.get('loss'))}"
    here, there = left.tensors.get(part, {}), right.tensors.get(part, {})
    if part == "variables":
        return _values(left, right, [name for name in names or here if here.get(name) != there.get(name, here[name])])
    differ = [name for name in {**here, **there} if here.get(name) != there.get(name)]
    if part in PASSING:
        differ = _differing_in_both(part, left, right)
    missing = [name for name in differ if name not in here or name not in there]
    return shortened(differ) + (f" ({len(missing)} of them on one side only)" if missing else "")


def shortened(names: Sequence[str]) -> str:
    """List names, the first ones of many."""
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def _values(left: Step, right: Step, names: Sequence[str]) -> str:
    here, there = left.notes.get("values", {}), right.notes.get("values", {})
    told = [f"{name} ({here[name]} and {there[name]})" if {name} <= {*here} & {*there} else name for name in names]
    return shortened(told)


def _samples(left: Any, right: Any) -> str:
    if left is None or right is None:
        return "the batches differ; which samples they hold is not known"
    if left == right:
        return f"the same samples {_listed(left)} with other contents"
    return f"other samples: {_listed(left)} and {_listed(right)}"


def _listed(values: Any) -> str:
    text = str(values)
    return text if len(text) <= 80 else f"{text[:76]} …]"  # noqa: PLR2004
