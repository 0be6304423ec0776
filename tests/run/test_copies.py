"""Copies of a run directory: by hard links, by cp, by tar, while it runs, read-only, under another clock."""

import os
import shutil
import subprocess
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import torch
from test_loop import checkpoints, metrics, small, train

import samestep
from samestep.errors import NoCheckpoint, RunLocked, SaveFailed
from samestep.store import json_lines, writing
from samestep.store.reading import Checkpoint


def shell(*words: object) -> None:
    subprocess.run([str(each) for each in words], check=True)


def content(directory: Path) -> dict[str, bytes]:
    """Read all files below a directory."""
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def trained(directory: Path, steps: int) -> dict[str, torch.Tensor]:
    """Train, or go on training, to a number of steps and give the weights."""
    run, model, update = small(directory, save_every=1)
    train(run, update, steps)
    run.close()
    return {name: each.clone() for name, each in model.state_dict().items()}


def equal(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(left[name], right[name]) for name in left | right)


# --- hard links -----------------------------------------------------------------------------------------


def test_a_copy_by_hard_links_is_a_run_of_its_own(tmp_path: Path) -> None:
    """After `cp -al` the original and the copy go on at the same time, and no byte of one changes by the other."""
    original, copy = tmp_path / "original", tmp_path / "copy"
    trained(original, 3)
    shell("cp", "-al", original, copy)
    before = content(copy)
    run, _, update = small(original, save_every=1)
    loop = run.steps(6)
    for step in loop:
        run.step(loss=update())
        if step == 5:
            break
    assert content(copy) == before
    trained(copy, 4)
    assert [line["step"] for line in metrics(copy)] == [1, 2, 3, 4]
    before = content(copy)
    next(loop, None)
    run.close()
    assert content(copy) == before
    assert [line["step"] for line in metrics(original)] == [1, 2, 3, 4, 5, 6]
    assert checkpoints(original) == ["step-000000005", "step-000000006"]


def test_a_copy_by_hard_links_of_a_running_training(tmp_path: Path) -> None:
    """A copy by `cp -al` of a run at work is refused until that ends, stays as it was, and then goes on from there."""
    original, copy = tmp_path / "original", tmp_path / "copy"
    run, _, update = small(original, save_every=1)
    loop = run.steps(6)
    for step in loop:
        run.step(loss=update())
        if step == 3:
            break
    shell("cp", "-al", original, copy)
    lines = (copy / "metrics.jsonl").read_bytes()
    with pytest.raises(RunLocked, match="already working"):
        samestep.Run(copy)
    for _ in loop:
        run.step(loss=update())
    run.close()
    assert (copy / "metrics.jsonl").read_bytes() == lines
    again, model, update = small(copy, save_every=1)
    assert train(again, update, 6) == [3, 4, 5]
    assert equal(model.state_dict(), trained(original, 6))


# --- other copies ---------------------------------------------------------------------------------------


def by_cp(source: Path, target: Path) -> None:
    shell("cp", "-r", source, target)


def by_tar(source: Path, target: Path) -> None:
    shell("tar", "-C", source.parent, "-cf", f"{source}.tar", source.name)
    target.mkdir()
    shell("tar", "-C", target, "-xf", f"{source}.tar", "--strip-components=1", "--touch")


def with_times_in_disorder(source: Path, target: Path) -> None:
    """Copy, and give every file and folder a time of its own: the newest checkpoint the oldest one."""
    shutil.copytree(source, target)
    for number, path in enumerate(sorted(target.rglob("*"), reverse=True)):
        os.utime(path, (10_000 * number, 10_000 * number))


@pytest.mark.parametrize("copied", [by_cp, by_tar, with_times_in_disorder], ids=lambda each: each.__name__)
def test_a_copy_resumes_to_the_same_bits(tmp_path: Path, copied) -> None:
    """What copying changes, times of files and their order in folders, does not change what a resume takes."""
    trained(tmp_path / "original", 3)
    copied(tmp_path / "original", tmp_path / "copy")
    run, model, update = small(tmp_path / "copy", save_every=1)
    assert train(run, update, 6) == [3, 4, 5]
    assert equal(model.state_dict(), trained(tmp_path / "original", 6))


def test_missing_lines_of_a_copy_are_named(tmp_path: Path) -> None:
    """When metrics.jsonl is older than the newest checkpoint, as in a copy of a live run, a resume says what lacks."""
    trained(tmp_path, 2)
    early = (tmp_path / "metrics.jsonl").read_bytes()
    trained(tmp_path, 5)
    (tmp_path / "metrics.jsonl").write_bytes(early)
    with pytest.warns(UserWarning, match=r"metrics\.jsonl is \d+ bytes shorter than when step-000000005 was saved"):
        trained(tmp_path, 6)
    assert [line["step"] for line in metrics(tmp_path)] == [1, 2, 6]


@pytest.mark.parametrize("attempts", [1, 2])
def test_vanished_checkpoints_do_not_begin_a_run_anew(tmp_path: Path, attempts: int) -> None:
    """When the records prove that there were checkpoints, and none is there, the run stops and nothing is cut."""
    for number in range(attempts):
        trained(tmp_path, 3 + number)
    (tmp_path / "checkpoints").rename(tmp_path / "not mounted")
    before = content(tmp_path)
    with pytest.raises(NoCheckpoint, match="has had checkpoints and has none now"):
        trained(tmp_path, 6)
    assert content(tmp_path) == before
    (tmp_path / "not mounted").rename(tmp_path / "checkpoints")
    trained(tmp_path, 6)
    assert [line["step"] for line in metrics(tmp_path)] == [1, 2, 3, 4, 5, 6]
    shutil.rmtree(tmp_path / "checkpoints")
    run, _, update = small(tmp_path, resume="never")
    assert train(run, update, 2) == [0, 1]


# --- a directory that is moved or deleted while it is worked on ------------------------------------------


def test_a_directory_that_is_moved_meanwhile_is_whole_where_it_lies(tmp_path: Path) -> None:
    """When its directory is moved away a run goes on at the place it was given, and says so; what moved resumes too."""
    here, there = tmp_path / "run", tmp_path / "moved"
    run, _, update = small(here, save_every=1)
    with pytest.warns(UserWarning, match="was removed, renamed or emptied"):
        for step in run.steps(8):
            run.step(loss=update())
            if step == 2:
                here.rename(there)
    run.close()
    assert checkpoints(here) == ["step-000000007", "step-000000008"]
    assert checkpoints(there) == ["step-000000001", "step-000000002"]
    run, _, update = small(there)
    assert train(run, update, 4) == [2, 3]


def test_a_run_does_not_write_into_another_one_at_its_old_place(tmp_path: Path) -> None:
    """A run whose directory was moved away leaves a new run at that place alone, its lock's owner included."""
    here = tmp_path / "run"
    run, _, update = small(here, save_every=1)
    loop = run.steps(6)
    with (
        pytest.warns(UserWarning, match="was removed or replaced"),
        pytest.raises(SaveFailed, match="was removed or replaced"),
    ):
        for step in loop:
            run.step(loss=update())
            if step == 3:
                here.rename(tmp_path / "moved")
                shutil.copytree(tmp_path / "moved", here, ignore=lambda *_: ["run.json", "checkpoints"])
                (here / "run.json").write_text('{"id": "another", "created": "", "samestep": "", "config": {}}')
                before = content(here)
    run.close()
    assert content(here) == before
    assert checkpoints(tmp_path / "moved") == ["step-000000002", "step-000000003"]


# --- clocks ---------------------------------------------------------------------------------------------


class Shifted(datetime):
    """The real clock, which somebody has set."""

    by = timedelta(0)

    @classmethod
    def now(cls, tz=None):
        return datetime.now(tz) + cls.by


def test_a_clock_that_is_set_changes_neither_resume_nor_retention(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the clock set by years and the time zone changed between attempts, the same checkpoints stay and resume."""
    for module in (writing, json_lines):
        monkeypatch.setattr(module, "datetime", Shifted)
    for steps, days, zone in [(3, 0, "UTC"), (6, -3650, "Asia/Tokyo"), (9, 3650, "America/New_York"), (12, -1, "UTC")]:
        monkeypatch.setattr(Shifted, "by", timedelta(days=days))
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        run, _, update = small(tmp_path, save_every=1)
        assert train(run, update, steps) == list(range(steps - 3, steps))
        run.close()
        assert checkpoints(tmp_path) == [f"step-{steps - 1:09d}", f"step-{steps:09d}"]
        newest = Checkpoint(tmp_path / "checkpoints" / f"step-{steps:09d}")
        written = datetime.fromisoformat(newest.created)
        assert abs(written - datetime.now(UTC) - Shifted.by) < timedelta(hours=1), "times are those of UTC"
    monkeypatch.undo()
    time.tzset()


def test_saves_by_time_do_not_follow_the_wall_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wall clock that runs backwards by an hour at each look delays no save that is due by time."""
    hours = iter(range(10**9))
    real = time.time()
    monkeypatch.setattr(time, "time", lambda: real - 3600 * next(hours))
    run, _, update = small(tmp_path, save_every="0.000001 s", keep=samestep.Keep(last=9))
    train(run, update, 4)
    assert checkpoints(tmp_path) == [f"step-{step:09d}" for step in (1, 2, 3, 4)]
