"""Commands that are killed at each of their file operations, in forks of one warm process, and then run again."""

import functools
import os
import shutil
import signal
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import samestep.attempt
import samestep.cli.group
import samestep.data.loader
import samestep.logbook
import samestep.run
from samestep.store import files


class Counted(files.System):
    """The operating system, which notes each call that changes files and asks `before` ahead of it.

    Nothing is synchronised for real: a kill loses nothing that the system has taken, and the tests make thousands.
    """

    def __init__(self) -> None:
        self.calls: list[str] = []

    def before(self, name: str, arguments: tuple[Any, ...]) -> None: ...

    def __getattribute__(self, name: str) -> Any:
        call = super().__getattribute__(name)
        if name.startswith("_") or name in {"calls", "before", "at"}:
            return call

        def counted(*arguments: Any) -> Any:
            self.before(name, arguments)
            target = next((str(each) for each in reversed(arguments) if isinstance(each, Path)), "")
            self.calls.append(f"{name} {target}".strip())
            return None if name == "fsync" else call(*arguments)

        return counted


class KillAt(Counted):
    """Kills its own process with SIGKILL ahead of call number `at`; if that is a write, half of it is done."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at

    def before(self, name: str, arguments: tuple[Any, ...]) -> None:
        if len(self.calls) == self.at:
            if name == "write":
                os.write(arguments[0], arguments[1][: len(arguments[1]) // 2])
            os.kill(os.getpid(), signal.SIGKILL)


def warm_up() -> None:
    """Do once what every command in a fork of this process would do again, with the same outcome."""
    samestep.attempt.environment = functools.cache(samestep.attempt.environment)  # asks git, digests all modules
    samestep.attempt.environment()
    samestep.logbook._FLUSH_EVERY = -1.0  # each line of metrics at once: the calls must not depend on the time
    warnings.simplefilter("ignore")  # what is damaged is warned of, thousands of times


def in_fork(work: Callable[[], object]) -> int:
    """Run something in a fork of this process: 0 for a good end, 1 for an exception, negative for a signal."""
    process = os.fork()
    if process == 0:
        status = 1
        try:
            work()
            status = 0
        except Exception:
            traceback.print_exc()
            raise
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def under(system: files.System, work: Callable[[Path], object], directory: Path) -> int:
    """Run a command on a directory in a fork whose calls go through `system`."""

    def command() -> None:
        files.system = system
        work(directory)

    return in_fork(command)


def calls_of(work: Callable[[Path], object], directory: Path) -> list[str]:
    """Run a command undisturbed in a fork and return its calls, with paths from the directory on."""
    log = directory.with_name(f"{directory.name} calls")

    def noted(place: Path) -> None:
        work(place)
        log.write_text("\n".join(files.system.calls))

    assert under(Counted(), noted, directory) == 0
    return log.read_text().replace(f" {directory}/", " ").splitlines()


def telling_points(calls: list[str]) -> list[int]:
    """Leave out the calls ahead of which a kill leaves the same bytes on the disk as ahead of the call before.

    Behind a synchronisation, a closing, or the opening of a folder nothing has changed; and of the writes into one file
    the first and the last speak for those between them.
    """
    points = []
    for at, call in enumerate(calls):
        before = calls[at - 1] if at else "mkdir"
        between_writes = before == call == "write" and calls[at + 1] == "write"
        if not before.startswith(("fsync", "close")) and not between_writes:
            points.append(at)
    return points


def killed(base: Path, work: Callable[[Path], object], points: Iterable[int]) -> Iterator[tuple[int, Path]]:
    """Kill a command at each of the points, on copies of `base`; give the point and the copy."""
    for at in points:
        directory = base.with_name(f"{base.name} killed at {at}")
        shutil.copytree(base, directory)
        assert under(KillAt(at), work, directory) == -signal.SIGKILL, f"call {at} was not reached"
        yield at, directory
        shutil.rmtree(directory)
