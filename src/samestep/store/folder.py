"""Owns the folder of checkpoints: their names, their order, putting in, taking away. Never imports torch.

A checkpoint's folder is `step-000000400`; when the same step is saved again, the newer one is `step-000000400.1`,
then `.2`, so that the older one can go after the newer is durable: there is no moment without either.
"""

import contextlib
import errno
import fcntl
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path

from samestep.errors import SamestepError, SaveFailed
from samestep.store import files
from samestep.store.manifest import MANIFEST_FILE

log = logging.getLogger("samestep")

RUN_FILE = "run.json"
CHECKPOINTS = "checkpoints"
"""A run's identity, and the folder of its checkpoints."""

QUARANTINE = "quarantine"
DRAFT_PREFIX = ".tmp-"
EXPORT_PREFIX = ".tmp-samestep-export-"
TRASH_PREFIX = ".trash-"

_NAME = re.compile(r"step-(\d{9,19})(?:\.([1-9]\d{0,8}))?")


def checkpoints_of(directory: Path) -> Path:
    """Give the folder of checkpoints that a path means: for a run's directory the one inside it, else itself."""
    return directory / CHECKPOINTS if (directory / RUN_FILE).is_file() else directory


def folder_name(step: int, order: int = 0) -> str:
    """Give the name of a checkpoint's folder.

    Args:
        step: Completed optimizer updates.
        order: How many checkpoints of the same step came before.

    Returns:
        The name.

    Example:
        >>> folder_name(400), folder_name(400, 1)
        ('step-000000400', 'step-000000400.1')
    """
    return f"step-{step:09d}" + (f".{order}" if order else "")


def parse_name(name: str) -> tuple[int, int] | None:
    """Give the step and the order that a folder's name says; None when it is no checkpoint's.

    Args:
        name: The folder's name, without what is above it.

    Returns:
        Step and order, which sort checkpoints from the oldest to the newest.

    Example:
        >>> parse_name("step-000000400.1"), parse_name("step-400")
        ((400, 1), None)
    """
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    step, order = int(match[1]), int(match[2] or 0)
    return (step, order) if folder_name(step, order) == name else None


def list_folders(directory: Path) -> list[Path]:
    """Find the folders named like checkpoints, oldest first; whether they are complete is not looked at.

    Args:
        directory: The folder of checkpoints; one that does not exist holds none.

    Returns:
        Their paths by step, then by order. Modification times never count: copying changes them.

    Raises:
        SamestepError: The folder cannot be read; that must not look like a folder without checkpoints.
    """
    try:
        named = [(key, path) for path in directory.iterdir() if (key := parse_name(path.name)) and path.is_dir()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise SamestepError(
            "The folder of checkpoints cannot be read.",
            path=directory,
            found=error.strerror,
            hint="Check the path and its permissions.",
        ) from error
    return [path for _, path in sorted(named)]


def is_committed(folder: Path) -> bool:
    """Tell whether a folder holds a manifest, or may hold one: without one nothing in it counts."""
    try:
        return (folder / MANIFEST_FILE).is_file()
    except PermissionError:
        return True  # whoever reads it hears that it cannot be opened, and may be intact


def next_name(directory: Path, step: int) -> str:
    """Give the name for the next checkpoint of a step: free, and newer than all others of that step.

    Raises:
        SaveFailed: There is none: the highest number is taken, by a folder that is not ours.
    """
    taken = [parse_name(path.name) for path in directory.iterdir()]
    orders = [key[1] for key in taken if key is not None and key[0] == step]
    name = folder_name(step, max(orders) + 1 if orders else 0)
    if parse_name(name) is None:
        raise SaveFailed(
            f"There is no name for another checkpoint of step {step}: the last one is taken.",
            path=directory / folder_name(step, max(orders)),
            hint="Move that folder away: no run comes to this number. Earlier checkpoints are untouched.",
        )
    return name


# --- putting in ----------------------------------------------------------------------------------------


@contextlib.contextmanager
def draft(directory: Path, prefix: str = DRAFT_PREFIX) -> Iterator[Path]:
    """Make a temporary folder beside the final names; what is left of it on an error is removed.

    While it is in use the folder is locked (`flock`), so that `tidy` in another process leaves it alone; the
    system gives the lock back when the process dies.
    """
    path = directory / f"{prefix}{os.urandom(8).hex()}"
    files.system.mkdir(path)
    descriptor = None
    try:
        descriptor = files.system.open(path, os.O_RDONLY | os.O_DIRECTORY)
        with contextlib.suppress(OSError):  # some network file systems lock no folders
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield path
    except BaseException:
        with contextlib.suppress(OSError):
            files.remove_tree(path)
        raise
    finally:
        if descriptor is not None:
            files.system.close(descriptor)


def commit(draft_folder: Path, step: int) -> Path:
    """Give a finished, synchronised draft its final name, durably.

    Args:
        draft_folder: The draft, which lies in the folder of checkpoints.
        step: Completed optimizer updates.

    Returns:
        The checkpoint's path.
    """
    target = draft_folder.with_name(next_name(draft_folder.parent, step))
    files.rename(draft_folder, target)
    return target


# --- taking away ---------------------------------------------------------------------------------------


def remove(folder: Path) -> None:
    """Delete a checkpoint: it loses its name durably before its first file goes, so no half of it is ever seen."""
    trash = folder.with_name(f"{TRASH_PREFIX}{folder.name}-{os.urandom(4).hex()}")
    files.rename(folder, trash)
    files.remove_tree(trash)


def set_aside(folder: Path) -> Path | None:
    """Move a checkpoint into `quarantine`, from where nothing takes or deletes it.

    Args:
        folder: The checkpoint's folder.

    Returns:
        Its new path; None when the folder of checkpoints cannot be changed, such as a read-only one.
    """
    quarantine = folder.parent / QUARANTINE
    try:
        if quarantine.is_symlink():
            raise NotADirectoryError(errno.ENOTDIR, "A link in the place of a folder", str(quarantine))
        files.make_folder(quarantine)
        target = quarantine / folder.name
        if target.exists():
            target = quarantine / f"{folder.name}-{os.urandom(4).hex()}"
        files.rename(folder, target)
    except OSError as error:
        log.warning("cannot move %s into quarantine: %s", folder, str(error))
        return None
    return target


def tidy(directory: Path, *prefixes: str) -> list[Path]:
    """Remove what dead writers left: unfinished drafts and half-deleted checkpoints.

    Args:
        directory: The folder of checkpoints, or another one in which drafts are made.
        prefixes: How the names begin of what goes (default: drafts and trash of checkpoints).

    Returns:
        The paths that were removed; those of a living writer, or that cannot be removed, stay.
    """
    removed = []
    try:
        children = sorted(directory.iterdir()) if directory.is_dir() else []
    except OSError as error:  # too many open files: the next save tidies
        log.warning("cannot tidy %s: %s", directory, str(error))
        return []
    for path in children:
        if not path.name.startswith(prefixes or (DRAFT_PREFIX, TRASH_PREFIX)) or _is_in_use(path):
            continue
        try:
            files.remove_tree(path)
        except OSError as error:
            log.warning("cannot remove %s: %s", path, str(error))
        else:
            removed.append(path)
    return removed


def _is_in_use(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_DIRECTORY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no locks here: whoever calls holds the run's own lock
        return False
    else:
        return False
    finally:
        os.close(descriptor)
