"""Owns the overview of a folder of checkpoints, the damaged ones included. Never reads a tensor, never writes."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from samestep.errors import CorruptCheckpoint, SamestepError
from samestep.store import folder, verifying
from samestep.store.manifest import MANIFEST_FILE, MOST_MANIFEST_BYTES
from samestep.store.outlines import Summary, decode_summary

COMPLETE = "complete"
DAMAGED = "damaged"
TORN = "torn"
QUARANTINED = "quarantined"


@dataclass(frozen=True, slots=True)
class Listed:
    """One checkpoint in the overview.

    Args:
        path: Its folder.
        status: "complete": manifest and sizes hold; "damaged": they do not; "torn": there is no manifest, so it
            never counted; "quarantined": a resume set it aside.
        step: Completed optimizer updates; None when neither its manifest nor its name says.
        epoch: The epoch that the next step belongs to.
        bytes: The size of its files, as found where the manifest cannot say.
        metrics: The last scores by name; "nan", "inf" and "-inf" stand for what JSON lacks.
        tags: Marks given by the user.
        created: When it was written: ISO 8601, UTC; None when unknown.
        problem: What is wrong with it, in one sentence; None when nothing is.
    """

    path: Path
    status: str
    step: int | None
    epoch: int | None = None
    bytes: int = 0
    metrics: Mapping[str, float | str] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    created: str | None = None
    problem: str | None = None


def list_checkpoints(directory: Path) -> list[Listed]:
    """List what a folder of checkpoints holds.

    Args:
        directory: The folder; one that does not exist holds nothing.

    Returns:
        The checkpoints by step, oldest first, then what is in quarantine.

    Example:
        >>> list_checkpoints(Path("nowhere"))
        []
    """
    looked_at = [look_at(path) for path in folder.list_folders(directory)]
    # What a running training has deleted since the folder was listed is not torn.
    named = [each for each in looked_at if each.status == COMPLETE or each.path.exists()]
    quarantine = directory / folder.QUARANTINE
    aside = sorted(path for path in quarantine.iterdir() if path.is_dir()) if quarantine.is_dir() else []
    return named + [_set_aside(path) for path in aside]


def count_drafts(directory: Path) -> int:
    """Count the unfinished saves in a folder of checkpoints: of a save that runs now, or of one that was killed.

    Args:
        directory: The folder of checkpoints.

    Returns:
        How many there are.
    """
    return sum(path.name.startswith(folder.DRAFT_PREFIX) for path in directory.iterdir()) if directory.is_dir() else 0


def look_at(path: Path) -> Listed:
    """Look at one checkpoint: its manifest's own digest and the sizes of its files.

    Args:
        path: Its folder.

    Returns:
        What is there.
    """
    named = folder.parse_name(path.name)
    step = None if named is None else named[0]
    if not folder.is_committed(path):
        return Listed(path, TORN, step, bytes=_bytes_found(path), problem="It has no manifest: it is not complete.")
    try:
        summary, size = _read_summary(path)
        if step not in {None, summary.step}:
            raise CorruptCheckpoint("The folder's name and the manifest speak of different steps.", path=path)
    except SamestepError as error:
        return Listed(path, DAMAGED, step, bytes=_bytes_found(path), problem=error.message)
    return Listed(
        path=path,
        status=COMPLETE,
        step=summary.step,
        epoch=summary.epoch,
        bytes=size + sum(file.bytes for file in summary.files),
        metrics=summary.metrics,
        tags=tuple(summary.tags),
        created=summary.created,
    )


def _set_aside(path: Path) -> Listed:
    """Describe what was moved away: damaged, or left behind by a run that went back to an earlier step."""
    named = folder.parse_name(path.name) or folder.parse_name(path.name.rpartition("-")[0])
    found = look_at(path)
    step = found.step if named is None else named[0]
    why = found.problem or "A run that went back to an earlier step left it behind."
    return replace(found, status=QUARANTINED, step=step, problem=why)


def _read_summary(path: Path) -> tuple[Summary, int]:
    """Read the manifest and check the sizes of all files, which is what makes a checkpoint count."""
    manifest = path / MANIFEST_FILE
    with verifying.open_regular(manifest) as (file, size):
        summary = decode_summary(file.read(MOST_MANIFEST_BYTES + 1), manifest)
    for entry in summary.files:
        with verifying.open_regular(path / entry.name) as (_, found):
            if found != entry.bytes:
                raise CorruptCheckpoint(f"{entry.name} has {found} bytes instead of {entry.bytes}.", path=path)
    return summary, size


def _bytes_found(path: Path) -> int:
    try:
        return sum(child.lstat().st_size for child in path.iterdir())
    except OSError:
        return 0
