"""Owns one process's work on a run directory: lock, records, checkpoints in and out. Knows no loop and no tensor."""

import logging
import os
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import samestep
from samestep.errors import NoCheckpoint, RunLocked, SamestepError, SaveFailed
from samestep.state.environment import Drift, drift, environment
from samestep.state.snapshot import Snapshot
from samestep.store.files import make_folder
from samestep.store.lock import RunLock
from samestep.store.metrics import Metrics
from samestep.store.reading import Checkpoint
from samestep.store.records import Attempt as AttemptRecord
from samestep.store.records import open_run
from samestep.store.retention import Keep
from samestep.store.store import Store

_log = logging.getLogger("samestep")

_open: WeakValueDictionary[Path, "Attempt"] = WeakValueDictionary()
"""The attempts of this process by directory: a notebook cell that is run again takes its run over."""

T = TypeVar("T")

_FLUSH_EVERY = 1.0
"""Seconds between two writes of metrics.jsonl, where its values lie on the CPU."""

_LOCK_PATIENCE = 10.0
"""Seconds to wait for the lock: a process that was just killed gives it back when its memory has been freed."""


class Attempt:
    """One process at work on one run.

    Args:
        directory: The run's directory; made if it is not there.
        keep: Which checkpoints stay.
        config: The user's configuration as plain JSON; recorded, and compared on a resume.

    Raises:
        RunLocked: Another process works on this run, or a loop of this process does.
    """

    def __init__(self, directory: str | os.PathLike[str], keep: Keep, config: Mapping[str, Any] | None) -> None:
        self.directory = Path(directory).absolute()
        _make(self.directory)
        self.in_loop = False
        self._take_over()
        self._lock = RunLock(self.directory)
        self._lock.acquire(wait=_LOCK_PATIENCE)
        _open[self.directory] = self
        self._record = open_run(self.directory, config, version=samestep.__version__)
        self._store = Store(self.directory / "checkpoints", keep=keep)
        self._store.tidy()
        self._metrics = Metrics(self.directory)
        self._flushed = time.monotonic()
        self._line: AttemptRecord | None = None
        self._environment = environment()

    def find(self, resume: str) -> tuple[Checkpoint, Snapshot] | None:
        """Find the checkpoint to go on from, as the user's `resume` says; what lies behind it is set aside."""
        if resume == "never":
            self._store.set_aside_after(-1)
            return None
        if resume in {"auto", "must"}:
            found = self._store.latest_good()
            if found is None and resume == "must":
                raise NoCheckpoint(
                    "There is no checkpoint to resume from.",
                    path=self.directory,
                    hint='Give the right directory, or resume="auto" to start anew.',
                )
            return found
        checkpoint = self._store.find(resume)
        snapshot = checkpoint.read()
        self._store.set_aside_after(checkpoint.step)
        return checkpoint, snapshot

    def begin(self, resumed: Checkpoint | None, metrics_bytes: int) -> None:
        """Record that this process begins to work, and cut the metrics back to where it begins."""
        self._metrics.cut(metrics_bytes, 0 if resumed is None else resumed.step)
        name = None if resumed is None else resumed.name
        self._line = AttemptRecord.begin(self.directory, self._environment, resumed_from=name)
        if resumed is not None:
            self._warn_of_drift(resumed)

    def log(self, **line: Any) -> None:
        """Add a line to metrics.jsonl. Values of a device are not waited for before the next checkpoint."""
        self._metrics.append(line)
        now = time.monotonic()
        if now - self._flushed > _FLUSH_EVERY and not any(_is_on_device(value) for value in line.values()):
            self._flush(self._metrics.flush)
            self._flushed = now

    def log_position(self) -> int:
        """Tell how many bytes of metrics.jsonl belong to what has happened so far."""
        return self._flush(self._metrics.position) or 0

    def write(self, snapshot: Snapshot) -> bool:
        """Write a checkpoint; a failure is loud, but the training goes on and the earlier checkpoints stay."""
        self._flush(self._metrics.sync)
        environment = self._environment | {"config": self._record.config, "run": self._record.id}
        try:
            self._store.write(snapshot, environment=environment)
        except SaveFailed as error:
            _log.error("no checkpoint at step %d: %s", snapshot.step, error)
            warnings.warn(f"No checkpoint at step {snapshot.step}; the training goes on. {error}", stacklevel=2)
            return False
        _log.info("saved step %d", snapshot.step)
        return True

    def end(self, how: str, completed_steps: int) -> None:
        """Record how the work of this process ended, so far."""
        self._flush(self._metrics.sync)
        if self._line is not None:
            line = self._line
            self._flush(lambda: line.end(how, steps=completed_steps))

    def close(self) -> None:
        """Give the lock back."""
        self._lock.release()
        if _open.get(self.directory) is self:
            del _open[self.directory]

    def _flush(self, write: Callable[[], T]) -> T | None:
        """Write records; where that fails, say so: no record is worth a training."""
        try:
            return write()
        except OSError as error:
            _log.error("the records of %s could not be written: %s", self.directory, error)
            return None

    def _take_over(self) -> None:
        earlier = _open.get(self.directory)
        if earlier is None:
            return
        if earlier.in_loop:
            raise RunLocked("A loop of this process is working on this run.", path=self.directory)
        earlier.close()

    def _warn_of_drift(self, resumed: Checkpoint) -> None:
        found = drift(resumed.environment, self._environment)
        found += [Drift(each.path, each.before, each.now, "may change bits") for each in self._record.differences]
        doubtful = [each for each in found if each.grade != "harmless"]
        if doubtful:
            lines = "".join(f"\n  {each.name}: {each.saved} -> {each.now} ({each.grade})" for each in doubtful)
            warnings.warn(f"{resumed.name} was written under other conditions:{lines}", stacklevel=2)


def _make(directory: Path) -> None:
    try:
        make_folder(directory)
    except OSError as error:
        raise SamestepError(
            "The run's directory cannot be made.",
            path=directory,
            found=error.strerror,
            hint="Choose another place.",
        ) from error


def _is_on_device(value: Any) -> bool:
    return getattr(getattr(value, "device", None), "type", "cpu") != "cpu"
