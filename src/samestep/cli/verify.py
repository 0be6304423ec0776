"""Owns `samestep verify`: whether every byte is the one that was written. Changes nothing."""

import contextlib
from typing import Any

import click

from samestep.cli import output, places
from samestep.errors import NoCheckpoint, SamestepError
from samestep.store import folder
from samestep.store.manifest import MANIFEST_FILE
from samestep.store.reading import Checkpoint
from samestep.store.verifying import Problem


@click.command("verify", short_help="Check every byte of a checkpoint or run.")
@click.argument("target", metavar="RUN|CKPT")
@output.json_option
def command(target: str, *, as_json: bool) -> int:
    """Read every byte of a checkpoint, or of all checkpoints of a run, and compare all digests.

    Ends with 0 when all are sound, 1 when one is not. What a resume has set aside already is not read again.
    """
    results = _results(_checkpoints(target))
    while not results:  # a running training has deleted all that were listed, and saved others
        results = _results(_checkpoints(target))
    sound = not any(problems for _, problems in results)
    if as_json:
        output.print_json({"ok": sound, "checkpoints": [_as_json(*result) for result in results]})
    else:
        _print(results)
    return 0 if sound else 1


def _checkpoints(target: str) -> list[Checkpoint]:
    try:
        place = places.find_run(target)
    except SamestepError:
        return [places.find_checkpoint(target)]
    found = [Checkpoint(path) for path in folder.list_folders(place.checkpoints)]
    if not found:
        raise NoCheckpoint("There is no checkpoint to verify.", path=place.directory)
    return found


def _results(checkpoints: list[Checkpoint]) -> list[tuple[Checkpoint, list[Problem]]]:
    """Verify them; those that a running training has deleted meanwhile are left out."""
    results = []
    for checkpoint in checkpoints:
        with contextlib.suppress(NoCheckpoint):
            results.append((checkpoint, _problems(checkpoint)))
    return results


def _problems(checkpoint: Checkpoint) -> list[Problem]:
    try:
        return checkpoint.verify()
    except NoCheckpoint:
        raise
    except (SamestepError, OSError) as error:
        return [Problem(MANIFEST_FILE, None, error.message if isinstance(error, SamestepError) else str(error))]


def _as_json(checkpoint: Checkpoint, problems: list[Problem]) -> dict[str, Any]:
    return {
        "name": checkpoint.name,
        "path": str(checkpoint.path),
        "ok": not problems,
        "problems": [{"file": each.file, "tensor": each.tensor, "problem": each.problem} for each in problems],
    }


def _print(results: list[tuple[Checkpoint, list[Problem]]]) -> None:
    for checkpoint, problems in results:
        output.say(f"{checkpoint.path}: {'DAMAGED' if problems else 'sound'}")
        for each in problems:
            place = each.file if each.tensor is None else f"{each.file}, {each.tensor}"
            output.say(f"  {place}: {each.problem}")
