"""Owns how verbs speak: results on standard output, messages on standard error. Decides nothing.

Names in a checkpoint come from others: characters that could steer a terminal are shown as escapes.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from samestep.errors import in_lines
from samestep.wording import printable

if TYPE_CHECKING:
    from rich.console import Console

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object, also for an error, on standard output."
)
"""The option that every verb has."""


def print_json(value: Mapping[str, Any]) -> None:
    """Print one JSON object in one line; ASCII, so that no locale can break it."""
    sys.stdout.write(json.dumps(value, allow_nan=False) + "\n")


def say(text: str) -> None:
    """Print a line of a result."""
    sys.stdout.write(printable(text) + "\n")


def warn(*lines: str) -> None:
    """Print a message on standard error."""
    for line in lines:
        _console(error=True).print(printable(line), markup=False, highlight=False, emoji=False, soft_wrap=True)


def complain(described: Mapping[str, Any]) -> None:
    """Print an error on standard error: what happened, where, what was expected and found, what to do."""
    _console(error=True).print("samestep:", style="bold red", end=" ")
    warn(*(line for part in in_lines(described) for line in part.split("\n")))


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table; a column whose name begins with ">" is aligned to the right."""
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        right = column.startswith(">")
        drawn.add_column(column.removeprefix(">"), justify="right" if right else "left", overflow="fold")
    for row in rows:
        drawn.add_row(*(Text("" if cell is None else printable(str(cell))) for cell in row))
    _console(error=False).print(drawn)


def size(count: int) -> str:
    """Write a number of bytes as people read it.

    Example:
        >>> size(999), size(1_234_567)
        ('999 B', '1.23 MB')
    """
    if count < 1000:  # noqa: PLR2004 — the definition of kilo
        return f"{count} B"
    value, unit = float(count), ""
    for unit in ("kB", "MB", "GB", "TB", "PB"):  # noqa: B007 — the last one is used below
        value /= 1000
        if value < 999.5:  # noqa: PLR2004 — would be shown as 1000
            break
    return f"{value:.3g} {unit}"


def scores(metrics: Mapping[str, object]) -> str:
    """Write scores in one line."""
    shown = ((name, f"{value:.6g}" if isinstance(value, float) else value) for name, value in metrics.items())
    return ", ".join(f"{name} {value}" for name, value in shown)


def _console(*, error: bool) -> "Console":
    from rich.console import Console

    stream = sys.stderr if error else sys.stdout
    # Where nobody looks, in a pipe or file, lines are never folded: they are read by other programs.
    return Console(file=stream, width=None if stream.isatty() else 10_000)
