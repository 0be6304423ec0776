"""A data set that augments from a NumPy generator of its own, which is in the checkpoint."""

import os

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

CHECKPOINT = "checkpoint.pt"
EPOCHS = 4


class Signals(Dataset):
    def __init__(self, n=45, seed=161):
        fixed = np.random.default_rng(seed)
        self.signals = fixed.standard_normal((n, 20)).astype(np.float32)
        self.targets = self.signals[:, ::4].sum(1, keepdims=True)
        self.rng = np.random.default_rng(seed + 1)

    def __len__(self):
        return len(self.signals)

    def __getitem__(self, index):
        gain = self.rng.uniform(0.8, 1.2)
        jitter = self.rng.normal(0, 0.05, 20)
        return (gain * self.signals[index] + jitter).astype(np.float32), self.targets[index]


def main():
    torch.set_num_threads(1)
    torch.manual_seed(163)
    dataset = Signals()
    order = torch.Generator().manual_seed(164)
    loader = DataLoader(dataset, batch_size=8, shuffle=True, generator=order)
    model = nn.Sequential(nn.Linear(20, 16), nn.Mish(), nn.LayerNorm(16), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.8, weight_decay=1e-3)

    start = 0
    if os.path.exists(CHECKPOINT):
        state = torch.load(CHECKPOINT, weights_only=False)
        start = state["epoch"]
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        order.set_state(state["order"])
        dataset.rng.bit_generator.state = state["dataset_rng"]

    for epoch in range(start, EPOCHS):
        for signals, targets in loader:
            loss = nn.functional.huber_loss(model(signals), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        state = {
            "epoch": epoch + 1,
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "order": order.get_state(),
            "dataset_rng": dataset.rng.bit_generator.state,
        }
        torch.save(state, CHECKPOINT + ".tmp")
        os.replace(CHECKPOINT + ".tmp", CHECKPOINT)
        print(f"epoch {epoch}: {loss.item():.4f}")

    torch.save(model.state_dict(), "model.pt")


if __name__ == "__main__":
    main()
