"""Owns what a data set lists by name, and in which order: file names and keys. Reads no file and no sample."""

import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import xxhash
from torch.utils.data import Dataset

from samestep.errors import StateMismatch
from samestep.messages import warn_user

_CHUNK = 4096
"""Names that are joined at a time: a million of them are digested in about half a second."""

_DEPTH = 4
"""Data sets inside data sets that are looked into; deeper ones are a net of objects, no wrappers."""


def listings(dataset: Any) -> dict[str, str]:
    """Digest the lists of names that a data set holds, each as its names in any order, and in theirs.

    Samples are asked for by index, so a data set that lists its files in another order gives other samples to the same
    indices. The operating system lists a folder in any order, and a set of texts iterates in another one in each
    process. What all names of a list begin with, the folder they lie in, does not count: data may be moved.

    Args:
        dataset: Any map-style data set; those inside it are looked into, unless they have a `fingerprint` of their own.

    Returns:
        By the place of each list, such as "samples" or "dataset.files": the names' digest, a slash, the order's.
    """
    return dict(_walk(dataset, "", set(), _DEPTH))


def check_listings(saved: Mapping[str, str], live: Mapping[str, str]) -> None:
    """Raise `StateMismatch` for a list whose names stand in another order, and warn of one that has other names.

    Args:
        saved: What `listings` gave when the state was saved.
        live: What it gives here.
    """
    for place in saved.keys() & live.keys():
        names, order = saved[place].split("/")
        names_here, order_here = live[place].split("/")
        if names != names_here:
            warn_user(
                f"The data set's list {place!r} holds other names than in the run that saved the state: its samples"
                " may be others."
            )
        elif order != order_here:
            raise StateMismatch(
                "The data set lists the same names in another order, so each index means another sample.",
                path=f"dataset.{place}",
                expected=f"the order whose digest is {order}",
                found=order_here,
                hint="A folder and a set are listed in any order: build the list with sorted(…). To go on exactly, give"
                " it the order that it had. If samples do not hang on this list, a method fingerprint() says so.",
            )


def _walk(dataset: Any, place: str, seen: set[int], depth: int) -> Iterator[tuple[str, str]]:
    if id(dataset) in seen or depth == 0 or callable(getattr(dataset, "fingerprint", None)):
        return
    seen.add(id(dataset))
    for attribute, value in getattr(dataset, "__dict__", {}).items():
        here = place + attribute
        for name, inner in _datasets(value):
            yield from _walk(inner, f"{here}{name}.", seen, depth - 1)
        if id(value) not in seen and (names := _names(value)):
            seen.add(id(value))
            yield here, _digest(names)


def _datasets(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, Dataset):
        return [("", value)]
    if isinstance(value, (list, tuple)) and value and all(isinstance(each, Dataset) for each in value):
        return [(f"[{index}]", each) for index, each in enumerate(value)]
    return []


def _names(value: Any) -> list[str]:
    """Give the names in a list of them, or in front of the tuples that it consists of; nothing for other values."""
    if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "USO":
        value = value.tolist()
    if not isinstance(value, (list, tuple)) or len(value) < 2:  # noqa: PLR2004 - one name has no order
        return []
    if all(isinstance(each, (list, tuple)) and each for each in value):
        value = [each[0] for each in value]
    if not all(isinstance(each, (str, bytes, os.PathLike)) for each in value):
        return []
    return [os.fsdecode(each) for each in value]


def _digest(names: list[str]) -> str:
    # The first and the last in sorted order share exactly what all share.
    shared = os.path.commonprefix([min(names), max(names)])  # noqa: RUF071 - cut at a separator in the next line
    cut = shared.rfind(os.sep) + 1
    order, total = xxhash.xxh3_128(), 0
    for start in range(0, len(names), _CHUNK):
        chunk = [name[cut:].encode("utf-8", "surrogateescape") for name in names[start : start + _CHUNK]]
        order.update(b"\0".join(chunk) + b"\0")
        total += sum(map(xxhash.xxh3_64_intdigest, chunk))
    return f"{total % 2**64:016x}/{order.hexdigest()}"


def are_listings(value: object) -> bool:
    """Tell whether a value is what `listings` gives."""
    return isinstance(value, Mapping) and all(isinstance(each, str) and each.count("/") == 1 for each in value.values())
