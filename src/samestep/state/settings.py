"""Owns the settings with which a script builds what a checkpoint then overrides. Never changes an object."""

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from samestep.state.snapshot import Json

_PLAIN = (bool, int, float, str)
_PROGRESS = {"base_lrs", "last_epoch"}
"""What follows from the optimizer's rate, or is where a scheduler stands."""


def settings(objects: Mapping[str, object]) -> dict[str, Json]:
    """Read the hyperparameters of optimizers, schedulers and scalers, which their states bring back.

    Taken before a checkpoint is restored they are what the script says now; it is recorded, so that the next resume can
    tell a learning rate that was edited in the script from one that a scheduler has changed.

    Args:
        objects: The tracked objects by name.

    Returns:
        Plain values by their paths.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(1, 1)
        >>> settings({"optimizer": torch.optim.SGD(model.parameters(), lr=0.1)})["optimizer.lr"]
        0.1
    """
    found: dict[str, Json] = {}
    for name, each in objects.items():
        if isinstance(each, Optimizer):
            found.update(_of_optimizer(name, each))
        elif isinstance(each, LRScheduler):
            found.update(_of_scheduler(name, each))
        elif isinstance(each, GradScaler):
            found.update(_plain(name, each.state_dict()))
    return found


def without_effect(
    before: Mapping[str, Json], now: Mapping[str, Json], restored: Mapping[str, Json]
) -> dict[str, tuple[Json, Json]]:
    """Find what the script says anew, and what the checkpoint has nevertheless put back.

    Args:
        before: The settings of the script that wrote the checkpoint.
        now: Those of the script that resumes, before the checkpoint was restored.
        restored: Those after it was.

    Returns:
        What the script said before and says now, by path.

    Example:
        >>> without_effect({"optimizer.lr": 0.1}, {"optimizer.lr": 0.5}, {"optimizer.lr": 0.025})
        {'optimizer.lr': (0.1, 0.5)}
    """
    return {
        path: (before[path], value)
        for path, value in now.items()
        if path in before and value not in (before[path], restored.get(path))
    }


def _of_optimizer(name: str, optimizer: Optimizer) -> Iterator[tuple[str, Json]]:
    groups = optimizer.param_groups
    for index, group in enumerate(groups):
        path = name if len(groups) == 1 else f"{name}.param_groups[{index}]"
        yield from _plain(path, group)


def _of_scheduler(name: str, scheduler: Any) -> Iterator[tuple[str, Json]]:
    for index, inner in enumerate(getattr(scheduler, "_schedulers", ())):
        yield from _of_scheduler(f"{name}._schedulers[{index}]", inner)
    yield from _plain(name, vars(scheduler))


def _plain(path: str, values: Mapping[str, Any]) -> Iterator[tuple[str, Json]]:
    for key, value in values.items():
        if key.startswith("_") or key in _PROGRESS:
            continue
        if isinstance(value, Tensor) and value.numel() == 1 and value.device.type == "cpu":
            yield f"{path}.{key}", value.item()
        elif isinstance(value, _PLAIN):
            yield f"{path}.{key}", value
        elif isinstance(value, list | tuple) and all(isinstance(each, int | float) for each in value):
            yield f"{path}.{key}", list(value)
