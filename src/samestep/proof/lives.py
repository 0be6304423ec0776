"""Owns what is known of trainings that are compared: the undisturbed one, and the processes of a killed one."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from samestep.proof.ledger import PARTS, Ledger, Step


@dataclass(frozen=True)
class Life:
    """What one process of one rank noted.

    Args:
        steps: Its steps.
        end: What was left when it ended by itself; None if it was killed.
        made: How many steps the training had made by then: the most of any rank. 0: this one's.
    """

    steps: Sequence[Step]
    end: Step | None = None
    made: int = 0

    @property
    def done(self) -> int:
        """Give how many steps the training had made, whichever rank was ahead."""
        return max(self.made, len(self.steps))


@dataclass(frozen=True)
class Reference:
    """The undisturbed training of one rank.

    Args:
        steps: Its steps.
        end: What was left at its end.
        masked: Parts that differ already when it is repeated, and from which nothing follows.
        steady: The variables that are the same when it is repeated; None: all of them.
        is_cut: Whether it was ended after a number of steps, so that its length says nothing.
        rank: The rank.
        tolerance: By how much losses may differ; above 0 nothing but them and the samples is compared.
    """

    steps: Sequence[Step]
    end: Step | None = None
    masked: frozenset[str] = frozenset()
    steady: frozenset[str] | None = None
    is_cut: bool = False
    rank: int = 0
    tolerance: float = 0.0

    @property
    def unused(self) -> frozenset[str]:
        """Name the generators from which nobody draws while it trains."""
        generators = [part for part in PARTS if part.startswith("random.")]
        return frozenset(part for part in generators if len({each.parts.get(part) for each in self.steps}) == 1)


def by_rank(ledgers: Sequence[Ledger]) -> dict[int, list[Ledger]]:
    """Sort ledgers by rank, each rank's in the order in which its processes made them."""
    ranks: dict[int, list[Ledger]] = defaultdict(list)
    for each in sorted(ledgers, key=lambda each: (each.rank, len(each.path.name), each.path.name)):
        ranks[each.rank].append(each)
    return dict(sorted(ranks.items()))


def joined(ledgers: Sequence[Ledger]) -> Life:
    """Join what several processes of a rank noted, one after the other."""
    return Life([step for each in ledgers for step in each.steps], ledgers[-1].end if ledgers else None)


def together(ranks: Mapping[int, Life]) -> dict[int, Life]:
    """Tell each rank of a process what all of them have written: a checkpoint is there for those that write none, too.

    Between two steps something counts as written when all ranks have come to the second one.
    """
    common = min((len(each.steps) for each in ranks.values()), default=0)
    most = max((len(each.steps) for each in ranks.values()), default=0)
    files = [_files([each.steps[number] for each in ranks.values()]) for number in range(common)]
    files += [[]] * (most - common)
    ends = _files([each.end for each in ranks.values() if each.end is not None])
    return {
        rank: Life(
            [_with_files(*each) for each in zip(life.steps, files, strict=False)],
            life.end and _with_files(life.end, ends),
            most,
        )
        for rank, life in ranks.items()
    }


def _files(steps: Sequence[Step]) -> list[Any]:
    return [operation for each in steps for operation in each.notes.get("files", [])]


def _with_files(step: Step, files: Sequence[Any]) -> Step:
    return replace(step, notes={**step.notes, "files": files})
