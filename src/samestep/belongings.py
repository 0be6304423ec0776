"""Owns the looking after what other programs take from a run while it is at work. Restores only what it knows.

Checkpoints that are gone are named once, and the next save follows as before; run.json is made anew.
"""

from pathlib import Path

from samestep.errors import SamestepError
from samestep.messages import warn_user
from samestep.state.restoration import shortened
from samestep.store.folder import RUN_FILE
from samestep.store.records import RunRecord, read_run, rewrite_run
from samestep.store.store import Store


class Belongings:
    """What a run has in its directory beside its notes: checkpoints and run.json.

    Args:
        store: The run's checkpoints.
        record: What run.json said when the run was opened.
    """

    def __init__(self, store: Store, record: RunRecord) -> None:
        self._store, self._record = store, record
        self._names: list[str] = []
        self._said = ""

    def note(self) -> None:
        """Take what is there now for what belongs there: the run has just saved or deleted."""
        self._names = self._found() or []

    def look(self) -> None:
        """Name what is gone since, and make run.json anew."""
        self._look_for_checkpoints()
        self._look_for_record()

    def has(self, name: str | None) -> bool:
        """Tell whether a checkpoint is there, complete."""
        found = self._found()
        return found is None or name in found

    def _found(self) -> list[str] | None:
        """Name the complete checkpoints; None where the system does not let us look: too many open files, say."""
        try:
            return [checkpoint.name for checkpoint in self._store.checkpoints()]
        except SamestepError as error:
            return [] if isinstance(error.__cause__, NotADirectoryError) else None

    def _look_for_checkpoints(self) -> None:
        found = self._found()
        if found is None:
            return
        gone, self._names = [name for name in self._names if name not in found], found
        if gone:
            warn_user(
                "Checkpoints of this run were removed or damaged while the training ran, which goes on."
                f"\n  where:    {self._store.directory}"
                f"\n  gone:     {', '.join(shortened(gone))}"
                f"\n  found:    {', '.join(shortened(found)) or 'none'}"
            )

    def _look_for_record(self) -> None:
        directory = self._store.directory.parent
        try:
            read_run(directory)
        except OSError:
            return  # as above
        except SamestepError:
            self._make_record_anew(directory)

    def _make_record_anew(self, directory: Path) -> None:
        try:
            rewrite_run(directory, self._record)
            how = "it has been made anew"
        except OSError as error:
            how = f"it cannot be made anew: {error.strerror}"
        if how not in self._said:
            warn_user(
                f"{RUN_FILE} was removed or damaged while the training ran; {how}.\n  where:    {directory / RUN_FILE}"
            )
        self._said = how
