"""Owns the choice of moments at which a training is killed. Kills nothing.

The moments come from what the reference noted: where its epochs end, and what it writes between its steps.
"""

import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from samestep.errors import SamestepError
from samestep.proof.ledger import Step
from samestep.proof.saves import Save, find_saves

_SPEC = re.compile(r"(?P<kind>step|epoch|saves?|random|end)(:(?P<number>\d+)(\.(?P<operation>\d+))?)?(@(?P<rank>\d+))?")
_SPECS = "step:N, epoch:N, save:N, save:N.K, saves, end, random; two kills: step:12+step:3; of a rank: step:12@1"


@dataclass(frozen=True)
class Kill:
    """One moment at which a process is killed.

    Args:
        kind: "step" (between two steps), "epoch" (behind the last step of one), "save" (at an operation on a file),
            "random", or "end" (it has ended by itself, and is only started again).
        at: How many steps the process has done; from its start or, for a second kill, from its resume.
        operation: Which operation behind that step; None: none is waited for.
        bytes: How much of that operation's file is written; None: the operation has not begun.
        what: The operation, in words.
        rank: The rank of the process.
        process: Which of the processes that the command starts one after the other for that rank, from 0.
        number: How many steps that process has done; None: as many as `at`.
        delay: How many seconds behind the step, for a random moment.
    """

    kind: str
    at: int
    operation: int | None = None
    bytes: int | None = None
    what: str = ""
    rank: int = 0
    process: int = 0
    number: int | None = None
    delay: float | None = None

    def variables(self) -> dict[str, str]:
        """Give it as a variable of the environment; nothing for a kill from outside."""
        if self.delay is not None or self.kind == "end":
            return {}
        done = self.at if self.number is None else self.number
        wanted = {"after": done - 1, "operation": self.operation, "bytes": self.bytes, "rank": self.rank}
        wanted |= {"process": self.process} if self.process else {}
        return {"SAMESTEP_RECORD_KILL": json.dumps(wanted)}

    def as_json(self) -> dict[str, Any]:
        """Give it as the command line's `--json` does."""
        given = {"operation": self.operation, "bytes": self.bytes, "what": self.what or None, "delay": self.delay}
        return {"kind": self.kind, "at": self.at, "rank": self.rank, "words": str(self)} | {
            key: value for key, value in given.items() if value is not None
        }

    def __str__(self) -> str:
        steps = "the start" if self.at == 0 else f"step {self.at}"
        where = {
            "step": f"after {steps}",
            "epoch": f"at an epoch's end, after {steps}",
            "save": f"in the save after {steps}: {self.what}",
            "random": f"at a random moment after {steps}",
            "end": f"at its own end, after {steps}",
        }[self.kind]
        return where + (f", rank {self.rank}" if self.rank else "")


Trial = tuple[Kill, ...]
"""The kills of one training, one after the other."""


class Plan:
    """Chooses kills in a training.

    Args:
        steps: The steps of the reference.
        end: What it left at its end.
        seconds: How long it took from its first step to its end.
        others: The plans of the other ranks.
        lengths: How many steps each of the processes made that the command started one after the other.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        end: Step | None = None,
        seconds: float = 1.0,
        others: Mapping[int, "Plan"] | None = None,
        lengths: Sequence[int] = (),
    ) -> None:
        self._lengths = lengths or [len(steps)]
        self._others = others or {}
        self._length = len(steps)
        self._seconds = seconds
        self._saves = find_saves(steps, end)
        self._epochs = [number for number, each in enumerate(steps) if each.notes.get("epochs") and number]
        self._random = random.Random(0)

    def trials(self, count: int) -> list[Trial]:
        """Choose `count` trials of all kinds, the most telling first.

        Raises:
            SamestepError: The training is too short to be killed in the middle.
        """
        if self._length < 2:  # noqa: PLR2004
            raise SamestepError(
                "The training is too short to be killed in the middle.",
                expected="at least 2 optimizer steps",
                found=f"{self._length}",
                hint="Let it train longer.",
            )
        chosen: list[Trial] = []
        for trial in self._ordered():
            if self._placed(trial) not in chosen:
                chosen.append(self._placed(trial))
            if len(chosen) == count:
                break
        return chosen

    def parsed(self, spec: str) -> list[Trial]:
        """Read one `--at`.

        Raises:
            SamestepError: It is not understood, or the training has no such moment.
        """
        kills = [self._kills(each, spec) for each in spec.split("+")]
        trials = [(kill,) for kill in kills[0]] if len(kills) == 1 else [tuple(each[0] for each in kills)]
        return [self._placed(each) for each in trials]

    def _placed(self, trial: Trial) -> Trial:
        """Say which process of the command dies; a resumed one counts from its own start."""
        first, *others = trial
        begun, process = 0, 0
        while process + 1 < len(self._lengths) and first.at > begun + self._lengths[process]:
            begun, process = begun + self._lengths[process], process + 1
        if process == 0 or first.rank:
            return trial
        return (replace(first, process=process, number=first.at - begun), *others)

    # --- the default choice ------------------------------------------------------------------------------

    def _ordered(self) -> Iterator[Trial]:
        yield (Kill("step", self._middle()),)
        later = [each for each in self._saves if 0 < each.completed < self._length] or self._saves
        if later:
            yield (self._in_write(later[2 * len(later) // 3]),)
        edges = [each for each in self._epochs if each > self._first_save()] or self._epochs
        if edges:
            yield (Kill("epoch", edges[len(edges) // 2]),)
        if later:
            yield (self._before(later[-1], len(later[-1].operations) - 1),)
        yield self._twice(later)
        yield (Kill("end", self._length),)
        yield (self._random_moment(),)
        for number, save in enumerate(later):
            yield (self._before(save, (number + len(save.operations) // 2) % len(save.operations)),)
            yield (self._random_moment(),)
        for _ in range(4 * self._length):
            yield (Kill("step", self._random.randrange(1, self._length)),)

    def _twice(self, saves: Sequence[Save]) -> Trial:
        """Kill late, and the resumed process again, behind a save of its own if there is one."""
        places = [each.completed for each in saves if each.completed + 1 < self._length]
        if len(places) > 1:
            return (Kill("step", places[-2] + 1), Kill("step", places[-1] - places[-2] + 1))
        late = max(1, min(self._length - 2, 3 * self._length // 4))
        return (Kill("step", late), Kill("step", 2 if late + 3 < self._length else 1))

    def _first_save(self) -> int:
        return self._saves[0].completed if self._saves else 0

    def _middle(self) -> int:
        """Choose a step in the middle of the training and of an epoch, behind a save, and not right behind it."""
        around = {0, *self._epochs, self._length}
        saved = {each.completed for each in self._saves}
        first = self._first_save() + 1
        candidates = [step for step in range(first, self._length) if not {step, step - 1, step + 1} & around]
        quiet = [step for step in candidates if step not in saved] or candidates or [*range(first, self._length)]
        quiet = quiet or [max(1, self._length - 1)]
        return min(quiet, key=lambda step: abs(step - self._length // 2))

    def _random_moment(self) -> Kill:
        at = self._random.randrange(min(self._first_save(), self._length - 1), self._length)
        return Kill("random", at, delay=self._random.random() * self._seconds / self._length)

    # --- single kills ------------------------------------------------------------------------------------

    def _before(self, save: Save, number: int) -> Kill:
        operation = save.operations[number]
        return Kill("save", save.completed, number, what=f"before {operation.name} {operation.path}")

    def _in_write(self, save: Save) -> Kill:
        """Kill in the middle of the largest file; before the first operation where none is written here."""
        sizes = [each.bytes or 0 if each.is_write else 0 for each in save.operations]
        return self._within(save, sizes.index(max(sizes))) if any(sizes) else self._before(save, 0)

    def _within(self, save: Save, number: int) -> Kill:
        operation = save.operations[number]
        half = max(1, (operation.bytes or 0) // 2)
        return replace(self._before(save, number), bytes=half, what=f"in the middle of writing {operation.path}")

    def every(self, save: Save) -> list[Kill]:
        """Give a kill before each operation of a save, and in the middle of each file that it writes."""
        kills = [self._before(save, number) for number in range(len(save.operations))]
        return kills + [self._within(save, number) for number, each in enumerate(save.operations) if each.is_write]

    def _kills(self, word: str, spec: str) -> list[Kill]:
        found = _SPEC.fullmatch(word)
        if found is None:
            raise _no_spec("The moment of a kill is not understood.", spec, word)
        kind, number, operation = found["kind"], found["number"], found["operation"]
        if (number is None) != (kind in {"saves", "end", "random"}) or (operation and kind != "save"):
            raise _no_spec("The moment of a kill has a number too few or too many.", spec, word)
        if int(found["rank"] or 0):
            return self._of_other_rank(word, int(found["rank"]), spec)
        if number is None:
            return self._unnumbered(kind)
        if kind == "save":
            return self._of_save(int(number), operation, spec)
        return [self._between(kind, int(number), spec)]

    def _of_other_rank(self, word: str, rank: int, spec: str) -> list[Kill]:
        """Read it by the rank's own plan: it writes other files, or none."""
        if rank not in self._others:
            expected = f"a rank from 0 to {max(self._others, default=0)}"
            raise SamestepError("The training has no such rank.", path=f"--at {spec}", expected=expected, found=rank)
        trials = self._others[rank].parsed(word.partition("@")[0])
        return [replace(kill, rank=rank) for kills in trials for kill in kills]

    def _unnumbered(self, kind: str) -> list[Kill]:
        if kind == "end":
            return [Kill("end", self._length)]
        if kind == "random":
            return [self._random_moment()]
        return [kill for save in self._saves for kill in self.every(save)]

    def _between(self, kind: str, number: int, spec: str) -> Kill:
        if kind == "step":
            _require_below(number, self._length - 1, spec, "step")
            return Kill("step", number)
        _require_below(number, len(self._epochs), spec, "epoch")
        return Kill("epoch", self._epochs[number - 1])

    def _of_save(self, number: int, operation: str | None, spec: str) -> list[Kill]:
        _require_below(number, len(self._saves), spec, "save")
        save = self._saves[number - 1]
        if operation is None:
            return self.every(save)
        _require_below(int(operation), len(save.operations), spec, "operation of that save")
        return [self._before(save, int(operation) - 1)]


def _no_spec(message: str, spec: str, word: str) -> SamestepError:
    return SamestepError(message, path=f"--at {spec}", expected=_SPECS, found=word)


def _require_below(number: int, last: int, spec: str, what: str) -> None:
    """Raise if the training has no such moment."""
    if not 1 <= number <= last:
        expected = f"a {what} from 1 to {last}" if last > 0 else f"no {what}: the training has none"
        raise SamestepError("The training has no such moment.", path=f"--at {spec}", expected=expected, found=number)
