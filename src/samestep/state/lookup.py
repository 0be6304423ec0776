"""Owns the finding of classes by name among those already loaded. Never imports anything and runs no user code."""

import sys
from collections.abc import Callable
from enum import Enum
from typing import Any

from samestep.errors import StateMismatch

FACTORIES: dict[str, Callable[[], Any] | None] = {
    "None": None,
    **{kind.__name__: kind for kind in (int, float, complex, bool, str, bytes, list, tuple, dict, set, frozenset)},
}
"""The factories that a defaultdict may have, by name."""


def class_name(kind: type) -> str:
    """Name a class as "module:qualified.name"; TypeError if it cannot be found again by this name."""
    name = f"{kind.__module__}:{kind.__qualname__}"
    if _find(name) is not kind:
        raise TypeError("is of a class that cannot be found by its name: define it at the top level of a module")
    return name


def find_enum(name: str) -> type[Enum]:
    """Find a loaded enum class by its name."""
    found = _find(name)
    if not (isinstance(found, type) and issubclass(found, Enum)):
        raise _not_loaded(name, "an enum")
    return found


def find_namedtuple(name: str, fields: list[str]) -> type[tuple[Any, ...]]:
    """Find a loaded class of named tuples that has these fields."""
    found = _find(name)
    if not (isinstance(found, type) and issubclass(found, tuple) and found.__base__ is tuple):
        raise _not_loaded(name, "a class of named tuples")
    if list(vars(found).get("_fields", ())) != fields:
        raise StateMismatch(
            "A named tuple has other fields than when it was saved.",
            path=name,
            expected=fields,
            found=list(vars(found).get("_fields", ())),
        )
    return found


def _find(name: str) -> object:
    """Look the name up in dictionaries only: `getattr` on a module may import, through its `__getattr__`."""
    module, _, qualified = name.partition(":")
    found: object = sys.modules.get(module)
    for part in qualified.split("."):
        if found is None:
            return None
        found = vars(found).get(part) if isinstance(found, type) or found is sys.modules.get(module) else None
    return found


def _not_loaded(name: str, kind: str) -> StateMismatch:
    return StateMismatch(
        f"The state names {kind} that this process has not loaded.",
        path=name,
        hint="Import its module before restoring; loading a checkpoint never imports anything.",
    )
