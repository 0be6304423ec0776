"""A training that saves at every step for a long time, and the processes that look at it meanwhile."""

import contextlib
import io
import json
import os
from pathlib import Path
from typing import Any

import torch
import trainings
from ledger import Ledger, random_digest
from torch.nn import functional

import samestep
from samestep.cli.group import run as samestep_command


class Enduring(trainings.Augmented):
    """Saves at every step, keeps two checkpoints, and scores each epoch on a second loader that shuffles and draws."""

    workers = 2
    save_every = 1
    keep = samestep.Keep(last=2)
    items, epochs = 120, 5

    def dataset(self) -> trainings.Points:
        return trainings.Points(augment=True, items=self.items)

    def build(self) -> None:
        super().build()
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, self.epochs * self.items)
        points = trainings.Points(augment=True, items=20)
        self.validation = samestep.DataLoader(points, batch_size=5, shuffle=True)
        self.run.state.scores = []

    def tracked(self) -> dict[str, Any]:
        return super().tracked() | {"validation": self.validation}

    def train(self) -> None:
        for epoch in self.run.epochs(self.epochs):
            for index, x, y in self.batches:
                loss = self.update(x, y)
                self.run.step(loss=loss)
                self.note_step(index, x, loss)
            self.evaluate(epoch)
        self.note_end()

    def note_step(self, index: torch.Tensor, x: torch.Tensor, loss: torch.Tensor) -> None:
        self.ledger.note(
            "step",
            self.run.completed_steps,
            index=index,
            x=x,
            loss=loss,
            rates=self.rates(),
            model=list(self.model.state_dict().values()),
            optimizer=self.optimizer.state_dict(),
            random=random_digest(),
        )

    def evaluate(self, epoch: int) -> None:
        total = 0.0
        with self.run.isolated(), torch.no_grad():
            self.model.eval()
            for _, x, y in self.validation:
                total += float(functional.cross_entropy(self.model(x), y)) + float(torch.rand(()))
            self.model.train()
        self.run.state.scores.append(total)
        self.run.score(total=total)
        self.ledger.note("score", epoch, scores=self.run.state.scores, random=random_digest())


def train_in(working_directory: str, directory: str, ledger: Path, changes: dict[str, Any]) -> None:
    """Train in a run directory that may be named from where this process stands; the entry point of a child."""
    os.chdir(working_directory)
    Enduring(Path(directory), Ledger(ledger), **changes).train()


def look_at(directory: str, answers: Path) -> None:
    """List, inspect and verify a run as its user would meanwhile; write down exit status and output of each."""
    found = []
    for verb in ("ls", "inspect", "verify"):
        said = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
        with contextlib.redirect_stdout(said):
            status = samestep_command([verb, "--json", directory])
            said.flush()
        found.append([verb, status, json.loads(said.buffer.getvalue())])
    answers.write_text(json.dumps(found))
