"""Owns how a run's own files are read and written: as strict JSON. Knows none of them.

A float that JSON cannot hold is written as the string "nan", "inf" or "-inf", as in a manifest; `float()` reads it
back. Times are ISO 8601 in UTC.
"""

import json
import math
import os
import stat
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

from samestep.errors import SamestepError, UnsupportedValue
from samestep.wording import shortened_text, shown, written

_DEEPEST = 64
"""Lists and dicts in each other: one that holds itself would have no end."""

_SHORT = 2**64
"""An integer below has few digits; of a longer one it has to be tried whether Python writes it."""

_MOST_BYTES = 2**30
"""No file of a run that is read as a whole is larger."""


def read_own(path: Path) -> bytes:
    """Read one of a run's own files; a pipe in its place would be read for ever, a link lead to another's file.

    Raises:
        FileNotFoundError: It is not there.
        SamestepError: It is no regular file, or larger than it can be.
    """
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode):
        raise SamestepError("A file of the run is no regular file.", path=path, hint="Move it away.")
    if status.st_size > _MOST_BYTES:
        raise SamestepError("A file of the run is too large.", path=path, found=f"{status.st_size} bytes")
    return path.read_bytes()


def plain(value: Any, path: str) -> Any:
    """Turn a value into what strict JSON can hold.

    Args:
        value: JSON values, tuples, paths, and numbers of NumPy and torch (which have `item()`).
        path: Where the value stands, for the error.

    Returns:
        The same as dict, list, str, int, float, bool and None; floats that are not finite as strings.

    Raises:
        UnsupportedValue: JSON cannot express the value; the path of the leaf is named.

    Example:
        >>> plain({"betas": (0.9, float("inf"))}, "config")
        {'betas': [0.9, 'inf']}
    """
    return _plain(value, path, _DEEPEST)


def _plain(value: Any, path: str, levels: int) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(float(value))
    if value is None or (isinstance(value, int) and _is_readable(value)):
        return value
    if isinstance(value, (str, os.PathLike)):
        return _encodable(os.fsdecode(value))
    if isinstance(value, Mapping) and levels:
        named = [(_encodable(written(key)), inner) for key, inner in value.items()]
        return {name: _plain(inner, f"{path}.{name}", levels - 1) for name, inner in named}
    if isinstance(value, list | tuple) and levels:
        return [_plain(inner, f"{path}[{i}]", levels - 1) for i, inner in enumerate(value)]
    if callable(getattr(value, "item", None)) and getattr(value, "ndim", None) == 0:
        return _plain(value.item(), path, 0)
    raise UnsupportedValue(
        "This value cannot be written down as JSON.",
        path=path if levels else shortened_text(path),
        expected=f"numbers, text, lists and dicts of them, not more than {_DEEPEST} in each other",
        found=shown(value) if isinstance(value, int) else type(value).__name__,
        hint="Give a number or a text instead.",
    )


def _encodable(text: str) -> str:
    """Write bytes of a file's name that are no UTF-8 as escapes: a manifest holds none."""
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


def _is_readable(number: int) -> bool:
    try:
        return -_SHORT < number < _SHORT or bool(str(number))
    except ValueError:  # Python writes and reads no integer of more than 4,300 digits
        return False


def encode_line(fields: Mapping[str, Any]) -> bytes:
    r"""Write one object as one line of strict JSON.

    Args:
        fields: Plain JSON (see `plain`), and tensors of one element, whose values are waited for.

    Returns:
        The line with its end, in UTF-8.

    Example:
        >>> encode_line({"step": 4})
        b'{"step": 4}\n'
    """
    # A command line may hold bytes that are no UTF-8; as "\\udc80" they are JSON and come back the same.
    return _encode(fields).encode(errors="backslashreplace") + b"\n"


_encode = json.JSONEncoder(allow_nan=False, ensure_ascii=False, default=lambda value: plain(value, "line")).encode


def parse_line(raw: bytes) -> dict[str, Any] | None:
    """Read one line of a JSON-lines file.

    Args:
        raw: The line.

    Returns:
        Its object; None when the line is torn, or holds no object or no strict JSON.

    Example:
        >>> parse_line(b'{"step": 4}'), parse_line(b'{"step": 4, "lo')
        ({'step': 4}, None)
    """
    try:
        value = json.loads(raw, parse_constant=_refuse_constant, parse_float=_finite)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _refuse_constant(text)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")  # it could not be written again


def utc_now() -> str:
    """Tell the time, as all files of a run write it.

    Returns:
        ISO 8601 in UTC to the millisecond.

    Example:
        >>> utc_now().endswith("Z")
        True
    """
    return datetime.now(UTC).isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"
