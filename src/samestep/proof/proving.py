"""Owns the proof of a command: reference, repeat, trials, control, verdict. Prints nothing."""

import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from samestep import __version__
from samestep.errors import SamestepError
from samestep.proof.arms import Arm, Order, require_success
from samestep.proof.baseline import references, repeated
from samestep.proof.comparing import Difference
from samestep.proof.diagnosis import explain
from samestep.proof.judging import Judgement, judge, rank_at_fault
from samestep.proof.lives import Life, Reference, by_rank, together
from samestep.proof.outputs import changed_outputs
from samestep.proof.planning import Plan, Trial
from samestep.proof.recording import Launch, ledgers_of
from samestep.proof.result import DIVERGED, NOT_KILLED, PROVED, Proof, TrialResult
from samestep.proof.saves import find_saves
from samestep.proof.starting import Attempts
from samestep.proof.telling import row
from samestep.proof.verdicts import FROM_SCRATCH, UNSTABLE, conclude, is_tentative, reconsider
from samestep.proof.workspace import DIRECTORY

SPOIL = "SAMESTEP_RECORD_SPOIL"
"""The variable that makes the recorder flip one bit of a parameter."""

_TRIES = 3
_PATIENCE, _LEAST_PATIENCE = 10.0, 60.0
"""How many times the reference's time a process may take, and how many seconds besides."""


@dataclass
class Wishes:
    """What is asked of a proof.

    Args:
        kills: How many trials are chosen.
        at: Moments of kills, as `--at` gives them; with them nothing else is chosen.
        jobs: How many trainings run at once; None: two of one process on the CPU, else one.
        tolerance: By how much losses may differ; above 0 nothing but them and the samples is compared.
        launch: Starts a process, as `subprocess.Popen` does.
        say: Is told what happens.
    """

    kills: int = 6
    at: Sequence[str] = ()
    jobs: int | None = None
    tolerance: float = 0.0
    launch: Launch = subprocess.Popen
    say: Callable[[str], None] = field(default=lambda _: None)


def prove(order: Order, base: Path, wishes: Wishes) -> Proof:
    """Prove that a training is the same when it is killed and started again, or find what it loses.

    Args:
        order: What is proved.
        base: A folder for the arms, empty or not there yet.
        wishes: How many kills, and where.

    Returns:
        What was found.

    Raises:
        SamestepError: The command cannot be proved: it fails, trains nothing, or is too short.
    """
    return _Proving(order, base, wishes).run()


class _Proving:
    def __init__(self, order: Order, base: Path, wishes: Wishes) -> None:
        self._order, self._base, self._wishes = order, base, wishes
        self._proof = Proof(order.command, tolerance=wishes.tolerance)
        self._references: dict[int, Reference] = {}
        self._spoiled: Arm | None = None
        self._attempts = Attempts()

    def run(self) -> Proof:
        begun = time.monotonic()
        self._proof.begun = datetime.now(UTC).isoformat(timespec="seconds")
        self._wishes.say("trained undisturbed …")
        with self._attempts:
            reference = self._run_reference()
        trials = self._plan(reference)
        if self._order.timeout is None:
            self._order = replace(self._order, timeout=_LEAST_PATIENCE + _PATIENCE * reference.outcomes[0].seconds)
        self._attempts = Attempts()
        with ThreadPoolExecutor(self._jobs(reference)) as pool, self._attempts:
            repeat = pool.submit(self._run_repeat)
            longest_first = sorted(enumerate(trials), key=lambda each: -len(each[1]))  # so that both end together
            arms = {number: pool.submit(self._run_trial, number, trial, repeat) for number, trial in longest_first}
            self._conclude(reference, repeat, [arms[number] for number in range(len(trials))], trials)
        changed = reference.workspace.changed_originals()
        if changed:
            self._proof.notes.append(
                "A program that is not Python wrote through a link, so these have changed in your own directory: "
                + ", ".join(map(str, changed[:5]))
            )
        self._proof.seconds = time.monotonic() - begun
        return self._proof

    # --- the arms ----------------------------------------------------------------------------------------

    def _arm(self, name: str) -> Arm:
        return Arm(self._order, self._base, name, self._attempts, self._wishes.launch)

    def _run_reference(self) -> Arm:
        arm = self._arm("reference")
        outcome = arm.run()
        require_success(outcome, self._order.command)
        ledgers = ledgers_of(arm.workspace.ledgers(0), self._order.command)
        self._references = references(ledgers, self._order.settings.steps, self._wishes.tolerance)
        self._describe(next(iter(self._references.values())), arm)
        self._require_output(arm)
        return arm

    def _describe(self, first: Reference, arm: Arm) -> None:
        proof, about = self._proof, arm.outcomes[0].ledgers[0].about
        proof.steps, proof.ranks = len(first.steps), len(self._references)
        proof.epochs = [number for number, each in enumerate(first.steps) if each.notes.get("epochs") and number]
        proof.saves = [each.completed for each in find_saves(first.steps, first.end)]
        proof.versions = {"samestep": __version__} | {name: str(about.get(name)) for name in ("python", "torch")}
        if arm.workspace.skipped:
            proof.notes.append(f"Not readable, so not in the arms: {', '.join(arm.workspace.skipped)}")
        outside = {path for each in first.steps for path in each.notes.get("outside", [])}
        if outside:
            proof.notes.append(f"Each training writes to the same files outside: {', '.join(sorted(outside)[:5])}")
        if "optimizer" in first.steps[0].parts:
            proof.notes.append(
                "The undisturbed training began with optimizer state, so it went on from a checkpoint in this "
                "directory: leave it out with --leave-out."
            )

    def _require_output(self, arm: Arm) -> None:
        words = [*self._order.command, *([DIRECTORY] if self._order.directory_argument else [])]
        if any(DIRECTORY in each for each in words) and not arm.workspace.has_output():
            raise SamestepError(
                "The training writes nothing into the directory that {dir} stands for.",
                path=" ".join(self._order.command),
                expected="checkpoints in it",
                hint="Give {dir} as the value of the option that names the output directory.",
            )

    def _plan(self, reference: Arm) -> list[Trial]:
        seconds = reference.outcomes[0].seconds
        first, *others = self._references.values()
        plan = Plan(
            first.steps,
            first.end,
            seconds,
            {each.rank: Plan(each.steps, each.end, seconds) for each in others},
            [len(each.steps) for each in by_rank(reference.outcomes[0].ledgers)[first.rank]],
        )
        if self._wishes.at:
            return [trial for spec in self._wishes.at for trial in plan.parsed(spec)]
        return plan.trials(self._wishes.kills)

    def _jobs(self, reference: Arm) -> int:
        """Choose how many trainings run at once; two of several ranks may want the same port."""
        is_on_cpu = all(each.about.get("device") == "cpu" for each in reference.outcomes[0].ledgers)
        return self._wishes.jobs or (2 if is_on_cpu and len(self._references) == 1 else 1)

    def _run_repeat(self) -> Arm:
        arm = self._arm("repeat")
        arm.run()
        return arm

    def _run_trial(self, number: int, trial: Trial, repeat: Future[Arm]) -> Arm:
        if trial[0].kind == "end":  # the repeated training has come to its end already
            arm = repeat.result().twin(f"trial-{number + 1}")
            arm.outcomes[0] = replace(arm.outcomes[0], was_killed=True)
        else:
            arm = self._killed(f"trial-{number + 1}", trial)
        if all(each.was_killed for each in arm.outcomes):
            twin = None if self._spoiled is not None or trial[-1].kind == "end" else arm.twin(f"control-{number + 1}")
            if arm.run().ledgers and twin is not None:  # one that had nothing left to do would notice nothing
                self._spoiled = self._spoiled or twin
            if twin is not None and self._spoiled is twin:
                self._run_control(twin)
        return arm

    def _killed(self, name: str, trial: Trial) -> Arm:
        """Start a training, and kill it as often as the trial says.

        A quick one may be done before a random moment comes: it is tried again, earlier.
        """
        for tries in range(_TRIES):
            arm = self._arm(f"{name}-{tries}" if tries else name)
            for kill in trial:
                if not arm.run(replace(kill, at=kill.at >> tries, delay=0.0) if tries else kill).was_killed:
                    break
            if trial[-1].delay is None or arm.outcomes[-1].was_killed:
                break
        return arm

    def _run_control(self, arm: Arm) -> None:
        """Resume once more with one bit of one parameter flipped.

        Where only losses are compared all parameters are moved, behind the first step, and seen in the second.
        """
        part, steps = self._spoiled_part()
        arm.order = replace(self._order, settings=replace(self._order.settings, steps=steps))
        arm.run(extra={SPOIL: part})

    def _spoiled_part(self) -> tuple[str, int]:
        return ("loss", 2) if self._wishes.tolerance else ("parameters", 1)

    def _is_control_noticed(self) -> bool | None:
        if self._spoiled is None:
            return None
        differences = [each.first_difference for each in self._judge(self._spoiled)]
        return any(each is not None and each.part == self._spoiled_part()[0] for each in differences)

    # --- the verdicts ------------------------------------------------------------------------------------

    def _conclude(
        self, reference: Arm, repeat: Future[Arm], arms: Sequence[Future[Arm]], trials: Sequence[Trial]
    ) -> None:
        outcome = repeat.result().outcomes[0]
        require_success(outcome, self._order.command)
        if not outcome.ledgers:
            raise SamestepError(
                "The same training, started in another directory, found nothing left to do.",
                path=" ".join(self._order.command),
                expected="output below the working directory, of which each training has its own",
                found="a finished checkpoint in a place that all of them share",
                hint="Let {dir} be its output directory: samestep prove -- python train.py --out {dir}",
            )
        masked, self._proof.repeat = repeated(self._references, outcome.ledgers)
        if self._proof.repeat is not None:
            for each in arms:
                each.cancel()
            by = f" by more than {self._proof.tolerance:g}" if self._proof.tolerance else ""
            self._proof.reason = (
                f"Two undisturbed trainings differ{by} already, so nothing can be said of a resume: make it "
                "deterministic first (--seed 0 seeds it; torch.use_deterministic_algorithms(True))."
            )
            return
        self._wishes.say("trained again: the same")
        written = together({rank: Life(each.steps, each.end) for rank, each in masked.items()})
        self._references = {
            rank: replace(each, steps=written[rank].steps, end=written[rank].end) for rank, each in masked.items()
        }
        self._proof.masked = sorted({part for each in masked.values() for part in each.masked})
        tentative = []
        for trial, future in zip(trials, arms, strict=True):
            result = self._result(reference, future.result(), trial)
            self._proof.trials.append(result)
            if is_tentative(result):
                tentative.append(result)
            else:
                self._wishes.say(row(result.as_json()))
        first = next(iter(self._references.values()))
        reconsider(self._proof.trials, find_saves(first.steps, first.end), len(first.steps))
        for result in tentative:
            self._wishes.say(row(result.as_json()))
        conclude(self._proof, self._is_control_noticed())

    def _judge(self, arm: Arm) -> list[Judgement]:
        lives = arm.lives()
        return [judge(reference, lives.get(rank, [Life([]), Life([])])) for rank, reference in self._references.items()]

    def _result(self, reference: Arm, arm: Arm, trial: Trial) -> TrialResult:
        steps = [max((len(one.steps) for one in each.ledgers), default=0) for each in arm.outcomes]
        trial = (*arm.kills, *trial[len(arm.kills) :])  # a random moment may have been tried again, earlier
        if len(arm.outcomes) <= len(trial):
            return self._without_kill(arm, trial, steps)
        if any(each.is_late for each in arm.outcomes):
            self._proof.notes.append(f"The kill {trial[0]} came behind it: the write was over by then.")
        judgements = dict(zip(self._references, self._judge(arm), strict=True))
        rank = rank_at_fault(judgements)
        judgement = self._with_its_end(judgements[rank], arm, trial)
        is_comparable = judgement.verdict in {PROVED, FROM_SCRATCH} and judgement.first_difference is None
        if is_comparable and not self._references[rank].is_cut and not self._proof.tolerance:
            judgement = self._with_its_output(judgement, reference, arm)
        first = judgement.first_difference
        is_of_unknown_cause = self._proof.tolerance and first is not None and first.part == "loss"
        findings = [] if is_of_unknown_cause else explain(self._references[rank], judgement)
        return TrialResult.of(judgement, trial, findings, rank, steps)

    def _without_kill(self, arm: Arm, trial: Trial, steps: Sequence[int]) -> TrialResult:
        last = arm.outcomes[-1]
        if last.status == 0:
            return TrialResult(trial, NOT_KILLED, explanation="It ended before the moment came.", steps=steps)
        text = (
            f"It failed before it was killed: {last.tail[-1] if last.tail else 'without a word'}. "
            "Do trainings that run at once share a port or a file? Then one at a time: --jobs 1"
        )
        return TrialResult(trial, UNSTABLE, explanation=text, steps=steps)

    def _with_its_end(self, judgement: Judgement, arm: Arm, trial: Trial) -> Judgement:
        """Tell of a resumed process that failed; what differs before says more."""
        last = arm.outcomes[-1]
        if last.status == 0 or judgement.verdict not in {PROVED, FROM_SCRATCH, "skipped_steps"}:
            return judgement
        if trial[-1].kind == "end":
            self._proof.notes.append("It had come to its end, and fails when it is started again.")
            return judgement
        found = "did not end in time" if last.status is None else f"ended with exit status {last.status}"
        told = f": {last.tail[-1]}" if last.tail else "."
        text = f"The resumed process {found}{told}"
        return replace(judgement, verdict="crashed", first_difference=None, not_restored=[], explanation=text)

    def _with_its_output(self, judgement: Judgement, reference: Arm, arm: Arm) -> Judgement:
        changed = changed_outputs(reference.workspace.folder, self._base / "repeat", arm.workspace.folder)
        if not changed:
            return judgement
        difference = Difference(self._proof.steps, "files", "; ".join(changed[:5]), ("files",))
        judgement = replace(judgement, first_difference=difference, not_restored=["files"])
        if judgement.verdict == FROM_SCRATCH:
            return judgement
        text = "Every step is the same, and yet what is written in the end is not."
        return replace(judgement, verdict=DIVERGED, explanation=text)
