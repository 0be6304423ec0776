"""Owns which objects look as if they decided the next step. Never knows what is tracked."""

import gc
import itertools
from collections.abc import Collection, Iterable, Sequence
from types import GeneratorType
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, Sampler, SequentialSampler

from samestep.generators import is_generator

_ITERATED: tuple[Iterable[object], ...] = ([], (), range(0), {}, {}.values(), {}.items(), set(), "")
_COUNTERS = (
    itertools.count,
    itertools.cycle,
    *(type(iter(each)) for each in _ITERATED),
)
"""Iterators that begin anew in a resumed process; those that wrap others, such as `zip`, may go on with a loader."""

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
        return "loader" if _has_epochs(value) or _shuffles(value) else None
    if isinstance(value, Sampler):
        return None if _is_in_order(value) else "sampler"
    return _kind_of_others(value)


def _kind_of_others(value: object) -> str | None:
    kind = type(value)
    if kind in _COUNTERS or _reads_on(value):
        return "counter"
    speaks = all(callable(getattr(kind, method, None)) for method in ("state_dict", "load_state_dict"))
    return "object" if speaks and not isinstance(value, type) else None


def _reads_on(value: object) -> bool:
    """Tell an iterator of a plain PyTorch loader, or a generator that is in the midst of one: its place is lost."""
    if type(value) is GeneratorType:
        return any(_is_iterator_of_loader(each) for each in gc.get_referents(value))
    return _is_iterator_of_loader(value)


def _is_iterator_of_loader(value: object) -> bool:
    kind = type(value)
    return kind.__module__ == "torch.utils.data.dataloader" and kind.__name__.endswith("DataLoaderIter")


def tensors_like(value: object, shapes: Collection[tuple[torch.Size, ...]]) -> list[Tensor]:
    """Give the tensors of a dict, list or tuple that holds nothing else, if they have the shapes of a module.

    Args:
        value: Any object.
        shapes: Shapes of all tensors of a module, sorted; one tensor alone says too little.

    Example:
        >>> shadow = {"weight": torch.ones(2, 1), "bias": torch.ones(2)}
        >>> len(tensors_like(shadow, {(torch.Size([2]), torch.Size([2, 1]))}))
        2
    """
    if not isinstance(value, (dict, list, tuple)) or len(value) not in {len(each) for each in shapes} - {1}:
        return []
    tensors = list(value.values() if isinstance(value, dict) else value)
    if not all(isinstance(each, Tensor) for each in tensors):
        return []
    return tensors if tuple(sorted(each.shape for each in tensors)) in shapes else []


def _trains(module: nn.Module, shapes: Sequence[tuple[torch.Size, ...]]) -> bool:
    """Tell modules that change from frozen ones (feature extractors, teachers) and loss functions with weights."""
    parameters = list(module.parameters())
    if any(parameter.requires_grad for parameter in parameters):
        return True
    if parameters and tuple(parameter.shape for parameter in parameters) in shapes:
        return True
    has_buffers = next(module.buffers(), None) is not None
    return has_buffers and module.training and not isinstance(module, nn.modules.loss._Loss)  # noqa: SLF001


def _has_epochs(loader: Any) -> bool:
    """Tell a samestep loader in use: its epoch is state even where its order is not, samples are keyed by it."""
    return getattr(loader, "is_samestep_loader", False) and bool(loader.epoch or loader.is_open)


def _shuffles(loader: "DataLoader[object]") -> bool:
    if isinstance(loader.dataset, IterableDataset):
        return False
    own_batches = loader.batch_sampler is not None and type(loader.batch_sampler) is not BatchSampler
    return own_batches or not _is_in_order(loader.sampler)


def _is_in_order(sampler: object) -> bool:
    if type(sampler) is BatchSampler:
        sampler = sampler.sampler
    return type(sampler) is SequentialSampler or not isinstance(sampler, Sampler)
