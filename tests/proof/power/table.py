"""Makes docs/power.md: what `samestep prove` says of exact trainings, and of each with one mistake.

How to run it: `make power`; about ten minutes.
"""

# ruff: noqa: T201 — a script that prints a page

import platform
import sys
import tempfile
from pathlib import Path

import torch
from brute import EXACT
from mistakes import HARMLESS, LIMITS, MISTAKES
from proofs import of_exact, of_mistake

sys.path.append(str(Path(__file__).parents[1]))

from warmed import warmed

HEAD = """# The power of a proof

What `samestep prove` says, with its six default kills, of {exact} exact trainings and of {mistakes} trainings with one
mistake each, as people make them. Made by `make power` with torch {torch}, Python {python}, on {machine}.
The scripts are in `tests/proof/power`; that the exact ones are exact, and that each mistake has a consequence, is shown
there by brute force, without this library (`tests/proof/test_power_scripts.py`).

**{found} of {mistakes} mistakes refuted with the right cause, {proved} of {exact} exact trainings proved,
{harmless} of {changes} harmless changes proved.**
"""


def main():
    """Prove everything, and print the page."""
    with warmed() as forks:

        def rows(prove, cases):
            for case in cases:
                with tempfile.TemporaryDirectory() as folder:
                    yield case, prove(case, forks.launch, Path(folder))

        exact = list(rows(of_exact, sorted(each.stem for each in EXACT.glob("*.py"))))
        wrong, changes, limits = (list(rows(of_mistake, each)) for each in (MISTAKES, HARMLESS, LIMITS))
    print(
        HEAD.format(
            exact=len(exact),
            mistakes=len(wrong),
            changes=len(changes),
            found=sum(row.finds(mistake) for mistake, row in wrong),
            proved=sum(row.verdict == "proved" for _, row in exact),
            harmless=sum(row.verdict == "proved" for _, row in changes),
            torch=torch.__version__,
            python=platform.python_version(),
            machine=platform.machine(),
        )
    )
    print("## Mistakes\n\n| mistake | made in | verdict | named first | what is said |\n|---|---|---|---|---|")
    for mistake, row in wrong:
        mark = "" if row.finds(mistake) else " ✗"
        verdicts = ", ".join(row.trials).replace("_", " ")
        print(f"| {mistake.name}{mark} | {row.script} | {verdicts} | {', '.join(row.causes)} | {cell(row.what)} |")
    print("\n## Exact trainings\n\n| training | verdict |\n|---|---|")
    for _, row in exact:
        print(f"| {row.name} | {row.verdict} |")
    print("\n## Harmless changes\n\n| change | made in | verdict | why it is harmless |\n|---|---|---|---|")
    for mistake, row in changes:
        print(f"| {mistake.name} | {row.script} | {row.verdict} | {cell(mistake.explanation)} |")
    print("\n## Known limits\n\n| mistake | made in | verdict | why it is not found |\n|---|---|---|---|")
    for mistake, row in limits:
        print(f"| {mistake.name} | {row.script} | {row.verdict} | {cell(mistake.explanation)} |")


def cell(text):
    """Write a text in a cell of a table."""
    return text.replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    main()
