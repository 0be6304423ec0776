"""Owns when snapshots of a run are taken, saved and restored. Knows no loop statement and no file format."""

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from samestep.attempt import SETTINGS, Attempt
from samestep.errors import CorruptCheckpoint, StateMismatch
from samestep.losses import LossWatch
from samestep.messages import warn_user
from samestep.mistakes import MistakeWatch
from samestep.progress import Progress, Scoring
from samestep.schedule import Schedule
from samestep.signals import StopSignals
from samestep.state.carried import Carried
from samestep.state.settings import without_effect
from samestep.state.snapshot import Item, Snapshot
from samestep.store.reading import Checkpoint
from samestep.tracked import MarkedSnapshot, Tracked

_log = logging.getLogger("samestep")


@dataclass(slots=True)
class Loop:
    """A loop of the script.

    Args:
        kind: "epochs", "steps", or "boundary" for one that marks its boundaries by hand.
        bound: How many epochs or steps it goes to.
        number: Which loop of the script it is, from 1.
        is_over: Whether an earlier process has come to its end already.
    """

    kind: str
    bound: float
    number: int
    is_over: bool = False


class Keeper:
    """Takes the snapshots of a run where the loop allows it, and gives them back.

    Args:
        attempt: This process's work on the run directory.
        tracked: The tracked objects.
        progress: Where the training is.
        schedule: How often a checkpoint is due.
        scoring: Which scores make one due.
    """

    def __init__(
        self, attempt: Attempt, tracked: Tracked, progress: Progress, schedule: Schedule, scoring: Scoring
    ) -> None:
        self._attempt, self._tracked, self._progress = attempt, tracked, progress
        self._schedule, self.scoring = schedule, scoring
        self.signals = StopSignals(self._on_signal)
        self.losses: LossWatch | None = None
        self._found: tuple[Checkpoint, Snapshot] | None = None
        self._sought = self._asked = self._busy = False
        self._marked: MarkedSnapshot | None = None
        self._again: tuple[Mapping[str, Item], Collection[str]] | None = None
        self._name: str | None = None
        self._at_boundary: tuple[int, int] | None = None
        self._asked_at: tuple[int, int] | None = None
        self._built: dict[str, Any] | None = None
        self.mistakes = MistakeWatch(attempt.directory, schedule)
        self.unsaved = self._put_off = False

    # --- restoring --------------------------------------------------------------------------------------

    @property
    def has_started(self) -> bool:
        """Whether the state is restored, or a new training has begun."""
        return self.losses is not None

    def start(self, loop: Loop, resume: str, allow_missing: Collection[str]) -> None:
        """Restore the newest checkpoint; if it belongs to a later loop of the script, what this one ended with."""
        self._busy = True
        self._tracked.require_unread()
        if not self._sought:
            self._found, self._sought = self._attempt.find(resume), True
        self._tracked.require_savable()
        built = self._built = self._tracked.settings() if self._built is None else self._built
        if self._found is None:
            self._attempt.begin(None, (0, None), self._tracked.seed, built)
        elif self._belongs_later(loop, self._found[1], allow_missing):
            self._busy = False
            return
        else:
            self._restore(self._found[1], allow_missing)
            before = self._found[0].environment.get(SETTINGS, {})
            ignored = without_effect(before, built, self._tracked.settings())
            self.mistakes.settings(ignored)
            # What has no effect is not recorded, so that the next resume says it again.
            built = built | {path: then for path, (then, _) in ignored.items()}
            metrics = self._progress.metrics_bytes, self._progress.metrics_digest
            self._attempt.begin(self._found[0], metrics, self._tracked.seed, built)
            self._name = self._found[0].name
        self._found, self.losses = None, self._tracked.begin()
        self._schedule.saved(self._progress.completed_steps, self._progress.epoch)
        self.mistakes.saved(self._progress.completed_steps)
        self._busy = False

    def _belongs_later(self, loop: Loop, snapshot: Snapshot, allow_missing: Collection[str]) -> bool:
        saved = self._tracked.saved_progress(snapshot.items)
        kind, bound, name = saved.loop_ends.get(loop.number, ("", 0, ""))
        if saved.loop <= loop.number or (kind, bound) != (loop.kind, loop.bound):
            return False
        loop.is_over = True
        end = self._attempt.find_end(name)
        if end is not None:
            self._restore(end, allow_missing)
        return True

    def _restore(self, snapshot: Snapshot, allow_missing: Collection[str]) -> None:
        saved = self._tracked.saved_progress(snapshot.items)
        if saved.completed_steps != snapshot.step:
            raise CorruptCheckpoint(
                "The checkpoint and the progress of the run in it speak of different steps.",
                path="run.completed_steps",
                expected=snapshot.step,
                found=saved.completed_steps,
            )
        self._tracked.require_top(saved.top)
        # Where boundaries are marked at the end of bodies, nothing tells when the top of the epoch is over.
        again = saved.inside and not saved.ends_bodies
        self._tracked.restore(snapshot.items, allow_missing, inside=again)
        self.scoring.restored(snapshot.metrics, self.updates())
        if again:
            self._again = snapshot.items, allow_missing
        elif saved.kind == "epochs" and not saved.inside:
            self._tracked.expect_new_epoch()

    @property
    def is_inside(self) -> bool:
        """Whether an epoch was resumed inside and its first batch has not been asked for."""
        return self._again is not None

    def restore_again(self, leader: str | None) -> None:
        """Overwrite what the statements at the top of a resumed epoch have changed by running again."""
        if self._again is not None:
            self._tracked.reapply(*self._again, leader)
            self._again = None

    # --- saving -----------------------------------------------------------------------------------------

    def step(self) -> None:
        """Note that the loop says that an update is completed."""
        self.scoring.refuse_update(self.updates())
        self.mistakes.step(self._progress.completed_steps, self._tracked.updates)

    def ask(self) -> None:
        """Ask for a checkpoint at the next boundary."""
        self._asked, self._asked_at = True, self._place()

    def is_asked_here(self) -> bool:
        """Tell whether a checkpoint has been asked for since the last update."""
        return self._asked and self._asked_at == self._place()

    def boundary(self, *, ends_epoch: bool = False) -> None:
        """Take the checkpoint that is due: the whole body before this place is done."""
        self._busy, self._marked, self.unsaved = True, None, True
        self._at_boundary = self._place()
        self.scoring.refuse_update(self.updates())
        self.mistakes.boundary(self._progress.completed_steps, self._tracked.updates)
        if self._is_due():
            self.save()
        if ends_epoch and self.signals.installed:
            self._marked = MarkedSnapshot(self.snapshot(), saved=not self.unsaved)
        self._busy = False
        self._leave_by_signal()

    def _is_due(self) -> bool:
        asked = self._asked or self.scoring.due or self.signals.received is not None
        return asked or self._schedule.due(self._progress.completed_steps, self._progress.epoch)

    def put_off(self, held: Collection[Carried]) -> None:
        """Say, once, that a checkpoint is due here but has to wait: something holds samples that would be lost."""
        self.scoring.refuse_update(self.updates())
        if not self._put_off and self._is_due():
            self._put_off = True
            warn_user(
                "A checkpoint is due, but what stands between loader and loop holds samples back, which a resume would"
                " lose. It waits until nothing is held, or for the end of the epoch. To save here, keep in run.state"
                " what is not yet used, and set what is only kept behind its use to None before the next batch is"
                " asked for:" + "".join(f"\n  {each.name}, {each.file}:{each.line}" for each in held)
            )

    def is_at_boundary(self) -> bool:
        """Tell whether no update has been completed since the last boundary."""
        return self._at_boundary == self._place()

    def save(self) -> None:
        """Write a checkpoint of the present state."""
        if self.losses is not None:
            self.losses.warn()
        self._asked = False
        self._schedule.saved(self._progress.completed_steps, self._progress.epoch)
        name = self._attempt.write(self.snapshot(), protect=self._protected())
        if name is not None:
            self._name, self.unsaved, self.scoring.due = name, False, False
            self.mistakes.saved(self._progress.completed_steps)

    def snapshot(self) -> Snapshot:
        """Capture the present state: plain trees, and live references to the tensors."""
        self._progress.metrics_bytes, self._progress.metrics_digest = self._attempt.log_position()
        progress, scores = self._progress, self.scoring.belonging(self.updates())
        epoch = progress.epoch if progress.epoch or progress.inside else None
        return Snapshot(progress.completed_steps, epoch, self._tracked.items(), scores)

    def updates(self) -> int:
        """Count the updates of the weights: what the tracked optimizers did, or what the loop says."""
        return self._tracked.updates or self._progress.completed_steps

    def _protected(self) -> list[str]:
        """Name the checkpoints with which earlier loops ended: a resume stands there between two loops."""
        return [name for _, _, name in self._progress.loop_ends.values()]

    def _place(self) -> tuple[int, int]:
        return self._progress.completed_steps, self.updates()

    # --- ending -----------------------------------------------------------------------------------------

    def finish(self, loop: Loop) -> None:
        """Save what a loop has come to at its end, if it is not saved yet; a later loop keeps that checkpoint."""
        if loop.is_over:
            self._leave_by_signal()
            return
        if self.unsaved or not (self._name is None or self._attempt.has(self._name)):
            self.save()
        elif self._name is not None:
            self._attempt.retain([self._name, *self._protected()])
        if self.unsaved and self._attempt.failure is not None:
            self._attempt.end("not saved", self._progress.completed_steps)
            raise self._attempt.failure
        self.mistakes.boundary(self._progress.completed_steps, self._tracked.updates, ends_loop=True)
        self.scoring.warn_if_unscored(self._progress)
        if self._name is not None:
            self._progress.loop_ends[loop.number] = (loop.kind, loop.bound, self._name)
            self.mistakes.many_loops(len(set(self._protected())))
        self._attempt.end("finished", self._progress.completed_steps)
        _log.info("finished at step %d", self._progress.completed_steps)
        self._leave_by_signal()

    def leave(self, *, early: bool) -> None:
        """Give the signals back; a loop that was left early is recorded as such."""
        self._marked = None
        if early and self.signals.received is None:
            self._attempt.end("left the loop", self._progress.completed_steps)
            self.mistakes.left_early(self._attempt, self._progress.completed_steps)
        self.signals.remove()
        if not early:  # one that came while the loop's end was written down must not be lost
            self._leave_by_signal()

    def _on_signal(self) -> None:
        """Save at once if a signal comes behind an epoch's end: a long evaluation would outlast the grace period."""
        received = self.signals.received
        name = "a signal" if received is None else received.name
        _log.info("%s: the state is saved at the next boundary, then the process ends", name)
        if self._busy or self._marked is None:
            return
        self._busy = True
        try:
            snapshot = self._marked.snapshot(self._tracked.items())
        except StateMismatch as error:
            _log.warning("the signal has to wait for the next boundary. %s", str(error))
            self._busy = False
            return
        if not self._marked.saved:
            self._attempt.write(snapshot, protect=self._protected())
        self._leave_by_signal()

    def _leave_by_signal(self) -> None:
        if self.signals.received is not None:
            self._attempt.end(f"signal {self.signals.received.value}", self._progress.completed_steps)
            self.signals.leave()
