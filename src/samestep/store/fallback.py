"""Owns the way back past damage: which checkpoint is sound, and what is reported and set aside. Deletes nothing."""

import logging
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from samestep.errors import CorruptCheckpoint, NoCheckpoint, SamestepError
from samestep.messages import warn_user
from samestep.state.snapshot import Snapshot
from samestep.store import folder
from samestep.store.manifest import NewerFormat
from samestep.store.reading import Checkpoint
from samestep.wording import printable

log = logging.getLogger("samestep")


class Fallback:
    """What is sound and what is set aside in one folder of checkpoints.

    Args:
        directory: The folder of checkpoints.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._skipped: set[tuple[str, int]] = set()

    def newest_first(self) -> Iterator[Checkpoint]:
        """Give all folders with a checkpoint's name: one without a manifest is damaged, and must be reported.

        When none was good, look again: a running training may have deleted all that were there, and saved others.
        """
        given: set[Path] = set()
        while new := [path for path in reversed(folder.list_folders(self.directory)) if path not in given]:
            given.update(new)
            yield from map(Checkpoint, new)

    def sound(self, candidates: Iterator[Checkpoint]) -> Iterator[Checkpoint]:
        """Pass on those whose manifest and sizes hold; set the others aside."""
        for checkpoint in candidates:
            try:
                checkpoint.check()
            except CorruptCheckpoint as error:
                self._set_aside(checkpoint, error)
            except NoCheckpoint:
                continue  # another process's retention deleted it meanwhile: that is no damage
            else:
                yield checkpoint

    def first_good(self, candidates: Iterator[Checkpoint], map_location: Any) -> tuple[Checkpoint, Snapshot] | None:
        """Read the first of which every digest holds; set aside what is damaged."""
        for checkpoint in self.sound(candidates):
            try:
                return checkpoint, checkpoint.read(map_location)
            except CorruptCheckpoint as error:
                self._set_aside(checkpoint, error)
            except NoCheckpoint:
                continue  # as above
        return None

    def damaged_names(self) -> list[str]:
        """Name the damaged checkpoints, in `quarantine` or where they could not be moved; those given up are sound."""
        aside = sorted((self.directory / folder.QUARANTINE).glob("step-*"))
        stayed = sorted({name for name, _ in self._skipped if (self.directory / name).exists()})
        return [path.name for path in aside if Checkpoint(path).verify()] + stayed

    def names_set_aside(self) -> list[str]:
        """Name the checkpoints that lie in `quarantine`: damaged, or given up by a run that went back."""
        return sorted(path.name for path in (self.directory / folder.QUARANTINE).glob("step-*"))

    def set_aside_after(self, step: int, order: int | None = None) -> list[Path]:
        """Move the checkpoints of later steps into `quarantine`, for a run that goes back and takes another way.

        Else the next resume would take the highest step, which lies on the way that was given up. The newest goes
        last: a process that dies in between leaves a run that resumes from where it was, never from the middle.

        Args:
            step: The step that the run goes back to.
            order: Which checkpoint of that step, where it was saved more than once; None leaves them all.

        Returns:
            Their new paths, lowest step first.
        """
        last = (step, math.inf if order is None else order)
        later = [path for path in folder.list_folders(self.directory) if (folder.parse_name(path.name) or last) > last]
        return [moved for path in later if (moved := folder.set_aside(path)) is not None]

    def _set_aside(self, checkpoint: Checkpoint, error: CorruptCheckpoint) -> None:
        """Report a damaged checkpoint once and move it out of the way, where the folder allows it."""
        if isinstance(error, NewerFormat):
            raise error
        try:
            key = (checkpoint.name, checkpoint.path.stat().st_ino)
        except FileNotFoundError:
            return  # deleted meanwhile
        if key in self._skipped:
            return
        self._skipped.add(key)
        moved = folder.set_aside(checkpoint.path)
        message = (
            f"Checkpoint {checkpoint.name} is damaged: {one_line(error)} "
            + (f"It was moved to {moved}" if moved else f"It stays in {self.directory}, which cannot be changed")
            + "; the one before it is taken, if there is one."
        )
        log.warning(message)
        warn_user(message)


def one_line(error: SamestepError) -> str:
    """Say in one line what an error says and where."""
    return printable(error.message if error.path is None else f"{error.message.removesuffix('.')} ({error.path}).")
