"""Owns ledgers: what a recorded process noted of each optimizer step, one JSON line each. Knows no torch.

A ledger begins with a line about the process. A line of names says of which tensors the steps behind it speak; a line
of a step holds the digest of each part, and for parts of many tensors the digest of each of them, in their order.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from samestep.errors import SamestepError
from samestep.store import files
from samestep.store.json_lines import encode_line, parse_line

PARTS = (
    "parameters",
    "buffers",
    "optimizer",
    "learning_rate",
    "scaler",
    "copies",
    "batch",
    "random.python",
    "random.numpy",
    "random.torch",
    "random.cuda",
    "variables",
    "inputs",
    "loss",
    "gradients",
)
"""The parts of a step, causes before effects: what differs first is named first."""

LARGE = frozenset({"parameters", "optimizer", "gradients", "copies", "variables"})
"""The parts that may be noted at every so many steps only."""

PASSING = frozenset({"copies", "variables"})
"""The parts that are made of names, which come and go: what only one of two trainings has is no difference."""

SCHEDULER = "scheduler "
"""Begins the digest of a variable that belongs to a learning rate scheduler."""

VERSION = 1


@dataclass
class Step:
    """What is noted of one call of an optimizer's `step`.

    Args:
        number: Which call it is in its process, from 0, over all optimizers.
        optimizer: Which optimizer, in the order in which they made their first step.
        parts: Digests by part; a part that the step has not is missing.
        tensors: Digests of single tensors by part and name.
        notes: What helps to understand a difference: the samples' indices, the values of the loss.
    """

    number: int
    optimizer: int
    parts: Mapping[str, str]
    tensors: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_whole(self) -> bool:
        """Tell whether the large parts were noted."""
        return "parameters" in self.parts


class LedgerWriter:
    """Writes the ledger of this process; a line is whole or not there, whenever the process is killed.

    Args:
        folder: Where the ledger is made, with the first line; until then nothing is.
        rank: The process's rank, which is in the ledger's name; it may be set until the first line is written.
        about: What is said of the process.
    """

    def __init__(self, folder: Path, rank: int, about: Mapping[str, Any]) -> None:
        self._folder, self.rank, self._about = folder, rank, about
        self._descriptor: int | None = None
        self._names: dict[str, list[str]] = {}

    @property
    def number(self) -> int:
        """Count the ledgers of the rank that are there: the number of the next one."""
        return sum(_rank_of(path.name) == self.rank for path in self._folder.glob(f"rank-{self.rank}*.jsonl"))

    @property
    def is_begun(self) -> bool:
        """Tell whether anything was written."""
        return self._descriptor is not None

    def write(self, step: Step, *, is_end: bool = False) -> None:
        """Add a step, or what is left when the process ends."""
        names = {part: list(tensors) for part, tensors in step.tensors.items()}
        changed = {part: each for part, each in names.items() if self._names.get(part) != each}
        if changed:
            self._names |= changed
            self._add({"names": changed})
        line: dict[str, Any] = {"end" if is_end else "step": step.number}
        line |= {"optimizer": step.optimizer, "parts": dict(step.parts)}
        if step.tensors:
            line["tensors"] = {part: list(tensors.values()) for part, tensors in step.tensors.items()}
        self._add(line | ({"notes": dict(step.notes)} if step.notes else {}))

    def _add(self, line: Mapping[str, Any]) -> None:
        if self._descriptor is None:
            self._descriptor = self._open()
            self._add({"ledger": VERSION, "rank": self.rank, **self._about})
        files.write_all(self._descriptor, memoryview(encode_line(line)))

    def _open(self) -> int:
        """Make a file of its own: a command may start several processes of one rank, one after the other."""
        number = 0
        while True:
            name = f"rank-{self.rank}{f'.{number}' if number else ''}.jsonl"
            try:
                return files.system.open(self._folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND)
            except FileExistsError:
                number += 1


def _rank_of(name: str) -> int:
    return int(name.removeprefix("rank-").partition(".")[0])


@dataclass
class Ledger:
    """A ledger that was read.

    Args:
        path: Its file.
        about: What its first line says of the process.
        steps: The steps, in order.
        end: What was left when the process ended by itself; None if it was killed.
    """

    path: Path
    about: Mapping[str, Any]
    steps: Sequence[Step]
    end: Step | None = None

    @property
    def rank(self) -> int:
        """The rank of the process."""
        return int(self.about.get("rank", 0))


def read_ledger(path: str | os.PathLike[str]) -> Ledger:
    """Read a ledger; a torn last line, which a killed process leaves at the worst, is passed over.

    Raises:
        SamestepError: It is no ledger, or one of a newer version.
    """
    path = Path(path)
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except OSError as error:
        raise SamestepError("The ledger cannot be read.", path=path, found=error.strerror) from error
    about = parse_line(lines[0]) if lines else None
    if about is None or about.get("ledger") != VERSION:
        raise SamestepError(
            "This is no ledger of this version.",
            path=path,
            expected=f'a first line with "ledger": {VERSION}',
            found=json.dumps(about)[:80] if about else "none",
            hint="Make one: samestep record --out FOLDER -- python train.py",
        )
    steps, end = _steps(lines[1:], path)
    return Ledger(path, about, steps, end)


def find_ledgers(place: str | os.PathLike[str]) -> list[Ledger]:
    """Read the ledgers of a recording, by rank: `place` is its folder, or one ledger's file.

    Raises:
        SamestepError: There is none, or one cannot be read.
    """
    place = Path(place)
    paths = sorted(place.glob("rank-*.jsonl")) if place.is_dir() else [place]
    if not paths:
        raise SamestepError("There is no ledger here.", path=place, hint="Give the folder of `samestep record --out`.")
    return [read_ledger(path) for path in paths]


def _steps(lines: Sequence[bytes], path: Path) -> tuple[list[Step], Step | None]:
    names: dict[str, list[str]] = {}
    steps: list[Step] = []
    end = None
    for number, raw in enumerate(lines, start=2):
        line = parse_line(raw)
        try:
            if line is not None and "names" in line:
                names |= line["names"]
            elif line is not None and "end" in line:
                end = _step(line, names)
            else:
                steps.append(_step(line or {}, names))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise SamestepError("The ledger is damaged.", path=f"{path}:{number}", found=error) from error
    return steps, end


def _step(line: Mapping[str, Any], names: Mapping[str, Sequence[str]]) -> Step:
    digests = line.get("tensors", {}).items()
    tensors = {part: dict(zip(names[part], each, strict=True)) for part, each in digests}
    number = line["end"] if "end" in line else line["step"]
    return Step(number, line["optimizer"], line["parts"], tensors, line.get("notes", {}))
