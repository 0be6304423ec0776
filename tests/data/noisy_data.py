"""Owns data sets whose samples show every random number that they were fetched with. Never asserts anything."""

import random

import numpy as np
import torch
from torch.utils.data import Dataset

import samestep


class Noisy(Dataset):
    """Each sample is its index and a draw of Python, NumPy, torch, and two generators that the data set owns."""

    def __init__(self, length=13, *, rng=True, sample_rng=True):
        self.length = length
        self.own = {"numpy": np.random.default_rng(0), "torch": torch.Generator().manual_seed(0)} if rng else {}
        self.sample_rng = sample_rng

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        draws = [index, random.random(), np.random.rand(), torch.rand(()).item()]
        if self.own:
            draws += [self.own["numpy"].random(), torch.rand((), generator=self.own["torch"]).item()]
        if self.sample_rng:
            draws.append(samestep.sample_rng().random())
        return torch.tensor(draws, dtype=torch.float64)


def noisy_collate(samples):
    """Stack samples and add a draw of the batch's own."""
    return torch.cat([torch.stack(samples), torch.rand(1, 1, dtype=torch.float64).expand(1, len(samples[0]))])


def equal(left, right):
    """Tell whether two lists of batches are equal to the last bit."""
    return len(left) == len(right) and all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def read(loader, epochs):
    """Read whole epochs into one list."""
    return [batch for _ in range(epochs) for batch in loader]


def seed_all(seed=0):
    """Seed the three libraries."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
