"""Owns how each value without children is written in JSON and read again. Never imports or runs what it reads."""

import base64
import datetime as dt
import decimal
import fractions
import pathlib
import re
import struct
import uuid
import zoneinfo
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch

from samestep.state.snapshot import Json
from samestep.state.tensors import dtype_from_name, dtype_name

LARGEST_PLAIN_INT = 2**53
"""Integers below are plain JSON numbers: RFC 8259 promises no more to other readers of the manifest."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """How the values of one type are written as `{"$kind": kind, "value": …}`."""

    kind: str
    write: Callable[[Any], Json]
    read: Callable[[Any], Any]


def is_plain_text(text: str) -> bool:
    """Tell whether a text is valid Unicode: lone surrogates (undecodable file names) are not, and break JSON."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


# --- numbers, text and bytes ---------------------------------------------------------------------------


def _write_float(value: float) -> str:
    return struct.pack(">d", value).hex()


def _read_float(value: str) -> float:
    return cast("float", struct.unpack(">d", bytes.fromhex(value))[0])


def _write_bytes(value: bytes | bytearray) -> str:
    return base64.b64encode(value).decode()


def _read_bytes(value: str) -> bytes:
    return base64.b64decode(value, validate=True)


def _read_int(value: str) -> int:
    return int(value, 16)


def _write_text(value: str) -> str:
    return _write_bytes(value.encode("utf-8", "surrogatepass"))


def _read_text(value: str) -> str:
    return _read_bytes(value).decode("utf-8", "surrogatepass")


def _write_complex(value: complex) -> list[str]:
    return [_write_float(value.real), _write_float(value.imag)]


def _read_complex(value: list[str]) -> complex:
    real, imaginary = value
    return complex(_read_float(real), _read_float(imaginary))


MOST_FRACTION_BITS = 2**17
"""Of numerator and denominator: reducing a fraction takes time that grows with the square of its length."""


def _write_fraction(value: fractions.Fraction) -> list[str]:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MOST_FRACTION_BITS:
        raise TypeError(f"has a numerator or denominator of more than {MOST_FRACTION_BITS} bits")
    return [hex(value.numerator), hex(value.denominator)]  # Python refuses decimal digits beyond 4,300


def _read_fraction(value: list[str]) -> fractions.Fraction:
    numerator, denominator = (int(part, 16) for part in value)
    if max(numerator.bit_length(), denominator.bit_length()) > MOST_FRACTION_BITS:
        raise ValueError("the fraction is longer than one can be")
    return fractions.Fraction(numerator, denominator)


def _write_range(value: range) -> list[str]:
    return [hex(part) for part in (value.start, value.stop, value.step)]


def _read_range(value: list[str]) -> range:
    start, stop, step = value
    return range(int(start, 16), int(stop, 16), int(step, 16))


# --- dates ---------------------------------------------------------------------------------------------


def write_zone(zone: dt.tzinfo | None) -> Json:
    """Write a time zone: None, a fixed offset with its name, or the key of a zone of the tz database."""
    if zone is None:
        return None
    if type(zone) is dt.timezone:
        name = zone.tzname(None)
        return {"offset": _write_delta(zone.utcoffset(None)), "name": name}
    if type(zone) is zoneinfo.ZoneInfo and zone.key is not None:
        return {"key": zone.key}
    raise TypeError("has a time zone that is neither a fixed offset nor a named zone of the tz database")


def _read_zone(value: Json) -> dt.tzinfo | None:
    if value is None:
        return None
    if "key" in value:
        return zoneinfo.ZoneInfo(value["key"])
    offset, name = _read_delta(value["offset"]), value["name"]
    unnamed = dt.timezone(offset)
    return unnamed if unnamed.tzname(None) == name else dt.timezone(offset, name)


def _write_moment(value: dt.datetime | dt.time) -> Json:
    return {"naive": value.replace(tzinfo=None).isoformat(), "zone": write_zone(value.tzinfo), "fold": value.fold}


def _read_datetime(value: Json) -> dt.datetime:
    naive = dt.datetime.fromisoformat(value["naive"])
    return naive.replace(tzinfo=_read_zone(value["zone"]), fold=value["fold"])


def _read_time(value: Json) -> dt.time:
    naive = dt.time.fromisoformat(value["naive"])
    return naive.replace(tzinfo=_read_zone(value["zone"]), fold=value["fold"])


def _write_delta(value: dt.timedelta) -> list[int]:
    return [value.days, value.seconds, value.microseconds]


def _read_delta(value: list[int]) -> dt.timedelta:
    days, seconds, microseconds = value
    return dt.timedelta(days, seconds, microseconds)


# --- paths ---------------------------------------------------------------------------------------------

_PATH_TYPES: dict[str, Callable[[str], pathlib.PurePath]] = {
    "PurePosixPath": pathlib.PurePosixPath,
    "PureWindowsPath": pathlib.PureWindowsPath,
    "PosixPath": pathlib.Path,  # a run may move to another system: a concrete path becomes one of that system
    "WindowsPath": pathlib.Path,
}


def _write_path(value: pathlib.PurePath) -> Json:
    text = str(value)
    written = {"text": text} if is_plain_text(text) else {"raw": _write_text(text)}
    return {"type": type(value).__name__, **written}


def _read_path(value: Json) -> pathlib.PurePath:
    return _PATH_TYPES[value["type"]](value["text"] if "text" in value else _read_text(value["raw"]))


# --- NumPy ---------------------------------------------------------------------------------------------


def write_numpy_dtype(dtype: np.dtype[Any]) -> Json:
    """Write a NumPy dtype as its description; TypeError for one that holds objects or is not NumPy's own."""
    description = None if dtype.hasobject or dtype.metadata else np.lib.format.dtype_to_descr(dtype)
    try:
        known = description is not None and np.lib.format.descr_to_dtype(description) == dtype
    except (TypeError, ValueError):
        known = False
    if not known:
        raise TypeError(f"has the NumPy dtype {dtype}, which cannot be stored exactly")
    return _lists(description)


def read_numpy_dtype(description: Json) -> np.dtype[Any]:
    """Read a NumPy dtype that `write_numpy_dtype` wrote; ValueError for one that holds objects."""
    dtype = np.dtype(np.lib.format.descr_to_dtype(_tuples(description)))
    if dtype.hasobject:
        raise ValueError("the dtype holds objects")
    return dtype


_DTYPE = re.compile(r"[<>|=]?[A-Za-z?][0-9]{0,10}(\[[0-9]{0,10}[A-Za-zμ]{1,7}(/[0-9]{1,10})?\])?")


def _lists(value: Any) -> Json:
    return [_lists(each) for each in value] if isinstance(value, (list, tuple)) else value


def _tuples(value: Json) -> Any:
    """Give a description the tuples back that JSON took: a list of fields, each a tuple, or (base, shape)."""
    if isinstance(value, str):
        if _DTYPE.fullmatch(value) is None:  # NumPy would read a list of types with commas, in quadratic time
            raise ValueError("this names no single NumPy dtype")
        return value
    if value and isinstance(value[0], list) and not _is_pair_with_shape(value):
        return [_field(each) for each in value]
    base, shape = value
    return (_tuples(base), tuple(shape))


def _is_pair_with_shape(value: list[Any]) -> bool:
    return len(value) == 2 and all(isinstance(size, int) for size in value[1])  # noqa: PLR2004  (base, shape)


def _field(value: list[Any]) -> tuple[Any, ...]:
    name, description, *shape = value
    name = tuple(name) if isinstance(name, list) else name
    return (name, _tuples(description), *(tuple(each) for each in shape))


def _write_numpy_scalar(value: np.generic) -> Json:
    if isinstance(value, np.str_):  # as an element of an array it would lose zeros at its end
        return {"dtype": "U", "bytes": _write_text(str.__str__(value))}
    if isinstance(value, np.bytes_):
        return {"dtype": "S", "bytes": _write_bytes(bytes(value))}
    return {"dtype": write_numpy_dtype(value.dtype), "bytes": _write_bytes(value.tobytes())}


def _read_numpy_scalar(value: Json) -> np.generic:
    if value["dtype"] == "U":
        return np.str_(_read_text(value["bytes"]))
    if value["dtype"] == "S":
        return np.bytes_(_read_bytes(value["bytes"]))
    dtype, content = read_numpy_dtype(value["dtype"]), _read_bytes(value["bytes"])
    if len(content) != dtype.itemsize:
        raise ValueError("the bytes do not fit the dtype")
    return cast("np.generic", np.ndarray((1,), dtype, bytearray(content))[0])


# --- the table -----------------------------------------------------------------------------------------


def _read_torch_name(value: str, kind: type) -> Any:
    found = vars(torch).get(value)  # as in `dtype_from_name`
    if not isinstance(found, kind):
        raise TypeError(f"torch.{value} is no {kind.__name__}")
    return found


def _read_size(value: list[int]) -> torch.Size:
    if not all(isinstance(each, int) and abs(each) < 2**63 for each in value):
        raise ValueError("a size has 64 bits")  # torch keeps larger ones, and fails when they are looked at
    return torch.Size(value)


def _torch_name(value: object) -> str:
    return str(value).removeprefix("torch.")


LEAVES: dict[type, Leaf] = {
    int: Leaf("int", hex, _read_int),
    float: Leaf("float", _write_float, _read_float),
    complex: Leaf("complex", _write_complex, _read_complex),
    str: Leaf("text", _write_text, _read_text),
    bytes: Leaf("bytes", _write_bytes, _read_bytes),
    bytearray: Leaf("bytearray", _write_bytes, lambda value: bytearray(_read_bytes(value))),
    range: Leaf("range", _write_range, _read_range),
    dt.datetime: Leaf("datetime", _write_moment, _read_datetime),
    dt.date: Leaf("date", dt.date.isoformat, dt.date.fromisoformat),
    dt.time: Leaf("time", _write_moment, _read_time),
    dt.timedelta: Leaf("timedelta", _write_delta, _read_delta),
    dt.timezone: Leaf("timezone", write_zone, _read_zone),
    zoneinfo.ZoneInfo: Leaf("zone", write_zone, _read_zone),
    decimal.Decimal: Leaf("decimal", str, decimal.Decimal),
    fractions.Fraction: Leaf("fraction", _write_fraction, _read_fraction),
    uuid.UUID: Leaf("uuid", str, uuid.UUID),
    torch.dtype: Leaf("torch.dtype", dtype_name, dtype_from_name),
    torch.device: Leaf("torch.device", str, torch.device),
    torch.Size: Leaf("torch.Size", list, _read_size),
    torch.memory_format: Leaf(
        "torch.memory_format", _torch_name, lambda value: _read_torch_name(value, torch.memory_format)
    ),
    torch.layout: Leaf("torch.layout", _torch_name, lambda value: _read_torch_name(value, torch.layout)),
    **{
        kind: Leaf("path", _write_path, _read_path)
        for kind in (pathlib.PurePosixPath, pathlib.PureWindowsPath, pathlib.PosixPath, pathlib.WindowsPath)
    },
}
"""Leaves by exact type: a subclass may carry more than its base, so it is refused rather than cut down."""

NUMPY_SCALAR = Leaf("numpy.scalar", _write_numpy_scalar, _read_numpy_scalar)
NUMPY_DTYPE = Leaf("numpy.dtype", write_numpy_dtype, read_numpy_dtype)

READERS: dict[str, Callable[[Any], Any]] = {
    leaf.kind: leaf.read for leaf in (*LEAVES.values(), NUMPY_SCALAR, NUMPY_DTYPE)
}
