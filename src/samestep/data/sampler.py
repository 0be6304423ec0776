"""Owns an epoch whose order comes from the user's sampler: through its own state, or replayed by index.

Replaying draws indices only and never reads a sample.
"""

import copy
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import BatchSampler

from samestep.data.fetch import name_of
from samestep.data.order import Draw
from samestep.data.randomness import own_generators
from samestep.errors import StateMismatch
from samestep.generators import (
    Generator,
    derive_seed,
    generator_state,
    global_state,
    seed_process,
    set_generator_state,
    set_global_state,
)


class PrivateStream:
    """A stream of the global generators that is swapped in around every draw, so that none is taken from theirs.

    Args:
        seed: Where the stream starts.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self.state: dict[str, Any] | None = None

    @contextmanager
    def drawn(self) -> Iterator[None]:
        """Let everything inside draw from the private stream."""
        outside = global_state(devices=False)
        if self.state is None:
            seed_process(self._seed)
        else:
            set_global_state(self.state)
        try:
            yield
        finally:
            self.state = global_state(devices=False)
            set_global_state(outside)


class OpenStream:
    """No stream of its own: a sampler draws from the process's generators, as PyTorch lets it."""

    state: dict[str, Any] | None = None

    @contextmanager
    def drawn(self) -> Iterator[None]:
        """Change nothing."""
        yield


class _Mark(NamedTuple):
    """Where a course stands behind one batch."""

    samples: int
    digest: int = 0
    own: Any = None
    stream: dict[str, Any] | None = None


class ToldEpoch:
    """Stands in for a sampler's `set_epoch`, and notes what it was told and whether by the user.

    It stands on the sampler itself, since a sampler need not show the number; one that takes no attributes is
    watched by its `epoch`.

    Args:
        sampler: The sampler.
    """

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler
        self._own: Any = getattr(sampler, "__dict__", {}).get("set_epoch")
        self._number: Any = None
        self._shown = self._look()
        self._by_user = False

    @classmethod
    def of(cls, sampler: Any) -> "ToldEpoch":
        """Stand in for this sampler's `set_epoch`, once however many loaders share it."""
        if isinstance(sampler.set_epoch, cls):
            return sampler.set_epoch
        told = cls(sampler)
        with suppress(AttributeError):
            sampler.set_epoch = told
        return told

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Pass on a call of the user."""
        self._by_user = True
        return self._pass_on(*arguments, **options)

    def tell(self, number: Any, *, by_user: bool) -> None:
        """Call `set_epoch` in the loader's name, or again in the user's."""
        self._by_user = by_user
        self._pass_on(number)

    @property
    def by_user(self) -> bool:
        """Whether the user sets the epoch, by the method or by the attribute."""
        return self._by_user or self._look() != self._shown

    @property
    def number(self) -> Any:
        """What must be told again to get here; None when nothing was told."""
        shown = self._look()
        return self._number if shown == self._shown else shown

    def _pass_on(self, *arguments: Any, **options: Any) -> Any:
        own = self._own or partial(type(self._sampler).set_epoch, self._sampler)
        answer = own(*arguments, **options)
        self._number, self._shown = next(iter((*arguments, *options.values())), None), self._look()
        return answer

    def _look(self) -> int | None:
        epoch = getattr(self._sampler, "epoch", None)
        return epoch if isinstance(epoch, int) else None


class SamplerOrder:
    """The user's sampler or batch sampler, and the generators found in it.

    Args:
        source: What yields indices (`batched=False`) or batches of them.
        batched: Whether the source yields batches.
        dataset: The data set, whose generators are not the sampler's though a sampler often holds it.
        generator: A generator that the loader draws from for the source; None for the global one.
    """

    def __init__(
        self, source: Iterable[Any], *, batched: bool, dataset: object, generator: torch.Generator | None = None
    ) -> None:
        self.source = source
        self.batched = batched
        self._dataset = dataset
        self._generator = generator
        inner = source.sampler if type(source) is BatchSampler else None
        candidates = [each for each in (source, inner) if each is not None]
        self.stateful: Any = next((each for each in candidates if _has_state(each)), None)
        told = (ToldEpoch.of(each) for each in candidates if callable(getattr(each, "set_epoch", None)))
        self._told = next(told, None)

    def generators(self) -> dict[str, Generator]:
        """Find the generators that decide the order, but for those of a sampler that has a state of its own."""
        found: dict[str, Generator] = {}
        for path, root in self._roots():
            for name, each in own_generators(root, path, without=(self._dataset, self._told, self.source)).items():
                if not any(each is known for known in found.values()):
                    found[name] = each
        return found

    def _roots(self) -> Iterator[tuple[str, object]]:
        yield "generator", self._generator
        sources = () if self.stateful is not None else (self.source, getattr(self.source, "sampler", None))
        for path, source in zip(("sampler", "sampler.sampler"), sources, strict=False):
            for name, value in getattr(source, "__dict__", {}).items():
                known = (self._dataset, self._told, *sources)
                if all(value is not each for each in known):
                    yield f"{path}.{name}", value

    def state(self) -> dict[str, Any]:
        """Read what decides the draws that come next."""
        state: dict[str, Any] = {}
        if states := {path: generator_state(each) for path, each in self.generators().items()}:
            state["generators"] = states
        if self._told is not None and (epoch := self._told.number) is not None:
            state |= {"epoch": epoch, "told_by_user": self._told.by_user}
        if self.stateful is not None:
            state["own"] = copy.deepcopy(self.stateful.state_dict())
        return state

    def set_state(self, state: dict[str, Any]) -> None:
        """Set what decides the draws that come next; raise `StateMismatch` before, if a generator is not there."""
        self._require_generators(state.get("generators", {}))
        if "epoch" in state and self._told is not None:
            self._told.tell(state["epoch"], by_user=state.get("told_by_user", False))
        if "own" in state and self.stateful is not None:
            self.stateful.load_state_dict(copy.deepcopy(state["own"]))
        self.set_generators(state.get("generators", {}))

    def set_generators(self, states: dict[str, Any]) -> None:
        """Set the generators by path; raise `StateMismatch` for one that is not there."""
        found = self._require_generators(states)
        for path, state in states.items():
            set_generator_state(found[path], state)

    def _require_generators(self, paths: Iterable[str]) -> dict[str, Generator]:
        found = self.generators()
        for path in paths:
            if path not in found:
                raise StateMismatch(
                    "The sampler has lost a generator that the saved state names.",
                    path=path,
                    found=", ".join(found) or "no generator",
                    hint="Build the sampler as in the run that saved the state.",
                )
        return found

    def tell_epoch(self, epoch: int) -> None:
        """Call `set_epoch` of a sampler that has it, unless the user does so himself."""
        if self._told is not None and not self._told.by_user:
            self._told.tell(epoch, by_user=False)


class SamplerCourse:
    """One epoch drawn from the user's sampler.

    Args:
        order: The sampler with its generators, set to where the epoch starts.
        stream: Where draws from the global generators come from.
        start: The number of the first batch to draw; the ones before it are skipped by index.
        saved: The state of an earlier course of this epoch that stood at `start`.
    """

    def __init__(
        self, order: SamplerOrder, stream: PrivateStream | OpenStream, start: int, saved: dict[str, Any] | None
    ) -> None:
        self._order = order
        self._stream = stream
        self._skip = 0 if order.stateful is not None else start
        self._expected = saved
        self._start = order.state()
        self._next = start - self._skip
        self._behind = _Mark(0)
        if order.stateful is not None:
            self._behind = _Mark(saved["samples"] if saved else 0, own=self._start["own"])
            stream.state = saved.get("stream") if saved else None
        self._ahead = self._behind
        self._marks: dict[int, _Mark] = {}
        self._iterator: Iterator[Any] | None = None
        self._over = order.stateful is not None and saved is not None and start == _length(order.source)
        self._generators = order.generators()
        self._last_seen: list[Any] | None = None
        self._shared = saved is not None and "now" in saved

    def generator_states(self) -> dict[str, Any]:
        """Read the generators that decide the order, by path."""
        return {path: generator_state(each) for path, each in self._generators.items()}

    def start_here(self) -> None:
        """Let the epoch start from the states of now."""
        self._start = self._order.state()

    def open(self) -> None:
        """Call `iter` on the sampler, as often as PyTorch would."""
        self._last_seen = None
        with self._stream.drawn():
            self._iterator = iter(self._order.source)

    def skip(self) -> None:
        """Draw the batches that the loop has been handed before, and check that they are the same."""
        shorter = False
        while self._skip and not shorter:
            self._skip -= 1
            try:
                self.handed(self._draw().number)
            except StopIteration:
                shorter = True
        if shorter or (self._expected is not None and self._behind.digest != self._expected["digest"]):
            raise StateMismatch(
                "The sampler does not repeat the order that it had when the state was saved.",
                path="sampler",
                hint="Let it draw from generators that it holds as attributes or from the global ones,"
                " or give it state_dict and load_state_dict.",
            )
        self._expected = None

    def __next__(self) -> Draw:
        self.skip()
        if self._over:
            self._over = False  # workers ask several times at the end, and a sampler must be ended only once
            self._exhaust()
        return self._draw()

    def handed(self, number: int) -> None:
        """Note that the loop has been handed this batch."""
        for each in [each for each in self._marks if each <= number]:
            self._behind = self._marks.pop(each)

    def state(self) -> dict[str, Any]:
        """Give the epoch's start and what tells whether a replay has come to the same place."""
        behind = self._behind
        state = {"start": self._start, "samples": behind.samples, "digest": behind.digest}
        if self._order.stateful is not None:
            state |= {"start": {**self._start, "own": behind.own}, "stream": behind.stream}
        if self._shared or (self._last_seen is not None and self._look() != self._last_seen):
            state["now"] = self._order.state()["generators"]
        return state

    def settle(self, saved: dict[str, Any] | None = None) -> None:
        """Set generators that others draw from too to where they stood when the state was saved."""
        if saved is not None and "now" in saved:
            self._order.set_generators(saved["now"])
        if self._last_seen is not None:
            self._last_seen = self._look()

    def _exhaust(self) -> None:
        """End an epoch that was over when its state was taken.

        A sampler whose last batch was short had ended by then and would begin its next epoch; one whose last
        batch was full had not, and must be asked once more to end.
        """
        with self._stream.drawn():
            for _ in self._order.source:
                self._order.set_state(self._start)
                break
        self._iterator = iter(())

    def _draw(self) -> Draw:
        if self._iterator is None:
            self.open()
        assert self._iterator is not None  # noqa: S101 - for the type checker
        if self._generators and self._last_seen is not None:
            self._shared = self._shared or self._look() != self._last_seen
        with self._stream.drawn():
            indices = next(self._iterator)
            if self._order.batched and not hasattr(indices, "__len__"):
                indices = list(indices)
        if self._generators:
            self._last_seen = self._look()
        return self._noted(indices)

    def _noted(self, indices: Any) -> Draw:
        draw = Draw(self._next, self._ahead.samples, indices)
        replayed = self._order.stateful is None
        self._ahead = _Mark(
            draw.first + (len(indices) if self._order.batched else 1),
            derive_seed(self._ahead.digest, name_of(indices)) if replayed else 0,
            None if replayed else copy.deepcopy(self._order.stateful.state_dict()),
            None if replayed else self._stream.state,
        )
        self._marks[draw.number] = self._ahead
        self._next += 1
        return draw

    def _look(self) -> list[Any]:
        return [_comparable(generator_state(each)) for each in self._generators.values()]


def _comparable(state: Any) -> Any:
    """Turn tensors and arrays into bytes, which `==` compares as a whole."""
    if isinstance(state, dict):
        return {name: _comparable(each) for name, each in state.items()}
    if isinstance(state, torch.Tensor):
        state = state.numpy()
    return state.tobytes() if isinstance(state, np.ndarray) else state


def _has_state(sampler: object) -> bool:
    return callable(getattr(sampler, "state_dict", None)) and callable(getattr(sampler, "load_state_dict", None))


def _length(source: Any) -> int | None:
    try:
        return len(source)
    except (TypeError, NotImplementedError):
        return None
