"""How strong a proof is: every mistake of the table is refuted with its cause, every exact script is proved.

`make power` makes the whole table with all default kills.
"""

import pytest
from brute import EXACT
from mistakes import HARMLESS, LIMITS, MISTAKES
from proofs import of_exact, of_mistake

SCRIPTS = sorted(each.stem for each in EXACT.glob("*.py"))
FEW = 3
"""Kills that bring out most mistakes; the others need those that are named here."""

NEEDED = {
    "stopped training goes on": {"at": ["end"]},
    "best metric": {"at": ["step:17"]},
    "early-stop counter": {"at": ["step:17"]},
    "old one removed before the new one is there": {"at": ["save:3"]},
    "alphabetically last checkpoint": {"at": ["step:13"]},
    "layers frozen for ever": {"at": ["step:20"]},
}


def name(mistake):
    return mistake.name


@pytest.mark.parametrize("script", SCRIPTS)
def test_exact_scripts_are_proved(script, forks, tmp_path):
    """A training that restores everything is proved, whatever its style."""
    row = of_exact(script, forks.launch, tmp_path, kills=FEW)
    assert (row.verdict, row.what) == ("proved", "Every step after every resume is the same, bit for bit.")


@pytest.mark.parametrize("mistake", MISTAKES, ids=name)
def test_mistakes_are_refuted(mistake, forks, tmp_path):
    """A training that loses something is refuted, with the right cause and the right verdict."""
    row = of_mistake(mistake, forks.launch, tmp_path, **NEEDED.get(mistake.name, {"kills": FEW}))
    assert row.finds(mistake), row


@pytest.mark.parametrize("mistake", HARMLESS, ids=name)
def test_harmless_changes_are_proved(mistake, forks, tmp_path):
    """What has no consequence is no difference: an unused generator, a clock, a name."""
    row = of_mistake(mistake, forks.launch, tmp_path, kills=FEW)
    assert row.verdict == "proved", row


@pytest.mark.parametrize("mistake", LIMITS, ids=name)
def test_limits_are_what_the_page_says(mistake, forks, tmp_path):
    """What the proof cannot see is known: the day it sees it, the page has to be written anew."""
    row = of_mistake(mistake, forks.launch, tmp_path)
    assert row.verdict == "proved", row
