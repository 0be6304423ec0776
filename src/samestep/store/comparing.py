"""Owns the comparing of two checkpoints by their manifests: digests and trees. Reads no tensor, never writes."""

import contextlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import Raw

from samestep.errors import CorruptCheckpoint
from samestep.state.paths import child_path
from samestep.store.manifest import MANIFEST_FILE, MOST_MANIFEST_BYTES, TensorEntry
from samestep.store.outlines import ItemOutline, Outline, decode_outline
from samestep.store.verifying import open_regular

_ABSENT = object()
_tensor_decoder = msgspec.json.Decoder(TensorEntry)
_tree_decoder = msgspec.json.Decoder(Any)

_DEEPEST = 200
"""So many levels of two trees are compared one by one: twice as many as a state has, for `$kind` and `value`."""

T = TypeVar("T")


class Difference(NamedTuple):
    """One thing in which two checkpoints differ.

    Args:
        item: The tracked object's name; "checkpoint" for the checkpoint's own step and epoch.
        name: The tensor's name, or the value's path in the object's state; "" for the object as a whole.
        kind: "tensor", "value" or "item".
        detail: How they differ, in a few words.
    """

    item: str
    name: str
    kind: str
    detail: str


@dataclass(slots=True)
class Comparison:
    """What two checkpoints, A and B, have in common.

    Args:
        changed: What both have, and differs.
        only_a: What only A has.
        only_b: What only B has.
        same: How many tensors are the same, bit for bit.
    """

    changed: list[Difference] = field(default_factory=list)
    only_a: list[Difference] = field(default_factory=list)
    only_b: list[Difference] = field(default_factory=list)
    same: int = 0

    @property
    def equal(self) -> bool:
        """Whether a training would go on from both with the same bits."""
        return not (self.changed or self.only_a or self.only_b)


def compare(a: Outline, b: Outline) -> Comparison:
    """Compare two checkpoints: progress, and the state of every object; not scores, tags and environment.

    Args:
        a: The outline of the first.
        b: That of the second.

    Returns:
        What differs: by item in A's order, tensors before values.
    """
    result = Comparison()
    for name, mine, other in (("step", a.step, b.step), ("epoch", a.epoch, b.epoch)):
        _compare_values(result, "checkpoint", name, mine, other)
    for item in {**a.items, **b.items}:
        _compare_items(result, item, a.items.get(item), b.items.get(item))
    return result


def read_outline(folder: Path) -> Outline:
    """Read of the manifest in a checkpoint's folder what a comparison needs.

    Raises:
        CorruptCheckpoint: It is missing or damaged.
        SamestepError: The system does not let us read it.
    """
    path = folder / MANIFEST_FILE
    with open_regular(path) as (file, _):
        return decode_outline(file.read(MOST_MANIFEST_BYTES + 1), path)


def _compare_items(result: Comparison, item: str, a: ItemOutline | None, b: ItemOutline | None) -> None:
    if a is None or b is None:
        present = a or b
        side = result.only_b if a is None else result.only_a
        if present is not None:
            side.append(Difference(item, "", "item", f"{present.kind} with {len(present.tensors)} tensors"))
        return
    if a.kind != b.kind:
        result.changed.append(Difference(item, "", "item", f"{a.kind} → {b.kind}"))
    for name in {**a.tensors, **b.tensors}:
        _compare_tensors(result, item, name, a.tensors.get(name), b.tensors.get(name))
    if bytes(a.tree) != bytes(b.tree):
        for path, mine, other in _unequal_leaves("", _decoded(_tree_decoder, a.tree), _decoded(_tree_decoder, b.tree)):
            _compare_values(result, item, path, mine, other)


def _compare_tensors(result: Comparison, item: str, name: str, a: Raw | None, b: Raw | None) -> None:
    if a is None or b is None:
        present = _decoded(_tensor_decoder, a or b or Raw())
        side = result.only_b if a is None else result.only_a
        side.append(Difference(item, name, "tensor", f"{present.dtype} {present.shape}"))
        return
    detail = "" if bytes(a) == bytes(b) else _how(_decoded(_tensor_decoder, a), _decoded(_tensor_decoder, b))
    if detail:
        result.changed.append(Difference(item, name, "tensor", detail))
    else:  # the same, or only the file is another
        result.same += 1


def _decoded(decoder: "msgspec.json.Decoder[T]", part: Raw) -> T:
    """Decode a part of a manifest of which only the digest has been checked."""
    try:
        return decoder.decode(part)
    except (ValueError, RecursionError) as error:
        raise CorruptCheckpoint("The manifest is not one of format 1.", path=MANIFEST_FILE, found=error) from error


def _how(a: TensorEntry, b: TensorEntry) -> str:
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return f"{a.dtype} {a.shape} → {b.dtype} {b.shape}"
    layout = f"strides {a.strides} → {b.strides}" if a.strides != b.strides else ""
    elements = f"elements differ (digest {a.digest[:8]}… → {b.digest[:8]}…)" if a.digest != b.digest else ""
    return ", ".join(each for each in (layout, elements) if each)


def _compare_values(result: Comparison, item: str, path: str, a: Any, b: Any) -> None:
    if a is _ABSENT:
        result.only_b.append(Difference(item, path, "value", _shown(b)))
    elif b is _ABSENT:
        result.only_a.append(Difference(item, path, "value", _shown(a)))
    elif _text(a) != _text(b):
        result.changed.append(Difference(item, path, "value", f"{_shown(a)} → {_shown(b)}"))


def _unequal_leaves(path: str, a: Any, b: Any, depth: int = 0) -> Iterator[tuple[str, Any, Any]]:
    """Walk down two trees as long as they have the same form, and give what differs at the ends."""
    if _text(a) == _text(b):
        return
    mine, other = (None, None) if depth > _DEEPEST else (_children(a), _children(b))
    found = False
    if mine is not None and other is not None and mine[0] == other[0]:
        for key in {**mine[1], **other[1]}:
            left, right = mine[1].get(key, _ABSENT), other[1].get(key, _ABSENT)
            if type(left) is type(right) and left == right and (type(left) in _SIMPLE or _is_tensor(left)):
                continue  # most of a state: no need to write it as text
            for leaf in _unequal_leaves(child_path(path, key), left, right, depth + 1):
                found = True
                yield leaf
    if not found:  # an end; or the same children in another order
        yield path, a, b


def _children(node: Any) -> tuple[Any, dict[Any, Any]] | None:
    """Give a container's form and its children by key or index (see `samestep.state.codec`); None for a leaf."""
    if isinstance(node, list):
        return "list", dict(enumerate(node))
    if not isinstance(node, dict):
        return None
    if not any(key.startswith("$") for key in node):
        return "dict", node
    value = node.get("value")
    if not isinstance(value, list) or not any(isinstance(each, dict | list) for each in value):
        return None
    form = {key: inner for key, inner in node.items() if key != "value"}
    if str(node.get("$kind")) in _PAIRS and all(isinstance(pair, list) and len(pair) == 2 for pair in value):  # noqa: PLR2004
        return form, {key if isinstance(key, str | int) else str(key): inner for key, inner in value}
    return form, dict(enumerate(value))


_SIMPLE = {str, int, bool, type(None)}
"""The types whose equal values are the same; floats are not among them, for 0.0 equals -0.0."""

_PAIRS = {"dict", "OrderedDict", "Counter", "defaultdict"}
"""The kinds of dict that the tree writes as pairs of key and value."""


def _is_tensor(node: Any) -> bool:
    return isinstance(node, dict) and "$tensor" in node


def _text(value: Any) -> bytes:
    """Write a value so that equal texts are equal states: 1, 1.0 and True are equal in Python only."""
    return b"" if value is _ABSENT else msgspec.json.encode(value, order="sorted")


def _shown(value: Any) -> str:
    if isinstance(value, dict) and value.get("$kind") == "float":  # NaN and infinities, which JSON lacks, as bits
        with contextlib.suppress(ValueError, TypeError, KeyError, struct.error):  # else it is shown as it stands
            return str(struct.unpack(">d", bytes.fromhex(value["value"]))[0])
    text = _text(value).decode(errors="backslashreplace")
    return text if len(text) <= 60 else text[:59] + "…"  # noqa: PLR2004 — one line of a terminal
