"""The best that plain PyTorch does per epoch.

How to run it: `python plain_random_state.py [--noise] [--workers N]`. The recipe of `plain_recipe.py` with what it
leaves to the reader: the states of the random generators (Python, NumPy, torch: those that
docs.pytorch.org/docs/stable/notes/randomness.html seeds) are saved with the rest and set right before the loop, and the
file is replaced in one move, so that a death while saving leaves the one before.
"""

import random
from pathlib import Path

import numpy as np
import torch
from digits_task import BATCH, EPOCHS, SEED, Digits, network, optimizer_of, options, say_weights, schedule_of
from torch import nn
from torch.utils.data import DataLoader

PATH = Path("model.pt")


def random_state() -> dict:
    """Give the states of all global generators."""
    return {"python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.get_rng_state()}


def set_random_state(state: dict) -> None:
    """Set all global generators."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])


def main() -> None:
    chosen = options()
    random.seed(SEED)
    np.random.seed(SEED)
    torch.manual_seed(SEED)
    loader = DataLoader(
        Digits(noise=chosen.noise), batch_size=BATCH, shuffle=True, drop_last=True, num_workers=chosen.workers
    )
    model = network()
    optimizer = optimizer_of(model)
    scheduler = schedule_of(optimizer)
    first = 0
    if PATH.exists():
        checkpoint = torch.load(PATH, weights_only=False)  # NumPy's state is no weight; the file is our own
        model.load_state_dict(checkpoint["model_state_dict"])
        optimizer.load_state_dict(checkpoint["optimizer_state_dict"])
        scheduler.load_state_dict(checkpoint["scheduler_state_dict"])
        first = checkpoint["epoch"] + 1
        set_random_state(checkpoint["random_state"])
    model.train()
    for epoch in range(first, EPOCHS):
        for images, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            scheduler.step()
        checkpoint = {
            "epoch": epoch,
            "model_state_dict": model.state_dict(),
            "optimizer_state_dict": optimizer.state_dict(),
            "scheduler_state_dict": scheduler.state_dict(),
            "random_state": random_state(),
        }
        torch.save(checkpoint, PATH.with_suffix(".new"))
        PATH.with_suffix(".new").replace(PATH)
    say_weights(model)


if __name__ == "__main__":
    main()
