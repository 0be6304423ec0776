"""Owns the search for what decides the next step and is tracked by nobody. Never changes or raises anything."""

import logging
import random
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import CodeType, FrameType, FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from samestep.state.binding import line_of_binding
from samestep.state.reach import MOST_OBJECTS, children, fetched_through, generators_of, is_loader, owned
from samestep.state.script import LoopNames, loop_names
from samestep.state.suspects import kind_of_suspect, tensors_like

_log = logging.getLogger("samestep")


@dataclass(frozen=True, slots=True)
class Untracked:
    """An object that decides the next step and that nobody tracks.

    Args:
        name: How the script reaches it, such as "ema" or "trainer.scheduler".
        kind: "optimizer", "scheduler", "scaler", "generator", "sampler", "module", "loader", "object" (one with a
            `state_dict`), "weights" (a copy of a tracked module's tensors) or "counter" (a bare iterator).
        file: The script's file.
        line: Where the name is first bound, or where the loop is if that cannot be found.
        value: The object itself.
    """

    name: str
    kind: str
    file: str
    line: int
    value: object = field(default=None, compare=False, repr=False)


def find_untracked(frame: FrameType, objects: Mapping[str, object]) -> list[Untracked]:
    """Look for state that nobody tracks, and that the loop carries from one body to the next.

    Searched are the names that the frame's code uses, those that functions beside it use, the tracked objects, and
    what is reachable from all these through attributes, lists, tuples and dicts: at most 10,000 objects.

    It takes 12 ms for a model of 300 layers (measured on a virtual machine with 2 cores of an AMD EPYC), so that it can
    run at every save; a found object has the same name each time.

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


def find_wrappers(frame: FrameType, objects: Mapping[str, object]) -> dict[str, object]:
    """Look for untracked objects around tracked modules, such as an EMA class whose model alone is tracked.

    What runs the loop itself, a trainer whose method asks, is none of them.

    Args:
        frame: The frame of the training loop.
        objects: The tracked objects by name.

    Returns:
        The objects by the shortest names under which the script reaches them.
    """
    try:
        tracked, running = _TrackedState(objects), _running(frame)
        modules = {id(each) for each in objects.values() if isinstance(each, nn.Module)}
        return {
            path: value
            for path, value in _reachable(_names_in_use(frame), tracked.closed)
            if hasattr(value, "__dict__")
            and not isinstance(value, (type, FunctionType, Optimizer))
            and id(value) not in tracked.known | running
            and modules & {id(part) for part in (vars(value) | vars(value).get("_modules", {})).values()}
            and not _is_ours(value)
        }
    except Exception:  # noqa: BLE001  (as above)
        _log.debug("The search for wrappers gave up.", exc_info=True)
        return {}


def _running(frame: FrameType | None) -> set[int]:
    """Identify what the functions on the stack are methods of."""
    running = set()
    while frame is not None:
        if frame.f_code.co_argcount and frame.f_code.co_varnames[0] in frame.f_locals:
            running.add(id(frame.f_locals[frame.f_code.co_varnames[0]]))
        frame = frame.f_back
    return running


def _search(frame: FrameType, objects: Mapping[str, object]) -> list[Untracked]:
    tracked = _TrackedState(objects)
    loop = _Loop(frame)
    found = []
    for path, value in _reachable([*loop.kept(_names_in_use(frame)), *objects.items()], tracked.closed):
        root = path.split(".")[0].split("[")[0]
        kind = tracked.kind_of_suspect(value)
        if kind is None or not (kind in _CERTAIN or loop.carries(root, path, kind)):
            continue
        if kind == "module" and loop.makes_anew(root):
            continue  # a copy that each body makes for an evaluation
        if id(value) in tracked.seeded and not (loop.carries(root, path, kind) and _has_drawn(value)):
            continue
        tracked.known.update(id(each) for each in owned(value))  # its own parts are not reported beside it
        found.append(Untracked(path, kind, frame.f_code.co_filename, line_of_binding(frame, root), value))
    return found


_CERTAIN = {"optimizer", "scheduler", "scaler", "generator", "sampler", "module", "loader"}
"""Kinds that count wherever they are; others only where the loop carries them from one body to the next."""


class _TrackedState:
    """All that is saved: the tracked objects with what they own, and the generators of the process."""

    def __init__(self, objects: Mapping[str, object]) -> None:
        legacy, python = vars(np.random.mtrand)["_rand"], vars(random)["_inst"]
        own: tuple[Any, ...] = (torch.default_generator, legacy, python)
        loaders = [each for each in objects.values() if is_loader(each)]
        fetched = {id(part) for each in loaders for part in fetched_through(each)}
        self.closed = fetched | {id(each) for each in loaders}
        self.seeded = {each for loader in loaders for each in generators_of(loader)}
        saved = {id(part) for each in objects.values() for part in owned(each)}
        self.known = {id(each) for each in own} | saved | fetched
        self._objects = {id(each) for each in objects.values()}
        self._modules = [each for each in objects.values() if isinstance(each, nn.Module)]
        self._shapes = [tuple(parameter.shape for parameter in module.parameters()) for module in self._modules]
        self._tensors = {each for module in self._modules for each in _tensors(module)}

    def kind_of_suspect(self, value: object) -> str | None:
        """Tell which kind of untracked state a value is; None if it is saved, or decides nothing."""
        if id(value) in self.known:
            return None
        kind = kind_of_suspect(value, self._shapes)
        if isinstance(value, nn.Module) and _tensors(value) <= self._tensors:
            return None
        if kind == "object" and self._is_wrapper(value):
            return None
        return "weights" if kind is None and self._is_copy(value) else kind

    def _is_wrapper(self, value: object) -> bool:
        """Tell an object that only passes on what a tracked one says."""
        parts = list(getattr(value, "__dict__", {}).values())
        rest = [each for each in parts if id(each) not in self._objects]
        return len(rest) < len(parts) and all(isinstance(each, (str, bool, type(None))) for each in rest)

    def _is_copy(self, value: object) -> bool:
        """Tell tensors that are a copy of a tracked module's weights from the weights and gradients themselves."""
        tensors = tensors_like(value, self._shapes_of_copies)
        return bool(tensors) and not any(each.data_ptr() in self._live_memory for each in tensors)

    @cached_property
    def _shapes_of_copies(self) -> set[tuple[torch.Size, ...]]:
        return {tuple(sorted(shapes)) for module in self._modules for shapes in _shapes_of_copies(module)}

    @cached_property
    def _live_memory(self) -> set[int]:
        live = [tensor for module in self._modules for tensor in (*module.parameters(), *module.buffers())]
        gradients = [tensor.grad for tensor in live if tensor.is_leaf and tensor.grad is not None]
        return {tensor.data_ptr() for tensor in (*live, *gradients) if not tensor.is_sparse}


class _Loop:
    """How the loops around the frame's line use its names."""

    def __init__(self, frame: FrameType) -> None:
        self._frame = frame

    def kept(self, names: list[tuple[str, object]]) -> list[tuple[str, object]]:
        """Leave out the names that each body writes anew: what hangs on them alone does not outlive it."""
        fresh = frozenset() if self._names is None else self._names.fresh
        return [(name, value) for name, value in names if name not in fresh]

    def carries(self, root: str, path: str, kind: str) -> bool:
        """Tell whether the loop may carry what lies at a path from one body to the next."""
        if kind == "counter" and ("[" in path or path.count(".") > 1):
            return False  # the business of whatever holds it
        if self._names is None or root not in self._own:
            return True
        return root in self._names.used and root not in self._names.fresh

    def makes_anew(self, root: str) -> bool:
        """Tell whether the loop writes a name before it reads it again, so that no body hands it to the next."""
        return self._names is not None and root in self._own and root in self._names.fresh

    @cached_property
    def _names(self) -> LoopNames | None:
        return loop_names(self._frame)

    @cached_property
    def _own(self) -> set[str]:
        code = self._frame.f_code
        return {*code.co_varnames, *code.co_names, *code.co_cellvars, *code.co_freevars}


def _shapes_of_copies(module: nn.Module) -> Iterator[list[torch.Size]]:
    """Give the shapes that copies of a module's weights have: of all, of those that train, of its state dict."""
    parameters = list(module.parameters())
    yield [each.shape for each in parameters]
    yield [each.shape for each in parameters if each.requires_grad]
    if next(module.buffers(), None) is not None:
        yield [each.shape for each in (*parameters, *_persistent_buffers(module))]


def _persistent_buffers(module: nn.Module) -> Iterator[Tensor]:
    for part in module.modules():
        passing = part._non_persistent_buffers_set  # noqa: SLF001  (state_dict() would cost ten times as much)
        yield from (each for name, each in part.named_buffers(recurse=False) if name not in passing)


def _has_drawn(generator: object) -> bool:
    """Tell whether a generator is not as its seed left it; only torch's say what the seed was."""
    if not isinstance(generator, torch.Generator):
        return True
    fresh = torch.Generator(generator.device).manual_seed(generator.initial_seed())
    return not torch.equal(fresh.get_state(), generator.get_state())


def _tensors(module: nn.Module) -> set[int]:
    """Identify a module's tensors: a wrapper around a tracked module has no others, so it is tracked too."""
    return {id(tensor) for tensor in (*module.parameters(), *module.buffers())}


def _names_in_use(frame: FrameType) -> list[tuple[str, object]]:
    """Give the frame's local names, and the global ones that its code or a function beside it uses."""
    names = {name: frame.f_globals[name] for name in sorted(_global_names(frame))}  # in one order in every process
    if frame.f_locals is not frame.f_globals:
        names |= frame.f_locals
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


def _reachable(roots: list[tuple[str, object]], closed: Collection[int]) -> Iterator[tuple[str, object]]:
    """Walk breadth first, so that each object comes under its shortest name; what is closed is not entered."""
    seen: set[int] = set()
    queue = [(path, value, 0) for path, value in roots]
    for path, value, depth in queue:
        if id(value) in seen or isinstance(value, (Tensor, np.ndarray)):
            continue
        if len(seen) >= MOST_OBJECTS:
            return
        seen.add(id(value))
        yield path, value
        if depth < _DEPTH and id(value) not in closed and not _is_ours(value):
            queue.extend((f"{path}{step}", child, depth + 1) for step, child in children(value))


_DEPTH = 8
"""Attributes and elements from a name of the loop. What lies deeper, such as all that a test runner or a logger
holds, is another's affair."""


def _is_ours(value: object) -> bool:
    """Tell the library's own objects, such as the run, which holds all that is tracked, from the user's."""
    return type(value).__module__.partition(".")[0] == "samestep" and not isinstance(value, DataLoader)
