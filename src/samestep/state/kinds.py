"""Owns what can be tracked, and which kind of state each object has. Never reads the state."""

from types import FunctionType, GeneratorType, MethodType
from typing import Any

from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.utils.data import DataLoader, Dataset, Sampler

from samestep.errors import NotTracked
from samestep.generators import is_generator
from samestep.state.random import RandomState

ORDER = (
    "module",
    "tensor",
    "scheduler",
    "optimizer",
    "gradients",
    "scaler",
    "other",
    "values",
    "loader",
    "generator",
    "random",
)
"""The order of restoring. Schedulers come before optimizers: creating or loading one writes learning rates into
the groups. Random state comes last: loading anything else may draw."""

_INSTEAD: tuple[tuple[Any, str], ...] = (
    (DataLoader, "Use samestep.DataLoader, which takes the same arguments."),
    (type, "Track an object of the class."),
    (type(None), "Build it before run.track, or leave it out."),
    (Dataset, "Track its loader, samestep.DataLoader(dataset): it saves the place in the data."),
    (Sampler, "Track its loader, samestep.DataLoader(dataset, sampler=sampler): it saves the sampler too."),
    (GeneratorType, "An iterator does not say where it is. Track what it comes from: the module, or the loader."),
)
"""What to track instead of what cannot be tracked."""

_BY_TYPE: tuple[tuple[Any, str], ...] = (
    (nn.Module, "module"),
    (Optimizer, "optimizer"),
    ((LRScheduler, ReduceLROnPlateau), "scheduler"),
    (GradScaler, "scaler"),
    (Tensor, "tensor"),
    (RandomState, "random"),
)


def kind_of(tracked: object, name: str) -> str:
    """Tell which kind of state an object has.

    Args:
        tracked: What the user wants to track.
        name: The name under which it would be tracked.

    Returns:
        One of `ORDER`, save "gradients".

    Raises:
        NotTracked: Its state cannot be read; the error says what to track instead.

    Example:
        >>> kind_of(nn.Linear(1, 1), "model")
        'module'
    """
    for types, kind in _BY_TYPE:
        if isinstance(tracked, types):
            return kind
    if is_generator(tracked):
        return "generator"
    if _speaks_for_itself(tracked):
        return _kind_of_stateful(tracked)
    raise NotTracked(f"{name} cannot be tracked: it is {_described(tracked)}.", path=name, hint=_hint(tracked, name))


def _speaks_for_itself(tracked: object) -> bool:
    methods = (getattr(tracked, method, None) for method in ("state_dict", "load_state_dict"))
    return not isinstance(tracked, type) and all(callable(method) for method in methods)


def _kind_of_stateful(tracked: object) -> str:
    if getattr(tracked, "is_samestep_loader", False) or hasattr(tracked, "batch_sampler"):
        return "loader"
    return "values" if getattr(tracked, "is_samestep_values", False) else "other"


def _described(tracked: object) -> str:
    if isinstance(tracked, DataLoader):
        return "a torch DataLoader, which does not say where it is"
    if isinstance(tracked, (FunctionType, MethodType)):
        return "a function, which has no state of its own"
    if isinstance(tracked, type):
        return f"the class {tracked.__qualname__}, not an object of it"
    if tracked is None:
        return "None"
    return f"of type {type(tracked).__name__}, which has no state_dict and load_state_dict"


def _hint(tracked: object, name: str) -> str:
    for types, hint in _INSTEAD:
        if isinstance(tracked, types):
            return hint
    inside = _trackable_inside(tracked)
    if inside is not None:
        return f"Give what is inside names of its own: run.track({name}_{inside}=…), or make an nn.ModuleList of it."
    if isinstance(tracked, dict) and any(isinstance(each, Tensor) for each in tracked.values()):
        return "Track the object itself, not its state_dict()."
    if isinstance(tracked, (int, float, str, list, dict, tuple, set)):
        return "Keep the loop's own values in run.state, which is tracked."
    return "Give it the two methods, or keep its values in run.state, which is tracked."


def _trackable_inside(tracked: object) -> object:
    """Give the key of something trackable in a list or dict; None where there is none."""
    if isinstance(tracked, (list, tuple)):
        pairs: list[tuple[object, object]] = list(enumerate(tracked))
    elif isinstance(tracked, dict):
        pairs = list(tracked.items())
    else:
        return None
    whole = (nn.Module, Optimizer, LRScheduler, GradScaler)
    return next((key for key, each in pairs if isinstance(each, whole)), None)
