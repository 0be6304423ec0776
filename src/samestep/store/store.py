"""Owns `Store`: saving objects into a folder of checkpoints and loading the newest sound one. Knows no loop."""

import math
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from samestep.errors import NoCheckpoint, SamestepError, SaveFailed
from samestep.state.snapshot import Snapshot
from samestep.store import folder
from samestep.store.fallback import Fallback, one_line
from samestep.store.folder import checkpoints_of
from samestep.store.given import check_marks, check_objects, check_wishes, named_step, require
from samestep.store.keeping import Shelf
from samestep.store.place import named_directory, require_folder_of_checkpoints
from samestep.store.reading import Checkpoint, find_checkpoints
from samestep.store.redirection import own_checkpoints
from samestep.store.retention import Keep, require_mode
from samestep.wording import shown

_LAST_TWO = Keep()


class Store:
    """A folder of checkpoints: only complete ones count, each is verified on loading, old ones go by policy.

    One process at a time may save; any number may read.

    Args:
        directory: The folder that holds the checkpoints, made at the first save; or a run's directory, which means
            its `checkpoints`.
        keep: Which checkpoints stay (default: the last two).

    Example:
        >>> import tempfile, torch
        >>> model = torch.nn.Linear(2, 1)
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     store = Store(directory)
        ...     saved = store.save({"model": model}, step=1)
        ...     _ = torch.nn.init.zeros_(model.weight)
        ...     loaded = store.load({"model": model})
        >>> loaded.step, bool(model.weight.any())
        (1, True)
    """

    def __init__(self, directory: str | os.PathLike[str], keep: Keep = _LAST_TWO) -> None:
        given = own_checkpoints(named_directory(directory, "Store(directory=…)"))
        require_folder_of_checkpoints(given)
        require("Store(keep=…)", "a samestep.Keep", keep, isinstance(keep, Keep))
        self.directory = checkpoints_of(given)
        self.keep = keep
        self._shelf = Shelf(self.directory)
        self._is_tidy = False
        self.fallback = Fallback(self.directory)

    def __repr__(self) -> str:
        return f"Store({str(self.directory)!r}, keep={self.keep!r})"

    # --- saving ----------------------------------------------------------------------------------------

    def save(
        self,
        objects: Mapping[str, object],
        *,
        step: int,
        epoch: int | None = None,
        metrics: Mapping[str, float] | None = None,
        tags: Sequence[str] = (),
    ) -> Checkpoint:
        """Save the state of objects; when this returns the checkpoint is complete and durable.

        Saving a step again replaces its checkpoint, the older one going only after the newer is durable.

        Args:
            objects: What decides the next step, by name: modules, optimizers, generators, and whatever has
                `state_dict` and `load_state_dict`.
            step: Completed optimizer updates.
            epoch: The epoch that the next step belongs to (default: none).
            metrics: Scores of this state, by name.
            tags: Marks of your own; "pinned" keeps the checkpoint for good.

        Returns:
            The checkpoint.

        Raises:
            SaveFailed: The system refused; earlier checkpoints are untouched.
            UnsupportedValue: A state holds something that cannot be stored exactly; it names the place.
            SamestepError: An argument is not understood.
        """
        from samestep.state.capture import capture
        from samestep.store.metrics import checked_scores
        from samestep.store.writing import whole_step

        check_objects(objects, "Store.save")
        check_marks(epoch, metrics, tags)
        scores = checked_scores(metrics or {}, "Store.save(metrics=…)")
        snapshot = Snapshot(step=whole_step(step), epoch=epoch, items=capture(objects), metrics=scores)
        return self.write(snapshot, environment=self._environment, tags=tags)

    @cached_property
    def _environment(self) -> dict[str, Any]:
        """Record the environment once: it asks git, and does not change while the process lives."""
        from samestep.state.environment import environment

        return environment()

    def write(
        self,
        snapshot: Snapshot,
        *,
        environment: Mapping[str, Any] | None = None,
        tags: Sequence[str] = (),
        protect: Collection[str] = (),
    ) -> Checkpoint:
        """Write a snapshot that was taken before, then apply the policy.

        Args:
            snapshot: The snapshot; nothing may change its tensors meanwhile.
            environment: Versions, machine and settings, as plain JSON (default: nothing).
            tags: Marks given by the user.
            protect: Names of checkpoints that stay whatever the policy says.

        Returns:
            The checkpoint, complete and durable.

        Raises:
            SaveFailed: The system refused; earlier checkpoints are untouched.
            UnsupportedValue: The snapshot holds something that the format cannot keep exactly.
        """
        from samestep.store.writing import write_checkpoint

        if not self._is_tidy:
            self.tidy()
        self._is_tidy = False  # a failing save may be unable to remove its own draft
        checkpoint = write_checkpoint(self.directory, snapshot, environment or {}, tags)
        self._is_tidy = True
        self._require_written(checkpoint)
        self.retain([checkpoint.name, *protect], written_last=checkpoint.name)
        return checkpoint

    def retain(self, protect: Collection[str] = (), *, written_last: str | None = None) -> list[str]:
        """Apply the policy, as each save does: also where the last save was killed before it could.

        Args:
            protect: Names of checkpoints that stay whatever the policy says.
            written_last: The name of the one that was written last, where that is known.

        Returns:
            The names of what was deleted; never the newest complete checkpoint.
        """
        return self._shelf.retain(self.keep, protect=protect, written_last=written_last)

    def _require_written(self, checkpoint: Checkpoint) -> None:
        """Read back manifest and sizes: nothing older may go for a checkpoint that is not there."""
        try:
            checkpoint.check()
        except SamestepError as error:
            raise SaveFailed(
                f"The checkpoint of step {checkpoint.step} was written but does not read back.",
                path=error.path,
                found=one_line(error),
                hint="No earlier checkpoint was deleted. Look at the disk and the system's log.",
            ) from error

    def tidy(self) -> list[Path]:
        """Remove what dead writers left in the folder: unfinished drafts and half-deleted checkpoints.

        Returns:
            The paths that were removed.
        """
        self._is_tidy = True
        return folder.tidy(self.directory)

    # --- finding ---------------------------------------------------------------------------------------

    def checkpoints(self) -> list[Checkpoint]:
        """Find the committed checkpoints, oldest first, by names alone; nothing is read or checked."""
        return find_checkpoints(self.directory)

    def latest(self) -> Checkpoint | None:
        """Find the newest checkpoint whose manifest and sizes hold; None when there is none.

        What is newer but damaged is reported by a warning and moved into `quarantine`, never deleted.

        Raises:
            NewerFormat: The newest one was written by a newer samestep.
            SamestepError: The newest one cannot be opened and may be intact.
        """
        return next(self.fallback.sound(self.fallback.newest_first()), None)

    def best(self, metric: str | None = None, mode: str | None = None) -> Checkpoint | None:
        """Find the checkpoint with the best score whose manifest and sizes hold; None when none has one.

        Args:
            metric: The score's name (default: the policy's).
            mode: "max" or "min" (default: the policy's).

        Returns:
            The checkpoint; of equally good ones the earliest.

        Raises:
            SamestepError: Neither the call nor the policy names a score.
        """
        return next(self.fallback.sound(self._best_first(metric, mode)), None)

    def latest_good(self, map_location: Any = None) -> tuple[Checkpoint, Snapshot] | None:
        """Read the newest checkpoint of which every digest holds; None when there is none.

        Args:
            map_location: Where tensors go, as in `torch.load`.

        Returns:
            The checkpoint and its snapshot. What is newer but damaged is reported and set aside.
        """
        return self.fallback.first_good(self.fallback.newest_first(), map_location)

    # --- loading ---------------------------------------------------------------------------------------

    def load(
        self,
        objects: Mapping[str, object],
        which: str | int = "latest",
        *,
        map_location: Any = None,
        allow_missing: Collection[str] = (),
    ) -> Checkpoint:
        """Restore objects from a checkpoint, all of them or, on an error, none.

        Args:
            objects: The objects by the names under which they were saved.
            which: "latest" (default) or "best", which fall back to the next one when a checkpoint is damaged; or
                a step such as 400 or "step-400", which must be sound.
            map_location: Where tensors go, as in `torch.load`.
            allow_missing: Names that may be missing, in the checkpoint or among the objects.

        Returns:
            The checkpoint that was restored.

        Raises:
            NoCheckpoint: There is none, or not this one.
            CorruptCheckpoint: The one asked for is damaged; it names file and tensor.
            StateMismatch: Checkpoint and objects do not belong together; nothing has been changed.
        """
        check_objects(objects, "Store.load")
        check_wishes(map_location, allow_missing)
        checkpoint, snapshot = self._choose(which, map_location)
        from samestep.state.capture import restore

        restore(objects, snapshot.items, allow_missing=allow_missing)
        return checkpoint

    def find(self, which: str | int) -> Checkpoint:
        """Find the checkpoint of a step.

        Args:
            which: A step such as 400, or a name such as "step-400" or "step-000000400.1".

        Returns:
            The checkpoint; when the step was saved more than once, the newest. Nothing of it is read.

        Raises:
            NoCheckpoint: There is none of this step.
        """
        named = named_step(which)
        if named is None:
            raise NoCheckpoint(
                "This names no checkpoint.",
                path=self.directory,
                expected='"latest", "best", 400 or "step-400"',
                found=shown(which),
            )
        name, step, order = named
        wanted = [each for each in self.checkpoints() if each.step == step and order in {None, each.order}]
        if not wanted:
            raise NoCheckpoint(
                "There is no checkpoint of this step.", path=self.directory, expected=name, found=self._names()
            )
        return wanted[-1]

    def _choose(self, which: str | int, map_location: Any) -> tuple[Checkpoint, Snapshot]:
        if not isinstance(which, str) or which not in {"latest", "best"}:
            checkpoint = self.find(which)
            return checkpoint, checkpoint.read(map_location)
        candidates = self.fallback.newest_first() if which == "latest" else self._best_first(None, None)
        found = self.fallback.first_good(candidates, map_location)
        if found is None:
            raise NoCheckpoint(
                f"There is no sound checkpoint to load as {which!r}.",
                path=self.directory,
                found=self._names(),
                hint="Check the directory." if which == "latest" else "Check the score's name, and the directory.",
            )
        return found

    def _names(self) -> str:
        return ", ".join(each.name for each in self.checkpoints()) or "none"

    def _best_first(self, metric: str | None, mode: str | None) -> Iterator[Checkpoint]:
        require("Store.best(metric=…)", "the name of a score", metric, metric is None or isinstance(metric, str))
        metric = metric or self.keep.metric
        if metric is None:
            raise SamestepError(
                "The best checkpoint cannot be found without knowing by which score.",
                path="Store.best",
                hint="Name the score: Keep(best=1, metric='val_acc').",
            )
        mode = self.keep.mode if mode is None else mode
        require_mode(mode, "Store.best(mode=…)")
        sign = 1 if mode == "max" else -1
        scores = {each.name: each.metrics.get(metric, math.nan) for each in self._shelf.entries()}
        scored = [name for name, score in scores.items() if not math.isnan(score)]
        return (Checkpoint(self.directory / name) for name in sorted(scored, key=lambda name: -sign * scores[name]))
