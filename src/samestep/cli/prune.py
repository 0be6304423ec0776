"""Owns `samestep prune`: deleting the checkpoints that a policy lets go. Never deletes the newest sound one."""

from typing import Any

import click

from samestep.cli import output, places
from samestep.errors import CorruptCheckpoint, SamestepError
from samestep.store import folder
from samestep.store.keeping import Shelf
from samestep.store.lock import RunLock
from samestep.store.reading import find_checkpoints
from samestep.store.retention import Decision, Keep, decide


@click.command("prune", short_help="Delete the checkpoints that no policy keeps.")
@click.argument("run")
@click.option("--last", type=int, help="How many of the highest steps stay (2).")
@click.option("--best", type=int, help="How many of the best by --metric stay (0).")
@click.option("--metric", help="The score that says what is best.")
@click.option("--mode", type=click.Choice(["max", "min"]), help="Which score is better (max).")
@click.option("--every", type=int, help="Of every so many steps the first checkpoint stays.")
@click.option("--dry-run", is_flag=True, help="Only show what would go and why the others stay.")
@output.json_option
def command(run: str, *, dry_run: bool, as_json: bool, **policy: Any) -> None:
    """Delete checkpoints of RUN that no policy keeps; tagged "pinned", the newest, and damaged ones stay.

    Without a policy on the command line it is the run's own (its Keep). Before anything is deleted, the newest one
    that stays is verified, byte by byte.
    """
    given = {name: value for name, value in policy.items() if value is not None}
    place = places.find_run(run)
    recorded = _recorded(place)
    keep = Keep(**given) if given else _own_policy(place, recorded)
    if dry_run:
        decision = _decide(keep, place, recorded)
    else:
        with RunLock(place.directory, is_guest=True):
            folder.tidy(place.checkpoints)
            decision = _decide(keep, place, recorded)
            _delete(place, decision)
    if as_json:
        output.print_json(_as_json(decision, dry_run=dry_run))
    else:
        _print(decision, dry_run=dry_run)


def _recorded(place: places.Place) -> dict[str, Any]:
    """Read what the run's newest readable checkpoint says of its policy, and of what must stay beside it."""
    for checkpoint in reversed(find_checkpoints(place.checkpoints)):
        try:
            recorded = checkpoint.environment.get("run")
        except CorruptCheckpoint:
            continue
        return recorded if isinstance(recorded, dict) else {}
    return {}


def _own_policy(place: places.Place, recorded: dict[str, Any]) -> Keep:
    if not isinstance(recorded.get("keep"), dict):
        raise SamestepError(
            "The checkpoints do not say by which policy they are kept.",
            path=place.directory,
            hint="Name one: --last 2, and --best 1 --metric NAME where scores count.",
        )
    try:
        return Keep(**recorded["keep"])
    except (TypeError, SamestepError) as error:
        raise SamestepError(
            "The checkpoints name a policy that this version does not know.",
            path=place.directory,
            found=error,
            hint="Name one: --last 2, and --best 1 --metric NAME where scores count.",
        ) from error


def _decide(keep: Keep, place: places.Place, recorded: dict[str, Any]) -> Decision:
    named = recorded.get("protect")
    protect = [each for each in named if isinstance(each, str)] if isinstance(named, list) else []
    return decide(keep, Shelf(place.checkpoints).entries(), protect=protect)


def _delete(place: places.Place, decision: Decision) -> None:
    if not decision.deleted:
        return
    newest = next((each for each in reversed(find_checkpoints(place.checkpoints)) if not each.verify()), None)
    if newest is None or newest.name in decision.deleted:
        raise CorruptCheckpoint(
            "The newest sound checkpoint is not among those that would stay, so nothing was deleted.",
            path=place.directory,
            found="none is sound" if newest is None else newest.name,
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
