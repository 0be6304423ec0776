"""Owns the loader: the epoch and position it stands at, and its state. Never orders or fetches itself."""

import operator
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, Literal, TypeVar

import torch
import torch.utils.data
from torch.utils.data import Dataset, IterableDataset, Sampler

from samestep.data.identity import check_identity, check_place, identity
from samestep.data.iterator import EpochIterator
from samestep.data.keyed import KeyedMode
from samestep.data.listing import listings
from samestep.data.order import Course
from samestep.data.stock import StockMode
from samestep.errors import SamestepError, WrongPlace
from samestep.wording import shown

Item_co = TypeVar("Item_co", covariant=True)

Randomness = Literal["sample", "batch", "torch"]


class DataLoader(torch.utils.data.DataLoader[Item_co]):
    """A `torch.utils.data.DataLoader` that resumes at any batch with the same bits, at any number of workers.

    Each `iter(loader)` is the next epoch. Its order is a function of (seed, epoch); each sample is fetched under
    random numbers that depend on (seed, epoch, its place in the order, its index), so neither depends on workers.

    Args:
        dataset: A map-style data set. A method `fingerprint()` of its own, if it has one, is saved and compared;
            else the order of the file names that it lists is.
        batch_size: Samples a batch; None hands out single samples.
        shuffle: Whether each epoch has an order of its own.
        sampler: Yields indices. One with `state_dict` and `load_state_dict` resumes through them, any other is
            replayed by index, without reading samples.
        batch_sampler: Yields lists of indices; resumes like `sampler`.
        num_workers: Worker processes.
        arguments: What PyTorch's loader takes by position behind these.
        seed: Where all of the loader's random numbers come from. None: the initial seed of `generator`, else the
            seed of the run that tracks the loader, else `torch.initial_seed()` when the first epoch starts.
        randomness: "sample" keys the random numbers of each sample, "batch" those of each batch. "torch" draws
            order and random numbers just as PyTorch does, and resumes only with the same number of workers.
        options: What PyTorch's loader takes by keyword: `drop_last`, `collate_fn`, `persistent_workers`, …

    Raises:
        SamestepError: For an iterable data set, `in_order=False`, or a seed with `randomness="torch"`.

    Example:
        >>> loader = DataLoader(range(6), batch_size=2, shuffle=True, seed=0)
        >>> batches = iter(loader)
        >>> first = next(batches)
        >>> state = loader.state_dict()
        >>> rest = [batch.tolist() for batch in batches]
        >>> resumed = DataLoader(range(6), batch_size=2, shuffle=True, seed=0, num_workers=0)
        >>> resumed.load_state_dict(state)
        >>> [batch.tolist() for batch in resumed] == rest
        True
    """

    is_samestep_loader: ClassVar[bool] = True

    has_been_read: bool = False
    """Whether an iterator of it has been made in this process."""

    before_next: Callable[[], None] | None = None
    """Called at the start of every `next` of the newest iterator, before a batch is taken, also of the one that
    ends the epoch. What it raises goes through to the loop and leaves the loader as it is."""

    def __init__(
        self,
        dataset: Dataset[Item_co],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: Sampler[list[Any]] | Iterable[list[Any]] | None = None,
        num_workers: int = 0,
        *arguments: Any,
        seed: int | None = None,
        randomness: Randomness = "sample",
        **options: Any,
    ) -> None:
        super().__init__(dataset, batch_size, shuffle, sampler, batch_sampler, num_workers, *arguments, **options)
        _refuse(dataset, self.in_order, seed, randomness)
        self.randomness = randomness
        self._given_seed = self._seed = None if seed is None else operator.index(seed)
        if seed is None and self.generator is not None and randomness != "torch":
            self._seed = self.generator.initial_seed()
        self._kind = _kind(shuffle, sampler, batch_sampler)
        # As the data set was built: an order that the loop gives it at the top of each epoch is given again.
        self._lists = listings(dataset)
        self._mode = self._new_mode()
        self._epoch = self._position = 0
        self._newest: weakref.ref[EpochIterator] | None = None
        self._course: Course | None = None
        self._opened: Iterator[list[Any]] | None = None  # batches of an epoch that has no iterator yet
        self._saved: dict[str, Any] | None = None
        self._loaded_open = False

    def _new_mode(self) -> StockMode | KeyedMode:
        return StockMode(self) if self.randomness == "torch" else KeyedMode(self, self.randomness, self._kind)

    # --- where it stands ---------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """The epoch that is open, or else the next one."""
        return self._epoch

    @property
    def position(self) -> int:
        """Batches of this epoch that the loop has been handed."""
        return self._position

    @property
    def is_open(self) -> bool:
        """Whether the loop is in this epoch: an iterator of it has been asked for a batch, and has not ended."""
        asked = self.iterator is not None and self.iterator.asked
        return self._course is not None and (self._position > 0 or asked)

    @property
    def seed(self) -> int | None:
        """The seed, once it is known."""
        return self._seed

    @property
    def iterator(self) -> EpochIterator | None:
        """The newest iterator while its epoch is open."""
        return None if self._newest is None else self._newest()

    def adopt_seed(self, seed: int) -> None:
        """Take a run's seed, unless the user gave a seed or generator, or an epoch has begun.

        Args:
            seed: Any integer; loaders of one run should get different ones.
        """
        if self._seed is None and self.randomness != "torch":
            self._seed = seed

    # --- epochs ------------------------------------------------------------------------------------------

    def __iter__(self) -> Any:
        if self._course is not None:
            self._supersede()
        if self._seed is None and self.randomness != "torch":
            self._seed = torch.initial_seed()
        self.has_been_read = True
        iterator = EpochIterator(self, self._open())
        self._newest = weakref.ref(iterator)
        return iterator

    def _open(self) -> Iterator[list[Any]]:
        opened = self._mode.open(self, self._seed or 0, self._epoch, self._position, self._saved)
        self._course, self._saved, self._loaded_open = opened[0], None, False
        return opened[1]

    def reopen(self, iterator: EpochIterator) -> Iterator[list[Any]]:
        """Let an iterator that was open when a state was loaded go on from there; called by the iterator."""
        if self._course is not None and self._opened is None:
            raise WrongPlace(
                "A state was loaded while this iterator was open, and a newer iterator goes on from there.",
                path="iter(DataLoader)",
                hint="Use the newer iterator.",
            )
        batches = self._open() if self._opened is None else self._opened
        self._opened, self._newest = None, weakref.ref(iterator)
        return batches

    def take_up(self, iterator: EpochIterator) -> None:
        """Let an iterator go on from the state just loaded without waiting until it is asked.

        A `zip` whose first loader has ended asks the second one no more, and drops it: that has to end its epoch.
        """
        if self._loaded_open:
            iterator.take_up()

    def handed(self, batch: list[Any]) -> None:
        """Note that the loop is handed a batch of the newest iterator; called by the iterator."""
        number: int = batch[0]
        self._position = number + 1
        if self._course is not None:
            self._course.handed(number)
        self._mode.handed(batch)

    def close(self, iterator: EpochIterator) -> None:
        """Note that an iterator has ended or was dropped; called by the iterator."""
        if self._newest is not None and self._newest() in {iterator, None}:
            self._end_epoch()

    def _supersede(self) -> None:
        if self.persistent_workers and (older := self.iterator) is not None:
            older.refuse(
                "A newer iterator has taken the persistent workers of this one.",
                "Finish one loop over the loader before the next, or set persistent_workers=False.",
            )
        self._end_epoch()

    def _end_epoch(self) -> None:
        self._epoch, self._position = self._epoch + 1, 0
        self._newest = self._course = self._opened = None

    def expect_new_epoch(self) -> None:
        """Take the next `iter(loader)` for a new epoch, though the state just loaded is inside one.

        So it was for the loop that saved the state, if it kept its iterator in a name: the epoch was open until a
        new iterator took its place. An iterator that is open already goes on inside the epoch, as it did there.
        The epoch is opened now, so that the sampler stands where it stood before the loop prepares it for the next.
        """
        if self._loaded_open and self._course is None:
            self._opened = self._open()

    # --- state -------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Read where the loader stands: the epoch, and the batches of it that the loop has been handed.

        Returns:
            Plain values, tensors and arrays; less than 1 kB unless a sampler or worker streams need more.
        """
        return {
            "version": 1,
            "seed": self._seed,
            "epoch": self._epoch,
            "position": self._position,
            "open": self._course is not None or self._loaded_open,
            **self._identity(),
            "sampler": self._sampler_state(),
            **self._mode.state(inside=self._course is not None),
        }

    def _identity(self) -> dict[str, Any]:
        return identity(self, self.randomness, self._kind) | {"lists": self._lists}

    def _sampler_state(self) -> dict[str, Any] | None:
        if self._saved is not None:
            return self._saved
        return self._mode.rest_state() if self._course is None else self._course.state()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to where a state was taken; the next batch is the one behind the last that was handed out there.

        It is given by the next `iter(loader)`, or by an iterator that is open already.

        Args:
            state: What `state_dict` gave, here or in another process.

        Raises:
            StateMismatch: If the state is of another data set, order, batch size or randomness, or of another
                seed than the one given to this loader. The loader is then as it was.
        """
        check_place(state)
        check_identity(state, self._identity(), self._given_seed)
        self._mode.check(state)
        inside = _was_open(state)
        self._mode.load(state, inside=inside)
        if (open_iterator := self.iterator) is not None:
            open_iterator.leave_behind()
        self._newest = self._course = self._opened = None
        self._seed, self._epoch, self._position = state["seed"], state["epoch"], state["position"]
        self._saved, self._loaded_open = state["sampler"] if inside else None, inside

    def __getstate__(self) -> dict[str, Any]:
        """Give what a copy needs: it goes on where this loader stands, with workers and iterators of its own."""
        running = {"_mode", "_newest", "_course", "_opened", "_saved", "before_next"}
        return {
            "arguments": {name: value for name, value in vars(self).items() if name not in running},
            "state": self.state_dict(),
        }

    def __setstate__(self, copied: dict[str, Any]) -> None:
        vars(self).update(copied["arguments"])
        self._mode = self._new_mode()
        self._newest = self._course = self._opened = self._saved = None
        self.load_state_dict(copied["state"])


def _was_open(state: dict[str, Any]) -> bool:
    # States of the first versions do not say it; there, an epoch of computed order that had just begun was closed.
    return bool(state.get("open", state["position"] > 0 or "digest" in (state["sampler"] or {})))


def _kind(shuffle: bool | None, sampler: object, batch_sampler: object) -> str:
    if batch_sampler is not None:
        return "batch_sampler"
    if sampler is not None:
        return "sampler"
    return "shuffled" if shuffle else "sequential"


def _is_seed(seed: object) -> bool:
    try:
        return not isinstance(seed, bool) and bool(str(operator.index(seed)))  # type: ignore[arg-type]
    except (TypeError, ValueError):  # Python writes no integer of more than 4,300 digits
        return False


def _refuse(dataset: object, in_order: bool, seed: int | None, randomness: str) -> None:
    if isinstance(dataset, IterableDataset):
        raise SamestepError(
            "Iterable data sets are not supported yet.",
            path="DataLoader.dataset",
            expected="a map-style data set, with __getitem__ and __len__",
            found=type(dataset).__name__,
            hint="Until they are, read it with PyTorch's loader and save at the ends of epochs only, as in"
            ' Run(save_every="1 epoch"): inside an epoch its position is not saved, so no resume there is exact,'
            " run.boundary or not.",
        )
    if not in_order:
        raise SamestepError(
            "Batches that arrive in any order have no position to resume from.",
            path="DataLoader.in_order",
            expected=True,
            found=False,
        )
    if not isinstance(randomness, str) or randomness not in {"sample", "batch", "torch"}:
        raise SamestepError(
            "There is no such randomness.",
            path="DataLoader.randomness",
            expected='"sample", "batch" or "torch"',
            found=shown(randomness),
        )
    if seed is not None and not _is_seed(seed):
        raise SamestepError(
            "The seed cannot be used.", path="DataLoader.seed", expected="an integer, or None", found=shown(seed)
        )
    if seed is not None and randomness == "torch":
        raise SamestepError(
            'A seed says nothing with randomness="torch".',
            path="DataLoader.seed",
            hint="Call torch.manual_seed, or give the loader a generator, as with PyTorch's loader.",
        )
