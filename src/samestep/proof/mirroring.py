"""Owns copies of folders: a working directory mirrored into an arm, and an arm copied. Never changes what it copies.

What is small is copied, what is large is linked, so that an arm costs seconds and not the size of a data set. Links
lead to the user's own files: the guard in the recorded processes parts a file from its link before it is written.
"""

import os
import stat
from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from samestep.errors import SamestepError
from samestep.store import files
from samestep.store.attempts import ATTEMPTS_FILE
from samestep.store.folder import CHECKPOINTS, RUN_FILE
from samestep.store.lock import LOCK_FILE, OWNER_FILE
from samestep.store.metrics import METRICS_FILE
from samestep.store.records import read_run

MOST_OF_A_FILE = 64 * 10**6
"""Bytes of a file that is copied; a larger one is linked."""

MOST_IN_A_FOLDER = 2_000
"""Entries of a folder that is mirrored; one with more, such as a data set's images, is linked as a whole."""

MOST_ENTRIES = 20_000
MOST_BYTES = 500 * 10**6
"""Entries, and bytes of copies, of a whole mirror; what comes behind them is linked, and the deepest comes last."""

CACHES = {
    *(".tox", ".nox"),
    *("__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".ipynb_checkpoints"),
}
"""Folders without which a training is the same one."""

INSTALLED = {".venv", "venv", "node_modules"}
"""Folders of installed packages: one link, since `.venv/bin/python train.py` is an ordinary command."""

VERSIONED = {".git", ".hg", ".svn"}
"""Folders of version control: one link, since scripts ask for the commit that they are run from."""

_OF_A_COMMIT = ("HEAD", "logs/HEAD")
"""What changes in them by a commit, and not when somebody only asks for the state of the files."""

_OF_A_RUN = {RUN_FILE, CHECKPOINTS, ATTEMPTS_FILE, METRICS_FILE, LOCK_FILE, OWNER_FILE}


class Mirror:
    """A working directory's mirror, made when it is built.

    Args:
        source: The working directory, without symbolic links in its path.
        target: The mirror; its parent exists.
        left_out: Patterns of what is not mirrored: of a name, or of a path below `source`.
        apart: Folders that are never mirrored, wherever they lie: those of the proof.

    Raises:
        SamestepError: There is more in the working directory itself than can be mirrored.
        OSError: The mirror cannot be written.

    Attributes:
        skipped: What could not be read, by its path below `source`.
        linked: What links of the mirror lead to, by its real path, as it was then: see `looked_at`.
    """

    def __init__(self, source: Path, target: Path, left_out: Sequence[str] = (), apart: Collection[Path] = ()) -> None:
        self.skipped: list[str] = []
        self.linked: dict[Path, tuple[int, ...]] = {}
        self._source, self._target = source, target
        self._patterns = [each.removeprefix("./").rstrip("/") for each in left_out]
        self._apart = {*apart}
        self._entries = self._bytes = 0
        self._links: list[Path] = []
        self._folders = [Path()]
        for folder in self._folders:  # grows meanwhile: level by level, so that the sources come before the data
            self._fill(folder)
        for link in self._links:  # last: now it is known which of their targets are mirrored
            self._lead(link)

    def _fill(self, folder: Path) -> None:
        try:
            entries = sorted(os.scandir(self._source / folder), key=lambda each: each.name)
        except PermissionError:
            if folder == Path():
                raise
            self.skipped.append(folder.as_posix())
            return
        except FileNotFoundError:  # a training in the working directory may be removing its own files
            return
        if folder != Path():
            if len(entries) > MOST_IN_A_FOLDER or self._entries + len(entries) > MOST_ENTRIES:
                self._link(folder)
                return
        elif len(entries) > MOST_ENTRIES:
            raise SamestepError(
                "The working directory holds too many files to be mirrored into each arm of the proof.",
                path=self._source,
                expected=f"at most {MOST_ENTRIES:,} files and folders in it, not counting those inside the folders",
                found=f"{len(entries):,}",
                hint="Move the data into a folder, or start from the folder of the sources.",
            )
        files.system.mkdir(self._target / folder)
        root_is_run = folder == Path() and _is_run(self._source)
        for entry in entries:
            if not (self._is_left_out(folder / entry.name) or (root_is_run and entry.name in _OF_A_RUN)):
                self._entries += 1
                self._take(entry, folder / entry.name)

    def _is_left_out(self, path: Path) -> bool:
        text = path.as_posix()
        return (
            path.name in CACHES
            or self._source / path in self._apart
            or any(fnmatchcase(path.name, each) or fnmatchcase(text, each) for each in self._patterns)
        )

    def _take(self, entry: "os.DirEntry[str]", path: Path) -> None:
        if entry.is_symlink():
            self._links.append(path)
        elif entry.is_dir():
            if entry.name in VERSIONED or _is_installed(self._source / path):
                self._link(path)
            elif not _is_run(self._source / path):
                self._folders.append(path)
        elif entry.is_file():
            self._take_file(path)

    def _take_file(self, path: Path) -> None:
        try:
            size = (self._source / path).stat().st_size
            if size > MOST_OF_A_FILE or self._bytes + size > MOST_BYTES or self._entries > MOST_ENTRIES:
                self._link(path)
                return
            files.copy_file(self._source / path, self._target / path)
        except PermissionError:
            self.skipped.append(path.as_posix())
        except FileNotFoundError:  # as above
            return
        else:
            self._bytes += size

    def _link(self, path: Path) -> None:
        self._note(self._source / path)
        files.system.symlink(str(self._source / path), self._target / path)

    def _note(self, place: Path) -> None:
        """Note how something looks that is reached by a link; packages may be compiled at any time."""
        if _is_installed(place):
            return
        places = [place / each for each in _OF_A_COMMIT] if place.name in VERSIONED else [place]
        for real in map(Path, map(os.path.realpath, places)):
            look = looked_at(real)
            if look is not None:
                self.linked.setdefault(real, look)

    def _lead(self, path: Path) -> None:
        """Make a symbolic link as it is in the source: to what is mirrored, in the mirror; else to the same place."""
        real = Path(os.path.realpath(self._source / path))
        if real.is_relative_to(self._source):
            mirrored = self._target / real.relative_to(self._source)
            if os.path.lexists(mirrored):
                files.system.symlink(os.path.relpath(mirrored, (self._target / path).parent), self._target / path)
                return
        self._note(self._source / path)
        files.system.symlink(str(real), self._target / path)


def looked_at(path: Path) -> tuple[int, ...] | None:
    """Give by what a change of a file or folder is noticed: size and time of a file, time of a folder.

    Returns:
        The numbers; None for what is neither, or not to be seen.
    """
    try:
        status = path.stat()
    except OSError:
        return None
    if stat.S_ISREG(status.st_mode):
        return status.st_size, status.st_mtime_ns
    return (status.st_mtime_ns,) if stat.S_ISDIR(status.st_mode) else None


def link_siblings(source: Path, target: Path, most: int, apart: Path) -> None:
    """Make links beside a mirror to what lies beside its working directory, so that `../data` is the same.

    Args:
        source: The working directory.
        target: Its mirror.
        most: How many at most, in the order of their names; hidden ones are none.
        apart: The folder of the proof; what it lies in is left out.
    """
    try:
        names = sorted(each.name for each in os.scandir(source.parent) if not each.name.startswith("."))
    except OSError:  # a parent that lets nobody look
        return
    siblings = [source.with_name(name) for name in names if name not in {source.name, target.name}]
    for each in [each for each in siblings if not apart.is_relative_to(os.path.realpath(each))][:most]:
        files.system.symlink(os.path.realpath(each), target.with_name(each.name))


def copy_tree(source: Path, target: Path) -> None:
    """Copy a folder with all that it holds, as a killed training has left it.

    Files are copies that share nothing; symbolic links stay links, and those into the folder lead into the copy.

    Args:
        source: The folder.
        target: The copy, which must not exist.

    Raises:
        OSError: Something cannot be read or written.
    """
    folders = [Path()]
    for folder in folders:  # grows meanwhile
        files.system.mkdir(target / folder)
        for entry in os.scandir(source / folder):
            path = folder / entry.name
            if entry.is_symlink():
                files.system.symlink(_led_anew(Path(entry.path).readlink(), source, target), target / path)
            elif entry.is_dir():
                folders.append(path)
            elif stat.S_ISREG(entry.stat(follow_symlinks=False).st_mode):  # a socket is dead with its process
                files.copy_file(source / path, target / path)


def _led_anew(leads_to: Path, source: Path, target: Path) -> str:
    return str(target / leads_to.relative_to(source) if leads_to.is_relative_to(source) else leads_to)


def _is_run(folder: Path) -> bool:
    """Tell whether a folder is the directory of a samestep run, also of a damaged one."""
    if not _exists(folder / RUN_FILE):
        return False
    if _exists(folder / CHECKPOINTS):
        return True
    try:
        read_run(folder)
    except (SamestepError, OSError):  # another program's run.json
        return False
    return True


def _is_installed(place: Path) -> bool:
    return place.name in INSTALLED or _exists(place / "pyvenv.cfg") or _exists(place / "conda-meta")


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False
