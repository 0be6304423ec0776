"""Owns what a directory means that a script names: a place on this machine that is not taken. Changes nothing."""

import os
import re
from pathlib import Path

from samestep.errors import SamestepError
from samestep.store import folder
from samestep.store.folder import CHECKPOINTS, RUN_FILE
from samestep.store.manifest import MANIFEST_FILE
from samestep.wording import shown

# `Path` has made "s3:/bucket" of "s3://bucket"; one letter is a Windows drive, which is no URL.
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/.*", re.DOTALL)


def named_directory(value: object, where: str) -> Path:
    """Read a directory that a script names.

    Args:
        value: What the script gave; "~" means the home directory.
        where: Which argument it is, for the error.

    Returns:
        The path.

    Raises:
        SamestepError: It is no path on this machine.

    Example:
        >>> named_directory("runs/digits", "Run(directory=…)").as_posix()
        'runs/digits'
    """
    try:
        text = os.fspath(value)  # type: ignore[call-overload]
    except TypeError:
        text = None
    if not isinstance(text, str):
        raise _refusal("The directory is not a path.", value, where, None)
    if not text.strip() or "\0" in text:
        raise _refusal(
            "The directory has no name.",
            value,
            where,
            'Is a variable empty that should hold it? "." is this directory.',
        )
    if _URL.match(text):
        raise _refusal(
            "The directory is a URL, and checkpoints are written to mounted file systems only.",
            value,
            where,
            "Give a path, and copy what is finished from there, or mount the storage.",
        )
    try:
        path = Path(text).expanduser()
    except RuntimeError as error:
        raise _refusal("The home directory is not known.", value, where, "Write the whole path.") from error
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return path
    except (OSError, ValueError) as error:  # a name that is too long, or no text at all; a folder that lets us not in
        reason = getattr(error, "strerror", None) or "a name that no file can have"
        raise _refusal(f"The directory cannot be reached: {reason}.", value, where, "Is the path right?") from error
    return path


def require_free(directory: Path) -> None:
    """Raise if a run cannot be made in a directory because checkpoints lie there already.

    A run in the folder of another run's checkpoints, or in a checkpoint, would begin anew beside them without a word.

    Args:
        directory: The run's directory, which need not exist.

    Raises:
        SamestepError: It belongs to checkpoints; the error says which directory is meant.
    """
    for each in (directory, *directory.parents):
        if (each / MANIFEST_FILE).is_file() and folder.parse_name(each.name) is not None:
            raise _taken("This is a checkpoint, not a run's directory.", directory, _run_of(each))
        if each.name == CHECKPOINTS and (each.parent / RUN_FILE).is_file():
            raise _taken("This is inside a run's folder of checkpoints.", directory, each.parent)
    if directory.is_dir() and not (directory / RUN_FILE).exists() and folder.list_folders(directory):
        raise SamestepError(
            "This directory holds the checkpoints of a samestep.Store, which a run would pass over.",
            path=directory,
            hint="Give the run a directory of its own; for its checkpoints to be taken, they must lie in its"
            f" folder {CHECKPOINTS!r}.",
        )


def require_folder_of_checkpoints(directory: Path) -> None:
    """Raise if a directory is a file or a single checkpoint.

    Args:
        directory: What a store was given; it need not exist.

    Raises:
        SamestepError: It is something else; the error says what.
    """
    if directory.is_file():
        from samestep.store import foreign  # only mistakes need it, and it takes long to import

        raise SamestepError(
            "This is a file, and checkpoints lie in directories.",
            path=directory,
            expected="a directory, or one that is not there yet",
            found=foreign.describe(directory),
        )
    if (directory / MANIFEST_FILE).is_file() and folder.parse_name(directory.name) is not None:
        raise SamestepError(
            "This is a checkpoint, not a folder of checkpoints.",
            path=directory,
            hint=f"Give the folder, {directory.parent}, and name the checkpoint: load(objects, {directory.name!r}).",
        )


def _run_of(checkpoint: Path) -> Path:
    return checkpoint.parent.parent if checkpoint.parent.name == CHECKPOINTS else checkpoint.parent


def _taken(message: str, directory: Path, run: Path) -> SamestepError:
    return SamestepError(message, path=directory, hint=f"Give the run's own directory, {run}, or a new one.")


def _refusal(message: str, value: object, where: str, hint: str | None) -> SamestepError:
    return SamestepError(message, path=where, expected='a path, such as "runs/digits"', found=shown(value), hint=hint)
