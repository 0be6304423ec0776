"""Owns `samestep ls`: the checkpoints of a run, the damaged ones included. Changes nothing."""

import signal
import socket
from pathlib import Path
from typing import Any

import click

from samestep.cli import output, places
from samestep.store.attempts import read_attempts
from samestep.store.listing import COMPLETE, Listed, count_drafts, list_checkpoints


@click.command("ls", short_help="List the checkpoints of a run.")
@click.argument("run")
@output.json_option
def command(run: str, *, as_json: bool) -> None:
    """List the checkpoints of RUN, oldest first: step, epoch, size, scores, tags, and what is wrong with one."""
    place = places.find_run(run)
    listed = list_checkpoints(place.checkpoints)
    drafts = count_drafts(place.checkpoints)
    if as_json:
        output.print_json(
            {
                "run": str(place.directory),
                "checkpoints": [_as_json(each) for each in listed],
                "unfinished": drafts,
                "attempts": read_attempts(place.directory),
            }
        )
        return
    _print(listed)
    for attempt in read_attempts(place.directory)[-1:]:
        output.say(_attempt(attempt))
    if not listed:
        output.warn(f"{place.directory} holds no checkpoint.")
    if drafts:
        output.warn(f"{drafts} unfinished saves: one is going on, or was killed; the next save tidies up.")


def _attempt(attempt: dict[str, Any]) -> str:
    """Say in one line what the last process did, or does."""
    how = _named(attempt.get("how")) or ("running" if _is_alive(attempt) else "killed")
    begun = f"began at {attempt.get('started')} from {attempt.get('resumed_from') or 'the start'}"
    steps = "" if attempt.get("steps") is None else f" at step {attempt['steps']}"
    return f"attempt {attempt['attempt']}, process {attempt.get('pid')} on {attempt.get('host')}, {begun}: {how}{steps}"


def _named(how: Any) -> str:
    """Give how a process ended, with the name of its signal: "signal 15" says nothing at 3 a.m."""
    kind, _, number = str(how or "").partition(" ")
    if kind == "signal" and number.isdecimal() and int(number) in set(signal.Signals):
        return f"signal {number} ({signal.Signals(int(number)).name})"
    return str(how or "")


def _is_alive(attempt: dict[str, Any]) -> bool:
    """Tell whether the process is there: on another host only its lock would know, so it counts as running."""
    return attempt.get("host") != socket.gethostname() or Path(f"/proc/{attempt.get('pid')}").exists()


def _as_json(each: Listed) -> dict[str, Any]:
    return {
        "name": each.path.name,
        "path": str(each.path),
        "step": each.step,
        "epoch": each.epoch,
        "bytes": each.bytes,
        "metrics": dict(each.metrics),
        "tags": list(each.tags),
        "created": each.created,
        "status": each.status,
        "problem": each.problem,
    }


def _print(listed: list[Listed]) -> None:
    if not listed:
        return
    rows = [
        (each.step, each.epoch, output.size(each.bytes), output.scores(each.metrics), _remarks(each), each.created)
        for each in listed
    ]
    output.table([">step", ">epoch", ">size", "scores", "tags", "written"], rows)
    for each in listed:
        if each.status != COMPLETE:
            output.warn(f"{each.path}: {each.status}. {each.problem}")


def _remarks(each: Listed) -> str:
    return ", ".join([*each.tags, *([] if each.status == COMPLETE else [each.status.upper()])])
