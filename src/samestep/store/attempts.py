"""Owns attempts.jsonl: which processes worked on a run, and how they ended. Never touches a checkpoint."""

import os
import re
import shlex
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from samestep.store import files
from samestep.store.json_lines import encode_line, parse_line, plain, read_own, utc_now

ATTEMPTS_FILE = "attempts.jsonl"


class Attempt:
    """One process that works on a run, and its line in attempts.jsonl; the process holds the run's lock.

    The line is written when the attempt begins and again when it ends. A process that could not write its end
    was killed: the next attempt says so in its place.

    Args:
        directory: The run's directory.
        number: Which attempt it is, counted from 1.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     first = Attempt.begin(directory, {"versions": {"torch": "2.13.0"}})
        ...     second = Attempt.begin(directory, {}, resumed_from="step-000000004")
        ...     second.end("finished", steps=8)
        ...     [(line["attempt"], line["how"]) for line in read_attempts(directory)]
        [(1, 'killed'), (2, 'finished')]
    """

    def __init__(self, directory: str | os.PathLike[str], number: int) -> None:
        self.directory = Path(directory)
        self.number = number
        self._fields: dict[str, Any] = {"attempt": number}
        self._left: tuple[int, int, int] | None = None

    @classmethod
    def begin(
        cls,
        directory: str | os.PathLike[str],
        details: Mapping[str, Any],
        *,
        resumed_from: str | None = None,
    ) -> "Attempt":
        """Add this process to the run's attempts, and mark earlier ones without an end as killed.

        Args:
            directory: The run's directory.
            details: What the caller knows besides: versions, git, device, threads; plain JSON.
            resumed_from: The name of the checkpoint from which it goes on; None when it starts anew.

        Returns:
            The attempt.
        """
        lines = [_closed(line) for line in _whole_lines(directory)]
        number = 1 + max(map(_number_of, lines), default=0)
        own = {
            "attempt": number,
            "started": utc_now(),
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "command": command_line(),
            "resumed_from": resumed_from,
            "ended": None,
            "how": None,
            "steps": None,
        }
        attempt = cls(directory, number)
        attempt._fields = own | plain(dict(details), "details") | own
        attempt._write([*lines, encode_line(attempt._fields)])
        return attempt

    def is_recorded(self) -> bool:
        """Tell whether the file is still as this process has left it."""
        return self._left is not None and self._left == _state_of(self.directory / ATTEMPTS_FILE)

    def _write(self, lines: list[bytes]) -> None:
        path = self.directory / ATTEMPTS_FILE
        files.replace_file(path, b"".join(lines))
        self._left = _state_of(path)

    def update(self, **fields: Any) -> None:
        """Change this attempt's line, for instance `resumed_from` or `steps`, in one atomic rewrite of the file.

        Args:
            fields: The fields by name, plain JSON. A line that is gone is written anew, with all that is known.
        """
        self._fields |= plain(fields, "attempt")
        lines = _whole_lines(self.directory)
        own = [place for place, line in enumerate(lines) if _number_of(line) == self.number]
        for place in own[-1:]:  # an earlier line of this number is a damaged one
            lines[place] = encode_line((parse_attempt(lines[place]) or {}) | plain(fields, "attempt"))
        if not own:
            lines.append(encode_line(self._fields))
        self._write(lines)

    def end(self, how: str, *, steps: int) -> None:
        """Write down how this attempt ended.

        Args:
            how: "finished", "signal 15", "error: …".
            steps: The run's completed steps at the end.
        """
        self.update(ended=utc_now(), how=how, steps=steps)


def read_attempts(directory: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Read a run's attempts.

    Args:
        directory: The run's directory.

    Returns:
        One dict per attempt, oldest first; a line that is torn or damaged is passed over.
    """
    return [line for raw in _whole_lines(directory) if (line := parse_attempt(raw)) is not None]


def parse_attempt(raw: bytes) -> dict[str, Any] | None:
    """Read one line of attempts.jsonl; None when it is damaged."""
    line = parse_line(raw)
    return line if line is not None and _is_number(line.get("attempt")) else None


def _is_number(value: object) -> bool:
    return type(value) is int and 0 < value < 2**53


def _whole_lines(directory: str | os.PathLike[str]) -> list[bytes]:
    """Read the lines of attempts.jsonl, but for one without an end, which a dying machine has left torn."""
    try:
        raw = read_own(Path(directory) / ATTEMPTS_FILE)
    except FileNotFoundError:
        return []
    return [line + b"\n" for line in raw.split(b"\n")[:-1]]


def command_line() -> str:
    """Name the command that started this process, as one would type it.

    Returns:
        The interpreter's arguments, quoted for a shell.

    Example:
        >>> bool(command_line())
        True
    """
    return shlex.join([Path(sys.executable).name, *sys.orig_argv[1:]])


# A run may have thousands of attempts, so the lines of others are copied as they are, without being parsed.
_NUMBERED = re.compile(rb'\{"attempt": (\d{1,15}),.*\}\n')
_OPEN = re.compile(rb'"how"\s*:\s*null')


def _number_of(line: bytes) -> int:
    """Give the number of an attempt's line, also of one that another program has written anew; 0 for a damaged one."""
    match = _NUMBERED.fullmatch(line)
    return int(match[1]) if match else (parse_attempt(line) or {}).get("attempt", 0)


def _closed(line: bytes) -> bytes:
    """Say of an attempt without an end that it was killed; what cannot be read stays as it is."""
    parsed = parse_attempt(line) if _OPEN.search(line) else None
    return line if parsed is None or parsed.get("how", "damaged") else encode_line(parsed | {"how": "killed"})


def _state_of(path: Path) -> tuple[int, int, int] | None:
    """Tell by what a change of the file shows, without reading it; None when it is not there."""
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns
