"""Owns run.json and attempts.jsonl: which training this is, and who worked on it. Never touches a checkpoint.

These and metrics.jsonl are strict JSON. A float that JSON cannot hold is written as the string "nan", "inf" or
"-inf", as in a manifest; `float()` reads it back. Times are ISO 8601 in UTC.
"""

import json
import math
import os
import shlex
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from samestep.errors import SamestepError, UnsupportedValue
from samestep.store import files
from samestep.store.folder import RUN_FILE

ATTEMPTS_FILE = "attempts.jsonl"


# --- run.json: which training this is -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Difference:
    """One value of the configuration that is not what the run began with.

    Args:
        path: Where, such as `config.optimizer.lr`.
        before: The value in run.json; None when it was not there.
        now: The value given now; None when it is not given any more.
    """

    path: str
    before: Any
    now: Any


@dataclass(frozen=True, slots=True)
class RunRecord:
    """What run.json says.

    Args:
        id: The run's identity, 32 hexadecimal digits drawn at random once.
        created: When the run began: ISO 8601, UTC.
        samestep: The version of samestep that began it.
        config: The configuration that the user gave, as plain JSON.
        differences: What of the configuration given now differs from it; empty for a new run.
    """

    id: str
    created: str
    samestep: str
    config: Any
    differences: tuple[Difference, ...] = ()


def open_run(directory: str | os.PathLike[str], config: Mapping[str, Any] | None, *, version: str) -> RunRecord:
    """Read a run's run.json, or write it if this is the run's first process; it is never changed later.

    Args:
        directory: The run's directory, which exists.
        config: The configuration of the training: JSON values, tuples and paths; None compares nothing.
        version: The version of samestep, for a new run.

    Returns:
        What run.json says, and how `config` differs from it.

    Raises:
        UnsupportedValue: The configuration holds something that JSON cannot express; its path is named.
        SamestepError: run.json is damaged.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     first = open_run(directory, {"lr": 0.1}, version="0.1.0")
        ...     again = open_run(directory, {"lr": 0.2}, version="0.1.0")
        >>> again.id == first.id, again.differences
        (True, (Difference(path='config.lr', before=0.1, now=0.2),))
    """
    now = plain(dict(config or {}), "config")
    path = Path(directory) / RUN_FILE
    if not path.exists():
        fields = {"id": os.urandom(16).hex(), "created": utc_now(), "samestep": version, "config": now}
        files.replace_file(path, encode_line(fields))
    record = read_run(directory)
    differences = () if config is None else tuple(_differences("config", record.config, now))
    return RunRecord(record.id, record.created, record.samestep, record.config, differences)


def rewrite_run(directory: str | os.PathLike[str], record: RunRecord) -> None:
    """Write run.json again as it was: for a directory that was removed while its run was at work.

    Args:
        directory: The run's directory, made anew.
        record: What run.json said.
    """
    fields = {"id": record.id, "created": record.created, "samestep": record.samestep, "config": record.config}
    files.replace_file(Path(directory) / RUN_FILE, encode_line(fields))


def read_run(directory: str | os.PathLike[str]) -> RunRecord:
    """Read a run's run.json.

    Args:
        directory: The run's directory.

    Returns:
        What it says.

    Raises:
        SamestepError: It is missing or damaged.
    """
    path = Path(directory) / RUN_FILE
    try:
        fields = json.loads(path.read_bytes())
        return RunRecord(fields["id"], fields["created"], fields["samestep"], fields["config"])
    except FileNotFoundError as error:
        raise SamestepError("This directory holds no run.", path=directory, expected=RUN_FILE) from error
    except (ValueError, KeyError, TypeError) as error:
        raise SamestepError(
            "The run's record is damaged.",
            path=path,
            expected="a JSON object with id, created, samestep and config",
            found=f"{type(error).__name__}: {error}",
            hint="Restore it from a copy, or move it away: the next start writes a new one.",
        ) from error


def _differences(path: str, before: Any, now: Any) -> list[Difference]:
    if isinstance(before, dict) and isinstance(now, dict):
        found = []
        for key in sorted({*before, *now}):
            found += _differences(f"{path}.{key}", before.get(key), now.get(key))
        return found
    # As text: 1, 1.0 and True are equal in Python, but not the same configuration.
    same = json.dumps(before, sort_keys=True) == json.dumps(now, sort_keys=True)
    return [] if same else [Difference(path, before, now)]


def plain(value: Any, path: str) -> Any:
    """Turn a value into what strict JSON can hold.

    Args:
        value: JSON values, tuples, sets, paths, and numbers of NumPy and torch (which have `item()`).
        path: Where the value stands, for the error.

    Returns:
        The same as dict, list, str, int, float, bool and None; floats that are not finite as strings.

    Raises:
        UnsupportedValue: JSON cannot express the value; the path of the leaf is named.

    Example:
        >>> plain({"betas": (0.9, float("inf"))}, "config")
        {'betas': [0.9, 'inf']}
    """
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(float(value))
    if isinstance(value, Mapping):
        return {str(key): plain(inner, f"{path}.{key}") for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner, f"{path}[{i}]") for i, inner in enumerate(value)]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if callable(getattr(value, "item", None)) and getattr(value, "ndim", None) == 0:
        return plain(value.item(), path)
    raise UnsupportedValue(
        "This value cannot be written down as JSON.",
        path=path,
        expected="numbers, text, lists and dicts of them",
        found=type(value).__name__,
        hint="Give a number or a text instead.",
    )


def encode_line(fields: Mapping[str, Any]) -> bytes:
    r"""Write one object as one line of strict JSON.

    Args:
        fields: Plain JSON (see `plain`).

    Returns:
        The line with its end, in UTF-8.

    Example:
        >>> encode_line({"step": 4})
        b'{"step": 4}\n'
    """
    text = json.dumps(fields, allow_nan=False, ensure_ascii=False)
    # A command line may hold bytes that are no UTF-8; as "\\udc80" they are JSON and come back the same.
    return text.encode(errors="backslashreplace") + b"\n"


# --- attempts.jsonl: which processes worked on it --------------------------------------------------------


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
        lines = [_closed(line) for line in read_attempts(directory)]
        number = 1 + max((line["attempt"] for line in lines), default=0)
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
        _write_attempts(directory, [*lines, own | plain(dict(details), "details") | own])
        return cls(directory, number)

    def update(self, **fields: Any) -> None:
        """Change this attempt's line, for instance `resumed_from` or `steps`, in one atomic rewrite of the file.

        Args:
            fields: The fields by name, plain JSON.
        """
        lines = read_attempts(self.directory)
        changed = [line | plain(fields, "attempt") if line["attempt"] == self.number else line for line in lines]
        _write_attempts(self.directory, changed)

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
        One dict per attempt, oldest first; a line that a dying machine left torn is passed over.
    """
    try:
        raw = (Path(directory) / ATTEMPTS_FILE).read_bytes()
    except FileNotFoundError:
        return []
    return [line for line in map(parse_line, raw.splitlines()) if line and isinstance(line.get("attempt"), int)]


def parse_line(raw: bytes) -> dict[str, Any] | None:
    """Read one line of a JSON-lines file.

    Args:
        raw: The line.

    Returns:
        Its object; None when the line is torn or holds no object.

    Example:
        >>> parse_line(b'{"step": 4}'), parse_line(b'{"step": 4, "lo')
        ({'step': 4}, None)
    """
    try:
        value = json.loads(raw)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def command_line() -> str:
    """Name the command that started this process, as one would type it.

    Returns:
        The interpreter's arguments, quoted for a shell.

    Example:
        >>> bool(command_line())
        True
    """
    return shlex.join([Path(sys.executable).name, *sys.orig_argv[1:]])


def utc_now() -> str:
    """Tell the time, as all files of a run write it.

    Returns:
        ISO 8601 in UTC to the millisecond.

    Example:
        >>> utc_now().endswith("Z")
        True
    """
    return datetime.now(UTC).isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def _closed(line: dict[str, Any]) -> dict[str, Any]:
    return line if line.get("how") else line | {"how": "killed"}


def _write_attempts(directory: str | os.PathLike[str], lines: list[dict[str, Any]]) -> None:
    files.replace_file(Path(directory) / ATTEMPTS_FILE, b"".join(map(encode_line, lines)))
