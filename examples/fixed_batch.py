"""Five updates on one fixed batch: the loss of update 5 is 10.83563042, also when the process died after update 4.

How to run it: `python examples/fixed_batch.py [RUN] [--kill-after STEP]`. The figure is C3 of the requirements: only
the random state can make it come out, since dropout draws a mask at every update.
"""

import argparse
import os
import signal

import torch
from torch import nn

import samestep


def main() -> None:
    """Train and print every loss with eight digits."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", nargs="?", default="runs/fixed_batch")
    parser.add_argument("--kill-after", type=int, metavar="STEP", help="die by SIGKILL after this step, to try it out")
    arguments = parser.parse_args()

    run = samestep.Run(arguments.run, seed=7, save_every=1)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.25), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    run.track(model=model, optimizer=optimizer, scheduler=scheduler)

    x = torch.arange(16, dtype=torch.float32).view(4, 4) / 10
    y = x.sum(1, keepdim=True)
    for step in run.steps(5):
        if step == arguments.kill_after:
            os.kill(os.getpid(), signal.SIGKILL)
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        run.step(loss=loss)
        print(f"update {run.completed_steps}: loss {loss.item():.8f}", flush=True)


if __name__ == "__main__":
    main()
