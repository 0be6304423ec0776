"""Owns `samestep inspect`: what a checkpoint holds. Reads its manifest only, changes nothing."""

import textwrap
from typing import Any

import click

from samestep.cli import output, places
from samestep.store.manifest import ItemEntry, Manifest, tensor_bytes
from samestep.store.reading import Checkpoint


@click.command("inspect", short_help="Show what a checkpoint holds.")
@click.argument("checkpoint", metavar="CKPT")
@click.option("--tensors", "with_tensors", is_flag=True, help="Name every tensor.")
@output.json_option
def command(checkpoint: str, *, with_tensors: bool, as_json: bool) -> None:
    """Show what the checkpoint CKPT holds: step, epoch, scores, the state of each object, environment."""
    found = places.find_checkpoint(checkpoint)
    found.check()
    manifest = found.manifest
    if as_json:
        output.print_json(_as_json(found, manifest, with_tensors=with_tensors))
        return
    _print_head(found, manifest)
    rows = [_row(name, item) for name, item in manifest.items.items()]
    output.table(["item", "kind", ">tensors", ">size", "dtypes", "values"], rows)
    if with_tensors:
        output.say("")
        _print_tensors(manifest)
    for name, value in manifest.environment.items():
        output.say(f"{name}: {value}")


def _as_json(found: Checkpoint, manifest: Manifest, *, with_tensors: bool) -> dict[str, Any]:
    return {
        "path": str(found.path),
        "format": manifest.format,
        "step": manifest.step,
        "epoch": manifest.epoch,
        "bytes": found.bytes,
        "metrics": manifest.metrics,
        "tags": manifest.tags,
        "created": manifest.created,
        "items": {name: _item_as_json(item, with_tensors=with_tensors) for name, item in manifest.items.items()},
        "environment": manifest.environment,
    }


def _item_as_json(item: ItemEntry, *, with_tensors: bool) -> dict[str, Any]:
    described: dict[str, Any] = {
        "kind": item.kind,
        "tensors": len(item.tensors),
        "bytes": sum(map(tensor_bytes, item.tensors.values())),
        "dtypes": _dtypes(item),
        "files": sorted({tensor.file for tensor in item.tensors.values()}),
    }
    if with_tensors:
        described["tensor_list"] = [
            {
                "name": name,
                "dtype": tensor.dtype,
                "shape": tensor.shape,
                "strides": tensor.strides,
                "bytes": tensor_bytes(tensor),
                "digest": tensor.digest,
                "file": tensor.file,
            }
            for name, tensor in item.tensors.items()
        ]
        described["tree"] = item.tree
    return described


def _dtypes(item: ItemEntry) -> list[str]:
    return sorted({tensor.dtype for tensor in item.tensors.values()})


def _print_head(found: Checkpoint, manifest: Manifest) -> None:
    epoch = "" if manifest.epoch is None else f", epoch {manifest.epoch}"
    output.say(f"{found.path}")
    output.say(f"step {manifest.step}{epoch}, {output.size(found.bytes)}, written {manifest.created}")
    if manifest.metrics:
        output.say(f"scores: {output.scores(manifest.metrics)}")
    if manifest.tags:
        output.say(f"tags: {', '.join(manifest.tags)}")
    output.say("")


def _row(name: str, item: ItemEntry) -> tuple[object, ...]:
    count = len(item.tensors) or None
    total = output.size(sum(map(tensor_bytes, item.tensors.values()))) if count else None
    return (name, item.kind, count, total, ", ".join(_dtypes(item)), _values(item.tree))


def _values(tree: Any) -> str:
    """Show the plain numbers and words that stand at the top of a state, such as a scheduler's last_epoch."""
    if isinstance(tree, dict) and isinstance(tree.get("state"), dict):
        tree = tree["state"]
    if not isinstance(tree, dict):
        return ""
    plain = [f"{key}={value}" for key, value in tree.items() if isinstance(value, str | int | float)]
    return textwrap.shorten(" ".join(each for each in plain if not each.startswith("$")), 80, placeholder=" …")


def _print_tensors(manifest: Manifest) -> None:
    """Print plain lines: a drawn table of 10,000 rows would take seconds."""
    for name, item in manifest.items.items():
        for tensor_name, tensor in item.tensors.items():
            shape = "×".join(map(str, tensor.shape)) or "scalar"  # noqa: RUF001 — the sign for it
            output.say(f"{name}  {tensor_name}  {tensor.dtype}  {shape}  {tensor.digest}  {tensor.file}")
