"""The script of a run that was written once and stays: `python tests/run/golden_run.py DIRECTORY` writes another."""

import datetime as dt
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

import samestep


class Average:
    """An exponential moving average as people write it: weights and an integer counter."""

    def __init__(self, model):
        self.weights = [each.detach().clone() for each in model.parameters()]
        self.updates = 0

    def update(self, model):
        """Move towards the model's weights."""
        self.updates += 1
        for average, weight in zip(self.weights, model.parameters(), strict=True):
            average.lerp_(weight.detach(), 1 / (self.updates + 1))

    def state_dict(self):
        """Give the state."""
        return {"weights": self.weights, "updates": self.updates}

    def load_state_dict(self, state):
        """Take the state."""
        for average, weight in zip(self.weights, state["weights"], strict=True):
            average.copy_(weight)
        self.updates = state["updates"]


def train(directory, look=lambda *_: None, until=None):
    """Train by an ordinary script, let `look` see each body's beginning, and leave the loop behind step `until`."""
    run = samestep.Run(directory, seed=7, save_every=3, keep=samestep.Keep(last=1))
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Dropout(0.25), nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20)
    average, generator = Average(model), np.random.default_rng(5)
    data = torch.utils.data.TensorDataset(torch.linspace(-1, 1, 24).view(8, 3))
    loader = samestep.DataLoader(data, batch_size=2, shuffle=True)
    objects = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "average": average}
    run.track(**objects, loader=loader, generator=generator)
    run.state.losses = []
    run.state.note = None
    for _ in run.epochs(3):
        for (batch,) in loader:
            look(run, objects)
            loss = model(batch + generator.normal()).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            average.update(model)
            run.state.losses.append(loss.item())
            run.state.note = {"when": dt.date(2026, 11, 30), 3: b"\0\xff", "not a number": float("nan")}
            run.step(loss=loss)
            if run.completed_steps == until:
                return


if __name__ == "__main__":
    train(Path(sys.argv[1]), until=7)
