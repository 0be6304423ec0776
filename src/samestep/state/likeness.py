"""Owns whether a saved value can stand where a live one stands, by kind of value. Never compares values.

Torch's own `load_state_dict` of schedulers and scalers, and the groups of an optimizer, take whatever they are given:
a text in place of a learning rate would only show in the middle of a later step.
"""

import numbers
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

_FAMILIES: tuple[tuple[str, tuple[type, ...]], ...] = (
    ("a number", (numbers.Number, np.number, np.bool_, Tensor)),
    ("text", (str,)),
    ("a dict", (Mapping,)),
    ("a list", (list, tuple)),
)


def family(value: object) -> str | None:
    """Tell what kind of value this is; None for one of which nothing is expected.

    Example:
        >>> family(0.1), family((0.9, 0.99)), family(None)
        ('a number', 'a list', None)
    """
    return next((name for name, types in _FAMILIES if isinstance(value, types)), None)


def unlike(path: str, saved: Mapping[str, Any], live: Mapping[str, Any]) -> list[str]:
    """Describe the values that cannot stand for the live ones of the same name; None stands for anything.

    Example:
        >>> unlike("group 0", {"lr": "high", "foreach": None}, {"lr": 0.1, "foreach": True})
        ['group 0: lr is text in the checkpoint and a number here']
    """
    pairs = ((name, family(saved[name]), family(live[name])) for name in saved if name in live)
    return [
        f"{path}: {name} is {there} in the checkpoint and {here} here"
        for name, there, here in pairs
        if there is not None and here is not None and there != here
    ]
