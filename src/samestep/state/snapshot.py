"""Owns the snapshot: the state of all tracked objects at one step, as plain trees and named tensors.

Imports no torch at run time, so that the command line can speak of snapshots without paying for it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

Json = Any
"""A value of JSON: None, bool, int, float, str, list and dict with str keys. Trees of state are such values."""


@dataclass(frozen=True, slots=True)
class Item:
    """The state of one tracked object.

    Args:
        kind: What the object is: "module", "optimizer", "scheduler", "scaler", "generator", "loader",
            "random", "values", "tensor" or "other".
        tree: The state as plain JSON; where a tensor was stands `{"$tensor": name}` (see `codec`).
        tensors: The tensors by the names that the tree uses. For a module these are the names of its
            `state_dict()`, so that the file written from them is its inference file.
        extra: Names of tensors that do not belong into that file: gradients, non-persistent buffers.
    """

    kind: str
    tree: Json
    tensors: Mapping[str, "Tensor"] = field(default_factory=dict)
    extra: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of all tracked objects at one step.

    Args:
        step: Completed optimizer updates.
        epoch: The epoch that the next step belongs to; None when the loop counts steps only.
        items: State by the name under which each object is tracked.
        metrics: The last scores, by name.
    """

    step: int
    epoch: int | None
    items: Mapping[str, Item]
    metrics: Mapping[str, float] = field(default_factory=dict)
