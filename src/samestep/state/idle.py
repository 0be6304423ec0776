"""Owns which generators nobody has drawn from since a loop began. Changes none."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from samestep.generators import generator_state, is_generator

_LONGEST_SEED = 2**48
"""Seeds that the system gives are longer; the one of a torch.Generator that was given none has 46 bits."""


class IdleGenerators:
    """Knows generators that only did something before the loop: they split the data, or seeded another.

    One that is as it was when the loop began decides nothing so far, and the script that is started again comes to the
    same state before its loop, if it was seeded. One that is drawn from later is not idle any more.

    Args:
        values: Any objects, as they are when the loop begins.

    Example:
        >>> split, noise = torch.Generator(), np.random.default_rng(0)
        >>> idle = IdleGenerators([split, noise])
        >>> _ = noise.random()
        >>> idle.includes(split), idle.includes(noise)
        (True, False)
    """

    def __init__(self, values: Iterable[Any]) -> None:
        self._before: dict[int, tuple[object, Any]] = {}  # with the objects, so that no other gets the id of one
        for value in values:
            if is_generator(value) and _is_repeated(value):
                self._before[id(value)] = value, generator_state(value)

    def includes(self, value: Any) -> bool:
        """Tell whether a value is a generator that is as it was when the loop began."""
        if id(value) not in self._before:
            return False
        return _is_same(generator_state(value), self._before[id(value)][1])


def _is_repeated(generator: Any) -> bool:
    """Tell a generator that starts alike in each process from one that the system has seeded, or may have."""
    with suppress(AttributeError):
        if isinstance(generator, torch.Generator):
            return generator.initial_seed() < _LONGEST_SEED
        entropy = getattr(generator, "bit_generator", generator).seed_seq.entropy
        return isinstance(entropy, int) and entropy < _LONGEST_SEED
    return False  # those of Python do not say what their seed was


def _is_same(now: Any, before: Any) -> bool:
    if isinstance(now, Mapping):
        return all(_is_same(now[name], before[name]) for name in now)
    if isinstance(now, Tensor):
        return torch.equal(now, before)
    return bool(np.all(now == before))
