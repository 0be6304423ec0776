"""Owns which objects look as if they decided the next step. Never knows what is tracked."""

from collections.abc import Sequence

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, Sampler, SequentialSampler

from samestep.generators import is_generator

_TYPES = (
    (Optimizer, "optimizer"),
    (LRScheduler, "scheduler"),
    (GradScaler, "scaler"),
    (AveragedModel, "module"),
)


def kind_of_suspect(value: object, shapes: Sequence[tuple[torch.Size, ...]]) -> str | None:
    """Tell which kind of state an object has that decides the next step; None for all others.

    Args:
        value: Any object.
        shapes: The shapes of the parameters of each tracked module: a module of just these shapes is a copy that
            is averaged, even if it is frozen.

    Example:
        >>> kind_of_suspect(torch.Generator(), []), kind_of_suspect(nn.ReLU(), [])
        ('generator', None)
    """
    for types, kind in _TYPES:
        if isinstance(value, types):
            return kind
    if is_generator(value):
        return "generator"
    if isinstance(value, nn.Module):
        return "module" if _trains(value, shapes) else None
    if isinstance(value, DataLoader):
        return "loader" if _shuffles(value) else None
    if isinstance(value, Sampler):
        return None if _is_in_order(value) else "sampler"
    return None


def _trains(module: nn.Module, shapes: Sequence[tuple[torch.Size, ...]]) -> bool:
    """Tell modules that change from frozen ones (feature extractors, teachers) and loss functions with weights."""
    parameters = list(module.parameters())
    if any(parameter.requires_grad for parameter in parameters):
        return True
    if parameters and tuple(parameter.shape for parameter in parameters) in shapes:
        return True
    has_buffers = next(module.buffers(), None) is not None
    return has_buffers and module.training and not isinstance(module, nn.modules.loss._Loss)  # noqa: SLF001


def _shuffles(loader: "DataLoader[object]") -> bool:
    if isinstance(loader.dataset, IterableDataset):
        return False
    own_batches = loader.batch_sampler is not None and type(loader.batch_sampler) is not BatchSampler
    return own_batches or not _is_in_order(loader.sampler)


def _is_in_order(sampler: object) -> bool:
    if type(sampler) is BatchSampler:
        sampler = sampler.sampler
    return type(sampler) is SequentialSampler or not isinstance(sampler, Sampler)
