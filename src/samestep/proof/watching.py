"""Owns what is seen of a training between two optimizer steps: batches, forwards, losses. Never changes a number.

What counts is what the next step is made from: the batches that were handed out before its training forwards, what
those were called with, the random generators and buffers before them, and the roots of the backward passes.
"""

import threading
import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import dataloader, get_worker_info

from samestep.generators import global_state
from samestep.proof.fingerprint import combined, fingerprint, json_number, tensor_digest

_ALL_GIVEN = 3
"""Arguments, named arguments, and the result."""


@dataclass
class _Handed:
    """A batch that a loader has handed out."""

    digest: str
    indices: Any
    is_first: bool = False
    is_evaluated: bool = False


class Watch:
    """Collects digests until a step takes them."""

    def __init__(self) -> None:
        self._depth = threading.local()
        self._handed: dict[int, _Handed] = {}
        self._batches: list[str] = []
        self._indices: list[Any] = []
        self._inputs: list[str] = []
        self._losses: list[str] = []
        self._values: list[float | str] = []
        self._buffers: dict[str, str] = {}
        self._random: dict[str, str] = {}
        self._trained_on: set[int] = set()
        self._epochs = 0
        self._is_at_edge = False
        self.roots: dict[int, weakref.ref[nn.Module]] = {}

    def install(self) -> None:
        """Begin to watch; PyTorch has hooks for modules, and none for loaders and backward passes."""
        nn.modules.module.register_module_forward_pre_hook(self._before_forward)
        nn.modules.module.register_module_forward_hook(self._after_forward, with_kwargs=True, always_call=True)
        _wrap_backward(self)
        _wrap_loaders(self)

    def living_roots(self) -> list[nn.Module]:
        """Give the modules that were called by the training itself, not by another module."""
        return [module for each in self.roots.values() if (module := each()) is not None]

    # --- what happens ------------------------------------------------------------------------------------

    def handed(self, iterator: int, batch: Any, indices: Any, *, is_first: bool) -> None:
        """Note a batch; it counts if a training forward comes before the next one.

        What was only evaluated does not: the last batch of a validation that was cut short.
        """
        self._handed = {key: each for key, each in self._handed.items() if not each.is_evaluated}
        before = self._handed.get(iterator)  # where batches are fetched ahead, nobody has used it yet
        is_first = is_first or (before is not None and before.is_first)
        self._handed[iterator] = _Handed(fingerprint(batch), indices, is_first)

    def exhausted(self, iterator: int) -> None:
        """Forget what an iterator that has ended handed out last: nobody has trained on it, or it is noted."""
        self._handed.pop(iterator, None)
        if iterator in self._trained_on:
            self._trained_on.discard(iterator)
            self._epochs += 1
            self._is_at_edge = True

    def backward(self, roots: Any) -> None:
        """Note what a backward pass begins at."""
        tensors = [
            each for each in (roots if isinstance(roots, (list, tuple)) else [roots]) if isinstance(each, Tensor)
        ]
        self._losses += [tensor_digest(each) for each in tensors]
        values = [each.detach().item() for each in tensors if each.numel() == 1 and not each.is_meta]
        self._values += [json_number(each) for each in values]

    def _before_forward(self, module: nn.Module, _arguments: Any) -> None:
        if torch.compiler.is_compiling():
            return
        depth = getattr(self._depth, "value", 0)
        self._depth.value = depth + 1
        if depth or _is_in_backward():
            return
        if not (module.training and torch.is_grad_enabled()):
            for each in self._handed.values():  # or a frozen part comes first, or one that is recomputed later
                each.is_evaluated = True
            return
        known = self.roots.get(id(module))
        if known is None or known() is not module:  # the number of a module that is gone is given again
            self.roots[id(module)] = weakref.ref(module)
        if not self._inputs:
            self._buffers = {}
        for name, buffer in module.named_buffers():
            self._buffers.setdefault(name, tensor_digest(buffer))
        self._random = random_digests()

    def _after_forward(self, module: nn.Module, *given: Any) -> None:
        """Note what a module was called with; behind a forward that has failed PyTorch gives no named arguments."""
        if torch.compiler.is_compiling():
            return
        self._depth.value = depth = max(0, getattr(self._depth, "value", 1) - 1)
        has_failed = len(given) < _ALL_GIVEN
        if depth or has_failed or not (module.training and torch.is_grad_enabled()) or _is_in_backward():
            return
        self._inputs.append(fingerprint(given[:2]))
        if any(each.is_first for each in self._handed.values()) and self._trained_on and not self._is_at_edge:
            self._epochs += 1  # who knows the length of an epoch never asks for a batch behind its last
        self._is_at_edge = False
        self._trained_on.update(self._handed)
        for each in self._handed.values():
            self._batches.append(each.digest)
            self._indices += [] if each.indices is None else [each.indices]
        self._handed.clear()

    def is_idle(self) -> bool:
        """Tell whether nothing was trained since the last step: no forward, no backward."""
        return not self._inputs and not self._losses

    # --- what a step takes -------------------------------------------------------------------------------

    def take(self) -> tuple[dict[str, str], dict[str, dict[str, str]], dict[str, Any]]:
        """Give the parts, the single tensors and the notes since the last step, and begin anew."""
        parts = {
            name: combined(digests)
            for name, digests in (("batch", self._batches), ("inputs", self._inputs), ("loss", self._losses))
            if digests
        }
        parts |= self._random or random_digests()
        tensors = {"buffers": self._buffers} if self._buffers else {}
        notes: dict[str, Any] = {"indices": self._indices} if self._indices else {}
        notes |= {"loss": self._values} if self._values else {}
        notes |= {"batches": self._batches} if len(self._batches) > 1 else {}
        notes |= {"epochs": self._epochs} if self._epochs else {}
        self._epochs = 0
        self._batches, self._indices, self._inputs, self._losses, self._values = [], [], [], [], []
        self._buffers, self._random = {}, {}
        return parts, tensors, notes


def random_digests() -> dict[str, str]:
    """Hash the random generators of the process, by part."""
    return {f"random.{name}": fingerprint(state) for name, state in global_state().items()}


def _is_in_backward() -> bool:
    """Tell whether this is a forward that activation checkpointing repeats in the middle of a backward pass."""
    return torch._C._current_graph_task_id() != -1  # noqa: SLF001  (nothing public tells it)


def _wrap_backward(watch: Watch) -> None:
    backward = torch.autograd.backward

    def noting(tensors: Any, *arguments: Any, **named: Any) -> None:
        watch.backward(tensors)
        backward(tensors, *arguments, **named)

    torch.autograd.backward = noting


def _wrap_loaders(watch: Watch) -> None:
    kind: Any = dataloader._BaseDataLoaderIter  # noqa: SLF001  (the base of all iterators of PyTorch's loaders)
    take, next_index = kind.__next__, kind._next_index  # noqa: SLF001

    def noting_index(iterator: Any) -> Any:
        index = next_index(iterator)
        _queue_of(iterator).append(_plain_indices(index))
        return index

    def noting(iterator: Any) -> Any:
        try:
            batch = take(iterator)
        except StopIteration:
            watch.exhausted(id(iterator))
            raise
        if get_worker_info() is None:
            queue = _queue_of(iterator)
            is_first = getattr(iterator, "_num_yielded", 0) == 1
            watch.handed(id(iterator), batch, queue.pop(0) if queue else None, is_first=is_first)
        return batch

    kind.__next__, kind._next_index = noting, noting_index  # noqa: SLF001


def _queue_of(iterator: Any) -> list[Any]:
    """Give the indices that were asked for and not handed out yet: workers fetch ahead, in this order."""
    queue: list[Any] = iterator.__dict__.setdefault("_samestep_indices", [])
    return queue


def _plain_indices(index: Any) -> Any:
    index = getattr(index, "indices", index)
    if isinstance(index, (list, tuple)) and all(type(each) is int for each in index):
        return list(index)
    return index if type(index) is int else None
