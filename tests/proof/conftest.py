"""Owns what the tests of proofs share: a process that has imported torch, from which recorded commands are forked."""

import pytest
from warmed import warmed

from samestep.proof.arms import Order
from samestep.proof.proving import Wishes, prove


@pytest.fixture(scope="session")
def forks():
    """Start recorded commands by forking."""
    with warmed() as server:
        yield server


@pytest.fixture
def proved(forks, tmp_path):
    """Prove a script, given as text; give what was found."""

    def run(text, *, at=(), kills=6, jobs=None, name="arms", **order):
        source = tmp_path / "project"
        source.mkdir(exist_ok=True)
        (source / "train.py").write_text(text)
        command = order.pop("command", ["python", "train.py"])
        return prove(
            Order(command, source, **order), tmp_path / name, Wishes(kills=kills, at=at, jobs=jobs, launch=forks.launch)
        )

    return run
