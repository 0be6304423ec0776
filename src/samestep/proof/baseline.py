"""Owns the undisturbed training that others are compared with, and what of it is not the same twice. Runs nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from samestep.errors import SamestepError
from samestep.proof.comparing import Difference, detail, first_difference
from samestep.proof.ledger import Ledger
from samestep.proof.lives import Life, Reference, by_rank, joined
from samestep.proof.material import within

_MAY_DIFFER = frozenset(
    {"random.python", "random.numpy", "random.torch", "random.cuda", "batch", "inputs", "variables"}
)
"""What may differ between reference and repeat: an unused generator, a path in a batch, a clock."""


def references(ledgers: Sequence[Ledger], cut: int | None, tolerance: float = 0.0) -> dict[int, Reference]:
    """Give the reference of each rank.

    Args:
        ledgers: What the undisturbed training noted.
        cut: After how many steps its processes were ended; None: they came to their end.
        tolerance: By how much losses may differ.

    Raises:
        SamestepError: Losses may differ, and none is known.
    """
    found = {}
    for rank, each in by_rank(ledgers).items():
        life = joined(each)
        is_cut = cut is not None and life.end is None and len(life.steps) >= cut
        found[rank] = Reference(life.steps, life.end, is_cut=is_cut, rank=rank, tolerance=tolerance)
        if tolerance and not all("loss" in step.notes for step in life.steps):
            raise SamestepError(
                "Losses are to be compared, and some steps have none that is known.",
                expected="backward() of one number before each step",
                hint="Prove it without --tolerance: then everything else is compared.",
            )
    return found


def repeated(
    known: Mapping[int, Reference], ledgers: Sequence[Ledger]
) -> tuple[dict[int, Reference], Difference | None]:
    """Compare with the repeated training, and mask what differs there without a consequence.

    Args:
        known: The references by rank.
        ledgers: What the repeated training noted.

    Returns:
        The references with their masks, and the first difference that has consequences.
    """
    again = {rank: joined(each) for rank, each in by_rank(ledgers).items()}
    masked = {rank: _masked(each, again.get(rank, Life([]))) for rank, each in known.items()}
    real = [each for each in masked.values() if isinstance(each, Difference)]
    first = min(real, key=lambda each: each.step, default=None)
    return {rank: each for rank, each in masked.items() if isinstance(each, Reference)}, first


def _masked(reference: Reference, again: Life) -> Reference | Difference:
    if reference.tolerance:
        return _first_beyond(reference, again) or reference
    found = first_difference(reference.steps, again.steps, ignored=_MAY_DIFFER, rank=reference.rank)
    if found is not None:
        cause = first_difference(reference.steps, again.steps, ignored=reference.unused, rank=reference.rank)
        return cause or found
    pairs = list(zip(reference.steps, again.steps, strict=True))
    parts = {
        part
        for left, right in pairs
        for part in _MAY_DIFFER - {"variables"}
        if left.parts.get(part) != right.parts.get(part)
    }
    names = {name for each in reference.steps for name in each.tensors.get("variables", {})}
    moving = {
        name
        for left, right in pairs
        for name, digest in left.tensors.get("variables", {}).items()
        if right.tensors.get("variables", {}).get(name) != digest
    }
    return replace(reference, masked=frozenset(parts), steady=frozenset(names - moving))


def _first_beyond(reference: Reference, again: Life) -> Difference | None:
    """Give the first step whose samples or losses are others."""
    seen, shown = within(reference, again, 0)
    found = first_difference(seen.steps, shown.steps, rank=reference.rank)
    if found is None or found.part == "steps":
        return found
    return replace(found, detail=detail(found.part, reference.steps[found.step], again.steps[found.step]))
