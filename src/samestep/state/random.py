"""Owns the random state of a process as one tracked object, and blocks that leave it alone. Never draws."""

import operator
import os
import random
import warnings
from collections.abc import Callable, Mapping
from contextlib import ContextDecorator
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from samestep import generators
from samestep.errors import NotTracked, SamestepError, StateMismatch
from samestep.generators import Generator
from samestep.wording import shown

_DEVICES = ("cuda", "xpu")
_MOST = 2**64


class RandomState:
    """All random state of the process, as one object with `state_dict` and `load_state_dict`.

    The state holds the generators of Python, NumPy (legacy), torch and every device that has started, and the
    generator objects given here. It consists of numbers, texts, tuples, lists, dicts and tensors, so it loads with
    `torch.load(…, weights_only=True)`.

    Args:
        named: Generator objects of torch, NumPy or Python, by name.

    Raises:
        NotTracked: A value is no generator object.

    Example:
        >>> state = RandomState(augment=np.random.default_rng(0))
        >>> saved = state.state_dict()
        >>> first = random.random(), torch.rand(1).item()
        >>> state.load_state_dict(saved)
        >>> first == (random.random(), torch.rand(1).item())
        True
    """

    def __init__(self, **named: Generator) -> None:
        for name, generator in named.items():
            _require_generator(name, generator, "Give the generator object itself.")
        self._named = named

    def state_dict(self) -> dict[str, Any]:
        """Read all generators."""
        named = {name: generators.generator_state(generator) for name, generator in self._named.items()}
        return {**_tensors(generators.global_state()), "generators": _tensors(named)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set all generators to a state that `state_dict` gave; on an error all stay as they were.

        Raises:
            StateMismatch: A part is missing, damaged or belongs to another kind of generator; it is named.
        """
        _check(state, set(self._named))
        before = self.state_dict()
        try:
            self._set(state)
        except SamestepError:
            self._set(before)
            raise

    def _set(self, state: Mapping[str, Any]) -> None:
        for part, value in state.items():
            if part != "generators":
                _set_part(f"random.{part}", value, _global_setter(part))
        for name, value in state["generators"].items():
            _set_part(f"random.{name}", value, _setter_of(self._named[name]))


class isolated(ContextDecorator):  # noqa: N801  (used like a function, as contextlib's own)
    """A block, or a decorated function, that leaves the random state as it found it, also after an exception.

    Args:
        named: Generator objects that are put back too; those of the process always are.

    Raises:
        NotTracked: A value is no generator object.

    Example:
        >>> before = torch.get_rng_state()
        >>> with isolated():
        ...     _ = torch.rand(3)
        >>> torch.equal(before, torch.get_rng_state())
        True
    """

    def __init__(self, *named: Generator) -> None:
        for each in named:
            _require_generator("isolated", each, "As a decorator it is written with parentheses: @isolated().")
        self._named = named
        self._saved: list[tuple[dict[str, Any], list[Any]]] = []

    def __enter__(self) -> Self:
        own = [generators.generator_state(generator) for generator in self._named]
        self._saved.append((generators.global_state(), own))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        state, own = self._saved.pop()
        generators.set_global_state(state)
        _reset_devices_started_since(state)
        for generator, saved in zip(self._named, own, strict=True):
            generators.set_generator_state(generator, saved)


def seed_everything(seed: int) -> dict[str, Any]:
    """Seed Python, NumPy and torch with every device, just as the three libraries' own functions do.

    Args:
        seed: The seed, in [0, 2**64). The environment variable SAMESTEP_SEED overrides it.

    Returns:
        What was set: {"seed", "python", "numpy", "torch", "source"}; NumPy takes the seed modulo 2**32.

    Raises:
        SamestepError: The seed is no integer in that range.

    Example:
        >>> seed_everything(7)["numpy"]
        7
    """
    source = "SAMESTEP_SEED" if "SAMESTEP_SEED" in os.environ else "argument"
    seed = checked_seed(os.environ.get("SAMESTEP_SEED", seed), source)
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    return {"seed": seed, "python": seed, "numpy": seed % 2**32, "torch": seed, "source": source}


def _require_generator(name: str, value: object, hint: str) -> None:
    if not generators.is_generator(value):
        raise NotTracked(
            f"{name} was given something that is no generator object.",
            path=name,
            expected="a generator of torch, NumPy or Python",
            found=type(value).__name__,
            hint=hint,
        )


def checked_seed(seed: object, source: str) -> int:
    """Give a seed as a number.

    Args:
        seed: An integer, also one of NumPy or torch, or its text.
        source: Where it comes from, for the error.

    Raises:
        SamestepError: It is no integer in [0, 2**64).

    Example:
        >>> checked_seed("7", "SAMESTEP_SEED")
        7
    """
    try:
        number = int(seed) if isinstance(seed, str) else -1 if isinstance(seed, bool) else operator.index(seed)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = -1
    if not 0 <= number < _MOST:
        raise SamestepError(
            "The seed cannot be used.", path=source, expected="an integer in [0, 2**64)", found=shown(seed)
        )
    return number


def _check(state: Mapping[str, Any], named: set[str]) -> None:
    parts = {"python", "numpy", "torch", "generators"}
    missing = sorted(parts - set(state)) if isinstance(state, Mapping) else sorted(parts)
    if missing:
        raise StateMismatch("A part of the random state is missing.", path=f"random.{missing[0]}")
    unknown = sorted(str(part) for part in set(state) - parts - {*_DEVICES, "mps"})
    if unknown:
        raise StateMismatch("The random state has a part that nobody has.", path=f"random.{unknown[0]}")
    if not isinstance(state["generators"], Mapping):
        raise StateMismatch("The states of the generator objects are no dict.", path="random.generators")
    if set(state["generators"]) != named:
        raise StateMismatch(
            "The random state was saved with other generator objects.",
            path="random.generators",
            expected=sorted(state["generators"]),
            found=sorted(named),
            hint="Give RandomState the same generators by the same names.",
        )


def _set_part(path: str, value: Any, setter: Callable[[Any], None]) -> None:
    try:
        setter(value)
    except Exception as error:
        raise StateMismatch("A part of the random state does not fit its generator.", path=path, found=error) from error


def _global_setter(part: str) -> Callable[[Any], None]:
    def setter(value: Any) -> None:
        if part in _DEVICES:
            value = _for_present_devices(part, value)
        generators.set_global_state({part: value if part != "numpy" else _arrays(value)})

    return setter


def _setter_of(generator: Generator) -> Callable[[Any], None]:
    def setter(value: Any) -> None:
        own = isinstance(generator, torch.Generator)
        generators.set_generator_state(generator, value if own else _arrays(value))

    return setter


def _for_present_devices(part: str, states: list[Tensor]) -> list[Tensor]:
    present = getattr(torch, part).device_count()
    if present != len(states):
        warnings.warn(
            f"The random state is of {len(states)} {part} devices and this machine has {present}: "
            "random numbers on other devices than those that both have will differ.",
            stacklevel=6,
        )
    return states[:present]


def _reset_devices_started_since(state: Mapping[str, Any]) -> None:
    """Seed a device that started, and drew, inside the block again as its start did: from torch's last seed."""
    for part in _DEVICES:
        if part not in state and getattr(torch, part).is_initialized():
            getattr(torch, part).manual_seed_all(torch.initial_seed())


def _tensors(value: Any) -> Any:
    """Turn arrays into tensors, at any depth: weights_only loads these."""
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value.copy())
    if isinstance(value, dict):
        return {key: _tensors(each) for key, each in value.items()}
    if isinstance(value, np.generic):
        return value.item()
    return value


def _arrays(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.cpu().numpy()
    if isinstance(value, dict):
        return {key: _arrays(each) for key, each in value.items()}
    return value
