import functools

import numpy as np
import pytest
import torch
from noisy_data import Noisy

from samestep.data.loader import DataLoader
from samestep.data.randomness import sample_rng
from samestep.errors import WrongPlace


class Drawing(torch.utils.data.Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        assert sample_rng() is sample_rng()
        return torch.tensor([sample_rng().random(), sample_rng().random()], dtype=torch.float64)


def test_each_sample_has_a_generator_of_its_own():
    """Samples draw different numbers, the same in every process, and a second call goes on."""
    reference = torch.cat(list(DataLoader(Drawing(), batch_size=2, seed=0)))
    assert len(set(reference.flatten().tolist())) == 12
    assert torch.equal(torch.cat(list(DataLoader(Drawing(), batch_size=3, seed=0, num_workers=2))), reference)


def test_outside_a_sample_it_is_refused():
    """Outside of a fetch, before and after one, the call is an error that says where it belongs."""
    for _ in range(2):
        with pytest.raises(WrongPlace, match="no sample is being fetched"):
            sample_rng()
        list(DataLoader(Drawing(), seed=0))


def test_with_pytorchs_randomness_it_is_refused():
    """With randomness="torch" no sample has a generator of its own."""
    with pytest.raises(WrongPlace, match="no sample is being fetched"):
        list(DataLoader(Drawing(), randomness="torch"))


def merge(samples, rng):
    return torch.cat([torch.stack(samples).flatten(), torch.tensor([rng.random(), sample_rng().random()])])


@pytest.mark.parametrize("randomness", ["sample", "batch"])
def test_a_collate_function_draws_under_its_batch(randomness):
    """Generators in a partial and sample_rng inside collate_fn are keyed by the batch."""

    def build(workers):
        collate = functools.partial(merge, rng=np.random.default_rng(workers))
        options = {"collate_fn": collate, "num_workers": workers, "randomness": randomness}
        return DataLoader(Noisy(sample_rng=False), batch_size=4, seed=0, **options)

    reference = [batch.tolist() for batch in build(0)]
    assert [batch.tolist() for batch in build(2)] == reference
    assert len({batch[-1] for batch in reference} | {batch[-2] for batch in reference}) == 8
