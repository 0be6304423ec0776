"""Owns the pictures of a proof's trainings: a strip of steps for each process, as inline SVG. Knows no verdict's words.

Steps are drawn in a box that is stretched to any width; marks and texts lie over it at percentages, so that they keep
their size. A state is told by its colour and by its height, for those who see no colours and for black ink.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from samestep.proof.telling import moment
from samestep.wording import printable

MOST_CELLS = 300
"""Of more steps single cells are not to be seen, and no lines are drawn between them."""

_FULL, _HEIGHTS = 'height="1"', {"follows": 'y="0.3" height="0.4"'}
_LEFT, _RIGHT, _RULE = 0.03, {"scale": 0.95, "first": 0.6}, {"scale": "middle", "first": "start"}
_SAYS = {
    "before": "as without a kill, before it",
    "same": "the same",
    "first": "the first difference",
    "follows": "behind the first difference",
}


def text(value: object) -> str:
    """Write a text of others into a page: no mark of it is one of the page's, and no character unseen."""
    return escape(printable(str(value)))


@dataclass(frozen=True)
class Process:
    """One process of a trial.

    Args:
        begin: At which step it went on; None: that is not known.
        made: How many steps it made.
        difference: At which step it differs first; None if it does not, or nobody looked.
        is_first: Whether it is the one that was killed first.
        was_killed: Whether it was killed.
    """

    begin: int | None
    made: int
    difference: int | None
    is_first: bool
    was_killed: bool

    @property
    def end(self) -> int:
        """The step behind its last one."""
        return (self.begin or 0) + self.made


def processes_of(trial: Mapping[str, Any]) -> list[Process]:
    """Give the processes of a trial, in their order.

    Those behind the one that differs were not looked at: where they went on is not known.
    """
    first, resumes, made = trial["first_difference"], list(trial["resumes"]), list(trial["steps"])
    kills = [trial["kill"], *trial["kill"].get("then", [])]
    begins: list[int | None] = [0]
    begins += [resumes.pop(0) if count and resumes else None for count in made[1:]]

    def was_killed(number: int) -> bool:
        ended = trial["verdict"] == "not_killed" and number == len(made) - 1
        return number < len(kills) and kills[number]["kind"] != "end" and not ended

    differing = max(number for number, begin in enumerate(begins) if begin is not None)
    if trial["verdict"] == "skipped_steps" and not made[-1]:  # it is missing steps, all of them
        differing = len(made) - 1
    return [
        Process(begin, count, first["step"] if first and number == differing else None, number == 0, was_killed(number))
        for number, (begin, count) in enumerate(zip(begins, made, strict=True))
    ]


class Strips:
    """Draws the trainings of one proof, all to one scale.

    Args:
        proof: The proof, as its JSON gives it.
    """

    def __init__(self, proof: Mapping[str, Any]) -> None:
        self._steps: int = proof["steps"]
        ends = [process.end for trial in proof["trials"] if trial["steps"] for process in processes_of(trial)]
        self._width: int = max(1, self._steps, *ends)

    @property
    def has_cells(self) -> bool:
        """Tell whether each step is a cell."""
        return self._width <= MOST_CELLS

    def reference(self, proof: Mapping[str, Any]) -> str:
        """Draw the undisturbed training, with its epochs, its saves and a scale."""
        edges = "".join(
            f'<line class="edge" x1="{self._at(each)}" x2="{self._at(each)}" y1="0" y2="24">'
            f"<title>an epoch begins after step {each}</title></line>"
            for each in proof["epochs"]
        )
        saves = "".join(
            f'<circle class="save" cx="{self._at(each)}" cy="28" r="3.5"><title>saved at step {each}</title></circle>'
            for each in proof["saves"]
        )
        scale = "".join(self._label(each, str(each), 46, "scale") for each in self._scale())
        grid = f'<path id="grid" d="{self._grid()}" vector-effect="non-scaling-stroke"/>' if self.has_cells else ""
        box = self._box([(0, self._steps, "same")], 6, grid)
        return self._strip(50, f"{self._steps} undisturbed steps", box + edges + saves + scale)

    def repeat(self, difference: Mapping[str, Any] | None) -> str:
        """Draw the training that was repeated undisturbed."""
        first = None if difference is None else difference["step"]
        return self._bar(0, self._steps, first, "same", "" if difference is None else difference["part"])

    def trial(self, trial: Mapping[str, Any]) -> str:
        """Draw the processes of a trial, each below its sentence."""
        processes, first = processes_of(trial), trial["first_difference"]
        shown = [
            f'<p class="life">{text(_sentence(number, each))}</p>{self._process(each, first)}'
            for number, each in enumerate(processes, 1)
        ]
        return "".join(shown)

    # --- parts of a strip --------------------------------------------------------------------------------

    def _process(self, process: Process, first: Mapping[str, Any] | None) -> str:
        part = first["part"] if first is not None and process.difference is not None else ""
        if process.begin is None and not part:
            return ""
        kind = "before" if process.is_first else "same"
        marks = "" if process.is_first or process.begin is None else self._mark(process.begin, "▸", "resume", -8)
        if process.was_killed:
            marks += self._mark(process.end, "✕", "kill", 8)
        return self._bar(process.begin or 0, process.end, process.difference, kind, part, marks)

    def _bar(self, begin: int, end: int, first: int | None, kind: str, part: str, marks: str = "") -> str:
        """Draw steps from `begin` to `end`, which differ from `first` on, and name the part that differs."""
        parts = [(begin, end, kind)]
        if first is not None:
            until = max(begin, min(first, end))
            parts = [(begin, until, kind), (until, min(until + 1, end), "first"), (until + 1, end, "follows")]
            place = self._at(min(first, self._width))
            marks += f'<line class="first" x1="{place}" x2="{place}" y1="0" y2="24"/>'  # seen also among thousands
            marks += self._label(min(first, self._width), f"▲ {moment(first, self._steps)}: {part}", 34, "first")
        grid = '<use href="#grid"/>' if self.has_cells else ""
        said = f"steps {begin} to {end}" + (
            "" if first is None else f", other ones from {moment(first, self._steps)} on"
        )
        return self._strip(24 if first is None else 40, said, self._box(parts, 4, grid) + marks)

    def _box(self, parts: Sequence[tuple[int, int, str]], top: int, grid: str) -> str:
        """Draw runs of equal steps in a box that is stretched."""
        rows = "".join(
            f'<rect class="{kind}" x="{begin}" width="{end - begin}" {_HEIGHTS.get(kind, _FULL)}>'
            f"<title>{_from_to(begin, end)}: {_SAYS[kind]}</title></rect>"
            for begin, end, kind in parts
            if end > begin
        )
        return (
            f'<svg y="{top}" width="100%" height="16" viewBox="0 0 {self._width} 1" preserveAspectRatio="none">'
            f'<rect class="empty" width="{self._width}" height="1"/>{rows}{grid}</svg>'
        )

    def _strip(self, height: int, says: str, content: str) -> str:
        return f'<svg class="strip" width="100%" height="{height}" role="img" aria-label="{text(says)}">{content}</svg>'

    def _mark(self, step: int, sign: str, kind: str, aside: int) -> str:
        place = self._at(step)
        return (
            f'<line class="{kind}" x1="{place}" x2="{place}" y1="0" y2="24"/>'
            f'<text class="{kind} sign" x="{place}" dx="{aside}" y="17" text-anchor="middle">{sign}</text>'
        )

    def _label(self, step: float, label: str, y: int, kind: str) -> str:
        share = step / self._width
        anchor = "start" if share < _LEFT else "end" if share > _RIGHT[kind] else _RULE[kind]
        return f'<text class="{kind}" x="{self._at(step)}" y="{y}" text-anchor="{anchor}">{text(label)}</text>'

    def _at(self, step: float) -> str:
        return f"{100 * step / self._width:.3f}%"

    def _grid(self) -> str:
        return "".join(f"M{each} 0v1" for each in range(1, self._width))

    def _scale(self) -> list[int]:
        """Choose round steps for the scale, and the last one."""
        unit = next(
            each for power in range(12) for each in (10**power, 2 * 10**power, 5 * 10**power) if self._width <= 8 * each
        )
        return [*range(0, self._steps - unit // 2, unit), self._steps]


def _from_to(begin: int, end: int) -> str:
    return f"step {begin}" if end - begin == 1 else f"steps {begin} to {end - 1}"


def _sentence(number: int, process: Process) -> str:
    """Say what a process did."""
    made = f"{process.made} step{'' if process.made == 1 else 's'}"
    if process.begin is None:
        return f"Process {number}: " + (f"{made}, not compared" if process.made else "no step")
    begin = "the start" if process.begin == 0 else f"step {process.begin}"
    end = f"killed after {made}" if process.was_killed else f"{made}, to step {process.end}"
    return f"Process {number}: from {begin}, {end}"
