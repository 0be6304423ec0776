"""Augments in two workers, each sample under a seed made of the epoch and its index."""

import os

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

CHECKPOINT = "checkpoint.pt"
EPOCHS, BATCH, SAVE_EVERY, SEED = 3, 5, 3, 131


class Augmented(Dataset):
    def __init__(self, n=40):
        self.images = torch.randn(n, 1, 6, 6, generator=torch.Generator().manual_seed(SEED))
        self.labels = (self.images[:, 0, 0, 0] > 0).long()
        self.epoch = 0

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed((SEED * 1000 + self.epoch) * 1000 + index)
        shift = int(torch.randint(0, 3, (), generator=generator))
        noise = 0.1 * torch.randn(1, 6, 6, generator=generator)
        return self.images[index].roll(shift, -1) + noise, self.labels[index]


class Rest:
    """A batch sampler: the batches of one epoch that are not done yet."""

    def __init__(self, n, epoch, done):
        order = torch.randperm(n, generator=torch.Generator().manual_seed(SEED + epoch))
        self.batches = [each.tolist() for each in order.split(BATCH)][done:]

    def __iter__(self):
        return iter(self.batches)

    def __len__(self):
        return len(self.batches)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    data = Augmented()
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    epoch = done = 0
    if os.path.exists(CHECKPOINT):
        checkpoint = torch.load(CHECKPOINT, weights_only=True)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        epoch, done = checkpoint["epoch"], checkpoint["done"]

    while epoch < EPOCHS:
        data.epoch = epoch
        loader = DataLoader(data, batch_sampler=Rest(len(data), epoch, done), num_workers=2)
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            done += 1
            if done % SAVE_EVERY == 0:
                checkpoint = {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "epoch": epoch,
                    "done": done,
                }
                torch.save(checkpoint, CHECKPOINT + ".tmp")
                os.replace(CHECKPOINT + ".tmp", CHECKPOINT)
        epoch, done = epoch + 1, 0

    torch.save(model.state_dict(), "model.pt")


if __name__ == "__main__":
    main()
