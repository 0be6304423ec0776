"""Owns `samestep diff`: what differs between two checkpoints. Reads manifests only, changes nothing."""

from collections.abc import Sequence

import click

from samestep.cli import output, places
from samestep.store.comparing import Comparison, Difference, compare, read_outline


@click.command("diff", short_help="Compare two checkpoints bit by bit.")
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@click.option("--all", "show_all", is_flag=True, help="Name everything that differs, not only the first of each item.")
@output.json_option
def command(a: str, b: str, *, show_all: bool, as_json: bool) -> int:
    """Compare the checkpoints A and B: every tensor by its digest, and every value of the state.

    Ends with 0 when a training would go on from both with the same bits, else with 1. Both are CKPT as in
    `samestep --help`. Scores, tags and environment are not compared.
    """
    first, second = places.find_checkpoint(a), places.find_checkpoint(b)
    found = compare(read_outline(first.path), read_outline(second.path))
    if as_json:
        output.print_json(
            {
                "a": str(first.path),
                "b": str(second.path),
                "equal": found.equal,
                "changed": [each._asdict() for each in found.changed],
                "only_a": [each._asdict() for each in found.only_a],
                "only_b": [each._asdict() for each in found.only_b],
            }
        )
    else:
        _print(found, most=None if show_all else 5)
    return 0 if found.equal else 1


def _print(found: Comparison, most: int | None) -> None:
    if found.equal:
        output.say(f"Equal: {found.same} tensors and all values of the state are the same, bit for bit.")
        return
    output.say(f"Different. {found.same} tensors are the same, bit for bit.")
    for title, differences in (
        ("changed", found.changed),
        ("only in A", found.only_a),
        ("only in B", found.only_b),
    ):
        rows = [row for group in _by_item(differences).values() for row in _rows(group, most)]
        if rows:
            output.say("")
            output.table([title, "", "how"], rows)


def _by_item(differences: Sequence[Difference]) -> dict[str, list[Difference]]:
    groups: dict[str, list[Difference]] = {}
    for each in differences:
        groups.setdefault(each.item, []).append(each)
    return groups


def _rows(group: list[Difference], most: int | None) -> list[tuple[str, str, str]]:
    rows = [(each.item, each.name, each.detail) for each in group[:most]]
    if most is not None and len(group) > most:
        rows.append((group[0].item, f"and {len(group) - most} more", "(--all names them)"))
    return rows
