"""Owns the way from a checkpoint's files to tensors, one tensor at a time. Never writes and restores nothing."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from samestep.errors import CorruptCheckpoint, SamestepError
from samestep.state.digest import Digest
from samestep.state.snapshot import Item, Snapshot
from samestep.state.tensors import dtype_from_name, with_strides
from samestep.store.files import CHUNK
from samestep.store.manifest import EXTRA_SUFFIX, ItemEntry, Manifest, TensorEntry, metric_values
from samestep.store.verifying import open_regular, read_chunks, read_layout
from samestep.wording import shown, told

_ON_CPU = {"random", "generator", "loader"}
"""Kinds whose tensors are states of generators: torch wants those on the CPU, even a GPU's (ignite#2076)."""

Move = Callable[[torch.Tensor], torch.Tensor]


def load_snapshot(folder: Path, manifest: Manifest, map_location: Any) -> Snapshot:
    """Make a snapshot whose tensors are read when they are used.

    Args:
        folder: The checkpoint's folder.
        manifest: Its manifest.
        map_location: Where tensors go, as in `torch.load`.

    Returns:
        The snapshot.
    """
    move = _mover(map_location)
    return Snapshot(
        step=manifest.step,
        epoch=manifest.epoch,
        items={name: _item(folder, entry, move) for name, entry in manifest.items.items()},
        metrics=metric_values(manifest),
    )


def _item(folder: Path, entry: ItemEntry, move: Move) -> Item:
    return Item(
        kind=entry.kind,
        tree=entry.tree,
        tensors=LazyTensors(folder, entry.tensors, _stay if entry.kind in _ON_CPU else move),
        extra=frozenset(name for name, tensor in entry.tensors.items() if tensor.file.endswith(EXTRA_SUFFIX)),
    )


class LazyTensors(Mapping[str, torch.Tensor]):
    """The tensors of one item; each use reads the tensor anew and compares its digest.

    Args:
        folder: The checkpoint's folder.
        entries: The manifest's entries by name.
        move: Puts a tensor where `map_location` wants it.
    """

    def __init__(self, folder: Path, entries: Mapping[str, TensorEntry], move: Move) -> None:
        self._folder = folder
        self._entries = entries
        self._move = move
        self._layouts: dict[str, dict[str, tuple[int, int]]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries  # Mapping's own would read the tensor

    def __getitem__(self, name: str) -> torch.Tensor:
        entry = self._entries[name]
        elements = self._read(name, entry)
        tensor = elements.view(dtype_from_name(entry.dtype)).reshape(entry.shape)
        moved = self._move(tensor)
        return moved if list(moved.stride()) == entry.strides else with_strides(moved, entry.strides)

    def _read(self, name: str, entry: TensorEntry) -> torch.Tensor:
        path = self._folder / entry.file
        with open_regular(path) as (file, size):
            if entry.file not in self._layouts:
                expected = {key: each for key, each in self._entries.items() if each.file == entry.file}
                self._layouts[entry.file] = read_layout(file, size, expected, path)[0]
            begin, length = self._layouts[entry.file][name]
            file.seek(begin)
            elements = torch.empty(length, dtype=torch.uint8)
            digest = Digest(entry.dtype, entry.shape)
            target = elements.numpy().data
            for position in range(0, length, CHUNK):
                for chunk in read_chunks(file, min(CHUNK, length - position), target[position:], path):
                    digest.update(chunk)
        if digest.hexdigest() != entry.digest:
            raise CorruptCheckpoint("The tensor's bytes are not those that were written.", path=f"{path}: {name}")
        return elements


# --- where tensors go ----------------------------------------------------------------------------------


def _mover(map_location: Any) -> Move:
    """Give what puts a tensor in its place; one that is none on this machine is refused before anything is read.

    A checkpoint is as sound as before where its tensors find no room: that must not look like damage.
    """
    if map_location is None:
        return _stay
    if isinstance(map_location, Mapping):
        return _mover(map_location.get("cpu", map_location.get(torch.device("cpu"))))
    if callable(map_location):
        return lambda tensor: _moved(tensor, map_location, lambda: _remap(tensor, map_location))
    _moved(torch.empty(0), map_location, lambda: torch.empty(0, device=_device(map_location)))
    return lambda tensor: _moved(tensor, map_location, lambda: tensor.to(_device(map_location)))


def _device(map_location: Any) -> torch.device:
    if not isinstance(map_location, str | torch.device) and type(map_location) is not int:
        raise TypeError("no device")
    return torch.device(map_location)


def _moved(tensor: torch.Tensor, map_location: Any, move: Callable[[], torch.Tensor]) -> torch.Tensor:
    try:
        return move()
    except Exception as error:
        raise SamestepError(
            f"A tensor of {tensor.nbytes} bytes cannot go where map_location wants it."
            if tensor.nbytes
            else "map_location names no place for tensors on this machine.",
            path="map_location",
            expected='as in torch.load: a device such as "cpu" or "cuda:0", a dict of them, a function, or None',
            found=f"{shown(map_location)}: {told(error).splitlines()[0]}",
            hint="The checkpoint is not the cause, and stays as it is.",
        ) from error


def _stay(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _remap(tensor: torch.Tensor, map_location: Callable[[Any, str], Any]) -> torch.Tensor:
    """Ask a function as `torch.load` does: it gets the storage and its place, and None means "leave it"."""
    storage = map_location(tensor.untyped_storage(), "cpu")
    if storage is None:
        return tensor
    moved = torch.empty(0, dtype=tensor.dtype, device=storage.device)
    return moved.set_(storage, 0, tensor.shape, tensor.stride())
