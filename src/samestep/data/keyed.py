"""Owns how an epoch is opened when random numbers are keyed: nothing is drawn from the process's generators."""

from collections.abc import Iterator, Sized
from typing import Any, cast

import torch

from samestep.data.fetch import KeyedSamples, Task
from samestep.data.identity import batching, check_course, check_position
from samestep.data.inner import InnerLoader
from samestep.data.order import ComputedCourse, Course, order_seed
from samestep.data.sampler import PrivateStream, SamplerCourse, SamplerOrder
from samestep.generators import derive_seed

Loader = torch.utils.data.DataLoader[Any]


class KeyedFeed:
    """Turns the draws of a course into tasks."""

    def __init__(self) -> None:
        self._course: Course | None = None
        self._seed = self._epoch = 0

    def follow(self, course: Course, seed: int, epoch: int) -> None:
        """Go on with the draws of this course."""
        self._course, self._seed, self._epoch = course, seed, epoch

    def __iter__(self) -> "KeyedFeed":
        return self

    def __next__(self) -> Task:
        if self._course is None:
            raise StopIteration
        return Task(self._seed, self._epoch, *next(self._course))


class KeyedMode:
    """Orders and fetches with random numbers that depend on (seed, epoch, sample or batch) alone.

    Args:
        loader: The loader as its user built it.
        randomness: "sample" or "batch".
        kind: "sequential", "shuffled", "sampler" or "batch_sampler".
    """

    def __init__(self, loader: Loader, randomness: str, kind: str) -> None:
        self._shuffled = kind == "shuffled"
        batched = loader.batch_sampler is not None
        source = loader.batch_sampler if loader.batch_sampler is not None else loader.sampler
        self._order = (
            SamplerOrder(source, batched=batched, dataset=loader.dataset) if kind.endswith("sampler") else None
        )
        self._samples = KeyedSamples(loader.dataset, loader.collate_fn, batched=batched, randomness=randomness)
        self._kept: tuple[InnerLoader, KeyedFeed] | None = None

    def open(
        self, loader: Loader, seed: int, epoch: int, start: int, saved: dict[str, Any] | None
    ) -> tuple[Course, Iterator[list[Any]]]:
        """Open an epoch.

        Args:
            loader: The loader; a mode keeps no reference to it.
            seed: The loader's seed.
            epoch: The epoch.
            start: Batches of it that the loop has had.
            saved: What the course's state was when the loop had had them; None for a new epoch.

        Returns:
            The course of the epoch and its batches as `[number, batch]`.
        """
        course = self._course(loader, seed, epoch, start, saved)
        inner, feed = self._kept or self._build(loader)
        feed.follow(course, seed, epoch)
        inner.generator.manual_seed(derive_seed(seed, "worker") & 0xFFFFFFFF)
        batches = iter(inner)
        course.settle(saved)
        return course, batches

    def rest_state(self) -> dict[str, Any] | None:
        """Give what must be known between two epochs to start the next one."""
        return None if self._order is None else {"start": self._order.state()}

    def state(self, *, inside: bool) -> dict[str, Any]:  # noqa: ARG002 - the other mode needs to know
        """Give nothing more: random numbers follow from the seed and the position."""
        return {}

    def check(self, state: dict[str, Any]) -> None:
        """Accept any number of workers, and any place that lies in the epoch."""
        if self._order is None:
            check_position(state)
        else:
            check_course(state)

    def load(self, state: dict[str, Any], *, inside: bool) -> None:
        """Set the sampler to where it stood between two epochs, before the user prepares it for the next one.

        Args:
            state: The loader's state.
            inside: Whether it was taken in an open epoch, which `open` will open again.
        """
        if self._order is not None and not inside:
            self._order.set_state(state["sampler"]["start"])

    def handed(self, batch: list[Any]) -> None:
        """Learn nothing from a batch."""

    def _course(self, loader: Loader, seed: int, epoch: int, start: int, saved: dict[str, Any] | None) -> Course:
        if self._order is not None:
            return self._sampler_course(self._order, seed, epoch, start, saved)
        shuffle_seed = order_seed(seed, epoch) if self._shuffled else None
        return ComputedCourse(
            len(cast("Sized", loader.dataset)),
            **(saved or batching(loader)),
            shuffle_seed=shuffle_seed,
            start=start,
        )

    @staticmethod
    def _sampler_course(
        order: SamplerOrder, seed: int, epoch: int, start: int, saved: dict[str, Any] | None
    ) -> SamplerCourse:
        stream = PrivateStream(derive_seed(seed, "sampler", epoch))
        if saved is None:
            order.tell_epoch(epoch)
        else:
            order.set_state(saved["start"])
        course = SamplerCourse(order, stream, start, saved)
        course.skip()
        return course

    def _build(self, loader: Loader) -> tuple[InnerLoader, KeyedFeed]:
        feed = KeyedFeed()
        # PyTorch draws the workers' seed from a generator of ours, set anew before each epoch, so that a
        # worker_init_fn sees the same numbers whenever its worker starts.
        inner = InnerLoader(loader, self._samples, feed, torch.Generator())
        if inner.persistent_workers:
            self._kept = inner, feed
        return inner, feed
