"""Owns how saved values are put into live ones, so that aliases of these go on seeing them. Never encodes."""

import operator
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from torch import Tensor

from samestep.state.order import order_to_add
from samestep.state.tensors import copy_into

_DICTS = (dict, OrderedDict, defaultdict, Counter)
_CONTAINERS = (*_DICTS, list, set, deque, bytearray)
_ABSENT = object()


def assign_in_place(live: Any, saved: Any) -> Any:
    """Give a live value the content of a saved one, and keep what is the same object the same object.

    Lists, dicts, sets, deques, bytearrays, tensors and arrays of one type are changed in place, at any depth, where
    their positions or keys agree; tensors and arrays also have to agree in shape, dtype and device. What is one object
    in the saved value is one afterwards, what are two are two, and views stay views.

    Args:
        live: The present value, which others may hold too.
        saved: The value that it becomes; it must not be used afterwards, since parts of it may be taken over.

    Returns:
        The live object where the types agree, else the saved one.

    Example:
        >>> losses = [3.0]
        >>> state = {"losses": losses}
        >>> state = assign_in_place(state, {"losses": [2.0, 1.0]})
        >>> losses
        [2.0, 1.0]
    """
    plan = _Plan()
    plan.pair(live, saved)
    return plan.assigned(saved)


@dataclass(slots=True)
class _Memory:
    """Which stretches of live memory the tensors or arrays of one saved memory would be put into."""

    values: set[int] = field(default_factory=set)
    targets: set[tuple[int, int]] = field(default_factory=set)
    same_layout: bool = True


class _Plan:
    """Which live object each saved one goes into: no two into one, and no one into two."""

    def __init__(self) -> None:
        self._live: dict[int, Any] = {}
        self._taken: set[int] = set()
        self._memories: dict[int, _Memory] = {}
        self._sources: dict[int, set[int]] = {}
        self._done: set[int] = set()
        self._paired: set[tuple[int, int]] = set()

    # --- pairing ---------------------------------------------------------------------------------------

    def pair(self, live: Any, saved: Any) -> None:
        """Find the live object for a saved one and for all that it holds."""
        if isinstance(saved, (Tensor, np.ndarray)):
            self._pair_memory(live, saved)
        elif type(saved) in _CONTAINERS:
            if (id(live), id(saved)) in self._paired:
                return  # what lies at several places is looked at once, or a few hundred bytes could unfold for ever
            self._paired.add((id(live), id(saved)))
            are_free = id(saved) not in self._live and id(live) not in self._taken
            if are_free and _is_of_type(live, saved):
                self._live[id(saved)] = live
                self._taken.add(id(live))
        for one, other in _children(live, saved):
            self.pair(one, other)

    def _pair_memory(self, live: Any, saved: Any) -> None:
        memory = self._memories.setdefault(_memory(saved), _Memory())
        memory.values.add(id(saved))
        if id(saved) in self._live or not _is_alike(live, saved):
            return
        self._live[id(saved)] = live
        memory.targets.add((_memory(live), _address(live) - _address(saved)))
        memory.same_layout &= _strides(live) == _strides(saved)
        self._sources.setdefault(_memory(live), set()).add(_memory(saved))

    # --- assigning -------------------------------------------------------------------------------------

    def assigned(self, saved: Any) -> Any:
        """Give what stands for a saved value: the live object with its content, or itself."""
        if isinstance(saved, (Tensor, np.ndarray)):
            return self._assign_memory(saved)
        if isinstance(saved, tuple) and type(saved) is not torch.Size:
            parts = [self.assigned(each) for each in saved]
            return saved if all(map(operator.is_, parts, saved)) else tuple.__new__(type(saved), parts)
        if type(saved) not in _CONTAINERS:
            return saved
        live = self._live.get(id(saved), saved)
        if id(saved) not in self._done:
            self._done.add(id(saved))
            self._assign_container(live, saved)
        return live

    def _assign_container(self, live: Any, saved: Any) -> None:
        if isinstance(saved, dict):
            items = [(key, self.assigned(each)) for key, each in saved.items()]
            if isinstance(saved, defaultdict):
                live.default_factory = saved.default_factory
            live.clear()
            for key, each in items:
                live[key] = each
        elif isinstance(saved, set):
            members = order_to_add(saved) or list(saved)
            live.clear()
            for each in members:  # one by one, so that the table grows as that of a set made from a list
                live.add(each)
        elif isinstance(saved, bytearray):
            live[:] = bytes(saved)
        else:
            parts = [self.assigned(each) for each in saved]
            live.clear()
            live.extend(parts)

    def _assign_memory(self, saved: Any) -> Any:
        live, memory = self._live.get(id(saved)), self._memories[_memory(saved)]
        if live is None or not self._fits(memory) or len(self._sources[_memory(live)]) > 1:
            return saved
        if live is not saved:
            if isinstance(saved, Tensor):
                copy_into(live, saved)
            else:
                live[...] = saved
        return live

    def _fits(self, memory: _Memory) -> bool:
        """Tell whether all that lies in a saved memory goes to one live memory, in the same layout if it is more."""
        all_are_live = memory.values <= self._live.keys()
        return all_are_live and len(memory.targets) == 1 and (memory.same_layout or len(memory.values) == 1)


def _children(live: Any, saved: Any) -> Iterator[tuple[Any, Any]]:
    """Pair what two values hold by positions or keys; what has no partner gets `_ABSENT`."""
    if isinstance(saved, dict):
        partners = live if type(live) is type(saved) else {}
        yield from ((partners.get(key, _ABSENT), each) for key, each in saved.items())
    elif isinstance(saved, (list, tuple, deque)):
        others = list(live)[: len(saved)] if type(live) is type(saved) else []
        yield from zip_longest(others, saved, fillvalue=_ABSENT)


def _is_of_type(live: Any, saved: Any) -> bool:
    return type(live) is type(saved) and (not isinstance(saved, deque) or live.maxlen == saved.maxlen)


def _is_alike(live: Any, saved: Any) -> bool:
    if isinstance(saved, Tensor):
        return (
            type(live) in {Tensor, torch.nn.Parameter}
            and live.layout == saved.layout == torch.strided
            and (live.shape, live.dtype, live.device) == (saved.shape, saved.dtype, saved.device)
            and live.is_leaf
            and not live.is_inference()
        )
    same_type = type(live) is np.ndarray and (live.shape, live.dtype) == (saved.shape, saved.dtype)
    return same_type and live.flags.writeable and live.strides == saved.strides


def _memory(value: Any) -> int:
    """Identify the memory that a tensor or array lies in; what is empty has one of its own."""
    if isinstance(value, Tensor):
        strided = value.layout == torch.strided
        return (value.untyped_storage().data_ptr() if strided else 0) or id(value)
    while isinstance(value.base, np.ndarray):
        value = value.base
    if isinstance(value.base, Tensor):  # an array that torch made
        return _memory(value.base)
    return _address(value) if value.size else id(value)


def _address(value: Any) -> int:
    return value.data_ptr() if isinstance(value, Tensor) else value.__array_interface__["data"][0]


def _strides(value: Any) -> tuple[int, ...]:
    return tuple(value.stride() if isinstance(value, Tensor) else value.strides)
