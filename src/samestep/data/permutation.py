"""Owns the shuffled order of one epoch, computed at any position without the positions before it. Never stores it.

Short orders are sorted by hashed keys, which makes every permutation equally likely. Long ones go through a
Feistel network over two unequal halves (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002), whose
domain exceeds the length by at most its square root, so that a walk back into the range is rare.
"""

import math

import numpy as np
from numpy.typing import NDArray

from samestep.generators import derive_seed

_SORTED = 4_096
"""Up to this length an order is sorted: 32 kB and a fraction of a millisecond an epoch."""

_ROUNDS = 8
"""Four rounds pass the statistical tests; eight leave a margin and cost 0.1 µs a sample."""


class Permutation:
    """A permutation of 0 … length - 1 that is a function of its seed, with random access.

    Args:
        length: Number of items, up to 10**12 and beyond.
        seed: Any integer; different seeds give unrelated permutations.

    Example:
        >>> order = Permutation(10**12, seed=0)
        >>> len(set(order.take(5 * 10**11, 5 * 10**11 + 1000).tolist()))
        1000
    """

    def __init__(self, length: int, seed: int) -> None:
        self._length = length
        self._keys = np.array([derive_seed(seed, "round", each) for each in range(_ROUNDS)], dtype=np.uint64)
        self._sorted = self._sort() if length <= _SORTED else None
        self._left = np.uint64(math.isqrt(max(length - 1, 0)) + 1)
        self._right = np.uint64(-(-length // int(self._left)))

    def take(self, start: int, stop: int) -> NDArray[np.int64]:
        """Compute the items at the positions from `start` up to `stop`.

        Args:
            start: First position.
            stop: Position after the last one; beyond the length it is cut.

        Returns:
            The items as integers, in order.
        """
        positions = np.arange(start, min(stop, self._length), dtype=np.int64)
        if self._sorted is not None:
            return self._sorted[positions]
        items = self._network(positions.astype(np.uint64))
        outside = np.flatnonzero(items >= np.uint64(self._length))
        while outside.size:
            items[outside] = self._network(items[outside])
            outside = outside[items[outside] >= np.uint64(self._length)]
        return items.astype(np.int64)

    def _sort(self) -> NDArray[np.int64]:
        keys = _mix(np.arange(self._length, dtype=np.uint64) + self._keys[:1])
        return np.argsort(_mix(keys ^ self._keys[1:2]), kind="stable").astype(np.int64)

    def _network(self, values: NDArray[np.uint64]) -> NDArray[np.uint64]:
        left, right = values % self._left, values // self._left
        for each in range(0, _ROUNDS, 2):
            left = (left + _mix(right ^ self._keys[each]) % self._left) % self._left
            right = (right + _mix(left ^ self._keys[each + 1]) % self._right) % self._right
        return left + right * self._left


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Finish SplitMix64 (Steele, Lea and Flood, 2014): every bit of the result depends on every bit given."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
