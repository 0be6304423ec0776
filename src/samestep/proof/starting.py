"""Owns the attempts of an arm: starting its command, waiting, killing, and that no process of it is left behind.

Each command has a session of its own, so that a kill reaches all that it started and nothing else, and so that Ctrl-C
reaches the prover alone. What has left the session (torchrun gives each rank one of its own) is known by the folder
of ledgers in its environment.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

from samestep.errors import SamestepError
from samestep.proof.processes import has_ended, processes_of
from samestep.proof.recording import Launch, Process, Settings, recorded_environment, start_command
from samestep.proof.workspace import Workspace
from samestep.store import files
from samestep.wording import printable_lines

_PAUSE = 0.005
"""Seconds between two looks at a running command."""

_PATIENCE = 10.0
"""Seconds in which what was killed must be gone; a process that waits for a dead disk ends when the disk does."""

_MOST_OF_A_LOG = 64 * 1024

_OF_AN_AGENT = re.compile(r"[EW]\d{4} .*torch/distributed/elastic/")
_OF_A_RANK = re.compile(r"\[rank\d+\]: ")

_ENDS = (signal.SIGTERM, signal.SIGHUP)


class Attempt:
    """One start of an arm's command, recorded. Its methods may be called from several threads at once.

    Args:
        command: The command and its arguments, as `Workspace.command` gives them.
        workspace: The arm.
        number: Which attempt it is, from 0; its ledgers and its log bear the number.
        settings: How it is recorded.
        variables: More variables of the environment.
        launch: What starts the command (default: `subprocess.Popen`).

    Attributes:
        ledgers: The folder of its ledgers.
        log: What it prints.
    """

    def __init__(
        self,
        command: Sequence[str],
        workspace: Workspace,
        number: int,
        settings: Settings | None = None,
        *,
        variables: Mapping[str, str] | None = None,
        launch: Launch = subprocess.Popen,
    ) -> None:
        self.ledgers, self.log = workspace.ledgers(number), workspace.log(number)
        self._command, self._directory, self._launch = list(command), workspace.directory, launch
        self._environment = {
            **recorded_environment(self.ledgers, settings or Settings()),
            **workspace.environment(number),
            **(variables or {}),
        }
        self._lock = threading.RLock()  # a Ctrl-C may come while this thread holds it
        self._process: Process | None = None
        self._is_stopped = False
        self._counted: dict[Path, tuple[int, int]] = {}
        self.status: int | None = None
        """The exit status, negative for a signal; None while the command runs, or before it does."""

    def start(self) -> Self:
        """Start the command.

        Raises:
            SamestepError: It cannot be started, or was killed before.
        """
        with self._lock:
            if self._is_stopped:
                raise SamestepError("The proof was ended, so no command is started any more.", path=self._command[0])
            log = files.system.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            try:
                self._process = start_command(
                    self._command,
                    self._launch,
                    cwd=self._directory,
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            finally:
                files.system.close(log)
        return self

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for the end of the command, or for the death that was asked for; what is left running is killed then.

        The other ranks of a dead one go with it, and what would start it again, such as torchrun: the prover does that.

        Args:
            timeout: Seconds to wait at most (default: without end).

        Returns:
            Its exit status, negative for a signal; None when it still runs.
        """
        until = None if timeout is None else time.monotonic() + timeout
        with self._killed_on_an_error():
            while self._is_running() and not self._has_died():
                if until is not None and time.monotonic() >= until:
                    return None
                time.sleep(_PAUSE)
            self._finish()
        return self.status

    def kill(self) -> None:
        """Kill the command with all that it started, by SIGKILL; afterwards nothing of it runs.

        One that has ended is left as it is; one that was not started yet never will be.
        """
        with self._lock:
            self._is_stopped = True
            self._finish()

    def kill_when(self, steps: int, delay: float = 0.0) -> bool:
        """Kill the command some time after a step: at a moment that the script does not choose.

        Args:
            steps: How many steps one of its ledgers must hold.
            delay: Seconds to wait from then on.

        Returns:
            Whether it was still running.
        """
        until: float | None = None
        with self._killed_on_an_error():
            while self._is_running():
                if until is None and self.steps() >= steps:
                    until = time.monotonic() + delay
                if until is not None and time.monotonic() >= until:
                    break
                time.sleep(_PAUSE)
            was_running = self._is_running()
            self.kill()
        return was_running and self.status == -signal.SIGKILL

    def steps(self) -> int:
        """Count the steps that have been noted so far, by the rank that has made the most."""
        for path in self.ledgers.glob("rank-*.jsonl"):
            begin, count = self._counted.get(path, (0, 0))
            with path.open("rb") as ledger:
                ledger.seek(begin)
                whole = ledger.read().rpartition(b"\n")
            lines = whole[0].split(b"\n") if whole[1] else []
            count += sum(line.startswith(b'{"step":') for line in lines)  # as `LedgerWriter` begins them
            self._counted[path] = (begin + len(whole[0]) + len(whole[1]), count)
        ranks: Counter[str] = Counter()
        for path, (_, count) in self._counted.items():
            ranks[path.name.partition(".")[0]] += count
        return max(ranks.values(), default=0)

    def tail(self, lines: int = 20) -> str:
        """Give the last lines of what it printed, harmless to a terminal."""
        try:
            with self.log.open("rb") as log:
                log.seek(max(0, self.log.stat().st_size - _MOST_OF_A_LOG))
                text = log.read().decode(errors="replace")
        except FileNotFoundError:
            return ""
        # A progress bar writes one line over and over: its last state is what a terminal would show.
        shown = [line.rstrip("\r").rpartition("\r")[2] for line in text.rstrip("\n").split("\n")]
        return printable_lines("\n".join(_without_agent(shown)[-lines:]))

    @contextlib.contextmanager
    def _killed_on_an_error(self) -> Iterator[None]:
        """Kill the command if the block ends by an error, such as Ctrl-C: then nobody waits for it any more."""
        try:
            yield
        except BaseException:
            self.kill()
            raise

    def _is_running(self) -> bool:
        """Tell whether the command runs, without taking note of its end: until then its number is nobody else's."""
        if self.status is not None or self._process is None:
            return False
        try:
            return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        except ChildProcessError:  # not our own child: a test's, or one whose end was noted meanwhile
            return self._process.poll() is None

    def _has_died(self) -> bool:
        """Tell whether a process has died as it was asked to; what is killed in a write has said so before."""
        for path in self.ledgers.glob("killed-*.json"):
            with contextlib.suppress(OSError, ValueError):  # it is being written
                if has_ended(int(json.loads(path.read_bytes())["pid"])):
                    return True
        return False

    def _finish(self) -> None:
        """Kill all that is left, then take note of the end."""
        with self._lock:
            if self.status is not None:
                return
            session = None if self._process is None else self._process.pid
            _kill_all(session, self.ledgers)
            if self._process is not None:
                try:
                    self.status = self._process.wait(_PATIENCE)
                except subprocess.TimeoutExpired as error:
                    raise SamestepError(
                        "The command does not end, although it was killed.",
                        path=self._command[0],
                        found=f"process {session}",
                        hint="Does it wait for a disk or a network file system that is gone?",
                    ) from error


def _kill_all(session: int | None, ledgers: Path) -> None:
    """Kill a session, and what has left it, until nothing more is found: a process may start another meanwhile."""
    until = time.monotonic() + _PATIENCE
    if session is not None:
        _kill_group(session)
        _kill(session)  # one that a test has forked may not have got its group yet
    while sum(_kill(each) for each in processes_of(session, ledgers)) and time.monotonic() < until:
        time.sleep(_PAUSE)


def _kill_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # macOS says the latter of a group that has ended
        return


def _kill(process: int) -> bool:
    try:
        os.kill(process, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # it has ended, or is the system's by now
        return False
    return True


def _without_agent(lines: Sequence[str]) -> Sequence[str]:
    """Leave out what torchrun says of a rank that has failed, in forty lines, if the rank has said it before."""
    places = [place for place, line in enumerate(lines) if _OF_AN_AGENT.match(line)]
    if not places:
        return lines
    before = lines[: places[0]]
    if not any("Traceback" in each for each in before):
        return lines[: places[-1] + 1]
    # The first to fail has the cause; the others fail since it is gone.
    first = next((found[0] for each in before if (found := _OF_A_RANK.match(each)) and "Traceback" in each), "")
    return [each for each in before if not _OF_A_RANK.match(each) or each.startswith(first)]


class Attempts:
    """The attempts of a prover: when the block ends, for whatever reason, nothing of them is left running.

    Threads that wait for attempts must be joined outside of the block, else Ctrl-C would wait for the trainings:
    `with ThreadPoolExecutor() as threads, Attempts() as attempts: …`. SIGTERM and SIGHUP end the block as Ctrl-C does,
    since commands in sessions of their own would outlive the prover and its terminal.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: list[Attempt] = []
        self._is_closed = False
        self._replaced: dict[signal.Signals, Any] = {}

    def start(self, attempt: Attempt) -> Attempt:
        """Start an attempt.

        Raises:
            SamestepError: It cannot be started, or the block has ended.
        """
        with self._lock:
            self._all = [each for each in self._all if each.status is None]
            self._all.append(attempt)  # before it runs: an exception in between leaves none behind
            if self._is_closed:
                attempt.kill()
        return attempt.start()

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            replaced = [each for each in _ENDS if signal.getsignal(each) == signal.SIG_DFL]
            self._replaced = {each: signal.signal(each, _end) for each in replaced}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._lock:
            self._is_closed = True
        with _undisturbed():
            for each in self._all:
                each.kill()
        for number, handler in self._replaced.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Ignore a second Ctrl-C, which would leave behind what the first one was about to end."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {each: signal.signal(each, signal.SIG_IGN) for each in (signal.SIGINT, *_ENDS)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
