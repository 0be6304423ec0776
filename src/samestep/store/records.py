"""Owns run.json: which training this is. Never touches a checkpoint."""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from samestep.errors import SamestepError
from samestep.store import files
from samestep.store.folder import RUN_FILE
from samestep.store.json_lines import encode_line, plain, read_own, utc_now
from samestep.wording import told


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
    if not os.path.lexists(path):  # a link that leads nowhere is not nothing
        fields = {"id": os.urandom(16).hex(), "created": utc_now(), "samestep": version, "config": now}
        _write(path.parent, fields)
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
    _write(Path(directory), fields)


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
        record = _record(json.loads(read_own(path)))
    except FileNotFoundError as error:
        raise SamestepError("This directory holds no run.", path=directory, expected=RUN_FILE) from error
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise SamestepError(
            "The run's record is damaged.",
            path=path,
            expected="a JSON object with id, created, samestep and config",
            found=told(error),
            hint="Restore it from a copy, or move it away: the next start writes a new one.",
        ) from error
    return record


def _write(directory: Path, fields: Mapping[str, Any]) -> None:
    files.replace_file(directory / RUN_FILE, encode_line({**fields, "digest": _digest(fields)}))


def _digest(fields: Mapping[str, Any]) -> str:
    return xxhash.xxh3_128_hexdigest(encode_line(fields))


def _record(fields: Any) -> RunRecord:
    record = RunRecord(fields["id"], fields["created"], fields["samestep"], fields["config"])
    if re.fullmatch(r"[0-9a-f]{32}", record.id) is None:
        raise ValueError("id is no identity of a run")
    if not (isinstance(record.created, str) and isinstance(record.samestep, str) and isinstance(record.config, dict)):
        raise TypeError("created, samestep or config is of another type")
    written = fields.pop("digest", None)  # the first versions wrote none
    if written not in {None, _digest(fields)}:
        raise ValueError("the content does not match its digest")
    return record


def _differences(path: str, before: Any, now: Any) -> list[Difference]:
    if isinstance(before, dict) and isinstance(now, dict):
        found = []
        for key in sorted({*before, *now}):
            found += _differences(f"{path}.{key}", before.get(key), now.get(key))
        return found
    # As text: 1, 1.0 and True are equal in Python, but not the same configuration.
    same = json.dumps(before, sort_keys=True) == json.dumps(now, sort_keys=True)
    return [] if same else [Difference(path, before, now)]
