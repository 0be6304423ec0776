"""Children forked from a process that has imported torch once: fresh training processes in milliseconds."""

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

_context = multiprocessing.get_context("forkserver")
# The first optimizer of a process imports torch._dynamo: three seconds of CPU in each child, unless it is there.
_context.set_forkserver_preload(
    [
        "torch",
        "torch._dynamo",
        "samestep.run",
        "samestep.data.loader",
        "sklearn.datasets",
        "ledger",
        "trainings",
        "enduring",
    ]
)

LIMIT = 120
"""Seconds after which a child counts as hung; the longest takes about ten."""


def run_in_child(target: Callable[..., object], *args: Any, log: Path, limit: float = LIMIT) -> int:
    """Run a function in a fresh process and return its exit code: negative for a signal, 1 for an exception."""
    child = _context.Process(target=_guarded, args=(target, args, log))
    child.start()
    child.join(limit)
    if child.exitcode is None:
        child.kill()
        child.join()
        raise TimeoutError(f"the child hung:\n{log.read_text()}")
    return child.exitcode


def start_child(target: Callable[..., object], *args: Any, log: Path) -> multiprocessing.process.BaseProcess:
    """Start a function in a fresh process and return at once."""
    child = _context.Process(target=_guarded, args=(target, args, log))
    child.start()
    return child


def _guarded(target: Callable[..., object], args: tuple[Any, ...], log: Path) -> None:
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(out, 1)
    os.dup2(out, 2)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # A group of its own, so that a signal to the group reaches this training and its workers only. From here on no
    # signal is lost: until now the fork server's children ignore SIGINT.
    os.setpgid(0, 0)
    # A child of the fork server would start its own workers through another one: slow, and not what users have.
    multiprocessing.set_start_method("fork", force=True)
    import torch

    torch.set_num_threads(1)  # two trainings share two cores; the bits depend on this number, so it is fixed
    target(*args)
    sys.stdout.flush()
