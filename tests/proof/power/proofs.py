"""Owns the proofs of the power table: what `samestep prove` says of an exact script, or of one with a mistake."""

from dataclasses import dataclass

from brute import EXACT
from mistakes import write

from samestep.proof.arms import Order
from samestep.proof.proving import Wishes, prove

OBJECTS = {"copies", "variables"}
"""What the table calls objects: EMA copies, and counters, best scores, schedulers that are held by names."""


@dataclass(frozen=True)
class Row:
    """A line of the table.

    Args:
        name: The script, or the mistake in it.
        script: The exact script.
        verdict: What is said of the script: "proved", "diverged" or "unverified".
        trials: The verdicts of the trials that failed.
        causes: The parts that are named first.
        what: What is said of the first cause.
    """

    name: str
    script: str
    verdict: str
    trials: tuple[str, ...]
    causes: tuple[str, ...]
    what: str

    def finds(self, mistake):
        """Tell whether the mistake is refuted with the right verdict and cause."""
        parts = {each for part in mistake.parts for each in (OBJECTS if part == "objects" else {part})}
        return (
            self.verdict == "diverged"
            and mistake.verdict in self.trials
            and (not parts or bool(parts & {*self.causes}))
        )


def of_mistake(mistake, launch, folder, **wishes):
    """Prove a script with a mistake in it."""
    project = folder / "project"
    project.mkdir()
    write(mistake, project)
    return _row(mistake.name, mistake.script, launch, folder, wishes)


def of_exact(script, launch, folder, **wishes):
    """Prove an exact script."""
    project = folder / "project"
    project.mkdir()
    (project / "train.py").write_text((EXACT / f"{script}.py").read_text(encoding="utf-8"), encoding="utf-8")
    return _row(script, script, launch, folder, wishes)


def _row(name, script, launch, folder, wishes):
    order = Order(["python", "train.py"], folder / "project")
    found = prove(order, folder / "arms", Wishes(launch=launch, **wishes))
    failed = [each for each in found.trials if each.verdict not in {"proved", "not_killed"}]
    causes = [each.first_difference.part for each in failed if each.first_difference is not None]
    what = next((f"{one.part}: {one.what}" for each in failed for one in each.findings), found.reason)
    return Row(
        name,
        script,
        found.verdict,
        tuple(dict.fromkeys(each.verdict for each in failed)),
        tuple(dict.fromkeys(causes)),
        what,
    )
