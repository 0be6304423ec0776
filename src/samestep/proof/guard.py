"""Owns what a training may change outside its own directory: nothing of the original one. Never stops a reading.

The directory of an arm is made of links to the original's files. A link that is opened for writing is replaced by a
copy first; what is reached through linked folders, or by absolute paths, is refused.
"""

import errno
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from samestep.proof.changes import Change
from samestep.proof.importing import PROBLEMS
from samestep.store import files

_OF_THE_SYSTEM = ("/dev", "/proc", "/sys")
_TEMPORARY = ("/tmp", "/var/tmp", "/usr/tmp")  # noqa: S108  (recognised, not used)


class Refused(PermissionError):
    """A change was refused; the training sees it as the operating system's refusal."""


def is_below(place: str, folder: str | None) -> bool:
    """Tell whether a path is a folder or in it; nothing is below None."""
    return folder is not None and (place == folder or place.startswith(folder.rstrip("/") + "/"))


class Guard:
    """Decides about each change.

    Args:
        own: The arm's directory, in which everything is allowed.
        guarded: The original directory, and what lies beside it; empty: none is guarded.
        ledgers: The folder of the ledgers, which is ours.
    """

    def __init__(self, own: Path, guarded: Sequence[Path], ledgers: Path) -> None:
        self._own, self._ledgers = os.path.realpath(own), os.path.realpath(ledgers)
        self._guarded = [os.path.realpath(each) for each in guarded]
        temporary = [*_TEMPORARY, *filter(None, map(os.environ.get, ("TMPDIR", "TEMP", "TMP")))]
        self._temporary = [os.path.realpath(each) for each in temporary]
        self._home = os.path.realpath(os.path.expanduser("~"))
        self._told: set[str] = set()

    @property
    def own(self) -> str:
        """The real path of the arm's directory."""
        return self._own

    def admit(self, change: Change) -> str | None:
        """Let a change happen.

        Returns:
            The file outside all directories that is going to be written, where that is worth a note.

        Raises:
            Refused: It would change something of the original directory.
        """
        for place in filter(None, (change.place, change.source)):
            if self._is_guarded(place):
                raise self._refused(place, change, tell=not change.is_of_python)
        if not change.opens or is_below(change.place, self._own):
            return None
        real = os.path.realpath(change.place)
        if self._is_guarded(real):  # a link that lies outside the arm and leads into the original
            raise self._refused(real, change, tell=True)
        return real if change.is_content and self._is_noted(real) else None

    def part(self, change: Change) -> None:
        """Replace a link from the arm to the outside, which is about to be written through, by a copy.

        Raises:
            Refused: That is not possible.
        """
        place = change.place
        if not (change.opens and is_below(place, self._own) and os.path.islink(place)):
            return
        real = os.path.realpath(place)
        if is_below(real, self._own) or is_below(real, self._ledgers) or not _is_file_or_nothing(real):
            return
        try:
            if os.path.exists(real):
                files.replace_file(Path(place), b"" if change.is_truncated else Path(real).read_bytes())
            else:
                files.remove_file(Path(place))  # it led to nothing: the opening makes a file of its own
        except OSError as error:
            raise self._refused(real, change, tell=True) from error

    def _is_guarded(self, place: str) -> bool:
        if is_below(place, self._own) or is_below(place, self._ledgers):
            return False
        # who proves in the home directory or in / still has caches and temporary files below it
        free = self._free(place)
        return any(
            is_below(place, each)
            and not any(one != each and is_below(one, each) and is_below(place, one) for one in free)
            for each in self._guarded
        )

    def _free(self, place: str) -> list[str]:
        """Give the folders in which any program writes, of those that may hold a place."""
        hidden = []
        if is_below(place, self._home):
            first = os.path.relpath(place, self._home).split("/")[0]
            hidden = [os.path.join(self._home, first)] if first.startswith(".") and first != "." else []
        return [*_OF_THE_SYSTEM, *self._temporary, *hidden]

    def _is_noted(self, real: str) -> bool:
        free = [self._own, self._ledgers, *self._free(real)]
        return not any(is_below(real, folder) for folder in free) and _is_file_or_nothing(real)

    def _refused(self, place: str, change: Change, *, tell: bool) -> Refused:
        sentence = (
            f"samestep prove: the training wants to change {place} ({change.operation}) outside its own directory; "
            "give it {dir} for its output, or a path relative to its working directory"
        )
        if tell and sentence not in self._told:
            self._told.add(sentence)
            files.append_bytes(Path(self._ledgers) / PROBLEMS, sentence.encode(errors="replace") + b"\n")
        return Refused(errno.EPERM, sentence)


def _is_file_or_nothing(place: str) -> bool:
    """Tell whether a path is a regular file, or is not there yet; pipes and devices are neither."""
    try:
        return stat.S_ISREG(os.stat(place).st_mode)
    except OSError:
        return True
