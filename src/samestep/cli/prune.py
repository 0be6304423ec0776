"""Owns `samestep prune`: deleting the checkpoints that a policy lets go. Never deletes the newest sound one."""

from typing import Any

import click

from samestep.cli import output, places
from samestep.errors import CorruptCheckpoint
from samestep.store import folder
from samestep.store.keeping import Shelf
from samestep.store.lock import RunLock
from samestep.store.reading import Checkpoint
from samestep.store.retention import Decision, Keep, decide


@click.command("prune", short_help="Delete the checkpoints that no policy keeps.")
@click.argument("run")
@click.option("--last", default=2, show_default=True, help="How many of the highest steps stay.")
@click.option("--best", default=0, show_default=True, help="How many of the best by --metric stay.")
@click.option("--metric", help="The score that says what is best.")
@click.option("--mode", default="max", show_default=True, type=click.Choice(["max", "min"]), help="Which is better.")
@click.option("--every", type=int, help="Of every so many steps the first checkpoint stays.")
@click.option("--dry-run", is_flag=True, help="Only show what would go and why the others stay.")
@output.json_option
def command(run: str, *, dry_run: bool, as_json: bool, **policy: Any) -> None:
    """Delete checkpoints of RUN that no policy keeps; tagged "pinned", the newest, and damaged ones stay.

    Before anything is deleted, the newest one that stays is verified, byte by byte.
    """
    keep = Keep(**policy)
    place = places.find_run(run)
    if dry_run:
        decision = _decide(keep, place)
    else:
        with RunLock(place.directory):
            decision = _decide(keep, place)
            _delete(place, decision)
    if as_json:
        output.print_json(_as_json(decision, dry_run=dry_run))
    else:
        _print(decision, dry_run=dry_run)


def _decide(keep: Keep, place: places.Place) -> Decision:
    return decide(keep, Shelf(place.checkpoints).entries())


def _delete(place: places.Place, decision: Decision) -> None:
    if not decision.deleted:
        return
    kept = [Checkpoint(place.checkpoints / name) for name in decision.kept]
    if not any(not checkpoint.verify() for checkpoint in reversed(kept)):
        raise CorruptCheckpoint(
            "None of the checkpoints that would stay is sound, so nothing was deleted.",
            path=place.directory,
            found=", ".join(checkpoint.name for checkpoint in kept),
            hint=f"See what is wrong: samestep verify {place.directory}.",
        )
    for name in decision.deleted:
        folder.remove(place.checkpoints / name)


def _as_json(decision: Decision, *, dry_run: bool) -> dict[str, Any]:
    return {
        "dry_run": dry_run,
        "deleted": list(decision.deleted),
        "kept": [{"name": name, "reasons": list(reasons)} for name, reasons in decision.kept.items()],
    }


def _print(decision: Decision, *, dry_run: bool) -> None:
    gone = "would go" if dry_run else "deleted"
    rows = [(name, "stays", ", ".join(reasons)) for name, reasons in decision.kept.items()]
    rows += [(name, gone, "no policy keeps it") for name in decision.deleted]
    output.table(["checkpoint", "", "why"], sorted(rows))
