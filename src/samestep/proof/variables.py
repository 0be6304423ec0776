"""Owns what a training keeps in its names besides model and optimizer: counters, averages, schedulers, generators.

It looks where the training's own code looks, from the frames that led to the optimizer's step. Never calls, never
changes what it finds.
"""

import random
import sys
from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import BuiltinFunctionType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from samestep.generators import generator_state, is_generator
from samestep.installed import is_installed
from samestep.proof.fingerprint import fingerprint, json_number, tensor_digest
from samestep.proof.ledger import SCHEDULER

_MOST_OBJECTS, _MOST_LEAVES, _MOST_ELEMENTS, _MOST_BYTES, _DEEPEST = 3_000, 500, 1_000, 1 << 20, 5
_OURS = str(Path(__file__).parents[1])
_SCALARS = (bool, int, float)
_CLOSED = (str, bytes, type, type(None), ModuleType, FunctionType, MethodType, BuiltinFunctionType, Optimizer)
_CLOSED_TOO = (_BaseDataLoaderIter, FrameType, torch.dtype, torch.device, Path)
_LOADER = ("dataset", "sampler", "batch_sampler", "generator")
_IDLE = {"training", "optimizer"}


@dataclass
class Held:
    """What was found.

    Args:
        copies: Digests of tensors that stand in sets shaped as the trained parameters, such as averages of them.
        variables: Digests of all else, by the expression that leads there.
        values: The numbers among the variables.
        completed: How many steps a samestep run says are done; None without one.
    """

    copies: dict[str, str] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    values: dict[str, float | str] = field(default_factory=dict)
    completed: int | None = None


def read(frame: FrameType | None, trained: Collection[Tensor]) -> Held:
    """Give what the user's own frames can reach.

    Args:
        frame: Where the step was asked for; None reads the names of the main module.
        trained: The parameters that the optimizers change, which are parts of their own.
    """
    search = _Search(trained)
    for name, value in _names(frame):
        search.roots.setdefault(name, value)
    return search.run()


class _Search:
    """One search, nearest things first; it ends at a fixed number of objects, so that its cost is bounded."""

    def __init__(self, trained: Collection[Tensor]) -> None:
        self.roots: dict[str, object] = {}
        self._trained = {id(each) for each in trained} | {id(each.grad) for each in trained if each.grad is not None}
        self._memory = {_place(each) for each in trained}
        self._shapes = Counter(each.shape for each in trained)
        self._found = Held()
        self._schedulers: list[str] = []
        self._seen: set[int] = set()

    def run(self) -> Held:
        """Search, and give what was found."""
        queue = deque((name, value, 0) for name, value in self.roots.items())
        while queue and len(self._seen) < _MOST_OBJECTS and len(self._found.variables) < _MOST_LEAVES:
            name, value, depth = queue.popleft()
            if self._is_closed(value):
                continue
            inside = self._inside(name, value)
            self._schedulers += [f"{name}."] if isinstance(value, LRScheduler) else []
            if depth < _DEEPEST:
                queue.extend((name + step, child, depth + 1) for step, child in inside)
        for name, digest in self._found.variables.items():
            if name.startswith(tuple(self._schedulers)):
                self._found.variables[name] = f"{SCHEDULER}{digest}"
        return self._found

    def _is_closed(self, value: object) -> bool:
        if isinstance(value, _SCALARS):
            return False
        if isinstance(value, (*_CLOSED, *_CLOSED_TOO)) or id(value) in self._seen or id(value) in self._trained:
            return True
        self._seen.add(id(value))
        if type(value).__module__.startswith("samestep."):
            self._note_ours(value)
            return True
        return False

    def _note_ours(self, value: Any) -> None:
        if type(value).__qualname__ == "Run":
            self._found.completed = value.completed_steps

    def _inside(self, name: str, value: Any) -> Iterator[tuple[str, object]] | list[tuple[str, object]]:
        """Note what is a value in itself, and give what else has to be searched."""
        if isinstance(value, _SCALARS):
            self._found.variables[name] = f"{type(value).__name__} {value!r}"
            self._found.values[name] = json_number(value)
        elif isinstance(value, Tensor):
            self._note_tensor(name, value)
        elif isinstance(value, np.ndarray):
            if value.nbytes <= _MOST_BYTES:
                self._found.variables[name] = f"array {fingerprint(value)}"
        elif is_generator(value):
            if value is not torch.default_generator and value is not getattr(random, "_inst", None):
                self._found.variables[name] = f"generator {fingerprint(generator_state(value))}"
        elif isinstance(value, nn.Module):
            return self._module(name, value)
        elif isinstance(value, (Mapping, list, tuple, set, frozenset, deque)):
            return self._container(name, value)
        elif isinstance(value, DataLoader):
            return [(f".{each}", getattr(value, each, None)) for each in _LOADER]
        else:
            return _attributes(value)
        return []

    def _note_tensor(self, name: str, value: Tensor) -> None:
        # A large one by itself is data; hashing it only when it is written to would miss `.data` and NumPy.
        if value.grad_fn is None and value.nbytes <= _MOST_BYTES:
            self._found.variables[name] = f"tensor {tensor_digest(value)}"

    def _module(self, name: str, module: nn.Module) -> list[tuple[str, object]]:
        tensors = {
            each: value for each, value in module.state_dict(keep_vars=True).items() if isinstance(value, Tensor)
        }
        if any(id(each) in self._trained for each in module.parameters()):
            return [(step, each) for step, each in _attributes(module) if isinstance(each, _SCALARS)]
        self._note_set(name, {f".{each}": value for each, value in tensors.items()})
        return []

    def _container(self, name: str, value: Any) -> list[tuple[str, object]]:
        if len(value) > _MOST_ELEMENTS:
            self._found.variables[name] = f"length {len(value)}"
            return []
        if isinstance(value, (set, frozenset)) or _is_plain(value):
            self._found.variables[name] = fingerprint(value)
            return []
        pairs = value.items() if isinstance(value, Mapping) else enumerate(value)
        inside = [(f"[{key!r}]", each) for key, each in pairs if isinstance(key, (str, int))]
        tensors = {step: each for step, each in inside if isinstance(each, Tensor)}
        if len(tensors) == len(inside) and self._is_set(tensors):
            self._note_set(name, tensors)
            return []
        return inside[:50]

    def _is_set(self, tensors: Mapping[str, Tensor]) -> bool:
        shaped = Counter(each.shape for each in tensors.values() if each.is_floating_point()) & self._shapes
        return shaped.total() >= max(1, self._shapes.total() // 2)

    def _note_set(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        if any(_place(each) in self._memory for each in tensors.values()):
            return  # a state dict that is kept shows the living weights
        into = self._found.copies if self._is_set(tensors) else self._found.variables
        for step, each in tensors.items():
            self._seen.add(id(each))
            of = into if each.shape in self._shapes else self._found.variables
            of[name + step] = tensor_digest(each)  # without a kind: what stands in a set is state, not a batch


def _place(tensor: Tensor) -> tuple[int, int] | None:
    """Tell where a tensor's bytes are, to know another view of it."""
    try:
        return tensor.data_ptr(), tensor.numel()
    except RuntimeError:
        return None


def _names(frame: FrameType | None) -> Iterator[tuple[str, object]]:
    """Give the names that the user's own code sees, innermost frame first."""
    while frame is not None:
        file = frame.f_code.co_filename
        if not is_installed(file) and not file.startswith(_OURS):
            yield from _plain_names(frame.f_locals)
        frame = frame.f_back
    main: Any = sys.modules.get("__main__")
    yield from _plain_names(getattr(main, "__dict__", {}))


def _plain_names(names: Mapping[str, object]) -> list[tuple[str, object]]:
    return [(name, value) for name, value in list(names.items()) if not name.startswith("__")]


def _attributes(value: object) -> list[tuple[str, object]]:
    attributes = getattr(value, "__dict__", None)
    if not isinstance(attributes, dict) or len(attributes) > _MOST_ELEMENTS:
        return []
    return [(f".{name}", each) for name, each in list(attributes.items()) if name not in _IDLE]


def _is_plain(value: object, levels: int = 6) -> bool:
    """Tell whether a value consists of numbers and texts alone."""
    if value is None or isinstance(value, (*_SCALARS, str, bytes)):
        return True
    if levels == 0 or not isinstance(value, (list, tuple, dict, deque)) or len(value) > _MOST_ELEMENTS:
        return False
    parts = value.values() if isinstance(value, dict) else value
    return all(_is_plain(each, levels - 1) for each in parts)
