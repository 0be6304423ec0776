"""Local variables that a loop carries from body to body: what is found, and what is left in peace."""

import sys
from collections.abc import Callable

import pytest
import torch

from samestep.state.carried import Carried, find_carried


def look() -> list[Carried]:
    """Search from the frame that calls, as the loader does from the loop."""
    return find_carried(sys._getframe(1))


def best_score() -> list[Carried]:
    best = 0.0
    for score in (1.0, 2.0):
        found = look()
        best = max(best, score)
    return found


def running_sum() -> list[Carried]:
    found, sums = [], 0.0
    for _ in range(2):
        total = 0.0
        for loss in (1.0, 2.0):
            total += loss
            found = look()
        sums = total
    return found if sums else []


def hidden_state() -> list[Carried]:
    hidden = torch.zeros(2)
    for x in torch.ones(2, 2):
        hidden = hidden.detach() * 0.5 + x
        found = look()
    return found


def replay_buffer() -> list[Carried]:
    buffer: list[float] = []
    for x in (1.0, 2.0):
        buffer.append(x)
        sum(buffer)
        found = look()
    return found


def accumulation_by_enumerate() -> list[Carried]:
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.1)
    for number, _ in enumerate((1.0, 2.0)):
        if (number + 1) % 2 == 0:
            optimizer.step()
        found = look()
    return found


def shortened_epoch() -> list[Carried]:
    for number, _ in enumerate((1.0, 2.0)):
        found = look()
        if number >= 1:
            break
    return found


def a_number_of_batches() -> list[Carried]:
    batches = iter((1.0, 2.0))
    for _ in range(2):
        next(batches)
        found = look()
    return found


def a_zipped_number_of_batches() -> list[Carried]:
    for _, _ in zip(range(2), (1.0, 2.0), strict=True):
        found = look()
    return found


def while_loop() -> list[Carried]:
    patience = 3
    while patience > 0:
        found = look()
        patience -= 1
    return found


def in_a_function_of_the_loop() -> list[Carried]:
    def one_epoch() -> list[Carried]:
        found = []
        for _ in range(2):
            found = look()
        return found

    best = 0.0
    for score in (1.0, 2.0):
        found = one_epoch()
        best = max(best, score)
    return found


@pytest.mark.parametrize(
    ("training", "names"),
    [
        (best_score, ["best"]),
        (running_sum, ["total"]),
        (hidden_state, ["hidden"]),
        (replay_buffer, ["buffer"]),
        (accumulation_by_enumerate, ["number"]),
        (shortened_epoch, ["number"]),
        (a_number_of_batches, ["range(…)"]),
        (a_zipped_number_of_batches, ["range(…)"]),
        (while_loop, ["patience"]),
        (in_a_function_of_the_loop, ["best"]),
    ],
)
def test_a_carried_variable_is_found_with_its_line(training: Callable[[], list[Carried]], names: list[str]) -> None:
    """What one body hands to the next is named with the line that writes it, in this frame and those above it."""
    found = training()
    assert [each.name for each in found] == names
    assert all(each.file == __file__ for each in found)
    first = training.__code__.co_firstlineno
    assert all(first < each.line <= first + 15 for each in found)


def values_of_one_body() -> list[Carried]:
    for x in (1.0, 2.0):
        x = x + 1.0  # noqa: PLW2901
        loss = x * 2
        loss = loss + 1
        found = look()
    return found if loss else []


def logs_that_nobody_reads() -> list[Carried]:
    losses, steps = [], 0
    for x in (1.0, 2.0):
        losses.append(x)
        steps += 1
        found = look()
    return found if losses and steps else []


def printing_by_enumerate() -> list[Carried]:
    for number, x in enumerate((1.0, 2.0)):
        if number % 10 == 0:
            str(x)
        found = look()
    return found


def counting_from_where_it_stands() -> list[Carried]:
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.1)
    for number, _ in enumerate((1.0, 2.0), start=3):
        if number % 2 == 0:
            optimizer.step()
        found = look()
    return found


def objects_with_a_state() -> list[Carried]:
    model = torch.nn.Linear(1, 1)
    for _ in range(2):
        model = model.train()
        found = look()
    return found


class Bounds:
    """Stands for a run: its loops are those that a resume enters again."""

    def epochs(self, n: int) -> range:
        return range(n)


def a_sweep_around_the_run() -> list[Carried]:
    best = 0.0
    for number, rate in enumerate((0.1, 0.2)):
        if number == 2:
            continue
        for _ in Bounds().epochs(2):
            found = look()
        best = max(best, rate)
    return found


def names_of_a_comprehension() -> list[Carried]:
    for _ in range(2):
        found = look()
        y = [x for x in range(3)]  # noqa: C416
        x = len(y)
    return found if x else []


@pytest.mark.parametrize(
    "training",
    [
        values_of_one_body,
        logs_that_nobody_reads,
        printing_by_enumerate,
        counting_from_where_it_stands,
        objects_with_a_state,
        a_sweep_around_the_run,
        names_of_a_comprehension,
    ],
)
def test_what_is_not_carried_is_left_in_peace(training: Callable[[], list[Carried]]) -> None:
    """Values of one body, logs that the loop does not read, and counters that only print are not reported."""
    assert training() == []
