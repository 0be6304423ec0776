"""Owns the death of a recorded process at a moment that was asked for. Never lets it say good-bye.

Right before an operation on a file, or behind a step's line, the process group is killed. In the middle of a write the
kernel kills the process alone: a limit on the size of files ends it when the file has so many bytes, whatever language
writes. safetensors 0.8 sets the size of a draft first, so there it dies with an empty draft beside the old file.
"""

import contextlib
import ctypes
import json
import os
import resource
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from samestep.store import files


class Death:
    """Waits for the moment.

    Args:
        folder: The folder of the ledgers, where `killed-<rank>.json` is written.
        rank: This process's rank; it may be set as long as nothing has happened.
        plan: `after`: behind which step's line, -1 before the first; `operation`: before which one behind it, None: at
            once; `bytes`: by how many the file has grown that this operation writes, None: not at all; `rank`: whose
            death it is, None: everybody's. None: nobody dies.
        prover: The process group of who has started the command, which is never killed; None: it is not known.
    """

    def __init__(self, folder: Path, rank: int, plan: Mapping[str, Any] | None, prover: int | None) -> None:
        self._folder, self.rank, self._prover, self._plan = folder, rank, prover, plan
        self.number = 0
        """Which of the rank's processes this is, one after the other; it may be set as long as nothing has happened."""
        self._process = os.getpid()
        self._is_due = False
        self._limited: dict[str, Any] | None = None
        if self._plan is not None and self._plan.get("bytes") is not None:
            _let_the_kernel_kill()

    @classmethod
    def from_environment(cls, folder: Path, rank: int) -> "Death":
        """Make it as SAMESTEP_RECORD_KILL and SAMESTEP_RECORD_PROVER say."""
        plan, prover = (os.environ.get(f"SAMESTEP_RECORD_{name}") for name in ("KILL", "PROVER"))
        return cls(folder, rank, json.loads(plan) if plan else None, int(prover) if prover else None)

    def before_line(self) -> None:
        """Take the limit away before the ledger grows; a death that the operation has not brought comes behind it."""
        if self._limited is not None and os.getpid() == self._process:
            _limit_files(None)

    def after_step(self, number: int) -> None:
        """Die if this was the line, or if a death in a write did not come.

        Args:
            number: The step whose line was written; -1 at the start.
        """
        if self._plan is None or not self._is_meant(self._plan):
            return
        if self._limited is not None:
            self._die(self._limited | {"fallback": "next line"})
        self._is_due = number == self._plan["after"]
        if self._is_due and self._plan.get("operation") is None:
            self._die(self._described())

    def before_operation(self, number: int, operation: str, path: str, kept: int) -> None:
        """Die if this is the operation, or see to it that its write is deadly.

        Args:
            number: Its number since the last line, from 0.
            operation: What it is.
            path: The file, within the training's directory.
            kept: The bytes of the file that the operation keeps, and adds to.
        """
        if self._plan is None or not self._is_meant(self._plan):
            return
        if self._limited is not None:
            self._die(self._limited | {"fallback": "next operation"})
        if self._is_due and number == self._plan.get("operation"):
            described = self._described() | {"name": operation, "path": path}
            if self._plan.get("bytes") is None:
                self._die(described)
            self._limit(described, kept)

    def _is_meant(self, plan: Mapping[str, Any]) -> bool:
        """Tell whether it is this process that has to die, and not a child that it has forked."""
        is_process = plan.get("process", 0) == self.number
        return is_process and plan.get("rank") in {None, self.rank} and os.getpid() == self._process

    def _described(self) -> dict[str, Any]:
        plan = self._plan or {}
        asked = {name: plan.get(name) for name in ("after", "operation", "bytes")}
        return {"rank": self.rank, "pid": os.getpid(), **asked, "name": None, "path": None, "fallback": None}

    def _limit(self, described: dict[str, Any], kept: int) -> None:
        self._limited = described
        self._write(described)
        _limit_files(kept + int(described["bytes"]))

    def _die(self, described: dict[str, Any]) -> NoReturn:
        _limit_files(None)
        self._write(described)
        if self._prover is not None and os.getpgrp() != self._prover:
            with contextlib.suppress(OSError):
                os.killpg(os.getpgrp(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError  # nobody gets here

    def _write(self, described: dict[str, Any]) -> None:
        path = self._folder / f"killed-{self.rank}.json"
        descriptor = files.system.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        files.write_all(descriptor, memoryview(json.dumps(described).encode() + b"\n"))
        files.system.close(descriptor)


def _let_the_kernel_kill() -> None:
    """Make a write beyond the limit deadly; Python has told the kernel to let it fail instead."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    else:  # torch was imported by another thread, in which Python sets no signals
        ctypes.CDLL(None).signal(int(signal.SIGXFSZ), None)


def _limit_files(size: int | None) -> None:
    """Limit all files that this process writes from now on; None: no longer."""
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard if size is None else size, hard))
