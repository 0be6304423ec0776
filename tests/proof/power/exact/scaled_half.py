"""Trains in half precision with a GradScaler, whose scale grows and is cut back when gradients overflow."""

import os

import torch
from torch import nn

CHECKPOINT = "checkpoint.pt"
EPOCHS = 4


def main():
    torch.set_num_threads(1)
    torch.manual_seed(81)
    x = torch.randn(48, 8)
    y = 3 * x[:, :1] - x[:, 1:2]
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, nesterov=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**18, growth_interval=4)
    epoch, batch = 0, 0
    if os.path.exists(CHECKPOINT):
        checkpoint = torch.load(CHECKPOINT, weights_only=True)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        scaler.load_state_dict(checkpoint["scaler"])
        epoch, batch = checkpoint["epoch"], checkpoint["batch"]

    while epoch < EPOCHS:
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch)).split(6)
        while batch < len(order):
            inputs, targets = x[order[batch]], y[order[batch]]
            with torch.autocast("cpu", dtype=torch.float16):
                loss = (model(inputs).float() - targets).square().mean()
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            scaler.step(optimizer)
            scaler.update()
            batch += 1
            if batch % 4 == 0:
                checkpoint = {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "scaler": scaler.state_dict(),
                    "epoch": epoch,
                    "batch": batch,
                }
                torch.save(checkpoint, CHECKPOINT + ".tmp")
                os.replace(CHECKPOINT + ".tmp", CHECKPOINT)
        print(f"epoch {epoch}: scale {scaler.get_scale():.0f}")
        epoch, batch = epoch + 1, 0

    torch.save(model.state_dict(), "model.pt")


if __name__ == "__main__":
    main()
