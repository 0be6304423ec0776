"""Owns what a process notes about its work: metrics.jsonl and its line of attempts.jsonl. Never touches a checkpoint.

No record is worth a training: what cannot be written waits in memory, and that is said.
"""

import errno
import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from samestep.errors import SamestepError, SaveFailed, UnsupportedValue
from samestep.messages import warn_user
from samestep.store.attempts import ATTEMPTS_FILE
from samestep.store.attempts import Attempt as Line
from samestep.store.metrics import METRICS_FILE, Metrics, is_at_hand

_log = logging.getLogger("samestep")

T = TypeVar("T")

_MAKE_ROOM = "Make room: what the loop reports waits in memory until it can be written."


@dataclass(frozen=True, slots=True)
class _Refusal:
    """Why a record could not be written, and since when."""

    reason: str
    where: str
    hint: str
    since: float


_FLUSH_EVERY = 1.0
"""Seconds between two writes of metrics.jsonl, where its values lie on the CPU."""


_PATIENCE = 30.0
"""Seconds for which records may fail to be written before that is said in the middle of a loop."""


class Logbook:
    """The records of one process's work on a run.

    Args:
        directory: The run's directory.
        is_in_place: Tells whether that is still the directory which this process has locked; in another run's nothing
            is written.
    """

    def __init__(self, directory: Path, is_in_place: Callable[[], bool]) -> None:
        self._directory, self._is_in_place = directory, is_in_place
        self._metrics = Metrics(directory)
        self._flushed = time.monotonic()
        self._line: Line | None = None
        self._details: Mapping[str, Any] | None = None
        self._resumed_from: str | None = None
        self._refusals: dict[str, _Refusal] = {}
        self._has_saved = False
        self._has_warned = False

    def begin(
        self, details: Mapping[str, Any], resumed_from: str | None, step: int, metrics: tuple[int | None, str | None]
    ) -> None:
        """Note that the process begins to work, and cut the metrics back to where it begins.

        Args:
            details: The environment.
            resumed_from: The checkpoint that it goes on from.
            step: That checkpoint's step.
            metrics: What `position` said when it was saved.
        """
        self._details, self._resumed_from = details, resumed_from
        position, digest = metrics
        missing = self._write(METRICS_FILE, lambda: self._metrics.cut(position, step))
        found = self._write(METRICS_FILE, lambda: self._metrics.digest() if self._metrics.path.exists() else digest)
        self._begin_line()
        if missing:
            warn_user(
                f"{METRICS_FILE} is {missing} bytes shorter than when {resumed_from} was saved, so lines of earlier"
                " steps are missing there: it was edited, or copied while the training ran."
            )
        elif missing == 0 and found is not None and digest not in {None, found}:
            warn_user(f"{self._metrics.path} is not what was written there: it was damaged or edited. It stays so.")

    def begin_anew(self) -> None:
        """Go on in a directory that was made anew."""
        self._metrics.look_again()
        if self._line is None or not self._line.is_recorded():
            self._begin_line()

    def _begin_line(self) -> None:
        details = self._details
        if details is not None:  # else the run was refused before it began: that is no attempt
            begin = partial(Line.begin, self._directory, details, resumed_from=self._resumed_from)
            self._line = self._write(ATTEMPTS_FILE, begin)

    def add(self, line: Mapping[str, Any]) -> None:
        """Add a line to metrics.jsonl. Values of a device are not waited for before the next checkpoint."""
        self._metrics.append(line)
        now = time.monotonic()
        if now - self._flushed > _FLUSH_EVERY and all(map(is_at_hand, line.values())):
            self._write(METRICS_FILE, self._metrics.flush)
            self._flushed = now

    def position(self) -> tuple[int | None, str | None]:
        """Tell how much of metrics.jsonl belongs to what has happened: bytes, digest; None if it cannot be written."""
        written = self._write(METRICS_FILE, lambda: (self._metrics.position(), self._metrics.digest()))
        return written or (None, None)

    def flush(self) -> None:
        """Hand what waits for metrics.jsonl to the operating system."""
        if self._metrics.is_waiting:
            self._write(METRICS_FILE, self._metrics.flush)

    def sync(self) -> None:
        """Make what was noted durable."""
        self._write(METRICS_FILE, self._metrics.sync)

    @property
    def is_first(self) -> bool:
        """Whether the run's records know of no attempt before this one."""
        return self._line is not None and self._line.number == 1

    def saved(self, name: str) -> None:
        """Note the first checkpoint of this process: that there was one is known even if all vanish."""
        if self._line is None:
            self._begin_line()
        if self._line is None:
            return
        if not self._has_saved:
            self._has_saved = self._change(self._line, partial(self._line.update, saved=name))
        elif not self._line.is_recorded():
            self._change(self._line, self._line.update)

    def end(self, how: str, completed_steps: int) -> None:
        """Note how the work of this process ended, so far."""
        self.sync()
        if self._line is None:
            self._begin_line()
        if self._line is not None:
            self._change(self._line, partial(self._line.end, how, steps=completed_steps))

    def _change(self, line: Line, write: Callable[[], None]) -> bool:
        """Change this process's line, which is written anew if it is gone; tell whether it is written."""
        was_there = line.is_recorded()
        self._write(ATTEMPTS_FILE, write)
        is_written = ATTEMPTS_FILE not in self._refusals
        if is_written and not was_there:
            warn_user(
                f"{ATTEMPTS_FILE} was removed or changed while the training ran; what it said of earlier attempts may"
                f" be lost, and this one is written down again.\n  where:    {self._directory / ATTEMPTS_FILE}"
            )
        return is_written

    def warn_of_refusal(self) -> None:
        """Say once that records wait."""
        if self._refusals and not self._has_warned:
            self._has_warned = True
            refusal = next(iter(self._refusals.values()))
            warn_user(
                f"The records of the run could not be written; the training goes on. {refusal.reason}"
                f"\n  where:    {refusal.where}"
                f"\n  to do:    {refusal.hint}"
            )

    def _write(self, file: str, write: Callable[[], T]) -> T | None:
        try:
            self._require_place()
            written = write()
        except UnsupportedValue:
            raise  # what the loop reports cannot be written: that is the loop's mistake
        except (OSError, SamestepError) as error:
            self._refuse(file, error)
            return None
        self._refusals.pop(file, None)
        self._warn_of_loss()
        return written

    def _warn_of_loss(self) -> None:
        lost, self._metrics.lost = self._metrics.lost, 0
        if lost:
            warn_user(
                f"{METRICS_FILE} was removed or cut while the training ran: {lost} bytes of what the loop has reported"
                f" are gone. What it reports now is written as before.\n  where:    {self._metrics.path}"
            )

    def _refuse(self, file: str, error: OSError | SamestepError) -> None:
        text = str(error)  # a log that keeps records must not keep the frames of the loop with them
        _log.error("the records of %s could not be written: %s", self._directory, text)
        now = time.monotonic()
        since = self._refusals[file].since if file in self._refusals else now
        if isinstance(error, SamestepError):
            refusal = _Refusal(error.message, error.path or str(self._directory), error.hint or _MAKE_ROOM, since)
        else:
            reason = os.strerror(error.errno) if error.errno else str(error)
            is_in_the_way = error.errno in {errno.EISDIR, errno.ENOTDIR, errno.ELOOP}
            where, hint = (self._directory / file, "Move it away.") if is_in_the_way else (self._directory, _MAKE_ROOM)
            refusal = _Refusal(reason, str(where), hint, since)
        self._refusals[file] = refusal
        if now - since >= _PATIENCE:
            self.warn_of_refusal()

    def _require_place(self) -> None:
        if not self._is_in_place():
            raise SaveFailed("The directory is not the one that this process has locked.", path=self._directory)
