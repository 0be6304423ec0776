"""Operating systems that fail: they stand in for `files.system` and kill, refuse or cut short at a chosen call."""

import errno
import os
import signal
import warnings
from collections.abc import Callable

from samestep.store import files

CALLS = ("open", "write", "fsync", "close", "rename", "link", "unlink", "mkdir", "rmdir", "truncate")


class Counting(files.System):
    """Counts the calls and asks `before` ahead of each."""

    def __init__(self):
        self.calls = []

    def before(self, name, arguments):
        """Do nothing."""

    def __getattribute__(self, name):
        method = super().__getattribute__(name)
        if name not in CALLS:
            return method

        def call(*arguments):
            self.before(name, arguments)
            self.calls.append((name, arguments))
            return method(*arguments)

        return call


class KillAt(Counting):
    """Kills its own process with SIGKILL ahead of call number `at`; if that is a write, half of it is done."""

    def __init__(self, at):
        super().__init__()
        self.at = at

    def before(self, name, arguments):
        if len(self.calls) == self.at:
            if name == "write":
                os.write(arguments[0], arguments[1][: len(arguments[1]) // 2])
            os.kill(os.getpid(), signal.SIGKILL)


class FailAt(Counting):
    """Refuses call number `at` with an error of the system."""

    def __init__(self, at, number=errno.EIO):
        super().__init__()
        self.at = at
        self.number = number

    def before(self, name, _arguments):
        if len(self.calls) == self.at:
            self.calls.append((name, ()))
            raise OSError(self.number, os.strerror(self.number))


class ShortWrites(files.System):
    """Takes at most seven bytes a call, as a system may."""

    def write(self, descriptor, data):
        return super().write(descriptor, data[:7])


def in_child(work: Callable[[], None]) -> int:
    """Run `work` in a forked process and return its wait status: real memory, real files, a real death."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the test runner has threads; the child uses none
        process = os.fork()
    if process == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitpid(process, 0)[1]
