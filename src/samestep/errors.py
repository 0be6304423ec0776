"""Owns every error samestep raises: one base, few kinds, each named after what happened. Writes and decides nothing."""

from collections.abc import Mapping

from samestep.wording import CONTINUED, printable, printable_lines, written


class SamestepError(Exception):
    """An error that says what happened, where, what was expected and found, and what to do.

    Args:
        message: One sentence: what happened.
        path: Where: a file, or the path of a leaf such as `optimizer.state["layer.weight"].hook`.
        expected: What should have been there.
        found: What was there instead.
        hint: What the user can do about it.

    Example:
        >>> error = SamestepError("The step does not fit.", path="run.step", expected=4, found=5, hint="Do X.")
        >>> print(error)
        The step does not fit.
          where:    run.step
          expected: 4
          found:    5
          to do:    Do X.
    """

    def __init__(
        self,
        message: str,
        *,
        path: object = None,
        expected: object = None,
        found: object = None,
        hint: str | None = None,
    ) -> None:
        self.message = message
        self.path = _text(path)
        self.expected = _text(expected)
        self.found = _text(found)
        self.hint = hint
        super().__init__(message)

    def __str__(self) -> str:
        parts = {"where": self.path, "expected": self.expected, "found": self.found, "hint": self.hint}
        return "\n".join(in_lines({"message": self.message, **parts}))


_LABELS = {"where": "where:   ", "expected": "expected:", "found": "found:   ", "hint": "to do:   "}


def in_lines(described: Mapping[str, object]) -> list[str]:
    r"""Write the parts of an error as people read them, harmless to a terminal.

    Args:
        described: Its message and its parts: where, expected, found, hint; None for one that it has not.

    Returns:
        The lines.

    Example:
        >>> in_lines({"message": "It is torn.", "where": "a\x1b[2J", "found": None})
        ['It is torn.', '  where:    a\\x1b[2J']
    """
    parts = [(label, written(described[key])) for key, label in _LABELS.items() if described.get(key) is not None]
    lines = [printable(written(described["message"]))]
    return lines + [f"  {label} {printable_lines(text, CONTINUED)}" for label, text in parts]


def _text(value: object) -> str | None:
    return None if value is None else written(value)


class CorruptCheckpoint(SamestepError):
    """A checkpoint's bytes are not those that were written, or were never a checkpoint."""


class NoCheckpoint(SamestepError):
    """A checkpoint was asked for and there is none."""


class StateMismatch(SamestepError):
    """The saved state and the live objects do not belong together; nothing has been changed."""


class UnsupportedValue(SamestepError):
    """A value in the state has a type that cannot be stored exactly."""


class NotTracked(SamestepError):
    """Something that decides the next step is not tracked, or cannot be."""


class RunLocked(SamestepError):
    """Another process is working on this run."""


class SaveFailed(SamestepError):
    """A checkpoint could not be written; the checkpoints before it are untouched."""


class WrongPlace(SamestepError):
    """A method was called where the training loop does not allow it."""
