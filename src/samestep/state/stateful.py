"""Owns the state of everything that speaks for itself, and of generators and bare tensors. Never looks inside."""

import contextlib
import copy
from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor

from samestep.errors import CorruptCheckpoint, SamestepError, StateMismatch
from samestep.generators import Generator, generator_state, set_generator_state
from samestep.state.codec import encode
from samestep.state.decoding import decode
from samestep.state.likeness import unlike
from samestep.state.restoration import BEGIN_ANEW, Restoration, Undo, require_no_differences, require_same_type
from samestep.state.snapshot import Item, Json
from samestep.state.tensors import copy_into, dtype_name
from samestep.wording import told


class Stateful(Protocol):
    """What `state_dict` and `load_state_dict` make trackable."""

    def state_dict(self) -> Any:
        """Give the state."""

    def load_state_dict(self, state: Any, /) -> Any:
        """Take the state."""


def capture_stateful(name: str, kind: str, tracked: Stateful) -> Item:
    """Read the `state_dict()` of a scaler, loader, random state or another object."""
    tree, tensors = encode(tracked.state_dict(), name)
    return Item(kind=kind, tree=tree, tensors=tensors)


def capture_scheduler(name: str, scheduler: Stateful) -> Item:
    """Read a scheduler: its class, and its `state_dict()`."""
    tree, tensors = encode(scheduler.state_dict(), name)
    return Item(kind="scheduler", tree={"type": _type_name(scheduler), "state": tree}, tensors=tensors)


def capture_generator(name: str, generator: Generator) -> Item:
    """Read a generator object: its type, and its state as integers and tensors."""
    tree, tensors = encode({"type": _type_name(generator), "state": generator_state(generator)}, name)
    return Item(kind="generator", tree=tree, tensors=tensors)


def capture_tensor(name: str, tensor: Tensor) -> Item:
    """Read a bare tensor that is tracked by itself."""
    tree, tensors = encode({"value": tensor, "requires_grad": tensor.requires_grad}, name)
    return Item(kind="tensor", tree=tree, tensors=tensors)


class StatefulRestoration(Restoration):
    """Restores through `load_state_dict`, which is not ours: it is rehearsed before anything else is changed.

    Args:
        name: The name under which the object is tracked.
        tracked: The live object.
        item: The saved state.
    """

    def __init__(self, name: str, tracked: Stateful, item: Item) -> None:
        super().__init__(name)
        self._tracked = tracked
        self._item = item

    def rehearse(self) -> Undo | None:
        """Load once; whoever calls the result brings the previous state back."""
        if _is_torchs(self._tracked.load_state_dict):
            self._require_likeness()
        return rehearsed(self._tracked.state_dict, self._load, self._undo())

    def _undo(self) -> Callable[[Any], Any]:
        return self._tracked.load_state_dict

    def apply(self) -> None:
        """Load the state."""
        self._load()

    def _load(self) -> None:
        """Load a fresh copy each time: `load_state_dict` may keep what it is given, or take it apart."""
        self._tracked.load_state_dict(decode(self._tree(), self._item.tensors))

    def _tree(self) -> Json:
        return self._item.tree

    def _require_likeness(self) -> None:
        """Refuse what torch would take without looking: a text for a number, or an attribute in a method's place."""
        saved, live = decode(self._tree(), self._item.tensors), self._tracked.state_dict()
        if isinstance(live, dict) and not isinstance(saved, dict):
            raise CorruptCheckpoint("The state of an object is no dict.", path=self.name, found=type(saved).__name__)
        if isinstance(live, dict):
            hidden = _shadowing(self.name, self._tracked, saved) if self._item.kind == "scheduler" else []
            differences = [*hidden, *unlike(self.name, saved, live)]
            require_no_differences(self.name, differences, "Create the object as when the checkpoint was saved.")


class SchedulerRestoration(StatefulRestoration):
    """Restores a scheduler, whose `load_state_dict` would take the state of any other kind without a word.

    Raises:
        StateMismatch: It is of another class than the one that was saved.
    """

    def __init__(self, name: str, tracked: Stateful, item: Item) -> None:
        super().__init__(name, tracked, item)
        require_same_type(name, "scheduler", item.tree["type"], _type_name(tracked))

    def _tree(self) -> Json:
        return self._item.tree["state"]

    def _undo(self) -> Callable[[Any], Any]:
        """Take away again what torch has added: it puts every name of a state into `__dict__`."""
        names = [(each, set(vars(each))) for each in _with_inner(self._tracked)]

        def put_back(previous: Any) -> None:
            self._tracked.load_state_dict(previous)
            for each, before in names:
                for name in set(vars(each)) - before:
                    delattr(each, name)

        return put_back


class GeneratorRestoration(Restoration):
    """Sets a generator object to the saved state.

    Raises:
        StateMismatch: It is of another type than the one that was saved.
    """

    def __init__(self, name: str, generator: Generator, item: Item) -> None:
        super().__init__(name)
        self._generator = generator
        saved = decode(item.tree, item.tensors)
        if not isinstance(saved, dict) or "state" not in saved:
            raise CorruptCheckpoint("The state of a generator is missing.", path=name)
        self._state = saved["state"]
        require_same_type(name, "generator", saved.get("type"), _type_name(generator))

    def rehearse(self) -> Undo | None:
        """Set the state once: only the generator itself knows whether it is valid."""
        return rehearsed(lambda: generator_state(self._generator), self.apply, self._set)

    def apply(self) -> None:
        """Set the state."""
        self._set(self._state)

    def _set(self, state: Any) -> None:
        set_generator_state(self._generator, state)


class TensorRestoration(Restoration):
    """Restores a bare tensor by copying in place.

    Raises:
        StateMismatch: It has another shape or dtype than the one that was saved.
    """

    def __init__(self, name: str, tensor: Tensor, item: Item) -> None:
        super().__init__(name)
        self._tensor = tensor
        saved = decode(item.tree, item.tensors, place=lambda value, _: value)
        if not isinstance(saved, dict) or not isinstance(saved.get("value"), Tensor):
            raise CorruptCheckpoint("The tracked tensor is missing.", path=name)
        self._saved, self._requires_grad = saved["value"], bool(saved.get("requires_grad"))
        there, here = (f"{dtype_name(each.dtype)}{list(each.shape)}" for each in (self._saved, tensor))
        differences = [] if there == here else [f"{name} is {there} in the checkpoint and {here} here"]
        if self._requires_grad and not (tensor.is_floating_point() or tensor.is_complex()):
            differences.append(f"{name} requires a gradient in the checkpoint, and holds integers here")
        require_no_differences(name, differences, "Create the tensor as when the checkpoint was saved.")

    def apply(self) -> None:
        """Copy the elements in place."""
        copy_into(self._tensor, self._saved)
        if self._tensor.is_leaf:
            self._tensor.requires_grad_(self._requires_grad)


def rehearsed(read: Callable[[], Any], load: Callable[[], None], undo: Callable[[Any], Any]) -> Undo:
    """Load, and put the previous state back if that fails.

    Args:
        read: Gives the previous state, which is copied.
        load: Loads the new state.
        undo: Takes the previous state.

    Returns:
        What puts the previous state back.
    """
    previous = copy.deepcopy(read())
    try:
        load()
    except Exception:
        with contextlib.suppress(Exception):  # the first error is the one to hear of
            undo(previous)
        raise

    def put_back() -> None:
        undo(previous)

    return put_back


def refused(name: str, error: Exception) -> SamestepError:
    """Say which object refused its saved state; errors of our own say why, but not always whose it is."""
    if isinstance(error, SamestepError):
        if error.path is None or not error.path.startswith(name):
            error.path = name if error.path is None else f"{name}.{error.path}"
        return error
    return StateMismatch(
        f"{name} does not accept its saved state; nothing has been changed.",
        path=name,
        found=told(error),
        hint=f"Build it with the same settings as when the checkpoint was saved. {BEGIN_ANEW}",
    )


def _is_torchs(method: object) -> bool:
    return str(getattr(method, "__module__", "")).startswith("torch.")


def _with_inner(scheduler: Any) -> list[Any]:
    inner = [each for part in getattr(scheduler, "_schedulers", ()) for each in _with_inner(part)]
    return [scheduler, *inner]


def _shadowing(path: str, tracked: object, saved: Any) -> list[str]:
    """Find names that would hide a method, or the optimizer: torch puts all names of a state into `__dict__`."""
    names = saved if isinstance(saved, dict) else {}
    hidden = [name for name in names if name == "optimizer" or callable(getattr(type(tracked), str(name), None))]
    inner = zip(getattr(tracked, "_schedulers", ()), names.get("_schedulers") or (), strict=False)
    return [f"{path} has the name {name!r}, which no state has" for name in hidden] + [
        text for index, pair in enumerate(inner) for text in _shadowing(f"{path}._schedulers[{index}]", *pair)
    ]


def _type_name(tracked: object) -> str:
    kind = type(tracked)
    inner = getattr(tracked, "bit_generator", None)
    name = f"{kind.__module__}.{kind.__qualname__}"
    return name if inner is None else f"{name}({type(inner).__name__})"
