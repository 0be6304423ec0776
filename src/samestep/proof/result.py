"""Owns what a proof has found, as objects and as JSON. Runs nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from samestep.proof.comparing import Difference
from samestep.proof.diagnosis import Finding
from samestep.proof.judging import Judgement
from samestep.proof.planning import Trial
from samestep.proof.saves import Save

PROVED, DIVERGED, UNVERIFIED, NOT_KILLED = "proved", "diverged", "unverified", "not_killed"

STATUS = {PROVED: 0, DIVERGED: 1, UNVERIFIED: 3}
"""The exit status of each verdict."""


@dataclass
class TrialResult:
    """What one trial has shown.

    Args:
        kills: When it was killed.
        verdict: The verdict of `judging.Judgement`, or "not_killed" (it ended before the moment came).
        resumed_from: At which step each resumed process went on.
        first_difference: Where it differs first from the reference.
        restored: Parts of the state that were right at the first step after the resume.
        not_restored: Parts that were not.
        harmless: Parts that differ, and nothing follows from them.
        explanation: What happened, in a sentence.
        findings: What is said of each part, the cause first.
        rank: The rank that differs.
        compared: How many steps behind resumes were compared.
        steps: How many steps the killed process made, and each of the resumed ones.
        passed_over: Large saves that were complete when a training began from scratch.
    """

    kills: Trial
    verdict: str
    resumed_from: Sequence[int] = ()
    first_difference: Difference | None = None
    restored: Sequence[str] = ()
    not_restored: Sequence[str] = ()
    harmless: Sequence[str] = ()
    explanation: str = ""
    findings: Sequence[Finding] = ()
    rank: int = 0
    compared: int = 0
    steps: Sequence[int] = ()
    passed_over: Sequence[Save] = ()

    @classmethod
    def of(
        cls, judgement: Judgement, kills: Trial, findings: Sequence[Finding], rank: int, steps: Sequence[int]
    ) -> "TrialResult":
        """Make it of a judgement."""
        return cls(
            kills,
            judgement.verdict,
            judgement.resumed_from,
            judgement.first_difference,
            judgement.restored,
            judgement.not_restored,
            judgement.harmless,
            judgement.explanation,
            findings,
            rank,
            judgement.compared,
            steps,
            judgement.passed_over,
        )

    def as_json(self) -> dict[str, Any]:
        """Give it as the command line's `--json` does."""
        first, *others = [each.as_json() for each in self.kills]
        return {
            "kill": first | ({"then": others} if others else {}),
            "verdict": self.verdict,
            "resumed_from": self.resumed_from[0] if self.resumed_from else None,
            "resumes": list(self.resumed_from),
            "first_difference": None if self.first_difference is None else self.first_difference.as_json(),
            "restored": list(self.restored),
            "not_restored": list(self.not_restored),
            "harmless": list(self.harmless),
            "explanation": self.explanation,
            "findings": [asdict(each) for each in self.findings],
            "rank": self.rank,
            "steps": list(self.steps),
            "compared": self.compared,
        }


@dataclass
class Proof:
    """What a proof has found.

    Args:
        command: The command.
        verdict: "proved", "diverged" or "unverified".
        reason: Why, in a sentence.
        steps: How many steps the reference made.
        ranks: How many ranks it has.
        tolerance: By how much losses may differ; above 0 nothing but them and the samples was compared.
        epochs: Before which steps an epoch began.
        saves: After how many steps it saved.
        repeat: Where the repeated training differs; None if nowhere.
        masked: Parts that differ already between reference and repeat, and from which nothing follows.
        control: Whether a spoiled resume was noticed; None if it was not needed.
        trials: The trials.
        notes: What else should be known.
        begun: When it began, in UTC, as ISO 8601 writes it.
        seconds: How long it took.
        versions: Of Python, torch and samestep.
    """

    command: Sequence[str]
    verdict: str = UNVERIFIED
    reason: str = ""
    steps: int = 0
    ranks: int = 1
    tolerance: float = 0.0
    epochs: Sequence[int] = ()
    saves: Sequence[int] = ()
    repeat: Difference | None = None
    masked: Sequence[str] = ()
    control: bool | None = None
    trials: list[TrialResult] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    begun: str = ""
    seconds: float = 0.0
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def cause(self) -> TrialResult | None:
        """The first trial that failed."""
        return next((each for each in self.trials if each.verdict not in {PROVED, NOT_KILLED}), None)

    def as_json(self) -> dict[str, Any]:
        """Give it as the command line's `--json` does."""
        return {
            "verdict": self.verdict,
            "reason": self.reason,
            "command": list(self.command),
            "steps": self.steps,
            "ranks": self.ranks,
            "tolerance": self.tolerance,
            "epochs": list(self.epochs),
            "saves": list(self.saves),
            "repeat": None if self.repeat is None else self.repeat.as_json(),
            "masked": list(self.masked),
            "control": self.control,
            "trials": [each.as_json() for each in self.trials],
            "notes": list(self.notes),
            "begun": self.begun,
            "seconds": round(self.seconds, 3),
            "versions": dict(self.versions),
        }
