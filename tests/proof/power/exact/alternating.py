"""Writes two checkpoints in turn, in place: if one is damaged the other one is taken."""

import os

import torch
from torch import nn

SLOTS = ("checkpoints/a.pt", "checkpoints/b.pt")
EPOCHS = 4


def load_slot(path):
    try:
        return torch.load(path, weights_only=True)
    except FileNotFoundError:
        return None
    except Exception as error:  # a save that was cut short is told in many ways
        print(f"{path} is damaged ({type(error).__name__})")
        return None


def load_newest():
    found = [state for state in map(load_slot, SLOTS) if state is not None]
    return max(found, key=lambda state: state["step"], default=None)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(141)
    os.makedirs("checkpoints", exist_ok=True)
    x = torch.randn(42, 9)
    y = x.cumsum(1)[:, -1:].tanh()
    model = nn.Sequential(nn.Linear(9, 18), nn.ReLU(), nn.Dropout(0.1), nn.Linear(18, 1))
    optimizer = torch.optim.RAdam(model.parameters(), lr=0.02)
    step, saves = 0, 0
    newest = load_newest()
    if newest is not None:
        model.load_state_dict(newest["model"])
        optimizer.load_state_dict(newest["optimizer"])
        step, saves = newest["step"], newest["saves"]
        torch.set_rng_state(newest["rng"])

    batches_per_epoch = 6
    while step < EPOCHS * batches_per_epoch:
        epoch, batch = divmod(step, batches_per_epoch)
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch)).split(7)
        loss = nn.functional.mse_loss(model(x[order[batch]]), y[order[batch]])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % 4 == 0:
            saves += 1
            state = {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "step": step,
                "saves": saves,
                "rng": torch.get_rng_state(),
            }
            torch.save(state, SLOTS[saves % 2])

    torch.save(model.state_dict(), "model.pt")


if __name__ == "__main__":
    main()
