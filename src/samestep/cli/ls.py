"""Owns `samestep ls`: the checkpoints of a run, the damaged ones included. Changes nothing."""

from typing import Any

import click

from samestep.cli import output, places
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
            {"run": str(place.directory), "checkpoints": [_as_json(each) for each in listed], "unfinished": drafts}
        )
        return
    _print(listed)
    if not listed:
        output.warn(f"{place.directory} holds no checkpoint.")
    if drafts:
        output.warn(f"{drafts} unfinished saves: one is going on, or was killed; the next save tidies up.")


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
