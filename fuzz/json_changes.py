"""Owns the changing of JSON by its structure, so that most inputs get past the parser. Never looks at meaning."""

import json
import random
from typing import Any

ODD: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        2,
        4,
        64,
        65,
        0.5,
        -0.0,
        1e308,
        2**31,
        2**53,
        2**62,
        2**62 + 1,
        2**63,
        2**64,
        10**30,
    ),
    *("", "0", "nan", "inf", "\0", "é", "../x", "/x", "a.safetensors", "float32", "int64", "complex64", "bool"),
    *(
        "F32",
        "U8",
        "BF16",
        "__metadata__",
        "__metadata__.",
        "step",
        "$kind",
        "$tensor",
        "$view",
        "2026-11-29T23:26:29Z",
    ),
    *([], [0], [1], [2, 3], [3, 1], [0, 0], [2**62], [2**62, 2**62], {}, {"a": 1}, {"$tensor": "w"}, [[]], [{}]),
)
"""Values that readers have stumbled over."""


def changed(data: bytes, draw: random.Random) -> bytes:
    """Give JSON with one of its values replaced, removed, doubled or exchanged; what is no JSON becomes an object."""
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError):
        tree = {}
    places = _places(tree)
    if not places:
        return json.dumps(draw.choice(ODD)).encode()
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        _change(draw.choice(places), draw.choice(places), draw)
    try:
        return json.dumps(tree, separators=(",", ":"), ensure_ascii=False).encode(errors="replace")
    except (ValueError, RecursionError):  # it holds itself now
        return data


def _places(tree: Any) -> list[tuple[Any, Any]]:
    found, ahead = [], [tree]
    while ahead:
        each = ahead.pop()
        items = each.items() if isinstance(each, dict) else enumerate(each) if isinstance(each, list) else ()
        for key, child in items:
            found.append((each, key))
            ahead.append(child)
    return found


def _change(place: tuple[Any, Any], other: tuple[Any, Any], draw: random.Random) -> None:
    (parent, key), (source, its_key) = place, other
    try:
        value, odd = source[its_key], draw.choice(ODD)
        match draw.randrange(6):
            case 0 | 1:
                parent[key] = json.loads(json.dumps(odd))
            case 2:
                parent[key] = json.loads(json.dumps(value))
            case 3:
                del parent[key]
            case 4 if isinstance(parent, dict):
                parent[str(odd)] = parent.pop(key)
            case 4 | 5 if isinstance(parent, list):
                parent.insert(key, json.loads(json.dumps(value)))
            case _ if isinstance(parent[key], int):
                parent[key] += draw.choice((-1, 1))
    except (KeyError, IndexError, ValueError, RecursionError):  # an earlier change has taken the place away
        return
