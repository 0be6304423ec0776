"""Owns one process's work on a run directory: lock, records, checkpoints in and out. Knows no loop and no tensor."""

import logging
import os
from collections.abc import Collection, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import samestep
from samestep.belongings import Belongings
from samestep.errors import CorruptCheckpoint, NoCheckpoint, RunLocked, SamestepError, SaveFailed
from samestep.logbook import Logbook
from samestep.messages import warn_user
from samestep.state.environment import AS_USED, Drift, drift, environment
from samestep.state.restoration import shortened
from samestep.state.snapshot import Snapshot
from samestep.store.attempts import ATTEMPTS_FILE, read_attempts
from samestep.store.files import make_folder, remove_draft
from samestep.store.folder import CHECKPOINTS, QUARANTINE, RUN_FILE
from samestep.store.json_lines import plain
from samestep.store.lock import LOCK_FILE, RunLock, describe_owner
from samestep.store.metrics import METRICS_FILE
from samestep.store.place import named_directory, require_free
from samestep.store.reading import Checkpoint
from samestep.store.records import open_run, read_run, rewrite_run
from samestep.store.redirection import own_directory
from samestep.store.retention import Keep
from samestep.store.store import Store
from samestep.wording import printable, shown

_log = logging.getLogger("samestep")

_open: WeakValueDictionary[Path, "Attempt"] = WeakValueDictionary()
"""The attempts of this process by directory: a notebook cell that is run again takes its run over."""

SETTINGS = "built_with"
"""The part of a checkpoint's environment that holds how the script built optimizers, schedulers and scalers."""

_TAKE_BACK = f"To go on from them, move them from {QUARANTINE} to the folder above it, and start again."

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
        self.directory = own_directory(named_directory(directory, "Run(directory=…)")).absolute()
        self.in_loop = self.is_closed = False
        self.failure: SaveFailed | None = None
        self._process = os.getpid()
        require_free(self.directory)
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
        self._logbook = Logbook(self.directory, self._lock.is_in_place)
        self._belongings = Belongings(self._store, self._record)
        self._given_up: tuple[int, int | None] | None = None
        self._origin: list[str] = []  # stays: the same command, started again after a kill, goes back there again
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
        """Find the checkpoint to go on from, as the user's `resume` says."""
        if resume == "never":
            self._given_up = (-1, None)
            return None
        if resume in {"auto", "must"}:
            found = self._store.latest_good()
            if found is None and (damaged := self._store.fallback.damaged_names()):
                raise CorruptCheckpoint(
                    "No checkpoint of this run is sound any more; nothing has been deleted, and nothing is begun anew.",
                    path=self.directory,
                    found=", ".join(damaged),
                    hint='Look with `samestep verify`; resume="never" begins anew.',
                )
            if found is None:
                self._explain_none(resume)
            return found
        checkpoint = self._store.find(resume)
        snapshot = checkpoint.read()
        self._given_up = (checkpoint.step, checkpoint.order)
        self._origin = [checkpoint.name]
        return checkpoint, snapshot

    def _explain_none(self, resume: str) -> None:
        """Say what it means that there is no checkpoint: an error, earlier ones that were given up, or a new run."""
        given_up = ", ".join(shortened(self._store.fallback.names_set_aside()))
        if resume == "must":
            raise NoCheckpoint(
                "There is no checkpoint to resume from.",
                path=self.directory,
                found=f"given up, in {QUARANTINE}: {given_up}" if given_up else None,
                hint=_TAKE_BACK if given_up else 'Give the right directory, or resume="auto" to start anew.',
            )
        if not given_up:
            self._require_new()
            return
        warn_user(
            'The run begins anew: its checkpoints were given up by a start with resume="never" or an earlier step,'
            " which has saved none of its own."
            f"\n  where:    {self._store.directory / QUARANTINE}"
            f"\n  found:    {given_up}"
            f"\n  to do:    {_TAKE_BACK}"
        )

    def _require_new(self) -> None:
        """Raise if the records prove that there were checkpoints: an unmounted disk must not look like a new run."""
        for line in read_attempts(self.directory):
            if line.get("resumed_from") or line.get("saved") or (line.get("how") == "finished" and line.get("steps")):
                raise NoCheckpoint(
                    "This run has had checkpoints and has none now; nothing is begun anew.",
                    path=self.directory / CHECKPOINTS,
                    found=f"attempt {line['attempt']}: from {line.get('resumed_from')}, {line.get('how')}",
                    hint='Bring them back (is a disk not mounted, a copy incomplete?); resume="never" begins anew.',
                )

    def begin(
        self,
        resumed: Checkpoint | None,
        metrics: tuple[int | None, str | None],
        seed: int | None,
        settings: Mapping[str, Any],
    ) -> None:
        """Record that this process begins to work, and cut the metrics back to where it begins."""
        if self._given_up is not None:  # not before the restore has succeeded: a refused start changes nothing
            self._store.fallback.set_aside_after(*self._given_up)
        own = {"config": self._config, "training": {"seed": seed}, SETTINGS: plain(dict(settings), SETTINGS)}
        self.environment = environment() | own
        name, step = (None, 0) if resumed is None else (resumed.name, resumed.step)
        self._logbook.begin(self.environment, name, step, metrics)
        self._belongings.note()
        if resumed is None:
            _log.info("%s begins anew", self.directory)
        else:
            _log.info("%s goes on from %s", self.directory, resumed.name)
            self._warn_of_another_run(resumed)
            self._warn_of_drift(resumed)

    def log(self, **line: Any) -> None:
        """Add a line to metrics.jsonl. Values of a device are not waited for before the next checkpoint."""
        self._require_own()
        self._logbook.add(line)

    def log_position(self) -> tuple[int | None, str | None]:
        """Tell how much of metrics.jsonl belongs to what has happened: bytes, digest; None if it cannot be written."""
        return self._logbook.position()

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
        protect = [*self._origin, *protect]
        recorded = self.environment | {"run": {"id": self._record.id, "keep": asdict(self._keep), "protect": protect}}
        try:
            self._require_place(snapshot.step)
            self._belongings.look()
            self._logbook.sync()
            name = self._store.write(snapshot, environment=recorded, protect=protect).name
        except SaveFailed as error:
            # Without its traceback, which would keep the loop's frames alive, and with them an iterator it has left.
            self.failure = _afresh(error)
            warn_user(f"No checkpoint at step {snapshot.step}; the training goes on. {error}")
            return None
        self.failure = None
        self._belongings.note()
        self._logbook.saved(name)
        self._logbook.warn_of_refusal()
        _log.info("saved %s", name)
        return name

    def retain(self, protect: Collection[str]) -> None:
        """Delete what no policy keeps, where the save that should have done it was killed."""
        if self._lock.is_in_place():
            self._belongings.look()
        self._store.retain([*self._origin, *protect])
        self._belongings.note()

    def has(self, name: str | None) -> bool:
        """Tell whether a checkpoint is still there: nothing is finished whose end is not saved."""
        return self._belongings.has(name)

    def end(self, how: str, completed_steps: int) -> None:
        """Record how the work of this process ended, so far; a forked child leaves without a trace."""
        if os.getpid() != self._process:
            return
        self._logbook.end(how, completed_steps)
        if self.failure is None:  # else the checkpoint that failed has said it
            self._logbook.warn_of_refusal()

    def close(self) -> None:
        """Give the lock back, after writing what waits for metrics.jsonl; in a fork of this process do neither."""
        try:
            if self._lock.is_held:
                self._logbook.flush()
        finally:
            self.is_closed = True
            self._lock.release()
        if _open.get(self.directory) is self:
            del _open[self.directory]

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
        if self._lock.is_taken():
            raise SaveFailed(
                f"Another process works on this run, so the checkpoint of step {step} was not saved.",
                path=self.directory,
                found=describe_owner(self.directory),
                hint=f"Code of this process has opened and closed {LOCK_FILE}, which drops the lock: copy without it.",
            )
        try:
            make_folder(self.directory)
            is_same = (self.directory / RUN_FILE).exists()
            if is_same and read_run(self.directory).id != self._record.id:
                raise RunLocked("Another run is in its place.", path=self.directory)
            self._lock.move()
            rewrite_run(self.directory, self._record)
        except (OSError, SamestepError) as error:
            raise SaveFailed(
                f"The run's directory was removed or replaced; the checkpoint of step {step} was not saved.",
                path=(error.path if isinstance(error, SamestepError) else None) or self.directory,
                found=error.message if isinstance(error, SamestepError) else error.strerror,
                hint="Put the directory back, or let the loop end and start again.",
            ) from error
        self._belongings.note()
        self._logbook.begin_anew()
        what = (
            f"The run's {LOCK_FILE} was removed" if is_same else "The run's directory was removed, renamed or emptied"
        )
        warn_user(
            f"{what} while the training ran; it has been made anew."
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

    def _warn_of_another_run(self, resumed: Checkpoint) -> None:
        written = resumed.environment.get("run")
        if isinstance(written, dict) and written.get("id") != self._record.id:
            warn_user(
                f"{resumed.name} was written by another run: its identity is {shown(written.get('id'))}, and that of"
                f" {self.directory} is {self._record.id!r}. It is taken all the same."
            )
        elif isinstance(written, dict) and self._logbook.is_first:
            warn_user(
                f"{ATTEMPTS_FILE} does not know who has written {resumed.name}: it was removed or damaged, and begins"
                f" anew.\n  where:    {self.directory / ATTEMPTS_FILE}"
            )

    def _warn_of_drift(self, resumed: Checkpoint) -> None:
        saved = {part: value for part, value in resumed.environment.items() if part not in {"run", SETTINGS}}
        now = {part: value for part, value in self.environment.items() if part != SETTINGS}
        found = [each for each in drift(saved, now) if each.grade != "harmless"]
        config = ", ".join(_changed(each) for each in found if each.grade == AS_USED)
        doubtful = "".join(f"\n  {_changed(each)} ({each.grade})" for each in found if each.grade != AS_USED)
        if doubtful:
            with_config = f"\n  another config: {config}" if config else ""
            warn_user(f"{resumed.name} was written under other conditions:{doubtful}{with_config}")
        elif config:
            warn_user(f"{resumed.name} was written with another config: {config}")


def _changed(each: Drift) -> str:
    return printable(f"{each.name}: {each.saved} -> {each.now}")


def _afresh(error: SaveFailed) -> SaveFailed:
    return SaveFailed(error.message, path=error.path, expected=error.expected, found=error.found, hint=error.hint)


def _refused(directory: Path, error: OSError) -> SamestepError:
    if error.filename is not None and Path(error.filename).parent == directory and os.path.lexists(error.filename):
        return SamestepError(
            "A file of the run cannot be used.",
            path=error.filename,
            found=error.strerror,
            hint="Move it away, or change its permissions.",
        )
    return SamestepError(
        "The run's directory cannot be written.", path=directory, found=error.strerror, hint="Choose another place."
    )


def _make(directory: Path) -> None:
    try:
        make_folder(directory)
    except OSError as error:
        raise _refused(directory, error) from error
