"""Owns the quick reading of parts of a manifest: for overviews and comparisons. Never imports torch.

A full reading checks 10,000 tensors one by one; here the manifest's own digest must do, since nothing is loaded
by what is read.
"""

from typing import TypeVar

import msgspec
from msgspec import Raw, Struct

from samestep.errors import CorruptCheckpoint
from samestep.store.manifest import MANIFEST_FILE, Count, FileEntry, NotFinite, intact_body


class Summary(Struct, frozen=True, kw_only=True):
    """What an overview needs of a manifest: everything but its many tensors.

    Args:
        step: Completed optimizer updates.
        epoch: The epoch that the next step belongs to.
        metrics: The last scores by name.
        tags: Marks given by the user.
        created: When it was written: ISO 8601, UTC.
        files: All files but the manifest itself.
    """

    step: Count
    epoch: Count | None
    metrics: dict[str, float | NotFinite]
    tags: list[str]
    created: str
    files: list[FileEntry]


class ItemOutline(Struct, frozen=True):
    """What a comparison needs of an item: its parts as they are written, to be decoded where they differ.

    Args:
        kind: What the object is.
        tree: Its state.
        tensors: Its tensors by name.
    """

    kind: str
    tree: Raw
    tensors: dict[str, Raw]


class Outline(Struct, frozen=True):
    """What a comparison needs of a manifest.

    Args:
        step: Completed optimizer updates.
        epoch: The epoch that the next step belongs to.
        items: State by the name under which each object is tracked.
    """

    step: Count
    epoch: Count | None
    items: dict[str, ItemOutline]


Part = TypeVar("Part", Summary, Outline)

_summary_decoder = msgspec.json.Decoder(Summary)
_outline_decoder = msgspec.json.Decoder(Outline)


def decode_summary(data: bytes, path: object = MANIFEST_FILE) -> Summary:
    """Read what an overview needs: ten times as fast as all of it when there are thousands of tensors.

    Args:
        data: All bytes of a manifest file.
        path: The file's name for messages.

    Returns:
        The summary; its bytes are those that were written, but what it leaves out has not been checked.

    Raises:
        CorruptCheckpoint: The bytes are not those that were written, or never were a manifest.
        NewerFormat: They are intact, and of a format that this version does not know.
    """
    return _decode_part(_summary_decoder, data, path)


def decode_outline(data: bytes, path: object = MANIFEST_FILE) -> Outline:
    """Read what a comparison needs; as quick, and as little checked, as `decode_summary`.

    Args:
        data: All bytes of a manifest file.
        path: The file's name for messages.

    Returns:
        The outline.

    Raises:
        CorruptCheckpoint: The bytes are not those that were written, or never were a manifest.
        NewerFormat: They are intact, and of a format that this version does not know.
    """
    return _decode_part(_outline_decoder, data, path)


def _decode_part(decoder: "msgspec.json.Decoder[Part]", data: bytes, path: object) -> Part:
    try:
        return decoder.decode(intact_body(data, path))
    except (ValueError, RecursionError) as error:
        raise CorruptCheckpoint("The manifest is not one of format 1.", path=path, found=error) from error
