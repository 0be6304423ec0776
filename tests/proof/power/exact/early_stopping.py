"""Stops when the validation has not become better for some epochs, and keeps the best weights in a file."""

import json
import os

import torch
from torch import nn

LAST, BEST = "checkpoints/last.pt", "best.pt"
MAX_EPOCHS, PATIENCE = 12, 3


def atomic_save(state, path):
    torch.save(state, path + ".tmp")
    os.replace(path + ".tmp", path)


class EarlyStopping:
    def __init__(self, patience):
        self.patience = patience
        self.best = float("inf")
        self.bad_epochs = 0

    def update(self, value):
        """Tell whether this value is the best yet."""
        if value < self.best:
            self.best, self.bad_epochs = value, 0
            return True
        self.bad_epochs += 1
        return False

    @property
    def stopped(self):
        return self.bad_epochs >= self.patience


def main():
    torch.set_num_threads(1)
    torch.manual_seed(101)
    os.makedirs("checkpoints", exist_ok=True)
    x, noise = torch.randn(36, 10), torch.randn(36, 1)
    y = x[:, :1] + 0.3 * noise
    train_x, train_y, val_x, val_y = x[:24], y[:24], x[24:], y[24:]

    model = nn.Sequential(nn.Linear(10, 40), nn.ReLU(), nn.Linear(40, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    stopping = EarlyStopping(PATIENCE)
    epoch = 0
    if os.path.exists(LAST):
        checkpoint = torch.load(LAST, weights_only=True)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        epoch = checkpoint["epoch"]
        stopping.best = checkpoint["best"]
        stopping.bad_epochs = checkpoint["bad_epochs"]

    while epoch < MAX_EPOCHS and not stopping.stopped:
        order = torch.randperm(24, generator=torch.Generator().manual_seed(1000 + epoch))
        for indices in order.split(8):
            loss = (model(train_x[indices]) - train_y[indices]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        epoch += 1
        with torch.no_grad():
            score = (model(val_x) - val_y).square().mean().item()
        if stopping.update(score):
            atomic_save({"model": model.state_dict(), "epoch": epoch, "score": score}, BEST)
        print(f"epoch {epoch}: {score:.4f} (best {stopping.best:.4f})")
        checkpoint = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "epoch": epoch,
            "best": stopping.best,
            "bad_epochs": stopping.bad_epochs,
        }
        atomic_save(checkpoint, LAST)

    with open("result.json", "w") as file:
        json.dump({"epochs": epoch, "best": stopping.best}, file)


if __name__ == "__main__":
    main()
