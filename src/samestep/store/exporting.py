"""Owns the writing of one object's weights as a file for inference. Never writes what a resume needs besides."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from samestep.errors import NoCheckpoint, SamestepError
from samestep.store import files, folder
from samestep.store.reading import Checkpoint

_SUFFIXES = (".safetensors", ".pt", ".pth")


def export(checkpoint: Checkpoint, item: str, out: Path, *, overwrite: bool = False) -> list[str]:
    """Write an object's tensors by their names; every digest is compared on the way.

    Args:
        checkpoint: The checkpoint.
        item: The name under which the object is tracked.
        out: The file: `.safetensors`; or `.pt` or `.pth`, which `torch.load(weights_only=True)` reads.
        overwrite: Whether an existing file may be replaced (default: no).

    Returns:
        The names of values that are no tensors and that a safetensors file cannot hold; `.pt` holds them all.

    Raises:
        NoCheckpoint: The checkpoint has no such item.
        SamestepError: The file exists, its suffix is unknown, or the item holds no tensors by name.
        CorruptCheckpoint: A tensor is not what was written.
    """
    if out.suffix not in _SUFFIXES:
        raise SamestepError("The file's kind is unknown.", path=out, expected=" or ".join(_SUFFIXES), found=out.suffix)
    if out.exists() and not overwrite:
        raise SamestepError("The file exists already.", path=out, hint="Name another one, or add --force.")
    if not out.parent.is_dir():
        raise SamestepError("There is no such directory.", path=out.parent, hint="Make it first.")
    state = _state(checkpoint, item)
    if out.suffix == ".safetensors":
        return _save_safetensors(checkpoint, item, state, out)
    import torch

    _replace(out, lambda draft: torch.save(state, draft))
    return []


def _state(checkpoint: Checkpoint, item: str) -> dict[str, Any]:
    """Decode the object's state dict; tied tensors are one tensor under two names."""
    from samestep.state.decoding import decode

    items = checkpoint.read(verify=False).items  # each tensor is compared with its digest when it is read
    if item not in items:
        raise NoCheckpoint(
            "The checkpoint has no such item.", path=checkpoint.path, expected=" or ".join(items), found=item
        )
    held = items[item]
    tree = held.tree.get("state") if held.kind == "module" and isinstance(held.tree, dict) else held.tree
    state = decode(tree, held.tensors)
    if not isinstance(state, Mapping) or not any(_is_tensor(value) for value in state.values()):
        raise SamestepError(
            "This item holds no tensors by name.",
            path=f"{checkpoint.path}: {item}",
            expected="a module, or a dict of tensors",
            found=held.kind,
            hint="Name the model: --item model.",
        )
    return dict(state)


def _save_safetensors(checkpoint: Checkpoint, item: str, state: Mapping[str, Any], out: Path) -> list[str]:
    from safetensors.torch import save_file

    tensors, seen = {}, set()
    for name, value in state.items():
        if _is_tensor(value):
            # The format knows no ties: a tied tensor is written under each name, so that strict loading works.
            place = value.untyped_storage().data_ptr()
            tensors[name] = value.contiguous() if place not in seen else value.contiguous().clone()
            seen.add(tensors[name].untyped_storage().data_ptr())
    manifest = checkpoint.manifest
    metadata = {
        "format": "pt",
        "samestep.item": item,
        "samestep.step": str(manifest.step),
        "samestep.metrics": json.dumps(manifest.metrics),
    }
    _replace(out, lambda draft: save_file(tensors, draft, metadata))
    return [name for name in state if name not in tensors]


def _is_tensor(value: object) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


def _replace(out: Path, write: Callable[[Path], object]) -> None:
    """Let a library write a draft beside the file, and put it in its place when it is durable."""
    try:
        folder.tidy(out.parent, folder.EXPORT_PREFIX)
        with folder.draft(out.parent, folder.EXPORT_PREFIX) as draft:
            write(draft / out.name)
            files.sync_file(draft / out.name)
            files.rename(draft / out.name, out)
            files.remove_tree(draft)
    except Exception as error:
        # The libraries report what the system refuses as errors of their own, without its number.
        raise SamestepError("The file cannot be written.", path=out, found=error) from error
