import json
import shutil

import pytest
import torch
from small_training import snapshot

from samestep.cli.group import run
from samestep.store.retention import Keep
from samestep.store.store import Store


@pytest.fixture(scope="session")
def pristine(tmp_path_factory):
    """Write a run with checkpoints at steps 100, 200 and 300; the second is the best and tagged."""
    run_directory = tmp_path_factory.mktemp("runs") / "digits"
    store = Store(run_directory / "checkpoints", keep=Keep(last=9))
    for step, accuracy in ((100, 0.1), (200, 0.9), (300, 0.3)):
        store.write(
            snapshot(step, epoch=step // 100, seed=step, metrics={"acc": accuracy, "loss": float("nan")}),
            environment={"torch": str(torch.__version__)},
            tags=["good"] if step == 200 else [],
        )
    return run_directory


@pytest.fixture
def digits(pristine, tmp_path):
    """Copy the run, so that the test may break it."""
    return shutil.copytree(pristine, tmp_path / "digits")


@pytest.fixture
def samestep(capsys):
    """Run a verb in this process; gives the status, standard output and standard error."""

    def call(*words):
        status = run([str(word) for word in words])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


@pytest.fixture
def samestep_json(samestep):
    """Run a verb with --json; gives the status and the one object on standard output."""

    def call(*words):
        status, out, _ = samestep(*words, "--json")
        assert out.endswith("}\n")
        return status, json.loads(out)

    return call
