"""Fine-tunes: the body is frozen for two epochs, then all is trained, each part at a rate of its own."""

import os

import torch
from torch import nn

CHECKPOINT = "checkpoint.pt"
EPOCHS, FROZEN_EPOCHS = 4, 2


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 20), nn.ReLU())
        self.head = nn.Linear(20, 4)

    def forward(self, x):
        return self.head(self.body(x))


def main():
    torch.set_num_threads(1)
    torch.manual_seed(201)
    x = torch.randn(36, 10)
    y = x[:, :4].argmax(1)
    model = Classifier()
    optimizer = torch.optim.AdamW(
        [
            {"params": model.body.parameters(), "lr": 0.003},
            {"params": model.head.parameters(), "lr": 0.02},
        ]
    )
    first_epoch = 0
    if os.path.exists(CHECKPOINT):
        checkpoint = torch.load(CHECKPOINT, weights_only=True)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        first_epoch = checkpoint["epoch"]

    for epoch in range(first_epoch, EPOCHS):
        model.body.requires_grad_(epoch >= FROZEN_EPOCHS)
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch))
        for indices in order.split(6):
            loss = nn.functional.cross_entropy(model(x[indices]), y[indices])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch + 1}
        torch.save(state, CHECKPOINT + ".tmp")
        os.replace(CHECKPOINT + ".tmp", CHECKPOINT)

    torch.save(model.state_dict(), "model.pt")


if __name__ == "__main__":
    main()
