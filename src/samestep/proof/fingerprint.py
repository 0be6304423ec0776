"""Owns the digest of any value that a training handles: batches, arguments, states. Changes nothing, keeps nothing."""

import math
from array import array
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
import xxhash
from torch import Tensor

from samestep.state.tensors import digest

_DEEPEST = 32
_PLAIN = (int, float, complex, str, bytes, type(None))


def fingerprint(value: Any) -> str:
    """Hash a value: tensors and arrays by dtype, shape and bytes, containers by what they hold, in order.

    Args:
        value: Anything. Of objects of other kinds their attributes count, and where they have none, their type.

    Returns:
        32 hexadecimal digits (xxh3-128).

    Example:
        >>> import torch
        >>> fingerprint({"x": torch.zeros(2)}) == fingerprint({"x": torch.zeros(2)})
        True
        >>> fingerprint([1, True]) == fingerprint([True, 1])
        False
    """
    collected = xxhash.xxh3_128()
    _collect(value, collected, _DEEPEST)
    return collected.hexdigest()


def combined(digests: list[str]) -> str:
    """Hash several digests, in order, into one."""
    return digests[0] if len(digests) == 1 else xxhash.xxh3_128_hexdigest(" ".join(digests).encode())


def json_number(value: Any) -> float | str:
    """Give a number as JSON can hold it: NaN and the infinities by name."""
    return value if isinstance(value, (int, float)) and math.isfinite(value) else str(value)


def tensor_digest(tensor: Tensor) -> str:
    """Hash a tensor, on any device and of any layout; one without data ("meta") by dtype and shape."""
    tensor = tensor.detach()
    if tensor.is_meta:
        return fingerprint(f"meta {tensor.dtype} {list(tensor.shape)}")
    if tensor.layout.__str__() != "torch.strided":
        return fingerprint([tensor.is_coalesced() if tensor.is_sparse else None, tensor.to_dense()])
    if tensor.is_quantized:
        return fingerprint([str(tensor.qscheme()), tensor.int_repr()])
    return digest(tensor)


def _collect(value: Any, into: "xxhash.xxh3_128", levels: int) -> None:
    if isinstance(value, Tensor):
        into.update(b"tensor" + tensor_digest(value).encode())
    elif isinstance(value, np.ndarray) and value.dtype != object:
        into.update(f"array {value.dtype} {value.shape}".encode())
        into.update(np.ascontiguousarray(value).view(np.uint8).data if value.size else b"")
    elif isinstance(value, _PLAIN):
        into.update(f"{type(value).__name__} {value!r};".encode(errors="backslashreplace"))
    elif levels == 0:
        into.update(b"deeper;")
    else:
        into.update(f"{type(value).__qualname__}(".encode(errors="backslashreplace"))
        for part in _parts(value):
            _collect(part, into, levels - 1)
        into.update(b")")


def _parts(value: Any) -> list[Any]:
    """Give what a value consists of; nothing for classes and functions, whose names have to do."""
    parts: list[Any] = []
    if isinstance(value, Mapping):
        parts = [part for pair in value.items() for part in pair]
    elif isinstance(value, (list, tuple)):
        parts = list(value)
    elif isinstance(value, (set, frozenset)):
        parts = sorted(map(fingerprint, value))  # in the order of their digests: they have none of their own
    elif isinstance(value, np.ndarray):
        parts = list(value.flat)
    elif isinstance(value, np.generic):
        parts = [value.item()]
    elif isinstance(value, (deque, range, array, bytearray)):
        parts = list(value)
    elif not isinstance(value, type) and not callable(value):
        parts = [part for pair in _attributes(value).items() for part in pair] or _written(value)
    return parts


def _written(value: Any) -> list[Any]:
    """Give what an object without attributes says of itself, such as a date; nothing if that is its address."""
    text = repr(value)
    return [] if " at 0x" in text else [text]


def _attributes(value: Any) -> dict[str, Any]:
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    return getattr(value, "__dict__", {}) | {name: getattr(value, name) for name in slots if hasattr(value, name)}
