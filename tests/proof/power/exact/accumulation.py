"""Accumulates the gradients of three micro-batches; windows go over epochs' edges, saves come behind them."""

import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

WINDOW, EPOCHS, SAVE_EVERY_MICRO = 3, 4, 6
CHECKPOINT = "checkpoint.pt"


def build():
    torch.manual_seed(51)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Dropout(0.15), nn.Linear(16, 1))
    return model, torch.optim.Adagrad(model.parameters(), lr=0.05)


def loader_of(epoch):
    generator = torch.Generator().manual_seed(52)
    x = torch.randn(64, 6, generator=generator)
    order = torch.Generator().manual_seed(100 + epoch)
    return DataLoader(TensorDataset(x, x.prod(1, keepdim=True)), 4, shuffle=True, generator=order)


def main():
    torch.set_num_threads(1)
    model, optimizer = build()
    micro, start_epoch, skip = 0, 0, 0
    if os.path.isfile(CHECKPOINT):
        checkpoint = torch.load(CHECKPOINT, weights_only=True)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        micro, start_epoch, skip = checkpoint["micro"], checkpoint["epoch"], checkpoint["in_epoch"]
        torch.set_rng_state(checkpoint["rng"])

    optimizer.zero_grad()
    for epoch in range(start_epoch, EPOCHS):
        for number, (x, y) in enumerate(loader_of(epoch)):
            if number < skip:
                continue
            loss = nn.functional.mse_loss(model(x), y) / WINDOW
            loss.backward()
            micro += 1
            if micro % WINDOW == 0:
                optimizer.step()
                optimizer.zero_grad()
            if micro % SAVE_EVERY_MICRO == 0:
                checkpoint = {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "micro": micro,
                    "epoch": epoch,
                    "in_epoch": number + 1,
                    "rng": torch.get_rng_state(),
                }
                torch.save(checkpoint, CHECKPOINT + "~")
                os.replace(CHECKPOINT + "~", CHECKPOINT)
        skip = 0
    torch.save(model.state_dict(), "weights.pt")


if __name__ == "__main__":
    main()
