"""Keeps an average of the weights with AveragedModel, which is what is published in the end."""

import os

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

CHECKPOINT = "checkpoints/latest.pt"


def batches(x, y, epoch, size=8):
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch))
    for indices in order.split(size):
        yield x[indices], y[indices]


def main():
    torch.set_num_threads(1)
    torch.manual_seed(61)
    os.makedirs("checkpoints", exist_ok=True)
    x = torch.randn(48, 1, 16, generator=torch.Generator().manual_seed(62))
    y = x.mean((1, 2)).sign()
    model = nn.Sequential(nn.Conv1d(1, 4, 3), nn.BatchNorm1d(4), nn.GELU(), nn.Flatten(), nn.Linear(56, 1))
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    optimizer = torch.optim.NAdam(model.parameters(), lr=0.01)

    start = 0
    try:
        saved = torch.load(CHECKPOINT, weights_only=True)
    except FileNotFoundError:
        print("starting anew")
    else:
        start = saved["epoch"]
        model.load_state_dict(saved["model"])
        average.load_state_dict(saved["average"])
        optimizer.load_state_dict(saved["optimizer"])

    for epoch in range(start, 4):
        model.train()
        for inputs, targets in batches(x, y, epoch):
            loss = (model(inputs).squeeze(1) - targets).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            average.update_parameters(model)
        state = {
            "epoch": epoch + 1,
            "model": model.state_dict(),
            "average": average.state_dict(),
            "optimizer": optimizer.state_dict(),
        }
        torch.save(state, CHECKPOINT + ".tmp")
        os.replace(CHECKPOINT + ".tmp", CHECKPOINT)

    torch.save(average.module.state_dict(), "average.pt")


if __name__ == "__main__":
    main()
