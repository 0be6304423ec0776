"""A hand-written EMA: a dict of shadow weights, and a counter for its warm-up."""

import os

import torch
from torch import nn
from torch.nn import functional as F

CHECKPOINT = "checkpoint.pt"
STEPS = 24


class Ema:
    def __init__(self, model, decay=0.95):
        self.decay = decay
        self.updates = 0
        self.shadow = {name: value.detach().clone() for name, value in model.named_parameters()}

    def update(self, model):
        self.updates += 1
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        for name, value in model.named_parameters():
            self.shadow[name].mul_(decay).add_(value.detach(), alpha=1 - decay)

    def state_dict(self):
        return {"updates": self.updates, "shadow": {name: value.clone() for name, value in self.shadow.items()}}

    def load_state_dict(self, state):
        self.updates = state["updates"]
        self.shadow = {name: value.clone() for name, value in state["shadow"].items()}


def train():
    torch.set_num_threads(1)
    torch.manual_seed(71)
    data_generator = torch.Generator().manual_seed(72)
    model = nn.Sequential(nn.Linear(4, 12), nn.SiLU(), nn.Linear(12, 4))
    optimizer = torch.optim.Adamax(model.parameters(), lr=0.02)
    ema = Ema(model)
    step = 0
    if os.path.exists(CHECKPOINT):
        checkpoint = torch.load(CHECKPOINT, weights_only=True)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        ema.load_state_dict(checkpoint["ema"])
        data_generator.set_state(checkpoint["data_generator"])
        step = checkpoint["step"]

    while step < STEPS:
        clean = torch.randn(8, 4, generator=data_generator)
        noisy = clean + 0.3 * torch.randn(8, 4, generator=data_generator)
        loss = F.smooth_l1_loss(model(noisy), clean)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ema.update(model)
        step += 1
        if step % 4 == 0:
            checkpoint = {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "ema": ema.state_dict(),
                "data_generator": data_generator.get_state(),
                "step": step,
            }
            torch.save(checkpoint, CHECKPOINT + ".tmp")
            os.replace(CHECKPOINT + ".tmp", CHECKPOINT)

    torch.save(ema.shadow, "ema.pt")


if __name__ == "__main__":
    train()
