"""Fuzzes the tree codec: any tree is a value or a SamestepError, and a value that was read is written the same again.

An input is a program: each byte chooses what comes next in a tree, so that every input is a tree of the right words.
"""

import contextlib
import json
import warnings
from typing import Any

import torch

from samestep.errors import SamestepError, UnsupportedValue
from samestep.progress import Values
from samestep.state.codec import encode
from samestep.state.decoding import decode

TENSORS = {
    "w": torch.arange(6.0).reshape(2, 3),
    "i": torch.tensor([0, 1]),
    "b": torch.arange(24, dtype=torch.uint8),
    "e": torch.empty(0, dtype=torch.uint8),
}
KINDS = (
    *("tuple", "set", "frozenset", "slice", "deque", "dict", "OrderedDict", "defaultdict", "Counter", "namedtuple"),
    *("enum", "ndarray", "ndarray.bytes", "int", "float", "complex", "text", "bytes", "bytearray", "range", "datetime"),
    *("date", "time", "timedelta", "timezone", "zone", "decimal", "fraction", "uuid", "torch.dtype", "torch.device"),
    *("torch.Size", "torch.memory_format", "torch.layout", "path", "numpy.scalar", "numpy.dtype", "no such kind"),
)
TEXTS = (
    *(
        "",
        "a",
        "$kind",
        "é",
        "\0",
        "w",
        "i",
        "b",
        "e",
        "x",
        "value",
        "0x10",
        "-0x1",
        "3ff0000000000000",
        "7ff8000000000001",
    ),
    *(
        "YQ==",
        "////",
        "AAAAAAAAAAA=",
        "C",
        "F",
        "<f4",
        ">i8",
        "|S0",
        "|V3",
        "<U1",
        "<M8[ns]",
        "|b1",
        "<c16",
        "|O",
        "O",
        "U",
    ),
    *(
        "float32",
        "uint8",
        "bool",
        "quint8",
        "onnx",
        "cpu",
        "cuda",
        "meta",
        "strided",
        "channels_last",
        "jagged",
        "1.5",
        "nan",
    ),
    *(
        "sNaN",
        "2026-11-29",
        "2026-11-29T23:26:29",
        "23:26:29",
        "Europe/Paris",
        "UTC",
        "../x",
        "PosixPath",
        "PureWindowsPath",
    ),
    *("enum:Enum", "os:system", "http:HTTPStatus", "OK", "signal:Signals", "SIGTERM", "re:RegexFlag", "IGNORECASE"),
    *("time:struct_time", "torch:Size", "urllib.parse:_SplitResultBase", "inspect:Attribute", "list", "int", "None"),
)
NUMBERS = (0, 1, 2, 3, 5, 6, 24, -1, 7, 100, 2**31, 2**53, 2**62, 2**63, 2**64, -(2**63), 10**30, 0.5, -0.0, 1e308)
NAMES = (
    *("value", "class", "fields", "maxlen", "factory", "base", "dtype", "shape", "strides", "offset", "bytes", "order"),
    *("naive", "zone", "fold", "key", "name", "type", "text", "raw", "device", "$kind", "$tensor", "$view", "$shared"),
    *("$same", "a", "b"),
)
SHAPES: dict[str, tuple[str, ...]] = {
    "namedtuple": ("class", "fields"),
    "enum": ("class",),
    "deque": ("maxlen",),
    "defaultdict": ("factory",),
}
_DEEPEST = 12


class Program:
    """Reads bytes as choices; behind its end every choice is the first."""

    def __init__(self, data: bytes) -> None:
        self._data = iter(data)

    def choose(self, options: Any) -> Any:
        """Choose one of several."""
        return options[next(self._data, 0) % len(options)]

    def several(self, most: int = 5) -> range:
        """Choose a number of repetitions."""
        return range(self.choose(range(most)))

    def tree(self, depth: int = 0) -> Any:
        """Make a tree."""
        plain = (self._none, self._text, self._number, self._tensor)
        makers = (*plain, self._list, self._dict, self._kind, self._kind, self._view, self._shared, self._same)
        return self.choose(makers if depth < _DEEPEST else plain)(depth + 1)

    def _none(self, _depth: int) -> Any:
        return self.choose((None, True, False))

    def _text(self, _depth: int) -> str:
        return self.choose(TEXTS)

    def _number(self, _depth: int) -> int | float:
        return self.choose(NUMBERS)

    def _tensor(self, _depth: int) -> Any:
        leaf = {"$tensor": self.choose((*TENSORS, "missing"))}
        return {**leaf, "device": self.choose(TEXTS)} if self.choose((False, False, True)) else leaf

    def _list(self, depth: int) -> list[Any]:
        return [self.tree(depth) for _ in self.several()]

    def _dict(self, depth: int) -> dict[str, Any]:
        return {self.choose((*NAMES, *TEXTS)): self.tree(depth) for _ in self.several()}

    def _kind(self, depth: int) -> dict[str, Any]:
        kind = self.choose(KINDS)
        more = {name: self.tree(depth) for name in SHAPES.get(kind, ())}
        return {"$kind": kind, **more, "value": self._value(kind, depth)}

    def _value(self, kind: str, depth: int) -> Any:
        """Give what mostly belongs to a kind: pairs, numbers, texts; or anything."""
        if self.choose((0, 0, 0, 1)):
            return self.tree(depth)
        if kind in {"dict", "OrderedDict", "defaultdict", "Counter"}:
            return [[self.tree(depth), self.tree(depth)] for _ in self.several()]
        if kind in {"tuple", "set", "frozenset", "slice", "deque", "namedtuple", "enum"}:
            return [self.tree(depth) for _ in self.several()]
        if kind in {"range", "complex", "fraction", "timedelta", "torch.Size"}:
            return [self.choose((*TEXTS, *NUMBERS)) for _ in self.several(4)]
        if kind in {"datetime", "time", "path", "numpy.scalar", "ndarray.bytes", "timezone", "zone"}:
            return {self.choose(NAMES): self.tree(depth) for _ in self.several(7)}
        return self.choose(TEXTS)

    def _view(self, depth: int) -> dict[str, Any]:
        view: dict[str, Any] = {"base": self.choose(tuple(TENSORS)), "dtype": self.choose(TEXTS)}
        view |= {name: [self._number(depth) for _ in self.several(4)] for name in ("shape", "strides")}
        return {"$view": view | {"offset": self._number(depth)}}

    def _shared(self, depth: int) -> dict[str, Any]:
        return {"$shared": self.choose((0, 1, 2, 3, True, None)), "value": self.tree(depth)}

    def _same(self, _depth: int) -> dict[str, Any]:
        return {"$same": self.choose((0, 1, 2, 3, "a"))}


def check(data: bytes) -> None:
    """Decode the tree that the bytes describe; what can be decoded can be put into live values and encoded again."""
    tree = Program(data).tree()
    try:
        value = decode(tree, TENSORS)
    except SamestepError:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of sets whose order of iteration cannot be kept
        require_fixed_point(value)
    with contextlib.suppress(SamestepError):
        Values().load_state_dict({"a": value})


def require_fixed_point(value: Any) -> None:
    """Require that what is written, read and written again is the same text and has the same tensors."""
    try:
        tree, tensors = encode(value, "value")
    except UnsupportedValue:
        return
    again, others = encode(decode(tree, tensors), "value")
    assert json.dumps(tree) == json.dumps(again), f"{tree} became {again}"
    assert all(_bits(others[name]) == _bits(tensor) for name, tensor in tensors.items())


def _bits(tensor: torch.Tensor) -> tuple[Any, ...]:
    is_small = tensor.numel() < 1000  # noqa: PLR2004 — an expanded one may stand for petabytes
    whole = tensor.contiguous().as_strided((tensor.numel(),), (1,)).view(torch.uint8) if is_small else tensor[:0]
    return tensor.dtype, tensor.shape, whole.tolist()
