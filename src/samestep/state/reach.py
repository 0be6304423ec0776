"""Owns which objects hang on which, for the search of the audit. Never calls what it finds."""

import random
from collections import OrderedDict
from collections.abc import Iterator
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler

from samestep.generators import is_generator

MOST_OBJECTS = 10_000
_MOST_ELEMENTS = 1_000
_LEAVES = (
    str,
    bytes,
    int,
    float,
    complex,
    type(None),
    type,
    Tensor,
    np.ndarray,
    np.generic,
    ModuleType,
    BuiltinFunctionType,
    torch.dtype,
    torch.device,
    random.Random,
)


def children(value: object) -> Iterator[tuple[str, object]]:
    """Give what hangs on an object, with the text that leads there: ".attribute", "[0]", "['key']".

    Tensors, arrays, imported modules, classes, generators and containers of over 1,000 elements end it.
    """
    if isinstance(value, _LEAVES) or is_generator(value):
        return
    if isinstance(value, (list, tuple)):
        if len(value) <= _MOST_ELEMENTS:
            yield from ((f"[{index}]", child) for index, child in enumerate(value) if not _is_idle(child))
    elif isinstance(value, dict):
        if len(value) <= _MOST_ELEMENTS:
            yield from ((f"[{_key(key)}]", child) for key, child in value.items() if not _is_idle(child))
    else:
        yield from _attributes(value)


def owned(tracked: object) -> list[object]:
    """Give a tracked object and the parts whose state is saved with it.

    A module saves its submodules, but no other attribute; an optimizer itself; a scheduler the schedulers inside
    it, but not its optimizer; a samestep loader its samplers, and the generators from which it draws. Everything else
    is taken at its word: what it holds is its own affair.
    """
    if is_loader(tracked):
        return _owned_by_loader(tracked)
    if isinstance(tracked, nn.Module):
        return [*tracked.modules()]
    if isinstance(tracked, Optimizer):
        return [tracked]
    if isinstance(tracked, LRScheduler):
        inner = getattr(tracked, "_schedulers", [])
        return [tracked, *(part for each in inner for part in owned(each))]
    return _everything(tracked)


def is_loader(tracked: object) -> bool:
    """Tell a samestep loader, which this layer knows by its mark only."""
    return getattr(type(tracked), "is_samestep_loader", False) is True


def fetched_through(loader: Any) -> list[object]:
    """Give what a loader fetches through, the data set and all that it holds, but for generators.

    Generators are keyed anew for each sample, which is right as long as nobody else draws from them.
    """
    return [each for each in _held_by_data(loader) if not is_generator(each)]


def generators_of(loader: Any) -> set[int]:
    """Identify the generators that a samestep loader seeds or reads the seed of, and does not save."""
    saved = {id(each) for each in _owned_by_loader(loader)}
    candidates = [getattr(loader, "generator", None), *_held_by_data(loader)]
    return {id(each) for each in candidates if is_generator(each) and id(each) not in saved}


def _held_by_data(loader: Any) -> list[object]:
    parts = [getattr(loader, name, None) for name in ("dataset", "collate_fn")]
    return [each for part in parts for each in _everything(part)]


def _owned_by_loader(loader: Any) -> list[object]:
    """Give the samplers with what they hold, which is saved or replayed, and the loader's generator if it is too.

    It is not where the loader computes the order itself: then only its seed counts.
    """
    generator, fetched = getattr(loader, "generator", None), {id(each) for each in _held_by_data(loader)}
    samplers = [getattr(loader, name, None) for name in ("batch_sampler", "sampler")]
    is_computed = all(type(each) in _STOCK for each in samplers) and getattr(loader, "randomness", "torch") != "torch"
    parts = [each for sampler in samplers for each in _everything(sampler) if id(each) not in fetched]
    if is_computed:
        return [loader, *(each for each in parts if each is not generator)]
    return [loader, generator, *parts]


def _everything(tracked: object) -> list[object]:
    seen: dict[int, object] = {}
    queue = [tracked]
    for value in queue:
        if id(value) in seen or len(seen) >= MOST_OBJECTS:
            continue
        seen[id(value)] = value
        if isinstance(value, np.random.Generator):
            queue.append(value.bit_generator)
        queue.extend(child for _, child in children(value))
    return list(seen.values())


def _attributes(value: Any) -> Iterator[tuple[str, object]]:
    if isinstance(value, MethodType):
        yield ".__self__", value.__self__
    elif isinstance(value, FunctionType):
        yield from _closure(value)
    elif isinstance(value, nn.Module):
        yield from ((f".{name}", child) for name, child in value.named_children())
        yield from _plain_attributes(value)
    elif isinstance(value, DataLoader):
        yield from ((f".{name}", getattr(value, name, None)) for name in _LOADER)
    else:
        yield from _plain_attributes(value)


_STOCK = {type(None), BatchSampler, RandomSampler, SequentialSampler}
_LOADER = ("dataset", "sampler", "batch_sampler", "generator", "collate_fn")
_SIMPLE = {str, int, float, bool, type(None), Tensor, nn.Parameter}
_CONTAINERS = {dict, OrderedDict, list, tuple, set}
_PRIVATE = ("_parameters", "_buffers", "_modules")


def _plain_attributes(value: object) -> Iterator[tuple[str, object]]:
    attributes = getattr(value, "__dict__", None)
    if isinstance(attributes, dict) and len(attributes) <= _MOST_ELEMENTS:
        yield from (
            (f".{name}", child) for name, child in attributes.items() if not _is_idle(child) and name not in _PRIVATE
        )


def _is_idle(value: object) -> bool:
    """Sort out early what most attributes are: plain values, and a module's ten empty dicts for hooks."""
    kind = type(value)
    return kind in _SIMPLE or (kind in _CONTAINERS and not value)


def _key(key: object) -> str:
    """Write a key; only a plain one by its value: a tensor would be fetched from its device to be written."""
    return repr(key) if isinstance(key, (str, int, float)) else f"<{type(key).__name__}>"


def _closure(function: FunctionType) -> Iterator[tuple[str, object]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f".{name}", cell.cell_contents
        except ValueError:  # a name that is not bound yet
            continue
