"""Claims about power loss under a whole run: records, checkpoints and weights, at every call of its processes."""

import contextlib
import json
import shutil
from collections import Counter

import pytest
import torch
from power_loss import LossyDisk, NoWaiting, lay_out

import samestep
from samestep import logbook
from samestep.store import files
from samestep.store.store import Store

STEPS = 6


class PowerIsAboutToGo(Exception):
    """Leaves a loop as a kill would, without the process: nothing is saved any more."""


def train(directory, *, until=STEPS, resume="auto", keep=1):
    """Train to the end, or into the body behind some step, and give its steps, and the weights."""
    run = samestep.Run(directory, seed=0, save_every=2, keep=samestep.Keep(last=keep), resume=resume)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    run.track(model=model, optimizer=optimizer)
    given = []
    with contextlib.suppress(PowerIsAboutToGo):
        for step in run.steps(STEPS):
            given.append(step)
            loss = model(torch.rand(4, 2)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.step(loss=loss)
            if step == until:
                raise PowerIsAboutToGo
    run.close()
    return given, torch.cat([each.detach().flatten() for each in model.parameters()])


# --- what happens before the power goes -----------------------------------------------------------------


def first_process(directory):
    """Train from an empty disk to the end."""
    train(directory)


def second_process(directory):
    """Go on behind a process that was killed a step after its save, whose metrics are ahead of it."""
    train(directory, until=4)
    train(directory)


def anew(directory):
    """Begin anew where another training has been."""
    train(directory, until=4)
    train(directory, resume="never")


def back(directory):
    """Go back to an earlier checkpoint than the newest."""
    train(directory, until=4, keep=2)
    train(directory, resume="step-2")


@pytest.fixture
def play(tmp_path, use_system, monkeypatch):
    """Play a scene on a disk that forgets; a step is promised from when its checkpoint is reported as saved."""
    monkeypatch.setattr(logbook, "_FLUSH_EVERY", 0)
    write = Store.write

    def on(scene, deaf_to=None):
        (tmp_path / "disk").mkdir()
        disk = use_system(LossyDisk(tmp_path / "disk", deaf_to=deaf_to))

        def write_and_promise(store, snapshot, **settings):
            checkpoint = write(store, snapshot, **settings)
            disk.promised(snapshot.step)
            return checkpoint

        monkeypatch.setattr(Store, "write", write_and_promise)
        scene(tmp_path / "disk" / "run")
        monkeypatch.setattr(Store, "write", write)
        use_system(files.System())
        shutil.rmtree(tmp_path / "disk")
        return disk

    return on


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def after(state, directory, use_system, **settings):
    """Start the same command on what the disk holds, check what it leaves, and give its steps and weights."""
    lay_out(state, directory)
    use_system(NoWaiting())
    found = Store(directory / "run" / "checkpoints").latest()
    given, weights = train(directory / "run", **settings)
    use_system(files.System())
    identity = json.loads((directory / "run" / "run.json").read_bytes())["id"]
    assert found is None or found.environment["run"]["id"] == identity
    assert [line["step"] for line in read_lines(directory / "run" / "metrics.jsonl")] == [1, 2, 3, 4, 5, 6]
    assert read_lines(directory / "run" / "attempts.jsonl")[-1]["how"] == "finished"
    assert [path for path in directory.rglob(".*") if path.name != ".lock"] == []
    shutil.rmtree(directory)
    return given, weights


@pytest.mark.parametrize("scene", [first_process, second_process])
def test_a_run_goes_on_after_a_power_loss_at_any_call(scene, play, tmp_path, use_system, record_property):
    """Wherever the power goes, the same command goes on from what was saved last, to the same bits and lines."""
    _, weights = train(tmp_path / "whole")
    groups = play(scene).by_what_shows()
    begun = Counter()
    for group, promise in groups:
        given, end = after(group[-1], tmp_path / "after", use_system)
        begin = STEPS - len(given)
        assert begin >= promise
        assert given == list(range(begin, STEPS))
        assert end.equal(weights)
        begun[begin] += 1
    record_property("states", sum(len(group) for group, _ in groups))
    record_property("outside drafts", len(groups))
    assert set(begun) == {0, 2, 4, 6}


@pytest.mark.parametrize(("scene", "resume", "begin"), [(anew, "never", 0), (back, "step-2", 2)])
def test_a_run_that_goes_back_goes_back_after_a_power_loss_at_any_call(
    scene, resume, begin, play, tmp_path, use_system, record_property
):
    """Wherever the power goes while later checkpoints are set aside, the same command goes back just so."""
    _, weights = train(tmp_path / "whole")
    groups = play(scene).by_what_shows()
    for group, promise in groups:
        settings = {"resume": resume} if promise else {}
        given, end = after(group[-1], tmp_path / "after", use_system, **settings)
        assert given == list(range(begin if promise else 0, STEPS))
        assert end.equal(weights)
    record_property("states", sum(len(group) for group, _ in groups))
    record_property("outside drafts", len(groups))
