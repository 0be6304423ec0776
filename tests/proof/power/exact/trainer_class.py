"""A Trainer class: a GRU learns the characters of a text; numbered checkpoints, of which the last three are kept."""

import os
import re
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

TEXT = "she sells sea shells by the sea shore; the shells she sells are sea shells, i am sure. " * 3


class Characters(Dataset):
    def __init__(self, text, length=12):
        self.alphabet = sorted(set(text))
        self.codes = torch.tensor([self.alphabet.index(each) for each in text])
        self.length = length

    def __len__(self):
        return (len(self.codes) - 1) // self.length

    def __getitem__(self, index):
        begin = index * self.length
        return self.codes[begin : begin + self.length], self.codes[begin + 1 : begin + self.length + 1]


class CharGRU(nn.Module):
    def __init__(self, characters, width=16):
        super().__init__()
        self.embedding = nn.Embedding(characters, width)
        self.gru = nn.GRU(width, width, num_layers=2, dropout=0.2, batch_first=True)
        self.head = nn.Linear(width, characters)

    def forward(self, codes):
        return self.head(self.gru(self.embedding(codes))[0])


class Trainer:
    def __init__(self, folder="checkpoints", epochs=4, save_every=3, keep=3):
        torch.manual_seed(21)
        self.folder = Path(folder)
        self.folder.mkdir(exist_ok=True)
        self.epochs, self.save_every, self.keep = epochs, save_every, keep
        self.data = Characters(TEXT)
        self.model = CharGRU(len(self.data.alphabet))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.steps_per_epoch = -(-len(self.data) // 4)
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(
            self.optimizer, max_lr=0.02, total_steps=self.epochs * self.steps_per_epoch
        )
        self.temperature = 2.0
        self.step = 0
        self.resume()
        self.prune()  # a kill may have come between a save and its pruning

    def checkpoints(self):
        found = [each for each in self.folder.glob("step-*.pt") if re.fullmatch(r"step-\d+", each.stem)]
        return sorted(found, key=lambda path: int(path.stem.split("-")[1]))

    def resume(self):
        found = self.checkpoints()
        if not found:
            return
        state = torch.load(found[-1], weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        self.temperature = state["temperature"]
        self.step = state["step"]
        torch.set_rng_state(state["rng"])

    def save(self):
        path = self.folder / f"step-{self.step}.pt"
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "temperature": self.temperature,
            "step": self.step,
            "rng": torch.get_rng_state(),
        }
        torch.save(state, path.with_suffix(".tmp"))
        path.with_suffix(".tmp").replace(path)
        self.prune()

    def prune(self):
        steps = sorted(int(each.stem.split("-")[1]) for each in self.checkpoints())
        for old in steps[: -self.keep]:
            os.remove(self.folder / f"step-{old}.pt")

    def batches(self):
        """Go on where the step stands: each epoch has a generator of its own."""
        total = self.epochs * self.steps_per_epoch
        while self.step < total:
            epoch, done = divmod(self.step, self.steps_per_epoch)
            generator = torch.Generator().manual_seed(1000 + epoch)
            for number, batch in enumerate(DataLoader(self.data, 4, shuffle=True, generator=generator)):
                if number >= done and self.step < total:
                    yield batch

    def train(self):
        self.model.train()
        for codes, following in self.batches():
            logits = self.model(codes) / self.temperature
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), following.flatten())
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.scheduler.step()
            self.temperature = max(1.0, self.temperature * 0.97)
            self.step += 1
            if self.step % self.save_every == 0:
                self.save()
        torch.save({"model": self.model.state_dict(), "step": self.step}, "final.pt")


if __name__ == "__main__":
    torch.set_num_threads(1)
    Trainer().train()
