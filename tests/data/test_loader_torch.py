import itertools
import random

import numpy as np
import pytest
import torch
from noisy_data import Noisy, equal, read, seed_all
from torch.utils.data import RandomSampler, get_worker_info

from samestep.data.loader import DataLoader
from samestep.errors import StateMismatch
from samestep.generators import global_state, set_global_state

EPOCHS, BREAK = 3, (0, 1)

SETTINGS = [
    (workers, persistent, generator, shuffle)
    for workers, persistent, generator, shuffle in itertools.product(
        (0, 2), (False, True), (False, True), (False, True)
    )
    if workers or not persistent
]


def build(kind, workers=0, persistent=False, generator=False, shuffle=True, **options):
    settings = {
        "batch_size": 3,
        "num_workers": workers,
        "persistent_workers": persistent,
        "generator": torch.Generator().manual_seed(7) if generator else None,
    } | options
    if "sampler" not in settings:
        settings["shuffle"] = shuffle
    if kind is DataLoader:
        settings["randomness"] = "torch"
    return kind(Noisy(sample_rng=False), **settings)


def train(loader, first=(0, 0), leave=None):
    """Read epochs in a loop that draws from the process's generators too, as dropout does."""
    handed = []
    for epoch in range(first[0], EPOCHS):
        offset = first[1] if epoch == first[0] else 0
        for number, batch in enumerate(loader, start=offset):
            handed.append(torch.cat([batch.flatten(), torch.rand(1), torch.tensor([random.random()])]))
            if (epoch, number) == leave:
                break
    return handed


@pytest.mark.parametrize("leave", [None, BREAK])
@pytest.mark.parametrize(("workers", "persistent", "generator", "shuffle"), SETTINGS)
def test_it_draws_as_pytorch_draws(workers, persistent, generator, shuffle, leave):
    """Three epochs of PyTorch's loader and of ours are the same bits and leave the same generators behind."""
    options = (workers, persistent, generator, shuffle)
    seed_all(1)
    reference = train(build(torch.utils.data.DataLoader, *options), leave=leave)
    expected = global_state()
    seed_all(1)
    assert equal(train(build(DataLoader, *options), leave=leave), reference)
    assert torch.equal(global_state()["torch"], expected["torch"])
    assert np.array_equal(global_state()["numpy"]["state"]["key"], expected["numpy"]["state"]["key"])


class Eager:
    """A sampler that draws as soon as it is iterated."""

    def __iter__(self):
        return iter(torch.randperm(13).tolist())

    def __len__(self):
        return 13


@pytest.mark.parametrize("sampler", [Eager, lambda: RandomSampler(range(13), replacement=True, num_samples=40)])
@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_samplers_of_the_user_draw_as_in_pytorch(workers, persistent, sampler):
    """A sampler that draws in __iter__, or bit by bit, is called as often as PyTorch calls it."""
    options = {"workers": workers, "persistent": persistent, "batch_size": None}
    seed_all(1)
    reference = train(build(torch.utils.data.DataLoader, sampler=sampler(), **options))
    seed_all(1)
    loader, saved = build(DataLoader, sampler=sampler(), **options), []
    loader.before_next = lambda: saved.append((loader.state_dict(), global_state()))
    got = train(loader)
    loader.before_next = None  # it holds the loader, whose workers end with the last reference
    assert equal(got, reference)
    handed = len(reference) // EPOCHS + 6
    state, process = saved[handed + 1]  # one more call for the end of epoch 0
    assert (state["epoch"], state["position"]) == (1, 6)
    assert equal(resume(lambda: build(DataLoader, sampler=sampler(), **options), state, process), reference[handed:])


def resume(build_again, state, process, leave=None):
    """Go on from a state as a fresh process would: other seeds, then the loader, then the process's generators."""
    seed_all(99)
    loader = build_again()
    loader.load_state_dict(state)
    set_global_state(process)
    return train(loader, (state["epoch"], state["position"]), leave)


@pytest.mark.parametrize(("workers", "persistent", "generator", "shuffle"), SETTINGS)
def test_it_resumes_at_every_position(workers, persistent, generator, shuffle):
    """Every state, in epochs, at their ends and after a break, resumes with the bits that followed."""
    options = (workers, persistent, generator, shuffle)
    seed_all(1)
    loader, saved, handed = build(DataLoader, *options), [], []

    def note():
        saved.append((loader.state_dict(), global_state(), len(handed)))

    loader.before_next = note  # it holds the loader, and is taken away below, so that its workers end
    for epoch in range(EPOCHS):
        for number, batch in enumerate(loader):
            handed.append(torch.cat([batch.flatten(), torch.rand(1), torch.tensor([random.random()])]))
            if (epoch, number) == BREAK:
                break
        note()
    loader.before_next = None
    assert len(handed) == 12
    for state, process, done in saved[:: 1 if workers == 0 else 2]:
        assert equal(resume(lambda: build(DataLoader, *options), state, process, BREAK), handed[done:])


def test_resumes_follow_one_another():
    """A state taken right after a resume, before every worker has answered, resumes too."""
    for persistent in (False, True):
        seed_all(1)
        reference = train(build(DataLoader, 2, persistent))
        seed_all(1)
        loader, got = build(DataLoader, 2, persistent), []
        batches = iter(loader)
        for _ in range(8):
            batch = next(batches, None)
            if batch is None:
                batches = iter(loader)
                batch = next(batches)
            got.append(torch.cat([batch.flatten(), torch.rand(1), torch.tensor([random.random()])]))
            state, process = loader.state_dict(), global_state()
            seed_all(99)
            loader = build(DataLoader, 2, persistent)
            loader.load_state_dict(state)
            set_global_state(process)
            batches = iter(loader)
        assert equal(got, reference[:8])


@pytest.mark.parametrize(
    ("change", "path"),
    [({"workers": 1}, "streams.num_workers"), ({"persistent": True}, "streams.persistent_workers")],
)
def test_other_workers_are_refused(change, path):
    """Another number of workers, or persistence, is refused by name."""
    loader = build(DataLoader, 2)
    next(iter(loader))
    other = build(DataLoader, **{"workers": 2} | change)
    with pytest.raises(StateMismatch, match="only with the same") as caught:
        other.load_state_dict(loader.state_dict())
    assert caught.value.path == path


class LazyGenerator(Noisy):
    rng = None

    def __getitem__(self, index):
        if self.rng is None:
            self.rng = np.random.default_rng(0)
        return torch.tensor([self.rng.random()])


def test_a_generator_that_appears_too_late_is_named():
    """A generator that the data set makes only when it is first used cannot be set, and that is said."""
    loader = DataLoader(LazyGenerator(rng=False), randomness="torch")
    batches = iter(loader)
    next(batches)
    resumed = DataLoader(LazyGenerator(rng=False), randomness="torch")
    resumed.load_state_dict(loader.state_dict())
    with pytest.raises(StateMismatch, match="lost a generator") as caught:
        iter(resumed)
    assert caught.value.path == "dataset.rng"


# --- figures of the source documents ------------------------------------------------------------------------


def draws():
    """Draw what the slides draw."""
    return (
        random.random(),
        int(np.random.randint(0, 2**31 - 1, dtype=np.int64)),
        int(torch.empty((), dtype=torch.int64).random_()),
    )


class Slides(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return (get_worker_info().seed, *draws())


def test_the_slides_figures_come_out_to_the_last_digit():
    """Seed 42, four items, batches of two, two workers: seeds and draws of the slides' notebook (C5)."""
    seed_all(42)
    assert draws() == (0.6394267984578837, 1608637542, 6909045637428952499)
    seed_all(42)
    loader = DataLoader(Slides(), batch_size=2, num_workers=2, collate_fn=list, randomness="torch")
    (zero, one), (zero_later, one_later) = ([*loader] for _ in range(2))
    assert [zero[0][0], one[0][0]] == [6909045637428952499, 6909045637428952500]
    assert [zero_later[0][0], one_later[0][0]] == [8314211556539077902, 8314211556539077903]
    assert [each[1:] for each in zero] == [
        (0.76579821087278, 959832575, 1170639138655272132),
        (0.5290557382213695, 882448501, 3236260051783816896),
    ]
    assert [each[1:] for each in one] == [
        (0.622363687543226, 1662264820, 2388289256833682258),
        (0.1621540338542381, 1141922919, 5646074976271009539),
    ]
    assert [each[1:] for each in zero_later] == [
        (0.497469773115513, 1524043329, 8205711491232393797),
        (0.33839484957051635, 389623752, 7724067224563570751),
    ]


class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return index, int(np.random.randint(1_000))


def test_the_guides_figures_come_out():
    """Eight items, batches of four, two workers, generator seeded 0: the guide's order and NumPy draws (C2)."""
    seed_all(0)
    generator = torch.Generator().manual_seed(0)
    loader = DataLoader(
        Tokens(),
        batch_size=4,
        shuffle=True,
        num_workers=2,
        generator=generator,
        collate_fn=list,
        randomness="torch",
    )
    assert list(loader) == [[(5, 522), (3, 297), (1, 434), (7, 198)], [(2, 234), (6, 407), (4, 586), (0, 805)]]


def test_read_is_whole():
    """The loader hands out every item once an epoch."""
    seed_all(0)
    assert sorted(torch.cat(read(build(DataLoader, 2), 1))[:, 0].tolist()) == list(range(13))
