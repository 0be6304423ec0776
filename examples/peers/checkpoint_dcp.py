"""PyTorch's Distributed Checkpoint, saving each few steps.

How to run it: `python checkpoint_dcp.py [--noise] [--workers N]`. Follows
docs.pytorch.org/tutorials/recipes/distributed_checkpoint_recipe.html: an AppState with get_state_dict and
set_state_dict, dcp.save and dcp.load, here in one process. Loader and schedule are given as Stateful objects besides,
as torchtitan's CheckpointManager does. Neither saves random generators.
"""

import pickle
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from digits_task import (
    BATCH,
    EPOCHS,
    SAVE_EVERY,
    SEED,
    Digits,
    network,
    optimizer_of,
    options,
    say_weights,
    schedule_of,
)
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torchdata.stateful_dataloader import StatefulDataLoader

FOLDER = Path("checkpoints")


class AppState(Stateful):
    """Model and optimizer, as the recipe wraps them."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer = model, optimizer

    def state_dict(self) -> dict:
        """Give both states."""
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optim": optimizer}

    def load_state_dict(self, state_dict: dict) -> None:
        """Set both states."""
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state_dict["model"],
            optim_state_dict=state_dict["optim"],
        )


class Progress(Stateful):
    """How far the training is."""

    def __init__(self) -> None:
        self.epoch = self.step = 0

    def state_dict(self) -> dict:
        """Give both counters."""
        return {"epoch": self.epoch, "step": self.step}

    def load_state_dict(self, state_dict: dict) -> None:
        """Set both counters."""
        self.epoch, self.step = state_dict["epoch"], state_dict["step"]


class LoaderState(Stateful):
    """The loader's state as bytes, as torchtitan keeps it."""

    def __init__(self, loader: StatefulDataLoader) -> None:
        self.loader = loader

    def state_dict(self) -> dict:
        """Give it pickled: a tree of plain values whose shape changes is nothing that dcp could load in place."""
        return {"bytes": pickle.dumps(self.loader.state_dict())}

    def load_state_dict(self, state_dict: dict) -> None:
        """Set it."""
        self.loader.load_state_dict(pickle.loads(state_dict["bytes"]))  # noqa: S301 — our own file


def newest() -> Path | None:
    """Give the folder of the newest checkpoint that has its metadata, as torchtitan looks for it."""
    whole = [path.parent for path in FOLDER.glob("step-*/.metadata")]
    return max(whole, key=lambda path: int(path.name.removeprefix("step-")), default=None)


def main() -> None:
    chosen = options()
    torch.manual_seed(SEED)
    loader = StatefulDataLoader(
        Digits(noise=chosen.noise), batch_size=BATCH, shuffle=True, drop_last=True, num_workers=chosen.workers
    )
    model = network()
    optimizer = optimizer_of(model)
    scheduler = schedule_of(optimizer)
    progress = Progress()
    parts = {
        "app": AppState(model, optimizer),
        "scheduler": scheduler,
        "loader": LoaderState(loader),
        "progress": progress,
    }
    last = newest()
    if last is not None:
        dcp.load(parts, checkpoint_id=last)
    for epoch in range(progress.epoch, EPOCHS):
        progress.epoch = epoch
        for images, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            scheduler.step()
            progress.step += 1
            if progress.step % SAVE_EVERY == 0:
                dcp.save(parts, checkpoint_id=FOLDER / f"step-{progress.step}")
    say_weights(model)


if __name__ == "__main__":
    main()
