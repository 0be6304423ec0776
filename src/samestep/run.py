"""The loop's companion: the only place where state, data and store meet. Knows no file format and no tensor."""

import os
import sys
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, ClassVar

from samestep.arguments import check_arguments, checked_bound, require_free_names, require_named
from samestep.attempt import Attempt
from samestep.epoch import EpochInside
from samestep.errors import WrongPlace
from samestep.keeper import Keeper, Loop
from samestep.ownership import OwnRandomState
from samestep.progress import Progress, Scoring, Values
from samestep.schedule import parse_schedule
from samestep.state.random import checked_seed, isolated, seed_everything
from samestep.store.metrics import checked_scores
from samestep.store.retention import Keep
from samestep.tracked import Tracked


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
        schedule = parse_schedule(save_every)
        keep = Keep() if keep is None else keep
        check_arguments(keep, resume, config, allow_missing)
        seed = None if seed is None else checked_seed(seed, "Run(seed=…)")
        self._attempt = Attempt(directory, keep, config)
        weakref.finalize(self, self._attempt.close)
        self._resume, self._allow_missing = resume, allow_missing
        self._progress = Progress()
        self._tracked = Tracked(self._progress, None if seed is None else seed_everything(seed)["seed"])
        weakref.finalize(self, self._tracked.close).atexit = False
        scoring = Scoring(keep.best, keep.metric, keep.mode)
        self._keeper = Keeper(self._attempt, self._tracked, self._progress, schedule, scoring)
        self._inside = EpochInside(self._tracked, self._progress, self._keeper, weakref.WeakMethod(self._boundary))
        self._random = OwnRandomState()
        self._loop: Loop | None = None
        self._loops_begun = self._isolation = 0
        self._left_early = False

    # --- what the training is made of -------------------------------------------------------------------

    def track(self, *unnamed: object, **objects: Any) -> None:
        """Name the objects whose state decides the next step. Call it after building them, before the loop.

        Args:
            unnamed: Nothing: each object needs a name of its own.
            objects: Anything with `state_dict` and `load_state_dict` (modules, optimizers, schedulers, scalers,
                samestep loaders, your own), tensors, and generators of torch, NumPy and Python.

        Raises:
            NotTracked: An object cannot be tracked, or its name is taken.
            WrongPlace: A loop has already begun.
        """
        require_named("run.track", unnamed, "model=model, optimizer=optimizer")
        if self._loops_begun:
            raise WrongPlace("The loop has begun.", path="run.track", hint="Track everything before the loop.")
        for name, value in objects.items():
            self._tracked.add(name, value)
        self._inside.follow_loaders()
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
        """The number of the epoch that is running, from 0: how many are done."""
        return self._progress.epoch

    @property
    def best(self) -> tuple[float, int] | None:
        """The best score of `keep.metric` so far and its step; None before the first score."""
        return self._progress.best[0] if self._progress.best else None

    # --- loops ------------------------------------------------------------------------------------------

    def epochs(self, n: float) -> Iterator[int]:
        """Loop over epochs; restores the newest checkpoint first, after building and right before the next step.

        Args:
            n: How many epochs the training has in all, not how many are left; `math.inf` until `run.stop()`.

        Yields:
            The epoch's number, from 0. After a resume in the middle of an epoch, that epoch again: the training
            loader goes on behind the last batch that was handed out.
        """
        progress = self._progress
        with self._looping("epochs", checked_bound("epochs", n)) as loop:
            while self._goes_on(progress.epoch, loop):
                self._inside.begin()
                yield progress.epoch
                progress.leave_epoch()
                self._boundary(ends_epoch=True)

    def steps(self, n: float) -> Iterator[int]:
        """Loop over optimizer updates; restores the newest checkpoint first.

        Args:
            n: How many completed updates the training has in all, or `math.inf`. The body calls `run.step()` once each.

        Yields:
            The number of completed steps: 0 at the start, 40 after a resume at 40.
        """
        with self._looping("steps", checked_bound("steps", n)) as loop:
            while self._goes_on(self._progress.completed_steps, loop):
                yield self._progress.completed_steps
                self._boundary()

    def boundary(self) -> None:
        """Mark by hand the place where the whole body before it is done: for `while` loops and foreign loaders.

        In a `while` loop put it at the top of the body, before anything is asked of the run: outside `epochs` and
        `steps` its first call restores the newest checkpoint. Behind the loop, `run.save()` and `run.close()` keep what
        it ended with. In a loop over a foreign loader put it at the end of the body; the loader must be tracked, with a
        `state_dict` of its own. What stands at the top of an epoch then counts again when that epoch is resumed.

        Example:
            >>> import tempfile, torch
            >>> run = Run(tempfile.mkdtemp(), save_every=None)
            >>> run.track(model=torch.nn.Linear(1, 1))
            >>> while True:
            ...     run.boundary()
            ...     if run.completed_steps >= 3:
            ...         break
            ...     run.step()
            >>> run.save()
            >>> run.close()

        Raises:
            WrongPlace: Nothing that is tracked can know a place inside the epoch.
        """
        if self._loop is None:
            self._enter("boundary", sys.maxsize)
        elif self._loop.kind == "epochs":
            if not self._tracked.knows_position() and not vars(self.state):
                raise WrongPlace(
                    "Nothing that is tracked knows which batches of the epoch are done.",
                    path="run.boundary",
                    hint="Track the loader (samestep.DataLoader, or one with a state_dict), or count in run.state.",
                )
            self._inside.mark_by_hand()
        self._boundary()

    # --- what the loop says -----------------------------------------------------------------------------

    def step(self, *unnamed: object, **values: Any) -> None:
        """Say that one optimizer update is completed. Never waits for the device, unless a checkpoint is due.

        Args:
            unnamed: Nothing: each value needs a name.
            values: Numbers or tensors of one element to record in `metrics.jsonl`, such as `loss=loss`.

        Raises:
            WrongPlace: Outside a loop; or weights that `run.score` found the best have not been saved yet.
        """
        require_named("run.step", unnamed, "loss=loss")
        require_free_names("run.step", values, ("step", "epoch"))
        if self._loop is None:
            raise WrongPlace("There is no loop here.", path="run.step", hint="Loop with run.epochs or run.steps.")
        self._progress.completed_steps += 1
        self._keeper.step()
        self._inside.step()
        self._record(**values)

    def score(self, *unnamed: object, **scores: Any) -> None:
        """Give scores of the present weights; if they are among the best, a checkpoint of them is due.

        Args:
            unnamed: Nothing: each score needs a name.
            scores: Numbers or tensors of one element, by name. `keep.metric` names the one that decides.

        Raises:
            SamestepError: A score is not a number.
            WrongPlace: Before the first loop, where the weights are not yet those of the run.
        """
        require_named("run.score", unnamed, "val_acc=accuracy")
        numbers = checked_scores(scores, "run.score")
        self._require_started("run.score")
        self._keeper.scoring.note(numbers, self._progress, self._keeper.updates())
        self._record(score=numbers)

    def save(self) -> None:
        """Ask for a checkpoint: at the next boundary inside a loop, at once behind it.

        Raises:
            WrongPlace: Before the first loop, or behind one that was left in the middle of a body.
        """
        self._require_started("run.save")
        by_hand = self._loop is not None and self._loop.kind == "boundary"
        if self._loop is not None and not (by_hand and self._keeper.is_at_boundary()):
            self._keeper.ask()
            return
        if self._left_early and not by_hand:
            raise WrongPlace(
                "The last loop was left in the middle of its body, so its state cannot be resumed exactly.",
                path="run.save",
                hint="End a loop early with run.stop(); the last checkpoint is untouched.",
            )
        with nullcontext() if by_hand else self._random.swapped_in():
            self._keeper.save()

    def stop(self) -> None:
        """End the loop when its body is done, as finished: the same command started again does nothing more.

        Use it for early stopping instead of `break`, after which the last epoch would be done again. In a loop over
        epochs the running epoch goes on to its end.
        """
        self._progress.stopping = True

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
        """End the work of this process on the run and give its lock back; leaving the interpreter does it too.

        Behind a `while` loop with `run.boundary()` it writes what `run.save()` has asked for since the last step.
        """
        if self._loop is not None and self._loop.kind == "boundary" and self._keeper.is_asked_here():
            self._keeper.save()
        self._leave()
        self._tracked.close()
        self._attempt.close()

    # --- inside -----------------------------------------------------------------------------------------

    @contextmanager
    def _looping(self, kind: str, bound: float) -> Iterator[Loop]:
        if self._loop is not None:
            raise WrongPlace("A loop of this run is already running.", path=f"run.{kind}")
        try:
            loop = self._enter(kind, bound)
            yield loop
            self._left_early = False
            self._keeper.finish(loop)
        finally:
            self._leave()

    def _enter(self, kind: str, bound: float) -> Loop:
        self._attempt.require_open()
        if self._left_early:
            raise WrongPlace(
                "The last loop was left in the middle of its body, by break, an exception or a signal.",
                path=f"run.{kind}",
                hint="Make the Run and its objects anew: it goes on from the newest checkpoint. Or use run.stop().",
            )
        self._loops_begun += 1
        self._loop = loop = Loop(kind, bound, self._loops_begun)
        self._attempt.in_loop = self._left_early = True
        self._random.enter()
        self._keeper.signals.install()
        if not self._keeper.has_started:
            self._keeper.start(loop, self._resume, self._allow_missing)
        return loop

    def _goes_on(self, done: int, loop: Loop) -> bool:
        """Tell whether the loop has another body to run; a loop that was stopped goes on only to a higher bound."""
        progress = self._progress
        if loop.is_over:
            return False
        if progress.stopping and not progress.inside:
            progress.stopping, progress.finished_at, self._keeper.unsaved = False, loop.bound, True
        if done >= loop.bound or loop.bound <= progress.finished_at:
            if loop.kind == "epochs":
                self._keeper.mistakes.fewer_epochs(done, loop.bound)
            return False
        progress.finished_at, progress.loop, progress.kind = 0, max(progress.loop, loop.number), loop.kind
        return True

    def _require_started(self, what: str) -> None:
        """Raise before the first loop: it restores the newest checkpoint, and until then nothing is the run's state."""
        if not self._loops_begun:
            raise WrongPlace(
                "The run has restored nothing yet: its first loop does.",
                path=what,
                hint="Call it in the loop or behind it.",
            )

    def _leave(self) -> None:
        if self._loop is None:
            return
        try:
            self._keeper.leave(early=self._left_early)
        finally:  # a signal that came while the loop ended is raised there
            self._loop, self._attempt.in_loop = None, False
            self._random.leave()

    def _before_batch(self, loader: str) -> None:
        if self._loop is not None and self._loop.kind == "epochs" and not self._isolation:
            self._inside.asked(loader)

    def _boundary(self, *, ends_epoch: bool = False) -> None:
        for observe in self._observers:
            observe(self)
        self._keeper.boundary(ends_epoch=ends_epoch)

    def _record(self, **values: Any) -> None:
        self._attempt.log(step=self._progress.completed_steps, epoch=self._progress.epoch, **values)
