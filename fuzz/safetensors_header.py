"""Fuzzes the reader of safetensors headers: any bytes are a header whose tensors fill the file, or CorruptCheckpoint.

An input is the header's text, a NUL, and the number of bytes behind the header as text: a header with a right length.
"""

import contextlib
import random

from json_changes import changed
from samestep.errors import CorruptCheckpoint
from samestep.store.dtypes import ELEMENT_TYPES
from samestep.store.manifest import TensorEntry, row_major
from samestep.store.safetensors_file import HeaderEntry, locate, parse_header

_NAMES = {element.code: name for name, element in ELEMENT_TYPES.items() if element.code}


def check(data: bytes) -> None:
    """Read the bytes as a whole file, and as a header to which the right length is put."""
    with contextlib.suppress(CorruptCheckpoint):
        parse_header(data, len(data), "x.safetensors")
    text, _, behind = data.rpartition(b"\0")
    size = int(behind) if behind[:15].isdigit() and len(behind) < 16 else len(behind)  # noqa: PLR2004
    prefix = len(text).to_bytes(8, "little") + text
    with contextlib.suppress(CorruptCheckpoint):
        entries, begin = parse_header(prefix, len(prefix) + size, "x.safetensors")
        require_filled(entries, size)
        assert begin == len(prefix)


def require_filled(entries: dict[str, HeaderEntry], size: int) -> None:
    """Require that the entries cover each byte once, and that a manifest which says the same finds them."""
    spans = sorted(entry.data_offsets for entry in entries.values())
    assert [begin for begin, _ in spans] == [0, *(end for _, end in spans)][: len(spans)]
    assert (spans[-1][1] if spans else 0) == size
    if all(entry.dtype in _NAMES for entry in entries.values()):
        expected = {
            key: TensorEntry("x.safetensors", _NAMES[entry.dtype], entry.shape, row_major(entry.shape), "0" * 32)
            for key, entry in entries.items()
        }
        with contextlib.suppress(CorruptCheckpoint):
            assert sum(length for _, length in locate(entries, expected, "x.safetensors").values()) == size


def mutated(data: bytes, draw: random.Random) -> bytes:
    """Change the header by its structure, and sometimes the number of bytes behind it."""
    text, _, behind = data.rpartition(b"\0")
    if draw.randrange(4) == 0:
        behind = str(draw.choice((0, 1, 4, 8, 12, 100, 2**40))).encode()
    return changed(text, draw) + b"\0" + behind
