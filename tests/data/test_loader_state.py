import copy
import gc
import pickle

import pytest
import torch
from noisy_data import Noisy, equal, read, seed_all
from torch.utils.data import ConcatDataset, IterableDataset, Subset, TensorDataset, random_split

from samestep.data.loader import DataLoader
from samestep.errors import SamestepError, StateMismatch, WrongPlace
from samestep.generators import global_state, set_global_state

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


def build(workers=0, **options):
    return DataLoader(Noisy(), **{"batch_size": 3, "shuffle": True, "seed": 1, "num_workers": workers} | options)


def test_it_is_a_pytorch_loader_with_its_attributes():
    """Frameworks find PyTorch's own class and attributes."""
    dataset = Noisy()
    loader = DataLoader(dataset, 3, shuffle=True, num_workers=2, drop_last=True, persistent_workers=True)
    assert isinstance(loader, torch.utils.data.DataLoader)
    assert loader.dataset is dataset
    assert (loader.batch_size, loader.num_workers, loader.drop_last) == (3, 2, True)
    assert loader.persistent_workers
    assert isinstance(loader.sampler, torch.utils.data.RandomSampler)
    assert isinstance(loader.batch_sampler, torch.utils.data.BatchSampler)
    assert len(loader) == 4
    assert len(list(loader)) == 4


def test_wrong_arguments_give_pytorchs_own_errors():
    """PyTorch checks the arguments, in its own words."""
    with pytest.raises(ValueError, match="mutually exclusive with shuffle"):
        build(sampler=[1])
    with pytest.raises(ValueError, match="num_workers option should be non-negative"):
        build(workers=-1)
    with pytest.raises(TypeError, match="no_such_option"):
        build(no_such_option=1)


class Endless(IterableDataset):
    def __iter__(self):
        return iter(int, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"in_order": False}, "no position to resume from"),
        ({"randomness": "none"}, "no such randomness"),
        ({"randomness": "torch"}, "seed says nothing"),
    ],
)
def test_what_cannot_be_exact_is_refused(options, message):
    """Options that cannot be resumed exactly are refused in one sentence."""
    with pytest.raises(SamestepError, match=message):
        build(**options)


def test_iterable_data_sets_are_refused():
    """An iterable data set is refused in one sentence, until it is supported, and what to do instead is said.

    Reported as datasets#7901, datasets#8308, pytorch#41329.
    """
    with pytest.raises(SamestepError, match="Iterable data sets are not supported yet") as caught:
        DataLoader(Endless())
    assert "save at the ends of epochs only" in caught.value.hint


# --- epochs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_position_counts_batches_handed_not_fetched(workers):
    """Batches that workers have fetched ahead do not move the position."""
    loader = build(workers, prefetch_factor=2 if workers else None)
    batches = iter(loader)
    assert (loader.epoch, loader.position) == (0, 0)
    next(batches)
    next(batches)
    assert (loader.epoch, loader.position) == (0, 2)


def test_the_last_batch_leaves_its_epoch_open_until_the_loop_ends():
    """Before StopIteration the state is at the epoch's end and resumes into it with nothing left; then e + 1."""
    loader, seen = build(), []
    loader.before_next = lambda: seen.append(loader.state_dict())
    reference = read(loader, 2)
    assert [(state["epoch"], state["position"]) for state in seen[:6]] == [(0, each) for each in range(6)]
    assert (loader.epoch, loader.position) == (2, 0)
    resumed = build()
    resumed.load_state_dict(seen[5])
    assert list(resumed) == []
    assert (resumed.epoch, resumed.position) == (1, 0)
    assert equal(list(resumed), reference[5:])


@pytest.mark.parametrize("options", [{}, {"workers": 2}, {"workers": 2, "persistent_workers": True}])
def test_a_break_closes_the_epoch(options):
    """Leaving the loop in the middle makes the next loop the next epoch, in full length."""
    reference = read(build(), 2)
    loader = build(**options)
    for _batch in loader:
        break
    assert (loader.epoch, loader.position) == (1, 0)
    assert equal(list(loader), reference[5:])


@pytest.mark.parametrize("options", [{}, {"workers": 2, "persistent_workers": True}])
def test_epochs_after_a_resume_have_full_length(options):
    """After the rest of an epoch come full epochs; the length never shrinks (datasets#7447)."""
    first = build()
    batches = iter(first)
    next(batches)
    loader = build(**options)
    loader.load_state_dict(first.state_dict())
    assert [len(list(loader)) for _ in range(3)] == [4, 5, 5]
    assert len(loader) == 5


def test_two_iterators_of_one_loader_are_two_epochs():
    """A loader can be zipped with itself: the iterators are epochs of their own."""
    reference = read(build(), 2)
    pairs = list(zip(*[iter_ := build()] * 2, strict=True))
    assert equal([left for left, _ in pairs], reference[:5])
    assert equal([right for _, right in pairs], reference[5:])
    assert iter_.epoch == 2


def test_an_older_iterator_of_persistent_workers_is_refused():
    """Persistent workers serve the newest iterator; an older one says so."""
    loader = build(2, persistent_workers=True)
    older = iter(loader)
    next(older)
    newer = iter(loader)
    with pytest.raises(WrongPlace, match="newer iterator"):
        next(older)
    assert len(list(newer)) == 5


def test_a_dropped_loader_ends_its_workers():
    """Persistent workers end when the last reference to their loader goes, without the garbage collector."""
    gc.disable()
    try:
        for randomness in ("sample", "torch"):
            loader = DataLoader(Noisy(sample_rng=False), num_workers=1, persistent_workers=True, randomness=randomness)
            next(iter(loader))
            worker = loader._mode._kept[0]._iterator._workers[0]
            del loader
            worker.join(10)
            assert not worker.is_alive()
    finally:
        gc.enable()


# --- the hook ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_what_the_hook_raises_leaves_the_loader_usable(workers):
    """SystemExit from the hook goes through, nothing is lost, and the open epoch goes on."""
    reference = read(build(), 1)
    loader = build(workers)
    batches = iter(loader)
    first = next(batches)

    def leave():
        raise SystemExit(3)

    loader.before_next = leave
    with pytest.raises(SystemExit):
        next(batches)
    assert (loader.epoch, loader.position) == (0, 1)
    loader.before_next = None
    assert equal([first, *batches], reference)


def test_the_hook_is_not_called_for_an_older_iterator():
    """Only the newest iterator makes boundaries."""
    loader, calls = build(), []
    older, newer = iter(loader), iter(loader)
    loader.before_next = lambda: calls.append(loader.position)
    next(older)
    assert calls == []
    next(newer)
    assert calls == [0]


# --- saving and loading -----------------------------------------------------------------------------------


def test_the_state_is_small_and_plain():
    """The state is less than 1 kB of plain values (torchdata#1317)."""
    state = build().state_dict()
    assert len(repr(state)) < 1_000
    assert eval(repr(state)) == state  # noqa: S307 - our own text


@pytest.mark.parametrize("randomness", ["sample", "torch"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_loaded_after_iter_works_for_the_open_iterator(workers, randomness):
    """An iterator that was made, or even used, before the state is loaded goes on from there (prime-rl PR#3332)."""
    options = {"batch_size": 3, "shuffle": True, "num_workers": workers, "persistent_workers": workers > 0}

    def build():
        return DataLoader(Noisy(sample_rng=randomness == "sample"), randomness=randomness, **options)

    torch.manual_seed(5)
    first = build()
    batches = iter(first)
    next(batches)
    next(batches)
    state, process_state = first.state_dict(), global_state()
    reference = list(batches)
    for used in (0, 3):
        loader = build()
        early = iter(loader)
        for _ in range(used):
            next(early)
        loader.load_state_dict(state)
        set_global_state(process_state)
        assert (loader.epoch, loader.position) == (0, 2)
        assert equal(list(early), reference)
        assert (loader.epoch, loader.position) == (1, 0)


def test_of_two_iterators_only_the_newer_goes_on_from_a_loaded_state():
    """When a state is loaded and a newer iterator has taken it up, the older one says so instead of mixing in."""
    loader = build()
    older = iter(loader)
    next(older)
    loader.load_state_dict(loader.state_dict())
    newer = iter(loader)
    with pytest.raises(WrongPlace, match="newer iterator goes on from there"):
        next(older)
    assert len(list(newer)) == len(loader) - 1


def test_three_resumes_in_one_epoch():
    """Every resume goes on from the one before (KempnerForge#57)."""
    reference, got, state = read(build(), 1), [], build().state_dict()
    for workers in (0, 2, 3, 1):
        loader = build(workers)
        loader.load_state_dict(state)
        batches = iter(loader)
        got.append(next(batches))
        state = loader.state_dict()
    assert equal([*got, *batches], reference)


def test_a_save_right_after_a_resume_with_four_workers():
    """A state taken one batch after a resume, before most workers answered, is whole (meta-pytorch/data PR#1251)."""
    reference = read(build(), 2)
    first = build(4)
    batches = iter(first)
    next(batches)
    second = build(4)
    second.load_state_dict(first.state_dict())
    assert second.state_dict() == first.state_dict()
    resumed = iter(second)
    next(resumed)
    third = build(4)
    third.load_state_dict(second.state_dict())
    assert equal(read(third, 2), reference[2:])


@pytest.mark.parametrize("randomness", ["sample", "torch"])
@pytest.mark.parametrize("order", [{"shuffle": True}, {"sampler": list(range(13))}])
def test_a_batch_size_that_is_changed_in_training_holds_from_the_next_epoch(order, randomness):
    """PyTorch's batch sampler can be changed between epochs; the state says so, and resumes with that size alone."""

    def build(batch_size):
        dataset = Noisy(sample_rng=False)
        return DataLoader(dataset, batch_size=batch_size, randomness=randomness, num_workers=2, **order)

    seed_all(1)
    loader = build(3)
    list(loader)
    loader.batch_sampler.batch_size *= 2
    batches = iter(loader)
    assert [len(next(batches)), len(loader)] == [6, 3]
    state, process = loader.state_dict(), global_state()
    with pytest.raises(StateMismatch) as caught:
        build(3).load_state_dict(state)
    assert (caught.value.path, caught.value.expected, caught.value.found) == ("batch_size", "6", "3")
    resumed = build(6)
    resumed.load_state_dict(state)
    set_global_state(process)
    assert equal(list(resumed), list(batches))


def test_a_batch_size_that_is_changed_inside_an_epoch_leaves_that_epoch_alone():
    """The epoch that is open keeps its size, after a resume too."""
    reference = read(build(), 1)
    loader = build()
    batches = iter(loader)
    first = next(batches)
    loader.batch_sampler.batch_size = 4
    resumed = build(batch_size=4)
    resumed.load_state_dict(loader.state_dict())
    assert equal([first, *resumed], reference)
    assert equal([first, *batches], reference)
    assert [len(batch) for batch in resumed] == [4, 4, 4, 1]


class Marked(Noisy):
    def __init__(self, mark):
        super().__init__()
        self.mark = mark

    def fingerprint(self):
        return self.mark


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"dataset": Noisy(12)}, "dataset.length"),
        ({"dataset": TensorDataset(torch.arange(13))}, "dataset.type"),
        ({"batch_size": 4}, "batch_size"),
        ({"drop_last": True}, "drop_last"),
        ({"shuffle": False}, "order"),
        ({"randomness": "batch"}, "randomness"),
        ({"seed": 2}, "seed"),
    ],
)
def test_a_state_of_another_loader_is_refused(change, path):
    """A state of another data set, order, batch size or seed is refused by name, and changes nothing."""
    options = {"dataset": Noisy(), "batch_size": 3, "shuffle": True, "seed": 1}
    state = DataLoader(**options).state_dict()
    other = DataLoader(**options | change)
    before = other.state_dict()
    with pytest.raises(StateMismatch, match="another") as caught:
        other.load_state_dict({**state, "position": 2})
    assert caught.value.path == path
    assert other.state_dict() == before


def test_another_fingerprint_is_refused():
    """A data set's own fingerprint is compared."""
    state = DataLoader(Marked("v1")).state_dict()
    DataLoader(Marked("v1")).load_state_dict(state)
    with pytest.raises(StateMismatch) as caught:
        DataLoader(Marked("v2")).load_state_dict(state)
    assert (caught.value.path, caught.value.expected, caught.value.found) == ("dataset.fingerprint", "v1", "v2")


@pytest.mark.parametrize(
    ("wrap", "path"),
    [
        (lambda split: split, "dataset.indices"),
        (lambda split: Subset(split, range(4)), "dataset.of.indices"),
        (lambda split: ConcatDataset([Noisy(3), split]), "dataset.parts.1.indices"),
    ],
)
def test_another_split_is_refused(wrap, path):
    """A random split that is drawn without a seed is another one after a resume, and is refused, also inside."""

    def build_split(seed):
        generator = torch.Generator().manual_seed(seed)
        return DataLoader(wrap(random_split(Noisy(), [8, 5], generator)[0]), seed=1)

    state = build_split(0).state_dict()
    build_split(0).load_state_dict(state)
    with pytest.raises(StateMismatch, match="another data set") as caught:
        build_split(1).load_state_dict(state)
    assert caught.value.path == path


@pytest.mark.parametrize("indices", [torch.tensor([2, 0]), range(2, -1, -2), ["c", "a"]])
def test_the_indices_of_a_subset_may_be_of_any_kind(indices):
    """Tensors, ranges and keys tell a subset from another, too."""
    subset = Subset(Noisy(), indices)
    state = DataLoader(subset).state_dict()
    DataLoader(Subset(Noisy(), list(indices))).load_state_dict(state)
    with pytest.raises(StateMismatch, match="another data set"):
        DataLoader(Subset(Noisy(), [indices[1], indices[0]])).load_state_dict(state)


def test_a_foreign_state_is_refused():
    """What is no state of a loader is refused, not a KeyError."""
    with pytest.raises(StateMismatch, match="not the state of a"):
        build().load_state_dict({"epoch": 3})


# --- seeds ------------------------------------------------------------------------------------------------


def test_where_the_seed_comes_from():
    """The seed is the user's, else the generator's, else the run's, else torch's, and then it stays."""
    generator = torch.Generator().manual_seed(5)
    given, by_generator, by_run, alone = (
        build(),
        build(seed=None, generator=generator),
        build(seed=None),
        build(seed=None),
    )
    for loader in (given, by_generator, by_run):
        loader.adopt_seed(77)
    assert (given.seed, by_generator.seed, by_run.seed, alone.seed) == (1, 5, 77, None)
    torch.manual_seed(9)
    iter(alone)
    alone.adopt_seed(77)
    assert alone.seed == 9
    assert generator.initial_seed() == 5
    assert torch.equal(generator.get_state(), torch.Generator().manual_seed(5).get_state())


# --- failures ---------------------------------------------------------------------------------------------


class FailsOnce(Noisy):
    def __getitem__(self, index):
        if index == 4:
            raise KeyError("four")
        return super().__getitem__(index)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_stays_resumable_after_an_exception_in_a_worker(workers):
    """An exception surfaces as PyTorch's does; the position is in front of the batch that failed."""
    reference = read(DataLoader(Noisy(), batch_size=3, seed=1), 1)
    loader = DataLoader(FailsOnce(), batch_size=3, seed=1, num_workers=workers)
    batches = iter(loader)
    next(batches)
    with pytest.raises(KeyError, match="four"):
        next(batches)
    state = loader.state_dict()
    assert state["position"] == 1
    assert torch.equal(next(batches), reference[2])
    assert loader.position == 3
    state["dataset"]["type"] = "Noisy"
    resumed = DataLoader(Noisy(), batch_size=3, seed=1, num_workers=workers)
    resumed.load_state_dict(state)
    assert equal(list(resumed), reference[1:])


# --- workers and copies -----------------------------------------------------------------------------------


def announce(worker):
    info = torch.utils.data.get_worker_info()
    info.dataset.seen = (worker, info.num_workers, type(info.dataset).__name__, torch.rand(()).item())


class Announced(Noisy):
    seen = None

    def __getitem__(self, index):
        return self.seen


def test_worker_init_fn_sees_the_users_data_set_and_the_same_numbers_always():
    """A worker's init function meets the user's own data set, and draws the same at any start of the workers."""
    loader = DataLoader(Announced(), None, seed=1, num_workers=2, worker_init_fn=announce)
    first, second = ([tuple(each) for each in loader] for _ in range(2))
    assert first[0][:3] == (0, 2, "Announced")
    assert first[1][:3] == (1, 2, "Announced")
    assert first[0][3] != first[1][3]
    assert first == second


@pytest.mark.parametrize("randomness", ["sample", "torch"])
@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))])  # noqa: S301
def test_a_copy_goes_on_where_the_loader_stands(duplicate, randomness):
    """A copied or pickled loader goes on in the middle of the epoch, by itself."""
    seed_all(0)
    loader = DataLoader(range(13), batch_size=3, shuffle=True, randomness=randomness)
    loader.before_next = lambda: None
    batches = iter(loader)
    next(batches)
    twin = duplicate(loader)
    assert (twin.epoch, twin.position, twin.before_next) == (0, 1, None)
    assert equal(list(twin), list(batches))
    assert (twin.epoch, loader.epoch) == (1, 1)
