"""Kills over the whole life of a run's process: whichever file operation it dies in, the same command goes on."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import killing
import lives
import pytest
from processes import run_in_child

import samestep
from samestep.store.reading import find_checkpoints

LIMIT = 1800
"""Seconds for a sweep; the longest of the slow ones makes a thousand processes."""


def nothing(directory: Path) -> None:
    """Leave the directory empty."""


@dataclass(frozen=True)
class Life:
    """A command on a run: what was there before it, and from where it goes on.

    Args:
        command: What is killed, and then run again.
        prepare: What makes the directory as it is before.
        start: The checkpoint that the command goes on from, before it has committed one of its own.
        stays: Whether it goes back there each time, whatever it has committed.
    """

    command: Callable[..., None]
    prepare: Callable[[Path], None] = nothing
    start: str | None = None
    stays: bool = False


def died_at_step_3(directory: Path) -> None:
    """Leave what a process leaves that died in its third step: a checkpoint, and a line of metrics behind it."""
    lives.train(directory, stop_after=3)
    run = directory / "run"
    assert '"step": 3' in (run / "metrics.jsonl").read_text()
    pin(run)


def pin(run: Path) -> None:
    """Give the run a checkpoint that the user has pinned, from long ago."""
    newest = find_checkpoints(run / "checkpoints")[-1]
    old = samestep.Store(run, **ALL)
    old.write(replace(newest.read(), step=1), tags=["pinned"])


def with_edited_metrics(directory: Path) -> None:
    """Shorten the first line of metrics.jsonl, so that the checkpoint's position fits no line."""
    died_at_step_3(directory)
    path = directory / "run" / "metrics.jsonl"
    path.write_text(path.read_text().replace('"epoch": 0, ', "", 1))


def with_a_damaged_checkpoint(directory: Path) -> None:
    """Flip a bit in the newest weights."""
    lives.train(directory, save_every=2, **ALL)
    weights = find_checkpoints(directory / "run" / "checkpoints")[-1].path / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)


def another_training(directory: Path) -> None:
    """Train with another seed, keeping all checkpoints."""
    lives.train(directory, seed=5, save_every=2, **ALL)


ALL = {"keep": samestep.Keep(last=9)}
DENSE = {"epochs": 3, "save_every": 1}

LIVES = {
    "first start": Life(lives.train),
    "first start, saving each step and superseding": Life(partial(lives.train, **DENSE)),
    "resume with a pinned checkpoint": Life(lives.train, died_at_step_3, "step-000000002"),
    "resume with edited metrics": Life(lives.train, with_edited_metrics, "step-000000002"),
    "resume of a finished run": Life(lives.train, lives.train, "step-000000004"),
    "damaged checkpoint": Life(partial(lives.train, **ALL), with_a_damaged_checkpoint, "step-000000002"),
    "never": Life(partial(lives.train, resume="never"), another_training, None, stays=True),
    "step-2": Life(partial(lives.train, resume="step-2", **ALL), another_training, "step-000000002", stays=True),
}
LONG = {"first start, saving each step and superseding"}


def sweep(name: str, place: Path, *, everywhere: bool) -> None:
    """Kill one life at its file operations, run the same command again each time, and compare."""
    killing.warm_up()
    life, base, whole = LIVES[name], place / "base", place / "whole"
    base.mkdir()
    assert killing.in_fork(partial(life.prepare, base)) == 0
    shutil.copytree(base, whole)
    calls = killing.calls_of(life.command, whole)
    expected = lives.end_of(whole)
    points = range(len(calls)) if everywhere else first_points(life, calls)
    for at, directory in killing.killed(base, life.command, points):
        where = f"killed ahead of call {at}, {calls[at]}"
        assert killing.in_fork(partial(life.command, directory)) == 0, where
        found = lives.end_of(directory)
        assert not [part for part in expected if found[part] != expected[part]], where
        *earlier, last = lives.attempts(directory)
        assert last["resumed_from"] == newest(life, calls[:at]), (where, earlier, last, calls[at - 3 : at])
        assert {line["how"] for line in earlier} <= {"killed", "finished", "left the loop"}, where
        assert last["how"] == "finished", where
        assert lives.set_aside(directory) >= lives.set_aside(whole), where
    print(f"{name}: {len(points)} of {len(calls)} file operations, each killed once")  # noqa: T201


def first_points(life: Life, calls: list[str]) -> list[int]:
    """Choose where a short sweep kills: of a first start everywhere, of other lives every other place up to a save."""
    points = killing.telling_points(calls)
    drafts = [at for at, call in enumerate(calls) if call.startswith("mkdir run/checkpoints/.tmp-")]
    if life.prepare is nothing:
        return points
    return [at for at in points if not drafts or at <= drafts[0]][::2]


def newest(life: Life, calls: list[str]) -> str | None:
    """Name the checkpoint that must be taken: the last one that these calls have committed."""
    commits = [] if life.stays else [call for call in calls if call.startswith("rename run/checkpoints/step-")]
    return commits[-1].rpartition("/")[2] if commits else life.start


@pytest.mark.parametrize("name", [name for name in LIVES if name not in LONG])
def test_a_process_killed_anywhere_in_its_life_goes_on(name: str, tmp_path: Path) -> None:
    """The newest complete checkpoint is taken, and the end is the same (Lightning#688, transformers#35782)."""
    log = tmp_path / "log"
    code = run_in_child(partial(sweep, everywhere=False), name, tmp_path, log=log, limit=LIMIT)
    assert code == 0, log.read_text()
    print(log.read_text())  # noqa: T201


@pytest.mark.slow
@pytest.mark.parametrize("name", LIVES)
def test_a_process_killed_at_every_file_operation_goes_on(name: str, tmp_path: Path) -> None:
    """At every file operation the newest complete checkpoint is taken, never a torn one (KempnerForge#102)."""
    log = tmp_path / "log"
    code = run_in_child(partial(sweep, everywhere=True), name, tmp_path, log=log, limit=LIMIT)
    assert code == 0, log.read_text()
    print(log.read_text())  # noqa: T201


# --- a kill in the resume after a kill -----------------------------------------------------------------


def sweep_pairs(place: Path, *, stride: tuple[int, int]) -> None:
    """Kill a first start, then the process that goes on from what it left, and let a third one end the training."""
    killing.warm_up()
    base, whole, count = place / "base", place / "whole", 0
    base.mkdir()
    first = killing.calls_of(lives.train, shutil.copytree(base, whole))
    expected = lives.end_of(whole)
    for at, once in killing.killed(base, lives.train, killing.telling_points(first)[:: stride[0]]):
        second = killing.calls_of(lives.train, shutil.copytree(once, place / "undisturbed"))
        shutil.rmtree(place / "undisturbed")
        started = [call.rpartition("/")[2] for call in first[:at] if call.startswith("rename run/checkpoints/step-")]
        for again, twice in killing.killed(once, lives.train, killing.telling_points(second)[at % 3 :: stride[1]]):
            where = f"killed ahead of call {at}, {first[at]}, and then of {again}, {second[again]}"
            assert killing.in_fork(partial(lives.train, twice)) == 0, where
            found = lives.end_of(twice)
            assert not [part for part in expected if found[part] != expected[part]], where
            life = Life(lives.train, start=started[-1] if started else None)
            assert lives.attempts(twice)[-1]["resumed_from"] == newest(life, second[:again]), where
            count += 1
    print(f"{count} pairs of kills")  # noqa: T201


def test_a_process_killed_while_it_goes_on_after_a_kill_goes_on(tmp_path: Path) -> None:
    """Killed, and killed again in the process that goes on, a third process ends the training with the same bits."""
    log = tmp_path / "log"
    code = run_in_child(partial(sweep_pairs, stride=(20, 14)), tmp_path, log=log, limit=LIMIT)
    assert code == 0, log.read_text()
    print(log.read_text())  # noqa: T201


@pytest.mark.slow
def test_a_process_killed_at_many_pairs_of_places_goes_on(tmp_path: Path) -> None:
    """At every fifth place of a first start, and every fifth of the next, two kills in a row lose nothing."""
    log = tmp_path / "log"
    code = run_in_child(partial(sweep_pairs, stride=(5, 5)), tmp_path, log=log, limit=10 * LIMIT)
    assert code == 0, log.read_text()
    print(log.read_text())  # noqa: T201
