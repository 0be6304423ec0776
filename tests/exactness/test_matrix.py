"""The exactness matrix: uninterrupted = killed and resumed, step by step and bit by bit, in real processes."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trainings
from ledger import Kill, read_ledger
from processes import run_in_child
from trainings import STEPS

MIDDLE = STEPS + STEPS // 2 + 2  # in the middle of epoch 1; the newest checkpoint is some steps older


@dataclass(frozen=True)
class Case:
    """One cell: a training, how it differs, where it is killed, and how it differs after the first resume."""

    name: str
    kind: type[trainings.Training]
    changes: dict[str, Any] = field(default_factory=dict)
    kills: tuple[Kill, ...] = (Kill("step", MIDDLE),)
    resumed: dict[str, Any] = field(default_factory=dict)


TWO = {"workers": 2}
PERSISTENT = {"workers": 2, "loader": {"persistent_workers": True}}
EACH = {"save_every": 1}

CASES = (
    Case("epoch boundary", trainings.Training, {"save_every": "1 epoch"}, (Kill("step", STEPS + 1),)),
    Case("mid-epoch without workers", trainings.Training),
    Case("mid-epoch with 2 workers", trainings.Training, TWO),
    Case("augmentation in the main process", trainings.Augmented),
    Case("augmentation in 2 workers", trainings.Augmented, TWO),
    Case("augmentation in persistent workers", trainings.Augmented, PERSISTENT),
    Case("augmentation per batch", trainings.Augmented, {"workers": 2, "loader": {"randomness": "batch"}}),
    Case("torch's own streams", trainings.Augmented, {"loader": {"randomness": "torch"}}),
    Case("torch's own streams in 2 workers", trainings.Augmented, {"workers": 2, "loader": {"randomness": "torch"}}),
    Case(
        "torch's own streams in persistent workers",
        trainings.OwnedGenerator,
        {"workers": 2, "loader": {"randomness": "torch", "persistent_workers": True}},
    ),
    Case("resumed with 3 workers instead of 2", trainings.Augmented, TWO, resumed={"workers": 3}),
    Case("resumed with 0 workers instead of 2", trainings.Augmented, TWO, resumed={"workers": 0}),
    Case("accumulation of 4", trainings.Accumulation, {"save_every": None}, (Kill("step", 30), Kill("step", 32))),
    Case("generator owned by the data set", trainings.OwnedGenerator),
    Case("generator owned by the data set, 2 workers", trainings.OwnedGenerator, TWO),
    Case("batch sampler with its own generator", trainings.OwnBatchSampler),
    Case("batch sampler with its own generator, 2 workers", trainings.OwnBatchSampler, TWO),
    Case("plateau, validation, early stopping, best", trainings.Plateau, {}, (Kill("step", MIDDLE),)),
    Case("killed inside the evaluation", trainings.Plateau, EACH, (Kill("inside the evaluation", 1),)),
    Case("killed inside the evaluation, old save", trainings.Plateau, {}, (Kill("inside the evaluation", 1),)),
    Case("killed at the epoch's last batch", trainings.Plateau, EACH, (Kill("step", 2 * STEPS),)),
    Case("killed before the evaluation", trainings.Plateau, EACH, (Kill("behind the batches", 1),)),
    Case("killed behind the evaluation", trainings.Plateau, EACH, (Kill("epoch", 1),)),
    Case("fp16, GradScaler, two optimizers, EMA", trainings.AdversarialAmp),
    Case("tied weights", trainings.Tied),
    Case("channels_last", trainings.ChannelsLast),
    Case("frozen parameters, thawed once", trainings.Frozen, {}, (Kill("step", STEPS + 9),)),
    Case("BatchNorm", trainings.BatchNorm),
    Case("activation checkpointing and dropout", trainings.ActivationCheckpointing),
    Case("OneCycleLR", trainings.OneCycle),
    Case("SWA", trainings.Averaged),
    Case("a parameter group added during training", trainings.AddedGroup, {}, (Kill("step", STEPS + 9),)),
    Case("three kills in one epoch", trainings.Augmented, TWO, tuple(Kill("step", STEPS + n) for n in (3, 8, 13))),
    Case(
        "a kill right after a resume",
        trainings.Augmented,
        {"workers": 2, "save_every": 1},
        (Kill("step", MIDDLE), Kill("step", MIDDLE), Kill("step", MIDDLE + 1)),
    ),
    Case("statements before and after step and score", trainings.Counters, {}, (Kill("step", MIDDLE),)),
    Case("statements, killed before the score", trainings.Counters, {}, (Kill("behind the batches", 1),)),
)


def compare(reference: dict[Any, Any], attempts: dict[Any, Any]) -> None:
    """Compare everything that was noted; a step that several attempts did must be the same in each."""
    assert attempts.keys() == reference.keys()
    for key, (expected,) in reference.items():
        for found in attempts[key]:
            assert found == expected, f"first difference at {key}"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_killed_and_resumed_training_equals_the_uninterrupted_one(case: Case, tmp_path: Path) -> None:
    """Killed by SIGKILL and resumed in fresh processes, every step and the final state have the same bits."""
    log = tmp_path / "log"
    reference = tmp_path / "reference.jsonl"
    code = run_in_child(trainings.train, case.kind, tmp_path / "whole", reference, None, case.changes, log=log)
    assert code == 0, log.read_text()
    paths = []
    for number, kill in enumerate((*case.kills, None)):
        paths.append(tmp_path / f"attempt-{number}.jsonl")
        changes = case.changes | (case.resumed if number else {})
        code = run_in_child(trainings.train, case.kind, tmp_path / "run", paths[-1], kill, changes, log=log)
        assert code == (0 if kill is None else -9), log.read_text()
    steps = [number for (place, number), _ in read_ledger(paths[1:2]).items() if place == "step"]
    assert min(steps) > 1, "the second attempt began anew instead of resuming"
    compare(read_ledger([reference]), read_ledger(paths))
