"""Owns the reading, setting, seeding and finding of random generators. Never stores anything.

States are plain values (ints, floats, strings, tuples, lists, dicts, NumPy arrays and CPU tensors), never pickles.
"""

import functools
import os
import random
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from types import BuiltinMethodType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
import xxhash

from samestep.installed import is_installed

Generator = torch.Generator | np.random.Generator | np.random.RandomState | np.random.BitGenerator | random.Random
"""A generator object of one of the three libraries."""

_GENERATOR_TYPES = (
    torch.Generator,
    np.random.Generator,
    np.random.RandomState,
    np.random.BitGenerator,
    random.Random,
)


def derive_seed(*parts: int | str) -> int:
    """Hash parts into a seed of 64 bits.

    Seeds are hashed, never added: with adding, seed 0 in epoch 1 would equal seed 1 in epoch 0.

    Args:
        parts: Integers of any size and strings, in order; `(1, "2")` and `("1", 2)` differ.

    Returns:
        An integer in [0, 2**64).

    Example:
        >>> derive_seed(0, "epoch", 1) != derive_seed(1, "epoch", 0)
        True
    """
    return xxhash.xxh3_64_intdigest(repr(parts).encode())


# --- the generators of the process ---------------------------------------------------------------------


def global_state(*, devices: bool = True) -> dict[str, Any]:
    """Read the generators that every library of this process draws from.

    Args:
        devices: Whether to read the generators of CUDA, XPU and MPS devices too (default). A device runtime
            that has not started has drawn nothing and is left out, so that reading never starts one.

    Returns:
        States by name: "python", "numpy", "torch", and "cuda", "xpu" (one tensor a device), "mps" where present.
    """
    state: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": np.random.get_state(legacy=False),
        "torch": torch.default_generator.get_state(),
    }
    if devices:
        state.update(_device_states())
    return state


def set_global_state(state: Mapping[str, Any]) -> None:
    """Set the generators of the process to a state that `global_state` gave; those it does not name stay."""
    if "python" in state:
        random.setstate(_python_state(state["python"]))
    if "numpy" in state:
        np.random.set_state(_numpy_state(state["numpy"]))
    if "torch" in state:
        torch.default_generator.set_state(state["torch"].cpu())
    if "cuda" in state:
        torch.cuda.set_rng_state_all([each.cpu() for each in state["cuda"]])
    if "xpu" in state:
        torch.xpu.set_rng_state_all([each.cpu() for each in state["xpu"]])
    if "mps" in state:
        torch.mps.set_rng_state(state["mps"].cpu())


def seed_process(seed: int) -> None:
    """Seed Python, NumPy and the CPU generator of torch from one 64-bit seed, in a few microseconds.

    `torch.manual_seed` takes 130-240 µs because it queues calls for every device; the default generator's own
    `manual_seed` takes 1-2 µs. It ignores the upper 32 bits, so each library gets its own hashed word.
    """
    random.seed(seed)
    np.random.seed(seed >> 32 & 0xFFFFFFFF)
    torch.default_generator.manual_seed(seed & 0xFFFFFFFF)


def _device_states() -> dict[str, Any]:
    states: dict[str, Any] = {}
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states["cuda"] = torch.cuda.get_rng_state_all()
    if torch.xpu.is_initialized():  # type: ignore[no-untyped-call]
        states["xpu"] = torch.xpu.get_rng_state_all()
    if torch.backends.mps.is_available():
        states["mps"] = torch.mps.get_rng_state()
    return states


# --- generator objects ---------------------------------------------------------------------------------


def is_generator(value: object) -> bool:
    """Tell whether a value is a generator object of torch, NumPy or Python."""
    return isinstance(value, _GENERATOR_TYPES)


def generator_state(generator: Generator) -> Any:
    """Read the state of a generator object as plain values."""
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    if isinstance(generator, np.random.RandomState):
        return generator.get_state(legacy=False)
    if isinstance(generator, np.random.BitGenerator):
        return generator.state
    return generator.getstate()


def set_generator_state(generator: Generator, state: Any) -> None:
    """Set a generator object to a state that `generator_state` gave for one of the same kind."""
    if isinstance(generator, torch.Generator):
        generator.set_state(state.cpu())
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = _numpy_state(state)
    elif isinstance(generator, np.random.RandomState):
        generator.set_state(_numpy_state(state))
    elif isinstance(generator, np.random.BitGenerator):
        generator.state = _numpy_state(state)
    else:
        generator.setstate(_python_state(state))


_PLACES = {"pos": 624, "buffer_pos": 4}
"""The places in the buffers of MT19937 and Philox, and the last one of each."""


def _numpy_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """Check what NumPy does not: it reads its buffer wherever it is told to, in foreign memory too."""
    state = dict(state)
    for part in (state, state.get("state", {})):
        for name, last in _PLACES.items():
            if name in part and not (isinstance(part[name], (int, np.integer)) and 0 <= part[name] <= last):
                raise ValueError(f"{name} is {part[name]!r:.40} and must lie in 0 to {last}")
    return state


def _python_state(state: Any) -> tuple[int, tuple[int, ...], float | None]:
    """Check what Python does not: the cached half of a Gaussian pair, which it would only stumble over when used."""
    version, internal, gauss = state
    if gauss is not None and not isinstance(gauss, float):
        raise TypeError(f"the cached Gaussian is a {type(gauss).__name__}")
    return version, tuple(internal), gauss


def seed_generator(generator: Generator, seed: int) -> None:
    """Seed a generator object anew from a 64-bit seed, keeping the object and its kind."""
    if isinstance(generator, torch.Generator):
        generator.manual_seed(seed & 0xFFFFFFFF if generator.device.type == "cpu" else seed)
    elif isinstance(generator, np.random.Generator):
        bits = generator.bit_generator
        bits.state = type(bits)(seed).state
    elif isinstance(generator, np.random.RandomState):
        generator.seed(seed & 0xFFFFFFFF)
    elif isinstance(generator, np.random.BitGenerator):
        generator.state = type(generator)(seed).state
    else:
        generator.seed(seed)


def find_generators(root: object, path: str = "", *, without: tuple[object, ...] = ()) -> dict[str, Generator]:
    """Find the generator objects that an object can draw from, at any depth.

    Looked through are attributes, slots, lists, tuples and dicts, the parts of a `functools.partial`, the objects of
    bound methods, and of the user's own functions and classes their closures, defaults, attributes and the global
    names that their code uses.

    Args:
        root: The object to look through: a data set, a transform, a sampler.
        path: The name to put before each path.
        without: Objects that are not entered.

    Returns:
        Generators by their path, such as "transform.transforms[0].rng", each object once. Not entered are tensors,
        arrays, Python modules, functions and classes of installed packages, containers of more than 1,000 elements,
        and anything behind the first 20,000 objects.
    """
    found: dict[str, Generator] = {}
    seen: dict[int, object] = {id(each): each for each in without}
    ahead = deque([(path, root)])
    while ahead and len(seen) <= _MOST_OBJECTS:
        path, value = ahead.popleft()  # the nearest first, so that the bound cuts off what is far away
        if isinstance(value, _LEAVES) or id(value) in seen:
            continue
        seen[id(value)] = value  # kept, for the number of an object that is gone may be given to the next
        if isinstance(value, _GENERATOR_TYPES):
            found[path] = value
            continue
        with suppress(Exception):  # proxies may raise anything when they are looked at
            ahead.extend((f"{path}{name}".removeprefix("."), child) for name, child in _children(value))
    return found


_LEAVES = (str, bytes, int, float, complex, type(None), np.ndarray, torch.Tensor, ModuleType, CodeType)
_MOST_ELEMENTS = 1_000
_MOST_OBJECTS = 20_000


def _children(value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, (list, tuple)):
        if len(value) <= _MOST_ELEMENTS:
            yield from ((f"[{index}]", child) for index, child in enumerate(value))
    elif isinstance(value, dict):
        if len(value) <= _MOST_ELEMENTS:
            yield from ((f"[{key!r}]", child) for key, child in list(value.items()))
    elif isinstance(value, type):
        yield from _of_class(value)
    elif isinstance(value, FunctionType):
        yield from _of_function(value)
    elif isinstance(value, functools.partial):
        yield from ((".func", value.func), (".args", value.args), (".keywords", value.keywords))
    elif isinstance(value, (staticmethod, classmethod, property)):
        yield "()", value.fget if isinstance(value, property) else value.__func__
    elif isinstance(value, (MethodType, BuiltinMethodType)):
        yield from ((".__self__", value.__self__), ("()", getattr(value, "__func__", None)))
    else:
        yield from _of_instance(value)


def _of_instance(value: object) -> Iterator[tuple[str, object]]:
    yield from ((f".{name}", child) for name, child in list(getattr(value, "__dict__", {}).items()))
    for each in type(value).__mro__:
        slots = each.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            yield f".{name}", getattr(value, name, None)
    yield "", type(value)


def _of_class(value: type) -> Iterator[tuple[str, object]]:
    for each in value.__mro__:
        if _is_users(getattr(sys.modules.get(each.__module__), "__file__", None), each.__module__):
            yield from ((f".{name}", child) for name, child in list(vars(each).items()))


def _of_function(function: FunctionType) -> Iterator[tuple[str, object]]:
    yield from ((f".{name}", child) for name, child in list(vars(function).items()))
    if not _is_users(function.__code__.co_filename, function.__module__):
        return
    yield from ((".__defaults__", function.__defaults__), (".__kwdefaults__", function.__kwdefaults__))
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # an empty cell
            yield f".{name}", cell.cell_contents
    for name in _names(function.__code__):
        if name in function.__globals__:
            yield f"():{name}", function.__globals__[name]


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


_OWN = os.path.join(os.path.dirname(__file__), "")  # noqa: PTH118, PTH120


@functools.cache
def _is_users(file: str | None, module: str | None) -> bool:
    """Tell the user's own code from that of an installed package, by its file; a notebook's has none."""
    return module == "__main__" if file is None else not (is_installed(file) or file.startswith(_OWN))
