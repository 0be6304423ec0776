"""Starts that are refused, or that should be: what lies on the disk stays as it is."""

import json
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest
import torch
from test_loop import checkpoints, metrics, small, train

import samestep
from samestep.errors import CorruptCheckpoint, NoCheckpoint, SamestepError, SaveFailed, StateMismatch


@pytest.mark.parametrize("resume", ["step-2", "never"])
def test_a_start_that_is_refused_gives_nothing_up(tmp_path: Path, resume: str) -> None:
    """When the objects do not fit, or cannot be saved, no checkpoint has been set aside, and the run goes on."""
    run, _, update = small(tmp_path, save_every=1, keep=samestep.Keep(last=9))
    train(run, update, 4)
    run.close()
    run = samestep.Run(tmp_path, seed=0, save_every=1, resume=resume)
    model = torch.nn.Linear(7, 7)
    run.track(model=model, optimizer=torch.optim.Adam(model.parameters()))
    if resume == "never":
        run.state.hook = lambda: None
    with pytest.raises((StateMismatch, SamestepError)):
        next(run.steps(9))
    run.close()
    assert checkpoints(tmp_path) == [f"step-{step:09d}" for step in (1, 2, 3, 4)]
    run, _, update = small(tmp_path)
    assert train(run, update, 5) == [4]


def killed_after_its_first_save(directory: Path) -> None:
    run, _, update = small(directory, save_every=1)
    for step in run.steps(9):
        run.step(loss=update())
        if step == 2:
            os._exit(0)


def in_fork(work, *arguments) -> None:
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        work(*arguments)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


def test_checkpoints_of_a_killed_process_that_vanish_do_not_begin_a_run_anew(tmp_path: Path) -> None:
    """A first process that saved and was killed has left word of it: without its checkpoints nothing is begun anew."""
    in_fork(killed_after_its_first_save, tmp_path)
    before = metrics(tmp_path)
    shutil.rmtree(tmp_path / "checkpoints")
    run, _, update = small(tmp_path)
    with pytest.raises(NoCheckpoint, match="has had checkpoints and has none now"):
        train(run, update, 3)
    assert metrics(tmp_path) == before


def test_damaged_checkpoints_that_cannot_be_moved_do_not_begin_a_run_anew(tmp_path: Path) -> None:
    """When all are damaged and there can be no quarantine, the run stops and nothing is deleted."""
    run, _, update = small(tmp_path, save_every=1)
    train(run, update, 2)
    run.close()
    (tmp_path / "checkpoints" / "quarantine").write_text("in the way")
    for path in (tmp_path / "checkpoints").glob("step-*/manifest.json"):
        path.write_bytes(path.read_bytes()[:-9])
    run, _, update = small(tmp_path)
    with pytest.warns(UserWarning, match="damaged"), pytest.raises(CorruptCheckpoint, match="nothing is begun anew"):
        train(run, update, 3)
    assert checkpoints(tmp_path) == ["step-000000001", "step-000000002"]


def test_a_link_in_the_place_of_quarantine_leads_nothing_out(tmp_path: Path) -> None:
    """A damaged checkpoint is not moved through a link; it is passed over where it lies."""
    run, _, update = small(tmp_path / "run", save_every=1)
    train(run, update, 2)
    run.close()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run" / "checkpoints" / "quarantine").symlink_to(tmp_path / "elsewhere")
    path = tmp_path / "run" / "checkpoints" / "step-000000002" / "manifest.json"
    path.write_bytes(path.read_bytes()[:-9])
    run, _, update = small(tmp_path / "run")
    with pytest.warns(UserWarning, match=r"step-000000002 is damaged.*cannot be changed"):
        train(run, update, 2)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_lock_that_was_dropped_is_taken_again_or_its_loss_is_loud(tmp_path: Path) -> None:
    """Copying the directory drops the lock; the next record takes it again, and where another has it saves fail."""
    run, _, update = small(tmp_path / "run", save_every=1)
    with pytest.warns(UserWarning, match=r"(?s)Another process works on this run.*\.lock"), pytest.raises(SaveFailed):
        for step in run.steps(4):
            run.step(loss=update())
            if step == 1:
                shutil.copytree(tmp_path / "run", tmp_path / "copy")
            if step == 2:
                in_fork(hold_nothing, tmp_path / "run")
                shutil.copytree(tmp_path / "run", tmp_path / "another")
                holder = hold(tmp_path / "run")
    os.kill(holder, 9)
    os.waitpid(holder, 0)
    assert checkpoints(tmp_path / "run") == ["step-000000001", "step-000000002"]


def hold_nothing(directory: Path) -> None:
    """Fail to take a lock that has been taken again."""
    from samestep.store.lock import RunLock

    try:
        RunLock(directory).acquire()
    except SamestepError:
        os._exit(0)


def hold(directory: Path) -> int:
    """Take the lock in another process, and give its number once it has it."""
    from samestep.store.lock import RunLock

    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            RunLock(directory).acquire(wait=10)
            os.write(write, b"!")
            signal.pause()
        finally:
            os._exit(1)
    os.close(write)
    assert os.read(read, 1) == b"!"
    return child


def test_a_number_that_json_cannot_hold_in_a_record_keeps_no_run_out(tmp_path: Path) -> None:
    """A line of attempts.jsonl with a literal beyond all floats is a damaged line: it stays, and the run goes on."""
    run, _, update = small(tmp_path)
    train(run, update, 2)
    run.close()
    path = tmp_path / "attempts.jsonl"
    line = b'{"attempt": 7, "how": null, "steps": 1e400}\n'
    path.write_bytes(line + path.read_bytes())
    run, _, update = small(tmp_path)
    assert train(run, update, 3) == [2]
    assert path.read_bytes().startswith(line)
    assert json.loads(path.read_bytes().splitlines()[-1])["how"] == "finished"


def killed_before_its_first_save(directory: Path) -> None:
    run, _, update = small(directory, resume="never")
    for _ in run.steps(9):
        run.step(loss=update())
        os._exit(0)


def test_a_run_that_has_given_up_its_checkpoints_says_where_they_are(tmp_path: Path) -> None:
    """After resume="never" and a kill before the first save, the next start names what was given up, and where."""
    run, _, update = small(tmp_path, save_every=1)
    train(run, update, 2)
    run.close()
    in_fork(killed_before_its_first_save, tmp_path)
    run, _, update = small(tmp_path, resume="must")
    with pytest.raises(NoCheckpoint, match="no checkpoint to resume from") as caught:
        train(run, update, 3)
    assert caught.value.found == "given up, in quarantine: step-000000001, step-000000002"
    run.close()
    run, _, update = small(tmp_path)
    with pytest.warns(UserWarning, match="begins anew") as warned:
        assert train(run, update, 1) == [0]
    run.close()
    assert f"where:    {tmp_path / 'checkpoints' / 'quarantine'}" in str(warned[0].message)
    assert "step-000000001, step-000000002" in str(warned[0].message)
    run, _, update = small(tmp_path)
    assert train(run, update, 2) == [1]


@pytest.mark.parametrize("name", [".lock", ".tmp-run.json", ".tmp-metrics.jsonl", "run.json"])
@pytest.mark.parametrize("kind", ["folder", "pipe", "link"])
def test_what_stands_in_the_place_of_a_file_is_named(tmp_path: Path, name: str, kind: str) -> None:
    """A folder, pipe or link where a file of the run belongs is named itself and stays, or is a draft that goes."""
    path = tmp_path / name
    {"folder": path.mkdir, "pipe": lambda: os.mkfifo(path), "link": lambda: path.symlink_to("elsewhere")}[kind]()
    if name.startswith(".tmp-") and kind != "folder":
        samestep.Run(tmp_path).close()
        assert not path.is_symlink()
        assert not path.exists()
        return
    with pytest.raises(SamestepError) as caught:
        samestep.Run(tmp_path)
    assert caught.value.path == str(path)
    assert "ove it away" in str(caught.value)
    assert path.is_symlink() or path.exists()
    assert not (tmp_path / "elsewhere").exists()
