"""Owns the verdict over a proof: what all of its trials have shown together. Runs nothing."""

from collections.abc import Sequence

from samestep.proof.result import DIVERGED, PROVED, UNVERIFIED, Proof, TrialResult
from samestep.proof.saves import Save

FROM_SCRATCH, UNSTABLE = "from_scratch", "unstable"


def is_tentative(trial: TrialResult) -> bool:
    """Tell whether the verdict over a trial depends on what the others show: it began at its start again."""
    return trial.verdict == FROM_SCRATCH or (trial.verdict == PROVED and [*trial.resumed_from] == [0])


def reconsider(trials: Sequence[TrialResult], saves: Sequence[Save], steps: int) -> None:
    """Judge trainings that began at their start again by what all trials have shown.

    A large file is a checkpoint if some resume went on from where its kind was written. Where none ever did, and
    nothing is saved between the steps, a start from scratch is a fault although it ends with the same bits.

    Args:
        trials: All trials.
        saves: The saves of the reference.
        steps: How many steps it made.
    """
    places = {at for each in trials for at in each.resumed_from if at}
    kinds = [each.kinds for each in saves if each.completed in places]
    saves_nothing = not places and not any(0 < each.completed < steps for each in saves)
    for each in filter(is_tentative, trials):
        is_checkpoint = any(save.kinds >= kind for save in each.passed_over for kind in kinds)
        if each.verdict == FROM_SCRATCH and places and not is_checkpoint:
            each.verdict = PROVED if each.first_difference is None else DIVERGED
            each.findings, each.explanation = (), "It began at its start again: no checkpoint was complete."
        elif each.verdict == PROVED and saves_nothing:
            each.verdict = FROM_SCRATCH
            each.explanation = "The training begins at its start again: it saves nothing before its end."


def conclude(proof: Proof, control: bool | None) -> None:
    """Give a proof its verdict, and the reason.

    Args:
        proof: What was found; its trials are complete.
        control: Whether a spoiled resume was noticed; None if there was none that could be spoiled.
    """
    verdicts = {each.verdict: each for each in reversed(proof.trials)}
    if UNSTABLE in verdicts:
        proof.reason = verdicts[UNSTABLE].explanation
    elif proof.cause is not None:
        proof.verdict, proof.reason = DIVERGED, proof.cause.explanation
    elif PROVED not in verdicts:
        proof.reason = "No training could be killed at the chosen moments."
    elif control is None or not any(at for each in proof.trials for at in each.resumed_from):
        proof.reason = "No process went on from a checkpoint, so nothing was resumed."
    else:
        proof.control = control
        proof.verdict = PROVED if control else UNVERIFIED
        proof.reason = (
            _same(proof.tolerance)
            if control
            else ("A resume with spoiled parameters was not noticed, so this proof cannot be trusted.")
        )


def _same(tolerance: float) -> str:
    if not tolerance:
        return "Every step after every resume is the same, bit for bit."
    return (
        f"Every step after a resume has the same samples, and losses within {tolerance:g}; nothing else was compared."
    )
