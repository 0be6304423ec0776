"""Owns `samestep record`: running a command whose steps are noted in a ledger. Changes nothing of what it computes."""

from pathlib import Path

import click

from samestep.cli import output
from samestep.errors import SamestepError


@click.command(
    "record",
    short_help="Run a training unchanged and note every step in a ledger.",
    context_settings={"allow_interspersed_args": False},  # what follows the command is its own
)
@click.option("--out", type=click.Path(path_type=Path), default=Path("ledger"), help="A new folder for it (ledger).")
@click.option("--steps", type=click.IntRange(min=1), help="End the process after so many optimizer steps.")
@click.option("--every", type=click.IntRange(min=1), help="Note the large parts at every so many steps only (1).")
@click.option("--seed", type=int, help="Seed Python, NumPy and torch when torch is imported.")
@output.json_option
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND …")
def command(
    command: tuple[str, ...], *, out: Path, steps: int | None, every: int | None, seed: int | None, as_json: bool
) -> int:
    """Run COMMAND, a PyTorch training as it is, and note of every optimizer step what it was made from.

    Noted are digests of batch, inputs, loss, gradients, parameters, buffers, optimizer state, learning rates, scaler
    and random generators: `samestep compare` tells where two trainings part. Exit status: the command's own.
    """
    from samestep.proof.recording import Settings, ledgers_of, run_recorded
    from samestep.store.files import make_folder

    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise SamestepError(
            "The folder for the ledger is not empty, and nothing in it is overwritten.",
            path=out,
            hint="Give a new one: samestep record --out FOLDER -- …",
        )
    try:
        make_folder(out)
    except OSError as error:
        raise SamestepError("The folder for the ledger cannot be made.", path=out, found=error.strerror) from error
    status = run_recorded(command, out, Settings(steps=steps, every=every, seed=seed))
    ledgers = ledgers_of(out, command)
    if as_json:
        rows = [{"rank": each.rank, "path": str(each.path), "steps": len(each.steps)} for each in ledgers]
        output.print_json({"status": status, "ledgers": rows})
    else:
        for each in ledgers:
            output.say(f"rank {each.rank}: {len(each.steps)} steps in {each.path}")
    return status if status >= 0 else 128 - status
