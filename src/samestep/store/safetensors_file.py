"""Owns the bytes of a safetensors file: header and streaming, digests on the way. Never imports torch.

The format: https://github.com/huggingface/safetensors#format (8 bytes of length, a JSON header, the elements back
to back without holes).
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Never

import msgspec
import xxhash
from msgspec import Meta, Struct

from samestep.errors import CorruptCheckpoint
from samestep.state.digest import Digest
from samestep.store import files
from samestep.store.dtypes import ELEMENT_TYPES
from samestep.store.manifest import FileEntry, TensorEntry, tensor_bytes
from samestep.wording import shown

MOST_HEADER_BYTES = 100_000_000
"""The same limit as the safetensors library's."""

_LENGTH_BYTES = 8
_METADATA = "__metadata__"
_Count = Annotated[int, Meta(ge=0, le=2**62)]


class HeaderEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """What the header says of one tensor.

    Args:
        dtype: Its code, such as "F32".
        shape: Elements in each dimension.
        data_offsets: First byte and the byte behind the last, counted from the end of the header.
    """

    dtype: str
    shape: Annotated[list[_Count], Meta(max_length=65)]
    data_offsets: tuple[_Count, _Count]


@dataclass(frozen=True, slots=True)
class Elements:
    """A tensor that is to be written.

    Args:
        dtype: torch's name without `torch.`.
        shape: Elements in each dimension.
        read: Gives the elements in row-major order; called once, and let go before the next tensor is read, so
            that copies from a device take the memory of one tensor.
    """

    dtype: str
    shape: Sequence[int]
    read: Callable[[], memoryview]


# --- names and codes -----------------------------------------------------------------------------------


def key_of(name: str) -> str:
    """Give the header's key for a tensor's name.

    It is the name itself, but for `__metadata__`, which safetensors keeps for itself: that name, followed by any
    number of dots, gets one dot more.

    Example:
        >>> key_of("layer.weight"), key_of("__metadata__"), key_of("__metadata__.")
        ('layer.weight', '__metadata__.', '__metadata__..')
    """
    return name + "." if name.rstrip(".") == _METADATA else name


def code_and_shape(dtype: str, shape: Sequence[int]) -> tuple[str, list[int]]:
    """Give what the header says of a tensor; types without a code become bytes, with one more dimension.

    Example:
        >>> code_and_shape("float32", [2, 3]), code_and_shape("complex128", [2, 3])
        (('F32', [2, 3]), ('U8', [2, 3, 16]))
    """
    element = ELEMENT_TYPES[dtype]
    return (element.code, list(shape)) if element.code else ("U8", [*shape, element.size])


_SIZES = {element.code: element.size for element in ELEMENT_TYPES.values() if element.code}


# --- writing -------------------------------------------------------------------------------------------


def write_tensors(path: Path, tensors: Mapping[str, Elements]) -> tuple[FileEntry, dict[str, str]]:
    """Write a new file durably, taking all digests in the same pass.

    Args:
        path: The file, which must not exist.
        tensors: The tensors by name; wide elements are written first, so that each tensor is aligned.

    Returns:
        The file's entry for the manifest, and the tensors' digests by name.

    Raises:
        OSError: The system refused.
    """
    ordered = sorted(tensors, key=lambda name: -ELEMENT_TYPES[tensors[name].dtype].size)
    whole = xxhash.xxh3_128()
    digests = {}
    with files.new_file(path) as descriptor:
        header = build_header({name: tensors[name] for name in ordered})
        size = _write(descriptor, memoryview(header), whole.update)
        for name in ordered:
            digest = Digest(tensors[name].dtype, tensors[name].shape)
            size += _write(descriptor, tensors[name].read(), whole.update, digest.update)
            digests[name] = digest.hexdigest()
    return FileEntry(name=path.name, bytes=size, digest=whole.hexdigest()), digests


def _write(descriptor: int, data: memoryview, *updates: Callable[[memoryview], Any]) -> int:
    for begin in range(0, data.nbytes, files.CHUNK):
        chunk = data[begin : begin + files.CHUNK]
        for update in updates:
            update(chunk)
        files.write_all(descriptor, chunk)
    return data.nbytes


def build_header(tensors: Mapping[str, Elements]) -> bytes:
    """Give the bytes before the first element: length and header, padded with spaces to a multiple of 8."""
    entries: dict[str, Any] = {_METADATA: {"format": "pt"}}  # transformers opens no file without it
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + math.prod(tensor.shape) * ELEMENT_TYPES[tensor.dtype].size
        code, shape = code_and_shape(tensor.dtype, tensor.shape)
        entries[key_of(name)] = HeaderEntry(code, shape, (begin, end))
    text = msgspec.json.encode(entries)
    text += b" " * (-len(text) % _LENGTH_BYTES)
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text


# --- reading -------------------------------------------------------------------------------------------


def parse_header(prefix: bytes, file_bytes: int, path: object) -> tuple[dict[str, HeaderEntry], int]:
    """Read and check the header of any safetensors file.

    Args:
        prefix: The file's first bytes: the 8 of the length, and as many as `header_bytes` says.
        file_bytes: The size of the file.
        path: The file's name for messages.

    Returns:
        The entries by key, and the position of the first element in the file.

    Raises:
        CorruptCheckpoint: The header is not one, or its tensors overlap, leave holes, or do not fill the file.
    """
    begin = _LENGTH_BYTES + header_bytes(prefix, file_bytes, path)
    text = prefix[_LENGTH_BYTES:begin]
    if len(text) < begin - _LENGTH_BYTES or not text.startswith(b"{"):
        _refuse(path, "The header is no JSON object.", "{", shown(text[:1]))
    try:
        content = json.loads(text, object_pairs_hook=_unique)
        content.pop(_METADATA, None)
        entries = msgspec.convert(content, dict[str, HeaderEntry], strict=True)
    except (ValueError, RecursionError) as error:
        raise CorruptCheckpoint("The header is not one of safetensors.", path=path, found=error) from error
    _require_filled(entries, file_bytes - begin, path)
    return entries, begin


def header_bytes(prefix: bytes, file_bytes: int, path: object) -> int:
    """Read the length of the header from the file's first 8 bytes.

    Raises:
        CorruptCheckpoint: The file cannot hold a header of that length.
    """
    if len(prefix) < _LENGTH_BYTES:
        _refuse(path, "The file is too short for a header.", f"at least {_LENGTH_BYTES} bytes", len(prefix))
    length = int.from_bytes(prefix[:_LENGTH_BYTES], "little")
    most = min(MOST_HEADER_BYTES, file_bytes - _LENGTH_BYTES)
    if length > most:
        _refuse(path, "The header would be longer than it can be.", f"at most {most} bytes", f"{length} bytes")
    return length


def locate(
    entries: Mapping[str, HeaderEntry], expected: Mapping[str, TensorEntry], path: object
) -> dict[str, tuple[int, int]]:
    """Find the tensors of a manifest in a header.

    Args:
        entries: The header.
        expected: The manifest's entries of all tensors in this file, by name.
        path: The file's name for messages.

    Returns:
        First byte and length of each tensor by name, in the file's order, counted from the end of the header.

    Raises:
        CorruptCheckpoint: Header and manifest do not speak of the same tensors.
    """
    names = {key_of(name): name for name in expected}
    if names.keys() != entries.keys():
        odd = sorted(names.keys() ^ entries.keys())[:3]
        _refuse(path, "The file and the manifest do not name the same tensors.", f"{len(names)} tensors", odd)
    found = {}
    for key, entry in sorted(entries.items(), key=lambda pair: pair[1].data_offsets):
        want = expected[names[key]]
        if (entry.dtype, entry.shape) != code_and_shape(want.dtype, want.shape):
            _refuse(
                f"{path}: {names[key]}",
                "The file and the manifest describe a tensor differently.",
                code_and_shape(want.dtype, want.shape),
                (entry.dtype, entry.shape),
            )
        found[names[key]] = (entry.data_offsets[0], tensor_bytes(want))
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        raise ValueError("An object has the same key twice")
    return content


def _require_filled(entries: Mapping[str, HeaderEntry], data_bytes: int, path: object) -> None:
    position = 0
    for key, entry in sorted(entries.items(), key=lambda pair: pair[1].data_offsets):
        begin, end = entry.data_offsets
        if begin != position or end < begin:
            _refuse(f"{path}: {key}", "The tensors overlap or leave a hole.", f"begin at {position}", [begin, end])
        for size in _sizes(entry):
            if end - begin != size:
                _refuse(f"{path}: {key}", "The tensor's size does not fit its shape.", size, end - begin)
        position = end
    if position != data_bytes:
        _refuse(path, "The tensors do not fill the file.", f"{position} bytes", f"{data_bytes} bytes")


def _sizes(entry: HeaderEntry) -> Iterator[int]:
    """Give the size that a tensor must have, where its code is one that we know."""
    if entry.dtype in _SIZES:
        yield math.prod(entry.shape) * _SIZES[entry.dtype]


def _refuse(path: object, message: str, expected: object, found: object) -> Never:
    raise CorruptCheckpoint(message, path=path, expected=expected, found=found)
