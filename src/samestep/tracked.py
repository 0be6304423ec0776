"""Owns the set of tracked objects of a run: capture them, restore them, know the training loader. Knows no storage."""

import inspect
import warnings
import weakref
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from types import FrameType
from typing import Any

import torch

from samestep.errors import NotTracked, StateMismatch
from samestep.generators import Generator, derive_seed, is_generator
from samestep.progress import Progress
from samestep.state.attributes import AttributeWatch
from samestep.state.audit import find_untracked
from samestep.state.capture import capture, reapply_small, restore
from samestep.state.carried import find_carried
from samestep.state.codec import decode
from samestep.state.gradients import GradientWatch
from samestep.state.kinds import kind_of
from samestep.state.mark import Mark
from samestep.state.random import RandomState
from samestep.state.snapshot import Item, Snapshot

OWN_NAMES = ("run", "random", "gradients")
"""Items that every checkpoint of a run holds beside the tracked objects."""


class Tracked:
    """The objects whose state decides the next step.

    Args:
        progress: The run's own progress, saved as item "run".
        seed: The run's seed, from which loaders without one get theirs; None leaves them to `torch.initial_seed()`.
    """

    def __init__(self, progress: Progress, seed: int | None) -> None:
        self.objects: dict[str, Any] = {}
        self._own = {"run": progress, "random": RandomState()}
        self._seed = seed
        self._watch: GradientWatch | None = None
        self._attributes: AttributeWatch | None = None
        self._audited = False
        self.updates = 0

    def add(self, name: str, value: object) -> None:
        """Track one more object under a name of its own."""
        if name in OWN_NAMES:
            raise NotTracked(f"The name {name!r} belongs to the run itself.", hint="Track it under another name.")
        if self.objects.get(name, value) is not value:
            raise NotTracked(f"The name {name!r} is taken by another tracked object.", hint="Choose another name.")
        kind = kind_of(value, name)
        self.objects[name] = value
        if kind == "loader" and self._seed is not None:
            self.objects[name].adopt_seed(derive_seed(self._seed, name))
        if isinstance(value, torch.optim.Optimizer):
            value.register_step_post_hook(self._count_update)

    @property
    def training_loader(self) -> Any:
        """The loader that makes boundaries: the first tracked one. None when no samestep loader is tracked."""
        return next((each for each in self.objects.values() if _is_loader(each)), None)

    def ask_before_batches(self, method: Callable[[], None]) -> None:
        """Have the training loader call a method before each batch that it hands to the loop."""
        if self.training_loader is not None:
            # Held weakly: a cycle would keep the loader's workers alive until the next garbage collection.
            self.training_loader.before_next = _Weakly(method)

    @property
    def generators(self) -> dict[str, Generator]:
        """The generator objects that are tracked by name."""
        return {name: each for name, each in self.objects.items() if is_generator(each)}

    def begin(self) -> None:
        """Watch the optimizers from now on: which gradients are finished shows in what each step leaves."""
        if not self.objects:
            raise NotTracked(
                "Nothing is tracked, so nothing can be resumed.",
                path="run.track",
                hint="Call run.track(model=model, optimizer=optimizer, …) before the loop.",
            )
        self._watch = GradientWatch(each for each in self.objects.values() if isinstance(each, torch.optim.Optimizer))
        modules = {name: each for name, each in self.objects.items() if isinstance(each, torch.nn.Module)}
        self._attributes = AttributeWatch(modules)

    def items(self) -> dict[str, Item]:
        """Capture the state of everything: plain trees, and live references to the tensors."""
        return capture(self.objects | self._own, watch=self._watch)

    @staticmethod
    def saved_progress(items: Mapping[str, Item]) -> Progress:
        """Read from a snapshot where the training was, without changing anything."""
        progress = Progress()
        if "run" not in items:
            raise StateMismatch("This checkpoint was not written by a run.", hint="Load it with samestep.Store.")
        progress.load_state_dict(decode(items["run"].tree, items["run"].tensors))
        return progress

    def restore(self, items: Mapping[str, Item], allow_missing: Collection[str]) -> None:
        """Put everything into the saved state, or raise and change nothing."""
        restore(self.objects | self._own, items, allow_missing=allow_missing)

    def reapply(self, items: Mapping[str, Item]) -> None:
        """Restore the small parts again, right before the first batch of a resumed epoch.

        The statements between the top of the epoch and its batches have just run a second time (`run.state.total = 0`,
        `optimizer.zero_grad()`, a draw); the state after them, and what came since, is in the checkpoint.
        """
        reapply_small(self.objects | self._own, items)

    def loader_is_exhausted(self) -> bool:
        """Tell whether the training loader has handed out the last batch of its epoch, as far as its length says."""
        loader = self.training_loader
        try:
            return loader is not None and loader.position >= len(loader)
        except TypeError:  # a sampler without a length
            return False

    def warn_of_losses(self) -> None:
        """Warn, each kind once, of what decides the next step in the loop's reach and no resume would bring back."""
        frame = _frame_of_the_loop()
        if not self._audited and frame is not None:
            self._audited = True
            untracked = [
                f"{each.name} ({each.kind}), {each.file}:{each.line}" for each in find_untracked(frame, self.objects)
            ]
            _warn_of("These decide the next step but are not tracked, so a resume loses them", untracked)
            carried = [f"{each.name}, {each.file}:{each.line}" for each in find_carried(frame)]
            _warn_of(_CARRIED, carried)
        if self._attributes is not None and (changed := self._attributes.changed()):
            self._attributes = None
            _warn_of(_CHANGED, changed)

    def _count_update(self, *_: object) -> None:
        self.updates += 1


_CARRIED = (
    "The loop carries these local variables from one body to the next, and a resume begins them anew; if they decide"
    " anything, keep them in run.state, or give enumerate start=loader.position"
)
_CHANGED = (
    "These attributes of modules have changed and are in no state_dict, so a resume begins them anew; make them"
    " buffers, or save them by get_extra_state"
)


def _warn_of(what: str, found: list[str]) -> None:
    if found:
        warnings.warn(what + ":" + "".join(f"\n  {each}" for each in found), stacklevel=2)


class MarkedSnapshot:
    """What a checkpoint of the last boundary would hold, should a signal come before the next one.

    Args:
        snapshot: The state at the boundary.
        saved: Whether it is saved already.
    """

    def __init__(self, snapshot: Snapshot, *, saved: bool) -> None:
        self._at, self._mark, self.saved = replace(snapshot, items={}), Mark(snapshot.items), saved

    def snapshot(self, items_now: Mapping[str, Item]) -> Snapshot:
        """Give the snapshot; raises `StateMismatch` if a large tensor has changed since."""
        return replace(self._at, items=self._mark.items(items_now))


class _Weakly:
    """Calls a method as long as its object lives."""

    def __init__(self, method: Callable[[], None]) -> None:
        self._method = weakref.WeakMethod(method)

    def __call__(self) -> None:
        method = self._method()
        if method is not None:
            method()


def _is_loader(value: object) -> bool:
    return getattr(value, "is_samestep_loader", False) is True


def _frame_of_the_loop() -> FrameType | None:
    """Find the user's frame that asked for the next batch, step or epoch: the first one outside this package."""
    frame = inspect.currentframe()
    while frame is not None and str(frame.f_globals.get("__name__", "")).partition(".")[0] == "samestep":
        frame = frame.f_back
    return frame
