"""An iterable data set with state: it reads a stream of records through a shuffle buffer."""

import os
import random

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

CHECKPOINT = "checkpoint.pt"
STEPS, BATCH = 22, 6


class ShuffledStream(IterableDataset):
    """Records without end, mixed in a buffer by a generator of its own."""

    def __init__(self, buffer_size=16, seed=121):
        self.random = random.Random(seed)
        self.buffer_size = buffer_size
        self.buffer = []
        self.position = 0

    def read(self):
        record = self.position % 90
        self.position += 1
        return record

    def __iter__(self):
        while True:
            while len(self.buffer) < self.buffer_size:
                self.buffer.append(self.read())
            record = self.buffer.pop(self.random.randrange(len(self.buffer)))
            yield torch.tensor([record / 90, record % 7 / 7, record % 11 / 11]), torch.tensor([record % 5 / 5.0])

    def state_dict(self):
        return {"random": self.random.getstate(), "buffer": list(self.buffer), "position": self.position}

    def load_state_dict(self, state):
        self.random.setstate(state["random"])
        self.buffer = list(state["buffer"])
        self.position = state["position"]


def main():
    torch.set_num_threads(1)
    torch.manual_seed(122)
    stream = ShuffledStream()
    model = nn.Sequential(nn.Linear(3, 20), nn.ELU(), nn.Linear(20, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=1.0, end_factor=0.1, total_iters=STEPS)
    step = 0
    if os.path.exists(CHECKPOINT):
        checkpoint = torch.load(CHECKPOINT, weights_only=False)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        scheduler.load_state_dict(checkpoint["scheduler"])
        stream.load_state_dict(checkpoint["stream"])
        step = checkpoint["step"]

    if step < STEPS:
        for x, y in DataLoader(stream, batch_size=BATCH):
            loss = nn.functional.l1_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            step += 1
            if step % 5 == 0:
                state = {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "scheduler": scheduler.state_dict(),
                    "stream": stream.state_dict(),
                    "step": step,
                }
                torch.save(state, CHECKPOINT + ".tmp")
                os.replace(CHECKPOINT + ".tmp", CHECKPOINT)
            if step == STEPS:
                break

    torch.save(model.state_dict(), "model.pt")


if __name__ == "__main__":
    main()
