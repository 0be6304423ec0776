"""Fits a small network with L-BFGS, whose step runs forward and backward in a closure."""

import os

import torch
from torch import nn

STEPS = 16
CHECKPOINT = "checkpoint.pt"


def main():
    torch.set_num_threads(1)
    torch.manual_seed(111)
    x = torch.linspace(-2, 2, 40).unsqueeze(1)
    y = torch.sin(3 * x)
    model = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.2, max_iter=3, history_size=5)
    step = 0
    if os.path.exists(CHECKPOINT):
        checkpoint = torch.load(CHECKPOINT, weights_only=False)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        step = checkpoint["step"]

    while step < STEPS:
        generator = torch.Generator().manual_seed(step // 8)  # the same half of the points for eight steps
        chosen = torch.randperm(len(x), generator=generator)[:20]

        def closure(inputs=x[chosen], targets=y[chosen]):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            return loss

        loss = optimizer.step(closure)
        step += 1
        if step % 3 == 0 or step == STEPS:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, CHECKPOINT + ".tmp")
            os.replace(CHECKPOINT + ".tmp", CHECKPOINT)
            print(f"step {step}: {loss.item():.5f}")


if __name__ == "__main__":
    main()
