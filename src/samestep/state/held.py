"""Owns the search for samples that something between a loader and the loop holds back: a packer, a prefetcher.

What it has taken from the loader and not yet handed on is in no checkpoint, and a resume would lose it. Looked at are
the frames between the loader and the loop, which is what was on the stack at the last `run.step` or the epoch's top.
"""

import ast
import gc
import itertools
import logging
from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any, TypeGuard

import numpy as np
from torch import Tensor, nn

from samestep.messages import Path, path_in_text
from samestep.state.ahead import is_look
from samestep.state.carried import Carried, carried_by_generator
from samestep.state.script import expressions_at

_log = logging.getLogger("samestep")


@dataclass(frozen=True, slots=True)
class _First:
    """What an object held when it first asked the loader in an epoch; its values are kept, so that none comes again."""

    owner: object
    values: dict[str, tuple[object, int]]


@dataclass(frozen=True, slots=True)
class _Stack:
    """The functions on the stack, and the objects whose methods they are, by their ids."""

    codes: frozenset[int] = frozenset()
    owners: frozenset[int] = frozenset()

    @classmethod
    def of(cls, frame: FrameType | None, around: "_Stack") -> "_Stack":
        frames = []
        while frame is not None and id(frame.f_code) not in around.codes:
            frames.append(frame)
            frame = frame.f_back
        return cls(
            around.codes | {id(each.f_code) for each in frames}, around.owners | {id(_owner(each)) for each in frames}
        )


class HeldSamples:
    """Knows the loop from what feeds it, and what the feeders held when an epoch began."""

    def __init__(self) -> None:
        self._around = _Stack()  # the epoch's loop, and what has called it
        self._loop = _Stack()  # with what was called for the last update
        self._first: dict[int, _First] = {}
        self._expressions: dict[tuple[CodeType, int], list[ast.expr]] = {}  # of each line that asks

    def begin_epoch(self, frame: FrameType | None) -> None:
        """Forget what feeders held in the last epoch, and take what is on the stack for the loop."""
        self._first.clear()
        self._around = self._loop = _Stack.of(frame, _Stack())

    def note_loop(self, frame: FrameType | None) -> None:
        """Take what is on the stack for the loop: here it says that an update is done."""
        if frame is None or id(frame.f_code) in self._around.codes:
            self._loop = self._around  # nothing was called for this update
        elif self._around.codes:
            # What lies around the loop is known, and not looked at again: reading a frame's variables keeps them alive.
            self._loop = _Stack.of(frame, self._around)

    def path(self, frame: FrameType | None) -> Path:
        """Tell the way from the epoch's loop to a frame in the script's text."""
        return path_in_text(frame, self._around.codes)

    def is_look(self, frame: FrameType | None, first: Path) -> bool:
        """Tell whether the loop begins to ask in a frame, and what was asked for before was not held for its bodies."""
        return frame is not None and is_look(frame, first, self._around.codes)

    def find(self, frame: FrameType | None) -> list[Carried]:
        """Name what holds samples now.

        Args:
            frame: The user's frame that asks the loader for a batch.

        Returns:
            Variables and attributes; nothing if the search fails.
        """
        try:
            return list(self._search(frame))
        except Exception:  # noqa: BLE001  (a user's proxy may do anything; the search must not stop a training)
            _log.debug("The search for held samples gave up.", exc_info=True)
            return []

    def _search(self, frame: FrameType | None) -> Iterator[Carried]:
        feeders = []
        if frame is not None:
            place = frame.f_code, frame.f_lineno
            if place not in self._expressions:
                self._expressions[place] = expressions_at(frame)
            yield from _several_at_once(self._expressions[place], frame)
        while frame is not None and id(frame.f_code) not in self._loop.codes:
            feeders.append(frame)
            frame = frame.f_back
        if frame is None:
            return
        for feeder in feeders:
            yield from (each for each, value in carried_by_generator(feeder) if _holds(value))
            yield from self._changed(feeder, consumed=_parts(list(frame.f_locals.values())))

    def _changed(self, feeder: FrameType, consumed: set[int]) -> Iterator[Carried]:
        owner = _owner(feeder)
        values = {name: feeder.f_locals[name] for name in feeder.f_code.co_freevars if name in feeder.f_locals}
        if id(owner) not in self._loop.owners:
            values |= getattr(owner, "__dict__", {})
        first = self._first.get(id(owner))
        if first is None or first.owner is not owner:
            # A wrapper's own tensors and lists are no samples: they are there before it asks, and stay as they are.
            self._first[id(owner)] = _First(owner, {name: (value, _size(value)) for name, value in values.items()})
            return
        for name, value in values.items():
            before, size = first.values.get(name, (None, 0))
            is_new = value is not before or _size(value) != size
            # What the loop has in hand, such as the batch that is also kept for a log, has been handed on.
            if is_new and _holds_samples(value) and not _parts([value]) <= consumed:
                yield Carried(name, feeder.f_code.co_filename, feeder.f_lineno)


def _several_at_once(expressions: list[ast.expr], frame: FrameType) -> Iterator[Carried]:
    """Name what asks several times on one line of a frame, and has some of the batches in hand meanwhile."""
    for expression in expressions:
        name = _taking_several(expression, frame)
        if name:
            yield Carried(name, frame.f_code.co_filename, expression.lineno)
            return


def _taking_several(expression: ast.expr, frame: FrameType) -> str:
    called = _called(expression)
    if isinstance(expression, (ast.ListComp, ast.SetComp, ast.GeneratorExp)):
        names = {each.id for part in expression.generators for each in ast.walk(part.target) if _is_name(each)}
        asked = [each for each in ast.walk(expression.elt) if _called(each) == "next"]
        return "[next(…) for …]" if any(not names & _names(each) for each in asked) else ""
    if isinstance(expression, ast.Name):
        value = frame.f_locals.get(expression.id)
        repeats = isinstance(value, (zip, map)) and any(map(_repeats, gc.get_referents(value)))
        return expression.id if repeats else ""
    parts = [expression.value] if isinstance(expression, ast.Starred) else getattr(expression, "args", [])
    collects = isinstance(expression, ast.Starred) or called in _COLLECTING
    if collects and any(_called(each) == "islice" for each in parts):
        return f"{called or '*'}(islice(…))"
    takes = called in _GROUPING or (isinstance(expression, ast.Call) and _names_one_twice(expression, frame))
    return f"{called}(…)" if takes else ""


def _is_name(node: ast.AST) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name)


def _names(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if _is_name(each)}


_COLLECTING = {"list", "tuple", "deque"}
_GROUPING = {"batched", "chunked", "grouper"}


def _called(node: ast.AST) -> str:
    return getattr(node.func, "attr", getattr(node.func, "id", "")) if isinstance(node, ast.Call) else ""


def _names_one_twice(call: ast.Call, frame: FrameType) -> bool:
    """Tell `zip(it, it)` and `zip(*[it] * 2)`, which take several batches for one body."""
    if _called(call) not in {"zip", "map"}:
        return False
    names = [each.id for each in call.args if _is_name(each)]
    starred = [each.value for each in call.args if isinstance(each, ast.Starred)]
    return len(set(names)) < len(names) or any(
        isinstance(each, ast.BinOp) or (isinstance(each, ast.Name) and _repeats(frame.f_locals.get(each.id)))
        for each in starred
    )


def _repeats(values: object) -> bool:
    """Tell iterators of which one stands there twice."""
    iterators = [id(each) for each in values if hasattr(each, "__next__")] if isinstance(values, (list, tuple)) else []
    return len(set(iterators)) < len(iterators)


def _owner(frame: FrameType) -> object:
    """Give what a method is called on, else the function's code."""
    code = frame.f_code
    first = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
    return first if hasattr(first, "__dict__") and not isinstance(first, type) else code


def _holds(value: object) -> bool:
    """Tell whether a value may hold samples: a tensor or a container that is not empty."""
    if isinstance(value, Tensor):
        return value.numel() > 0
    return isinstance(value, Collection) and not isinstance(value, (str, bytes, nn.Module)) and len(value) > 0


def _holds_samples(value: object, depth: int = 3) -> bool:
    """Tell whether an attribute may hold samples: tensors, arrays, or a list of anything but floats and objects.

    Loggers and meters keep floats, counts by label, and objects of their own.
    """
    if isinstance(value, (Tensor, np.ndarray)):
        return value.size != 0 if isinstance(value, np.ndarray) else value.numel() > 0
    if depth == 0 or not isinstance(value, (list, tuple, set, deque, dict)):
        return False
    elements = list(itertools.islice(value.values() if isinstance(value, dict) else value, _LOOKED_AT))
    if not isinstance(value, dict) and any(isinstance(each, (int, str, bytes)) for each in elements):
        return True
    return any(_holds_samples(each, depth - 1) for each in elements)


_LOOKED_AT = 100


def _size(value: object) -> int:
    return len(value) if isinstance(value, Collection) and not isinstance(value, Tensor) else 0


def _parts(values: list[Any]) -> set[int]:
    """Identify values; of lists, tuples and dicts what they consist of."""
    parts: set[int] = set()
    for value in values:
        elements = list(value.values()) if isinstance(value, dict) else value
        if isinstance(elements, (list, tuple)) and elements:
            parts |= _parts(list(elements))
        else:
            parts.add(id(value))
    return parts
