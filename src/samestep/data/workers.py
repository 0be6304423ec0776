"""Owns what a worker process does before its first batch: which signals it obeys, and the user's init function.

A cluster signals the whole process group or control group. The workers must then live on until the main process
has saved, and end when it ends them or is gone.
"""

import functools
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
def signals_held_back() -> Iterator[None]:
    """Hold signals back while workers start, so that none meets a worker that has no shield yet.

    The mask is inherited by the children; a signal to this process waits and arrives at the end.
    """
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
    if hasattr(signal, "sigwaitinfo"):
        _obey_only({main, os.getppid()})
    else:  # macOS: PyTorch's own handler ends the worker
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """Ignore a signal that is meant for the main process."""


def _obey_only(senders: set[int]) -> None:
    """End on SIGTERM from these processes and on no other: only a wait for the signal tells who sent it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    signal.signal(signal.SIGTERM, _ignore)
    threading.Thread(target=_wait_for_end, args=(senders,), daemon=True, name="samestep-sigterm").start()
    # What a data set starts from here must be endable: a blocked signal is inherited by forks and programs.
    os.register_at_fork(after_in_child=_unblock)
    subprocess.Popen.__init__ = _with_sigterm(subprocess.Popen.__init__)  # type: ignore[method-assign]


def _wait_for_end(senders: set[int]) -> None:
    while True:
        if signal.sigwaitinfo({signal.SIGTERM}).si_pid in senders:
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
