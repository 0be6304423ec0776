import fcntl
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from samestep.errors import RunLocked, SamestepError
from samestep.store import lock as lock_module
from samestep.store.lock import LOCK_FILE, OWNER_FILE, RunLock

HOLD = """
import sys, time
from samestep.store.lock import RunLock
RunLock(sys.argv[1]).acquire()
print("held", flush=True)
time.sleep(60)
"""

HOLD_WITH_WORKER = """
import os, sys, time
from samestep.store.lock import RunLock
RunLock(sys.argv[1]).acquire()
worker = os.fork()
if worker:
    print(worker, flush=True)
time.sleep(60)
"""


@pytest.fixture
def start():
    """Start Python processes, and end them with the test."""
    processes = []

    def start(code, *arguments):
        process = subprocess.Popen([sys.executable, "-c", code, *map(str, arguments)], stdout=subprocess.PIPE)
        processes.append(process)
        return process, process.stdout.readline().decode().strip()

    yield start
    for process in processes:
        process.kill()
        process.wait()
        process.stdout.close()


def in_fork(action):
    """Run an action in a forked child and give its exit status."""
    child = os.fork()
    if not child:
        try:
            os._exit(action() or 0)
        finally:
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def tries(directory):
    """Try to take the lock: 0 taken, 1 refused."""
    try:
        RunLock(directory).acquire()
    except RunLocked:
        return 1
    return 0


def test_another_process_is_refused(tmp_path, start):
    """While a process works on a run, another one is refused, with its number, host and command in the message."""
    process, _ = start(HOLD, tmp_path)
    with pytest.raises(RunLocked, match="Another process is working on this run") as caught:
        RunLock(tmp_path).acquire()
    assert f"process {process.pid} on {os.uname().nodename}" in caught.value.found
    assert str(tmp_path) in caught.value.found


def test_killed_owner_leaves_no_lock(tmp_path, start):
    """A process killed with SIGKILL keeps nobody out; its owner file is replaced by the next owner's."""
    process, _ = start(HOLD, tmp_path)
    process.kill()
    process.wait()
    with RunLock(tmp_path):
        assert json.loads((tmp_path / OWNER_FILE).read_text())["pid"] == os.getpid()


def test_surviving_workers_keep_nobody_out(tmp_path, start):
    """A killed trainer whose forked workers live on does not block its own restart."""
    process, worker = start(HOLD_WITH_WORKER, tmp_path)
    process.kill()
    process.wait()
    os.kill(int(worker), 0)  # the worker is alive, and has inherited the open file
    try:
        with RunLock(tmp_path) as lock:
            assert lock.is_held
    finally:
        os.kill(int(worker), signal.SIGKILL)


def test_flock_would_keep_the_restart_out(tmp_path):
    """With flock, a forked worker holds its parent's lock; this is why it is not used."""
    path = tmp_path / "flocked"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    worker = os.fork()
    if not worker:
        time.sleep(60)
        os._exit(0)
    os.close(descriptor)
    other = os.open(path, os.O_RDWR)
    try:
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.kill(worker, signal.SIGKILL)
        os.waitpid(worker, 0)
        os.close(other)


def test_same_process_is_refused_and_the_lock_survives(tmp_path):
    """A second lock in the same process is refused, whatever the path, and does not drop the first."""
    link = tmp_path / "link"
    run = tmp_path / "run"
    run.mkdir()
    link.symlink_to(run)
    with RunLock(run):
        for name in (run, link, f"{run}/../run"):
            with pytest.raises(RunLocked, match="This process is already working on this run"):
                RunLock(name).acquire()
        assert in_fork(lambda: tries(run)) == 1


def test_forked_child_owns_nothing(tmp_path):
    """A forked child does not hold its parent's lock, cannot release it and cannot take it."""
    with RunLock(tmp_path) as lock:

        def child():
            lock.release()
            return 10 * lock.is_held + tries(tmp_path)

        assert in_fork(child) == 1
        assert (tmp_path / OWNER_FILE).exists()
        assert in_fork(lambda: tries(tmp_path)) == 1


def test_child_works_on_another_run(tmp_path):
    """A child forked while its parent works on a run can lock another run."""
    (tmp_path / "other").mkdir()
    with RunLock(tmp_path):
        assert in_fork(lambda: tries(tmp_path / "other")) == 0


def test_child_takes_over_after_its_parent(tmp_path):
    """A child forked while its parent works on a run can lock it once the parent has finished."""
    released, tell = os.pipe()
    lock = RunLock(tmp_path)
    lock.acquire()
    child = os.fork()
    if not child:
        os.read(released, 1)
        os._exit(tries(tmp_path))
    lock.release()
    os.write(tell, b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_fork_while_another_thread_asks(tmp_path):
    """A child forked while a thread of its parent is taking a lock is not stuck."""
    with lock_module._guard:
        assert in_fork(lambda: tries(tmp_path)) == 0


def test_released_lock_is_free(tmp_path):
    """After release another process gets the lock at once, and the owner file is gone."""
    lock = RunLock(tmp_path)
    lock.acquire()
    lock.release()
    lock.release()
    assert not lock.is_held
    assert not (tmp_path / OWNER_FILE).exists()
    assert in_fork(lambda: tries(tmp_path)) == 0
    with lock:
        assert lock.is_held


def test_error_in_the_block_releases(tmp_path):
    """An exception inside the block gives the lock back."""
    with pytest.raises(ZeroDivisionError), RunLock(tmp_path):
        raise ZeroDivisionError
    assert in_fork(lambda: tries(tmp_path)) == 0


def test_waiting_gets_the_lock(tmp_path, start):
    """Waiting takes the lock as soon as its owner has died."""
    process, _ = start(HOLD, tmp_path)
    killer = os.fork()
    if not killer:
        time.sleep(0.3)
        os.kill(process.pid, signal.SIGKILL)
        os._exit(0)
    lock = RunLock(tmp_path)
    lock.acquire(wait=20)
    os.waitpid(killer, 0)
    assert lock.is_held
    assert process.wait(timeout=20) == -signal.SIGKILL, "the lock came while its owner lived"
    lock.release()


@pytest.mark.parametrize("content", [None, b"", b"{", b"[]", b"{}", b"\xff"])
def test_damaged_owner_file_does_no_harm(tmp_path, start, content):
    """A missing, torn or foreign owner file changes the message only."""
    start(HOLD, tmp_path)
    (tmp_path / OWNER_FILE).unlink()
    if content is not None:
        (tmp_path / OWNER_FILE).write_bytes(content)
    with pytest.raises(RunLocked, match="Another process"):
        RunLock(tmp_path).acquire()


def test_a_lock_that_a_copy_has_dropped_is_taken_again(tmp_path, start):
    """Code of the process that reads `.lock` drops the lock, as POSIX says; asked for its place, it takes it again."""
    lock = RunLock(tmp_path)
    lock.acquire()
    (tmp_path / LOCK_FILE).read_bytes()
    assert lock.is_in_place()
    assert not lock.is_taken()
    assert in_fork(lambda: tries(tmp_path)) == 1
    (tmp_path / LOCK_FILE).read_bytes()
    start(HOLD, tmp_path)
    assert not lock.is_in_place()
    assert lock.is_taken()


def test_missing_directory(tmp_path):
    """A directory that is not there is named, and not made."""
    with pytest.raises(SamestepError, match="does not exist"):
        RunLock(tmp_path / "none").acquire()
    assert not (tmp_path / "none").exists()


def test_read_only_directory(tmp_path):
    """A directory without permission is refused with its path and the system's reason."""
    tmp_path.chmod(0o555)

    def as_nobody():
        if os.geteuid() == 0:
            os.seteuid(65534)
        try:
            RunLock(tmp_path).acquire()
        except SamestepError as error:
            return 0 if "cannot be written" in error.message and error.found == "Permission denied" else 2
        return 1

    for parent in tmp_path.parents:
        if "pytest-of-" in str(parent):  # pytest makes them private to the user
            parent.chmod(0o755)
    try:
        assert in_fork(as_nobody) == 0
    finally:
        tmp_path.chmod(0o755)
    assert not (tmp_path / LOCK_FILE).exists()


GUEST = """
import sys
from pathlib import Path
from samestep.store.lock import RunLock
folder = Path(sys.argv[1])
print("ready", flush=True)
for _ in range(100):
    lock = RunLock(folder, is_guest=True)
    lock.acquire(wait=60)
    (folder / "inside").touch(exist_ok=False)
    assert lock.is_in_place()
    (folder / "inside").unlink()
    lock.release()
"""


def test_guests_that_come_and_go_are_never_inside_together(tmp_path, start):
    """Processes that remove the lock file behind them keep each other out, and nothing is left when all have gone."""
    guests = [start(GUEST, tmp_path)[0] for _ in range(3)]
    assert [guest.wait(timeout=120) for guest in guests] == [0, 0, 0]
    assert list(tmp_path.iterdir()) == []
