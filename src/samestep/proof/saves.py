"""Owns the saves of a training: after which steps it wrote what, found by how much it wrote. Knows no format."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from samestep.proof.ledger import Step

_SHARE, _LEAST_BYTES = 0.4, 400
_NUMBERS = re.compile(r"[0-9a-f]{8,}|\d+")


@dataclass(frozen=True)
class Operation:
    """One operation on a file.

    Args:
        name: What is done: "open", "rename", …
        path: The file, relative to the directory of the arm.
        bytes: How many bytes were written to it; None where that is not known.
    """

    name: str
    path: str
    bytes: int | None

    @property
    def is_write(self) -> bool:
        """Tell whether the file's bytes are written here; what is moved in was written elsewhere."""
        return bool(self.bytes) and self.name != "rename"


@dataclass(frozen=True)
class Save:
    """What was written between two steps, if it is as large as a checkpoint.

    Args:
        completed: How many steps were done.
        operations: The operations on files, in order.
    """

    completed: int
    operations: tuple[Operation, ...]

    @property
    def kinds(self) -> frozenset[str]:
        """The files that were written, without the numbers in their names: what kind of save it is."""
        return frozenset(_NUMBERS.sub("#", each.path) for each in self.operations if each.bytes)


def operations_before(step: Step) -> tuple[Operation, ...]:
    """Give the operations on files since the step before."""
    return tuple(Operation(name, path, size) for name, path, size in step.notes.get("files", []))


def find_saves(steps: Sequence[Step], end: Step | None = None) -> list[Save]:
    """Find the saves of a training: where it wrote at least two fifths of the parameters' bytes between two steps.

    A line in a log is no save, and weights in half precision are one.

    Args:
        steps: Its steps.
        end: What was left at its end.
    """
    size = max((each.notes.get("bytes", 0) for each in steps), default=0)
    least = max(_SHARE * size, _LEAST_BYTES)
    places = [*enumerate(steps), *([] if end is None else [(len(steps), end)])]
    saves = [Save(completed, operations_before(step)) for completed, step in places]
    return [each for each in saves if sum(one.bytes or 0 for one in each.operations) >= least]
