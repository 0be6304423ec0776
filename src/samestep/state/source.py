"""Owns the record of the code that runs: script, commit, uncommitted changes. Never imports torch or writes."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import xxhash

from samestep.installed import is_installed
from samestep.state.snapshot import Json

_GIT_SECONDS = 2.0


def source() -> dict[str, Json]:
    """Record the code that runs.

    Returns:
        "script" and "changes" are digests of the main script's bytes and of what the working tree has beyond the
        commit; "commit" is git's. Each is None where there is none. Git is asked for two seconds at most.

    Example:
        >>> sorted(source())
        ['changes', 'commit', 'script']
    """
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    path = None if script is None else Path(script).resolve()
    folder = Path.cwd() if path is None else path.parent
    return {
        "script": None if path is None else _digest_of_file(path),
        "commit": _git(folder, "rev-parse", "HEAD"),
        "changes": _changes(folder),
    }


def modules() -> dict[str, str]:
    """Digest the files of all modules of the user's that are loaded: neither Python's, nor installed, nor ours.

    Returns:
        Digests by the modules' names; the main script is in `source`.
    """
    files = {name: getattr(module, "__file__", None) for name, module in list(sys.modules.items())}
    own = {
        name: Path(file)
        for name, file in files.items()
        if isinstance(file, str) and file.endswith(".py") and not is_installed(file) and not _is_ours(name)
    }
    digests = {name: _digest_of_file(path) for name, path in sorted(own.items())}
    return {name: digest for name, digest in digests.items() if digest is not None}


def _is_ours(name: str) -> bool:
    return name == "__main__" or name.partition(".")[0] == "samestep"


def _changes(folder: Path) -> str | None:
    """Digest what the working tree has that the commit has not; None where git finds nothing or is absent."""
    difference = _git(folder, "diff", "HEAD", "--no-ext-diff", "--no-textconv")
    return xxhash.xxh3_128_hexdigest(difference.encode("utf-8", "surrogateescape")) if difference else None


def _digest_of_file(path: Path) -> str | None:
    try:
        return xxhash.xxh3_128_hexdigest(path.read_bytes())
    except OSError:
        return None


def _git(folder: Path, *arguments: str) -> str | None:
    command: list[Any] = ["git", "-C", folder, *arguments]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_GIT_SECONDS, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode("utf-8", "surrogateescape").strip() if done.returncode == 0 else None
