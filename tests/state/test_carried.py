"""Local variables that a loop carries from body to body: what is found, and what is left in peace."""

import io
import linecache
import logging
import runpy
import sys
import textwrap
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from unittest.mock import MagicMock

import pytest
import torch

from samestep.state.carried import Carried, find_carried

LOG = logging.getLogger("of a script")


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


def sums_that_are_only_printed() -> list[Carried]:
    found: list[Carried] = []
    total, count, losses = 0.0, 0, []
    for x in (1.0, 2.0):
        total += x
        count += 1  # noqa: SIM113
        losses.append(x)
        mean = total / max(count, 1)
        if count % 50 == 0 and len(losses) > 1:
            print(f"{mean:.4f} {sum(losses) / len(losses):.4f} {total}")  # noqa: T201
            LOG.info("mean %.4f", mean)
            total = 0.0
        found = look()
    return found


def moments_of_a_clock() -> list[Carried]:
    found: list[Carried] = []
    spent, before = 0.0, time.perf_counter()
    for _ in range(2):
        spent += time.perf_counter() - before
        before = time.perf_counter()
        LOG.debug("%.1f s", spent)
        found = look()
    return found


def a_moment_that_others_get() -> list[Carried]:
    found: list[Carried] = []
    before = time.time()
    for _ in range(2):
        str(time.time() - before)
        before = time.time()
        found = look()
    return found


class Bar:
    """Stands for tqdm's."""

    __module__ = "tqdm.std"

    def set_postfix(self, **values: object) -> None:
        pass


def a_sum_in_a_bar() -> list[Carried]:
    found: list[Carried] = []
    bar, total = Bar(), torch.zeros(())
    for x in (1.0, 2.0):
        total += x
        bar.set_postfix(loss=total.item())
        found = look()
    return found


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
        sums_that_are_only_printed,
        moments_of_a_clock,
        a_moment_that_others_get,
        a_sum_in_a_bar,
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


# --- what is shown, and decides too -------------------------------------------------------------------------


SHOWN_AND = {
    "stops": ["print(total)", "if total > 9: break"],
    "is given to a function": ["print(note(total))"],
    "is given to a method": ["print(total)", "stopper.update(total)"],
    "grows an object": ["print(total)", "stopper.append(total)"],
    "scales the loss": ["print(total)", "loss = x * total", "loss.sum().backward()"],
    "is recorded": ["print(total)", "run.step(loss=total)"],
    "is kept in an attribute": ["print(total)", "stopper.total = total"],
    "is kept as an element": ["print(total)", "stopper[0] = total"],
    "decides through another name": ["mean = total / 2", "print(mean)", "worse = mean > 1", "if worse: stopper()"],
    "decides what is called": ["if total % 2 == 0: print(note())"],
    "decides within an expression": ["print(total > 1 and note())"],
    "decides in a comprehension": ["print([note(each) for each in [total]])"],
    "is captured": ["print(total)", "later = lambda: total"],
    "is given to a method that is named as of numbers": ["print(stopper.mean(total))"],
    "may be read by its name": ["print(total)", "locals()"],
    "may be read among all names": ["print(total)", "vars()"],
    "is given to an object of the user's": ["own.info(total)"],
    "is written to a file": ["print(total, file=stopper)"],
    "is another's tensor": ["print(total)", "total = weights", "total += 1"],
    "is asserted": ["print(total)", "assert total < 99"],
    "is a bound": ["print(total)", "while total < 0: pass"],
    "is changed in place": ["print(total)", "total.add_(1)"],
}


@pytest.mark.parametrize("body", SHOWN_AND.values(), ids=SHOWN_AND)
def test_what_is_shown_and_decides_too_is_found(body: list[str], tmp_path: Path) -> None:
    """A sum that is printed and that also stops, scales, is given away, kept or recorded is named as ever."""
    text = "total = 0.0\nfor x in xs:\n    total += x\n    found = look()\n" + textwrap.indent("\n".join(body), "    ")
    assert names_found(text, tmp_path) == ["total"]
    assert names_found(in_a_function(text), tmp_path) == ["total"]


def test_a_sum_that_is_shown_and_returned_is_found(tmp_path: Path) -> None:
    """What a function prints and returns may decide something for its caller, and behind a loop as in it."""
    text = "total = 0.0\nfor x in xs:\n    total += x\n    print(total)\n    found = look()\n"
    assert names_found(in_a_function(text + "note(total)"), tmp_path) == ["total"]
    assert names_found(text + "if total > 9: stopper()", tmp_path) == ["total"]
    returned = "def train():\n" + textwrap.indent(text, "    ") + "    return total, found\n_, found = train()"
    assert names_found(returned, tmp_path) == ["total"]


def in_a_function(text: str) -> str:
    return "def train():\n" + textwrap.indent(text, "    ") + "\n    return found\nfound = train()"


def test_what_a_script_only_shows_is_left_in_peace(tmp_path: Path) -> None:
    """The same texts would be found for their parts alone: what they share, a sum and its print, is not named."""
    text = "total = 0.0\nfor x in xs:\n    total += x\n    print(total)\n    found = look()\n"
    assert names_found(text, tmp_path) == []
    other = "def other():\n    total = 1.0\n    return total\n"
    assert names_found(other + text, tmp_path) == []
    assert names_found("def other():\n    return total\n" + text, tmp_path) == ["total"]
    assert names_found("print = str\n" + text, tmp_path) == ["total"]


def names_found(text: str, directory: Path) -> list[str]:
    """Run a script, and give the names that were found at the last look."""
    script = directory / "script.py"
    script.write_text(text)
    linecache.checkcache(str(script))
    names = {"look": look, "xs": [torch.ones(()), torch.ones(())], "note": str, "done": False, "run": MagicMock()}
    names |= {"stopper": MagicMock(), "own": MagicMock(), "weights": torch.ones(())}
    names["xs"][0].requires_grad_()
    with redirect_stdout(io.StringIO()):
        left = runpy.run_path(str(script), names)
    return [each.name for each in left["found"]]
