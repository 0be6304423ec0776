"""Manifests as a stranger could make them: any content, under a right digest."""

import json

import xxhash


def seal(content):
    """Give a manifest's bytes with a right digest, whatever the content."""
    body = content if isinstance(content, bytes) else json.dumps(content, separators=(",", ":")).encode()
    body = body.removesuffix(b"}")
    return body + b',"digest":"' + xxhash.xxh3_128_hexdigest(body).encode() + b'"}\n'


def unsealed(folder):
    """Read the content of a checkpoint's manifest, without its digest."""
    content = json.loads((folder / "manifest.json").read_bytes())
    del content["digest"]
    return content


def edit(folder, spoil):
    """Change the content of a checkpoint's manifest, and put a right digest to it."""
    content = unsealed(folder)
    spoil(content)
    (folder / "manifest.json").write_bytes(seal(content))


def places(value):
    """Give every place in a tree of JSON: what holds a value, and its key or index there."""
    for key, child in value.items() if isinstance(value, dict) else enumerate(value):
        yield value, key
        if isinstance(child, dict | list):
            yield from places(child)
