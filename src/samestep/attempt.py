"""Owns one process's work on a run directory: lock, records, checkpoints in and out. Knows no loop and no tensor."""

import logging
import os
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import samestep
from samestep.errors import CorruptCheckpoint, NoCheckpoint, RunLocked, SamestepError, SaveFailed
from samestep.messages import warn_user
from samestep.state.environment import drift, environment
from samestep.state.snapshot import Snapshot
from samestep.store.files import make_folder, remove_draft
from samestep.store.folder import CHECKPOINTS, RUN_FILE
from samestep.store.lock import RunLock
from samestep.store.metrics import METRICS_FILE, Metrics
from samestep.store.reading import Checkpoint
from samestep.store.records import ATTEMPTS_FILE, open_run, plain
from samestep.store.records import Attempt as AttemptRecord
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
        self.in_loop = self.is_closed = False
        self.failure: SaveFailed | None = None
        _make(self.directory)
        self._take_over()
        self._lock = RunLock(self.directory)
        self._lock.acquire(wait=_LOCK_PATIENCE)
        try:
            for name in (RUN_FILE, ATTEMPTS_FILE, METRICS_FILE):
                remove_draft(self.directory / name)
            self._config = plain(dict(config or {}), "config")
            self._record = open_run(self.directory, config, version=samestep.__version__)
            self._store = Store(self.directory / CHECKPOINTS, keep=keep)
            self._store.tidy()
        except BaseException as error:
            self._lock.release()
            if isinstance(error, OSError):
                raise _refused(self.directory, error) from error
            raise
        _open[self.directory] = self
        self._keep = keep
        self._metrics = Metrics(self.directory)
        self._flushed = time.monotonic()
        self._line: AttemptRecord | None = None
        self._origin: list[str] = []  # stays: the same command, started again after a kill, goes back there again
        self.environment: dict[str, Any] = {}

    def require_open(self) -> None:
        """Raise if this attempt has given its lock back: another Run of this process has taken the directory over."""
        if self.is_closed:
            raise RunLocked(
                "This Run has been closed, or another Run of this process has taken its directory over.",
                path=self.directory,
                hint="Use the newer Run, or make one.",
            )

    def find(self, resume: str) -> tuple[Checkpoint, Snapshot] | None:
        """Find the checkpoint to go on from, as the user's `resume` says; what lies behind it is set aside."""
        if resume == "never":
            self._store.set_aside_after(-1)
            return None
        if resume in {"auto", "must"}:
            found = self._store.latest_good()
            if found is None and (damaged := self._store.damaged_names()):
                raise CorruptCheckpoint(
                    "No checkpoint of this run is sound any more; nothing has been deleted, and nothing is begun anew.",
                    path=self.directory,
                    found=", ".join(damaged),
                    hint='Look with `samestep verify`; resume="never" begins anew.',
                )
            if found is None and resume == "must":
                raise NoCheckpoint(
                    "There is no checkpoint to resume from.",
                    path=self.directory,
                    hint='Give the right directory, or resume="auto" to start anew.',
                )
            return found
        checkpoint = self._store.find(resume)
        snapshot = checkpoint.read()
        self._store.set_aside_after(checkpoint.step, checkpoint.order)
        self._origin = [checkpoint.name]
        return checkpoint, snapshot

    def begin(self, resumed: Checkpoint | None, metrics: tuple[int | None, str | None], seed: int | None) -> None:
        """Record that this process begins to work, and cut the metrics back to where it begins."""
        self.environment = environment() | {"config": self._config, "training": {"seed": seed}}
        self._metrics.cut(metrics[0], 0 if resumed is None else resumed.step)
        if self._metrics.path.exists() and metrics[1] not in {None, self._metrics.digest()}:
            warn_user(f"{self._metrics.path} is not what was written there: it was damaged or edited. It stays so.")
        name = None if resumed is None else resumed.name
        self._line = AttemptRecord.begin(self.directory, self.environment, resumed_from=name)
        if resumed is None:
            _log.info("%s begins anew", self.directory)
        else:
            _log.info("%s goes on from %s", self.directory, resumed.name)
            self._warn_of_another_run(resumed)
            self._warn_of_drift(resumed)

    def log(self, **line: Any) -> None:
        """Add a line to metrics.jsonl. Values of a device are not waited for before the next checkpoint."""
        self._metrics.append(line)
        now = time.monotonic()
        if now - self._flushed > _FLUSH_EVERY and not any(_is_on_device(value) for value in line.values()):
            self._flush(self._metrics.flush)
            self._flushed = now

    def log_position(self) -> tuple[int | None, str | None]:
        """Tell how many bytes of metrics.jsonl belong to what has happened so far, and their digest."""
        return self._flush(lambda: (self._metrics.position(), self._metrics.digest())) or (None, None)

    def find_end(self, name: str | None) -> Snapshot | None:
        """Read the checkpoint with which an earlier loop of the script ended; None, and a warning, if it is gone."""
        try:
            return None if name is None else self._store.find(name).read()
        except SamestepError as error:
            warn_user(
                "What an earlier loop of the script ended with cannot be read, so the statements behind it run on"
                f" objects that are not restored yet. {error}"
            )
            return None

    def write(self, snapshot: Snapshot, protect: Collection[str] = ()) -> str | None:
        """Write a checkpoint and return its name; a failure is loud, and training goes on."""
        protect = [*self._origin, *protect]
        self._flush(self._metrics.sync)
        recorded = self.environment | {"run": {"id": self._record.id, "keep": asdict(self._keep), "protect": protect}}
        try:
            name = self._store.write(snapshot, environment=recorded, protect=protect).name
        except SaveFailed as error:
            self.failure = error
            warn_user(f"No checkpoint at step {snapshot.step}; the training goes on. {error}")
            return None
        self.failure = None
        _log.info("saved %s", name)
        return name

    def retain(self, protect: Collection[str]) -> None:
        """Delete what no policy keeps, where the save that should have done it was killed."""
        self._store.retain([*self._origin, *protect])

    def end(self, how: str, completed_steps: int) -> None:
        """Record how the work of this process ended, so far."""
        self._flush(self._metrics.sync)
        if self._line is not None:
            line = self._line
            self._flush(lambda: line.end(how, steps=completed_steps))

    def close(self) -> None:
        """Give the lock back, after writing what waits for metrics.jsonl; in a fork of this process do neither."""
        try:
            if self._lock.is_held:
                self._flush(self._metrics.flush)
        finally:
            self.is_closed = True
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

    def _warn_of_another_run(self, resumed: Checkpoint) -> None:
        written = resumed.environment.get("run")
        if isinstance(written, dict) and written.get("id") != self._record.id:
            warn_user(
                f"{resumed.name} was written by another run: its identity is {written.get('id')}, and that of"
                f" {self.directory} is {self._record.id}. It is taken all the same."
            )

    def _warn_of_drift(self, resumed: Checkpoint) -> None:
        saved = {part: value for part, value in resumed.environment.items() if part != "run"}
        doubtful = [each for each in drift(saved, self.environment) if each.grade != "harmless"]
        if doubtful:
            lines = "".join(f"\n  {each.name}: {each.saved} -> {each.now} ({each.grade})" for each in doubtful)
            warn_user(f"{resumed.name} was written under other conditions:{lines}")


def _refused(directory: Path, error: OSError) -> SamestepError:
    return SamestepError(
        "The run's directory cannot be written.", path=directory, found=error.strerror, hint="Choose another place."
    )


def _make(directory: Path) -> None:
    try:
        make_folder(directory)
    except OSError as error:
        raise _refused(directory, error) from error


def _is_on_device(value: Any) -> bool:
    return getattr(getattr(value, "device", None), "type", "cpu") != "cpu"
