"""Owns how the library speaks to the one who wrote the loop: warnings that point at his line. Prints nothing itself."""

import inspect
import itertools
import warnings
from collections.abc import Collection
from functools import lru_cache
from types import CodeType, FrameType

from samestep.wording import printable_lines


@lru_cache(maxsize=1024)
def _is_passed_over(module: object) -> bool:
    """Tell whose frames are not the user's; between two of ours there may be those of a context manager."""
    return str(module).partition(".")[0] in {"samestep", "contextlib"}


def user_frame() -> FrameType | None:
    """Find the frame outside this package that led here: the loop that asked for its next batch, step or epoch.

    Between our own context managers and their bodies stand frames of contextlib, which are nobody's line.
    """
    frame = inspect.currentframe()
    while frame is not None and _is_passed_over(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
    return frame


def place_in_text(frame: FrameType) -> tuple[int, object]:
    """Tell where in its text a frame is: a call is at one place, however often it runs.

    The number of the instruction says it less well: Python 3.11 replaces calls that have run a few times by faster
    ones, which report the instruction before.
    """
    return id(frame.f_code), _position(frame.f_code, frame.f_lasti // 2)


Path = tuple[tuple[int, object], ...]
"""Places in texts, from within outwards: which call of which line led to a request."""


def path_in_text(frame: FrameType | None, around: Collection[int]) -> Path:
    """Tell the way to a frame: its place, and those of its callers up to the first whose code is one of these.

    One generator may be asked at several places; only the whole way tells that.
    """
    path = []
    while frame is not None:
        path.append(place_in_text(frame))
        if id(frame.f_code) in around:
            break
        frame = frame.f_back
    return tuple(path)


@lru_cache(maxsize=256)
def _position(code: CodeType, instruction: int) -> object:
    return next(itertools.islice(code.co_positions(), instruction, None), instruction)


def warn_user(message: str) -> None:
    """Warn, at the line of the user's code that led here; what could steer a terminal is escaped, but our own lines."""
    message = printable_lines(message)
    frame = user_frame()
    if frame is None:
        warnings.warn(message, stacklevel=2)
        return
    registry = frame.f_globals.setdefault("__warningregistry__", {})
    warnings.warn_explicit(message, UserWarning, frame.f_code.co_filename, frame.f_lineno, registry=registry)
