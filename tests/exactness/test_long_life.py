"""A long life: thousands of saves, hundreds of attempts, signals at any moment, and a directory that moves."""

import json
import sys
from pathlib import Path

import pytest
from disturbances import Soak, train_undisturbed
from ledger import read_ledger
from test_matrix import compare


def soak(fast: Path, disk: Path, seed: int, items: int, epochs: int, most: int) -> Soak:
    (fast / "places").mkdir()
    changes = {"items": items, "epochs": epochs}
    whole = read_ledger([train_undisturbed(fast, changes)])
    disturbed = Soak(fast, disk, seed, changes, most)
    disturbed.run()
    compare(whole, read_ledger(disturbed.ledgers))
    run, steps = disturbed.places.path, items // 4 * epochs
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_bytes().splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, steps + 1))
    assert [line["epoch"] for line in lines if "score" in line] == list(range(epochs))
    names = sorted(path.name.partition(".")[0] for path in (run / "checkpoints").iterdir())
    assert names == [f"step-{steps - 1:09d}", f"step-{steps:09d}"], "two checkpoints, and nothing beside them"
    assert sorted(path.name for path in run.iterdir() if path.name != ".lock") == [
        "attempts.jsonl",
        "checkpoints",
        "metrics.jsonl",
        "run.json",
    ]
    assert [line["how"] for line in disturbed.lines()] == disturbed.hows
    assert disturbed.hows[-1] == "finished"
    assert disturbed.left_over() == []
    return disturbed


def test_a_training_survives_signals_and_moves(fast: Path, tmp_path: Path) -> None:
    """Signalled and moved at random moments, 80 steps with a save at each equal undisturbed ones, without remains."""
    disturbed = soak(fast, tmp_path, seed=1, items=80, epochs=4, most=10)
    assert len(disturbed.ledgers) > 3


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_training_survives_a_long_life(fast: Path, tmp_path: Path, seed: int) -> None:
    """Signalled and moved at random moments, 2,000 steps with a save at each equal undisturbed ones."""
    disturbed = soak(fast, tmp_path, seed=seed, items=400, epochs=20, most=400)
    sys.stdout.write(f"seed {seed}: {len(disturbed.ledgers)} attempts, {dict(disturbed.counts)}\n")
    assert len(disturbed.ledgers) > 50
