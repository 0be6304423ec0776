"""Owns the one small task that every script of this folder trains; knows nothing of saving and resuming.

Handwritten digits (scikit-learn, in memory), a network with dropout, 3 epochs of 14 batches, AdamW with a cosine
schedule. `--noise` adds an augmentation that draws from torch's global generator, as random transforms do, and
`--workers N` moves the loading into processes: the two choices that decide most about what a resume must bring back.
"""

import argparse
import hashlib

import torch
from sklearn.datasets import load_digits
from torch import nn

EPOCHS, BATCH, SEED, SAVE_EVERY = 3, 128, 0, 7  # 14 steps an epoch: a save in its middle and one at its edge
BATCHES = 14

torch.set_num_threads(1)  # so small a network gains nothing from more, and proofs run side by side


def options() -> argparse.Namespace:
    """Read the two choices from the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--noise", action="store_true", help="add random noise to each image when it is fetched")
    parser.add_argument("--workers", type=int, default=0, help="processes that fetch")
    return parser.parse_args()


class Digits(torch.utils.data.Dataset):
    """1797 images as float[64] with labels, with fresh noise at each fetch if asked for."""

    def __init__(self, *, noise: bool) -> None:
        digits = load_digits()
        self.images = torch.tensor(digits.data, dtype=torch.float32) / 16
        self.labels = torch.tensor(digits.target)
        self.noise = noise

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        image = self.images[index]
        if self.noise:
            image = image + 0.1 * torch.randn(64)
        return image, self.labels[index]


def network() -> nn.Module:
    """Build the network: float[batch, 64] to scores float[batch, 10]."""
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 10))


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    """Build the optimizer of a model."""
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def schedule_of(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    """Build the schedule: a cosine over the whole training."""
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=EPOCHS * BATCHES)


def say_weights(model: nn.Module) -> None:
    """Print a digest of the final weights: two runs are the same training only if it is the same."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode() + tensor.detach().cpu().numpy().tobytes())
    print("weights", digest.hexdigest()[:16])
