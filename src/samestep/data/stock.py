"""Owns how an epoch is opened when order and random numbers are drawn just as PyTorch draws them, and resumed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import torch
import torch.utils.data

from samestep.data.identity import check_course
from samestep.data.inner import InnerLoader
from samestep.data.order import Course
from samestep.data.sampler import OpenStream, SamplerCourse, SamplerOrder
from samestep.data.streams import NO_BATCH, StreamedSamples, StreamTask
from samestep.errors import StateMismatch
from samestep.generators import global_state, set_global_state

Loader = torch.utils.data.DataLoader[Any]


class StockFeed:
    """Turns the draws of a course into tasks, batch i for worker i modulo the number of workers, as PyTorch does.

    Args:
        workers: Number of workers.
    """

    def __init__(self, workers: int) -> None:
        self._workers = max(1, workers)
        self._course: SamplerCourse | None = None
        self._between: Callable[[], None] | None = None
        self._sent = self._turns = self._opened = 0
        self.stopped = False
        self.streams: dict[int, Any] = {}

    def follow(self, course: SamplerCourse, turns: int, between: Callable[[], None] | None) -> None:
        """Go on with the draws of this course.

        Args:
            course: The epoch.
            turns: Workers whose turn is over before the first batch.
            between: Called before the sampler is opened a second time.
        """
        self._course, self._turns, self._between = course, turns, between
        self._opened, self.stopped = 0, False

    def __iter__(self) -> "StockFeed":
        if self._opened and self._between is not None:
            # Forgotten once called: it holds the mode that holds this feed, and workers end when the last
            # reference to their loader goes.
            between, self._between = self._between, None
            between()
        if self._course is not None:
            self._course.open()
        self._opened += 1
        self._sent = 0
        return self

    def __next__(self) -> StreamTask:
        if self._course is None or self.stopped:
            raise StopIteration
        number, indices = NO_BATCH, None
        if self._sent >= self._turns:
            number, _, indices = next(self._course)
        streams = self.streams.pop(self._sent % self._workers, None)
        self._sent += 1
        return StreamTask(number, indices, streams)


class StockMode:
    """Orders and fetches as PyTorch's loader does, from the generators that it draws from.

    A resumed epoch is opened from the states that the generators had at its start, moved on by index to its
    position, and given the workers' streams; then the process's generators are put back as they were before.

    Args:
        loader: The loader as its user built it.
    """

    def __init__(self, loader: Loader) -> None:
        self._persistent = loader.persistent_workers
        self._workers = loader.num_workers
        batched = loader.batch_sampler is not None
        source = loader.batch_sampler if loader.batch_sampler is not None else loader.sampler
        self._order = SamplerOrder(source, batched=batched, dataset=loader.dataset, generator=loader.generator)
        self._samples = StreamedSamples(loader.dataset, loader.collate_fn, batched=batched)
        self._kept: tuple[InnerLoader, StockFeed] | None = None
        self._batches: Iterator[list[Any]] | None = None  # of persistent workers
        self._process: dict[str, Any] | None = None  # the process's generators at the epoch's start
        self._origin: dict[str, Any] | None = None  # the generators when persistent workers were started
        self._streams: dict[int, Any] = {}  # the workers' generators behind the last batch handed from each
        self._loaded: dict[str, Any] | None = None

    def open(
        self, loader: Loader, _seed: int, _epoch: int, start: int, saved: dict[str, Any] | None
    ) -> tuple[Course, Iterator[list[Any]]]:
        """Open an epoch.

        Args:
            loader: The loader; a mode keeps no reference to it.
            start: Batches of it that the loop has had.
            saved: What the course's state was when the loop had had them; None for a new epoch.

        Returns:
            The course of the epoch and its batches as `[number, batch, streams]`.
        """
        self._end_fetching()
        with _generators_put_back() if saved is not None else nullcontext():
            course, batches = self._open(loader, start, saved)
        course.settle(saved)
        if self._loaded is not None:
            self._set_objects(self._loaded)
        self._loaded = None
        return course, batches

    def rest_state(self) -> dict[str, Any]:
        """Give what must be known between two epochs to start the next one."""
        return {"start": self._order.state()}

    def state(self, *, inside: bool) -> dict[str, Any]:
        """Give where the streams stand: of the workers, or of generators that the data set holds in this process.

        Args:
            inside: Whether an epoch is open.
        """
        if self._loaded is not None:
            return {"streams": self._loaded}
        streams: dict[str, Any] = self._setting()
        if inside:
            streams["process"] = self._process
        if self._workers == 0:
            self._samples.owned.look()
            return {"streams": {**streams, "objects": self._samples.owned.states()}}
        if not inside:
            self._end_fetching()
        if inside or self._persistent:
            streams |= {"workers": dict(self._streams), "origin": self._origin}
        return {"streams": streams}

    def check(self, state: dict[str, Any]) -> None:
        """Raise `StateMismatch` for a state of other workers: their streams cannot be dealt out anew."""
        check_course(state)
        parts = ("process",) if state.get("open") else ()
        if not isinstance(state.get("streams"), dict) or not all(
            isinstance(state["streams"].get(part), dict) for part in parts
        ):
            raise StateMismatch("The streams of the state are incomplete.", path="streams")
        for name, live in self._setting().items():
            if state["streams"].get(name) != live:
                raise StateMismatch(
                    f'With randomness="torch" a loader resumes only with the same {name}.',
                    path=f"streams.{name}",
                    expected=state["streams"].get(name),
                    found=live,
                    hint=f'Set {name} as in the run that saved the state, or use randomness="sample".',
                )

    def load(self, state: dict[str, Any], *, inside: bool) -> None:
        """Take the streams of a state; new workers start with the next epoch.

        Between two epochs, generators are set now, before the user prepares them for the next epoch.

        Args:
            state: The loader's state.
            inside: Whether it was taken in an open epoch, which `open` will open again.
        """
        streams = state["streams"]
        if not inside:
            self._order.set_state(state["sampler"]["start"])
            self._set_objects(streams)
        self._loaded = streams if inside else None
        self._kept = self._batches = None
        self._streams = dict(streams.get("workers", {}))
        self._origin = streams.get("origin")

    def _set_objects(self, streams: dict[str, Any]) -> None:
        if "objects" in streams:
            self._samples.owned.look()
            self._samples.owned.set_states(streams["objects"])

    def handed(self, batch: list[Any]) -> None:
        """Keep where the worker's streams stood behind this batch."""
        if self._workers:
            self._streams[batch[0] % self._workers] = batch[2]

    def _setting(self) -> dict[str, Any]:
        return {"num_workers": self._workers, "persistent_workers": self._persistent}

    def _open(
        self, loader: Loader, start: int, saved: dict[str, Any] | None
    ) -> tuple[SamplerCourse, Iterator[list[Any]]]:
        if saved is not None and self._loaded is not None:
            self._order.set_state(saved["start"])
            set_global_state(self._loaded["process"])
        elif not self._persistent:
            self._streams = {}
        course = SamplerCourse(self._order, OpenStream(), start, saved)
        self._process = global_state(devices=False)
        return course, self._fetch(loader, course, start)

    def _fetch(self, loader: Loader, course: SamplerCourse, start: int) -> Iterator[list[Any]]:
        turns = start % self._workers if self._workers else 0
        between = None
        if self._kept is None:
            inner, feed = self._build(loader)
            between = self._start_like_origin(course)
            feed.streams = dict(self._streams)
        else:
            inner, feed = self._kept
        feed.follow(course, turns, between)
        batches: Iterator[list[Any]] = iter(inner)
        if self._workers == 0:
            course.skip()
        for _ in range(turns):
            next(batches)
        if self._persistent:
            self._kept, self._batches = (inner, feed), batches
        return batches

    def _build(self, loader: Loader) -> tuple[InnerLoader, StockFeed]:
        feed = StockFeed(self._workers)
        return InnerLoader(loader, self._samples, feed, loader.generator), feed

    def _start_like_origin(self, course: SamplerCourse) -> Callable[[], None] | None:
        """Start persistent workers from the seed that PyTorch drew for them, once, in an earlier epoch.

        PyTorch opens the sampler, draws the seed, and opens the sampler again: the epoch's start is there.
        """
        if not self._persistent:
            return None
        here = {"process": global_state(devices=False), "generators": course.generator_states()}
        if self._origin is not None:
            self._set(self._origin)
            return lambda: self._set(here)
        self._origin = here
        return lambda: self._start_here(course)

    def _start_here(self, course: SamplerCourse) -> None:
        self._process = global_state(devices=False)
        course.start_here()

    def _set(self, states: dict[str, Any]) -> None:
        set_global_state(states["process"])
        self._order.set_generators(states["generators"])

    def _end_fetching(self) -> None:
        """Let persistent workers finish what was fetched ahead in an epoch that was left, as PyTorch does.

        Their streams go on from there in the next epoch.
        """
        if self._kept is None or self._batches is None:
            return
        inner, feed = self._kept
        feed.stopped = True
        for _ in range(self._workers * (inner.prefetch_factor or 0) + 1):
            with suppress(Exception):  # an error of a batch that nobody asked for; StopIteration at the end
                self.handed(next(self._batches))


@contextmanager
def _generators_put_back() -> Iterator[None]:
    before = global_state(devices=False)
    try:
        yield
    finally:
        set_global_state(before)
