"""Owns `samestep compare`: the first step and part in which two recorded trainings differ. Changes nothing."""

from pathlib import Path

import click

from samestep.cli import output
from samestep.errors import SamestepError
from samestep.proof.comparing import Difference, compare_ledgers
from samestep.proof.ledger import PARTS, find_ledgers


@click.command("compare", short_help="Tell where two recorded trainings part.")
@click.argument("a", metavar="A", type=click.Path(path_type=Path))
@click.argument("b", metavar="B", type=click.Path(path_type=Path))
@click.option("--ignore", multiple=True, help="A part that does not count, such as random.python; may be repeated.")
@output.json_option
def command(a: Path, b: Path, *, ignore: tuple[str, ...], as_json: bool) -> int:
    """Compare the ledgers A and B, step by step and part by part.

    Both are what `samestep record --out` has made: a folder, or one ledger of it. Ends with 0 when every step is the
    same in every part, else with 1.
    """
    unknown = [each for each in ignore if each not in PARTS]
    if unknown:
        raise SamestepError("There is no such part.", path="--ignore", expected=", ".join(PARTS), found=unknown[0])
    first, second = find_ledgers(a), find_ledgers(b)
    found = compare_ledgers(first, second, ignored=ignore)
    steps = sum(len(each.steps) for each in first)
    if as_json:
        output.print_json(
            {"identical": found is None, "steps": steps, "first_difference": None if found is None else found.as_json()}
        )
    else:
        _print(found, steps, several=len(first) > 1)
    return 0 if found is None else 1


def _print(found: Difference | None, steps: int, *, several: bool) -> None:
    if found is None:
        output.say(f"Identical: {steps} steps are the same in every part, bit for bit.")
        return
    where = f"step {found.step} of rank {found.rank}" if several else f"step {found.step}"
    output.say(f"Different from {where} on: {found.part} first.")
    output.say(f"  what:  {found.detail}")
    output.say(f"  parts: {', '.join(found.parts)}")
