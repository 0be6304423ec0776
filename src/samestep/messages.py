"""Owns how the library speaks to the one who wrote the loop: warnings that point at his line. Prints nothing itself."""

import inspect
import warnings
from types import FrameType


def user_frame() -> FrameType | None:
    """Find the frame outside this package that led here: the loop that asked for its next batch, step or epoch.

    Between our own context managers and their bodies stand frames of contextlib, which are nobody's line.
    """
    frame = inspect.currentframe()
    while frame is not None and str(frame.f_globals.get("__name__", "")).partition(".")[0] in _NOT_THE_USERS:
        frame = frame.f_back
    return frame


_NOT_THE_USERS = {"samestep", "contextlib"}


def warn_user(message: str) -> None:
    """Warn, at the line of the user's code that led here."""
    frame = user_frame()
    if frame is None:
        warnings.warn(message, stacklevel=2)
        return
    registry = frame.f_globals.setdefault("__warningregistry__", {})
    warnings.warn_explicit(message, UserWarning, frame.f_code.co_filename, frame.f_lineno, registry=registry)
