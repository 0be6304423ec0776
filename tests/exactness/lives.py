"""A training of a few steps, whose whole life from an empty directory on is a few hundred file operations."""

import json
from pathlib import Path
from typing import Any

import torch
from ledger import digest
from torch import nn

import samestep
from samestep.store.reading import Checkpoint, find_checkpoints

BEST = samestep.Keep(last=1, best=1, metric="accuracy")
"""After a few epochs of these scores the best checkpoint is older than the newest one."""

SCORES = (0.9, 0.5, 0.3, 0.1, 0.1, 0.1)


def train(directory: Path, epochs: int = 2, stop_after: int | None = None, **settings: Any) -> None:
    """Train for epochs of two steps; a save falls due at the first score, which is the best one, and at the end.

    `stop_after` leaves the loop behind that step, as a process does that dies there.
    """
    run = samestep.Run(directory / "run", **{"seed": 3, "save_every": None, "keep": BEST} | settings)
    model = nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.3), nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader = samestep.DataLoader(list(torch.eye(3).repeat(2, 1)), batch_size=3, shuffle=True)
    run.track(model=model, optimizer=optimizer, loader=loader)
    for epoch in run.epochs(epochs):
        for x in loader:
            loss = model(x + 0.1 * torch.randn(())).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.step(loss=loss)
            if run.completed_steps == stop_after:
                return
        run.score(accuracy=SCORES[epoch])
    end = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "random": torch.get_rng_state()}
    (directory / "end.json").write_text(json.dumps(digest(end)))
    run.close()


def end_of(directory: Path) -> dict[str, Any]:
    """Read what must be equal however often the command was killed."""
    run = directory / "run"
    checkpoints = find_checkpoints(run / "checkpoints")
    return {
        "end": (directory / "end.json").read_text(),
        "metrics": (run / "metrics.jsonl").read_text(),
        "entries": sorted(path.name for path in run.iterdir()),
        "checkpoints": [(each.step, each.tags, content(each)) for each in checkpoints],
        "others": sorted(path.name for path in (run / "checkpoints").iterdir() if not path.name.startswith("step-")),
    }


def content(checkpoint: Checkpoint) -> dict[str, Any]:
    """Give the trees and the tensors' digests of a checkpoint, whose every byte is verified."""
    assert checkpoint.verify() == []
    return {
        name: (item.tree, {key: tensor.digest for key, tensor in item.tensors.items()})
        for name, item in checkpoint.manifest.items.items()
        if name != "gradients"  # a process that has seen no two updates cannot know yet that the loop drops them
    }


def attempts(directory: Path) -> list[dict[str, Any]]:
    """Read attempts.jsonl."""
    path = directory / "run" / "attempts.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def set_aside(directory: Path) -> set[str]:
    """Read the manifests of all checkpoints in quarantine, from where none may vanish."""
    return {path.read_text() for path in (directory / "run" / "checkpoints" / "quarantine").glob("*/manifest.json")}
