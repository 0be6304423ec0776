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
            found="\n            ".join(differences),
            hint=hint,
        )


def compare_names(saved: Sequence[str], live: Sequence[str]) -> list[str]:
    """Describe names that only one side has.

    Example:
        >>> compare_names(["a", "b"], ["b", "c"])
        ['a is in the checkpoint but not in the live object', 'c is in the live object but not in the checkpoint']
    """
    in_saved, in_live = set(saved), set(live)
    only_saved = [name for name in saved if name not in in_live]
    only_live = [name for name in live if name not in in_saved]
    return [
        *(f"{name} is in the checkpoint but not in the live object" for name in only_saved),
        *(f"{name} is in the live object but not in the checkpoint" for name in only_live),
    ]
