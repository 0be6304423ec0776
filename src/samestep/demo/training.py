"""The training of `samestep demo`: a classifier of handwritten digits, in one process that may be killed at any time.

How to run it: `python -m samestep.demo.training RUN LEDGER [--pause-after-step N] [--die-in-save N]`.
"""

import argparse
import json
import os
import signal
from importlib.resources import as_file, files
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn

import samestep
from samestep.state.tensors import digest
from samestep.store import files as store_files

EPOCHS, BATCH = 6, 64


def load_digits() -> torch.utils.data.TensorDataset:
    """Load the 1,797 images of 8 x 8 pixels that the package ships.

    Returns:
        Pairs of float32[64] in [0, 1] and the digit as int64.
    """
    with as_file(files("samestep.demo") / "digits.safetensors") as path:
        tensors = load_file(path)
    return torch.utils.data.TensorDataset(tensors["images"].float() / 16, tensors["labels"].long())


def train(directory: Path, ledger: Path, pause_after_step: int = 0) -> None:
    """Train to the end, or go on where an earlier process was killed; write one line of digests for each step.

    Args:
        directory: The run's directory.
        ledger: The file that lines are appended to.
        pause_after_step: Wait here to be killed, so that the kill meets the middle of this step's body (0: never).
    """
    run = samestep.Run(directory, seed=0, save_every=10)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 10))
    loader = samestep.DataLoader(load_digits(), batch_size=BATCH, shuffle=True, drop_last=True, num_workers=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=EPOCHS * len(loader))
    run.track(model=model, optimizer=optimizer, scheduler=scheduler, loader=loader)
    with ledger.open("a", buffering=1) as lines:
        for _ in run.epochs(EPOCHS):
            for images, labels in loader:
                loss = nn.functional.cross_entropy(model(images), labels)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                scheduler.step()
                run.step(loss=loss)
                parts = {
                    "batch": digest(images),
                    "loss": digest(loss),
                    "parameters": digest_all(model.state_dict()),
                    "optimizer": digest_all(_moments(optimizer)),
                    "learning_rate": float(scheduler.get_last_lr()[0]).hex(),
                    "random.torch": digest(torch.get_rng_state()),
                }
                lines.write(json.dumps({"step": run.completed_steps} | parts) + "\n")
                if run.completed_steps == pause_after_step:
                    signal.pause()
        final = digest_all(model.state_dict() | _moments(optimizer))
        lines.write(json.dumps({"step": "final", "tensors": final}) + "\n")


def digest_all(tensors: dict[str, torch.Tensor]) -> dict[str, str]:
    """Digest each tensor by its bytes, dtype and shape."""
    return {name: digest(tensor) for name, tensor in tensors.items()}


def _moments(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    states = optimizer.state_dict()["state"]
    return {f"{name}.{index}": each for index, state in states.items() for name, each in state.items()}


class _DyingSystem(store_files.System):
    """The operating system, which kills this process in the middle of one of its saves."""

    def __init__(self, save: int) -> None:
        self._left = save

    def rename(self, source: Path, target: Path) -> None:
        if target.name.startswith("step-"):
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        super().rename(source, target)


def main() -> None:
    """Read the arguments and train."""
    parser = argparse.ArgumentParser(description="Train on digits; run it again to resume.")
    parser.add_argument("run", type=Path)
    parser.add_argument("ledger", type=Path)
    parser.add_argument("--pause-after-step", type=int, default=0, help="wait to be killed after step N")
    parser.add_argument("--die-in-save", type=int, default=0, help="die by SIGKILL in the middle of save N")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # bits depend on the number of threads
    if arguments.die_in_save:
        store_files.system = _DyingSystem(arguments.die_in_save)
    train(arguments.run, arguments.ledger, arguments.pause_after_step)


if __name__ == "__main__":
    main()
