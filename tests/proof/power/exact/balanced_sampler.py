"""A batch sampler that balances two classes with a generator of its own, and can be put back anywhere in an epoch."""

import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CHECKPOINT = "checkpoint.pt"
EPOCHS, SAVE_EVERY = 3, 3


class BalancedBatches:
    def __init__(self, labels, size, batches, seed):
        self.classes = [torch.nonzero(labels == label).flatten() for label in (0, 1)]
        self.half, self.batches = size // 2, batches
        self.generator = torch.Generator().manual_seed(seed)
        self.given = 0

    def __len__(self):
        return self.batches

    def __iter__(self):
        while self.given < self.batches:
            chosen = [
                members[torch.randint(0, len(members), (self.half,), generator=self.generator)]
                for members in self.classes
            ]
            self.given += 1
            yield torch.cat(chosen).tolist()
        self.given = 0

    def state_dict(self):
        return {"generator": self.generator.get_state(), "given": self.given}

    def load_state_dict(self, state):
        self.generator.set_state(state["generator"])
        self.given = state["given"]


def main():
    torch.set_num_threads(1)
    torch.manual_seed(171)
    x = torch.randn(60, 8)
    labels = (x[:, 0] + x[:, 1] > 0.8).long()
    sampler = BalancedBatches(labels, size=6, batches=8, seed=172)
    loader = DataLoader(TensorDataset(x, labels), batch_sampler=sampler, generator=torch.Generator())
    model = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Dropout(0.1), nn.Linear(24, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, amsgrad=True)
    epoch, step = 0, 0
    if os.path.exists(CHECKPOINT):
        checkpoint = torch.load(CHECKPOINT, weights_only=True)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        sampler.load_state_dict(checkpoint["sampler"])
        epoch, step = checkpoint["epoch"], checkpoint["step"]
        torch.set_rng_state(checkpoint["rng"])

    while epoch < EPOCHS:
        for inputs, targets in loader:
            loss = nn.functional.cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % SAVE_EVERY == 0:
                checkpoint = {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "sampler": sampler.state_dict(),
                    "epoch": epoch,
                    "step": step,
                    "rng": torch.get_rng_state(),
                }
                torch.save(checkpoint, CHECKPOINT + ".tmp")
                os.replace(CHECKPOINT + ".tmp", CHECKPOINT)
        epoch += 1

    torch.save(model.state_dict(), "model.pt")


if __name__ == "__main__":
    main()
