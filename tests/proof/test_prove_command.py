"""`samestep prove` as it is typed: exit statuses, words, JSON, and Ctrl-C."""

import functools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from samestep.cli.group import run
from samestep.proof import proving

START = [sys.executable, "-c", "from samestep.cli import main; main()", "prove"]

SOUND = """
import os
import sys
import time

import torch

torch.manual_seed(0)
model = torch.nn.Linear(4, 40)
optimizer = torch.optim.Adam(model.parameters())
begin = 0
if os.path.exists("last.pt"):
    model_state, optimizer_state, begin = torch.load("last.pt")
    model.load_state_dict(model_state)
    optimizer.load_state_dict(optimizer_state)
for step in range(begin, 6):
    model(torch.ones(4) * step).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    torch.save((model.state_dict(), optimizer.state_dict(), step + 1), "last.tmp")
    os.replace("last.tmp", "last.pt")
"""
"""Six steps, saved behind each."""

LOSES = SOUND.replace("    optimizer.load_state_dict(optimizer_state)\n", "")
UNSTEADY = SOUND.replace("torch.manual_seed(0)", "torch.seed()")
FAILS = SOUND + "\nraise ValueError('no data')\n"
HANGS = "    if {where} in os.getcwd():\n        open('hangs', 'w').close()\n        time.sleep(600)\n"


def hanging(where):
    """Give a training that hangs at its first step in the arms whose names hold a text."""
    return SOUND.replace("    model(", HANGS.format(where=repr(where)) + "    model(")


@pytest.fixture
def typed(forks, tmp_path, monkeypatch, capfd):
    """Type `samestep prove … -- python train.py` in a directory with that script, whose processes are forked."""

    def call(text, *options):
        monkeypatch.setattr(proving, "Wishes", functools.partial(proving.Wishes, launch=forks.launch))
        monkeypatch.setenv("TMPDIR", str(tmp_path))
        monkeypatch.chdir(project(tmp_path, text))
        status = run(["prove", "--at", "step:3", *options, "--", "python", "train.py"])
        return status, *capfd.readouterr()

    return call


def project(place, text):
    """Make a directory with a training."""
    directory = place / "project"
    directory.mkdir()
    (directory / "train.py").write_text(text)
    return directory


def test_proved(typed):
    """A proof ends with status 0, and says how many steps are the same."""
    status, out, err = typed(SOUND)
    assert (status, err) == (0, "")
    assert "Proved: killed once, and 4 steps after it are the same bit for bit." in out
    assert "killed after step 3, went on from step 2: the same" in out


def test_diverged(typed):
    """Another training behind a kill is status 1; what was lost and its repair are said."""
    status, out, err = typed(LOSES)
    assert (status, err) == (1, "")
    assert "Diverged: after a kill this is another training." in out
    assert "not restored   optimizer" in out
    assert "save optimizer.state_dict()" in out


def test_unverified(typed):
    """A training that is not the same twice is status 3, and how it is made so is said."""
    status, out, err = typed(UNSTEADY)
    assert (status, err) == (3, "")
    assert "Unverified: there is no proof." in out
    assert "--seed 0" in out


@pytest.mark.parametrize(("text", "verdict", "status"), [(SOUND, "proved", 0), (LOSES, "diverged", 1)])
def test_json(typed, text, verdict, status):
    """With --json standard output is one object, with the same exit status."""
    found, out, err = typed(text, "--json")
    assert (found, err, json.loads(out)["verdict"]) == (status, "", verdict)


def test_cannot_be_proved(typed):
    """A command that fails by itself is status 2 and one message, with the last line that it printed."""
    status, out, err = typed(FAILS)
    assert status == 2
    assert "does not come to its end by itself" in err
    assert "ValueError: no data" in err
    assert "This is a defect" not in out + err


def test_cannot_be_proved_json(typed):
    """With --json it is one object with the one field "error"."""
    status, out, err = typed(FAILS, "--json")
    found = json.loads(out)
    assert (status, err, [*found]) == (2, "", ["error"])
    assert found["error"]["where"] == "python train.py"


@pytest.mark.parametrize(
    "words", [["--kills", "0", "--", "true"], [], ["--kills", "2"], ["--at", "noon", "--", "true"]]
)
def test_wrong_usage(words, capfd, tmp_path, monkeypatch):
    """Wrong usage is status 2, and nothing is printed as a result."""
    monkeypatch.chdir(tmp_path)
    assert run(["prove", *words]) == 2
    assert "proved" not in capfd.readouterr().out.lower()


@pytest.mark.parametrize("where", ["reference", pytest.param("trial", marks=pytest.mark.slow)])
def test_ctrl_c(tmp_path, where):
    """Ctrl-C ends a proof at once with status 130, and leaves no process, no folder and no traceback."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    words = [*START, "--at", "step:3", "--", sys.executable, "train.py"]
    with subprocess.Popen(
        words,
        cwd=project(tmp_path, hanging(where)),
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as prover:
        wait_for(lambda: [*temporary.rglob("hangs")], prover)
        prover.send_signal(signal.SIGINT)
        said, _ = prover.communicate(timeout=20)
    assert prover.returncode == 130
    assert "Traceback" not in said
    assert [*temporary.glob("samestep*")] == []  # torch makes a folder there, too
    assert started_under(temporary) == []


def wait_for(condition, process):
    """Wait until something is so, while a process runs."""
    until = time.monotonic() + 120
    while not condition():
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.02)


def started_under(place):
    """Find the living processes whose environment names a folder of ledgers in a place."""
    mark = b"SAMESTEP_RECORD=" + os.fsencode(place)
    found = []
    for each in Path("/proc").glob("[0-9]*"):
        try:
            found += [each] if mark in (each / "environ").read_bytes() else []
        except OSError:
            continue
    return found
