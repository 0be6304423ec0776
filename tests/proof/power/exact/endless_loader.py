"""Counts steps, not epochs: a loader that never ends, and one global generator for the order and for dropout."""

import os

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CHECKPOINT = "checkpoint.pt"
MAX_STEPS, SAVE_EVERY, BATCH = 26, 4, 8


class Endless:
    """Batches without end; its state lets it go on in the middle of an epoch."""

    def __init__(self, loader):
        self.loader = loader
        self.done = 0
        self.epoch_rng = None

    def state_dict(self):
        return {"done": self.done, "epoch_rng": self.epoch_rng}

    def batches(self, state=None):
        if state is not None:
            torch.set_rng_state(state["epoch_rng"])
        while True:
            self.epoch_rng = torch.get_rng_state()
            iterator = iter(self.loader)
            skip = state["done"] if state is not None else 0
            for _ in range(skip):
                next(iterator)
            if state is not None:
                torch.set_rng_state(state["rng"])
            self.done, state = skip, None
            for batch in iterator:
                self.done += 1
                yield batch


def main():
    torch.set_num_threads(1)
    torch.manual_seed(151)
    dataset = TensorDataset(torch.randn(50, 7), torch.randint(0, 3, (50,)))
    loader = DataLoader(dataset, batch_size=BATCH, shuffle=True)
    model = nn.Sequential(nn.Linear(7, 28), nn.PReLU(), nn.Dropout(0.25), nn.Linear(28, 3))
    optimizer = torch.optim.Adadelta(model.parameters(), lr=0.5)
    endless = Endless(loader)
    step = 0
    position = None
    if os.path.exists(CHECKPOINT):
        checkpoint = torch.load(CHECKPOINT, weights_only=True)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        step = checkpoint["step"]
        position = {**checkpoint["loader"], "rng": checkpoint["rng"]}

    batches = endless.batches(position)
    while step < MAX_STEPS:
        x, y = next(batches)
        loss = F.cross_entropy(model(x), y, label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % SAVE_EVERY == 0:
            checkpoint = {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "step": step,
                "loader": endless.state_dict(),
                "rng": torch.get_rng_state(),
            }
            torch.save(checkpoint, CHECKPOINT + ".tmp")
            os.replace(CHECKPOINT + ".tmp", CHECKPOINT)

    torch.save(model.state_dict(), "model.pt")


if __name__ == "__main__":
    main()
