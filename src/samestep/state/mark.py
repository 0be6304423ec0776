"""Owns marked state: small state copied, large tensors remembered by digest. Never copies large ones."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from samestep.errors import StateMismatch
from samestep.state.paths import child_path
from samestep.state.snapshot import Item
from samestep.state.tensors import copy_of, digest

_LARGEST_COPIED = 64 * 1024


@dataclass(frozen=True, slots=True)
class _Remembered:
    """What a large tensor was: enough to see that it has changed."""

    layout: tuple[object, ...]
    digest: str


class Mark:
    """The state at one moment, held until it is saved at the next boundary.

    Trees and tensors of up to 64 KiB are copied; larger tensors are remembered by their digest and layout, which
    costs no memory: version counters would miss fused optimizers, `.data` and BatchNorm.

    Args:
        items: The state now.

    Example:
        >>> import torch
        >>> small = torch.zeros(1)
        >>> def now():
        ...     return {"total": Item("tensor", {"$tensor": "value"}, {"value": small})}
        >>> mark = Mark(now())
        >>> _ = small.add_(1)
        >>> mark.items(now())["total"].tensors["value"]
        tensor([0.])
    """

    def __init__(self, items: Mapping[str, Item]) -> None:
        self._items = {
            name: replace(item, tensors={key: copy_of(each) for key, each in item.tensors.items() if _is_small(each)})
            for name, item in items.items()
        }
        self._large = {
            (name, key): _Remembered(_layout(tensor), digest(tensor))
            for name, item in items.items()
            for key, tensor in item.tensors.items()
            if not _is_small(tensor)
        }
        self._names = {name: list(item.tensors) for name, item in items.items()}

    def changed(self, items_now: Mapping[str, Item]) -> list[str]:
        """Name the large tensors whose bytes or layout are no longer those that were marked, or that are gone."""
        return [
            child_path(name, key)
            for (name, key), remembered in self._large.items()
            if not _is_still(remembered, items_now.get(name), key)
        ]

    def items(self, items_now: Mapping[str, Item]) -> dict[str, Item]:
        """Give the marked state, with the live large tensors.

        Args:
            items_now: The state now, whose large tensors are still those that were marked.

        Raises:
            StateMismatch: A large tensor has changed since.
        """
        changed = self.changed(items_now)
        if changed:
            raise StateMismatch(
                "The state has changed since it was marked.",
                path=changed[0],
                found=f"{len(changed)} changed: {', '.join(changed)}",
                hint="Make no update between run.score() or run.save() and the end of the loop's body.",
            )
        return {name: self._whole(name, item, items_now) for name, item in self._items.items()}

    def _whole(self, name: str, item: Item, items_now: Mapping[str, Item]) -> Item:
        tensors = {
            key: items_now[name].tensors[key] if (name, key) in self._large else item.tensors[key]
            for key in self._names[name]
        }
        return replace(item, tensors=tensors)


def independent(items: Mapping[str, Item]) -> dict[str, Item]:
    """Copy all tensors to the CPU, so that later updates do not show in the items.

    Args:
        items: The state; "best" must be such a copy, or be written at once.
    """
    return {
        name: replace(item, tensors={key: copy_of(tensor) for key, tensor in item.tensors.items()})
        for name, item in items.items()
    }


def _is_small(tensor: Tensor) -> bool:
    return tensor.numel() * tensor.element_size() <= _LARGEST_COPIED


def _layout(tensor: Tensor) -> tuple[object, ...]:
    return tensor.dtype, tensor.shape, tensor.stride()


def _is_still(remembered: _Remembered, item: Item | None, key: str) -> bool:
    tensor = None if item is None else item.tensors.get(key)
    return tensor is not None and _layout(tensor) == remembered.layout and digest(tensor) == remembered.digest
