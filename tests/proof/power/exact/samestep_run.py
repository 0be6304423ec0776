"""The same with samestep: the run saves and restores, the loader keeps its position and its augmentation."""

import torch
from torch import nn
from torch.nn import functional as F

import samestep


class Noisy(torch.utils.data.Dataset):
    def __init__(self, n=48):
        self.x = torch.randn(n, 8, generator=torch.Generator().manual_seed(211))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index] + 0.1 * torch.randn(8), (self.x[index, 0] > 0).long()


def main():
    torch.set_num_threads(1)
    run = samestep.Run("runs/noisy", seed=212, save_every="4 steps")
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=18)
    loader = samestep.DataLoader(Noisy(), batch_size=8, shuffle=True)
    run.track(model=model, optimizer=optimizer, scheduler=scheduler, loader=loader)
    run.state.total = 0.0

    for epoch in run.epochs(3):
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            run.state.total += loss.item()
            run.step(loss=loss)
        print(f"epoch {epoch}: {run.state.total:.4f}")

    torch.save(model.state_dict(), "model.pt")


if __name__ == "__main__":
    main()
