"""What stands between loader and loop: a checkpoint waits while it holds samples, and never otherwise."""

import itertools
import queue
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from test_restored_anywhere import BATCHES, ITEMS, Script

import samestep
from samestep.testing import check_every_step

EPOCHS = 2
EVERYWHERE = EPOCHS * BATCHES
"""Each request but an epoch's first, before which nothing shows yet that the loader leads; the one at its end too."""
EDGES = EPOCHS

Batch = list[torch.Tensor]


class Reading:
    """Reads from a loader; the base of what follows."""

    def __init__(self, loader: Any) -> None:
        self.loader, self.mean, self.names = loader, torch.zeros(3), ["x", "number"]


class PackerByGenerator(Reading):
    """Hands on five samples at a time, and keeps the rest in an attribute."""

    held: Any = None

    def __iter__(self) -> Iterator[Batch]:
        self.held = []
        for batch in self.loader:
            self.held += zip(*batch, strict=True)
            while len(self.held) >= 5:
                taken, self.held = self.held[:5], self.held[5:]
                yield [torch.stack(parts) for parts in zip(*taken, strict=True)]


class PackerByNext(Reading):
    """The same as an iterator of its own."""

    def __iter__(self) -> "PackerByNext":
        self.held: list[Any] = []
        self.batches = iter(self.loader)
        return self

    def __next__(self) -> Batch:
        while len(self.held) < 5:
            self.held += zip(*next(self.batches), strict=True)
        taken = [torch.stack(parts) for parts in zip(*self.held[:5], strict=True)]
        del self.held[:5]
        return taken


class OneAhead(Reading):
    """Asks for the next batch before it hands on this one."""

    def __iter__(self) -> Iterator[Batch]:
        self.held = None
        for batch in self.loader:
            if self.held is not None:
                yield self.held
            self.held = batch
        if self.held is not None:
            yield self.held


class Preloading(Reading):
    """Copies the next batch to the device while this one is trained on, as NVIDIA's examples do."""

    def __init__(self, loader: Any) -> None:
        super().__init__(loader)
        self.batches = iter(loader)
        self.preload()

    def preload(self) -> None:
        try:
            self.x, self.number = next(self.batches)
        except StopIteration:
            self.x = self.number = None
            return
        self.x = self.x + 0

    def next(self) -> Batch:
        x, number = self.x, self.number
        self.preload()
        return [x, number]

    def __iter__(self) -> Iterator[Batch]:
        batch = self.next()
        while batch[0] is not None:
            yield batch
            batch = self.next()


def one_ahead_in_a_closure(loader: Any) -> Iterable[Batch]:
    batches, held = iter(loader), None

    def ask() -> Batch | None:
        nonlocal held
        now, held = held, next(batches, None)
        return now

    ask()
    return iter(ask, None)


class Moving(Reading):
    """Moves batches to a device, and remembers the last one."""

    def __iter__(self) -> Iterator[Batch]:
        for batch in self.loader:
            self.last = [each.clone() for each in batch]
            yield self.last


class Remembering(Reading):
    """Keeps the parts of the batch that the loop has, under their names, and counts."""

    count = 0

    def __iter__(self) -> "Remembering":
        self.batches = iter(self.loader)
        return self

    def __next__(self) -> Batch:
        batch = next(self.batches)
        self.last = dict(zip(self.names, batch, strict=True))
        self.count += 1
        return batch


class Logging(Reading):
    """Keeps floats, times and counts, some of which the loop gives it, as torchvision's MetricLogger does."""

    def __iter__(self) -> Iterator[Batch]:
        self.losses: list[float] = []
        self.meters: dict[str, float] = {}
        self.labels: Counter[int] = Counter()
        for number, batch in enumerate(self.loader):
            self.labels[int(batch[1][0])] += 1
            yield batch
            self.losses.append(0.5 * number)
            self.meters[f"loss at {number}"] = 0.5


class Forgetting(Reading):
    """Hands on converted copies and keeps each batch for a look, and lets it go before it asks, as the warning says."""

    last: Batch | None = None

    def __iter__(self) -> "Forgetting":
        self.batches = iter(self.loader)
        return self

    def __next__(self) -> Batch:
        self.last = None
        self.last = next(self.batches)
        return [each + 0 for each in self.last]


class Keeping(Forgetting):
    """The same without letting go: nobody can tell it from one that asks ahead."""

    def __next__(self) -> Batch:
        self.last = next(self.batches)
        return [each + 0 for each in self.last]


def moved(loader: Any) -> Iterator[Batch]:
    for batch in loader:
        parts = []
        parts += [each.clone() for each in batch]
        yield parts


def merging_two(loader: Any) -> Iterator[Batch]:
    held: list[Batch] = []
    for batch in loader:
        held.append(batch)
        if len(held) == BATCHES:
            yield [torch.cat(parts) for parts in zip(*held, strict=True)]
            held = []


HOLDING = [PackerByGenerator, PackerByNext, OneAhead, Preloading, one_ahead_in_a_closure]
CLEAN = [Moving, Remembering, Logging, Forgetting, moved]


def training(feed: Callable[[Any], Iterable[Batch]], **options: Any) -> Callable[[Path], None]:
    def train(directory: Path) -> None:
        script = Script(directory, **options)
        for _ in script.run.epochs(EPOCHS):
            for batch in feed(script.loader):
                script.update(batch)

    return train


@pytest.mark.parametrize("feed", HOLDING)
def test_what_holds_samples_is_saved_at_the_ends_of_epochs(feed: Callable[[Any], Iterable[Batch]]) -> None:
    """A packer or prefetcher of any shape, with samples in hand at each request, loses none: saves wait."""
    assert check_every_step(training(feed)) == EDGES


@pytest.mark.parametrize("feed", CLEAN)
def test_what_hands_everything_on_is_saved_everywhere(feed: Callable[[Any], Iterable[Batch]], tmp_path: Path) -> None:
    """What moves, counts or remembers batches that the loop has had keeps no checkpoint from being taken."""
    assert check_every_step(training(feed)) == EVERYWHERE + EDGES
    training(feed, save_every=1)(tmp_path)  # no warning


def test_what_has_just_handed_on_all_is_saved_there() -> None:
    """A generator that merges batches is saved where it is empty, and put off where it is not."""
    assert EDGES <= check_every_step(training(merging_two)) < EVERYWHERE + EDGES


@pytest.mark.parametrize("feed", HOLDING)
def test_a_save_that_is_put_off_is_told_once(feed: Callable[[Any], Iterable[Batch]], tmp_path: Path) -> None:
    """When a checkpoint is due while samples are held, what holds them is named, once."""
    with pytest.warns(UserWarning, match=r"holds samples back(.|\n)*(held|x|number), .*test_held_samples.py") as caught:
        training(feed, save_every=1)(tmp_path)
    assert len(caught) == 1


def test_what_is_kept_behind_its_use_is_told_how_to_let_go(tmp_path: Path) -> None:
    """A wrapper that keeps a batch whose copies the loop has had is put off, and told to set it to None in time."""
    with pytest.warns(UserWarning, match=r"kept behind its use to None before(.|\n)*\n  last, .*test_held") as caught:
        training(Keeping, save_every=1)(tmp_path)
    assert len(caught) == 1


def joined(batches: Iterable[Batch]) -> Batch:
    return [torch.cat(parts) for parts in zip(*batches, strict=True)]


def pairs_by_zip(script: Script) -> None:
    it = iter(script.loader)
    for pair in zip(it, it):  # noqa: B905  (as above)
        script.update(joined(pair))


def pairs_by_a_zip_in_a_name(script: Script) -> None:
    it = iter(script.loader)
    pairs = zip(it, it)  # noqa: B905  (as above)
    for pair in pairs:
        script.update(joined(pair))


def pairs_by_repetition(script: Script) -> None:
    for pair in zip(*[iter(script.loader)] * 2):  # noqa: B905  (as above)
        script.update(joined(pair))


def pairs_by_map(script: Script) -> None:
    it = iter(script.loader)
    for pair in map(lambda *pair: pair, it, it):
        script.update(joined(pair))


def pairs_by_islice(script: Script) -> None:
    it = iter(script.loader)
    while pair := list(itertools.islice(it, 2)):
        script.update(joined(pair))


def pairs_by_a_starred_islice(script: Script) -> None:
    it = iter(script.loader)
    while pair := [*itertools.islice(it, 2)]:
        script.update(joined(pair))


def pairs_by_comprehension(script: Script) -> None:
    it = iter(script.loader)
    while True:
        pair = [batch for batch in [next(it, None) for _ in range(2)] if batch is not None]
        if not pair:
            break
        script.update(joined(pair))


PAIRS = [
    pairs_by_zip,
    pairs_by_a_zip_in_a_name,
    pairs_by_repetition,
    pairs_by_map,
    pairs_by_islice,
    pairs_by_a_starred_islice,
    pairs_by_comprehension,
]


@pytest.mark.parametrize("epoch", PAIRS)
def test_several_batches_for_one_body_are_saved_at_the_ends_of_epochs(epoch: Callable[[Script], None]) -> None:
    """Where one line takes several batches before the body has any, the first ones are held: saves wait."""

    def train(directory: Path) -> None:
        script = Script(directory, batch_size=2)
        for _ in script.run.epochs(EPOCHS):
            epoch(script)

    assert check_every_step(train) == EDGES


def test_one_batch_of_each_loader_is_no_pair() -> None:
    """A comprehension that asks each of several iterators once holds nothing that a resume would lose."""

    def train(directory: Path) -> None:
        script = Script(directory)
        other = samestep.DataLoader(script.data, batch_size=ITEMS // BATCHES, shuffle=True)
        script.run.track(other=other)
        for _ in script.run.epochs(EPOCHS):
            iterators = [iter(script.loader), iter(other)]
            for _ in range(script.loader.position, BATCHES):
                script.update(joined([next(each) for each in iterators]))

    assert check_every_step(train) > EDGES


class Trainer:
    """A trainer whose methods read the loader, keep losses and the batch, and update."""

    def __init__(self, script: Script) -> None:
        self.script, self.losses, self.batch = script, [], None

    def train(self) -> None:
        for _ in self.script.run.epochs(EPOCHS):
            self.batches = iter(self.script.loader)
            while self.read():
                self.update()

    def read(self) -> bool:
        self.batch = next(self.batches, None)
        return self.batch is not None

    def update(self) -> None:
        self.losses.append(self.script.update(self.batch))


def test_a_trainer_is_no_feeder() -> None:
    """A trainer that reads in one method and updates in another is the loop itself, whatever it keeps."""
    assert check_every_step(lambda directory: Trainer(Script(directory)).train()) == EVERYWHERE + EDGES


def test_a_place_that_asks_often_stays_a_boundary(tmp_path: Path) -> None:
    """A `next(batches)` is one place of the script though Python rewrites its instruction after some calls."""
    script = Script(tmp_path, save_every=1, batch_size=1)
    script.run = samestep.Run(tmp_path / "own", seed=0, save_every=1, keep=samestep.Keep(last=99))
    script.run.track(model=script.model, optimizer=script.optimizer, loader=script.loader)
    for _ in script.run.epochs(1):
        batches = iter(script.loader)
        while True:
            batch = next(batches, None)
            if batch is None:
                break
            script.update(batch)
    assert len(list((tmp_path / "own" / "checkpoints").glob("step-*"))) == ITEMS


def test_a_trainer_called_from_outside_is_no_feeder() -> None:
    """The same where a function around it asks the trainer to read, and then to update."""

    def train(directory: Path) -> None:
        script = Script(directory)
        trainer = Trainer(script)
        for _ in script.run.epochs(EPOCHS):
            trainer.batches = iter(script.loader)
            while trainer.read():
                trainer.update()

    assert check_every_step(train) == EVERYWHERE + EDGES


def in_a_thread(loader: Any) -> Iterator[Batch]:
    batches: queue.Queue[Batch | None] = queue.Queue(2)

    def read() -> None:
        for batch in loader:
            batches.put(batch)
        batches.put(None)

    threading.Thread(target=read, daemon=True).start()
    return iter(batches.get, None)


def test_a_loader_that_is_read_in_a_thread_makes_no_boundaries(tmp_path: Path) -> None:
    """Where a thread reads ahead only epoch edges are saved, and that is said: a request says nothing of the loop."""
    script = Script(tmp_path, save_every=1)
    steps = []
    with pytest.warns(UserWarning, match="is read in another thread than the loop's"):
        for _ in script.run.epochs(EPOCHS):
            for batch in in_a_thread(script.loader):
                script.update(batch)
                steps += [int(path.name[5:]) for path in (tmp_path / "checkpoints").glob("step-*")]
    assert {step % BATCHES for step in steps} == {0}


def test_an_iterator_of_python_that_holds_a_batch_is_named(tmp_path: Path) -> None:
    """`itertools.pairwise` holds a batch where nobody can look: it is named as what a resume would lose."""
    script = Script(tmp_path, save_every=2)
    with pytest.warns(UserWarning, match=r"pairwise\(…\), .*test_held_samples.py"):
        for _ in script.run.epochs(EPOCHS):
            for batch, _ in itertools.pairwise(script.loader):
                script.update(batch)
