"""Owns `samestep export`: weights for inference out of a checkpoint. Changes no checkpoint."""

from pathlib import Path

import click

from samestep.cli import output, places


@click.command("export", short_help="Write a model's weights as one file.")
@click.argument("checkpoint", metavar="CKPT")
@click.option(
    "--out", required=True, metavar="FILE", help="The file to write: .safetensors, or .pt for a plain state dict."
)
@click.option("--item", default="model", show_default=True, help="The name under which the model is tracked.")
@click.option("--force", is_flag=True, help="Replace FILE when it exists.")
@output.json_option
def command(checkpoint: str, *, out: str, item: str, force: bool, as_json: bool) -> None:
    """Write the weights in the checkpoint CKPT as one file for inference, and nothing else.

    Names are kept. Tied tensors stay tied in a .pt file and are written under each name in a safetensors file.
    """
    found = places.find_checkpoint(checkpoint)
    from samestep.store.exporting import export

    omitted = export(found, item, Path(out), overwrite=force)
    if as_json:
        output.print_json({"checkpoint": str(found.path), "item": item, "out": out, "omitted": omitted})
        return
    output.say(f"{out}: {item} of {found.path}")
    if omitted:
        output.warn(f"Left out, since safetensors holds tensors only: {', '.join(omitted)}.")
