"""Owns the right to write into a run: one process at a time. Never touches a checkpoint."""

import errno
import fcntl
import json
import logging
import os
import socket
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from samestep.errors import RunLocked, SamestepError
from samestep.store import files
from samestep.store.attempts import command_line
from samestep.store.json_lines import encode_line, read_own, utc_now

LOCK_FILE = ".lock"
OWNER_FILE = "lock.json"

_log = logging.getLogger("samestep")

_held: dict[tuple[int, int], str] = {}
"""The lock files (device, inode) that this process holds, with their directories.

A POSIX record lock belongs to the process, so a second open of the same file in the same process would be granted
it, and closing that second file would drop the lock of the first. Hence the process has to remember for itself.
"""
_guard = threading.RLock()
"""Re-entrant: a garbage collection inside it may finalize another run, which releases its own lock."""


def _forget_after_fork() -> None:
    """Start afresh: a forked child owns no lock, and its guard may be held by a thread that it lacks."""
    global _guard  # noqa: PLW0603 — a lock that a vanished thread holds can only be replaced
    _guard = threading.RLock()
    _held.clear()


os.register_at_fork(after_in_child=_forget_after_fork)


class RunLock:
    """The right of one process to write into a run.

    It is a POSIX record lock (`lockf`), which the kernel takes back when the process dies, however it dies. Other
    than `flock`, forked children do not inherit it: the DataLoader workers of a killed trainer live on for some
    seconds, and must not keep its own restart out.

    Args:
        directory: The run's directory, which exists. No other code of the process may open its `.lock`: closing
            any descriptor of that file drops the lock.
        is_guest: Whether to remove a lock file that was not there before, for work on a folder that has no run. Who
            comes to it meanwhile finds, once it has the lock, that the file has lost its name, and makes another one.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as directory, RunLock(directory) as lock:
        ...     lock.is_held
        True
    """

    def __init__(self, directory: str | os.PathLike[str], *, is_guest: bool = False) -> None:
        self.directory = Path(directory)
        self._is_guest, self._has_made_it = is_guest, False
        self._descriptor: int | None = None
        self._owner: tuple[int, tuple[int, int]] | None = None

    @property
    def is_held(self) -> bool:
        """Whether this process holds the lock through this object; never true in a forked child."""
        return self._owner is not None and self._owner[0] == os.getpid()

    def is_in_place(self) -> bool:
        """Tell whether the lock file in the directory is the one that is held: not removed, replaced or taken."""
        return self._is_same_file() and self._retake()

    def is_taken(self) -> bool:
        """Tell whether another process holds the lock that this one has lost."""
        return self._is_same_file() and not self._retake()

    def _is_same_file(self) -> bool:
        return self._owner is not None and _identity(self.directory / LOCK_FILE) == self._owner[1]

    def _retake(self) -> bool:
        """Ask for the lock again: code of this process that copies the directory drops it, by closing its file."""
        try:
            fcntl.lockf(-1 if self._descriptor is None else self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def move(self) -> None:
        """Take the lock of the directory that stands now where the locked one stood, and let go of that one.

        Raises:
            RunLocked: Another process, or another part of this one, holds it.
            SamestepError: The directory is missing or cannot be written.
        """
        newer = RunLock(self.directory)
        newer.acquire()
        (older, self._descriptor), (owner, self._owner) = (
            (self._descriptor, newer._descriptor),
            (self._owner, newer._owner),
        )
        newer._descriptor = newer._owner = None
        if older is not None and owner is not None:
            with _guard:
                _held.pop(owner[1], None)
                os.close(older)

    def acquire(self, wait: float = 0.0) -> None:
        """Take the lock.

        Args:
            wait: For how many seconds to try again while another process holds it (default 0). A killed process
                gives its lock back only when its memory has been freed, which can take seconds.

        Raises:
            RunLocked: Another process, or another part of this one, holds it.
            SamestepError: The directory is missing or cannot be written.
        """
        until = time.monotonic() + wait
        while True:
            try:
                return self._try()
            except RunLocked:
                if time.monotonic() >= until or self._is_parents():
                    raise
                time.sleep(0.05)

    def release(self) -> None:
        """Give the lock back; does nothing when this process does not hold it."""
        if not self.is_held:
            return
        # Taken out first: whoever comes here a second time, also from a finalizer in between, finds nothing to do.
        (descriptor, self._descriptor), (owner, self._owner) = (self._descriptor, None), (self._owner, None)
        if descriptor is None or owner is None:
            return
        with _guard:
            # The owner's file goes first: afterwards it may already be the next owner's. Where the directory was moved
            # away while it was held, what stands at its place is somebody else's.
            if _identity(self.directory / LOCK_FILE) == owner[1]:
                _remove(self.directory / OWNER_FILE)
                if self._is_guest and self._has_made_it:
                    _remove(self.directory / LOCK_FILE)
            _held.pop(owner[1], None)
            os.close(descriptor)

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def _try(self) -> None:
        path = self.directory / LOCK_FILE
        with _guard:
            if _identity(path) in _held:
                raise RunLocked(
                    "This process is already working on this run.",
                    path=self.directory,
                    found=f"it works in {_held.get(_identity(path) or (0, 0))}",
                    hint="Close the other Run, Store or RunLock first, also one of a copy by hard links (cp -al).",
                )
            descriptor = self._locked(path)
            if _is_shared(descriptor) and _gives_way(path):
                os.close(descriptor)
                descriptor = self._locked(path)
            identity = _status_identity(os.fstat(descriptor))
            _held[identity] = str(self.directory)
            self._descriptor, self._owner = descriptor, (os.getpid(), identity)
        _write_owner(self.directory / OWNER_FILE)

    def _locked(self, path: Path) -> int:
        """Open and lock the file that has the name once it is locked: another process may just have replaced it."""
        while True:
            descriptor = self._open(path)
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                os.close(descriptor)
                raise self._refused(error) from error
            if _identity(path) == _status_identity(os.fstat(descriptor)):
                return descriptor
            os.close(descriptor)

    def _open(self, path: Path) -> int:
        try:
            if path.is_symlink() or (path.exists() and not path.is_file()):
                raise SamestepError("The run's lock file is no regular file.", path=path, hint="Move it away.")
            self._has_made_it = not path.exists()
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        except FileNotFoundError as error:
            raise SamestepError(
                "The run's directory does not exist.", path=self.directory, hint="Check the path."
            ) from error
        except OSError as error:
            raise SamestepError(
                "The run's directory cannot be written, so no process can work on it.",
                path=self.directory,
                expected="a directory in which this user may write",
                found=error.strerror,
                hint="Choose another directory or change its permissions.",
            ) from error

    def _is_parents(self) -> bool:
        """Tell whether the process that started this one as its worker holds the lock: it waits for this one.

        While a worker imports the script, `multiprocessing.parent_process` does not know yet that it is one.
        """
        if not any("multiprocessing" in each for each in sys.orig_argv):
            return False
        import multiprocessing  # only a worker comes here; the command line starts without it

        parent = multiprocessing.parent_process()
        parents = {os.getppid(), None if parent is None else parent.pid}
        owner = _read_owner(self.directory)
        return owner.get("host") == socket.gethostname() and owner.get("pid") in parents

    def _refused(self, error: OSError) -> SamestepError:
        if error.errno in {errno.EACCES, errno.EAGAIN} and self._is_parents():
            return RunLocked(
                "A worker process has come to the line that makes the Run, for it imports the script again.",
                path=self.directory,
                found=describe_owner(self.directory),
                hint='Put the Run and its loop under `if __name__ == "__main__":`, or start the workers by fork.',
            )
        if error.errno in {errno.EACCES, errno.EAGAIN}:
            return RunLocked(
                "Another process is working on this run.",
                path=self.directory,
                found=describe_owner(self.directory),
                hint="Wait until it ends, stop it, or give this run another directory.",
            )
        return SamestepError(
            "The file system of the run's directory knows no locks.",
            path=self.directory,
            found=error.strerror,
            hint="Put the run on a file system with POSIX locks (NFS: version 4, or with its lock service).",
        )


def describe_owner(directory: str | os.PathLike[str]) -> str:
    """Say in a few words who works on a run, as far as its `lock.json` tells.

    Args:
        directory: The run's directory.

    Returns:
        Process, host, begin and command; "an unknown process" when the file is missing or unreadable.

    Example:
        >>> describe_owner("/nowhere")
        'an unknown process'
    """
    owner = _read_owner(directory)
    if not owner:
        return "an unknown process"
    return "process {pid} on {host} since {time}: {command}".format_map(_Lenient(owner))


def _read_owner(directory: str | os.PathLike[str]) -> dict[str, Any]:
    try:
        owner: Any = json.loads(read_own(Path(directory) / OWNER_FILE))
    except (OSError, ValueError, RecursionError, SamestepError):
        return {}
    return owner if isinstance(owner, dict) else {}


def _is_shared(descriptor: int) -> bool:
    """Tell whether the lock file is also that of a copy by hard links (`cp -al`), which is another run's."""
    return os.fstat(descriptor).st_nlink > 1


def _gives_way(path: Path) -> bool:
    """Take a shared lock file out of the way, while it is locked; where that is not allowed it stays shared."""
    try:
        files.remove_file(path)
    except OSError as error:
        _log.warning("%s is shared with a hard-linked copy and could not be replaced: %s", path, error.strerror)
        return False
    return True


def _write_owner(path: Path) -> None:
    owner = {"host": socket.gethostname(), "pid": os.getpid(), "time": utc_now(), "command": command_line()}
    try:
        files.replace_file(path, encode_line(owner))
    except OSError as error:  # the file only serves a message: a full disk must not keep the run from starting
        _log.warning("%s could not be written: %s", path, error.strerror)


def _remove(path: Path) -> None:
    try:
        files.remove_file(path)
    except OSError as error:
        _log.warning("%s could not be removed: %s", path, error.strerror)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        return _status_identity(path.stat())
    except OSError:
        return None


def _status_identity(status: os.stat_result) -> tuple[int, int]:
    return (status.st_dev, status.st_ino)


class _Lenient(dict[str, Any]):
    """Says "?" for what another version of the file does not have."""

    def __missing__(self, key: str) -> str:
        return "?"
