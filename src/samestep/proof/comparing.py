"""Owns the comparison of ledgers: the first step and part in which two trainings differ. Knows no process."""

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from samestep.proof.ledger import PARTS, Ledger, Step

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
        The first difference; None if every step is the same in every part.
    """
    for left, right in zip(expected, found, strict=False):
        parts = differing(left, right, ignored)
        if parts:
            return Difference(left.number, parts[0], _detail(parts[0], left, right), tuple(parts), rank)
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
    """Name the parts in which two steps differ, causes first."""
    names = [*PARTS, *sorted({*left.parts, *right.parts} - {*PARTS})]
    parts = [name for name in names if name not in ignored and left.parts.get(name) != right.parts.get(name)]
    return [*(["optimizer"] if left.optimizer != right.optimizer else []), *parts]


def _detail(part: str, left: Step, right: Step) -> str:
    if part == "batch":
        return _samples(left.notes.get("indices"), right.notes.get("indices"))
    if part == "loss":
        return f"{_listed(left.notes.get('loss'))} and {_listed(right.notes.get('loss'))}"
    here, there = left.tensors.get(part, {}), right.tensors.get(part, {})
    names = [name for name in {**here, **there} if here.get(name) != there.get(name)]
    missing = [name for name in names if name not in here or name not in there]
    text = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
    return text + (f" ({len(missing)} of them on one side only)" if missing else "")


def _samples(left: Any, right: Any) -> str:
    if left is None or right is None:
        return "the batches differ; which samples they hold is not known"
    if left == right:
        return f"the same samples {_listed(left)} with other contents"
    return f"other samples: {_listed(left)} and {_listed(right)}"


def _listed(values: Any) -> str:
    text = str(values)
    return text if len(text) <= 80 else f"{text[:76]} …]"  # noqa: PLR2004
