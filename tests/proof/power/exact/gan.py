"""A GAN: two networks, two optimizers, one checkpoint behind each epoch."""

import os

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS, LATENT = 3, 4
PATH = "checkpoint.pt"

torch.set_num_threads(1)
torch.manual_seed(41)
np.random.seed(41)

angles = np.random.uniform(0, 2 * np.pi, 40)  # the data are made once; NumPy's generator is not used again
real_points = torch.tensor(np.stack([np.cos(angles), np.sin(angles)], 1), dtype=torch.float32)
loader = DataLoader(TensorDataset(real_points), batch_size=10, shuffle=True)

generator = nn.Sequential(nn.Linear(LATENT, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
discriminator = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Dropout(0.1), nn.Linear(16, 1))
optimizer_g = torch.optim.Adam(generator.parameters(), lr=0.002, betas=(0.5, 0.999))
optimizer_d = torch.optim.Adam(discriminator.parameters(), lr=0.004, betas=(0.5, 0.999))
criterion = nn.BCEWithLogitsLoss()

first_epoch = 0
if os.path.exists(PATH):
    saved = torch.load(PATH, weights_only=False)
    generator.load_state_dict(saved["generator"])
    discriminator.load_state_dict(saved["discriminator"])
    optimizer_g.load_state_dict(saved["optimizer_g"])
    optimizer_d.load_state_dict(saved["optimizer_d"])
    first_epoch = saved["next_epoch"]
    torch.set_rng_state(saved["torch_rng"])
    np.random.set_state(saved["numpy_rng"])

for epoch in range(first_epoch, EPOCHS):
    for (real,) in loader:
        ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)

        optimizer_d.zero_grad()
        fake = generator(torch.randn(len(real), LATENT))
        loss_d = criterion(discriminator(real), ones) + criterion(discriminator(fake.detach()), zeros)
        loss_d.backward()
        optimizer_d.step()

        optimizer_g.zero_grad()
        loss_g = criterion(discriminator(fake), ones)
        loss_g.backward()
        optimizer_g.step()
    print(f"epoch {epoch}: discriminator {loss_d.item():.4f}, generator {loss_g.item():.4f}")
    torch.save(
        {
            "generator": generator.state_dict(),
            "discriminator": discriminator.state_dict(),
            "optimizer_g": optimizer_g.state_dict(),
            "optimizer_d": optimizer_d.state_dict(),
            "next_epoch": epoch + 1,
            "torch_rng": torch.get_rng_state(),
            "numpy_rng": np.random.get_state(),
        },
        PATH + ".new",
    )
    os.replace(PATH + ".new", PATH)

torch.save(generator.state_dict(), "generator.pt")
