"""Our own examples keep what they show: killed at every operation of a save, they are the same trainings."""

from pathlib import Path

import pytest

from samestep.proof.arms import Order
from samestep.proof.proving import Wishes, prove

EXAMPLES = Path(__file__).parents[2] / "examples"
TRAININGS = {
    "digits.py": ["--epochs", "2"],
    "char_gpt.py": ["--steps", "24"],
    "gan.py": ["--epochs", "3"],
    "fixed_batch.py": [],
}
"""Each with arguments that make it short."""


def test_an_example_is_proved(forks, tmp_path):
    """The classifier of digits is proved: killed in the middle of an epoch, and in the middle of a save."""
    assert _proof("digits.py", forks, tmp_path, kills=2).verdict == "proved"


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAININGS)
def test_examples_are_proved(name, forks, tmp_path):
    """An example is proved: killed between steps, at an epoch's edge, in saves, and started again when it is done."""
    assert _proof(name, forks, tmp_path).verdict == "proved"


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAININGS)
def test_examples_are_proved_at_every_operation(name, forks, tmp_path):
    """An example is proved with kills before each operation of a save, and in the middle of each file it writes."""
    found = _proof(name, forks, tmp_path, at=["save:2"])
    assert len(found.trials) >= 10
    assert {each.verdict for each in found.trials} == {"proved"}
    assert found.verdict == "proved"


def _proof(name, forks, tmp_path, **wishes):
    order = Order(["python", name, *TRAININGS[name]], EXAMPLES)
    return prove(order, tmp_path / "arms", Wishes(launch=forks.launch, **wishes))
