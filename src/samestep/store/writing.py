"""Owns the writing of one checkpoint, from a snapshot to a committed folder. Never deletes another checkpoint."""

import errno
import operator
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec
import xxhash

from samestep.errors import SamestepError, SaveFailed, UnsupportedValue
from samestep.state.snapshot import Item, Snapshot
from samestep.state.tensors import dtype_name, tensor_bytes
from samestep.store import files, folder
from samestep.store.dtypes import ELEMENT_TYPES
from samestep.store.given import check_marks
from samestep.store.manifest import (
    EXTRA_SUFFIX,
    MANIFEST_FILE,
    FileEntry,
    ItemEntry,
    Manifest,
    TensorEntry,
    encode_manifest,
    is_within_reach,
    metric_entries,
    row_major,
)
from samestep.store.reading import Checkpoint
from samestep.store.safetensors_file import Elements, write_tensors
from samestep.wording import shown

if TYPE_CHECKING:
    from torch import Tensor

_LONGEST_STEM = 100


def write_checkpoint(
    directory: str | os.PathLike[str],
    snapshot: Snapshot,
    environment: Mapping[str, Any],
    tags: Sequence[str] = (),
) -> Checkpoint:
    """Write a snapshot as a checkpoint that is complete and durable when this returns.

    A checkpoint of the same step stays; the new one is newer. Tensors on a device are copied to the CPU one at a
    time. Nothing may change the snapshot's tensors meanwhile.

    Args:
        directory: The folder of checkpoints, made if needed.
        snapshot: What to write.
        environment: Versions, machine and settings, as plain JSON.
        tags: Marks given by the user.

    Returns:
        The checkpoint.

    Raises:
        SaveFailed: The system refused; the checkpoints before it are untouched and nothing is left of this one.
        UnsupportedValue: The snapshot holds something that the format cannot keep exactly.
    """
    whole_step(snapshot.step)
    check_marks(snapshot.epoch, snapshot.metrics, tags)
    directory = Path(directory)
    layout = _layout(snapshot)
    try:
        files.make_folder(directory)
        with folder.draft(directory) as draft:
            manifest = _write_items(draft, snapshot, layout, environment, tags)
            files.write_file(draft / MANIFEST_FILE, encode_manifest(manifest))
            files.sync_folder(draft)
            return Checkpoint(folder.commit(draft, snapshot.step))
    except OSError as error:
        raise save_failed(error, directory, snapshot) from error


def whole_step(step: object) -> int:
    """Give a step as a number; raises if it is no number of updates."""
    try:
        number = -1 if isinstance(step, bool) else operator.index(step)  # type: ignore[arg-type]
    except TypeError:
        number = -1
    if not 0 <= number < 2**62:
        raise SamestepError(
            "The step is not a number of completed updates.",
            path="step",
            expected="a whole number of at least 0",
            found=shown(step),
        )
    return number


# --- which tensor goes into which file -----------------------------------------------------------------


def _layout(snapshot: Snapshot) -> dict[str, dict[str, dict[str, "Tensor"]]]:
    """Give the files of each item, each with its tensors by name."""
    taken: set[str] = set()
    return {name: dict(_item_files(file_stem(name, taken), item)) for name, item in snapshot.items.items()}


def _item_files(stem: str, item: Item) -> Iterator[tuple[str, dict[str, "Tensor"]]]:
    own = {name: tensor for name, tensor in item.tensors.items() if name not in item.extra}
    extra = {name: tensor for name, tensor in item.tensors.items() if name in item.extra}
    if own:
        yield f"{stem}.safetensors", own
    if extra:
        yield f"{stem}{EXTRA_SUFFIX}", extra


def file_stem(item: str, taken: set[str]) -> str:
    """Give the beginning of an item's file names, safe on every file system, and add it to those taken.

    Letters, digits, `_` and `-` stay, all else is percent-encoded. A name that is long, or that differs from an
    earlier one in case only, is told apart by its digest.

    Example:
        >>> file_stem("model", set()), file_stem("../é", set()), file_stem("EMA", {"ema"})
        ('model', '%2E%2E%2F%C3%A9', 'EMA-35167d467a7cf6fa')
    """
    try:
        stem = quote(item, safe="").replace(".", "%2E").replace("~", "%7E") or "%"
    except UnicodeEncodeError as error:
        raise UnsupportedValue("A name cannot be written as UTF-8.", path=ascii(item)) from error
    if len(stem) > _LONGEST_STEM or stem.lower() in taken:
        stem = f"{stem[:_LONGEST_STEM]}-{xxhash.xxh3_64_hexdigest(item.encode())}"
    taken.add(stem.lower())
    return stem


# --- writing -------------------------------------------------------------------------------------------


def _write_items(
    draft: Path,
    snapshot: Snapshot,
    layout: Mapping[str, Mapping[str, Mapping[str, "Tensor"]]],
    environment: Mapping[str, Any],
    tags: Sequence[str],
) -> Manifest:
    written: list[FileEntry] = []
    items: dict[str, ItemEntry] = {}
    for name, item in snapshot.items.items():
        tensors: dict[str, TensorEntry] = {}
        for file_name, content in layout[name].items():
            entry, digests = _write_file(draft / file_name, content, name)
            written.append(entry)
            tensors |= {key: _tensor_entry(content[key], file_name, digest) for key, digest in digests.items()}
        items[name] = ItemEntry(kind=item.kind, tree=item.tree, tensors=tensors)
    return Manifest(
        step=snapshot.step,
        epoch=snapshot.epoch,
        metrics=metric_entries(snapshot.metrics),
        tags=list(tags),
        created=datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
        files=written,
        items=items,
        environment=dict(environment),
    )


def _write_file(path: Path, tensors: Mapping[str, "Tensor"], item: str) -> tuple[FileEntry, dict[str, str]]:
    for name, tensor in tensors.items():
        if dtype_name(tensor.dtype) not in ELEMENT_TYPES:
            raise UnsupportedValue(
                "A tensor has an element type that format 1 does not know.",
                path=f"{item}[{name!r}]",
                expected=", ".join(ELEMENT_TYPES),
                found=tensor.dtype,
            )
    try:
        return write_tensors(path, {name: _elements(tensor) for name, tensor in tensors.items()})
    except (UnicodeEncodeError, msgspec.MsgspecError) as error:
        raise UnsupportedValue("A tensor's name cannot be written as UTF-8.", path=item, found=error) from error


def _elements(tensor: "Tensor") -> Elements:
    return Elements(dtype_name(tensor.dtype), list(tensor.shape), lambda: _bytes_of(tensor))


def _bytes_of(tensor: "Tensor") -> memoryview:
    """Give a tensor's bytes; a copy of it (from a device, or of other strides) needs memory that may be short."""
    try:
        return tensor_bytes(tensor)
    except (MemoryError, RuntimeError) as error:
        raise SaveFailed(
            "A tensor could not be copied to be written.",
            expected=f"{tensor.numel() * tensor.element_size()} bytes of memory",
            found=" ".join(str(error).split()) or type(error).__name__,
            hint="Earlier checkpoints are untouched.",
        ) from error


def _tensor_entry(tensor: "Tensor", file_name: str, digest: str) -> TensorEntry:
    shape, strides = list(tensor.shape), list(tensor.stride())
    return TensorEntry(
        file=file_name,
        dtype=dtype_name(tensor.dtype),
        shape=shape,
        strides=strides if is_within_reach(shape, strides, tensor.element_size()) else row_major(shape),
        digest=digest,
    )


# --- when it fails -------------------------------------------------------------------------------------


def save_failed(error: OSError, directory: Path, snapshot: Snapshot) -> SaveFailed:
    """Say why the system refused a save, and what to do."""
    reason = error.strerror or str(error)
    path = directory if error.errno == errno.ENOTDIR else error.filename or directory
    if error.errno == errno.ENOSPC:
        needed = sum(_size(item) for item in snapshot.items.values())
        return SaveFailed(
            f"The disk is full; the checkpoint of step {snapshot.step} was not saved.",
            path=directory,
            expected=f"{needed} bytes and some for the manifest",
            found=f"{_free_bytes(directory)} bytes free",
            hint="Free some space, or keep fewer checkpoints. Earlier checkpoints are untouched.",
        )
    hints = {
        errno.EROFS: "The file system is read-only: choose another directory, or mount it writable.",
        errno.EACCES: "Choose another directory, or change its permissions.",
        errno.EPERM: "Choose another directory, or change its permissions.",
        errno.ENOTDIR: "Something else stands in the place of the folder of checkpoints: move it away.",
        errno.EDQUOT: "The quota of this user is used up: free some space, or keep fewer checkpoints.",
    }
    return SaveFailed(
        f"The checkpoint of step {snapshot.step} was not saved: {reason}.",
        path=path,
        hint=hints.get(error.errno or 0, "Earlier checkpoints are untouched; look at the system's log."),
    )


def _size(item: Item) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in item.tensors.values())


def _free_bytes(directory: Path) -> int | str:
    try:
        return shutil.disk_usage(directory).free
    except OSError:
        return "an unknown number of"
