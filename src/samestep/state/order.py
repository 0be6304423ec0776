"""Owns the order in which sets iterate, and how to make a set that iterates alike. Never sorts."""

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from itertools import permutations
from typing import Any

_MOST_TRIES = 64
_MOST_ADDED = 100_000  # members added in all tries: a few milliseconds
_MOST_PERMUTED = 6


def order_to_add(members: AbstractSet[Any]) -> list[Any] | None:
    """Find the order in which members have to be added to an empty set so that it iterates as this one.

    That is often not the order in which it iterates: `{6, 7, 14}` gives 14, 6, 7, and a set made from these gives
    7, 14, 6. Sought is among the orders that making sets from sets gives, which mostly come back to the first, and for
    small sets among all.

    Args:
        members: A set of numbers; for texts the order changes from process to process.

    Returns:
        The members in that order; None if none was found, as for half of all sets of a hundred numbers.

    Example:
        >>> list(set(order_to_add({6, 7, 14}))) == list({6, 7, 14})
        True
    """
    wanted = list(members)
    return next((order for order in _candidates(wanted) if list(set(order)) == wanted), None)


def _candidates(wanted: list[Any]) -> Iterator[list[Any]]:
    order = wanted
    for _ in range(min(_MOST_TRIES, 1 + _MOST_ADDED // (1 + len(wanted)))):
        yield order
        order = list(set(order))
        if order == wanted:
            break
    if len(wanted) <= _MOST_PERMUTED:
        yield from map(list, permutations(wanted))
