"""Owns which differences between a resumed training and its reference count. Gives no verdict.

Names come and go, a loaded checkpoint lies about, steps that a scaler skips are in no ledger, and nobody may draw from
a generator: none of that makes another training.
"""

import json
import math
from collections.abc import Collection, Sequence
from dataclasses import replace

from samestep.proof.comparing import differing
from samestep.proof.ledger import PASSING, SCHEDULER, Step
from samestep.proof.lives import Life, Reference

HARMLESS = frozenset({"variables", "random.python", "random.numpy", "random.torch", "random.cuda"})
"""Parts whose difference alone is none, as long as nothing follows from it."""

_WINDOW = {"batch", "inputs", "loss", "gradients"}


def within(reference: Reference, life: Life, at: int) -> tuple[Reference, Life]:
    """With a tolerance, leave of both only what counts: samples, and losses, which are the same if they are near.

    Args:
        reference: The undisturbed training.
        life: A process that is compared with it.
        at: The reference's step that its first one corresponds to.
    """
    if not reference.tolerance:
        return reference, life
    seen = replace(reference, steps=[_seen(each, each) for each in reference.steps], end=None)
    pairs = zip(life.steps, reference.steps[at:], strict=False)
    steps = [_seen(step, there if are_near(step, there, reference.tolerance) else step) for step, there in pairs]
    return seen, Life(steps + [_seen(each, each) for each in life.steps[len(steps) :]], None, life.made)


def are_near(left: Step, right: Step, tolerance: float) -> bool:
    """Tell whether the losses of two steps differ by so much at most: absolutely or, above 1, relatively."""
    here, there = left.notes.get("loss", []), right.notes.get("loss", [])
    return len(here) == len(there) and all(_is_near(*pair, tolerance) for pair in zip(here, there, strict=True))


def _is_near(left: float | str, right: float | str, tolerance: float) -> bool:
    if isinstance(left, str) or isinstance(right, str):  # "nan", "inf"
        return left == right
    return math.isclose(left, right, rel_tol=tolerance, abs_tol=tolerance)


def _seen(step: Step, loss_of: Step) -> Step:
    parts = {"batch": json.dumps(step.notes["indices"])} if "indices" in step.notes else {}
    parts |= {"loss": json.dumps(loss_of.notes["loss"])} if "loss" in loss_of.notes else {}
    return Step(step.number, step.optimizer, parts)


def differences(reference: Reference, life: Life, at: int) -> list[tuple[int, list[str]]]:
    """Compare a process with the reference from its step `at` on.

    Returns:
        For each step of the process that differs its number and the parts, causes first; the end bears the number
        behind the last step.
    """
    ignored = reference.masked | reference.unused
    pairs = zip(reference.steps[at:], life.steps, strict=False)
    found = [(number, counted(reference, at + number, *pair, ignored)) for number, pair in enumerate(pairs)]
    if at + len(life.steps) == len(reference.steps):
        found.append((len(life.steps), _differing_ends(reference.end, life.end)))
    return [(number, parts) for number, parts in found if parts]


def counted(reference: Reference, at: int, expected: Step, found: Step, ignored: Collection[str]) -> list[str]:
    """Name the parts in which a step differs from the reference's step `at`, without those that say nothing."""
    parts = [
        part
        for part in differing(expected, found, ignored)
        if part not in PASSING or lost(part, reference, at, expected, found)
    ]
    if _has_no_consequence(expected, found):  # a forward before the first step, a path in a batch
        parts = [part for part in parts if part not in {"batch", "inputs"}]
    if not is_half_window(expected, found):
        return parts
    # What came before is lost: gradients; or nothing, where those steps were skipped, as a GradScaler does.
    others = [part for part in parts if part not in _WINDOW]
    return ["gradients", *others] if "gradients" in parts else others


def _has_no_consequence(expected: Step, found: Step) -> bool:
    """Tell whether two steps have come to the same losses and gradients, whatever they were given."""
    return "gradients" in expected.parts and all(
        expected.parts.get(part) == found.parts.get(part) for part in ("loss", "gradients")
    )


def lost(part: str, reference: Reference, at: int, expected: Step, found: Step) -> list[str]:
    """Name variables or copies that changed in the reference until this step, and stand otherwise after the resume.

    What has never changed there is no state: settings, the checkpoint that a process has loaded.

    Args:
        part: "variables" or "copies".
        reference: The undisturbed training.
        at: The number of its step.
        expected: Its step.
        found: The step of the resumed process.
    """
    passing = ("tensor ", "array ") if expected.parts.get("batch") != found.parts.get("batch") else ()
    start = reference.steps[0].tensors.get(part, {})
    there = found.tensors.get(part, {})
    return [
        name
        for name, digest in expected.tensors.get(part, {}).items()
        if there.get(name, digest) != digest
        and not digest.startswith(passing)  # a batch, or what was made of it
        and (at == 0 or start.get(name, digest) != digest)
        and (part != "variables" or reference.steady is None or name in reference.steady)
    ]


def is_half_window(expected: Step, found: Step) -> bool:
    """Tell whether a step was made after the last batches of the expected ones only."""
    for note, part in (("batches", "batch"), ("loss", None)):
        here, there = expected.notes.get(note), found.notes.get(note) or [found.parts.get(part or "")]
        if here is not None:
            return len(there) < len(here) and here[len(here) - len(there) :] == there
    return False


def is_of_scheduler(step: Step, names: Sequence[str]) -> bool:
    """Tell whether lost variables are a scheduler's, which will set another rate in a later step."""
    return any(step.tensors.get("variables", {}).get(name, "").startswith(SCHEDULER) for name in names)


def _differing_ends(expected: Step | None, found: Step | None) -> list[str]:
    """Compare what two processes left at their ends, as far as it was still there."""
    if expected is None or found is None:
        return []
    known = {"parameters", "buffers", "copies"} & {*expected.parts} & {*found.parts}
    return [part for part in differing(expected, found) if part in known]
