"""Owns the tree: turns values into plain JSON with named tensors, exactly. Never pickles and runs no user code.

Plain values stay readable JSON; every other value is `{"$kind": …, "value": …}`, a tensor is `{"$tensor": name}`,
and one that shares memory with others `{"$view": {base, dtype, shape, strides, offset}}`. A list, dict, set, deque or
bytearray that lies at several places is `{"$shared": number, "value": …}` at the first, `{"$same": number}` at others.
Kept are values, types, order, and which tensors and which of these containers are one. Not kept are requires_grad and
being a Parameter (the module adapter restores the flags of live parameters), nor the order in which sets iterate: that
of texts changes from process to process anyway; that of numbers is kept where an order of adding them can be found
that gives it, and a warning names the others.
"""

import json
import warnings
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from samestep.errors import UnsupportedValue
from samestep.state.aliases import TensorTable, shared_containers
from samestep.state.decoding import DEEPEST, decode, holds_tensor
from samestep.state.leaves import LARGEST_PLAIN_INT, LEAVES, NUMPY_DTYPE, NUMPY_SCALAR, Leaf, is_plain_text
from samestep.state.leaves import write_numpy_dtype as _write_numpy_dtype
from samestep.state.lookup import FACTORIES, class_name
from samestep.state.order import order_to_add
from samestep.state.paths import child_path
from samestep.state.snapshot import Json
from samestep.state.tensors import why_unsupported
from samestep.wording import shown

__all__ = ["Encoder", "decode", "encode"]


def encode(value: object, path: str) -> tuple[Json, dict[str, Tensor]]:
    """Turn a value into a JSON tree and named tensors.

    Args:
        value: Plain values, tensors and arrays, nested in containers.
        path: How errors name the value, such as "optimizer".

    Returns:
        The tree, and the tensors by the names that stand in it: live references with their own strides.

    Raises:
        UnsupportedValue: Something in it cannot be stored exactly; the error names its path.

    Example:
        >>> encode({"rate": 0.1, "betas": (0.9, 0.99), "w": {"m": torch.ones(2)}}, "optimizer")[0]
        {'rate': 0.1, 'betas': {'$kind': 'tuple', 'value': [0.9, 0.99]}, 'w': {'m': {'$tensor': 'w.m'}}}
    """
    encoder = Encoder()
    tree = encoder.encode(value, path)
    return tree, encoder.finish()


class Encoder:
    """Encodes several values that share one set of tensor names.

    Args:
        views: Whether tensors that overlap in memory are written as views of one base (see `TensorTable`).
    """

    def __init__(self, *, views: bool = True) -> None:
        self._table = TensorTable(views=views)
        self._open: set[int] = set()
        self._numbers: dict[int, int | None] = {}
        self._shared = 0

    def encode(self, value: object, path: str) -> Json:
        """Turn a value into its tree; the tensors are collected until `finish`."""
        self._numbers = dict.fromkeys(shared_containers(value))
        return self._encode(value, path, ())

    def finish(self) -> dict[str, Tensor]:
        """Return the tensors of everything encoded, by name."""
        return self._table.finish()

    def _encode(self, value: Any, path: str, elements: tuple[object, ...]) -> Json:
        if _is_plain(value):
            return value
        if isinstance(value, Tensor):
            return self._tensor(value, path, elements)
        if type(value) is np.ndarray:
            return self._array(value, path, elements)
        if isinstance(value, Enum):
            return _enum(value, path)
        if id(value) in self._numbers:
            return self._numbered(value, path, elements)
        return self._written_out(value, path, elements)

    def _numbered(self, value: Any, path: str, elements: tuple[object, ...]) -> Json:
        """Write a container that lies at several places: out at the first, as a reference at the others."""
        number = self._numbers[id(value)]
        if number is not None and id(value) not in self._open:
            return {"$same": number}
        number = self._numbers[id(value)] = self._shared
        self._shared += 1
        return {"$shared": number, "value": self._written_out(value, path, elements)}

    def _written_out(self, value: Any, path: str, elements: tuple[object, ...]) -> Json:
        leaf = _leaf_of(value)
        if leaf is not None:
            return _kind(leaf.kind, _written(leaf.write, value, path))
        return self._container(value, path, elements)

    # --- tensors and arrays ----------------------------------------------------------------------------

    def _tensor(self, value: Tensor, path: str, elements: tuple[object, ...]) -> Json:
        reason = why_unsupported(value)
        if reason is not None:
            raise UnsupportedValue(f"{path or 'The tensor'} {reason}.", path=path)
        return self._table.add(value, elements)

    def _array(self, value: np.ndarray[Any, Any], path: str, elements: tuple[object, ...]) -> Json:
        dtype = _written(_write_numpy_dtype, value.dtype, path)
        if value.dtype.isnative and value.dtype.type in _SHARED_WITH_TORCH:
            if not value.flags.writeable or any(s < 0 or s % value.itemsize for s in value.strides):
                value = value.copy(order="K")  # torch takes neither read-only memory nor negative strides
            return _kind("ndarray", self._tensor(torch.from_numpy(value), path, elements))
        order: Literal["C", "F"] = "F" if value.flags.f_contiguous and not value.flags.c_contiguous else "C"
        content = bytearray(value.tobytes(order))
        raw = torch.frombuffer(content, dtype=torch.uint8) if content else torch.empty(0, dtype=torch.uint8)
        tree = {"dtype": dtype, "shape": list(value.shape), "order": order}
        return _kind("ndarray.bytes", {**tree, "bytes": self._tensor(raw, path, elements)})

    # --- containers ------------------------------------------------------------------------------------

    def _container(self, value: Any, path: str, elements: tuple[object, ...]) -> Json:
        writers, kind = self._writers, type(value)
        write = Encoder._namedtuple if _is_namedtuple(value) else writers.get(kind)
        if write is None:
            raise UnsupportedValue(
                f"{path or 'The value'} is {_described(value)}, which cannot be stored exactly.",
                path=path,
                found=type(value).__module__ + "." + type(value).__qualname__,
                hint=_hint(value),
            )
        if id(value) in self._open:
            raise UnsupportedValue(f"{path} contains itself.", path=path, hint="Leave the inner reference out.")
        if len(self._open) >= DEEPEST:
            raise UnsupportedValue(f"{path} is nested more than {DEEPEST} levels deep.", path=path)
        self._open.add(id(value))
        try:
            return write(self, value, path, elements)
        finally:
            self._open.discard(id(value))

    def _items(self, value: Iterable[object], path: str, elements: tuple[object, ...]) -> list[Json]:
        return [self._encode(each, child_path(path, index), (*elements, index)) for index, each in enumerate(value)]

    def _list(self, value: list[object], path: str, elements: tuple[object, ...]) -> Json:
        return self._items(value, path, elements)

    def _tuple(self, value: tuple[object, ...], path: str, elements: tuple[object, ...]) -> Json:
        return _kind("tuple", self._items(value, path, elements))

    def _namedtuple(self, value: Any, path: str, elements: tuple[object, ...]) -> Json:
        name = _written(class_name, type(value), path)
        fields = [
            self._encode(getattr(value, each), child_path(path, each), (*elements, each)) for each in value._fields
        ]
        return _kind("namedtuple", fields, **{"class": name, "fields": list(value._fields)})

    def _set(self, value: set[object] | frozenset[object], path: str, elements: tuple[object, ...]) -> Json:
        if all(isinstance(each, (int, float, complex)) for each in value):
            order = order_to_add(value)
            if order is None:
                warnings.warn(_OTHER_ORDER.format(path=path or "The value"), stacklevel=2)
            members = [self._key(each, path, elements) for each in order or value]
        else:
            # Texts are iterated in another order in every process anyway: sorted, equal sets give equal checkpoints.
            members = sorted((self._key(each, path, elements) for each in value), key=json.dumps)
        return _kind("set" if type(value) is set else "frozenset", members)

    def _slice(self, value: slice, path: str, elements: tuple[object, ...]) -> Json:
        return _kind("slice", self._items((value.start, value.stop, value.step), path, elements))

    def _deque(self, value: deque[object], path: str, elements: tuple[object, ...]) -> Json:
        return _kind("deque", self._items(value, path, elements), maxlen=value.maxlen)

    def _dict(self, value: dict[object, object], path: str, elements: tuple[object, ...]) -> Json:
        if all(type(key) is str and not key.startswith("$") and is_plain_text(key) for key in value):
            return {
                str(key): self._encode(each, child_path(path, key), (*elements, key)) for key, each in value.items()
            }
        return _kind("dict", self._pairs(value, path, elements))

    def _pairs(self, value: Mapping[Any, object], path: str, elements: tuple[object, ...]) -> list[list[Json]]:
        return [
            [self._key(key, path, elements), self._encode(each, child_path(path, key), (*elements, _part(key, index)))]
            for index, (key, each) in enumerate(value.items())
        ]

    def _ordered_dict(self, value: OrderedDict[Any, object], path: str, elements: tuple[object, ...]) -> Json:
        return _kind("OrderedDict", self._pairs(value, path, elements))

    def _counter(self, value: Counter[Any], path: str, elements: tuple[object, ...]) -> Json:
        return _kind("Counter", self._pairs(value, path, elements))

    def _defaultdict(self, value: defaultdict[Any, object], path: str, elements: tuple[object, ...]) -> Json:
        names = {factory: name for name, factory in FACTORIES.items()}
        if value.default_factory not in names:
            raise UnsupportedValue(
                f"{path} is a defaultdict whose factory cannot be stored.",
                path=path,
                expected=f"one of {', '.join(FACTORIES)}",
                found=value.default_factory,
                hint="Return dict(…) from the state_dict.",
            )
        factory = names[value.default_factory]
        return _kind("defaultdict", self._pairs(value, path, elements), factory=factory)

    def _key(self, key: object, path: str, elements: tuple[object, ...]) -> Json:
        if holds_tensor(key):
            raise UnsupportedValue(f"{path} has a tensor as a key.", path=path, hint="Use its name as the key.")
        return self._encode(key, child_path(path, key), (*elements, key))

    _writers: ClassVar[dict[type, Callable[..., Json]]] = {
        list: _list,
        tuple: _tuple,
        set: _set,
        frozenset: _set,
        dict: _dict,
        OrderedDict: _ordered_dict,
        defaultdict: _defaultdict,
        Counter: _counter,
        deque: _deque,
        slice: _slice,
    }


_OTHER_ORDER = (
    "{path} is a set that iterates in another order after a resume; if its order decides anything, iterate over"
    " sorted(…), or keep a dict."
)

_SHARED_WITH_TORCH = frozenset(
    (np.bool_, np.uint8, np.uint16, np.uint32, np.uint64, np.int8, np.int16, np.int32, np.int64)
) | {np.float16, np.float32, np.float64, np.complex64, np.complex128}


def _part(key: object, index: int) -> object:
    """Give what a key is called in tensors' names: not its text where that changes from process to process."""
    return f"#{index}" if _holds_set(key) else key


def _holds_set(key: object) -> bool:
    return isinstance(key, frozenset) or (isinstance(key, tuple) and any(map(_holds_set, key)))


def _is_plain(value: object) -> bool:
    if value is None or type(value) is bool:
        return True
    if type(value) is str:
        return is_plain_text(value)
    if type(value) is int:
        return -LARGEST_PLAIN_INT < value < LARGEST_PLAIN_INT
    return type(value) is float and value - value == 0  # neither NaN nor infinite, which JSON lacks


def _leaf_of(value: object) -> Leaf | None:
    if isinstance(value, np.generic):
        return NUMPY_SCALAR
    if isinstance(value, np.dtype):
        return NUMPY_DTYPE
    return LEAVES.get(type(value))


def _kind(kind: str, value: Json, **more: Json) -> Json:
    return {"$kind": kind, **more, "value": value}


def _written(write: Callable[[Any], Json], value: object, path: str) -> Json:
    try:
        return write(value)
    except (TypeError, ValueError) as error:
        raise UnsupportedValue(f"{path or 'The value'} {error}.", path=path, found=shown(value)) from error


def _enum(value: Enum, path: str) -> Json:
    name = _written(class_name, type(value), path)
    members = [value.name] if value.name in type(value).__members__ else _flags(value, path)
    return _kind("enum", members, **{"class": name})


def _flags(value: Any, path: str) -> list[str]:
    names = [member.name for member in value] if hasattr(value, "__iter__") else None
    if names is None:
        raise UnsupportedValue(f"{path} is an enum without a name.", path=path, found=shown(value))
    return names


def _is_namedtuple(value: object) -> bool:
    return isinstance(value, tuple) and type(value).__base__ is tuple and hasattr(type(value), "_fields")


def _described(value: object) -> str:
    if callable(value) and hasattr(value, "__code__"):
        return "a function"
    if isinstance(value, type):
        return f"the class {value.__qualname__}"
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def _hint(value: object) -> str:
    if isinstance(value, (torch.Generator, np.random.Generator, np.random.RandomState)):
        return "Track the generator itself: run.track(generator=…)."
    if callable(getattr(value, "state_dict", None)):
        return "Store its state_dict() instead of the object, or track it."
    return "Store plain values instead (numbers, text, lists, dicts, tensors), or leave it out of the state_dict."
