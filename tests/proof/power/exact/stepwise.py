"""Saves each few steps, in the middle of an epoch too: the loader shuffles with a generator of its own."""

import os
import random
from itertools import islice

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS, BATCH_SIZE, SAVE_EVERY = 4, 8, 4
CHECKPOINT = "checkpoint.pt"


class Network(nn.Module):
    """Noise from NumPy, stochastic depth from Python, dropout from torch."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(12, 24)
        self.norm = nn.LayerNorm(24)
        self.residual = nn.Linear(24, 24)
        self.dropout = nn.Dropout(0.2)
        self.head = nn.Linear(24, 3)

    def forward(self, x):
        if self.training:
            x = x + 0.05 * torch.from_numpy(np.random.standard_normal(x.shape)).float()
        hidden = F.relu(self.norm(self.first(x)))
        if not self.training or random.random() < 0.8:
            hidden = hidden + F.relu(self.residual(hidden))
        return self.head(self.dropout(hidden))


def seed_everything(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def make_data(n=52):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(n, 12, generator=generator)
    return TensorDataset(x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long())


def main():
    torch.set_num_threads(1)
    seed_everything(11)
    order = torch.Generator().manual_seed(12)
    loader = DataLoader(make_data(), BATCH_SIZE, shuffle=True, generator=order)
    model = Network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=28)

    step, first_epoch, skip = 0, 0, 0
    if os.path.exists(CHECKPOINT):
        checkpoint = torch.load(CHECKPOINT, weights_only=False)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        scheduler.load_state_dict(checkpoint["scheduler"])
        step, first_epoch = checkpoint["step"], checkpoint["epoch"]
        skip = checkpoint["batches_done"]
        order.set_state(checkpoint["order"])
        torch.set_rng_state(checkpoint["torch_rng"])
        np.random.set_state(checkpoint["numpy_rng"])
        random.setstate(checkpoint["python_rng"])
        print("resuming at step", step)

    model.train()
    for epoch in range(first_epoch, EPOCHS):
        order_at_start = order.get_state()
        batches_done = skip
        for x, y in islice(loader, skip, None):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            scheduler.step()
            step += 1
            batches_done += 1
            if step % SAVE_EVERY == 0:
                state = {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "scheduler": scheduler.state_dict(),
                    "step": step,
                    "epoch": epoch,
                    "batches_done": batches_done,
                    "order": order_at_start,
                    "torch_rng": torch.get_rng_state(),
                    "numpy_rng": np.random.get_state(),
                    "python_rng": random.getstate(),
                }
                torch.save(state, "checkpoint.tmp")
                os.replace("checkpoint.tmp", CHECKPOINT)
                print(f"step {step}: loss {loss.item():.4f}")
        skip = 0

    torch.save(model.state_dict(), "model.pt")


if __name__ == "__main__":
    main()
