"""Owns the manifest of format 1: its fields, bytes and checks. Never imports torch, never reads tensors."""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Final, Literal, Never

import msgspec
import xxhash
from msgspec import Meta, Struct

from samestep.errors import CorruptCheckpoint, UnsupportedValue
from samestep.store.dtypes import ELEMENT_TYPES
from samestep.wording import shown

FORMAT: Final = 1
MANIFEST_FILE = "manifest.json"
EXTRA_SUFFIX = ".extra.safetensors"

MOST_MANIFEST_BYTES = 256 * 1024 * 1024
"""A manifest of 10,000 tensors has about 2.5 MB; beyond this limit nothing is decoded."""

_LARGEST = 2**62
"""No size, shape, stride or step is larger, so that sums and products stay small."""

# In Python's expressions `$` also matches before a line feed at the end, and `\d` digits of every script.
Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{32}$(?!\n)")]
FileName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_%-]+(\.extra|\.frozen)?\.safetensors$(?!\n)", max_length=255)]
Time = Annotated[str, Meta(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?Z$(?!\n)")]
Count = Annotated[int, Meta(ge=0, le=_LARGEST)]
Dimensions = Annotated[list[Count], Meta(max_length=64)]
NotFinite = Literal["nan", "inf", "-inf"]


class FileEntry(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """One file of a checkpoint.

    Args:
        name: Its name in the checkpoint's folder.
        bytes: Its size.
        digest: xxh3-128 of all its bytes.
    """

    name: FileName
    bytes: Count
    digest: Digest


class TensorEntry(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """Where a tensor lies and what it must be.

    Args:
        file: The file that holds its elements in row-major order.
        dtype: torch's name without `torch.`, such as "float32".
        shape: Elements in each dimension.
        strides: Elements to step over in memory for each dimension, as the live tensor had them.
        digest: xxh3-128 of dtype, shape and elements (see `samestep.state.digest`).
    """

    file: FileName
    dtype: str
    shape: Dimensions
    strides: Dimensions
    digest: Digest


class ItemEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """The state of one tracked object.

    Args:
        kind: What the object is, such as "module".
        tree: Its state as plain JSON, with references to its tensors.
        tensors: Its tensors by name.
    """

    kind: str
    tree: Any
    tensors: dict[str, TensorEntry]


class Manifest(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a checkpoint holds; its presence commits the checkpoint.

    Args:
        format: The version of the format.
        step: Completed optimizer updates.
        epoch: The epoch that the next step belongs to; None when the loop counts steps only.
        metrics: The last scores by name; "nan", "inf" and "-inf" stand for what JSON lacks.
        tags: Marks given by the user.
        created: When it was written: ISO 8601, UTC.
        files: All files but the manifest itself.
        items: State by the name under which each object is tracked.
        environment: Versions, machine and settings under which it was written.
    """

    format: Literal[1] = FORMAT
    step: Count
    epoch: Count | None
    metrics: dict[str, float | NotFinite]
    tags: list[str]
    created: Time
    files: list[FileEntry]
    items: dict[str, ItemEntry]
    environment: dict[str, Any]


class NewerFormat(CorruptCheckpoint):
    """The checkpoint is intact, but a newer samestep wrote it; it must never be set aside as damaged."""


# --- bytes ---------------------------------------------------------------------------------------------
# The file is one JSON object without white space around it. Its last member is the digest of all bytes before
# `,"digest":`, and the tail has a fixed length, so every changed, added or missing byte is noticed.

_TAIL = b',"digest":"%s"}\n'
_TAIL_BYTES = len(_TAIL % (b"0" * 32))
_VERSION = re.compile(rb'\{"format":(\d{1,9}),')
_decoder = msgspec.json.Decoder(Manifest)


def encode_manifest(manifest: Manifest) -> bytes:
    """Give the bytes of the manifest file.

    Raises:
        UnsupportedValue: A tree, the environment or a name holds what JSON cannot keep exactly: NaN, an
            infinity, a lone surrogate, an integer of thousands of digits, nesting of about a thousand levels.
    """
    try:
        body = msgspec.json.encode(manifest, enc_hook=_as_text)
        _require_equal(_decoder.decode(body), manifest)
    except (ValueError, TypeError, RecursionError, OverflowError) as error:
        raise UnsupportedValue(
            "The state, the environment or a name cannot be written as JSON and read back equal.",
            path=MANIFEST_FILE,
            found=error,
            hint="Keep plain values in them: NaN and infinities belong into metrics or tensors.",
        ) from error
    return _seal(body)


def decode_manifest(data: bytes, path: object = MANIFEST_FILE) -> Manifest:
    """Read and check the bytes of a manifest file.

    Args:
        data: All its bytes.
        path: The file's name for messages.

    Returns:
        A manifest whose names, sizes and references fit together.

    Raises:
        CorruptCheckpoint: The bytes are not those that were written, or never were a manifest.
        NewerFormat: They are intact, and of a format that this version does not know.
    """
    body = intact_body(data, path)
    try:
        manifest = _decoder.decode(body)
        if msgspec.json.encode(manifest) != body:  # equal bytes hold no key twice, and that is quickly seen
            json.loads(body, object_pairs_hook=_require_unique)
    except (ValueError, RecursionError) as error:  # msgspec's and json's errors are ValueErrors
        raise CorruptCheckpoint("The manifest is not one of format 1.", path=path, found=error) from error
    _require_consistent(manifest, path)
    return manifest


def intact_body(data: bytes, path: object) -> bytes:
    """Give the JSON object that the manifest's digest covers.

    Raises:
        CorruptCheckpoint: The bytes are not those that were written, or never were a manifest.
        NewerFormat: They are intact, and of a format that this version does not know.
    """
    if len(data) > MOST_MANIFEST_BYTES:
        _refuse(path, "The manifest is too large.", f"at most {MOST_MANIFEST_BYTES} bytes", f"{len(data)} bytes")
    covered = memoryview(data)[:-_TAIL_BYTES]
    if data[-_TAIL_BYTES:] != _TAIL % xxhash.xxh3_128_hexdigest(covered).encode():
        _refuse(path, "The manifest is damaged or cut short.", "bytes that match the digest at its end", None)
    body = data[:-_TAIL_BYTES] + b"}"
    _require_known_format(body, path)
    return body


def json_schema() -> dict[str, Any]:
    """Give the JSON Schema of a manifest file, as `docs/manifest.schema.json` holds it."""
    schema = msgspec.json.schema(Manifest)
    manifest = schema["$defs"]["Manifest"]
    del manifest["properties"]["format"]["default"]
    manifest["properties"]["digest"] = {"type": "string", "pattern": "^[0-9a-f]{32}$"}
    manifest["required"] = list(manifest["properties"])
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _seal(body: bytes) -> bytes:
    body = body[:-1]
    return body + _TAIL % xxhash.xxh3_128_hexdigest(body).encode()


def _as_text(value: object) -> str:
    """Write subclasses of str as the text that they are: `torch.__version__` is one."""
    if isinstance(value, str):
        return str.__str__(value)
    raise TypeError(f"a {type(value).__name__}")


def _require_equal(decoded: Manifest, manifest: Manifest) -> None:
    """NaN would silently become null, a tuple a list: what comes back unequal must not be written."""
    if decoded != manifest:
        raise ValueError("a value that comes back changed")


def _require_known_format(body: bytes, path: object) -> None:
    match = _VERSION.match(body)
    if match is None:
        _refuse(path, "The manifest does not begin with its format.", '{"format":1,', shown(body[:20]))
    if int(match[1]) > FORMAT:
        raise NewerFormat(
            "The checkpoint was written by a newer version of samestep.",
            path=path,
            expected=f"format {FORMAT}",
            found=f"format {int(match[1])}",
            hint="Update samestep: pip install -U samestep.",
        )


def _require_unique(pairs: list[tuple[str, Any]]) -> None:
    """JSON leaves open which of two equal keys counts; the decoder would take the last in silence."""
    if len(dict(pairs)) != len(pairs):
        raise ValueError("An object has the same key twice")


# --- checks --------------------------------------------------------------------------------------------


def extent(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Count the elements from the first to the last place in memory that a layout touches."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


def is_within_reach(shape: Sequence[int], strides: Sequence[int], size: int) -> bool:
    """Tell whether strides are ones that format 1 keeps: the memory they span is not far more than the elements'.

    Args:
        shape: Elements in each dimension.
        strides: Elements to step over for each dimension.
        size: Bytes of one element.

    Returns:
        False for one column of a wide table and the like, and for strides made up to exhaust the memory.
    """
    return extent(shape, strides) * size <= 16 * math.prod(shape) * size + 2**20


def row_major(shape: Sequence[int]) -> list[int]:
    """Give the strides of a tensor whose elements lie in row-major order without gaps.

    Example:
        >>> row_major([2, 3, 4])
        [12, 4, 1]
    """
    return [math.prod(size or 1 for size in shape[index + 1 :]) for index in range(len(shape))]


def tensor_bytes(entry: TensorEntry) -> int:
    """Give the number of bytes that a tensor's elements take in its file."""
    return math.prod(entry.shape) * ELEMENT_TYPES[entry.dtype].size


def tensors_by_file(manifest: Manifest) -> dict[str, dict[str, tuple[str, TensorEntry]]]:
    """Give, for each file, its tensors by name, each with the item that it belongs to."""
    found: dict[str, dict[str, tuple[str, TensorEntry]]] = {file.name: {} for file in manifest.files}
    for item, name, entry in each_tensor(manifest):
        found[entry.file][name] = (item, entry)
    return found


def each_tensor(manifest: Manifest) -> Iterator[tuple[str, str, TensorEntry]]:
    """Go through all tensors: the item's name, the tensor's name, its entry."""
    for item, content in manifest.items.items():
        for name, entry in content.tensors.items():
            yield item, name, entry


def created_seconds(manifest: Manifest) -> float | None:
    """Give the seconds since 1970 at which the checkpoint was written; None when there is no such time."""
    try:
        return datetime.fromisoformat(manifest.created).timestamp()
    except ValueError:
        return None


def metric_values(manifest: Manifest) -> dict[str, float]:
    """Give the scores as numbers, NaN and infinities included."""
    return {name: float(value) for name, value in manifest.metrics.items()}


def metric_entries(metrics: Mapping[str, float]) -> dict[str, float | NotFinite]:
    """Give the scores as a manifest keeps them."""
    return {name: _metric_entry(float(value)) for name, value in metrics.items()}


def _metric_entry(value: float) -> float | NotFinite:
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return value


def _require_consistent(manifest: Manifest, path: object) -> None:
    if created_seconds(manifest) is None:
        _refuse(path, "The manifest says no time that exists.", "ISO 8601 in UTC", manifest.created)
    sizes = {file.name: file.bytes for file in manifest.files}
    if len({name.lower() for name in sizes}) != len(manifest.files):
        _refuse(path, "The manifest lists a file twice.", "each name once, whatever its case", None)
    claimed = dict.fromkeys(sizes, 0)
    owners: dict[str, str] = {}
    for item, name, entry in each_tensor(manifest):
        _require_plausible(entry, path, item, name)
        if owners.setdefault(entry.file, item) != item or entry.file not in sizes:
            where = _where(path, item, name)
            _refuse(where, "A tensor is in a file that is not its item's.", None, entry.file)
        claimed[entry.file] += tensor_bytes(entry)
        if claimed[entry.file] > sizes[entry.file]:
            where = _where(path, item, name)
            _refuse(where, "The tensors are larger than their file.", f"at most {sizes[entry.file]} bytes", None)


def _where(path: object, item: str, name: str) -> str:
    return f"{path}: {item}[{name!r}]"


def _require_plausible(entry: TensorEntry, path: object, item: str, name: str) -> None:
    if entry.dtype not in ELEMENT_TYPES:
        where = _where(path, item, name)
        _refuse(where, "The element type is unknown.", "a dtype of format 1", shown(entry.dtype))
    if len(entry.shape) != len(entry.strides):
        where = _where(path, item, name)
        _refuse(where, "Shape and strides differ in length.", f"{len(entry.shape)} strides", len(entry.strides))
    if not is_within_reach(entry.shape, entry.strides, ELEMENT_TYPES[entry.dtype].size):
        where = _where(path, item, name)
        _refuse(where, "The strides span far more memory than the elements.", entry.shape, entry.strides)


def _refuse(path: object, message: str, expected: object, found: object) -> Never:
    raise CorruptCheckpoint(message, path=path, expected=expected, found=found)
