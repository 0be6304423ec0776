"""Owns what RUN and CKPT mean on the command line. Looks only: never moves a damaged checkpoint or writes."""

import math
from dataclasses import dataclass
from pathlib import Path

from samestep.errors import NoCheckpoint, SamestepError
from samestep.store import folder
from samestep.store.folder import CHECKPOINTS, RUN_FILE
from samestep.store.listing import COMPLETE, Listed, look_at
from samestep.store.manifest import MANIFEST_FILE
from samestep.store.reading import Checkpoint


@dataclass(frozen=True, slots=True)
class Place:
    """A run on disk, or a bare folder of checkpoints as `samestep.Store` writes it.

    Args:
        directory: What the user named; the lock lies there.
        checkpoints: The folder of checkpoints.
    """

    directory: Path
    checkpoints: Path


def find_run(text: str) -> Place:
    """Find the run that the user named.

    Args:
        text: A directory.

    Returns:
        The run.

    Raises:
        SamestepError: There is nothing, or something else; it says what.
    """
    path = _existing(text)
    if (path / MANIFEST_FILE).exists():
        raise SamestepError(
            "This is a checkpoint, not a run.",
            path=path,
            hint=f"Name the run, {path.parent.parent}, or look at the checkpoint: samestep inspect {path}.",
        )
    place = _as_run(path)
    if place is None:
        raise SamestepError(
            "This directory holds no run.",
            path=path,
            expected=f"{RUN_FILE}, or a folder {CHECKPOINTS}, or folders such as {folder.folder_name(400)}",
            found=_content(path),
        )
    return place


def find_checkpoint(text: str) -> Checkpoint:
    """Find the checkpoint that the user named.

    Args:
        text: A checkpoint's directory; or a run's for its latest one; or RUN@400, RUN@latest, RUN@best:METRIC,
            RUN@best:METRIC:min, RUN@TAG.

    Returns:
        The checkpoint.

    Raises:
        NoCheckpoint: The run has none like this.
        SamestepError: There is nothing, or something else; it says what.
    """
    name, at, which = text.rpartition("@")
    if at and not Path(text).exists():
        return Checkpoint(_choose(find_run(name), which).path)
    path = _existing(text)
    if (path / MANIFEST_FILE).exists() or folder.parse_name(path.name) is not None:
        return Checkpoint(path)
    return Checkpoint(_choose(find_run(text), "latest").path)


def _existing(text: str) -> Path:
    path = Path(text)
    if not path.exists():
        raise SamestepError("There is nothing at this path.", path=path, hint="Check the spelling.")
    if not path.is_dir():
        from samestep.store import foreign  # only mistakes need it, and it takes as long as the rest of the start

        raise SamestepError(
            "This is a file, and samestep's checkpoints are directories.",
            path=path,
            expected="the directory of a checkpoint or of a run",
            found=foreign.describe(path),
            hint="Name the directory itself." if path.name == MANIFEST_FILE else None,
        )
    return path


def _as_run(path: Path) -> Place | None:
    if (path / CHECKPOINTS).is_dir() or (path / RUN_FILE).exists():
        return Place(path, path / CHECKPOINTS)
    return Place(path, path) if folder.list_folders(path) or (path / folder.QUARANTINE).is_dir() else None


def _content(path: Path) -> str:
    names = sorted(child.name for child in path.iterdir())
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""  # noqa: PLR2004 — enough to recognise it
    return ", ".join(names[:5]) + more if names else "an empty directory"


def _choose(place: Place, which: str) -> Listed:
    """Choose among the complete ones; looks at no more of them than it must."""
    fitting, folders = None, folder.list_folders(place.checkpoints)
    if which == "latest":
        before: list[Path] = []
        while fitting is None and folders != before:  # a running training may delete all that were listed
            fitting, before, folders = _newest_complete(folders), folders, folder.list_folders(place.checkpoints)
    elif which.isdecimal():
        named = [(folder.parse_name(path.name), path) for path in folders]
        fitting = _newest_complete([path for name, path in named if name is not None and name[0] == int(which)])
    else:
        complete = [each for each in map(look_at, folders) if each.status == COMPLETE]
        fitting = _marked(complete, which)
    if fitting is None:
        listed = [_label(each) for each in map(look_at, folders) if each.status == COMPLETE]
        raise NoCheckpoint(
            f"The run has no complete checkpoint {which!r}.",
            path=place.directory,
            found=", ".join(listed) or "no complete checkpoint",
            hint="Name the score: RUN@best:val_acc, or RUN@best:val_loss:min." if which == "best" else None,
        )
    return fitting


def _newest_complete(folders: list[Path]) -> Listed | None:
    return next((each for each in map(look_at, reversed(folders)) if each.status == COMPLETE), None)


def _marked(complete: list[Listed], which: str) -> Listed | None:
    """Find the best by a score, or the newest with a tag or name."""
    if which.startswith("best:"):
        fitting = _best(complete, *which.split(":")[1:3])
    else:
        fitting = [each for each in complete if which in {*each.tags, each.path.name}]
    return fitting[-1] if fitting else None


def _best(complete: list[Listed], metric: str, mode: str = "max") -> list[Listed]:
    """Order by a score, the best last; of equal ones the earlier is the better."""
    if mode not in {"max", "min"}:
        raise SamestepError("A score is best as its highest or its lowest.", expected="max or min", found=mode)
    sign = 1 if mode == "max" else -1
    scored = [(float(each.metrics[metric]) * sign, each) for each in complete if metric in each.metrics]
    scored = [pair for pair in reversed(scored) if not math.isnan(pair[0])]
    return [each for _, each in sorted(scored, key=lambda pair: pair[0])]


def _label(each: Listed) -> str:
    return " ".join([str(each.step), *each.tags])
