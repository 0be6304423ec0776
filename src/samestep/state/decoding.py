"""Owns the reading of trees, friendly or hostile. Never imports, runs or trusts anything that a tree names."""

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from samestep.errors import CorruptCheckpoint, SamestepError
from samestep.state.leaves import READERS, read_numpy_dtype
from samestep.state.lookup import FACTORIES, find_enum, find_namedtuple
from samestep.state.paths import child_path
from samestep.state.snapshot import Json
from samestep.state.tensors import dtype_from_name, extent, placed, tensor_bytes, why_unsupported, with_strides
from samestep.wording import shown

DEEPEST = 100
"""How many containers may lie in one another: far more than states have, far less than Python's stack."""

_SHAREABLE = (list, dict, set, deque, bytearray)

_MOST_OF_ONE_HASH = 100
"""So many keys of one dict or set may have the same hash: a stranger's could all have it, and take hours to compare."""

Place = Callable[[Tensor, str], Tensor]


def decode(tree: Json, tensors: Mapping[str, Tensor], *, place: Place | None = None) -> Any:
    """Turn a tree and its tensors back into the value.

    Args:
        tree: What `encode` gave.
        tensors: The tensors by name.
        place: Puts a tensor, given with the type of device from which it was saved, on its device. By default
            it goes to the current device of that type, and to the CPU where there is none.

    Returns:
        The value. Its tensors and arrays are copies, so that using it does not change the snapshot.

    Raises:
        CorruptCheckpoint: The tree is not one that `encode` gives, or a tensor is missing.
        StateMismatch: It names an enum or named tuple that this process has not loaded.

    Example:
        >>> decode({"$kind": "tuple", "value": [1, {"$tensor": "w"}]}, {"w": torch.ones(1)})
        (1, tensor([1.]))
    """
    return Decoder(tensors).decode(tree, place=place)


def to_device_of_type(tensor: Tensor, kind: str) -> Tensor:
    """Move a tensor to the current device of a type; leave it on the CPU where there is no such device."""
    if kind == "cpu":
        return tensor
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return placed(tensor, kind) if accelerator is not None and accelerator.type == kind else tensor


class Decoder:
    """Decodes several trees of one snapshot: a tensor that they share is one object in all of them."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors
        self._place: Place = to_device_of_type
        self._copies: dict[tuple[str, str], Tensor] = {}
        self._shared: dict[int, Any] = {}

    def decode(self, tree: Json, path: str = "", *, place: Place | None = None) -> Any:
        """Turn a tree back into its value; see the function `decode`."""
        self._place = place or to_device_of_type
        return self._read(tree, path, 0)

    def _read(self, tree: Json, path: str, depth: int) -> Any:
        if depth > DEEPEST:
            raise CorruptCheckpoint(f"The tree of state is nested more than {DEEPEST} levels deep.", path=path)
        try:
            return self._decode(tree, path, depth)
        except SamestepError:
            raise
        except Exception as error:
            raise CorruptCheckpoint(
                "A value in the state cannot be read.", path=path or "the whole tree", found=error
            ) from error

    def _decode(self, tree: Json, path: str, depth: int) -> Any:
        if isinstance(tree, list):
            return self._items(tree, path, depth)
        if not isinstance(tree, dict):
            return tree
        if "$tensor" in tree or "$view" in tree:
            return self._tensor_or_view(tree, tree.get("device", "cpu"), path)
        if "$shared" in tree or "$same" in tree:
            return self._shared_container(tree, path, depth)
        if "$kind" in tree:
            return self._kind(tree["$kind"], tree, path, depth)
        return {key: self._read(value, child_path(path, key), depth + 1) for key, value in tree.items()}

    def _items(self, items: list[Json], path: str, depth: int) -> list[Any]:
        return [self._read(each, child_path(path, index), depth + 1) for index, each in enumerate(items)]

    def _shared_container(self, tree: dict[str, Json], path: str, depth: int) -> Any:
        """Read a container that lies at several places: it is written out once, before all references to it."""
        number = tree["$shared" if "$shared" in tree else "$same"]
        if type(number) is not int or (number in self._shared) is ("$shared" in tree):
            raise CorruptCheckpoint(
                "A value that lies at several places is written out not once, or behind a reference to it.",
                path=path,
                found=shown(number),
            )
        if "$shared" in tree:
            value = self._read(tree["value"], path, depth)
            if not isinstance(value, _SHAREABLE):
                raise TypeError("only a list, dict, set, deque or bytearray can lie at several places")
            self._shared.setdefault(number, value)
        return self._shared[number]

    # --- tensors ---------------------------------------------------------------------------------------

    def _tensor_or_view(self, tree: dict[str, Json], device: str, path: str) -> Tensor:
        if "$tensor" in tree:
            return self._tensor(tree["$tensor"], device, path)
        return self._view(tree["$view"], device, path)

    def _tensor(self, name: str, device: str, path: str) -> Tensor:
        if (name, device) not in self._copies:
            if name not in self._tensors:
                raise CorruptCheckpoint("A tensor is missing from the checkpoint.", path=path, expected=name)
            tensor = self._tensors[name]
            self._copies[name, device] = self._place(with_strides(tensor, tensor.stride()), device)
        return self._copies[name, device]

    def _view(self, view: dict[str, Json], device: str, path: str) -> Tensor:
        base = self._tensor(view["base"], device, path)
        dtype = dtype_from_name(view["dtype"])
        shape, strides, offset = [int(size) for size in view["shape"]], view["strides"], int(view["offset"])
        if min([*shape, *strides, offset, 0]) < 0:
            raise ValueError("sizes, strides and offset cannot be negative")
        needed = (offset + extent(shape, strides)) * dtype.itemsize
        if needed > base.untyped_storage().nbytes():  # `set_` would enlarge the memory instead of refusing
            raise ValueError("the view reaches beyond its base")
        view_of = torch.empty(0, dtype=dtype, device=base.device)
        if why_unsupported(view_of) is not None:  # quantized and the like: torch itself fails on half of them
            raise ValueError("no tensor of this dtype is ever saved")
        return view_of.set_(base.untyped_storage(), offset, shape, strides)

    # --- kinds -----------------------------------------------------------------------------------------

    def _kind(self, kind: str, tree: dict[str, Json], path: str, depth: int) -> Any:
        if kind in READERS:
            return READERS[kind](tree["value"])
        if kind not in self._kinds:
            raise CorruptCheckpoint(
                "The state holds a kind of value that this version does not know.", path=path, found=shown(kind)
            )
        return self._kinds[kind](self, tree, path, depth)

    def _children(self, tree: dict[str, Json], path: str, depth: int) -> list[Any]:
        if not isinstance(tree["value"], list):
            raise TypeError("a list was expected")
        return self._items(tree["value"], path, depth)

    def _pairs(self, tree: dict[str, Json], path: str, depth: int) -> dict[Any, Any]:
        if not isinstance(tree["value"], list):
            raise TypeError("a list of pairs was expected")
        result, seen = {}, _Keys()
        for key_tree, value_tree in tree["value"]:
            key = self._read(key_tree, path, depth + 1)
            seen.add(key)
            result[key] = self._read(value_tree, child_path(path, key), depth + 1)
        if len(result) != len(tree["value"]):
            raise ValueError("a key comes twice")
        return result

    def _counter(self, tree: dict[str, Json], path: str, depth: int) -> Counter[Any]:
        result: Counter[Any] = Counter()
        dict.update(result, self._pairs(tree, path, depth))  # Counter's own update would add
        return result

    def _enum(self, tree: dict[str, Json], path: str, depth: int) -> Any:
        kind, names = find_enum(tree["class"]), self._children(tree, path, depth)
        members = [kind.__members__[name] for name in names]
        if len(members) == 1:
            return members[0]
        result: Any = kind(0)
        for member in members:
            result |= member
        return result

    def _namedtuple(self, tree: dict[str, Json], path: str, depth: int) -> Any:
        values = self._children(tree, path, depth)
        kind = find_namedtuple(tree["class"], tree["fields"])
        if len(values) != len(tree["fields"]):
            raise ValueError("the number of values is not that of the fields")
        return tuple.__new__(kind, values)

    def _array(self, tree: dict[str, Json], path: str, depth: int) -> np.ndarray[Any, Any]:
        tensor = self._read(tree["value"], path, depth + 1)
        if not isinstance(tensor, Tensor):
            raise TypeError("a tensor was expected")
        return tensor.cpu().numpy()

    def _raw_array(self, tree: dict[str, Json], path: str, depth: int) -> np.ndarray[Any, Any]:
        value = tree["value"]
        dtype = read_numpy_dtype(value["dtype"])
        content = bytearray(tensor_bytes(self._read(value["bytes"], path, depth + 1)))
        shape = tuple(int(size) for size in value["shape"])
        if int(np.prod(shape, dtype=object)) * dtype.itemsize != len(content) or value["order"] not in {"C", "F"}:
            raise ValueError("the bytes do not fit the array's shape")
        return np.ndarray(shape, dtype, content, order=value["order"])

    def _sequence(self, tree: dict[str, Json], path: str, depth: int) -> Any:
        return tuple(self._children(tree, path, depth))

    def _set(self, tree: dict[str, Json], path: str, depth: int) -> set[Any] | frozenset[Any]:
        children, seen = self._children(tree, path, depth), _Keys()
        for each in children:
            seen.add(each)
        result = set(children) if tree["$kind"] == "set" else frozenset(children)
        if len(result) != len(children):
            raise ValueError("a member comes twice")
        return result

    def _slice(self, tree: dict[str, Json], path: str, depth: int) -> slice:
        return slice(*self._children(tree, path, depth))

    def _deque(self, tree: dict[str, Json], path: str, depth: int) -> deque[Any]:
        return deque(self._children(tree, path, depth), tree["maxlen"])

    def _ordered_dict(self, tree: dict[str, Json], path: str, depth: int) -> OrderedDict[Any, Any]:
        return OrderedDict(self._pairs(tree, path, depth))

    def _defaultdict(self, tree: dict[str, Json], path: str, depth: int) -> defaultdict[Any, Any]:
        return defaultdict(FACTORIES[tree["factory"]], self._pairs(tree, path, depth))

    _kinds: ClassVar[dict[str, Callable[..., Any]]] = {
        "tuple": _sequence,
        "set": _set,
        "frozenset": _set,
        "slice": _slice,
        "deque": _deque,
        "dict": _pairs,
        "OrderedDict": _ordered_dict,
        "defaultdict": _defaultdict,
        "Counter": _counter,
        "namedtuple": _namedtuple,
        "enum": _enum,
        "ndarray": _array,
        "ndarray.bytes": _raw_array,
    }


def holds_tensor(key: object) -> bool:
    """Tell whether a key is a tensor or has one inside: two of them are never equal, whatever their elements."""
    if isinstance(key, slice):
        key = (key.start, key.stop, key.step)
    return isinstance(key, Tensor) or (isinstance(key, (tuple, frozenset)) and any(map(holds_tensor, key)))


class _Keys:
    """The keys of one dict, or members of one set, as they are read."""

    def __init__(self) -> None:
        self._hashes: Counter[int] = Counter()

    def add(self, key: Any) -> None:
        """Count a key; raise for one that `encode` refuses, or when too many have one hash."""
        if holds_tensor(key):
            raise TypeError("a tensor cannot be a key")
        self._hashes[hash(key)] += 1
        if self._hashes[hash(key)] > _MOST_OF_ONE_HASH:
            raise ValueError(f"more than {_MOST_OF_ONE_HASH} keys have the same hash")
