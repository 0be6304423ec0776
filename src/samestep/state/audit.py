"""Owns the search for what decides the next step and is tracked by nobody. Never changes or raises anything."""

import logging
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import CodeType, FrameType, FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from samestep.state.binding import line_of_binding
from samestep.state.reach import MOST_OBJECTS, children, owned
from samestep.state.suspects import kind_of_suspect

_log = logging.getLogger("samestep")


@dataclass(frozen=True, slots=True)
class Untracked:
    """An object that decides the next step and that nobody tracks.

    Args:
        name: How the script reaches it, such as "ema" or "trainer.scheduler".
        kind: "optimizer", "scheduler", "scaler", "generator", "sampler", "module" or "loader".
        file: The script's file.
        line: Where the name is first bound, or where the loop is if that cannot be found.
    """

    name: str
    kind: str
    file: str
    line: int


def find_untracked(frame: FrameType, objects: Mapping[str, object]) -> list[Untracked]:
    """Look for state that nobody tracks: optimizers, schedulers, scalers, generators, samplers, modules, loaders.

    Searched are the names that the frame's code uses, those that functions beside it use, the tracked objects, and
    what is reachable from all these through attributes, lists, tuples and dicts: at most 10,000 objects.

    Args:
        frame: The frame of the training loop.
        objects: The tracked objects by name.

    Returns:
        What was found, each object once, under the shortest name; nothing if the search fails.

    Example:
        >>> import sys
        >>> def train():
        ...     net = nn.Linear(1, 1)
        ...     optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        ...     return find_untracked(sys._getframe(), {"model": net})
        >>> [(each.name, each.kind) for each in train()]
        [('optimizer', 'optimizer')]
    """
    try:
        return _search(frame, objects)
    except Exception:  # noqa: BLE001  (a user's proxy may do anything; the audit must not stop a training)
        _log.debug("The audit gave up.", exc_info=True)
        return []


def _search(frame: FrameType, objects: Mapping[str, object]) -> list[Untracked]:
    known = _known(objects)
    roots = [*_names_in_use(frame), *objects.items()]
    shapes = [_shapes(each) for each in objects.values() if isinstance(each, nn.Module)]
    tensors = {each for tracked in objects.values() if isinstance(tracked, nn.Module) for each in _tensors(tracked)}
    found = []
    for path, value in _reachable(roots):
        kind = None if id(value) in known else kind_of_suspect(value, shapes)
        if kind is not None and not (isinstance(value, nn.Module) and _tensors(value) <= tensors):
            known.update(id(each) for each in owned(value))  # its own parts are not reported beside it
            root = path.split(".")[0].split("[")[0]
            found.append(Untracked(path, kind, frame.f_code.co_filename, line_of_binding(frame, root)))
    return found


def _known(objects: Mapping[str, object]) -> set[int]:
    """Identify all that is saved: the tracked objects with what they own, and the generators of the process."""
    legacy, python = vars(np.random.mtrand)["_rand"], vars(random)["_inst"]
    own: tuple[Any, ...] = (torch.default_generator, legacy, python)
    return {id(each) for each in own} | {id(part) for each in objects.values() for part in owned(each)}


def _tensors(module: nn.Module) -> set[int]:
    """Identify a module's tensors: a wrapper around a tracked module has no others, so it is tracked too."""
    return {id(tensor) for tensor in (*module.parameters(), *module.buffers())}


def _shapes(module: nn.Module) -> tuple[torch.Size, ...]:
    return tuple(parameter.shape for parameter in module.parameters())


def _names_in_use(frame: FrameType) -> list[tuple[str, object]]:
    """Give the frame's local names, and the global ones that its code or a function beside it uses."""
    names = {**{name: frame.f_globals[name] for name in _global_names(frame)}, **frame.f_locals}
    if frame.f_locals is frame.f_globals:
        names = {name: frame.f_globals[name] for name in _global_names(frame)}
    return [(name, value) for name, value in names.items() if not name.startswith("__")]


def _global_names(frame: FrameType) -> set[str]:
    wanted = _all_names(frame.f_code)
    for name in list(wanted):
        value = frame.f_globals.get(name)
        if isinstance(value, FunctionType) and value.__globals__ is frame.f_globals:
            wanted |= _all_names(value.__code__)
    return {name for name in wanted if name in frame.f_globals}


def _all_names(code: CodeType) -> set[str]:
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*(_all_names(each) for each in inner))


def _reachable(roots: list[tuple[str, object]]) -> Iterator[tuple[str, object]]:
    """Walk breadth first, so that each object comes under its shortest name."""
    seen: set[int] = set()
    queue = list(roots)
    for path, value in queue:
        if id(value) in seen or isinstance(value, (Tensor, np.ndarray)):
            continue
        if len(seen) >= MOST_OBJECTS:
            return
        seen.add(id(value))
        yield path, value
        if not _is_ours(value):
            queue.extend((f"{path}{step}", child) for step, child in children(value))


def _is_ours(value: object) -> bool:
    """Tell the library's own objects, such as the run, which holds all that is tracked, from the user's."""
    return type(value).__module__.partition(".")[0] == "samestep" and not isinstance(value, DataLoader)
