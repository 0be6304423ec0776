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
from samestep.store.files import make_folder
from samestep.store.folder import CHECKPOINTS
from samestep.store.lock import RunLock
from samestep.store.metrics import Metrics
from samestep.store.place import named_directory, require_free
from samestep.store.reading import Checkpoint
from samestep.store.records import Attempt as AttemptRecord
from samestep.store.records import open_run, plain, rewrite_run
from samestep.store.retention import Keep
from samestep.store.store import Store

_log = logging.getLogger("samestep")

_open: WeakValueDictionary[Path, "Attempt"] = WeakValueDictionary()
"""The attempts of this process by directory: a notebook cell that is run again takes its run over."""

T = TypeVar("T")

_FLUSH_EVERY = 1.0
"""Seconds between two writes of metrics.jsonl, where its values lie on the CPU."""

SETTINGS = "built_with"
"""The part of a checkpoint's environment that holds how the script built optimizers, schedulers and scalers."""

_PATIENCE_WITH_RECORDS = 30.0
"""Seconds for which metrics.jsonl may fail to be written before that is said; its lines wait in memory."""

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
        self.directory = named_directory(directory, "Run(directory=…)").absolute()
        self.in_loop = self.is_closed = self._has_warned = False
        self._failing_since: float | None = None
        self.failure: SaveFailed | None = None
        self._process = os.getpid()
        require_free(self.directory)
        _make(self.directory)
        self._take_over()
        self._lock = RunLock(self.directory)
        self._lock.acquire(wait=_LOCK_PATIENCE)
        try:
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
        self._resumed_from: str | None = None
        self.environment: dict[str, Any] = {}

    def require_open(self) -> None:
        """Raise if this process does not hold the lock, or has given it back to another Run of its own."""
        self._require_own()
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
            if found is None and (damaged := self._store.set_aside_names()):
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
        self._store.set_aside_after(checkpoint.step)
        return checkpoint, snapshot

    def begin(
        self, resumed: Checkpoint | None, metrics_bytes: int | None, seed: int | None, settings: Mapping[str, Any]
    ) -> None:
        """Record that this process begins to work, and cut the metrics back to where it begins."""
        own = {"config": self._config, "training": {"seed": seed}, SETTINGS: plain(dict(settings), SETTINGS)}
        self.environment = environment() | own
        self._resumed_from = None if resumed is None else resumed.name
        self._flush(lambda: self._metrics.cut(metrics_bytes, 0 if resumed is None else resumed.step))
        self._flush(self._begin_line)
        if resumed is None:
            _log.info("%s begins anew", self.directory)
        else:
            _log.info("%s goes on from %s", self.directory, resumed.name)
            self._warn_of_drift(resumed)

    def log(self, **line: Any) -> None:
        """Add a line to metrics.jsonl. Values of a device are not waited for before the next checkpoint."""
        self._require_own()
        self._metrics.append(line)
        now = time.monotonic()
        if now - self._flushed > _FLUSH_EVERY and not any(_is_on_device(value) for value in line.values()):
            self._flush(self._metrics.flush)
            self._flushed = now

    def log_position(self) -> int | None:
        """Tell how many bytes of metrics.jsonl belong to what has happened so far; None while it cannot be written."""
        return self._flush(self._metrics.position)

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
        self._require_own()
        self._flush(self._metrics.sync)
        recorded = self.environment | {
            "run": {"id": self._record.id, "keep": asdict(self._keep), "protect": list(protect)}
        }
        try:
            self._require_place(snapshot.step)
            name = self._store.write(snapshot, environment=recorded, protect=protect).name
        except SaveFailed as error:
            self.failure = error
            warn_user(f"No checkpoint at step {snapshot.step}; the training goes on. {error}")
            return None
        self.failure = None
        _log.info("saved %s", name)
        return name

    def end(self, how: str, completed_steps: int) -> None:
        """Record how the work of this process ended, so far; a forked child leaves without a trace."""
        if os.getpid() != self._process:
            return
        self._flush(self._metrics.sync)
        if self._line is None:
            self._flush(self._begin_line)
        if self._line is not None:
            line = self._line
            self._flush(lambda: line.end(how, steps=completed_steps))

    def close(self) -> None:
        """Give the lock back."""
        self.is_closed = True
        self._lock.release()
        if _open.get(self.directory) is self:
            del _open[self.directory]

    def _begin_line(self) -> None:
        self._line = AttemptRecord.begin(self.directory, self.environment, resumed_from=self._resumed_from)

    def _flush(self, write: Callable[[], T]) -> T | None:
        """Write records; where that goes on failing, say so: no record is worth a training.

        Nothing is written into a directory that is no longer the one that is locked: it may be another run's.
        """
        if not self._lock.is_in_place():
            _log.error("the records of %s wait: the directory is not the one that is locked", self.directory)
            return None
        try:
            done = write()
        except OSError as error:
            _log.error("the records of %s could not be written: %s", self.directory, error)
            self._warn_of_records(error)
            return None
        self._failing_since = None
        return done

    def _warn_of_records(self, error: OSError) -> None:
        """Say once that records wait; not after a short failure, nor where a checkpoint that failed has said it."""
        now = time.monotonic()
        self._failing_since = now if self._failing_since is None else self._failing_since
        if self._has_warned or self.failure is not None or now - self._failing_since < _PATIENCE_WITH_RECORDS:
            return
        self._has_warned = True
        warn_user(
            f"The records of the run could not be written; the training goes on. {error.strerror or error}"
            f"\n  where:    {error.filename or self.directory}"
            "\n  to do:    Make room: what the loop reports waits in memory until it can be written."
        )

    def _require_own(self) -> None:
        """Raise in a forked child: the lock is its parent's, and two writers would mix their checkpoints."""
        if os.getpid() != self._process:
            raise RunLocked(
                "This process was forked from the one that works on this run, and may not work on it too.",
                path=self.directory,
                expected=f"process {self._process}",
                found=f"process {os.getpid()}",
                hint="Leave the run to the parent; a child that trains makes a Run of its own in another directory.",
            )

    def _require_place(self, step: int) -> None:
        """Make sure that the directory is still the one that is locked; one that was removed is made anew."""
        if self._lock.is_in_place():
            return
        try:
            make_folder(self.directory)
            self._lock.move()
            rewrite_run(self.directory, self._record)
        except (OSError, SamestepError) as error:
            raise SaveFailed(
                f"The run's directory was removed or replaced; the checkpoint of step {step} was not saved.",
                path=self.directory,
                found=error.message if isinstance(error, SamestepError) else error.strerror,
                hint="Put the directory back, or let the loop end and start again.",
            ) from error
        self._flush(self._begin_line)
        warn_user(
            "The run's directory was removed, renamed or emptied while the training ran; it has been made anew."
            f"\n  where:    {self.directory}"
            f"\n  found:    {len(self._store.checkpoints())} checkpoints, before that of step {step}, which follows"
        )

    def _take_over(self) -> None:
        earlier = _open.get(self.directory)
        if earlier is None:
            return
        if earlier.in_loop and earlier._process == os.getpid():  # noqa: SLF001  (of the same class)
            raise RunLocked(
                "A loop of this process is working on this run.",
                path=self.directory,
                hint="End that loop first, or give this Run another directory.",
            )
        earlier.close()

    def _warn_of_drift(self, resumed: Checkpoint) -> None:
        saved = {part: value for part, value in resumed.environment.items() if part not in {"run", SETTINGS}}
        now = {part: value for part, value in self.environment.items() if part != SETTINGS}
        doubtful = [each for each in drift(saved, now) if each.grade != "harmless"]
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
