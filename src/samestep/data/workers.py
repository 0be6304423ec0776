"""Owns what a worker process does before its first batch: which signals it obeys, and the user's init function.

A cluster signals the whole process group or control group. The workers must then live on until the main process
has saved, and end when it ends them or is gone.
"""

import functools
import multiprocessing
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import BaseContext
from pathlib import Path
from types import FrameType
from typing import Any

from torch.utils.data import get_worker_info

_IGNORED = frozenset({signal.SIGINT, signal.SIGUSR1})
_HELD_BACK = frozenset({*_IGNORED, signal.SIGTERM})


class WorkerStart:
    """What a worker calls first: shields it from signals, shows the user's data set, calls the user's function.

    Args:
        dataset: The user's data set, which `get_worker_info().dataset` then shows instead of our wrapper.
        init: The user's `worker_init_fn`.
    """

    def __init__(self, dataset: Any, init: Callable[[int], None] | None) -> None:
        self._dataset = dataset
        self._init = init
        self._main = os.getpid()

    def __call__(self, worker: int) -> None:
        """Prepare the worker with this number."""
        _shield(self._main)
        # The class is frozen: PyTorch shows here the object that it reads from.
        object.__setattr__(get_worker_info(), "dataset", self._dataset)
        if self._init is not None:
            self._init(worker)


@contextmanager
def signals_held_back(context: BaseContext | None) -> Iterator[None]:
    """Hold signals back while workers start, so that none meets a worker that has no shield yet.

    The mask is inherited by the children; a signal to this process waits and arrives at the end.

    Args:
        context: How the workers are started; None as `multiprocessing` is set.
    """
    method = (context or multiprocessing).get_start_method()
    if method != "fork":
        resource_tracker.ensure_running()  # CPython lets SIGTERM through when it starts the tracker
    if method == "forkserver":
        forkserver.ensure_running()  # else the server, and all that anybody starts from it, would inherit the mask
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _HELD_BACK)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _shield(main: int) -> None:
    # A handler that does nothing, not SIG_IGN: programs that a data set starts would inherit SIG_IGN.
    for each in _IGNORED:
        signal.signal(each, _ignore)
        signal.siginterrupt(each, False)  # noqa: FBT003 - positional only
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _IGNORED)
    main_alone_ends = hasattr(signal, "sigtimedwait") and _is_held_back_everywhere(signal.SIGTERM)
    if main_alone_ends:
        _hold_back_sigterm()
    else:  # PyTorch's own handler ends the worker, whoever asks
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    senders = {main, os.getppid()} if main_alone_ends else set()
    threading.Thread(target=_wait_for_end, args=(senders,), daemon=True, name="samestep-end").start()


def _is_held_back_everywhere(number: signal.Signals) -> bool:
    """Tell whether every other thread holds a signal back, so that one thread can wait for it.

    The workers of a fork server have its mask, not ours: what they import (OpenBLAS) starts threads that take it.
    """
    own = threading.get_native_id()
    for status in Path("/proc/self/task").glob("*/status"):
        try:
            text = status.read_text(encoding="utf-8")
        except (FileNotFoundError, ProcessLookupError):  # a thread that has just ended
            continue
        lines = dict(line.partition(":")[::2] for line in text.splitlines())
        if int(lines["Pid"]) != own and not int(lines["SigBlk"], 16) >> (number - 1) & 1:
            return False
    return True


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """Ignore a signal that is meant for the main process."""


def _hold_back_sigterm() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    signal.signal(signal.SIGTERM, _ignore)
    # What a data set starts from here must be endable: a blocked signal is inherited by forks and programs.
    os.register_at_fork(after_in_child=_unblock)
    subprocess.Popen.__init__ = _with_sigterm(subprocess.Popen.__init__)  # type: ignore[method-assign]


_LOOKS_EVERY = 2.0
"""Seconds between two looks whether the main process still lives."""


def _wait_for_end(senders: set[int]) -> None:
    """End on SIGTERM from these processes and on no other, or when the main process is gone.

    Only a wait for the signal tells who sent it. PyTorch's own watch sees the parent die; that of a worker from a
    fork server is the server, which lives as long as its workers do.
    """
    main = multiprocessing.parent_process()
    while main is None or main.is_alive():
        if not senders:
            time.sleep(_LOOKS_EVERY)
        elif (got := signal.sigtimedwait({signal.SIGTERM}, _LOOKS_EVERY)) is not None and got.si_pid in senders:
            break
    os._exit(0)  # as PyTorch's own handler does on its parent's SIGTERM


def _unblock() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def _with_sigterm(start: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(start)
    def start_unblocked(*args: Any, **options: Any) -> None:
        # For about a millisecond a SIGTERM meets the handler that ignores it, whoever sent it. The other way,
        # preexec_fn, would run Python between fork and exec of a process with threads, which can deadlock.
        before = signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        try:
            start(*args, **options)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    return start_unblocked
