"""Owns the search for the processes of a command, also those that have left its session. Looks only, and kills none."""

import os
from collections.abc import Iterator
from pathlib import Path

_PROC = Path("/proc")
_ENDED = (b"Z", b"X")


def processes_of(session: int | None, ledgers: Path) -> Iterator[int]:
    """Find the living processes of a recorded command.

    A process belongs to it if it is in its session, or if its environment names its folder of ledgers, which no other
    command has. Where there is no /proc (macOS), none is found: there a kill reaches the process group only.

    Args:
        session: The number of its session, as long as nobody else's can have it; None if there is none.
        ledgers: The folder that SAMESTEP_RECORD names in it.

    Yields:
        Their numbers, each as soon as it is found; never that of the process that asks.
    """
    mark = b"SAMESTEP_RECORD=" + os.fsencode(ledgers.absolute())
    seen = {os.getpid()}
    # One may start another and end while the list is gone through: what has come meanwhile is looked at at once.
    while new := _numbers() - seen:
        seen |= new
        for number in sorted(new, reverse=True):
            if _belongs(_PROC / str(number), session, mark):
                yield number


def has_ended(number: int) -> bool:
    """Tell whether a process runs no longer, noted by its parent or not; False where nothing tells it."""
    try:
        return (_PROC / str(number) / "stat").read_bytes().rpartition(b") ")[2][:1] in _ENDED
    except OSError:
        return _PROC.exists()


def _numbers() -> set[int]:
    try:
        return {int(each) for each in os.listdir(_PROC) if each.isdecimal()}  # noqa: PTH208 — names alone are cheaper
    except OSError:
        return set()


def _belongs(process: Path, session: int | None, mark: bytes) -> bool:
    try:
        # The name stands in parentheses and may hold any character, so the fields are counted from the last one.
        state, *fields = (process / "stat").read_bytes().rpartition(b") ")[2].split()
        if state in _ENDED:
            return False
        return int(fields[2]) == session or mark in (process / "environ").read_bytes().split(b"\0")
    except (OSError, ValueError, IndexError):  # it has just ended, or is another user's
        return False
