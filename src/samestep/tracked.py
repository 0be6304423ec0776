"""Owns the set of tracked objects of a run: capture them, restore them, know the training loader. Knows no storage."""

import copy
import weakref
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from samestep.errors import NotTracked, StateMismatch, UnsupportedValue, WrongPlace
from samestep.generators import Generator, derive_seed, is_generator
from samestep.losses import LossWatch
from samestep.progress import Progress, Values
from samestep.state.capture import capture, reapply, restore
from samestep.state.codec import decode
from samestep.state.gradients import GradientWatch
from samestep.state.kinds import kind_of
from samestep.state.mark import Mark
from samestep.state.random import RandomState, isolated
from samestep.state.settings import settings
from samestep.state.snapshot import Item, Snapshot
from samestep.state.stateful import refused, rehearsed
from samestep.store.json_lines import plain

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
        self._own: dict[str, Any] = {"run": progress, "random": RandomState()}
        self.seed = seed
        self._watch: GradientWatch | None = None
        self._hooks: list[RemovableHandle] = []
        self.updates = 0

    def add(self, name: str, value: object) -> None:
        """Track one more object under a name of its own."""
        if name in OWN_NAMES:
            raise NotTracked(f"The name {name!r} belongs to the run itself.", hint="Track it under another name.")
        if self.objects.get(name, value) is not value:
            raise NotTracked(f"The name {name!r} is taken by another tracked object.", hint="Choose another name.")
        kind = kind_of(value, name)
        if name in self.objects:
            return
        other = next((each for each, known in self.objects.items() if known is value), None)
        if other is not None:
            raise NotTracked(
                f"{name!r} is the same object as {other!r}, which is tracked already.",
                path=name,
                found=type(value).__name__,
                hint="Track it once. If it should be another object, such as an average of the weights, copy it first.",
            )
        self.objects[name] = value
        if kind == "loader" and self.seed is not None:
            self.objects[name].adopt_seed(derive_seed(self.seed, name))
        if isinstance(value, torch.optim.Optimizer):
            self._hooks.append(value.register_step_post_hook(self._count_update))

    @property
    def loaders(self) -> dict[str, Any]:
        """The tracked samestep loaders by name."""
        return {name: each for name, each in self.objects.items() if _is_loader(each)}

    def ask_before_batches(self, method: Callable[[str], None]) -> None:
        """Have every tracked loader call a method with its name before each batch that it hands out."""
        for name, loader in self.loaders.items():
            # Held weakly: a cycle would keep the loader's workers alive until the next garbage collection.
            loader.before_next = _Weakly(method, name)

    @property
    def generators(self) -> dict[str, Generator]:
        """The generator objects that are tracked by name."""
        return {name: each for name, each in self.objects.items() if is_generator(each)}

    def require_savable(self) -> None:
        """Raise now if the objects cannot be saved, and not hours later, when the first checkpoint is due.

        Foreign loaders are left out: asked for their state, some start their workers.
        """
        if not self.objects:
            raise NotTracked(
                "Nothing is tracked, so nothing can be resumed.",
                path="run.track",
                hint="Call run.track(model=model, optimizer=optimizer, …) before the loop.",
            )
        foreign = {name for name, each in self.objects.items() if kind_of(each, name) == "loader"} - set(self.loaders)
        with isolated(*self.generators.values()):
            self._captured({name: each for name, each in self.objects.items() if name not in foreign})

    def settings(self) -> dict[str, Any]:
        """Read the settings of the tracked objects that a restore overrides, as they come back from a record."""
        return {path: plain(value, path) for path, value in settings(self.objects).items()}

    def begin(self) -> LossWatch:
        """Watch the optimizers from now on: which gradients are finished shows in what each step leaves."""
        self._watch = GradientWatch(each for each in self.objects.values() if isinstance(each, torch.optim.Optimizer))
        return LossWatch(self.objects | self._own)

    def items(self) -> dict[str, Item]:
        """Capture the state of everything: plain trees, and live references to the tensors."""
        return self._captured(self.objects)

    def _captured(self, objects: dict[str, Any]) -> dict[str, Item]:
        try:
            return capture(objects | self._own, watch=self._watch)
        except UnsupportedValue as error:
            raise _as_the_script_says(error) from error

    def close(self) -> None:
        """Take the hooks off the optimizers: in a notebook they outlive the run, and the next one adds its own."""
        for hook in self._hooks:
            hook.remove()
        if self._watch is not None:
            self._watch.close()

    @staticmethod
    def saved_progress(items: Mapping[str, Item]) -> Progress:
        """Read from a snapshot where the training was, without changing anything."""
        progress = Progress()
        if "run" not in items:
            raise StateMismatch("This checkpoint was not written by a run.", hint="Load it with samestep.Store.")
        progress.load_state_dict(decode(items["run"].tree, items["run"].tensors))
        return progress

    def restore(self, items: Mapping[str, Item], allow_missing: Collection[str], *, inside: bool) -> None:
        """Put everything into the saved state, or raise and change nothing; inside an epoch, `reapply` follows."""
        restore(self.objects | self._own, items, allow_missing=allow_missing, defer_added_groups=inside)

    def reapply(self, items: Mapping[str, Item], allow_missing: Collection[str], leader: str | None) -> None:
        """Restore everything but the leading loader again, right before the first batch of a resumed epoch.

        The statements between the top of the epoch and its batches have just run a second time (`run.state.total = 0`,
        `optimizer.zero_grad()`, a draw); the state after them, and what came since, is in the checkpoint.
        """
        open_loader = () if leader is None else (leader,)
        others = [(each, each.iterator) for name, each in self.loaders.items() if name != leader]
        reapply(self.objects | self._own, items, except_for=open_loader, allow_missing=allow_missing)
        for loader, iterator in others:
            if iterator is not None:
                loader.take_up(iterator)

    def require_unread(self) -> None:
        """Raise if a loader has handed out batches before the loop began: a resume could not hand them out again."""
        for name, loader in self.loaders.items():
            if loader.is_open and loader.position:
                raise WrongPlace(
                    f"{name!r} was asked for a batch before the loop of the run had begun to ask for its next body.",
                    path=name,
                    hint="Ask the loader inside the loop; in a zip, name run.steps or run.epochs first.",
                )

    def expect_new_epoch(self) -> None:
        """Tell the loaders that the restored state stands between two epochs: what was left open there is over."""
        for loader in self.loaders.values():
            loader.expect_new_epoch()

    def state_at_top(self) -> dict[str, Any]:
        """Read what the statements at the top of an epoch read and draw from, save modules and optimizers."""
        progress: Progress = self._own["run"]
        return {
            "completed_steps": progress.completed_steps,
            "values": copy.deepcopy(progress.values.state_dict()),
            "random": RandomState(**self.generators).state_dict(),
            "loaders": {name: each.state_dict() for name, each in self.loaders.items()},
        }

    def require_top(self, state: Mapping[str, Any] | None) -> None:
        """Raise if what the top of an epoch read and drew from cannot be set again; nothing is changed."""
        if state is None:
            return
        Values().load_state_dict(copy.deepcopy(state["values"]))
        with isolated(*self.generators.values()):
            RandomState(**self.generators).load_state_dict(state["random"])
        for name in state["loaders"].keys() & self.loaders.keys():
            loader, load = self.loaders[name], partial(self.loaders[name].load_state_dict, state["loaders"][name])
            try:
                put_back = rehearsed(loader.state_dict, load, loader.load_state_dict)
            except Exception as error:
                raise refused(name, error) from error
            put_back()

    def return_to_top(self, state: Mapping[str, Any], leader: str | None) -> None:
        """Let the statements at the top of a resumed epoch read and draw what they did; `reapply` follows behind them.

        The leading loader already stands inside the epoch, where its next batch is asked for.
        """
        progress: Progress = self._own["run"]
        progress.completed_steps = state["completed_steps"]
        progress.values.load_state_dict(copy.deepcopy(state["values"]))
        for name, saved in state["loaders"].items():
            if name != leader and name in self.loaders:
                self.loaders[name].load_state_dict(saved)
        RandomState(**self.generators).load_state_dict(state["random"])

    def knows_position(self) -> bool:
        """Tell whether anything that is tracked can know a place inside an epoch."""
        return any(kind_of(each, name) in {"loader", "other", "tensor"} for name, each in self.objects.items())

    def _count_update(self, *_: object) -> None:
        self.updates += 1


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
    """Calls a method with a name as long as its object lives."""

    def __init__(self, method: Callable[[str], None], name: str) -> None:
        self._method, self._name = weakref.WeakMethod(method), name

    def __call__(self) -> None:
        method = self._method()
        if method is not None:
            method(self._name)


def _as_the_script_says(error: UnsupportedValue) -> UnsupportedValue:
    """Name a value of the loop as the loop does: it lies in the run's own item, and in its copy of an epoch's top."""
    if error.path is None or not error.path.startswith(_VALUES):
        return error
    there = next(each for each in _VALUES if error.path.startswith(each))
    message, path = (text.replace(there, "run.state.", 1) for text in (error.message, error.path))
    return UnsupportedValue(message, path=path, expected=error.expected, found=error.found, hint=error.hint)


_VALUES = ("run.values.", "run.top.values.")


def _is_loader(value: object) -> bool:
    return getattr(value, "is_samestep_loader", False) is True
