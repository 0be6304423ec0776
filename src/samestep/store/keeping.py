"""Owns the carrying out of retention: deleting what the policy lets go. Never deletes the newest, never decides.

Imports no torch, so that `samestep prune` starts at once.
"""

import logging
from collections.abc import Collection
from pathlib import Path

from samestep.errors import SamestepError
from samestep.store import folder
from samestep.store.given import are_names, require
from samestep.store.reading import Checkpoint, find_checkpoints
from samestep.store.retention import Entry, Keep, decide

log = logging.getLogger("samestep")


class Shelf:
    """What is known of the complete checkpoints of one folder, so that a save reads only new manifests.

    Args:
        directory: The folder of checkpoints.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._known: dict[tuple[str, int], Entry] = {}

    def entries(self) -> list[Entry]:
        """Give the complete checkpoints, oldest first; damaged ones are left out, so that they never count."""
        current = {}
        for checkpoint in find_checkpoints(self.directory):
            try:
                key = (checkpoint.name, checkpoint.path.stat().st_ino)
                current[key] = self._known.get(key) or _complete(checkpoint)
            except (SamestepError, OSError) as error:
                log.warning("%s does not count as a checkpoint: %s", checkpoint.path, str(error))
        self._known = current
        return list(current.values())

    def doomed(self, keep: Keep, *, protect: Collection[str] = (), written_last: str | None = None) -> list[str]:
        """Give the names of what may go: what a newer one of the same step replaces, and what the policy lets go.

        Args:
            keep: The policy.
            protect: Names that must stay.
            written_last: The name of the one that was written last, where that is known.

        Returns:
            The names, oldest first; never the newest complete checkpoint.
        """
        entries = self.entries()
        doomed = decide(keep, entries, protect=protect, written_last=written_last).deleted
        return [entry.name for entry in entries[:-1] if entry.name in doomed]

    def retain(self, keep: Keep, *, protect: Collection[str] = (), written_last: str | None = None) -> list[str]:
        """Delete what may go; what cannot be deleted stays and is logged, since a save must not fail by it.

        Args:
            keep: The policy.
            protect: Names that must stay.
            written_last: The name of the one that was written last, where that is known.

        Returns:
            The names of what was deleted.
        """
        require("Store.retain(protect=…)", "a list of names", protect, are_names(protect))
        try:
            doomed = self.doomed(keep, protect=protect, written_last=written_last)
        except (SamestepError, OSError) as error:
            log.warning("nothing old is deleted from %s now: %s", self.directory, str(error))
            return []
        deleted = []
        for name in doomed:
            try:
                folder.remove(self.directory / name)
            except OSError as error:
                log.warning("cannot delete %s: %s", self.directory / name, str(error))
            else:
                deleted.append(name)
        return deleted


def _complete(checkpoint: Checkpoint) -> Entry:
    checkpoint.check()
    return checkpoint.entry()
