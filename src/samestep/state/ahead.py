"""Owns the telling of a look from reading ahead, where a loader is asked before the head of its loop asks.

`first = next(batches)` and then `for batch in batches` is a look: when the epoch is resumed, the statements at its top
ask again, and get what they got. A prefetcher looks alike, but hands the batch on to the bodies; then no resume can
give it back. It is a look only if nothing that the loop reads, and does not write before, can hold a batch.
"""

import ast
import gc
import inspect
import logging
import sys
from collections import deque
from logging import Logger
from types import CodeType, FrameType, FunctionType, GeneratorType, ModuleType
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, Dataset

from samestep.installed import is_installed
from samestep.messages import Path, place_in_text
from samestep.state.carried import carries, is_of_run
from samestep.state.display import only_shown
from samestep.state.script import Loop, body_events, loop_names, loops_of

_log = logging.getLogger("samestep")

_NUMBERS = (bool, int, float)
_PLAIN = (*_NUMBERS, complex, str, bytes, type(None))
_KNOWN = (Optimizer, LRScheduler, DataLoader, Dataset, ModuleType, Logger)
"""What holds no batches for a loop, whatever else it holds."""

_OPAQUE = (GeneratorType, zip)
_OPAQUE_MODULES = {"itertools", "_queue", "queue", "multiprocessing.queues"}
_MOST = 2_000


def is_look(frame: FrameType, first: Path, around: frozenset[int]) -> bool:
    """Tell whether what was asked for earlier in an epoch was a look, and its loop begins here.

    Args:
        frame: The user's frame that asks the loader now.
        first: The way to where it was asked first, from `path_in_text`.
        around: The codes of the frames around the run's loop, where ways end.

    Returns:
        Whether this request is made by the head of a `for` behind the first one, that carries nothing which may hold
        samples; False if that cannot be told.
    """
    try:
        frames = [frame]
        while id(frames[-1].f_code) not in around and frames[-1].f_back is not None:
            frames.append(frames[-1].f_back)
        here = _parting(frames, first)
        return here is not None and _begins_loop(*here) and not _may_hold(here[0], frames)
    except Exception:  # noqa: BLE001  (unparsable text or a proxy of the user's: then there are boundaries at edges only)
        _log.debug("The search for a look gave up.", exc_info=True)
        return False


def _parting(frames: list[FrameType], first: Path) -> tuple[FrameType, Any, Any] | None:
    """Find the outermost frame in which the two ways part, with both places in its text."""
    for frame, there in zip(reversed(frames), reversed(first), strict=False):
        here = place_in_text(frame)
        if there != here:
            return (frame, there[1], here[1]) if there[0] == here[0] else None
    return None


def _begins_loop(frame: FrameType, there: Any, here: Any) -> bool:
    """Tell whether the head of a `for` asks here, below the other place, with no loop around but the run's own."""
    _, loops = loops_of(frame)
    inner = loops[-1] if loops else None
    if not isinstance(inner, ast.For) or not isinstance(there, tuple):
        return False
    is_head = here in (_position(inner), _position(inner.iter))  # Python 3.11 says the former, newer ones the latter
    return is_head and there[0] < inner.lineno and not inner.orelse and all(map(is_of_run, loops[:-1]))


def _position(node: ast.expr | ast.stmt) -> tuple[int, int | None, int, int | None]:
    return node.lineno, node.end_lineno, node.col_offset, node.end_col_offset


def _may_hold(frame: FrameType, frames: list[FrameType]) -> bool:
    """Tell whether a batch may be handed from one body of the loop around a frame's line to the next."""
    _, loops = loops_of(frame)
    values = {**frame.f_globals, **frame.f_locals}
    carried = {
        name for name in carries(loops) if not (_only_grows(name, loops[-1]) and _is_looked_into(values.get(name)))
    }
    names = loop_names(frame)
    if names is None or carried - only_shown(frame, carried) or _rewrites(loops, values):
        return True
    known = {id(each) for each in frames}  # what feeds this request is looked at wherever a boundary is due
    used = {name: values[name] for name in names.used - names.fresh if name in values}
    return any(_reaches_samples(each, known) for each in _used(used, {*used} | _names(frame.f_code)))


def _is_number(value: object) -> bool:
    return isinstance(value, _NUMBERS)


def _is_looked_into(value: object) -> bool:
    """Tell counters, and objects that are no containers: those with an `update` that is no dict's."""
    return _is_number(value) or not isinstance(value, (*_PLAIN, *_LISTS, dict, Tensor, np.ndarray))


def _only_grows(name: str, loop: Loop) -> bool:
    return all(kind != "write" for each, kind, _ in body_events(loop) if each == name)


def _rewrites(loops: list[Loop], values: dict[str, Any]) -> bool:
    """Tell whether a loop writes an attribute or element that is read too, is no counter, and not in `run.state`."""
    nodes = [node for statement in loops[-1].body for node in ast.walk(statement)]
    written = [each for each in nodes if isinstance(each, _PLACES) and not isinstance(each.ctx, ast.Load)]
    around = [each for each in ast.walk(loops[0]) if isinstance(each, _PLACES)]
    read = {ast.unparse(each) for each in around if isinstance(each.ctx, ast.Load)}
    grown = {id(node.target) for node in nodes if isinstance(node, ast.AugAssign)}
    return any(
        not (id(each) in grown and _is_number(_value(each, values))) and not _is_state(each, values)
        for each in written
        if id(each) in grown or ast.unparse(each) in read
    )


_PLACES = (ast.Attribute, ast.Subscript)


def _is_state(expression: ast.expr, values: dict[str, Any]) -> bool:
    """Tell a value of `run.state`, which is saved."""
    holder = _value(expression.value, values) if isinstance(expression, ast.Attribute) else None
    return type(holder).__module__ == "samestep.progress"


def _value(expression: ast.expr, values: dict[str, Any]) -> Any:
    """Give what a name or an attribute is now; None for all else."""
    if isinstance(expression, ast.Name):
        return values.get(expression.id)
    if isinstance(expression, ast.Attribute):
        holder = _value(expression.value, values)
        if type(holder).__module__ == "samestep.run":
            return getattr(holder, expression.attr, None)
        return inspect.getattr_static(holder, expression.attr, None)
    return None


def _reaches_samples(root: object, frames: set[int]) -> bool:
    """Tell whether a value that the loop uses may hold a batch: tensors, words, or what nobody can look into."""
    seen: set[int] = set()
    queue = [root]
    for value in queue:
        if id(value) in seen or isinstance(value, (*_PLAIN, *_KNOWN)) or _is_ours(value):
            continue
        if isinstance(value, GeneratorType) and id(value.gi_frame) in frames:
            continue
        seen.add(id(value))
        if isinstance(value, (Tensor, np.ndarray, *_OPAQUE)) or type(value).__module__ in _OPAQUE_MODULES:
            return True
        inside = _inside(value)
        if len(seen) >= _MOST or len(inside) >= _MOST or (isinstance(value, _LISTS) and any(map(_is_word, inside))):
            return True
        queue.extend(inside)
    return False


_LISTS = (list, tuple, set, deque)


def _is_word(value: object) -> bool:
    """Tell what a list of samples may consist of; floats are logs."""
    return isinstance(value, (int, str, bytes))


def _inside(value: object) -> list[object]:
    """Give what a value holds; of the user's functions and classes also what they use and keep themselves."""
    if isinstance(value, FunctionType):
        return _in_function(value)
    if isinstance(value, type):
        kinds = [kind for kind in value.__mro__ if _is_users(sys.modules.get(kind.__module__))]
        return [each for kind in kinds for name, each in vars(kind).items() if _is_kept(name, each)]
    if isinstance(value, nn.Module):
        return [type(value), *_in_module(value)]
    return [type(value), *gc.get_referents(value)]


def _in_function(function: FunctionType) -> list[object]:
    if is_installed(function.__code__.co_filename) or function.__module__.partition(".")[0] == "samestep":
        return []
    defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    used = _used(function.__globals__, _names(function.__code__))
    return [*used, *(function.__closure__ or ()), *defaults, *vars(function).values()]


def _in_module(module: nn.Module) -> list[object]:
    """Give a module's parts and hooks, and what the user's class keeps beside them: a trainer may be a module."""
    hooks = [each for name, each in vars(module).items() if "hooks" in name]
    own = {name: each for name, each in vars(module).items() if name not in _OF_TORCH and not isinstance(each, tuple)}
    is_users = _is_users(sys.modules.get(type(module).__module__))
    return [*module.children(), *hooks, *(own.values() if is_users else ())]


_OF_TORCH = frozenset(vars(nn.Module()))


def _is_kept(name: str, value: object) -> bool:
    """Tell what a class keeps or does from what Python and its own constants say."""
    is_of_python = name.startswith("_") and name.endswith("_") and not isinstance(value, FunctionType)
    return not is_of_python and not isinstance(value, tuple)


def _used(values: dict[str, Any], names: set[str]) -> list[object]:
    """Give what names stand for; of the user's modules, what is called by one of the names there."""
    seen: list[object] = []
    queue = [values]
    for each in queue:
        found = [each[name] for name in names if name in each]
        modules = [one for one in found if isinstance(one, ModuleType) and _is_users(one)]
        queue.extend(vars(one) for one in modules if not any(vars(one) is other for other in queue))
        seen.extend(found)
    return seen


def _names(code: CodeType) -> set[str]:
    """Give the global names and attributes that a code uses, and what is defined inside it."""
    return set(code.co_names).union(*(_names(each) for each in code.co_consts if isinstance(each, CodeType)))


def _is_users(module: ModuleType | None) -> bool:
    """Tell a module that the user wrote; one without a file is what is typed at a prompt, or built in."""
    name, file = getattr(module, "__name__", ""), getattr(module, "__file__", None)
    return name == "__main__" if file is None else not is_installed(file) and name.partition(".")[0] != "samestep"


def _is_ours(value: object) -> bool:
    return type(value).__module__.partition(".")[0] == "samestep"
