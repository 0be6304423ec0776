import multiprocessing
import random
import subprocess
import sys

import numpy as np
import pytest
import torch
from noisy_data import Noisy, equal, noisy_collate, read, seed_all
from torch.utils.data import StackDataset, Subset

from samestep.data.loader import DataLoader
from samestep.generators import global_state

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

EPOCHS, BATCHES = 3, 5


def build(workers=0, persistent=False, dataset=None, **options):
    settings = {"batch_size": 3, "shuffle": True, "seed": 1, "collate_fn": noisy_collate} | options
    return DataLoader(dataset or Noisy(), num_workers=workers, persistent_workers=persistent, **settings)


def states(**options):
    """Give the state behind every batch of every epoch, with the number of batches handed before."""
    loader, found, handed = build(**options), [], 0
    for _ in range(EPOCHS):
        found.append((loader.state_dict(), handed))
        for _batch in loader:
            handed += 1
            found.append((loader.state_dict(), handed))
    return found


@pytest.mark.parametrize("randomness", ["sample", "batch"])
@pytest.mark.parametrize(("workers", "persistent"), [(1, False), (2, False), (2, True), (3, True), (4, False)])
def test_workers_do_not_change_a_bit(workers, persistent, randomness):
    """Three epochs are the same bits at 0, 1, 2, 3 and 4 workers, persistent or not.

    Reported as pytorch PR#15170, torchtune#168.
    """
    reference = read(build(randomness=randomness), EPOCHS)
    assert len(reference) == EPOCHS * BATCHES
    assert equal(read(build(workers, persistent, randomness=randomness), EPOCHS), reference)


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (1, True), (2, True), (3, True)])
def test_resume_anywhere_with_the_same_bits(workers, persistent):
    """A resume at any position of three epochs gives the remainder to the last bit, through all later epochs."""
    reference = read(build(), EPOCHS)
    loader = build(workers, persistent)
    for state, handed in states():
        loader.load_state_dict(state)
        assert equal(read(loader, EPOCHS - state["epoch"]), reference[handed:])


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_resume_with_workers_that_end_with_the_epoch(workers):
    """Workers started anew for the remainder of an epoch give the same bits."""
    reference = read(build(), EPOCHS)
    for state, handed in states()[1::4]:
        loader = build(workers)
        loader.load_state_dict(state)
        assert equal(list(loader), reference[handed : (state["epoch"] + 1) * BATCHES])


def test_resume_in_a_fresh_process():
    """A process that knows only the saved state gives the same bits."""
    loader = build()
    batches = iter(loader)
    next(batches)
    script = (
        "import sys, torch; sys.path[:0] = sys.argv[1:]; from test_loader_exact import build;"
        f"loader = build(2); loader.load_state_dict({loader.state_dict()!r});"
        "sys.stdout.write(repr([batch.tolist() for batch in loader]))"
    )
    command = [sys.executable, "-c", script, *sys.path]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    assert shown == repr([batch.tolist() for batch in batches])


def test_no_number_is_drawn_twice():
    """No draw of any library repeats over samples, batches and two epochs (pytorch#5059, Lightning#20412)."""
    drawn = torch.cat(read(build(collate_fn=torch.stack), 2))[:, 1:].flatten().tolist()
    assert len(set(drawn)) == len(drawn)


def test_epochs_and_seeds_are_hashed_not_added():
    """Seed 1 in epoch 0 shares nothing with seed 0 in epoch 1."""
    earlier, later = build(seed=0), build(seed=1)
    list(earlier)
    assert not torch.equal(torch.cat(list(earlier)), torch.cat(list(later)))


def test_an_index_drawn_twice_has_two_augmentations():
    """Sampling with replacement gives each occurrence of an index random numbers of its own."""
    first, second = build(shuffle=None, sampler=[4, 4], batch_size=None, collate_fn=None)
    assert first[0] == second[0] == 4
    assert not torch.any(first[1:] == second[1:])


def test_the_batch_size_does_not_change_a_sample():
    """Samples are the same bits however they are batched, and without batching."""
    options = {"collate_fn": None}
    reference = torch.cat(list(build(batch_size=3, **options)))
    assert torch.equal(torch.cat(list(build(batch_size=5, **options))), reference)
    assert torch.equal(torch.stack(list(build(2, batch_size=None, **options))), reference)


@pytest.mark.parametrize("randomness", ["sample", "batch"])
@pytest.mark.parametrize("workers", [0, 2])
def test_the_process_generators_are_untouched(workers, randomness):
    """Iterating moves neither the process's generators nor those that the data set holds in this process."""
    seed_all(3)
    dataset = Noisy()
    before, own = global_state(), dataset.own["numpy"].bit_generator.state
    read(build(workers, dataset=dataset, randomness=randomness), 2)
    after = global_state()
    assert after["python"] == before["python"]
    assert np.array_equal(after["numpy"]["state"]["key"], before["numpy"]["state"]["key"])
    assert after["numpy"]["state"]["pos"] == before["numpy"]["state"]["pos"]
    assert torch.equal(after["torch"], before["torch"])
    assert dataset.own["numpy"].bit_generator.state == own


class Failing(Noisy):
    def __getitem__(self, index):
        if index == 7:
            raise KeyError("seven")
        return super().__getitem__(index)


def test_the_process_generators_are_put_back_after_an_exception():
    """A data set that raises leaves the process's generators where they were."""
    seed_all(3)
    before = global_state()
    with pytest.raises(KeyError, match="seven"):
        list(build(dataset=Failing(), shuffle=False))
    assert torch.equal(global_state()["torch"], before["torch"])
    assert random.getstate() == before["python"]


class LazyGenerator(torch.utils.data.Dataset):
    rng = None

    def __len__(self):
        return 8

    def __getitem__(self, index):
        if self.rng is None:
            self.rng = np.random.default_rng()
        return self.rng.random()


def test_a_generator_made_by_the_first_sample_is_keyed():
    """A data set that makes its generator when it is first used still gives the same bits in every process."""
    reference = read(build(dataset=LazyGenerator(), collate_fn=None), 1)
    assert equal(read(build(2, dataset=LazyGenerator(), collate_fn=None), 1), reference)
    assert len(set(torch.cat(reference).tolist())) == 8


class AtOnce(Noisy):
    def __getitems__(self, indices):
        noise = torch.rand(())
        return [torch.tensor([index, noise]) for index in indices]


def test_getitems_is_used_and_seeded_once_a_batch():
    """A data set that reads batches at once does so, under one seed a batch, alike at any number of workers."""
    reference = read(build(dataset=AtOnce()), 1)
    assert all(len(set(batch[:-1, 1].tolist())) == 1 for batch in reference)
    assert equal(read(build(2, dataset=AtOnce()), 1), reference)
    assert equal(read(build(2, dataset=Subset(AtOnce(), range(13))), 1), reference)


@pytest.mark.parametrize("wrap", [lambda data: Subset(data, range(13)), StackDataset])
def test_subsets_are_still_seeded_sample_by_sample(wrap):
    """Subset and StackDataset read single samples when nothing beneath them reads batches."""
    options = {"collate_fn": lambda samples: torch.stack([each[0] if len(each) == 1 else each for each in samples])}
    data = Noisy(rng=False)  # the seeds of generator objects depend on where they hang
    reference = torch.cat(list(build(dataset=data, **options)))
    assert torch.equal(torch.cat(list(build(dataset=wrap(data), batch_size=4, **options))), reference)


@pytest.mark.parametrize("method", sorted(set(multiprocessing.get_all_start_methods()) - {"fork"}))
def test_workers_may_be_spawned(method):
    """Workers that are started by spawn or forkserver give the same bits as forked ones."""
    dataset = Noisy()
    dataset.own["torch"] = None  # PyTorch 2.13 cannot send a generator of its own to a spawned process
    assert equal(read(build(1, dataset=dataset, multiprocessing_context=method), 1), read(build(dataset=dataset), 1))
