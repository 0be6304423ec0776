"""Classifies small images: the recipe of the tutorials, with all that a new start needs in the checkpoint."""

import os
import random

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset

EPOCHS = 4
CHECKPOINT = "checkpoint.pt"


class Blobs(Dataset):
    def __init__(self, n=44):
        generator = torch.Generator().manual_seed(5)
        self.labels = torch.randint(0, 2, (n,), generator=generator)
        self.images = torch.randn(n, 1, 8, 8, generator=generator) + self.labels.view(-1, 1, 1, 1)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = self.images[index]
        if random.random() < 0.5:
            image = image.flip(-1)
        return image + 0.05 * torch.from_numpy(np.random.randn(1, 8, 8)).float(), self.labels[index]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 3)
        self.bn1 = nn.BatchNorm2d(4)
        self.conv2 = nn.Conv2d(4, 8, 3)
        self.fc = nn.Linear(32, 2)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc(F.dropout(x.flatten(1), 0.25, self.training))


def save_checkpoint(state):
    torch.save(state, CHECKPOINT + ".tmp")
    os.replace(CHECKPOINT + ".tmp", CHECKPOINT)


def main():
    torch.set_num_threads(1)
    random.seed(3)
    np.random.seed(3)
    torch.manual_seed(3)

    loader = DataLoader(Blobs(), batch_size=8, shuffle=True)
    model = Net()
    optimizer = optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.7)

    start_epoch = 0
    rng = None
    if os.path.exists(CHECKPOINT):
        checkpoint = torch.load(CHECKPOINT, weights_only=False)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        scheduler.load_state_dict(checkpoint["scheduler"])
        start_epoch = checkpoint["epoch"]
        rng = checkpoint["rng"]
        print(f"resumed at epoch {start_epoch}")

    if rng is not None:
        torch.set_rng_state(rng["torch"])
        np.random.set_state(rng["numpy"])
        random.setstate(rng["python"])

    for epoch in range(start_epoch, EPOCHS):
        model.train()
        total = 0.0
        for images, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            total += loss.item()
        scheduler.step()
        print(f"epoch {epoch}: loss {total / len(loader):.4f}")

        rng = {"torch": torch.get_rng_state(), "numpy": np.random.get_state(), "python": random.getstate()}
        save_checkpoint(
            {
                "epoch": epoch + 1,
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "scheduler": scheduler.state_dict(),
                "rng": rng,
            }
        )

    torch.save(model.state_dict(), "model.pt")


if __name__ == "__main__":
    main()
