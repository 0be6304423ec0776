"""Owns the recording of a process: at each optimizer step a line in its ledger. Never changes a number.

Parameters, states and settings are read before the step, gradients and losses after it: some optimizers run forward
and backward inside `step(closure)`.
"""

import os
import sys
import weakref
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import get_worker_info

from samestep.proof.fingerprint import combined, fingerprint, tensor_digest
from samestep.proof.ledger import LedgerWriter, Step
from samestep.proof.watching import Watch
from samestep.state.random import seed_everything
from samestep.store.attempts import command_line

_recorder: "Recorder | None" = None


def start(folder: Path) -> None:
    """Record this process from now on; called once torch is imported.

    Args:
        folder: Where ledgers are made.
    """
    global _recorder  # noqa: PLW0603  (one process, one recorder)
    if _recorder is None:
        if "SAMESTEP_RECORD_SEED" in os.environ:
            seed_everything(int(os.environ["SAMESTEP_RECORD_SEED"]))
        _recorder = Recorder(folder)
        _recorder.install()


class Recorder:
    """Notes each optimizer step of this process.

    Args:
        folder: Where the ledger is made.
    """

    def __init__(self, folder: Path) -> None:
        rank = int(os.environ.get("RANK", "0") or 0)
        about = {
            "pid": os.getpid(),
            "command": command_line(),
            "python": sys.version.split()[0],
            "torch": torch.__version__,
        }
        self._ledger = LedgerWriter(folder, rank, about)
        self._watch = Watch()
        self._process = os.getpid()
        self._optimizers: dict[int, weakref.ref[Optimizer]] = {}
        self._scalers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._last = int(os.environ.get("SAMESTEP_RECORD_STEPS", "0"))
        self._every = int(os.environ.get("SAMESTEP_RECORD_EVERY", "1"))
        self._before: list[tuple[dict[str, str], dict[str, dict[str, str]]]] = []
        self._number = 0

    def install(self) -> None:
        """Put in the hooks."""
        self._watch.install()
        register_optimizer_step_pre_hook(self._before_step)
        register_optimizer_step_post_hook(self._after_step)
        _remember_scalers(self._scalers)

    def _is_ours(self) -> bool:
        return os.getpid() == self._process and get_worker_info() is None

    def _before_step(self, optimizer: Optimizer, _arguments: Any, _named: Any) -> None:
        if not self._is_ours():
            return
        names = self._names(optimizer)
        parts = {"learning_rate": fingerprint([_settings(group) for group in optimizer.param_groups])}
        scalers = [each.state_dict() for each in self._scalers]
        if any(scalers):
            parts["scaler"] = combined(sorted(map(fingerprint, scalers)))
        tensors: dict[str, dict[str, str]] = {}
        if self._is_whole():
            tensors["parameters"] = {name: tensor_digest(each) for name, each in names.items()}
            tensors["optimizer"] = _states(optimizer, names)
        self._before.append((parts, tensors))  # a stack: an optimizer's step may call another's

    def _after_step(self, optimizer: Optimizer, _arguments: Any, _named: Any) -> None:
        if not self._is_ours() or not self._before:
            return
        parts, tensors = self._before.pop()
        seen, single, notes = self._watch.take()
        tensors |= single
        if self._is_whole():
            named = self._names(optimizer).items()
            tensors["gradients"] = {name: tensor_digest(each.grad) for name, each in named if each.grad is not None}
        parts |= seen | {part: combined(list(each.values())) for part, each in tensors.items() if each}
        number = self._optimizers_number(optimizer)
        self._ledger.write(
            Step(self._number, number, parts, {part: each for part, each in tensors.items() if each}, notes)
        )
        self._number += 1
        if self._number == self._last:
            os._exit(0)  # the script may have no way to end early; workers end with their parent

    def _is_whole(self) -> bool:
        """Tell whether the large parts are noted at this step."""
        return self._number % self._every == 0

    def _optimizers_number(self, optimizer: Optimizer) -> int:
        known = self._optimizers.get(id(optimizer))
        if known is None or known() is not optimizer:
            self._optimizers[id(optimizer)] = weakref.ref(optimizer)
        return list(self._optimizers).index(id(optimizer))

    def _names(self, optimizer: Optimizer) -> dict[str, Tensor]:
        """Name an optimizer's parameters as the modules do that were called, or by their places."""
        known: dict[int, str] = {}
        for root in [module for each in self._watch.roots.values() if (module := each()) is not None]:
            for name, parameter in root.named_parameters():
                known.setdefault(id(parameter), name)
        names: dict[str, Tensor] = {}
        for group, settings in enumerate(optimizer.param_groups):
            for place, parameter in enumerate(settings["params"]):
                name = known.get(id(parameter), f"group {group}, parameter {place}")
                names[name if name not in names else f"{name} ({group}, {place})"] = parameter
        return names


def _settings(group: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key != "params"}


def _states(optimizer: Optimizer, names: dict[str, Tensor]) -> dict[str, str]:
    state: Any = optimizer.state
    return {
        f"{name}.{key}": fingerprint(value)
        for name, parameter in names.items()
        if parameter in state
        for key, value in state[parameter].items()
    }


def _remember_scalers(scalers: "weakref.WeakSet[Any]") -> None:
    kind: Any = torch.amp.grad_scaler.GradScaler
    begin = kind.__init__

    def remembering(scaler: Any, *arguments: Any, **named: Any) -> None:
        begin(scaler, *arguments, **named)
        scalers.add(scaler)

    kind.__init__ = remembering
