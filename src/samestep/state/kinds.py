"""Owns what can be tracked, and which kind of state each object has. Never reads the state."""

from types import FunctionType, MethodType
from typing import Any

from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.utils.data import DataLoader

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
    raise NotTracked(f"{name} cannot be tracked: it is {_described(tracked)}.", path=name, hint=_hint(tracked))


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
    return f"of type {type(tracked).__name__}, which has no state_dict and load_state_dict"


def _hint(tracked: object) -> str:
    if isinstance(tracked, DataLoader):
        return "Use samestep.DataLoader, which takes the same arguments."
    if isinstance(tracked, type):
        return "Track an object of the class."
    if isinstance(tracked, (int, float, str, list, dict, tuple, set)) or tracked is None:
        return "Keep the loop's own values in run.state, which is tracked."
    return "Give it the two methods, or keep its values in run.state, which is tracked."
