"""Owns `samestep prove`: the proof that a training is the same when it is killed and started again. Changes nothing."""

import shlex
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from samestep.cli import output
from samestep.errors import SamestepError

if TYPE_CHECKING:
    from samestep.proof.arms import Order
    from samestep.proof.proving import Wishes


@click.command(
    "prove",
    short_help="Prove that a training survives kills with the same bits, or name what it loses.",
    context_settings={"allow_interspersed_args": False},  # what follows the command is its own
)
@click.option("--kills", type=click.IntRange(min=1), default=6, show_default=True, help="How many trainings to kill.")
@click.option(
    "--at",
    multiple=True,
    metavar="SPEC",
    help="When to kill: step:N, epoch:N, save:N, save:N.K, saves, end, random.",
)
@click.option("--dir-arg", metavar="OPTION", help="The command's option for its output directory, such as --out.")
@click.option("--resume-cmd", metavar="COMMAND", help="The command that goes on after a kill (the same one).")
@click.option("--steps", type=click.IntRange(min=2), help="End each process after so many optimizer steps.")
@click.option("--every", type=click.IntRange(min=1), help="Note the large parts at every so many steps only (1).")
@click.option("--seed", type=int, help="Seed Python, NumPy and torch when torch is imported.")
@click.option("--leave-out", multiple=True, metavar="PATTERN", help="What the trainings do not see of this directory.")
@click.option(
    "--jobs", type=click.IntRange(min=1), help="How many trainings run at once (2; on a GPU, or of ranks, 1)."
)
@click.option(
    "--tolerance", type=click.FloatRange(0), default=0.0, help="Compare only samples and losses, within this."
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    help="Seconds after which a process that does not end is killed.",
)
@click.option("--keep", type=click.Path(path_type=Path), metavar="DIR", help="A new directory for all that is made.")
@click.option("--html", type=click.Path(path_type=Path), metavar="FILE", help="Write what was found as a page, too.")
@output.json_option
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND …")
def command(command: tuple[str, ...], *, as_json: bool, keep: Path | None, html: Path | None, **options: Any) -> int:
    """Train with COMMAND undisturbed, kill it at several moments, start it again, and compare every step.

    COMMAND is a PyTorch training as it is; it runs in copies of this directory, so nothing here is changed. Where it
    writes elsewhere, {dir} in it stands for a directory of each training's own. Exit status: 0 proved, 1 it is another
    training after a kill, 2 it cannot be proved, 3 unverified: it is not the same twice even when nobody kills it.
    """
    from samestep.proof import telling
    from samestep.proof.page import require_writable
    from samestep.proof.proving import prove
    from samestep.proof.result import STATUS

    if html is not None:
        require_writable(html)
    order = _order(command, options)
    try:
        with _folder(keep) as base:
            found = prove(order, base, _wishes(options, is_quiet=as_json))
    except KeyboardInterrupt:
        output.warn("Ended; nothing is left running.")
        raise
    described = found.as_json()
    if as_json:
        output.print_json(described)
    else:
        for line in telling.lines(described):
            output.say(line)
    if html is not None:
        _write_page(html, described)
    return STATUS[found.verdict]


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    """Give the folder for the trainings, which goes at the end unless it was given."""
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="samestep-prove-", ignore_cleanup_errors=True) as base:
            yield Path(base)
        return
    if keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        raise SamestepError(
            "The directory for the proof is not empty, and nothing in it is overwritten.",
            path=keep,
            hint="Give a new one: samestep prove --keep DIR -- …",
        )
    yield keep


def _order(command: Sequence[str], options: Mapping[str, Any]) -> "Order":
    from samestep.proof.arms import Order
    from samestep.proof.recording import Settings

    return Order(
        command,
        Path.cwd(),
        _resume(options["resume_cmd"]),
        options["dir_arg"],
        Settings(options["steps"], options["every"], options["seed"]),
        options["leave_out"],
        options["timeout"],
    )


def _resume(text: str | None) -> list[str] | None:
    """Split the command that goes on after a kill into its words."""
    if text is None:
        return None
    try:
        words = shlex.split(text)
    except ValueError as error:  # a quotation without an end
        words, found = [], str(error)
    else:
        found = "no word"
    if not words:
        raise SamestepError(
            "The command of --resume-cmd is not understood.",
            path=text,
            expected="a command as in a shell",
            found=found,
            hint="Such as: --resume-cmd 'python train.py --resume'",
        )
    return words


def _wishes(options: Mapping[str, Any], *, is_quiet: bool) -> "Wishes":
    from samestep.proof.proving import Wishes

    say = (lambda _: None) if is_quiet else output.say
    return Wishes(options["kills"], options["at"], options["jobs"], options["tolerance"], say=say)


def _write_page(path: Path, described: Mapping[str, Any]) -> None:
    """Write the page behind the result: a disk that is full by now costs the page, not the proof."""
    from samestep.proof.page import write_page

    try:
        write_page(path, described)
    except OSError as error:
        output.warn(f"samestep: The page was not written: {error.strerror or error}: {path}")
