"""Which numbers do workers draw? The articles' two loaders, with PyTorch's own streams, also across a kill.

How to run it: `python examples/loader_seeds.py [RUN] [--slides] [--kill-after BATCH]`. Without `--slides` it is C2 of
the requirements (order and NumPy draws of two workers), with it C5 (seeds and draws of all three libraries).
"""

import argparse
import os
import random
import signal

import numpy as np
import torch
from torch import nn

import samestep


class Draws(torch.utils.data.Dataset):
    """Each item is what the process that fetches it draws from NumPy."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index, int(np.random.randint(0, 1000))


class SlideDraws(torch.utils.data.Dataset):
    """Each item is the worker's seed and one draw from Python, NumPy and torch."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[int, float, int, int]:
        return (torch.utils.data.get_worker_info().seed, *draw())


def draw() -> tuple[float, int, int]:
    """Draw one number from each library."""
    return (
        random.random(),
        int(np.random.randint(0, 2**31 - 1, dtype=np.int64)),
        torch.empty((), dtype=torch.int64).random_().item(),
    )


def article(directory: str, kill_after: int | None) -> None:
    """Print order and draws of one epoch (C2), and the sum of a layer's weights."""
    run = samestep.Run(directory, seed=0, save_every=1)
    model = nn.Linear(4, 2)
    loader = samestep.DataLoader(
        Draws(),
        batch_size=4,
        shuffle=True,
        num_workers=2,
        generator=torch.Generator().manual_seed(0),
        randomness="torch",
    )
    run.track(model=model, loader=loader)
    for _ in run.epochs(1):
        for indices, draws in loader:
            if run.completed_steps == kill_after:
                os.kill(os.getpid(), signal.SIGKILL)
            run.step()
            print("order", *indices.tolist(), "draws", *draws.tolist(), flush=True)
    print(f"weight sum {model.weight.sum().item():.3f}")


def slides(directory: str, kill_after: int | None) -> None:
    """Print the first draws of the main process and those of the workers in two epochs (C5)."""
    samestep.seed_everything(42)
    print("main", *draw())
    run = samestep.Run(directory, seed=42, save_every=1)
    loader = samestep.DataLoader(SlideDraws(), batch_size=2, num_workers=2, collate_fn=list, randomness="torch")
    run.track(loader=loader)
    for epoch in run.epochs(2):
        for batch in loader:
            if run.completed_steps == kill_after:
                os.kill(os.getpid(), signal.SIGKILL)
            worker = run.completed_steps % 2
            run.step()
            for seed, *drawn in batch:
                print("epoch", epoch, "worker", worker, "seed", seed, "draws", *drawn, flush=True)


def main() -> None:
    """Read the arguments and print the draws."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", nargs="?", default="runs/loader_seeds")
    parser.add_argument("--slides", action="store_true", help="the slides' loader (C5) instead of the article's (C2)")
    parser.add_argument("--kill-after", type=int, metavar="BATCH", help="die by SIGKILL after this batch")
    arguments = parser.parse_args()
    (slides if arguments.slides else article)(arguments.run, arguments.kill_after)


if __name__ == "__main__":
    main()
