"""Owns the comparing of a checkpoint's files with its manifest, byte by byte. Never imports torch or writes."""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import xxhash

from samestep.errors import CorruptCheckpoint, NoCheckpoint, SamestepError
from samestep.state.digest import Digest
from samestep.store import safetensors_file
from samestep.store.files import CHUNK
from samestep.store.manifest import (
    MANIFEST_FILE,
    MOST_MANIFEST_BYTES,
    FileEntry,
    Manifest,
    TensorEntry,
    decode_manifest,
    tensors_by_file,
)


@dataclass(frozen=True, slots=True)
class Problem:
    """Something in a checkpoint that is not what was written.

    Args:
        file: The file, relative to the checkpoint's folder.
        tensor: The tensor's name; None when the whole file or its header is concerned.
        problem: One sentence.
    """

    file: str
    tensor: str | None
    problem: str


_DAMAGE = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EIO, errno.EUCLEAN}
"""Answers of the system that mean the bytes are gone; others (permissions, too many open files) do not."""


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a checkpoint's folder.

    Raises:
        CorruptCheckpoint: It is missing, damaged, or never was a manifest.
        SamestepError: The system does not let us read it.
    """
    path = folder / MANIFEST_FILE
    with open_regular(path) as (file, size):
        if size > MOST_MANIFEST_BYTES:
            raise CorruptCheckpoint("The manifest is too large.", path=path, found=f"{size} bytes")
        return decode_manifest(file.read(size + 1), path)


def check_sizes(folder: Path, manifest: Manifest) -> None:
    """Check that all files are there with the right sizes, without reading them.

    Raises:
        CorruptCheckpoint: One is not.
    """
    for entry in manifest.files:
        with open_regular(folder / entry.name) as (_, size):
            _require_size(folder / entry.name, entry, size)


def find_problems(folder: Path, manifest: Manifest) -> Iterator[Problem]:
    """Read all files of a checkpoint and compare every digest.

    Args:
        folder: The checkpoint's folder.
        manifest: Its manifest.

    Yields:
        What is wrong, file by file; nothing when every byte is the one that was written.
    """
    tensors = tensors_by_file(manifest)
    buffer = memoryview(bytearray(min(CHUNK, max((file.bytes for file in manifest.files), default=0)) or 1))
    for entry in manifest.files:
        wanted = {name: tensor for name, (_, tensor) in tensors[entry.name].items()}
        try:
            yield from _file_problems(folder / entry.name, entry, wanted, buffer)
        except CorruptCheckpoint as error:
            found = f" (expected {error.expected}, found {error.found})" if error.expected else ""
            yield Problem(entry.name, None, error.message.removesuffix(".") + found + ".")


@contextlib.contextmanager
def open_regular(path: Path) -> Iterator[tuple[BinaryIO, int]]:
    """Open a file for reading, with its size; links, pipes and devices are refused, since they never were written.

    Raises:
        CorruptCheckpoint: It is missing, no regular file, or the disk cannot read it.
        NoCheckpoint: The whole folder is not there.
        SamestepError: The system does not let us read it.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise CorruptCheckpoint("A file of the checkpoint is no regular file.", path=path)
            yield file, status.st_size
    except OSError as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: OSError) -> SamestepError:
    """Say what the system answered: damage, or something that leaves the checkpoint as good as it was."""
    if error.errno == errno.ENOENT and not path.parent.exists():
        return NoCheckpoint(
            "There is no checkpoint here, or not any more: a running training deletes old ones.", path=path.parent
        )
    if error.errno == errno.ENOENT:
        return CorruptCheckpoint("A file of the checkpoint is missing.", path=path)
    if error.errno == errno.ELOOP:
        return CorruptCheckpoint("A file of the checkpoint is no regular file.", path=path)
    if error.errno in _DAMAGE:
        return CorruptCheckpoint("A file of the checkpoint cannot be read.", path=path, found=error.strerror)
    return SamestepError(
        "The checkpoint cannot be opened; it may be intact.",
        path=path,
        found=error.strerror,
        hint="Check the permissions and limits of this process, then run the same command again.",
    )


def read_layout(
    file: BinaryIO, size: int, expected: Mapping[str, TensorEntry], path: Path
) -> tuple[dict[str, tuple[int, int]], bytes]:
    """Read the header of an open file and find the manifest's tensors in it.

    Returns:
        First byte (counted from the file's beginning) and length of each tensor, in the file's order; and all
        bytes before the first tensor.

    Raises:
        CorruptCheckpoint: The header is damaged or does not fit the manifest.
    """
    prefix = file.read(8)
    prefix += file.read(safetensors_file.header_bytes(prefix, size, path))
    entries, begin = safetensors_file.parse_header(prefix, size, path)
    located = safetensors_file.locate(entries, expected, path)
    return {name: (begin + offset, length) for name, (offset, length) in located.items()}, prefix


def _file_problems(
    path: Path, entry: FileEntry, expected: Mapping[str, TensorEntry], buffer: memoryview
) -> Iterator[Problem]:
    with open_regular(path) as (file, size):
        _require_size(path, entry, size)
        layout, prefix = read_layout(file, size, expected, path)
        whole = xxhash.xxh3_128(prefix)
        sound = True
        for name, (_, length) in layout.items():
            digest = Digest(expected[name].dtype, expected[name].shape)
            for chunk in read_chunks(file, length, buffer, path):
                whole.update(chunk)
                digest.update(chunk)
            if digest.hexdigest() != expected[name].digest:
                sound = False
                yield Problem(path.name, name, "The tensor's bytes are not those that were written.")
        if sound and whole.hexdigest() != entry.digest:
            yield Problem(path.name, None, "The file's header is not the one that was written.")


def read_chunks(file: BinaryIO, length: int, buffer: memoryview, path: Path) -> Iterator[memoryview]:
    """Read the next bytes of an unbuffered file through one buffer; each chunk is valid until the next is taken.

    Raises:
        CorruptCheckpoint: The file ends before.
    """
    while length:
        count = file.readinto(buffer[: min(length, len(buffer))])  # type: ignore[attr-defined]
        if not count:
            raise CorruptCheckpoint("A file of the checkpoint ends too early.", path=path)
        yield buffer[:count]
        length -= count


def _require_size(path: Path, entry: FileEntry, size: int) -> None:
    if size != entry.bytes:
        raise CorruptCheckpoint(
            "A file of the checkpoint does not have its size.",
            path=path,
            expected=f"{entry.bytes} bytes",
            found=f"{size} bytes",
        )
