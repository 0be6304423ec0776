"""Limits of the process: open files, the size of a file, memory. Each is reached for real."""

import gc
import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest
import torch
from test_loop import checkpoints, metrics, small

from samestep.errors import SamestepError
from samestep.store import keeping


@contextmanager
def limited(kind: int, value: int) -> Iterator[None]:
    """Lower a limit of this process for the length of a block."""
    soft, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (value, hard))
    try:
        yield
    finally:
        resource.setrlimit(kind, (soft, hard))


def limit_that_leaves(free: int) -> int:
    """Find the limit below which so many descriptors are free: the numbers of open ones have gaps."""
    limit = 0
    while free:
        free -= not Path(f"/proc/self/fd/{limit}").exists()
        limit += 1
    return limit


@pytest.mark.parametrize("left", range(4))
def test_too_many_open_files_cost_no_step(tmp_path: Path, left: int) -> None:
    """With 0 to 3 files left to open, due saves fail loudly or succeed; no step is lost, and later saves work."""
    run, _, update = small(tmp_path, save_every=1)
    loop, given = run.steps(8), []
    for step in loop:
        given.append(step)
        run.step(loss=update())
        if step == 3:
            fails = pytest.warns(UserWarning, match="No checkpoint at step [45]; the training goes on")
            few = limited(resource.RLIMIT_NOFILE, limit_that_leaves(left))
            with fails if left < 2 else nullcontext(), few:
                given.append(next(loop))
                run.step(loss=update())
                given.append(next(loop))
            assert checkpoints(tmp_path)[-1] == f"step-{3 if left < 2 else 5:09d}"
            run.step(loss=update())
    assert given == list(range(8))
    assert checkpoints(tmp_path) == ["step-000000007", "step-000000008"]
    assert [line["step"] for line in metrics(tmp_path)] == list(range(1, 9))
    assert not list((tmp_path / "checkpoints").glob(".*"))


def test_a_folder_that_cannot_be_listed_costs_no_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the folder cannot be listed for retention, the save has succeeded, and the next one deletes what is old."""

    def refuse(_directory: Path) -> list[object]:
        raise SamestepError("The folder of checkpoints cannot be read.")

    run, _, update = small(tmp_path, save_every=1)
    for step in run.steps(5):
        run.step(loss=update())
        with monkeypatch.context() as patched:
            if step in {2, 3}:
                patched.setattr(keeping, "find_checkpoints", refuse)
            run._boundary()
        assert len(checkpoints(tmp_path)) == {0: 1, 1: 2, 2: 3, 3: 4, 4: 2}[step]


def test_records_that_cannot_be_written_are_not_forgotten(tmp_path: Path) -> None:
    """When metrics.jsonl alone reaches its limit, that is said once, checkpoints go on, and no earlier line is lost."""
    run, _, update = small(tmp_path, save_every=1)
    with pytest.warns(UserWarning, match="records of the run could not be written") as warned:
        for step in run.steps(6):
            run.step(loss=update(), text="x" * 50_000)
            with limited(resource.RLIMIT_FSIZE, 120_000 if step >= 2 else resource.RLIM_INFINITY):
                run._boundary()
    assert len(warned) == 1
    assert [name[:14] for name in checkpoints(tmp_path)] == ["step-000000005", "step-000000006"]
    assert [line["step"] for line in metrics(tmp_path)] == [1, 2, 3, 4, 5, 6], "written when there was room again"


def test_a_resume_from_where_records_could_not_be_written_keeps_them(tmp_path: Path) -> None:
    """A checkpoint that was saved while metrics.jsonl could not grow takes no line from it on a resume."""
    run, _, update = small(tmp_path, save_every=1)
    loop = run.steps(9)
    with pytest.warns(UserWarning, match="records of the run could not be written"):
        for step in loop:
            run.step(loss=update(), text="x" * 50_000)
            if step == 3:
                break
            with limited(resource.RLIMIT_FSIZE, 120_000 if step == 2 else resource.RLIM_INFINITY):
                run._boundary()
        with limited(resource.RLIMIT_FSIZE, 0):  # as if it were killed: nothing more is written
            loop.close()
            run.close()
    before = [line["step"] for line in metrics(tmp_path)]
    run, _, update = small(tmp_path, save_every=1)
    assert list(run.steps(0)) == []
    assert [line["step"] for line in metrics(tmp_path)] == before == [1, 2]


def test_memory_that_is_short_in_a_save_costs_no_step(tmp_path: Path) -> None:
    """When a tensor cannot be copied to be written, the save fails loudly; the training and later saves go on."""
    run, _, update = small(tmp_path, save_every=1)
    run.track(large=torch.zeros(6000, 6000).t())  # in another order: writing it needs a copy, larger than any free room
    loop, given = run.steps(5), []
    for step in loop:
        given.append(step)
        run.step(loss=update())
        if step == 2:
            gc.collect()  # a copy that still hangs in a cycle would be room for the next one
            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            fails = pytest.warns(UserWarning, match=r"(?s)No checkpoint at step 3; the training goes on.*copied")
            with fails, limited(resource.RLIMIT_AS, used + 16_000_000):
                given.append(next(loop))
            assert checkpoints(tmp_path) == ["step-000000001", "step-000000002"]
            run.step(loss=update())
    assert given == list(range(5))
    assert checkpoints(tmp_path) == ["step-000000004", "step-000000005"]
    assert not list((tmp_path / "checkpoints").glob(".*"))


def test_a_start_whose_records_cannot_be_written_goes_on(tmp_path: Path) -> None:
    """When the attempt cannot be recorded as it begins, the run trains, and it is recorded when there is room."""
    run, _, update = small(tmp_path, save_every=1)
    for _ in run.steps(2):
        run.step(loss=update())
    run.close()
    run, _, update = small(tmp_path, save_every=1)
    loop, given = run.steps(4), []
    with limited(resource.RLIMIT_FSIZE, 100):
        given.append(next(loop))
    run.step(loss=update())
    for step in loop:
        given.append(step)
        run.step(loss=update())
    assert given == [2, 3]
    assert [line["step"] for line in metrics(tmp_path)] == [1, 2, 3, 4]
    attempts = [json.loads(line) for line in (tmp_path / "attempts.jsonl").read_text().splitlines()]
    assert [line["how"] for line in attempts] == ["finished", "finished"]
