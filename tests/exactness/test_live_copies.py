"""A run directory that is copied while its training runs, and one that was made read-only for a while."""

import os
import signal
import subprocess
import time
import warnings
from pathlib import Path

import enduring
import pytest
from disturbances import train_undisturbed
from ledger import Ledger, read_ledger
from processes import run_in_child, start_child

from samestep import Run, SamestepError

CHANGES = {"items": 80, "epochs": 3, "workers": 0}


def resume_copy(directory: Path, ledger: Path, answer: Path) -> None:
    """Resume a copy: warnings are written down, and an error that samestep raises."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            enduring.Enduring(directory, Ledger(ledger), **CHANGES).train()
            said = "trained"
        except SamestepError as error:
            said = f"{type(error).__name__}: {error}"
    answer.write_text("\n".join([said, *(str(each.message) for each in caught)]))


def copy_while_running(source: Path, target: Path, ledger: Path, after: int) -> None:
    """Copy a run with `cp -r` once its training has noted some steps; what vanishes meanwhile, cp passes over."""
    while ledger.read_bytes().count(b"\n") < after:
        time.sleep(0.001)
    subprocess.run(["cp", "-r", source, target], check=False, capture_output=True)


def test_a_copy_of_a_running_training_resumes_or_says_why_not(fast: Path) -> None:
    """Copied by `cp -r` amid saves, a run goes on from a complete checkpoint to the same bits, or says what lacks."""
    whole = read_ledger([train_undisturbed(fast, CHANGES)])
    ledger, log = fast / "ledger", fast / "log"
    ledger.touch()
    child = start_child(enduring.train_in, str(fast), "run", ledger, CHANGES, log=log)
    copies = [fast / f"copy {number}" for number in range(4)]
    for number, copy in enumerate(copies):
        copy_while_running(fast / "run", copy, ledger, 5 + 10 * number)
    child.join()
    assert child.exitcode == 0, log.read_text()
    answers = []
    for copy in copies:
        notes, answer = fast / f"{copy.name}.jsonl", fast / f"{copy.name}.txt"
        assert run_in_child(resume_copy, copy, notes, answer, log=log) == 0, log.read_text()
        answers.append(answer.read_text())
        found = read_ledger([notes])
        assert all(whole[key] == values for key, values in found.items())
        if answers[-1].startswith("trained"):
            assert set(whole) - set(found) < {("step", step) for step in range(61)} | {("score", 0), ("score", 1)}
    assert all(each.startswith(("trained", "NoCheckpoint", "CorruptCheckpoint")) for each in answers), answers
    assert any(each.startswith("trained") for each in answers), answers


def as_nobody(directory: Path, answer: Path) -> None:
    """Work on a run without the rights of root, which nothing is read-only for."""
    if os.getuid() == 0:
        os.setuid(65534)
    try:
        run = Run(directory)
        run.close()
        answer.write_text("opened")
    except SamestepError as error:
        answer.write_text(str(error))


def test_a_read_only_run_is_refused_and_resumes_when_it_is_writable_again(fast: Path) -> None:
    """After `chmod -R a-w` a run is refused with the system's reason and stays as it is; writable, it works."""
    log, answer, run = fast / "log", fast / "answer", fast / "run"
    code = run_in_child(enduring.train_in, str(fast), "run", fast / "ledger", CHANGES | {"epochs": 1}, log=log)
    assert code == 0, log.read_text()
    if os.getuid() == 0:
        subprocess.run(["chown", "-R", "65534", fast], check=True)
    before = sorted((path, path.stat().st_mtime_ns) for path in run.rglob("*"))
    subprocess.run(["chmod", "-R", "a-w", run], check=True)
    assert run_in_child(as_nobody, run, answer, log=log) == 0, log.read_text()
    assert "cannot be written" in answer.read_text()
    assert "Permission denied" in answer.read_text()
    subprocess.run(["chmod", "-R", "u+w", run], check=True)
    assert sorted((path, path.stat().st_mtime_ns) for path in run.rglob("*")) == before
    assert run_in_child(as_nobody, run, answer, log=log) == 0, log.read_text()
    assert answer.read_text() == "opened"


@pytest.mark.parametrize("stopped", [False, True], ids=["running", "stopped"])
def test_a_stopped_training_still_holds_its_run(fast: Path, stopped: bool) -> None:
    """A training that SIGSTOP has stopped keeps others out, as a running one does, and goes on after SIGCONT."""
    log, answer, ledger = fast / "log", fast / "answer", fast / "ledger"
    ledger.touch()
    child = start_child(enduring.train_in, str(fast), "run", ledger, CHANGES | {"epochs": 1}, log=log)
    while ledger.read_bytes().count(b"\n") < 2:
        time.sleep(0.001)
    if stopped:
        os.kill(child.pid, signal.SIGSTOP)
    assert run_in_child(try_to_open, fast / "run", answer, log=log) == 0, log.read_text()
    os.kill(child.pid, signal.SIGCONT)
    child.join()
    assert child.exitcode == 0, log.read_text()
    assert answer.read_text() == f"Another process is working on this run: {child.pid}"


def try_to_open(directory: Path, answer: Path) -> None:
    from samestep import attempt
    from samestep.errors import RunLocked

    attempt._LOCK_PATIENCE = 0.0
    try:
        Run(directory).close()
        answer.write_text("opened")
    except RunLocked as error:
        answer.write_text(f"{error.message.removesuffix('.')}: {error.found.split()[1]}")
