"""Owns what all verbs share: finding them, exit statuses, and errors without tracebacks. Knows no verb's work.

Exit statuses: 0 done (equal, sound); 1 the answer is no (differs, corrupt); 2 wrong usage, or it cannot be done.
"""

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from samestep.cli import output
from samestep.errors import CorruptCheckpoint, SamestepError

VERBS = {
    "demo": "samestep.cli.demo",
    "prove": "samestep.cli.prove",
    "ls": "samestep.cli.ls",
    "inspect": "samestep.cli.inspect",
    "diff": "samestep.cli.diff",
    "verify": "samestep.cli.verify",
    "prune": "samestep.cli.prune",
    "export": "samestep.cli.export",
    "record": "samestep.cli.record",
    "compare": "samestep.cli.compare",
}
"""The module of each verb, in the order of the help; it has a click command named `command`."""


class Verbs(click.Group):
    """The verbs, each imported only when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 — click's signature
        """Name the verbs in the order of the help."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 — as above
        """Import the verb's module and give its command; None when there is no such verb."""
        if cmd_name not in VERBS:
            return None
        command: click.Command = importlib.import_module(VERBS[cmd_name]).command
        return command


def _print_version(context: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if wanted:
        from samestep import __version__

        output.say(f"samestep {__version__}")
        context.exit()


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--version", is_flag=True, callback=_print_version, expose_value=False, is_eager=True, help="Show it.")
def group() -> None:
    """Make any PyTorch training bit-exactly resumable, and prove it.

    RUN is a run's directory. CKPT is a checkpoint's directory, or RUN for its latest one, RUN@400 for the one
    of step 400, RUN@best:val_acc or RUN@best:val_loss:min for the best by a score, RUN@TAG for a tag.
    """


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; whatever goes wrong becomes one message (one JSON object with `--json`) and a status.

    Args:
        arguments: What follows `samestep`; None takes this process's own.

    Returns:
        The exit status.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr] # names may be no text of this locale
    try:
        status = _answer(words or ["--help"])
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has gone (`samestep ls runs/a | head -1`): be silent, also when Python flushes at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return status


def _answer(words: list[str]) -> int:
    try:
        status = _invoke(words)
    except BrokenPipeError:
        raise
    except (KeyboardInterrupt, click.Abort):
        return 130
    except Exception as error:  # noqa: BLE001 — the outermost place
        ours = words[: words.index("--")] if "--" in words else words  # behind it, it is the command's own
        return _fail(error, as_json="--json" in ours)
    return status if isinstance(status, int) else 0


def _invoke(words: list[str]) -> object:
    """Parse and run; without click's own `main`, for which a reader that goes away is status 1."""
    try:
        with group.make_context("samestep", words) as context:
            return group.invoke(context)
    except click.exceptions.Exit as end:
        return end.exit_code


def _fail(error: Exception, *, as_json: bool) -> int:
    status, described = _describe(error)
    if as_json:
        output.print_json({"error": described})
    elif described["kind"] == "Defect":
        import traceback  # takes time that nothing else needs

        output.warn(
            *traceback.format_exc().splitlines(),
            "",
            "This is a defect of samestep; please report it with the text above.",
        )
    else:
        output.complain(described)
    return status


def _describe(error: Exception) -> tuple[int, dict[str, Any]]:
    """Give the exit status, and the error as `--json` shows it."""
    described: dict[str, Any] = dict.fromkeys(("kind", "message", "where", "expected", "found", "hint"))
    if isinstance(error, SamestepError):
        described |= {"kind": type(error).__name__, "message": error.message, "where": error.path}
        described |= {"expected": error.expected, "found": error.found, "hint": error.hint}
    elif isinstance(error, click.UsageError):
        command = error.ctx.command_path if error.ctx else "samestep"
        described |= {"kind": "Usage", "message": error.format_message(), "hint": f"See '{command} --help'."}
    elif isinstance(error, OSError):
        described |= {"kind": type(error).__name__, "message": f"The system refused: {error.strerror or error}."}
        described["where"] = str(error.filename) if error.filename is not None else None
    else:
        described |= {"kind": "Defect", "message": f"{type(error).__name__}: {error}"}
    return (1 if isinstance(error, CorruptCheckpoint) else 2), described
