"""The order of each epoch is made from its number, as DistributedSampler does; nothing else is drawn."""

import json
import os

import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

CHECKPOINT = "checkpoints/checkpoint.pt"
NUM_EPOCHS = 4


def build_model():
    return nn.Sequential(nn.Linear(6, 12), nn.Softplus(), nn.Linear(12, 12), nn.Softplus(), nn.Linear(12, 1))


def train_one_epoch(model, loader, optimizer, sampler, epoch):
    sampler.set_epoch(epoch)
    losses = []
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return sum(losses) / len(losses)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(181)
    os.makedirs("checkpoints", exist_ok=True)
    x = torch.rand(36, 6)
    dataset = TensorDataset(x, x.square().sum(1, keepdim=True))
    sampler = DistributedSampler(dataset, num_replicas=1, rank=0, seed=7)
    loader = DataLoader(dataset, batch_size=6, sampler=sampler)
    model = build_model()
    optimizer = torch.optim.ASGD(model.parameters(), lr=0.05, t0=10)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[2], gamma=0.5)
    history = []
    if os.path.isfile(CHECKPOINT):
        checkpoint = torch.load(CHECKPOINT, map_location="cpu", weights_only=True)
        model.load_state_dict(checkpoint["state_dict"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        scheduler.load_state_dict(checkpoint["scheduler"])
        history = checkpoint["history"]

    for epoch in range(len(history), NUM_EPOCHS):
        history.append(train_one_epoch(model, loader, optimizer, sampler, epoch))
        scheduler.step()
        checkpoint = {
            "state_dict": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(),
            "history": history,
        }
        torch.save(checkpoint, CHECKPOINT + ".tmp")
        os.replace(CHECKPOINT + ".tmp", CHECKPOINT)

    with open("history.json", "w") as file:
        json.dump(history, file)


if __name__ == "__main__":
    main()
