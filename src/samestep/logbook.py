"""Owns what a process notes about its work: metrics.jsonl and its line of attempts.jsonl. Never touches a checkpoint.

No record is worth a training: what cannot be written waits in memory, and that is said.
"""

import logging
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from samestep.errors import SamestepError, SaveFailed, UnsupportedValue
from samestep.messages import warn_user
from samestep.store.attempts import Attempt as Line
from samestep.store.metrics import METRICS_FILE, Metrics, is_at_hand

_log = logging.getLogger("samestep")

T = TypeVar("T")

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
        self._refusal: str | None = None
        self._refused_since = 0.0
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
        missing = self._write(lambda: self._metrics.cut(position, step))
        found = self._write(lambda: self._metrics.digest() if self._metrics.path.exists() else digest)
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
        self._begin_line()

    def _begin_line(self) -> None:
        details = self._details
        if details is not None:  # else the run was refused before it began: that is no attempt
            self._line = self._write(lambda: Line.begin(self._directory, details, resumed_from=self._resumed_from))

    def add(self, line: Mapping[str, Any]) -> None:
        """Add a line to metrics.jsonl. Values of a device are not waited for before the next checkpoint."""
        self._metrics.append(line)
        now = time.monotonic()
        if now - self._flushed > _FLUSH_EVERY and all(map(is_at_hand, line.values())):
            self._write(self._metrics.flush)
            self._flushed = now

    def position(self) -> tuple[int | None, str | None]:
        """Tell how much of metrics.jsonl belongs to what has happened: bytes, digest; None if it cannot be written."""
        return self._write(lambda: (self._metrics.position(), self._metrics.digest())) or (None, None)

    def flush(self) -> None:
        """Hand what waits for metrics.jsonl to the operating system."""
        if self._metrics.is_waiting:
            self._write(self._metrics.flush)

    def sync(self) -> None:
        """Make what was noted durable."""
        self._write(self._metrics.sync)

    def saved(self, name: str) -> None:
        """Note the first checkpoint of this process: that there was one is known even if all vanish."""
        if self._line is not None and not self._has_saved:
            line = self._line
            self._write(lambda: line.update(saved=name))
            self._has_saved = self._refusal is None

    def end(self, how: str, completed_steps: int) -> None:
        """Note how the work of this process ended, so far."""
        self.sync()
        if self._line is None:
            self._begin_line()
        if self._line is not None:
            line = self._line
            self._write(lambda: line.end(how, steps=completed_steps))

    def warn_of_refusal(self) -> None:
        """Say once that records wait."""
        if self._refusal is not None and not self._has_warned:
            self._has_warned = True
            warn_user(
                f"The records of the run could not be written; the training goes on. {self._refusal}"
                f"\n  where:    {self._directory}"
                "\n  to do:    Make room: what the loop reports waits in memory until it can be written."
            )

    def _write(self, write: Callable[[], T]) -> T | None:
        try:
            self._require_place()
            written = write()
        except UnsupportedValue:
            raise  # what the loop reports cannot be written: that is the loop's mistake
        except (OSError, SamestepError) as error:
            self._refuse(error)
            return None
        self._refusal = None
        return written

    def _refuse(self, error: OSError | SamestepError) -> None:
        reason = str(error)  # a log that keeps records must not keep the frames of the loop with them
        _log.error("the records of %s could not be written: %s", self._directory, reason)
        now = time.monotonic()
        self._refused_since = now if self._refusal is None else self._refused_since
        self._refusal = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
        if now - self._refused_since >= _PATIENCE:
            self.warn_of_refusal()

    def _require_place(self) -> None:
        if not self._is_in_place():
            raise SaveFailed("The directory is not the one that this process has locked.", path=self._directory)
