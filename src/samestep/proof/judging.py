"""Owns the verdict over one trial: where its processes went on, what they had restored, what differs first.

Pure: it reads what was noted, and knows neither processes nor files.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from samestep.proof.alignment import align, by_count, by_state
from samestep.proof.comparing import Difference, detail, shortened
from samestep.proof.ledger import PARTS, Step
from samestep.proof.lives import Life, Reference
from samestep.proof.material import HARMLESS, counted, differences, is_of_scheduler, lost, within
from samestep.proof.saves import Save, find_saves

STATE = tuple(part for part in PARTS if part not in {"variables", "inputs", "loss", "gradients"})
"""The parts that a resume has to restore; the others follow from them, or may be harmless."""


@dataclass
class Judgement:
    """What is found of one trial.

    Args:
        verdict: "proved", "diverged", "weights_not_restored", "from_scratch", "older_checkpoint", "skipped_steps",
            "repeated_steps", "crashed" or "unstable" (it differs before the kill already).
        resumed_from: How many steps were done where each resumed process went on; none for one that made no step.
        first_difference: Where it differs first.
        restored: Parts of the state that were as in the reference at the first step of the resumed process.
        not_restored: Parts that were not.
        harmless: Parts that differ, and nothing follows from them.
        lost: Variables that stand otherwise than in the reference, although they changed there.
        explanation: What happened, in a sentence.
        compared: How many steps of resumed processes were compared.
        at: The reference's step that the process's first one corresponds to.
        found: The steps of the process that differs.
        passed_over: Complete saves that a training from scratch might have gone on from.
    """

    verdict: str = "proved"
    resumed_from: list[int] = field(default_factory=list)
    first_difference: Difference | None = None
    restored: list[str] = field(default_factory=list)
    not_restored: list[str] = field(default_factory=list)
    harmless: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    explanation: str = ""
    compared: int = 0
    at: int = 0
    found: Sequence[Step] = ()
    passed_over: Sequence[Save] = ()


def judge(reference: Reference, lives: Sequence[Life]) -> Judgement:
    """Compare the processes of a trial with the reference, one after the other.

    Args:
        reference: The undisturbed training.
        lives: The processes: the first was killed, and so were all but the last; the last came to its end.
    """
    first = _compared(reference, lives[0], 0)
    if first.first_difference is not None:
        return replace(first, verdict="unstable", explanation="It differs from the reference before it was killed.")
    done, compared, resumed, harmless = lives[0].done, 0, list[int](), set[str]()
    own = list(lives[0].steps)
    judgement = first
    for life in lives[1:]:
        judgement = _Resume(reference, lives[0], life, done, is_last=life is lives[-1], own=own).judge()
        own[judgement.at :] = life.steps
        resumed += judgement.resumed_from
        compared += judgement.compared
        harmless |= {*judgement.harmless}
        if judgement.verdict != "proved":
            break
        done = max(done, judgement.at + life.done)
    ordered = [part for part in PARTS if part in harmless]
    return replace(judgement, resumed_from=resumed, compared=compared, harmless=ordered)


def rank_at_fault(judgements: Mapping[int, Judgement]) -> int:
    """Choose of several ranks the one at which a cause is seen first: the others get its gradients in the same step.

    Args:
        judgements: The verdict over each rank; at least one.
    """

    def place(rank: int) -> tuple[bool, bool, int, int]:
        judgement, order = judgements[rank], [*PARTS, "steps"]
        difference = judgement.first_difference
        at = (len(order), 0) if difference is None else (difference.step, order.index(difference.part))
        return (judgement.verdict == "proved", difference is None, *at)

    return min(judgements, key=place)


def _compared(reference: Reference, life: Life, at: int) -> Judgement:
    """Compare a process with the reference from a step on; what nothing follows from is harmless."""
    there = reference.steps[at:]
    judgement = Judgement(compared=min(len(there), len(life.steps)), at=at, found=life.steps)
    seen, shown = within(reference, life, at)
    if judgement.compared:
        _tell_restored(judgement, seen, seen.steps[at], shown.steps[0])
    found = differences(seen, shown, at)
    if all(part in HARMLESS for _, parts in found for part in parts):
        idle = {part for _, parts in found for part in parts} - {"variables"} | {*judgement.harmless}
        judgement.harmless = [part for part in PARTS if part in idle]
        judgement.not_restored = []
        if judgement.lost:
            judgement.explanation = f"Nothing follows from these, which are not restored: {shortened(judgement.lost)}"
        return judgement
    number, parts = found[0]
    _name_difference(judgement, reference, life, number, parts)
    return judgement


def _tell_restored(judgement: Judgement, reference: Reference, expected: Step, found: Step) -> None:
    """Sort the parts of the state at the first step of a resumed process."""
    differing = counted(reference, judgement.at, expected, found, reference.masked)
    known = {*expected.parts, *found.parts} - reference.masked
    if not {*expected.tensors.get("copies", {})} & {*found.tensors.get("copies", {})}:
        known.discard("copies")  # such as a checkpoint that was loaded
    judgement.restored = [part for part in STATE if part in known and part not in differing]
    judgement.not_restored = [part for part in STATE if part in differing and part not in reference.unused]
    judgement.harmless = [part for part in differing if part in reference.unused]
    judgement.lost = lost("variables", reference, judgement.at, expected, found)


def _name_difference(judgement: Judgement, reference: Reference, life: Life, number: int, parts: list[str]) -> None:
    expected = [*reference.steps[judgement.at :], *filter(None, [reference.end])][number]
    found = [*life.steps, *filter(None, [life.end])][number]
    text = detail(parts[0], expected, found, judgement.lost)
    if parts[0] == "variables" and is_of_scheduler(expected, judgement.lost):
        parts = ["learning_rate", *parts]
    cause = parts[0]
    judgement.first_difference = Difference(judgement.at + number, cause, text, tuple(parts), reference.rank)
    judgement.restored = [part for part in judgement.restored if part != cause]
    judgement.not_restored += [] if cause in judgement.not_restored else [cause]


class _Resume:
    """One resumed process, which is judged.

    Args:
        reference: The undisturbed training.
        killed: The process that was killed first.
        life: The resumed process.
        done: How many steps were done before it.
        is_last: Whether it came to the end of the training.
        own: The steps that the killed processes have made, up to where the last one was killed.
    """

    def __init__(
        self, reference: Reference, killed: Life, life: Life, done: int, *, is_last: bool, own: Sequence[Step]
    ) -> None:
        self._own = own
        self._reference, self._life, self._done, self._is_last = reference, life, done, is_last
        self._complete = [each for each in find_saves(killed.steps) if 0 < each.completed < done]
        self._saves = find_saves(reference.steps, reference.end)
        self._length = len(reference.steps)

    def judge(self) -> Judgement:
        """Align, compare, and name the gravest fault that fits."""
        if not self._life.steps:
            return self._without_steps()
        at = self._aligned()
        judgement = _compared(self._reference, self._life, at)
        judgement.resumed_from = [at]
        excess = at + len(self._life.steps) - self._length if self._is_last and not self._reference.is_cut else 0
        if excess and judgement.first_difference is None:
            judgement.first_difference = self._length_difference(at)
        if self._done >= self._length:
            self._name_second_end(judgement, excess)
        else:
            self._name_verdict(judgement, excess)
        return judgement

    def _aligned(self) -> int:
        """Give the reference's step at which the process goes on."""
        found, expected = self._life.steps, self._reference.steps
        if not self._reference.tolerance:
            return align(found, expected, self._done, self._reference.end).at
        # What was restored is what this training had saved: bits that the reference may never have had. Behind its last
        # step nothing is noted of it, but a rate that stays the same would point before that.
        known = by_count(found[0], expected) or by_state(found, self._own, self._done)
        if known is not None and known.by != "learning_rate":
            return known.at
        last = min(self._done, self._length - 1)
        return max(range(last + 1), key=lambda at: (self._same_from(at), at == self._length - len(found), at))

    def _same_from(self, at: int) -> int:
        """Count the steps that are the same if the first one is the reference's step `at`."""
        seen, shown = within(self._reference, self._life, at)
        found = differences(seen, shown, at)
        return found[0][0] if found else len(shown.steps)

    def _without_steps(self) -> Judgement:
        left = self._length - self._done
        if left <= 0 or not self._is_last:
            return Judgement(at=self._done, explanation="Nothing was left to do.")
        text = f"The resumed process made no step, although {left} of {self._length} steps were left."
        difference = Difference(self._done, "steps", text, ("steps",), self._reference.rank)
        return Judgement("skipped_steps", first_difference=difference, at=self._done, explanation=text)

    def _length_difference(self, at: int) -> Difference:
        made = at + len(self._life.steps)
        text = f"{self._length} steps, and {made} after the resume"
        return Difference(min(made, self._length), "steps", text, ("steps",), self._reference.rank)

    def _name_second_end(self, judgement: Judgement, excess: int) -> None:
        """Name what became of a training that had come to its end already: it may begin anew, but not go on."""
        if judgement.at and excess > 0:
            judgement.verdict = "repeated_steps"
            judgement.first_difference = self._length_difference(judgement.at)
            judgement.explanation = f"It was finished, and goes on when it is started again: {excess} steps more."
        elif judgement.first_difference is not None:
            self._name_diverged(judgement, judgement.first_difference)

    def _name_verdict(self, judgement: Judgement, excess: int) -> None:
        difference = judgement.first_difference
        if judgement.at == 0 and self._done and self._complete:
            judgement.verdict = "from_scratch"
            judgement.passed_over = self._complete
            judgement.explanation = (
                "The training began at its start again, although a checkpoint of step "
                f"{self._complete[-1].completed} was complete."
            )
        elif difference is None:
            self._name_lost_work(judgement)
        elif judgement.at and self._are_weights_of_start(judgement.at):
            judgement.verdict = "weights_not_restored"
            judgement.explanation = "The weights are those of the start, although other state was restored."
        elif excess and difference.part in {"batch", "steps"}:
            judgement.verdict = "repeated_steps" if excess > 0 else "skipped_steps"
            number = f"{abs(excess)} step{'s' if abs(excess) > 1 else ''}"
            judgement.explanation = f"{number} {'more' if excess > 0 else 'fewer'} than without the kill."
        else:
            self._name_diverged(judgement, difference)

    def _name_diverged(self, judgement: Judgement, difference: Difference) -> None:
        judgement.verdict = "diverged"
        judgement.explanation = f"From step {difference.step} on: {difference.part} first."

    def _name_lost_work(self, judgement: Judgement) -> None:
        newer = self._newer_save(judgement.at)
        if newer is not None:
            judgement.verdict = "older_checkpoint"
            judgement.explanation = (
                f"It went on from step {judgement.at}, although the save of step {newer.completed} was complete: "
                f"{newer.completed - judgement.at} steps were done twice."
            )

    def _newer_save(self, at: int) -> Save | None:
        """Find a complete save of the same kind as the one that was resumed from, behind it."""
        own = [each for each in self._saves if each.completed == at]
        later = [each for each in self._complete if each.completed > at and own and each.kinds >= own[0].kinds]
        return later[-1] if later else None

    def _are_weights_of_start(self, at: int) -> bool:
        steps = (self._reference.steps[0], self._reference.steps[min(at, self._length - 1)], self._life.steps[0])
        begun, here, found = (each.tensors.get("parameters", {}) for each in steps)
        moved = [name for name in here if here[name] != begun.get(name)]
        return bool(moved) and all(name in found and found[name] == begun.get(name) for name in moved)
