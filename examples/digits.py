"""A classifier of handwritten digits: kill it at any time, run it again, and it prints the same losses.

How to run it: `python examples/digits.py [RUN] [--kill-after STEP]`; `--ablate` shows what a resume loses when one
part is left out. The figures are C1 of the requirements: with randomness="torch" they are
those of plain PyTorch.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn

import samestep

EPOCHS, BATCH = 6, 64


def build() -> dict[str, object]:
    """Build everything that a resume has to restore, by name."""
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    data = torch.utils.data.TensorDataset(images, torch.tensor(digits.target))
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 10))
    loader = samestep.DataLoader(data, batch_size=BATCH, shuffle=True, drop_last=True, randomness="torch")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=EPOCHS * len(loader))
    return {"model": model, "optimizer": optimizer, "scheduler": scheduler, "loader": loader}


def update(parts: dict[str, object], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Do one update on images of shape float[batch, 64] and labels int64[batch]; return the loss."""
    loss = nn.functional.cross_entropy(parts["model"](x), y)
    parts["optimizer"].zero_grad()
    loss.backward()
    parts["optimizer"].step()
    parts["scheduler"].step()
    return loss


def train(directory: str, epochs: int, kill_after: int | None) -> None:
    """Train, or go on with the training, and print the mean loss of each epoch."""
    run = samestep.Run(directory, seed=0, save_every="10 steps")
    parts = build()
    run.track(**parts)
    for epoch in run.epochs(epochs):
        run.state.losses = []
        for x, y in parts["loader"]:
            loss = update(parts, x, y)
            run.state.losses.append(loss.item())
            run.step(loss=loss)
            if run.completed_steps == kill_after:
                os.kill(os.getpid(), signal.SIGKILL)
        print(f"epoch {epoch + 1}: mean loss {mean(run.state.losses)}", flush=True)


def mean(losses: list[float]) -> float:
    """Average in Python's floats and round as the article prints it."""
    return round(sum(losses) / len(losses), 6)


# --- what is lost when one part is left out (R15) -------------------------------------------------------

EVERYTHING = ("model", "optimizer", "scheduler", "random", "loader")
ROWS = {
    "everything restored": EVERYTHING,
    "only the model": ("model",),
    "all but the optimizer": ("model", "scheduler", "random", "loader"),
    "all but the scheduler": ("model", "optimizer", "random", "loader"),
    "all but the random state": ("model", "optimizer", "scheduler", "loader"),
}


def ablate() -> None:
    """Train three epochs, then go on in a fresh process for each row, with something left out."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, __file__, folder, "--epochs", "3"], check=True, stdout=subprocess.DEVNULL)
        print(f"{'epochs 4 to 6, restored':28}mean losses")
        for row in ROWS:
            subprocess.run([sys.executable, __file__, folder, "--row", row], check=True)


def train_row(directory: Path, row: str) -> None:
    """Restore some parts of the checkpoint after epoch 3 and train the last three epochs."""
    samestep.seed_everything(0)
    parts = build()
    objects = parts | {"random": samestep.RandomState()}
    kept = {name: objects[name] for name in ROWS[row]}
    samestep.Store(directory).load(kept, allow_missing={"run", *EVERYTHING})
    means = [mean([update(parts, x, y).item() for x, y in parts["loader"]]) for _ in range(3, EPOCHS)]
    print(f"{row:28}{' '.join(map(str, means))}", flush=True)


def main() -> None:
    """Read the arguments and do what they say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", nargs="?", default="runs/digits")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--kill-after", type=int, metavar="STEP", help="die by SIGKILL after this step, to try it out")
    parser.add_argument("--ablate", action="store_true", help="show what a resume loses when one part is left out")
    parser.add_argument("--row", choices=ROWS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.ablate:
        ablate()
    elif arguments.row:
        train_row(Path(arguments.run), arguments.row)
    else:
        train(arguments.run, arguments.epochs, arguments.kill_after)


if __name__ == "__main__":
    main()
