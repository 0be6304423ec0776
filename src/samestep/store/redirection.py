"""Owns where a process of a proof keeps what it would keep elsewhere: in its own arm. Changes nothing outside of it.

`samestep prove` trains the user's script many times, each in an arm, a folder that SAMESTEP_RECORD_DIR names.
What the script names by a relative path is in the arm anyway; a run at an absolute path would be shared by all arms,
and the user's own one be trained on.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from samestep.store import files, folder
from samestep.store.folder import checkpoints_of

ARM = "SAMESTEP_RECORD_DIR"
"""The variable that names the arm; without it, or where it is empty, no directory is another one."""


def own_directory(directory: Path) -> Path:
    """Give the directory that stands for another one: itself, or in an arm, one inside it.

    Asked where a script makes a `Run` or a `Store`, which write, and nowhere else: `samestep ls RUN` and all that reads
    by path shows what lies at that path, in an arm too. Where it really lies decides, not how it is written: `../runs`
    may be a link that leads out of the arm. A run that the user has at this place is not gone on with: each arm begins
    as the script begins on a new machine, and the first of its attempts is told from a resume by that alone.

    Args:
        directory: What the script named; it need not exist.

    Returns:
        The directory; the same in each attempt of an arm, so that a second one resumes the first.
    """
    return _placed(directory, "redirected")


def _placed(directory: Path, kind: str) -> Path:
    arm = os.environ.get(ARM)
    if not arm:
        return directory
    real, inside = Path(os.path.realpath(directory)), Path(os.path.realpath(arm))
    return directory if real.is_relative_to(inside) else inside / kind / real.relative_to(real.anchor)


def own_checkpoints(directory: Path) -> Path:
    """Give the folder of checkpoints that stands for another one, where the checkpoints of that one can be read.

    A store, unlike a run, may be there to be read only: a script that begins from another training's weights finds
    them. They are links to the folders of the checkpoints: what the store saves, deletes or sets aside is in the arm.
    They lie apart from what stands for a run in the same place, which does not go on from them.

    Args:
        directory: What the script named; it need not exist.

    Returns:
        The directory; the same in each attempt of an arm, but for a run that is made between two of them.

    Raises:
        OSError: The arm cannot be written to.
    """
    own = own_directory(directory)
    if own == directory or own.exists():
        return own
    borrowed = _placed(directory, "borrowed")
    found = folder.list_folders(checkpoints_of(directory))
    if found and not borrowed.exists():
        _borrow(found, borrowed)
    return borrowed if found else own


def _borrow(checkpoints: Sequence[Path], target: Path) -> None:
    """Make links to checkpoints, all at once: a killed process leaves all of them or none."""
    files.make_folder(target.parent)
    draft = target.with_name(f".tmp-{target.name}-{os.urandom(4).hex()}")
    files.system.mkdir(draft)
    for each in checkpoints:
        files.system.symlink(os.path.realpath(each), draft / each.name)
    try:
        files.rename(draft, target)
    except OSError:
        files.remove_tree(draft)
        if not target.is_dir():  # else another process of this arm has been faster
            raise
