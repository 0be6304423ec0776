"""Fuzzes the readers of a manifest: whatever lies under a right digest is a manifest, or a CorruptCheckpoint."""

import contextlib
import random

import xxhash

from json_changes import changed
from samestep.errors import CorruptCheckpoint
from samestep.store import comparing, manifest, outlines


def check(data: bytes) -> None:
    """Read the bytes as they are, and as a manifest's body to which the right digest is put."""
    with contextlib.suppress(CorruptCheckpoint):
        manifest.decode_manifest(data)
    sealed = seal(data)
    with contextlib.suppress(CorruptCheckpoint):
        outlines.decode_summary(sealed)
    with contextlib.suppress(CorruptCheckpoint):
        outline = outlines.decode_outline(sealed)
        comparing.compare(outline, outlines.decode_outline(seal(data.replace(b"1", b"2"))))
        comparing.compare(outline, outlines.decode_outline(seal(data.replace(b'"tree":', b'"tree":[0],"was":'))))
    with contextlib.suppress(CorruptCheckpoint):
        require_whole(manifest.decode_manifest(sealed))


def require_whole(found: manifest.Manifest) -> None:
    """Require that what was accepted holds together, and comes back the same when it is written again."""
    outlines.decode_summary(manifest.encode_manifest(found))
    assert manifest.decode_manifest(manifest.encode_manifest(found)) == found
    sizes = {file.name: file.bytes for file in found.files}
    for file, tensors in manifest.tensors_by_file(found).items():
        assert sum(manifest.tensor_bytes(entry) for _, entry in tensors.values()) <= sizes[file]
    assert manifest.created_seconds(found) is not None
    assert manifest.metric_values(found).keys() == found.metrics.keys()


def seal(body: bytes) -> bytes:
    """Put the right digest to a manifest's body."""
    body = body.removesuffix(b"}")
    return body + b',"digest":"' + xxhash.xxh3_128_hexdigest(body).encode() + b'"}\n'


def mutated(data: bytes, draw: random.Random) -> bytes:
    """Change a manifest by its structure; its first member stays the format."""
    result = changed(data, draw)
    return result if result.startswith(b'{"format":1,') else b'{"format":1,' + result[1:]
