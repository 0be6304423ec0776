"""Lowers the learning rate when the validation loss stops falling."""

import os

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

CHECKPOINT = "checkpoint.pt"
EPOCHS = 5


def evaluate(model, loader):
    model.eval()
    with torch.no_grad():
        total = sum(F.cross_entropy(model(x), y, reduction="sum").item() for x, y in loader)
    model.train()
    return total / len(loader.dataset)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(91)
    x = torch.randn(64, 1, 6, 6)
    y = (x.mean((1, 2, 3)) > 0).long()
    train_set, val_set = random_split(TensorDataset(x, y), [40, 24], generator=torch.Generator().manual_seed(92))
    order = torch.Generator().manual_seed(93)
    train_loader = DataLoader(train_set, batch_size=8, shuffle=True, generator=order)
    val_loader = DataLoader(val_set, batch_size=12)

    model = nn.Sequential(
        nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Dropout(0.3), nn.Linear(96, 2)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.3, patience=0, threshold=0.02)
    epoch = 0
    if os.path.exists(CHECKPOINT):
        checkpoint = torch.load(CHECKPOINT, weights_only=False)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        scheduler.load_state_dict(checkpoint["scheduler"])
        epoch = checkpoint["epoch"]
        order.set_state(checkpoint["order"])
        torch.set_rng_state(checkpoint["rng"])
        print(f"resumed behind epoch {epoch}")

    model.train()
    while epoch < EPOCHS:
        for inputs, labels in train_loader:
            loss = F.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        val_loss = evaluate(model, val_loader)
        scheduler.step(val_loss)
        epoch += 1
        print(f"epoch {epoch}: {val_loss:.4f}, learning rate {optimizer.param_groups[0]['lr']:.4f}")
        checkpoint = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(),
            "epoch": epoch,
            "order": order.get_state(),
            "rng": torch.get_rng_state(),
        }
        torch.save(checkpoint, CHECKPOINT + ".tmp")
        os.replace(CHECKPOINT + ".tmp", CHECKPOINT)

    torch.save(model.state_dict(), "model.pt")


if __name__ == "__main__":
    main()
