"""Owns the view of every operation that changes files of a recorded training. Changes none, but for the guard's links.

Python tells of its own operations by audit events; writers in C++ and Rust are wrapped. What is seen is what this
process does, in any of its threads: no other programs that it starts.
"""

import os
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import get_worker_info

from samestep.proof.changes import EVENTS, Change, read_event, written
from samestep.proof.guard import Guard, Refused, is_below

Before = Callable[[int, str, str, int], None]
"""Called right before an operation with its number, its name, its path in the folder and the bytes that it keeps."""


class FileEvents:
    """Notes and counts operations below a folder, and lets the guard look at all of them.

    Args:
        folder: The arm's directory; None: nothing is seen and nothing is guarded.
        guarded: The original directory, and others, of which nothing may be changed.
        ledgers: The folder of the ledgers.
    """

    def __init__(self, folder: Path | None, guarded: Sequence[Path], ledgers: Path) -> None:
        self._guard = Guard(folder, guarded, ledgers) if folder is not None else None
        self._ledgers = os.path.realpath(ledgers)
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._thread = threading.local()
        self._before: Before | None = None
        self._events: list[list[Any]] = []
        self._sizes: dict[str, tuple[int, int]] = {}  # of open files: the event's number, and the size before it
        self._outside: dict[str, None] = {}

    @classmethod
    def from_environment(cls, ledgers: Path) -> "FileEvents":
        """Make it as SAMESTEP_RECORD_DIR and SAMESTEP_RECORD_GUARDED say."""
        folder, guarded = (os.environ.get(f"SAMESTEP_RECORD_{name}") for name in ("DIR", "GUARDED"))
        places = [Path(each) for each in (guarded or "").split(os.pathsep) if each]
        return cls(Path(folder) if folder else None, places, ledgers)

    def install(self, before: Before) -> None:
        """Begin to see; an audit hook stays until the process ends.

        Args:
            before: Called right before each operation; its number is that since the last `take`, from 0.
        """
        if self._guard is None:
            return
        self._before = before
        sys.addaudithook(self._audit)
        _wrap_torch(self)
        _wrap_safetensors(self)

    def take(self) -> list[list[Any]]:
        """Give the operations since the last call, and count from 0 again.

        Returns:
            For each its name, its path in the folder, and by how many bytes the file has grown: None where nothing
            was opened. A file that was opened over an old one counts from 0.
        """
        if self._guard is None:
            return []
        with self._lock:
            for place in list(self._sizes):
                self._measure(place)
            taken, self._events = self._events, []
        return taken

    def notes(self) -> dict[str, Any]:
        """Give the operations since the last call, and the files outside that were written, as notes of a step."""
        outside, self._outside = self._outside, {}
        noted = {"files": self.take(), "outside": list(outside)}
        return {name: each for name, each in noted.items() if each}

    def notice(self, read: Callable[[], Change | None]) -> None:
        """Look at an operation right before it happens.

        Raises:
            Refused: The guard does not let it happen.
        """
        if getattr(self._thread, "is_looking", False):
            return  # what we do ourselves
        self._thread.is_looking = True
        try:
            change = read()
            if change is not None:
                self._look_at(change)
        except Refused:
            raise
        except Exception:  # noqa: BLE001, S110  (an exception here would fail the training's own operation)
            pass
        finally:
            self._thread.is_looking = False

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in EVENTS:
            self.notice(lambda: read_event(event, arguments))

    def _look_at(self, change: Change) -> None:
        guard = self._guard
        if guard is None:
            return
        outside = guard.admit(change)
        if os.getpid() == self._process and get_worker_info() is None:  # elsewhere nobody takes, and a lock may be held
            if outside is not None:
                self._outside[outside] = None
            self._count(change, guard.own)
        guard.part(change)  # last, so that who dies before the operation leaves the link as it was

    def _count(self, change: Change, own: str) -> None:
        inside = [each for each in (change.place, change.source) if each and is_below(each, own)]
        inside = [each for each in inside if not is_below(each, self._ledgers)]  # ours, not the training's
        if not inside or not change.is_content or change.is_of_python:
            return
        place = inside[0]
        relative = os.fsencode(os.path.relpath(place, own)).decode(errors="replace")
        with self._lock:
            for each in self._measurable(change, inside):
                self._measure(each)  # before its name or its content goes
            kept = _size(place) if change.opens and not change.is_truncated else 0
            if self._before is not None:
                self._before(len(self._events), change.operation, relative, kept)
            if change.opens or (change.source and not is_below(change.source, own)):  # or moved in, with all it holds
                self._sizes[place] = len(self._events), kept
            self._events.append([change.operation, relative, None])

    def _measurable(self, change: Change, inside: list[str]) -> list[str]:
        """Name the files of unknown growth that a change concerns; a folder is renamed with all it holds."""
        if change.operation == "rename":
            return [each for each in self._sizes if any(is_below(each, changed) for changed in inside)]
        return [each for each in inside if each in self._sizes]

    def _measure(self, place: str) -> None:
        number, before = self._sizes.pop(place)
        with suppress(OSError):
            self._events[number][2] = _size(place) - before


def _size(place: str) -> int:
    return os.stat(place).st_size  # noqa: PTH116  (as text: a path object for each would cost more than the call)


def _wrap_torch(events: FileEvents) -> None:
    """Wrap what opens a path in C++; at the class, so that it does not matter who holds `torch.save` already."""
    writer: Any = torch._C.PyTorchFileWriter  # noqa: SLF001  (nothing public is as deep)
    module: Any = torch._C.ScriptModule  # noqa: SLF001  (as above)
    begin, save = writer.__init__, module.save

    def beginning(self: Any, target: Any, *arguments: Any, **named: Any) -> None:
        if isinstance(target, str):  # else a file that was opened in Python
            events.notice(lambda: written("torch.save", target))
        begin(self, target, *arguments, **named)

    def saving(self: Any, target: Any, *arguments: Any, **named: Any) -> Any:
        events.notice(lambda: written("torch.jit.save", target))
        return save(self, target, *arguments, **named)

    for holder, name, wrapped in ((writer, "__init__", beginning), (module, "save", saving)):
        setattr(holder, name, wrapped)


def _wrap_safetensors(events: FileEvents) -> None:
    """Wrap the writer in Rust for all that import it later, and for those that have."""
    try:
        import safetensors
    except ImportError:
        return
    serialize_file = safetensors.serialize_file

    def serializing(tensors: Any, filename: Any, *arguments: Any, **named: Any) -> Any:
        events.notice(lambda: written("safetensors", filename))
        return serialize_file(tensors, filename, *arguments, **named)

    for name, module in list(sys.modules.items()):
        if name.startswith("safetensors") and getattr(module, "serialize_file", None) is serialize_file:
            module.serialize_file = serializing  # type: ignore[attr-defined]  # the package declares it in Rust
