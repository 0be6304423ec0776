"""Owns the process's signal handlers while a loop runs: which signal asked for a save and an end.

Never saves anything itself: it tells the run, which saves at a boundary.
"""

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
"""SIGTERM comes from Slurm, Kubernetes and spot instances; SIGUSR1 from `sbatch --signal=USR1@60`."""

EXIT_BASE = 128
"""Shells report a process that a signal ended as 128 + signal; so do we."""


class StopSignals:
    """Listens for signals that ask the training to save and end.

    The first SIGINT asks politely; a second one is Python's own KeyboardInterrupt. Handlers that were there before
    are called too; what one of them raises is kept until the checkpoint is written.

    Args:
        on_signal: Called in the main thread as soon as a signal has arrived, between two bytecodes.
    """

    def __init__(self, on_signal: Callable[[], None]) -> None:
        self._on_signal = on_signal
        self._earlier: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}
        self._process = os.getpid()
        self._raised: BaseException | None = None
        self.received: signal.Signals | None = None

    def install(self) -> None:
        """Take over the handlers. Outside the main thread Python allows none: then signals stay as they are."""
        self.received = self._raised = None
        if threading.current_thread() is not threading.main_thread():
            return
        for number in STOP_SIGNALS:
            self._earlier[number] = signal.getsignal(number)
            signal.signal(number, self._handle)

    @property
    def installed(self) -> bool:
        """Whether the handlers are ours now."""
        return bool(self._earlier)

    def remove(self) -> None:
        """Give the handlers back, unless somebody has put others in our place since."""
        for number, earlier in self._earlier.items():
            if signal.getsignal(number) == self._handle:
                signal.signal(number, signal.SIG_DFL if earlier is None else earlier)
        self._earlier.clear()

    def leave(self) -> None:
        """End the process as the signal asked: with 128 + signal, or with what an earlier handler raised."""
        if self._raised is not None:
            raise self._raised
        if self.received is not None:
            raise SystemExit(EXIT_BASE + self.received)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:
            self._handle_in_child(number)
            return
        self.received = signal.Signals(number)
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        self._call_earlier(number, frame)
        self._on_signal()

    def _call_earlier(self, number: int, frame: FrameType | None) -> None:
        earlier = self._earlier.get(number)
        if not callable(earlier) or earlier is signal.default_int_handler:
            return
        try:
            earlier(number, frame)
        except BaseException as error:  # noqa: BLE001  # also SystemExit: it is raised again after the save
            self._raised = error

    @staticmethod
    def _handle_in_child(number: int) -> None:
        """Behave as if we were not here: a forked worker inherits Python's handlers."""
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
