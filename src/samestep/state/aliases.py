"""Owns which tensors and containers are one, and which tensors are views of one memory. Never looks at elements."""

from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from samestep.state.snapshot import Json
from samestep.state.tensors import dtype_name, extent, is_dense, resolved

_CONTAINERS = {list, deque, dict, OrderedDict, defaultdict, Counter, set, bytearray}

_RESERVED = {"", "__metadata__"}  # safetensors keeps the second for itself
_ALIGNMENT = 16  # the size of the largest element, so that every dtype can be a view of a base


@dataclass(slots=True)
class _Entry:
    name: str
    tensor: Tensor
    leaves: list[dict[str, Json]] = field(default_factory=list)

    @property
    def start(self) -> int:
        return int(self.tensor.storage_offset()) * self.tensor.element_size()

    @property
    def end(self) -> int:
        return self.start + extent(self.tensor.shape, self.tensor.stride()) * self.tensor.element_size()


def shared_containers(value: object) -> set[int]:
    """Identify the lists, dicts, sets, deques and bytearrays that lie at more than one place in a value.

    Example:
        >>> log = []
        >>> shared_containers({"a": log, "b": log, "c": []}) == {id(log)}
        True
    """
    seen: set[int] = set()
    shared: set[int] = set()
    stack = [value]
    while stack:
        each = stack.pop()
        kind = type(each)
        if kind in _CONTAINERS:
            if id(each) in seen:
                shared.add(id(each))
                continue
            seen.add(id(each))
        if isinstance(each, (tuple, list, deque)):
            stack.extend(each)
        elif isinstance(each, dict):
            stack.extend(each.values())
    return shared


class TensorTable:
    """Names tensors, one name for one tensor, and finds those that overlap in memory.

    Args:
        views: Whether tensors that share some of their elements are written as views of one base, so that they
            share them again after decoding; else each is written by itself.
    """

    def __init__(self, *, views: bool = True) -> None:
        self._views = views
        self._entries: dict[Any, _Entry] = {}
        self._names: set[str] = set(_RESERVED)

    def add(self, tensor: Tensor, elements: tuple[object, ...]) -> dict[str, Json]:
        """Give a tensor a name made of its path's elements and return the leaf that stands for it in the tree."""
        key = _identity(tensor)
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = _Entry(self._fresh_name(elements), resolved(tensor))
        leaf: dict[str, Json] = {"$tensor": entry.name}
        if tensor.device.type != "cpu":
            leaf["device"] = tensor.device.type
        entry.leaves.append(leaf)
        return leaf

    def finish(self) -> dict[str, Tensor]:
        """Return the tensors by name; leaves of overlapping views have been turned into views of a base."""
        tensors = {entry.name: entry.tensor for entry in self._entries.values()}
        if self._views:
            for cluster in _overlapping(list(self._entries.values())):
                self._write_base(cluster, tensors)
        return tensors

    def _fresh_name(self, elements: tuple[object, ...]) -> str:
        plain = ".".join(str(element).encode("utf-8", "backslashreplace").decode() for element in elements)
        name, count = plain or "value", 1
        while name in self._names:
            count += 1
            name = f"{plain or 'value'}#{count}"
        self._names.add(name)
        return name

    def _write_base(self, cluster: list[_Entry], tensors: dict[str, Tensor]) -> None:
        start, end = min(entry.start for entry in cluster), max(entry.end for entry in cluster)
        base = _spanning(cluster, start, end)
        if base is None:
            start -= start % _ALIGNMENT
            name, tensor = self._fresh_name((f"{cluster[0].name}#base",)), _stretch(cluster, start, end)
        else:
            name, tensor = base.name, base.tensor
        for entry in cluster:
            if entry is not base:
                tensors.pop(entry.name)
                _turn_into_view(entry, name, start)
        tensors[name] = tensor


def _identity(tensor: Tensor) -> object:
    if tensor.numel() == 0:
        return object()  # nothing to share
    layout = (tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype)
    pending = (tensor.is_conj(), tensor.is_neg())
    return (tensor.device, tensor.untyped_storage().data_ptr(), layout, pending)


def _spanning(cluster: list[_Entry], start: int, end: int) -> _Entry | None:
    """Find the member that covers the whole stretch: then it is the base under its own name."""
    if len({entry.tensor.dtype for entry in cluster}) > 1:
        return None
    whole = (entry for entry in cluster if (entry.start, entry.end) == (start, end) and is_dense(entry.tensor))
    return next(whole, None)


def _stretch(cluster: list[_Entry], start: int, end: int) -> Tensor:
    member = cluster[0].tensor
    dtypes = {entry.tensor.dtype for entry in cluster}
    dtype = dtypes.pop() if len(dtypes) == 1 else torch.uint8
    whole = torch.empty(0, dtype=dtype, device=member.device)
    size = dtype.itemsize
    return whole.set_(member.untyped_storage(), start // size, ((end - start) // size,), (1,))


def _turn_into_view(entry: _Entry, base: str, start: int) -> None:
    tensor = entry.tensor
    view = {
        "base": base,
        "dtype": dtype_name(tensor.dtype),
        "shape": list(tensor.shape),
        "strides": list(tensor.stride()),
        "offset": (entry.start - start) // tensor.element_size(),
    }
    for leaf in entry.leaves:
        del leaf["$tensor"]
        leaf["$view"] = view


def _overlapping(entries: list[_Entry]) -> list[list[_Entry]]:
    """Group the tensors that share at least one byte; tensors alone are left out."""
    by_storage: dict[object, list[_Entry]] = {}
    for entry in entries:
        if entry.tensor.numel():
            storage = (entry.tensor.device, entry.tensor.untyped_storage().data_ptr())
            by_storage.setdefault(storage, []).append(entry)
    groups = (_split(group) for group in by_storage.values() if len(group) > 1)
    return [cluster for group in groups for cluster in group if len(cluster) > 1]


def _split(entries: list[_Entry]) -> list[list[_Entry]]:
    """Split the tensors of one storage by painting each one's bytes: what paints over another belongs to it."""
    entries = sorted(entries, key=lambda entry: entry.start)
    if all(left.end <= right.start for left, right in pairwise(entries)):
        return [[entry] for entry in entries]
    start = entries[0].start
    paint = torch.zeros(max(entry.end for entry in entries) - start, dtype=torch.int32)
    clusters: dict[int, list[_Entry]] = {}
    for number, entry in enumerate(entries, start=1):
        place = _bytes_of(entry, paint, start)
        touched = [each for each in torch.unique(place).tolist() if each]
        clusters[number] = [member for each in touched for member in clusters.pop(each)] + [entry]
        for each in touched:
            paint[paint == each] = number
        place.fill_(number)
    return list(clusters.values())


def _bytes_of(entry: _Entry, paint: Tensor, start: int) -> Tensor:
    size = entry.tensor.element_size()
    places = [
        (length, stride * size)
        for length, stride in zip(entry.tensor.shape, entry.tensor.stride(), strict=True)
        if stride and length > 1
    ]
    shape, strides = [length for length, _ in places], [stride for _, stride in places]
    return paint.as_strided((*shape, size), (*strides, 1), entry.start - start)
