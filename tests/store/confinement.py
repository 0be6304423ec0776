"""Calls in a child process with little memory and a deadline: what hangs, swells or crashes shows as itself."""

import os
import resource
import signal
import sys
from pathlib import Path

SECONDS = 20
"""Far more than any refusal takes, far less than anything that unfolds for ever."""


def confined(call, *, megabytes=256):
    """Call in a forked child that may take so much more memory than it has now; say how it ended.

    Gives "returned", or the name of the error and its text; "killed by 14" means that the deadline came,
    "killed by 11" that memory was read which is not the process's own.
    """
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        _be_confined(megabytes)
        os.write(write, _outcome(call).encode()[:4000])
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    return f"killed by {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else said


def _be_confined(megabytes):
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(SECONDS)
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    most = pages * resource.getpagesize() + megabytes * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _outcome(call):
    try:
        call()
    except BaseException as error:  # noqa: BLE001 — whatever it is, the test looks at it
        sys.stderr.flush()
        return f"{type(error).__name__}: {error}"
    return "returned"
