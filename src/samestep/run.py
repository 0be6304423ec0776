"""The loop's companion: the only place where state, data and store meet. Knows no file format and no tensor."""

import logging
import os
import sys
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

from samestep.attempt import Attempt
from samestep.errors import StateMismatch, WrongPlace
from samestep.ownership import OwnRandomState
from samestep.progress import Progress, Scoring, Values
from samestep.schedule import parse_schedule
from samestep.signals import StopSignals
from samestep.state.random import isolated, seed_everything
from samestep.state.snapshot import Item, Snapshot
from samestep.store.reading import Checkpoint
from samestep.store.retention import Keep
from samestep.tracked import MarkedSnapshot, Tracked

_log = logging.getLogger("samestep")


class Run:
    """One training that any number of processes work on, one after the other, to the same bits.

    The same command starts it, resumes it and, when all is done, does nothing more.

    Args:
        directory: Where its checkpoints and records live; made if it is not there.
        seed: Seeds Python, NumPy and torch now, and the tracked loaders; None (default) leaves them alone.
        save_every: How often a checkpoint is taken: an int (updates), "100 steps", "1 epoch", "30 s", "5 min"
            (default), "2 h", or None: only when asked for, at signals and at the end.
        keep: Which checkpoints stay (default: the last two).
        resume: "auto" (default: go on from the newest good checkpoint, or start), "must" (never start),
            "never" (start anew; earlier checkpoints are set aside) or "step-400".
        config: The configuration of the training as plain values; recorded, and compared on a resume.
        allow_missing: Names of tracked objects that may be missing in the checkpoint, or in the run.

    Raises:
        RunLocked: Another process is working on this run.
        SamestepError: An argument is not understood.

    Example:
        >>> import tempfile, torch
        >>> model = torch.nn.Linear(2, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> run = Run(tempfile.mkdtemp(), save_every=None)
        >>> run.track(model=model, optimizer=optimizer)
        >>> for step in run.steps(3):
        ...     loss = model(torch.ones(1, 2)).square().mean()
        ...     optimizer.zero_grad()
        ...     loss.backward()
        ...     optimizer.step()
        ...     run.step(loss=loss)
        >>> run.completed_steps
        3
    """

    _observers: ClassVar[list[Callable[["Run"], None]]] = []
    """Called at every boundary; `samestep.testing` listens here."""

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        seed: int | None = None,
        save_every: int | str | None = "5 min",
        keep: Keep | None = None,
        resume: str = "auto",
        config: Mapping[str, Any] | None = None,
        allow_missing: Collection[str] = (),
    ) -> None:
        self._schedule = parse_schedule(save_every)
        keep = Keep() if keep is None else keep
        self._attempt = Attempt(directory, keep, config)
        weakref.finalize(self, self._attempt.close)
        self._resume, self._allow_missing = resume, allow_missing
        self._progress = Progress()
        self._scoring = Scoring(keep.best, keep.metric, keep.mode)
        self._tracked = Tracked(self._progress, None if seed is None else seed_everything(seed)["seed"])
        self._random = OwnRandomState()
        self._signals = StopSignals(self._on_signal)
        self._loop: _Loop | None = None
        self._started = self._asked = self._stopping = self._busy = False
        self._unsaved = self._left_early = self._sought = False
        self._found: tuple[Checkpoint, Snapshot] | None = None
        self._isolation = self._loops_begun = 0
        self._reapply: Mapping[str, Item] | None = None
        self._marked: MarkedSnapshot | None = None

    # --- what the training is made of -------------------------------------------------------------------

    def track(self, **objects: Any) -> None:
        """Name the objects whose state decides the next step. Call it after building them, before the loop.

        Args:
            objects: Anything with `state_dict` and `load_state_dict` (modules, optimizers, schedulers, scalers,
                samestep loaders, your own), tensors, and generators of torch, NumPy and Python. The first loader is
                the training loader: asking it for a batch is a boundary.

        Raises:
            NotTracked: An object cannot be tracked, or its name is taken.
            WrongPlace: A loop has already begun.
        """
        if self._started:
            raise WrongPlace("The loop has begun.", path="run.track", hint="Track everything before the loop.")
        for name, value in objects.items():
            self._tracked.add(name, value)
        self._tracked.ask_before_batches(self._before_batch)

    @property
    def state(self) -> Values:
        """The loop's own values, tracked: `run.state.total = 0` before the loop, `run.state.total += 1` in it."""
        return self._progress.values

    @property
    def completed_steps(self) -> int:
        """How many optimizer updates are done."""
        return self._progress.completed_steps

    @property
    def epoch(self) -> int:
        """The number of the epoch that is running, from 0; after the loop, how many are done."""
        return self._progress.epoch

    @property
    def best(self) -> tuple[float, int] | None:
        """The best score of `keep.metric` so far and its step; None before the first score."""
        return self._progress.best[0] if self._progress.best else None

    # --- loops ------------------------------------------------------------------------------------------

    def epochs(self, n: int) -> Iterator[int]:
        """Loop over epochs; restores the newest checkpoint first, after building and right before the next step.

        Args:
            n: How many epochs the training has in all, not how many are left.

        Yields:
            The epoch's number, from 0. After a resume in the middle of an epoch, that epoch again: the training
            loader goes on behind the last batch that was handed out.
        """
        loop = _Loop("epochs", n)
        with self._looping(loop):
            while self._goes_on(self._progress.epoch, loop):
                self._progress.inside = True
                yield self._progress.epoch
                self._progress.epoch, self._progress.inside = self._progress.epoch + 1, False
                self._boundary(ends_epoch=True)

    def steps(self, n: int) -> Iterator[int]:
        """Loop over optimizer updates; restores the newest checkpoint first.

        Args:
            n: How many completed updates the training has in all. The body calls `run.step()` once per update.

        Yields:
            The number of completed steps: 0 at the start, 40 after a resume at 40.
        """
        loop = _Loop("steps", n)
        with self._looping(loop):
            while self._goes_on(self._progress.completed_steps, loop):
                yield self._progress.completed_steps
                self._boundary()

    def boundary(self) -> None:
        """Mark by hand the place where the whole body before it is done: for foreign loaders and `while` loops.

        Outside `epochs` and `steps` the first call restores the newest checkpoint: put it at the top of the body.
        """
        if self._loop is None:
            self._enter(_Loop("boundary", sys.maxsize))
        self._boundary()

    # --- what the loop says -----------------------------------------------------------------------------

    def step(self, **values: Any) -> None:
        """Say that one optimizer update is completed. Never waits for the device, unless a checkpoint is due.

        Args:
            values: Numbers or tensors of one element to record in `metrics.jsonl`, such as `loss=loss`.

        Raises:
            WrongPlace: Outside a loop; or weights that `run.score` found the best have not been saved yet.
        """
        if self._loop is None:
            raise WrongPlace("There is no loop here.", path="run.step", hint="Loop with run.epochs or run.steps.")
        self._progress.completed_steps += 1
        self._scoring.refuse_update(self._updates())
        self._record(**values)

    def score(self, **scores: Any) -> None:
        """Give scores of the present weights; if they are among the best, a checkpoint of them is due.

        Args:
            scores: Numbers or tensors of one element, by name. `keep.metric` names the one that decides.
        """
        numbers = {name: float(value) for name, value in scores.items()}
        self._scoring.note(numbers, self._progress, self._updates())
        self._record(score=numbers)

    def save(self) -> None:
        """Ask for a checkpoint: at the next boundary inside a loop, at once outside."""
        if self._loop is not None:
            self._asked = True
            return
        if self._left_early:
            raise WrongPlace(
                "The last loop was left in the middle of its body, so its state cannot be resumed exactly.",
                path="run.save",
                hint="End a loop early with run.stop(); the last checkpoint is untouched.",
            )
        with self._random.swapped_in():
            self._save()

    def stop(self) -> None:
        """End the loop at its next boundary, as finished: the same command started again does nothing more.

        Use it for early stopping instead of `break`, after which the last epoch would be done again.
        """
        self._stopping = True

    @contextmanager
    def isolated(self) -> Iterator[None]:
        """Leave the training's random numbers alone: evaluate, sample, plot inside.

        All generators of the process and the tracked ones are put back afterwards, also after an exception; loaders
        make no boundaries meanwhile.
        """
        self._isolation += 1
        try:
            with isolated(*self._tracked.generators.values()):
                yield
        finally:
            self._isolation -= 1

    def close(self) -> None:
        """End the work of this process on the run and give its lock back; leaving the interpreter does it too."""
        self._leave()
        self._attempt.close()

    # --- inside -----------------------------------------------------------------------------------------

    @contextmanager
    def _looping(self, loop: "_Loop") -> Iterator[None]:
        if self._loop is not None:
            raise WrongPlace("A loop of this run is already running.", path=f"run.{loop.kind}")
        try:
            self._enter(loop)
            yield
            self._finish()
        finally:
            self._leave()

    def _enter(self, loop: "_Loop") -> None:
        self._loop, self._attempt.in_loop, self._left_early = loop, True, True
        self._loops_begun += 1
        self._random.enter()
        self._signals.install()
        if not self._started:
            self._busy = True
            self._start(loop)
            self._busy = False

    def _start(self, loop: "_Loop") -> None:
        """Restore the newest checkpoint, unless it belongs to a later loop of the script, which will restore it."""
        if not self._sought:
            self._found, self._sought = self._attempt.find(self._resume), True
        if self._found is None:
            self._progress.loop = self._loops_begun
            self._attempt.begin(None, 0)
        else:
            checkpoint, snapshot = self._found
            saved = self._tracked.saved_progress(snapshot.items)
            done = saved.epoch if loop.kind == "epochs" else saved.completed_steps
            if saved.loop > self._loops_begun and done >= loop.bound:
                loop.is_over = True
                return
            self._tracked.restore(snapshot.items, self._allow_missing)
            self._scoring.restored(snapshot.metrics, self._updates())
            self._reapply = snapshot.items if self._progress.inside else None
            self._attempt.begin(checkpoint, self._progress.metrics_bytes)
        self._tracked.begin()
        self._schedule.saved(self._progress.completed_steps, self._progress.epoch)
        self._started, self._found = True, None

    def _goes_on(self, done: int, loop: "_Loop") -> bool:
        """Tell whether the loop has another body to run; a loop that was stopped goes on only to a higher bound."""
        progress = self._progress
        if loop.is_over:
            return False
        if self._stopping:
            self._stopping, self._unsaved = False, True
            progress.finished_at = loop.bound
        if done >= loop.bound or loop.bound <= progress.finished_at:
            return False
        progress.finished_at, progress.loop = 0, max(progress.loop, self._loops_begun)
        return True

    def _finish(self) -> None:
        """Save what the loop has come to at its end, if it is not saved yet."""
        self._left_early = False
        if not self._started:
            return
        if self._unsaved:
            self._save()
        self._attempt.end("finished", self._progress.completed_steps)
        self._leave_by_signal()

    def _leave(self) -> None:
        if self._loop is None:
            return
        if self._left_early and self._progress.inside:
            # A broken epoch is over: a further loop of this process begins the next one.
            self._progress.epoch, self._progress.inside = self._progress.epoch + 1, False
        if self._left_early:
            self._attempt.end("left the loop", self._progress.completed_steps)
        self._loop, self._attempt.in_loop, self._marked = None, False, None
        self._signals.remove()
        self._random.leave()

    def _before_batch(self) -> None:
        """Take the boundary that the training loader makes when the loop asks for its next batch."""
        if self._loop is None or self._loop.kind != "epochs" or self._isolation:
            return
        if self._reapply is not None:
            self._tracked.reapply(self._reapply)
            self._reapply = None
        self._boundary(ends_epoch=self._tracked.loader_is_exhausted())

    def _boundary(self, *, ends_epoch: bool = False) -> None:
        """Take the checkpoint that is due: the whole body before this place is done."""
        self._busy, self._marked, self._unsaved = True, None, True
        for observe in self._observers:
            observe(self)
        self._scoring.refuse_update(self._updates())
        due = self._asked or self._scoring.due or self._signals.received is not None
        if due or self._schedule.due(self._progress.completed_steps, self._progress.epoch):
            self._save()
        if ends_epoch and self._signals.installed:
            self._marked = MarkedSnapshot(self._snapshot(), saved=not self._unsaved)
        self._busy = False
        self._leave_by_signal()

    def _save(self) -> None:
        self._tracked.warn_of_losses()
        self._asked = False
        self._schedule.saved(self._progress.completed_steps, self._progress.epoch)
        if self._attempt.write(self._snapshot()):
            self._unsaved = self._scoring.due = False

    def _snapshot(self) -> Snapshot:
        self._progress.metrics_bytes = self._attempt.log_position()
        progress, scores = self._progress, self._scoring.belonging(self._updates())
        epoch = progress.epoch if progress.epoch or progress.inside else None
        return Snapshot(progress.completed_steps, epoch, self._tracked.items(), scores)

    def _on_signal(self) -> None:
        """Save at once if a signal comes behind an epoch's end: a long evaluation would outlast the grace period."""
        if self._busy or self._marked is None:
            return
        self._busy = True
        try:
            snapshot = self._marked.snapshot(self._tracked.items())
        except StateMismatch as error:
            _log.warning("the signal has to wait for the next boundary. %s", error)
            self._busy = False
            return
        if not self._marked.saved:
            self._attempt.write(snapshot)
        self._leave_by_signal()

    def _leave_by_signal(self) -> None:
        if self._signals.received is not None:
            self._attempt.end(f"signal {self._signals.received.value}", self._progress.completed_steps)
            self._left_early = False
            self._signals.leave()

    def _record(self, **values: Any) -> None:
        self._attempt.log(step=self._progress.completed_steps, epoch=self._progress.epoch, **values)

    def _updates(self) -> int:
        """Count the updates of the weights: what the tracked optimizers did, or what the loop says."""
        return self._tracked.updates or self._progress.completed_steps


@dataclass(slots=True)
class _Loop:
    kind: str
    bound: int
    is_over: bool = False
