"""Two students of one shape learn from each other, each with an optimizer of its own."""

import os

import torch
import torch.nn.functional as F
from torch import nn

CHECKPOINT = "checkpoint.pt"
STEPS, SAVE_EVERY = 12, 3


def student():
    return nn.Sequential(nn.Linear(5, 14), nn.Hardswish(), nn.Linear(14, 3))


def mutual_loss(logits, other_logits, labels):
    other = F.softmax(other_logits.detach(), dim=1)
    return F.cross_entropy(logits, labels) + F.kl_div(F.log_softmax(logits, dim=1), other, reduction="batchmean")


def main():
    torch.set_num_threads(1)
    torch.manual_seed(191)
    x = torch.randn(40, 5)
    labels = x[:, :3].argmax(1)
    students = nn.ModuleDict({"ann": student(), "ben": student()})
    optimizers = {
        "ann": torch.optim.Adam(students["ann"].parameters(), lr=0.02),
        "ben": torch.optim.Adam(students["ben"].parameters(), lr=0.02),
    }
    start = 0
    if os.path.exists(CHECKPOINT):
        checkpoint = torch.load(CHECKPOINT, weights_only=True)
        students.load_state_dict(checkpoint["students"])
        optimizers["ann"].load_state_dict(checkpoint["ann"])
        optimizers["ben"].load_state_dict(checkpoint["ben"])
        start = checkpoint["step"]

    for step in range(start, STEPS):
        chosen = torch.randperm(len(x), generator=torch.Generator().manual_seed(step))[:8]
        inputs, targets = x[chosen], labels[chosen]
        logits = {name: network(inputs) for name, network in students.items()}
        for name, other in (("ann", "ben"), ("ben", "ann")):
            loss = mutual_loss(logits[name], logits[other], targets)
            optimizers[name].zero_grad()
            loss.backward()
            optimizers[name].step()
        if (step + 1) % SAVE_EVERY == 0:
            state = {
                "students": students.state_dict(),
                "ann": optimizers["ann"].state_dict(),
                "ben": optimizers["ben"].state_dict(),
                "step": step + 1,
            }
            torch.save(state, CHECKPOINT + ".tmp")
            os.replace(CHECKPOINT + ".tmp", CHECKPOINT)

    torch.save(students.state_dict(), "students.pt")


if __name__ == "__main__":
    main()
