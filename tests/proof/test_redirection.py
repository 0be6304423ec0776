"""Where a recorded script's own runs and stores lie: in its arm, whatever path it names."""

import sys
import warnings
from pathlib import Path

import pytest
import torch

from samestep import Run, Store
from samestep.cli.group import run
from samestep.proof.ledger import find_ledgers
from samestep.proof.starting import Attempt
from samestep.proof.workspace import Workspace
from samestep.store.redirection import own_checkpoints, own_directory

SCRIPT = """
import sys
import time
import torch
import samestep

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run = samestep.Run(sys.argv[1], seed=0, save_every=1)
run.track(model=model, optimizer=optimizer)
for step in run.steps(6):
    optimizer.zero_grad()
    model(torch.ones(2)).sum().backward()
    optimizer.step()
    run.step()
    time.sleep(0.2)  # the kill comes between two steps, on a busy machine too
print("ended", flush=True)
"""


@pytest.fixture
def arm(tmp_path, monkeypatch):
    """Make this process one of an arm's."""
    folder = tmp_path / "proof" / "arm"
    folder.mkdir(parents=True)
    monkeypatch.setenv("SAMESTEP_RECORD_DIR", str(folder))
    return folder


def inside(arm, path, kind="redirected"):
    """Give what stands in an arm for an absolute path."""
    return arm / kind / path.relative_to("/")


def model(value):
    """Make a model of one number."""
    made = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(made.weight, value)
    return made


def test_a_run_at_an_absolute_path_is_in_the_arm_and_resumed_there(tmp_path):
    """A script that names its run by an absolute path, killed and started again, resumes in its arm."""
    project, named = tmp_path / "project", tmp_path / "results" / "run"
    project.mkdir()
    (project / "train.py").write_text(SCRIPT)
    workspace = Workspace(tmp_path / "proof", "arm", project)
    command = workspace.command([sys.executable, "train.py", str(named)])
    first = Attempt(command, workspace, 0).start()
    assert first.kill_when(3), first.tail()
    second = Attempt(command, workspace, 1).start()
    assert second.wait(120) == 0, second.tail()
    assert second.tail() == "ended"
    (killed,), (resumed,) = find_ledgers(first.ledgers), find_ledgers(second.ledgers)
    assert 1 <= len(resumed.steps) <= 6 - 2
    at = next(i for i, each in enumerate(killed.steps) if each.parts == resumed.steps[0].parts)
    assert at + len(resumed.steps) == 6
    assert (inside(workspace.folder, named) / "run.json").exists()
    assert {each.name for each in tmp_path.iterdir()} == {"project", "proof"}
    assert {each.name for each in project.iterdir()} == {"train.py"}


def test_only_what_leads_out_of_an_arm_is_redirected(arm, tmp_path, monkeypatch):
    """Where a directory really lies decides: a path in the arm stays, one that leads out by a link does not."""
    monkeypatch.chdir(arm)
    (tmp_path / "beside").mkdir()
    (arm / "beside").symlink_to(tmp_path / "beside")
    for stays in (Path("runs/a"), arm / "runs" / "a", Path("runs/../a")):
        assert own_directory(stays) == stays
    for leaves in (Path("beside/run"), arm / "beside" / "run", Path("../../beside/run"), tmp_path / "beside" / "run"):
        assert own_directory(leaves) == inside(arm, tmp_path / "beside" / "run")
    monkeypatch.delenv("SAMESTEP_RECORD_DIR")
    assert own_directory(tmp_path / "beside") == tmp_path / "beside"


def test_a_run_of_the_user_is_not_gone_on_with(arm, tmp_path, monkeypatch):
    """Where the user has a run already, an arm begins a new one in its own place, and the user's is as it was."""
    monkeypatch.delenv("SAMESTEP_RECORD_DIR")
    mine = Run(tmp_path / "mine", save_every=None)
    mine.track(model=model(1.0))
    for _ in mine.steps(2):
        mine.step()
    before = {path: path.stat().st_mtime_ns for path in [tmp_path / "mine", *(tmp_path / "mine").rglob("*")]}
    monkeypatch.setenv("SAMESTEP_RECORD_DIR", str(arm))
    read = model(0.0)
    assert (
        Store(tmp_path / "mine").load({"model": read}, allow_missing={"run", "random"}).step == 2
    )  # reading it is no harm
    anew = Run(tmp_path / "mine", save_every=None)
    anew.track(model=model(2.0))
    assert [anew.completed_steps for _ in anew.steps(1) if anew.step() is None] == [1]
    assert [each.step for each in Store(tmp_path / "mine").checkpoints()] == [1]
    assert {path: path.stat().st_mtime_ns for path in [tmp_path / "mine", *(tmp_path / "mine").rglob("*")]} == before


def test_a_store_saves_into_the_arm(arm, tmp_path):
    """What a store saves at an absolute path is in the arm, where the next attempt finds it."""
    Store(tmp_path / "store").save({"model": model(3.0)}, step=1)
    loaded = model(0.0)
    assert Store(tmp_path / "store").load({"model": loaded}).path.parent == inside(arm, tmp_path / "store")
    assert loaded.weight.item() == 3.0
    assert not (tmp_path / "store").exists()


def test_a_store_reads_what_the_user_has_and_leaves_it_as_it_is(arm, tmp_path, monkeypatch):
    """A store in an arm gives the user's checkpoints; what it saves, deletes and sets aside is in the arm alone."""
    monkeypatch.delenv("SAMESTEP_RECORD_DIR")
    theirs = tmp_path / "pretrained"
    for step in (1, 2):
        Store(theirs).save({"model": model(float(step))}, step=step)
    damaged = next((theirs / "step-000000002").glob("model*"))
    damaged.write_bytes(damaged.read_bytes()[:-1])
    before = {path: path.stat().st_mtime_ns for path in [theirs, *theirs.rglob("*")]}
    monkeypatch.setenv("SAMESTEP_RECORD_DIR", str(arm))
    loaded = model(0.0)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        assert Store(theirs).load({"model": loaded}).step == 1
    assert "step-000000002 is damaged" in str(warned[0].message)
    for step in (3, 4, 5):
        Store(theirs).save({"model": model(float(step))}, step=step)
    assert [each.step for each in Store(theirs).checkpoints()] == [4, 5]
    assert own_checkpoints(theirs) == inside(arm, theirs, "borrowed")
    assert {path: path.stat().st_mtime_ns for path in [theirs, *theirs.rglob("*")]} == before


def test_commands_that_look_show_what_lies_at_a_path(arm, tmp_path, monkeypatch, capsys):
    """`samestep ls` and `verify` in an arm's environment read the directory that they are given, and make nothing."""
    monkeypatch.delenv("SAMESTEP_RECORD_DIR")
    Store(tmp_path / "store").save({"model": model(1.0)}, step=7)
    monkeypatch.setenv("SAMESTEP_RECORD_DIR", str(arm))
    assert run(["ls", str(tmp_path / "store")]) == 0
    assert "7" in capsys.readouterr().out
    assert run(["verify", str(tmp_path / "store")]) == 0
    assert [*arm.iterdir()] == []
