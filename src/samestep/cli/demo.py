"""`samestep demo`: trains a small model on real data, kills it, resumes it, proves it."""

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from samestep.cli import output

if TYPE_CHECKING:
    from samestep.demo.proof import Demonstration


@click.command(short_help="Train, kill, resume and prove a small training: seconds, no arguments.")
@output.json_option
def command(as_json: bool) -> int:
    """Train a small classifier on real digits, kill it in mid-epoch and in a save, resume it, and compare all bits.

    Exit status 0: every step and every final tensor is equal bit by bit; 1: they are not.
    """
    from samestep.demo.proof import demonstrate

    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="samestep-demo-") as folder:
        found = demonstrate(Path(folder), (lambda _: None) if as_json else output.say)
    if as_json:
        output.print_json(_summary(found))
    else:
        _print(found, time.monotonic() - began)
    return 0 if found.verdict == "proved" else 1


def _summary(found: "Demonstration") -> dict[str, Any]:
    return {
        "verdict": found.verdict,
        "steps": found.steps,
        "kills": len(found.kills),
        "killed": found.kills,
        "differences": found.differences,
    }


def _print(found: "Demonstration", seconds: float) -> None:
    last, final = found.resumed[found.steps][-1], found.resumed["final"][-1]["tensors"]
    rows = [(f"step {found.steps}: {part}", digest, last[part]) for part, digest in found.whole[found.steps].items()]
    rows = [(name, str(a), str(b)) for name, a, b in rows if not isinstance(a, dict)]
    rows += [(f"final: {name}", digest, final[name]) for name, digest in found.whole["final"]["tensors"].items()]
    marked = [(name, a, b, "=" if a == b else "DIFFERS") for name, a, b in rows]
    output.table(("", "undisturbed", "killed twice and resumed", ""), marked)
    for difference in found.differences[:10]:
        output.say(f"differs: {difference}")
    output.say(
        f"{found.verdict}: {found.steps} steps (batch, loss, parameters, optimizer state, learning rate, random state)"
        f" and {len(found.whole['final']['tensors'])} final tensors compared, {len(found.kills)} kills,"
        f" {len(found.differences)} differences, {seconds:.0f} s."
    )
