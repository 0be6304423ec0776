"""Owns the search for local variables that a loop carries from one body to the next, which no resume brings back.

Reads the script's text, never runs any of it. A name is *carried* if a body reads it before it writes it, and writes
it later (`best = max(best, score)`, `hidden = cell(x, hidden)`); or if it grows (`total += loss`, `buffer.append(x)`)
and the loop reads it too; or if it counts batches (`enumerate(loader)`, `islice(loader, 10)`) and a step hangs on it.
"""

import ast
import inspect
import logging
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType

import numpy as np
from torch import Tensor

from samestep.installed import is_installed
from samestep.state.display import only_shown
from samestep.state.script import Loop, body_events, loops_of

_log = logging.getLogger("samestep")

_PLAIN = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    tuple,
    list,
    dict,
    set,
    deque,
    np.ndarray,
    np.generic,
    Tensor,
    type(None),
)
"""Types of values that are lost. Objects with a state of their own are the audit's concern."""

_UPDATING = {"step", "zero_grad", "backward", "update", "update_parameters", "save", "score", "add_param_group"}
_OF_RUN = {"epochs", "steps"}
_FRAMES = 8


@dataclass(frozen=True, slots=True)
class Carried:
    """A local variable that a resume begins anew.

    Args:
        name: The variable.
        file: The script's file.
        line: Where the loop writes it.
        counts_on: What the script can say instead, if it counts batches from zero.
    """

    name: str
    file: str
    line: int
    counts_on: str = ""


def find_carried(frame: FrameType) -> list[Carried]:
    """Look through the loops around the line that each frame of the stack is at, from this frame outwards.

    Args:
        frame: The user's frame that asked for the next batch, step or epoch.

    Returns:
        The variables, each once; nothing for code without a file, such as what is typed at a prompt.

    Example:
        >>> import sys
        >>> find_carried(sys._getframe())
        []
    """
    found: dict[tuple[str, str], Carried] = {}
    each: FrameType | None = frame
    for _ in range(_FRAMES):
        if each is None or is_installed(each.f_code.co_filename):
            break
        try:
            file, loops = loops_of(each)
            of_run = next((number for number, loop in enumerate(loops) if is_of_run(loop)), 0)
            carried = {one.name: one for one in _in_frame(each, file, loops[of_run:], is_asking=each is frame)}
            shown = only_shown(each, {*carried})
            for name in (name for name in carried if name not in shown):
                found.setdefault((file, name), carried[name])
            if any(map(is_of_run, loops)):
                break  # what lies around the run's own loop is begun anew with it: a sweep over configurations
        except Exception:  # noqa: BLE001  (unparsable text or a proxy of the user's: the search must not stop a training)
            _log.debug("The search for carried variables gave up.", exc_info=True)
        each = each.f_back
    return list(found.values())


def carried_by_generator(frame: FrameType) -> list[tuple[Carried, object]]:
    """Give what a generator that feeds the loop carries from batch to batch, with its values now.

    Args:
        frame: Any frame; others than those of such generators carry nothing here.
    """
    file, loops = loops_of(frame) if _is_generator(frame) else ("", [])
    if not _feeds(frame, loops):
        return []
    reads, values = _reads(loops), frame.f_locals
    lines = {name: line for loop in loops for name, line in _carried_by(loop, reads).items()}
    return [(Carried(name, file, line), values.get(name)) for name, line in lines.items()]


def _is_generator(frame: FrameType) -> bool:
    return bool(frame.f_code.co_flags & inspect.CO_GENERATOR)


def _feeds(frame: FrameType, loops: list[Loop]) -> bool:
    """Tell a generator that hands batches on to the loop from one that is a part of it, and updates weights."""
    return _is_generator(frame) and not any(is_of_run(loop) or any(map(_updates, _calls(loop))) for loop in loops)


def _is_bare(value: object) -> bool:
    """Tell whether a value is as those begin that will hold samples: None, or empty."""
    if isinstance(value, Tensor):
        return value.numel() == 0
    return value is None or (isinstance(value, (list, tuple, dict, set, deque, np.ndarray)) and len(value) == 0)


def _reads(loops: list[Loop]) -> set[str]:
    return {name for loop in loops[:1] for name, kind, _ in body_events(loop) if kind == "read"}


def carries(loops: list[Loop]) -> set[str]:
    """Give the names that the bodies of the innermost loop hand on, whatever their values are."""
    return set(_carried_by(loops[-1], _reads(loops)))


_TAKING_AHEAD = {"islice": "islice(loader, … - loader.position)", "pairwise": "", "tee": ""}
"""Iterators of Python that count batches, or hold some, where nobody can look; and how those that count go on."""


def _in_frame(frame: FrameType, file: str, loops: list[Loop], *, is_asking: bool) -> Iterator[Carried]:
    if is_asking and loops and _counts_from_zero(loops[-1]):
        yield Carried("range(…)", file, loops[-1].lineno, "range(loader.position, …)")
    reads, feeds = _reads(loops), _feeds(frame, loops)
    for loop in loops:
        ahead = _TAKING_AHEAD.keys() & set(map(_called, _calls(loop.iter))) if isinstance(loop, ast.For) else ()
        yield from (Carried(f"{name}(…)", file, loop.lineno, _TAKING_AHEAD[name]) for name in sorted(ahead))
        counters = _counters(loop) if is_asking else {}
        for name, line in (_carried_by(loop, reads) | counters).items():
            value = frame.f_locals.get(name, _ABSENT)
            # Where a generator holds samples back, nothing is saved; where it is bare, it begins alike.
            if isinstance(value, _PLAIN) and not (feeds and _is_bare(value)):
                yield Carried(name, file, line, _COUNTING_ON if name in counters else "")


_COUNTING_ON = "enumerate(…, start=loader.position)"
_ABSENT = object()


def is_of_run(loop: Loop) -> bool:
    """Tell a loop over `run.epochs` or `run.steps`, or one that marks its boundaries by hand."""
    if isinstance(loop, ast.For):
        return any(isinstance(call.func, ast.Attribute) and _called(call) in _OF_RUN for call in _calls(loop.iter))
    return any(_called(call) == "boundary" for statement in loop.body for call in _calls(statement))


def _counts_from_zero(loop: Loop) -> bool:
    """Tell a loop over a number of batches: `zip(range(10), loader)`, or `next(batches)` in a `for … in range(10)`."""
    if not isinstance(loop, ast.For) or "position" in ast.dump(loop.iter):
        return False
    called = set(map(_called, _calls(loop.iter)))
    asks = any(_called(call) == "next" for statement in loop.body for call in _calls(statement))
    return "range" in called and ("zip" in called or asks)


def _carried_by(loop: Loop, reads: set[str]) -> dict[str, int]:
    """Give the names that one body hands to the next, with the lines that write them."""
    events = body_events(loop)
    first = {name: kind for name, kind, _ in reversed(events)}
    lines = {name: line for name, kind, line in reversed(events) if kind != "read"}
    return {
        name: line for name, line in lines.items() if first[name] == "read" or (first[name] == "grow" and name in reads)
    }


def _counters(loop: Loop) -> dict[str, int]:
    """Give the counter of `enumerate(…)` if a step, a break or the like hangs on it: a resume counts from 0 again."""
    if not isinstance(loop, ast.For) or not isinstance(loop.target, ast.Tuple):
        return {}
    calls = [call for call in _calls(loop.iter) if _called(call) == "enumerate"]
    counter = loop.target.elts[0]
    if not isinstance(counter, ast.Name) or not any(len(call.args) + len(call.keywords) == 1 for call in calls):
        return {}
    branches = [node for statement in loop.body for node in ast.walk(statement) if isinstance(node, ast.If)]
    decides = [each for each in branches if _names(each.test, counter.id) and any(map(_updates, ast.walk(each)))]
    return {counter.id: counter.lineno} if decides else {}


def _calls(node: ast.AST) -> list[ast.Call]:
    return [each for each in ast.walk(node) if isinstance(each, ast.Call)]


def _names(node: ast.AST, name: str) -> bool:
    return any(isinstance(each, ast.Name) and each.id == name for each in ast.walk(node))


def _updates(node: ast.AST) -> bool:
    return isinstance(node, ast.Break | ast.Continue) or (isinstance(node, ast.Call) and _called(node) in _UPDATING)


def _called(call: ast.Call) -> str:
    return getattr(call.func, "attr", getattr(call.func, "id", ""))
