"""Owns the recording of a process: at each optimizer step a line in its ledger. Never changes a number.

Parameters, states and settings are read before the step, gradients and losses after it: some optimizers run forward
and backward inside `step(closure)`.
"""

import atexit
import os
import sys
import weakref
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import get_worker_info

from samestep.proof.deaths import Death
from samestep.proof.file_events import FileEvents
from samestep.proof.fingerprint import combined, fingerprint, tensor_digest
from samestep.proof.ledger import LedgerWriter, Step
from samestep.proof.variables import Held, read
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


@dataclass
class _Before:
    """What is read before a step; names are given behind it."""

    parts: dict[str, str]
    parameters: list[str] = field(default_factory=list)
    states: list[dict[str, str]] = field(default_factory=list)
    tensors: dict[str, dict[str, str]] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)


class Recorder:
    """Notes each optimizer step of this process.

    Args:
        folder: Where the ledger is made.
    """

    def __init__(self, folder: Path) -> None:
        rank = _rank()
        self._about: dict[str, Any] = {
            "pid": os.getpid(),
            "command": command_line(),
            "python": sys.version.split()[0],
            "torch": torch.__version__,
        }
        self._ledger = LedgerWriter(folder, rank, self._about)
        self._watch = Watch()
        self._files = FileEvents.from_environment(folder)
        self._death = Death.from_environment(folder, rank)
        self._death.number = self._ledger.number
        self._process = os.getpid()
        self._optimizers: dict[int, weakref.ref[Optimizer]] = {}
        self._scalers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._last = int(os.environ.get("SAMESTEP_RECORD_STEPS", "0"))
        self._every = int(os.environ.get("SAMESTEP_RECORD_EVERY", "1"))
        self._before: list[_Before] = []
        self._stepped: dict[str, Tensor] = {}  # kept to the end: the result of the last step is seen there only
        self._number = 0

    def install(self) -> None:
        """Put in the hooks."""
        self._watch.install()
        register_optimizer_step_pre_hook(self._before_step)
        register_optimizer_step_post_hook(self._after_step)
        _remember_scalers(self._scalers)
        atexit.register(self._at_end)
        self._files.install(self._death.before_operation)
        self._death.after_step(-1)

    def _is_ours(self) -> bool:
        return os.getpid() == self._process and get_worker_info() is None

    def _before_step(self, optimizer: Optimizer, _arguments: Any, _named: Any) -> None:
        if not self._is_ours():
            return
        if not self._ledger.is_begun:  # who starts ranks by himself may give them their numbers behind the import
            self._ledger.rank = self._death.rank = _rank()
            self._death.number = self._ledger.number
        self._about.setdefault("device", _device(optimizer))
        if not self._only_makes_state(optimizer):
            self._spoil(optimizer)
        self._optimizers_number(optimizer)
        parts = {"learning_rate": fingerprint([_settings(group) for group in optimizer.param_groups])}
        scalers = [each.state_dict() for each in self._scalers]
        if any(scalers):
            parts["scaler"] = combined(sorted(map(fingerprint, scalers)))
        before = _Before(parts)
        if self._is_whole():
            parameters = list(self._names(optimizer).values())
            before.parameters = [tensor_digest(each) for each in parameters]
            before.states = _states(optimizer, parameters)
            held = read(sys._getframe(1), self._trained())  # noqa: SLF001  (the user's names)
            before.tensors = {"copies": held.copies, "variables": held.variables}
            before.notes = _notes(held, optimizer)
        self._before.append(before)  # a stack: an optimizer's step may call another's

    def _after_step(self, optimizer: Optimizer, _arguments: Any, _named: Any) -> None:
        if not self._is_ours() or not self._before:
            return
        before = self._before.pop()
        if self._only_makes_state(optimizer):
            return
        seen, tensors, notes = self._watch.take()
        notes |= before.notes
        tensors |= before.tensors
        if self._is_whole():
            names = self._names(optimizer)  # known now: the first forward may lie within the step
            tensors |= _by_name(names, before.parameters, before.states)
            tensors["gradients"] = {
                name: tensor_digest(each.grad) for name, each in names.items() if each.grad is not None
            }
            self._stepped = names
        tensors = {part: each for part, each in tensors.items() if each}
        parts = before.parts | seen | {part: combined(list(each.values())) for part, each in tensors.items()}
        number = self._optimizers_number(optimizer)
        notes |= self._notes_of_files()
        self._ledger.write(Step(self._number, number, parts, tensors, notes))
        self._death.after_step(self._number)
        self._number += 1
        if self._number == self._last:
            os._exit(0)  # the script may have no way to end early; workers end with their parent

    def _only_makes_state(self, optimizer: Optimizer) -> bool:
        """Tell a step that is none of the training: torch.distributed.checkpoint makes one before it loads."""
        return self._watch.is_idle() and all(float(group.get("lr", 1)) == 0 for group in optimizer.param_groups)

    def _at_end(self) -> None:
        """Note what is left when the process ends by itself: the last step's result is seen nowhere else."""
        if not self._is_ours() or not self._ledger.is_begun:
            return
        parts, tensors, notes = self._watch.take()
        tensors["parameters"] = {name: tensor_digest(each) for name, each in self._stepped.items()}
        buffers = {
            name: tensor_digest(each) for root in self._watch.living_roots() for name, each in root.named_buffers()
        }
        held = read(None, self._trained())
        tensors |= {"buffers": buffers, "copies": held.copies, "variables": held.variables}
        tensors = {part: each for part, each in tensors.items() if each}
        parts |= {part: combined(list(each.values())) for part, each in tensors.items()}
        notes |= self._notes_of_files()
        self._ledger.write(Step(self._number, 0, parts, tensors, notes), is_end=True)
        self._death.after_step(self._number - 1)  # one in a write that did not come

    def _spoil(self, optimizer: Optimizer) -> None:
        """Flip one bit of a parameter, or move all, once, where a proof asks for it: it has to be noticed."""
        wanted = os.environ.pop("SAMESTEP_RECORD_SPOIL", None)
        if wanted is None:
            return
        parameters = [each.detach() for group in optimizer.param_groups for each in group["params"]]
        first = next(each for each in parameters if each.is_contiguous() and each.numel())
        first.view(-1).view(torch.uint8)[0] ^= 1
        if wanted == "loss":  # no single bit shows there
            for each in parameters:
                each[..., ::2].add_(1) if each.dim() else each.add_(1)

    def _trained(self) -> list[Tensor]:
        known = [optimizer for each in self._optimizers.values() if (optimizer := each()) is not None]
        return [each for optimizer in known for group in optimizer.param_groups for each in group["params"]]

    def _notes_of_files(self) -> dict[str, Any]:
        """Give what happened to files since the last line; called right before each line, also before a closing one."""
        self._death.before_line()
        return self._files.notes()

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
        for root in self._watch.living_roots():
            for name, parameter in root.named_parameters():
                known.setdefault(id(parameter), name)
        names: dict[str, Tensor] = {}
        for group, settings in enumerate(optimizer.param_groups):
            for place, parameter in enumerate(settings["params"]):
                name = known.get(id(parameter), f"group {group}, parameter {place}")
                names[name if name not in names else f"{name} ({group}, {place})"] = parameter
        return names


def _rank() -> int:
    """Give the rank of this process, by its process group, or by its launcher as long as it has none."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank()
    return int(os.environ.get("RANK", "0") or 0)


def _device(optimizer: Optimizer) -> str:
    return next((each.device.type for group in optimizer.param_groups for each in group["params"]), "cpu")


def _notes(held: Held, optimizer: Optimizer) -> dict[str, Any]:
    size = sum(each.nbytes for group in optimizer.param_groups for each in group["params"])
    notes: dict[str, Any] = {"bytes": size}
    notes |= {"values": held.values} if held.values else {}
    return notes | ({} if held.completed is None else {"completed": held.completed})


def _settings(group: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in sorted(group.items()) if key != "params"}


def _states(optimizer: Optimizer, parameters: list[Tensor]) -> list[dict[str, str]]:
    """Hash what an optimizer keeps for each parameter."""
    state: Any = optimizer.state
    return [
        {str(key): fingerprint(value) for key, value in sorted(state[each].items(), key=_name_of)}
        if each in state
        else {}
        for each in parameters
    ]


def _name_of(pair: tuple[Any, Any]) -> str:
    return str(pair[0])


def _by_name(names: Collection[str], parameters: list[str], states: list[dict[str, str]]) -> dict[str, dict[str, str]]:
    return {
        "parameters": dict(zip(names, parameters, strict=True)),
        "optimizer": {
            f"{name}.{key}": digest for name, each in zip(names, states, strict=True) for key, digest in each.items()
        },
    }


def _remember_scalers(scalers: "weakref.WeakSet[Any]") -> None:
    kind: Any = torch.amp.grad_scaler.GradScaler
    begin = kind.__init__

    def remembering(scaler: Any, *arguments: Any, **named: Any) -> None:
        begin(scaler, *arguments, **named)
        scalers.add(scaler)

    kind.__init__ = remembering
