"""Owns the sentences about what a resume has lost: how each part stands, and how to repair it. Judges nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from samestep.proof.comparing import shortened
from samestep.proof.judging import Judgement
from samestep.proof.ledger import Step
from samestep.proof.lives import Reference
from samestep.proof.material import is_half_window

_REPAIRS: Mapping[str, tuple[str, str]] = {
    "parameters": (
        "save model.state_dict() and load it before the first step (strict=True, no other dtype)",
        "run.track(model=model)",
    ),
    "buffers": (
        "save the whole state_dict(), not parameters() alone; register what the forward changes as a buffer",
        "run.track(model=model)",
    ),
    "optimizer": (
        "save optimizer.state_dict() and load it behind the model's, with the parameters in the same order",
        "run.track(optimizer=optimizer)",
    ),
    "learning_rate": (
        "save scheduler.state_dict(), build the scheduler before loading, and load the optimizer's state behind it",
        "run.track(scheduler=scheduler)",
    ),
    "scaler": ("save scaler.state_dict() and load it", "run.track(scaler=scaler)"),
    "copies": (
        "save the averaged weights with their counter, and load both",
        "run.track(ema=ema), or keep them in a module with state",
    ),
    "batch": (
        "save the position in the epoch and the generators of order and augmentation, and restore them before iter()",
        "samestep.DataLoader(…), and run.track(loader=loader)",
    ),
    "random.python": ("save random.getstate(), and set it right before the next step", "for epoch in run.epochs(n)"),
    "random.numpy": (
        "save numpy.random.get_state(), and set it right before the next step",
        "for epoch in run.epochs(n)",
    ),
    "random.torch": (
        "save torch.get_rng_state(), and set it behind everything else that draws: building, iter(), the first fetch",
        "for epoch in run.epochs(n)",
    ),
    "random.cuda": (
        "save torch.cuda.get_rng_state_all(), and set it right before the next step",
        "for epoch in run.epochs(n)",
    ),
    "variables": ("save these values with the checkpoint, and set them when it is loaded", "run.state.best = …"),
    "gradients": (
        "save between two windows of accumulation only, or save the gradients",
        "call run.step() once a window: it saves there only",
    ),
    "inputs": ("save what the loop draws from between loader and model", "run.track(…) its generators"),
    "loss": ("save what the loss is made with besides the model: weights, counters, schedules", "run.state.weight = …"),
    "steps": ("save the counters that end the training, and set them when it is loaded", "for epoch in run.epochs(n)"),
    "files": ("save the values that decide what is written, and set them when it is loaded", "run.state.best = …"),
}


_CURES: Mapping[str, tuple[str, str]] = {
    "from_scratch": (
        "look for the newest checkpoint at the start, and load it; write each under another name, rename it at last",
        "samestep.Run(directory): the same command goes on",
    ),
    "older_checkpoint": (
        "choose the checkpoint of the highest step, as a number: neither the last by name nor the best by score",
        "samestep.Run(directory): it goes on from the newest",
    ),
    "crashed": (
        "write each checkpoint under another name, rename it (os.replace) when it is whole, and keep the one before it",
        "samestep.Run(directory): a save that was cut short is never seen",
    ),
}
"""How to repair what is no lost part."""


@dataclass(frozen=True)
class Finding:
    """What is said of one part.

    Args:
        part: The part.
        what: How it stands after the resume.
        repair: What to do in plain PyTorch.
        with_samestep: What to do with samestep.
    """

    part: str
    what: str
    repair: str
    with_samestep: str


def explain(reference: Reference, judgement: Judgement) -> list[Finding]:
    """Say of each part that was lost how it stands, and how to repair it; the cause first.

    Args:
        reference: The undisturbed training.
        judgement: The verdict over a trial.
    """
    difference = judgement.first_difference
    if judgement.verdict in _CURES:
        return [Finding("steps", judgement.explanation, *_CURES[judgement.verdict])]
    if difference is None:
        return []
    parts = [difference.part, *(part for part in judgement.not_restored if part != difference.part)]
    parts += ["variables"] if judgement.lost and "variables" not in parts else []
    number = difference.step - judgement.at
    return [
        Finding(part, _what(part, reference, judgement, number if part == difference.part else 0), *_REPAIRS[part])
        for part in parts
    ]


def _what(part: str, reference: Reference, judgement: Judgement, number: int) -> str:
    if part == "variables":
        return f"other than without the kill: {shortened(judgement.lost)}"
    at = judgement.at + number
    if part in {"steps", "files"} or number >= len(judgement.found) or at >= len(reference.steps):
        return judgement.first_difference.detail if judgement.first_difference else ""
    expected, found = reference.steps[at], judgement.found[number]
    if part == "batch":
        return _batches(reference.steps, at, expected, found)
    if part == "gradients" and is_half_window(expected, found):
        made, wanted = (len(each.notes.get("batches", [0])) for each in (found, expected))
        return f"made of {made} of {wanted} batches: what was accumulated before the save is lost"
    if part in {"inputs", "loss", "gradients"}:
        return "other, although nothing before it differs"
    return _stands(part, reference.steps, at, expected, found)


def _stands(part: str, steps: Sequence[Step], at: int, expected: Step, found: Step) -> str:
    """Say where the reference has the value that was found: what stands as at the start was never restored."""
    digest = found.parts.get(part)
    if part == "learning_rate" and digest == expected.parts.get(part):
        return "still right, but its scheduler is not where it was: the next change comes too late, or is another"
    if digest is None:
        return "missing: nothing of it was restored"
    same = [number for number, each in enumerate(steps) if each.parts.get(part) == digest]
    if at - 1 in same and part == "learning_rate":
        return f"as at step {at - 1}, before it was changed"
    if 0 in same:
        return "as at the start of the training: not restored"
    if same:
        nearest = min(same, key=lambda number: abs(number - at))
        return f"as at step {nearest}, not as at step {at}"
    return _tensors(part, steps[0], expected, found)


def _tensors(part: str, start: Step, expected: Step, found: Step) -> str:
    begun, here, there = (each.tensors.get(part, {}) for each in (start, expected, found))
    names = [name for name, digest in here.items() if there.get(name) != digest]
    if not names:
        return "as at no step of the training"
    text = f"{len(names)} of {len(here)} tensors differ ({shortened(names)})"
    if all(there.get(name) == begun.get(name) for name in names):
        return f"{text}: they stand as at the start"
    moved = [name for name in names if there.get(name) in {here[other] for other in here if other != name}]
    if moved and len(moved) == len([name for name in names if name in there]):
        return f"{text}: they stand at each other's places"
    return f"{text}; their values occur at no step: rounded, or of another moment"


def _batches(steps: Sequence[Step], at: int, expected: Step, found: Step) -> str:
    """Say which batch came instead of the expected one."""
    here, there = expected.notes.get("indices"), found.notes.get("indices")
    if here is not None and here == there:
        return "the same samples with other contents: their augmentation was not restored"
    same = [number for number, each in enumerate(steps) if _is_batch_of(each, found)]
    begins = _epochs(steps)
    epoch = max((begin for begin in begins if begin <= at), default=0)
    if 0 in same:
        return f"other samples: those of step 0, the order of the first epoch again ({_from_to(here, there)})"
    if epoch in same and epoch != at:
        return f"other samples: the epoch begins again at its first batch, that of step {epoch}"
    if same:
        return f"other samples: those of step {same[0]}, not of step {at}"
    return f"other samples, in an order that the training never had ({_from_to(here, there)})"


def _is_batch_of(step: Step, found: Step) -> bool:
    indices = found.notes.get("indices")
    return step.notes.get("indices") == indices if indices else step.parts.get("batch") == found.parts.get("batch")


def _epochs(steps: Sequence[Step]) -> list[int]:
    """Give the steps at which an epoch begins."""
    return [0, *(number for number, each in enumerate(steps) if each.notes.get("epochs"))]


def _from_to(here: object, there: object) -> str:
    return f"{str(there)[:40]} instead of {str(here)[:40]}" if here and there else "which is not known"
