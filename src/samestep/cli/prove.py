"""Owns `samestep prove`: the proof that a training is the same when it is killed and started again. Changes nothing."""

import shlex
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from samestep.cli import output
from samestep.errors import SamestepError

if TYPE_CHECKING:
    from samestep.proof.arms import Order
    from samestep.proof.proving import Wishes
    from samestep.proof.result import Proof, TrialResult


@click.command(
    "prove",
    short_help="Prove that a training survives kills with the same bits, or name what it loses.",
    context_settings={"ignore_unknown_options": True},
)
@click.option("--kills", type=click.IntRange(min=1), default=6, show_default=True, help="How many trainings to kill.")
@click.option("--at", multiple=True, metavar="SPEC", help="When to kill: step:N, epoch:N, save:N, saves, random.")
@click.option("--dir-arg", metavar="OPTION", help="The command's option for its output directory, such as --out.")
@click.option("--resume-cmd", metavar="COMMAND", help="The command that goes on after a kill (the same one).")
@click.option("--steps", type=click.IntRange(min=2), help="End each process after so many optimizer steps.")
@click.option("--every", type=click.IntRange(min=1), help="Note the large parts at every so many steps only (1).")
@click.option("--seed", type=int, help="Seed Python, NumPy and torch when torch is imported.")
@click.option("--leave-out", multiple=True, metavar="PATTERN", help="What the trainings do not see of this directory.")
@click.option("--jobs", type=click.IntRange(min=1), help="How many trainings run at once (2; on a GPU 1).")
@click.option("--timeout", type=float, help="Seconds after which a process that does not end is killed.")
@click.option("--keep", type=click.Path(path_type=Path), metavar="DIR", help="A new directory for all that is made.")
@output.json_option
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND …")
def command(command: tuple[str, ...], *, as_json: bool, keep: Path | None, **options: Any) -> int:
    """Train with COMMAND undisturbed, kill it at several moments, start it again, and compare every step.

    COMMAND is a PyTorch training as it is; it runs in copies of this directory, so nothing here is changed. Where it
    writes elsewhere, {dir} in it stands for a directory of each training's own. Exit status: 0 proved, 1 it is another
    training after a kill, 2 it cannot be proved, 3 unverified: it is not the same twice even when nobody kills it.
    """
    from samestep.proof.proving import prove
    from samestep.proof.result import STATUS

    with _folder(keep) as base:
        found = prove(_order(command, options), Path(base), _wishes(options, is_quiet=as_json))
    if as_json:
        output.print_json(found.as_json())
    else:
        _print(found)
    return STATUS[found.verdict]


def _folder(keep: Path | None) -> AbstractContextManager[str | Path]:
    """Give the folder for the trainings, which goes at the end unless it was given."""
    if keep is None:
        return tempfile.TemporaryDirectory(prefix="samestep-prove-", ignore_cleanup_errors=True)
    if keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        raise SamestepError(
            "The directory for the proof is not empty, and nothing in it is overwritten.",
            path=keep,
            hint="Give a new one: samestep prove --keep DIR -- …",
        )
    return nullcontext(keep)


def _order(command: Sequence[str], options: Mapping[str, Any]) -> "Order":
    from samestep.proof.arms import Order
    from samestep.proof.recording import Settings

    resume = options["resume_cmd"]
    return Order(
        command,
        Path.cwd(),
        None if resume is None else shlex.split(resume),
        options["dir_arg"],
        Settings(options["steps"], options["every"], options["seed"]),
        options["leave_out"],
        options["timeout"],
    )


def _wishes(options: Mapping[str, Any], *, is_quiet: bool) -> "Wishes":
    from samestep.proof.proving import Wishes

    return Wishes(options["kills"], options["at"], options["jobs"], say=(lambda _: None) if is_quiet else output.say)


def _print(found: "Proof") -> None:
    """Print the verdict and, of the first trial that failed, what it lost."""
    if found.masked:
        output.say(f"  differs even without a kill, and nothing follows from it: {', '.join(found.masked)}")
    for note in found.notes:
        output.say(f"  {note}")
    compared = sum(each.compared for each in found.trials)
    headline = {
        "proved": f"Proved: killed {len(found.trials)} times, and {compared} steps after it are the same bit for bit.",
        "diverged": "Diverged: after a kill this is another training.",
        "unverified": "Unverified.",
    }[found.verdict]
    output.say("")
    output.say(f"{headline} {found.reason if found.verdict != 'proved' else ''}".rstrip())
    if found.repeat is not None:
        output.say(f"  step {found.repeat.step}: {found.repeat.part} differs: {found.repeat.detail}")
    if found.cause is not None:
        _print_cause(found.cause)
    output.say(f"  ({found.seconds:.0f} s)")


def _print_cause(cause: "TrialResult") -> None:
    kills = ", and again ".join(map(str, cause.kills))
    output.say("")
    output.say(f"  killed         {kills}")
    if cause.resumed_from:
        output.say(f"  went on from   step {cause.resumed_from[-1]}")
    if cause.first_difference is not None:
        rank = f" of rank {cause.rank}" if cause.rank else ""
        output.say(f"  differs from   step {cause.first_difference.step}{rank} on: {cause.first_difference.part} first")
    output.say(f"  restored       {', '.join(cause.restored) or 'nothing'}")
    output.say(f"  not restored   {', '.join(cause.not_restored) or 'nothing'}")
    for finding in cause.findings:
        output.say("")
        output.say(f"  {finding.part}: {finding.what}")
        output.say(f"    PyTorch:  {finding.repair}")
        output.say(f"    samestep: {finding.with_samestep}")
