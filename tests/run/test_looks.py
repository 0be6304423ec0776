"""A batch that is asked for before the loop: where it is a look, the epoch is saved in its midst; else at its edges."""

import queue
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from test_restored_anywhere import BATCHES, Script
from torch import nn

from samestep.testing import check_every_step

EPOCHS = 2
EDGES = EPOCHS

Batch = list[torch.Tensor]


def converted(batches: Iterable[Batch]) -> Iterator[Batch]:
    for batch in batches:
        yield [each + 0 for each in batch]


# --- looks ------------------------------------------------------------------------------------------------


def one_batch_before(script: Script, weight: float = 1.0) -> None:
    it = iter(script.loader)
    first = next(it)
    weight = float(first[0].abs().sum())
    for batch in it:
        script.update(batch, weight)


def with_values_of_the_run(script: Script) -> None:
    it = iter(script.loader)
    weight = float(next(it)[0].abs().sum())
    script.run.state.seen = 0
    for batch in it:
        script.run.state.seen += 1
        script.update(batch, weight * script.run.state.seen)


def counted(script: Script) -> None:
    it = iter(script.loader)
    next(it)
    total = 0.0
    for _, batch in enumerate(it):
        total += script.update(batch)
        print(total)  # noqa: T201


class Network(nn.Module):
    """A module with the plain attributes that most have."""

    names = ("first", "second")

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.width, self.sizes = inner, 3, (3, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) * self.width


def with_a_module_of_his_own(script: Script) -> None:
    network = Network(script.model)
    it = iter(script.loader)
    weight = float(next(it)[0].abs().sum())
    for batch in it:
        script.update(batch, weight + float(network(batch[0]).mean().detach() > 0))


def through_a_generator(script: Script) -> None:
    it = converted(script.loader)
    weight = float(next(it)[0].abs().sum())
    for batch in it:
        script.update(batch, weight)


def through_a_map(script: Script) -> None:
    it = map(list, script.loader)
    weight = float(next(it)[0].abs().sum())
    for batch in it:
        script.update(batch, weight)


def an_iterator_of_its_own(script: Script) -> None:
    weight = float(next(iter(script.loader))[0].abs().sum())
    for batch in script.loader:
        script.update(batch, weight)


def a_whole_pass(script: Script) -> None:
    weight = sum(float(x.abs().sum()) for x, _ in script.loader)
    for batch in script.loader:
        script.update(batch, weight)


def a_whole_pass_at_one_place(script: Script) -> None:
    def batches() -> Iterator[Batch]:
        yield from script.loader

    weight = sum(float(x.abs().sum()) for x, _ in batches())
    for batch in batches():
        script.update(batch, weight)


LOOKS = {
    one_batch_before: BATCHES - 1,
    with_values_of_the_run: BATCHES - 1,
    counted: BATCHES - 1,
    with_a_module_of_his_own: BATCHES - 1,
    through_a_generator: BATCHES - 1,
    through_a_map: BATCHES - 1,
    an_iterator_of_its_own: BATCHES,
    a_whole_pass: BATCHES,
    a_whole_pass_at_one_place: BATCHES,
}
"""What stands in an epoch, and its boundaries there: each request behind the first update, the last one included."""


# --- what reads ahead ---------------------------------------------------------------------------------------


def in_a_name(script: Script) -> None:
    it = iter(script.loader)
    held = next(it)
    for batch in it:
        script.update(held)
        held = batch
    script.update(held)


def in_a_name_through_a_generator(script: Script) -> None:
    it = converted(script.loader)
    held = next(it)
    for batch in it:
        script.update(held)
        held = batch
    script.update(held)


def in_an_attribute(script: Script) -> None:
    it = iter(script.loader)
    script.held = next(it)
    for batch in it:
        script.update(script.held)
        script.held = batch
    script.update(script.held)


def in_a_list(script: Script) -> None:
    it = iter(script.loader)
    held = [next(it)]
    for batch in it:
        script.update(held[0])
        held[0] = batch
    script.update(held[0])


def in_a_queue(script: Script) -> None:
    it = converted(script.loader)
    held: queue.Queue[Batch] = queue.Queue()
    held.put(next(it))
    for batch in it:
        held.put([each + 0 for each in batch])
        script.update(held.get())
    script.update(held.get())


def in_an_opaque_queue(script: Script) -> None:
    it = iter(script.loader)
    held: queue.SimpleQueue[Batch] = queue.SimpleQueue()
    held.put(next(it))
    for batch in it:
        held.put(batch)
        script.update(held.get())
    script.update(held.get())


def in_bound_methods(script: Script) -> None:
    it = iter(script.loader)
    held: ClassVar[deque[Batch]] = deque()
    give, take = held.append, partial(held.popleft)
    give(next(it))
    for batch in it:
        give(batch)
        script.update(take())
    script.update(take())


class Slots:
    """Holds a batch where no `__dict__` is."""

    __slots__ = ("held",)

    def __init__(self, held: Batch) -> None:
        self.held = held

    def swap(self, batch: Batch) -> Batch:
        before, self.held = self.held, batch
        return before


def in_slots(script: Script) -> None:
    it = iter(script.loader)
    swap = Slots(next(it)).swap
    for batch in it:
        script.update(swap(batch))
    script.update(swap([]))


class Swap:
    """Gives what it was given before."""

    def __init__(self, held: Batch) -> None:
        self._parts = {"held": deque([held])}

    def __call__(self, batch: Batch) -> Batch:
        self._parts["held"].append([each + 0 for each in batch])
        return self._parts["held"].popleft()


def in_an_object(script: Script) -> None:
    it = iter(script.loader)
    swap = Swap(next(it))
    for batch in it:
        script.update(swap(batch))
    script.update(swap([]))


def in_words(script: Script) -> None:
    it = (batch[1].tolist() for batch in script.loader)
    held: queue.Queue[list[float]] = queue.Queue()
    held.put(next(it))
    for batch in it:
        held.put(batch)
        numbers = torch.tensor(held.get())
        script.update([numbers[:, None].expand(-1, 3).float(), numbers])


def in_a_number(script: Script) -> None:
    it = (float(batch[0].sum()) for batch in script.loader)
    held = next(it)
    for batch in it:
        script.update([torch.full((2, 3), held), torch.ones(2)])
        held = batch


def in_a_closure(script: Script) -> None:
    it = iter(script.loader)
    held = next(it)

    def swap(batch: Batch) -> Batch:
        nonlocal held
        before, held = held, batch
        return before

    for batch in it:
        script.update(swap(batch))
    script.update(held)


HELD: deque[Batch] = deque()


def swapped(batch: Batch) -> Batch:
    HELD.append(batch)
    return HELD.popleft()


def in_a_global_of_a_function(script: Script) -> None:
    it = iter(script.loader)
    HELD.clear()
    HELD.append(next(it))
    for batch in it:
        script.update(swapped(batch))
    script.update(HELD.popleft())


HERE = sys.modules[__name__]


def in_a_function_of_a_module(script: Script) -> None:
    it = iter(script.loader)
    HELD.clear()
    HERE.HELD.append(next(it))
    for batch in it:
        script.update(HERE.swapped(batch))
    script.update(HELD.popleft())


INNER: deque[Batch] = deque()


def swapped_inside(batch: Batch) -> Batch:
    return [swap for each in [batch] for swap in (INNER.append(each), INNER.popleft())][1]  # type: ignore[misc]


def begun_inside(batch: Batch) -> None:
    INNER.clear()
    INNER.append(batch)


def in_a_global_of_an_inner_function(script: Script) -> None:
    it = iter(script.loader)
    begun_inside(next(it))
    for batch in it:
        script.update(swapped_inside(batch))
    script.update(INNER.popleft())


class Shared:
    """Holds batches in the class, for whoever asks."""

    held: ClassVar[deque[Batch]] = deque()

    @classmethod
    def swap(cls, batch: Batch) -> Batch:
        cls.held.append(batch)
        return cls.held.popleft()


def in_a_class(script: Script) -> None:
    it = iter(script.loader)
    Shared.held = deque([next(it)])
    for batch in it:
        script.update(Shared.swap(batch))
    script.update(Shared.swap([]))


def on_a_function(script: Script) -> None:
    def swap(batch: Batch) -> Batch:
        held = vars(swap)["held"]
        held.append(batch)
        return held.popleft()

    it = iter(script.loader)
    vars(swap)["held"] = deque([next(it)])
    for batch in it:
        script.update(swap(batch))
    script.update(swap([]))


class TrainingModule(nn.Module):
    """A trainer that is a module, as Lightning has them."""

    def __init__(self) -> None:
        super().__init__()
        self.held: deque[Batch] = deque()

    def swap(self, batch: Batch) -> Batch:
        self.held.append(batch)
        return self.held.popleft()


def in_a_training_module(script: Script) -> None:
    module, it = TrainingModule(), iter(script.loader)
    module.held.append(next(it))
    for batch in it:
        script.update(module.swap(batch))
    script.update(module.swap([]))


def in_a_tensor(script: Script) -> None:
    it = iter(script.loader)
    held = torch.cat([part[:, None] if part.dim() == 1 else part for part in next(it)], 1)
    for batch in it:
        script.update([held[:, :3].clone(), held[:, 3].clone()])
        held.copy_(torch.cat([batch[0], batch[1][:, None]], 1))
    script.update([held[:, :3], held[:, 3]])


def in_the_arguments_of_the_body(script: Script) -> None:
    it = iter(script.loader)
    held = next(it)
    while held is not None:
        batch = next(it, None)
        script.update(held)
        held = batch


def trained_on_too(script: Script) -> None:
    it = iter(script.loader)
    script.update(next(it))
    for batch in it:
        script.update(batch)


AHEAD = [
    in_a_name,
    in_a_name_through_a_generator,
    in_an_attribute,
    in_a_list,
    in_a_queue,
    in_an_opaque_queue,
    in_bound_methods,
    in_slots,
    in_an_object,
    in_words,
    in_a_number,
    in_a_closure,
    in_a_global_of_a_function,
    in_a_function_of_a_module,
    in_a_global_of_an_inner_function,
    in_a_class,
    on_a_function,
    in_a_training_module,
    in_a_tensor,
    in_the_arguments_of_the_body,
    trained_on_too,
]


def training(epoch: Callable[[Script], None], **options: Any) -> Callable[[Path], None]:
    def train(directory: Path) -> None:
        script = Script(directory, **options)
        for _ in script.run.epochs(EPOCHS):
            epoch(script)

    return train


@pytest.mark.parametrize("epoch", LOOKS)
@pytest.mark.parametrize("loader", [{}, {"randomness": "torch"}], ids=["keyed", "torch"])
def test_a_look_is_saved_and_resumed_in_the_middle(epoch: Callable[[Script], None], loader: dict[str, Any]) -> None:
    """What is asked for at the top of an epoch before its loop is asked for again by a resume, which gives it again."""
    assert check_every_step(training(epoch, **loader)) == EPOCHS * LOOKS[epoch] + EDGES


@pytest.mark.parametrize("epoch", AHEAD)
def test_what_reads_ahead_is_saved_at_the_edges(epoch: Callable[[Script], None]) -> None:
    """Where the batch that was asked for before may reach a body, wherever it is held, only edges are saved."""
    assert check_every_step(training(epoch)) == EDGES


def test_a_second_look_ends_the_boundaries_of_its_epoch() -> None:
    """Where a place that has looked asks again in the middle of an epoch, no resume could tell: no boundary follows."""

    def part(script: Script, it: Iterator[Batch]) -> None:
        weight = float(next(it)[0].abs().sum())
        for batch in it:
            script.update(batch, weight)
            if script.loader.position == 3:
                break

    def epoch(script: Script) -> None:
        it = iter(script.loader)
        for _ in range(2):
            part(script, it)

    assert check_every_step(training(epoch, batch_size=2)) == EPOCHS * 1 + EDGES


def test_a_look_with_workers_is_resumed() -> None:
    """The same where two workers that live on read the samples."""
    options = {"num_workers": 2, "persistent_workers": True, "batch_size": 3}
    assert check_every_step(training(one_batch_before, **options), every=3) == 3
