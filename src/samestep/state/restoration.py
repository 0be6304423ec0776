"""Owns what every kind of restoration has in common: checked first, rehearsed if it may fail, then applied."""

from collections.abc import Callable, Sequence

from samestep.errors import StateMismatch

Undo = Callable[[], None]


class Restoration:
    """One item's way into its live object. Building one checks everything and changes nothing.

    Args:
        name: The name under which the object is tracked.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def rehearse(self) -> Undo | None:
        """Do what may still fail, before anything is changed for good: read values, and run code that is not ours.

        Returns:
            What puts the object back; None if nothing was changed.
        """
        return None

    def apply(self) -> None:
        """Restore the object."""
        raise NotImplementedError


def require_no_differences(name: str, differences: Sequence[str], hint: str) -> None:
    """Raise a StateMismatch that lists all differences, if there are any."""
    if differences:
        raise StateMismatch(
            f"The saved state of {name!r} does not fit the live object; nothing has been changed.",
            path=name,
            found="\n            ".join(shortened(differences)),
            hint=hint,
        )


def require_same_type(name: str, what: str, saved: object, live: object) -> None:
    """Raise a StateMismatch if an object is of another class than the one that was saved.

    Args:
        name: The name under which it is tracked.
        what: What it is: "scheduler".
        saved: The name of the class that was saved.
        live: The name of the live object's class.
    """
    if saved != live:
        raise StateMismatch(
            f"{name} is another kind of {what} than the one that was saved.",
            path=name,
            expected=saved,
            found=live,
            hint=f"Create the same kind of {what} as when the checkpoint was saved. {BEGIN_ANEW}",
        )


BEGIN_ANEW = "To begin it anew, track it under another name and give both names to allow_missing."
"""The way out that holds for every object whose saved state cannot or shall not be used."""

_MOST_NAMED = 10


def shortened(lines: Sequence[str], most: int = _MOST_NAMED) -> list[str]:
    """Give the first lines of a list, and how many more there are: nobody reads a thousand at 3 a.m.

    Example:
        >>> shortened(["a", "b", "c", "d"], most=2)
        ['a', 'b', 'and 2 more']
    """
    if len(lines) <= most + 1:
        return list(lines)
    return [*lines[:most], f"and {len(lines) - most} more"]


def compare_names(saved: Sequence[str], live: Sequence[str], here: str = "in the live object") -> list[str]:
    """Describe names that only one side has.

    Example:
        >>> compare_names(["a", "b"], ["b", "c"])
        ['a is in the checkpoint but not in the live object', 'c is in the live object but not in the checkpoint']
    """
    in_saved, in_live = set(saved), set(live)
    only_saved = [name for name in saved if name not in in_live]
    only_live = [name for name in live if name not in in_saved]
    return [
        *(f"{name} is in the checkpoint but not {here}" for name in only_saved),
        *(f"{name} is {here} but not in the checkpoint" for name in only_live),
    ]
