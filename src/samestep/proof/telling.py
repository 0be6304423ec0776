"""Owns the words in which a proof is told: the headline, the lines, the names of the verdicts. Prints nothing.

It knows a proof by its JSON alone, so that one which was kept in a file is told as the one just made.
"""

from collections.abc import Iterator, Mapping
from typing import Any

VERDICTS = {
    "proved": "the same",
    "diverged": "diverged",
    "weights_not_restored": "weights not restored",
    "from_scratch": "began at its start again",
    "older_checkpoint": "went on from an older checkpoint",
    "skipped_steps": "left steps out",
    "repeated_steps": "made too many steps",
    "crashed": "failed when it was started again",
    "unstable": "differed before it was killed",
    "not_killed": "ended before it was killed",
}
"""What each verdict over a trial says."""

SOUND = frozenset({"proved", "not_killed"})
"""Verdicts over a trial that are no fault."""


def kills_of(trial: Mapping[str, Any]) -> str:
    """Say when a trial was killed, or that it was only started again."""
    first, *others = [str(each["words"]) for each in [trial["kill"], *trial["kill"].get("then", [])]]
    return f"{_deed(trial)} {first}" + "".join(f", and again {each} (counted from the resume)" for each in others)


def row(trial: Mapping[str, Any]) -> str:
    """Tell a trial in a line: what was done, where it went on, what came of it."""
    went_on = f", went on from step {trial['resumes'][-1]}" if trial["resumes"] else ""
    first = trial["first_difference"]
    return f"{kills_of(trial)}{went_on}: {VERDICTS[trial['verdict']]}" + (f" ({first['part']})" if first else "")


def _deed(trial: Mapping[str, Any]) -> str:
    return "started again" if trial["kill"]["kind"] == "end" else "killed"


def made_a_step(trial: Mapping[str, Any]) -> bool:
    """Tell whether a resumed process made a step: without one nobody knows what it had restored."""
    return bool(trial["resumes"] or trial["restored"] or trial["not_restored"])


def cause_of(proof: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Give the first trial that failed; None if none has."""
    return next((each for each in proof["trials"] if each["verdict"] not in SOUND), None)


def headline(proof: Mapping[str, Any]) -> str:
    """Say the verdict in a sentence."""
    return {"proved": _proved, "diverged": _diverged}.get(proof["verdict"], _unverified)(proof)


def _proved(proof: Mapping[str, Any]) -> str:
    sound = [each for each in proof["trials"] if each["verdict"] == "proved"]
    killed = sum(each["kill"]["kind"] != "end" for each in sound)
    deed = f"killed {times(killed)}" if killed else f"started again {times(len(sound))}"
    within = proof.get("tolerance", 0)
    same = (
        f"have the same samples, and losses within {within:g}; nothing else was compared."
        if within
        else "are the same bit for bit."
    )
    compared = sum(each["compared"] for each in sound)
    return f"Proved{f' within {within:g}' if within else ''}: {deed}, and {compared} steps after it {same}"


def _diverged(proof: Mapping[str, Any]) -> str:
    if {each["verdict"] for each in proof["trials"]} - SOUND == {"older_checkpoint"}:
        return "Diverged: the same training, but steps are done twice."
    return "Diverged: after a kill this is another training."


def _unverified(_: Mapping[str, Any]) -> str:
    return "Unverified: there is no proof."


def times(count: int) -> str:
    """Say how often.

    Example:
        >>> times(1), times(6)
        ('once', '6 times')
    """
    return "once" if count == 1 else f"{count} times"


def moment(step: int, steps: int) -> str:
    """Say at which step something differs.

    Args:
        step: The step, from 0.
        steps: How many there are.

    Example:
        >>> moment(5, 20), moment(20, 20)
        ('step 5', 'the end')
    """
    return "the end" if step >= steps else f"step {step}"


def lines(proof: Mapping[str, Any]) -> list[str]:
    """Tell a proof in lines: the verdict and, of the first trial that failed, what it lost and how to repair it."""
    return [*_before(proof), *_verdict(proof), f"  ({proof['seconds']:.0f} s)"]


def told(proof: Mapping[str, Any]) -> list[str]:
    """Tell the verdict, and its cause, without what is said of a proof besides."""
    return [*_verdict(proof)]


def _before(proof: Mapping[str, Any]) -> Iterator[str]:
    if proof["masked"]:
        yield f"  differs even without a kill, and nothing follows from it: {', '.join(proof['masked'])}"
    for note in proof["notes"]:
        yield f"  {note}"
    yield ""


def _verdict(proof: Mapping[str, Any]) -> Iterator[str]:
    yield f"{headline(proof)} {proof['reason'] if proof['verdict'] != 'proved' else ''}".rstrip()
    repeat = proof["repeat"]
    if repeat is not None:
        yield _with_detail(
            f"  step {proof['repeat']['step']}: {proof['repeat']['part']} differs", proof["repeat"]["detail"]
        )
    cause = cause_of(proof)
    if cause is not None:
        yield from _cause(cause, proof["steps"], has_ranks=proof["ranks"] > 1)


def _cause(trial: Mapping[str, Any], steps: int, *, has_ranks: bool) -> Iterator[str]:
    first = trial["first_difference"]
    yield ""
    yield f"  {kills_of(trial)}"
    if trial["resumes"]:
        yield f"  went on from   step {trial['resumes'][-1]}"
    if first is not None:
        rank = f" of rank {first['rank']}" if has_ranks else ""
        yield f"  differs from   {moment(first['step'], steps)}{rank} on: {first['part']} first"
    if made_a_step(trial):
        yield f"  restored       {', '.join(trial['restored']) or 'nothing'}"
        yield f"  not restored   {', '.join(trial['not_restored']) or 'nothing'}"
    for finding in trial["findings"]:
        yield ""
        yield _with_detail(f"  {finding['part']}", finding["what"])
        if finding["repair"]:
            yield f"    PyTorch:  {finding['repair']}"
        if finding["with_samestep"]:
            yield f"    samestep: {finding['with_samestep']}"


def _with_detail(text: str, detail: str) -> str:
    return f"{text}: {detail}" if detail else text
