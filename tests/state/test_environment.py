"""Claims about the environment: it is plain JSON, and what changed since is graded."""

import importlib
import json
import os
import subprocess
import sys

import torch

from samestep.state.environment import drift, environment


def test_the_environment_is_plain_json_and_equal_to_itself():
    """The record survives JSON, and nothing has drifted from one moment to the next."""
    here = environment()
    assert json.loads(json.dumps(here)) == here
    assert drift(here, environment()) == []


def test_drift_is_graded_gravest_first():
    """Another device is sure to change bits, another thread count may, another host is not even mentioned."""
    now = environment()
    saved = json.loads(json.dumps(now))
    saved["machine"]["host"] = "elsewhere"
    saved["settings"]["threads"] = 128
    saved["settings"]["matmul_precision"] = "medium"
    saved["versions"]["samestep"] = "0.0.1"
    saved["devices"]["names"] = ["Some GPU"]
    del saved["versions"]["numpy"]
    found = [(each.name, each.grade) for each in drift(saved, now)]
    assert dict(found) == {
        "devices.names": "will change bits",
        "settings.matmul_precision": "will change bits",
        "versions.numpy": "may change bits",
        "settings.threads": "may change bits",
        "versions.samestep": "harmless",
    }
    assert [grade for _, grade in found] == sorted((grade for _, grade in found), reverse=True)


def test_settings_are_those_of_the_process():
    """A changed setting shows as drift."""
    before = environment()
    torch.use_deterministic_algorithms(mode=True)
    try:
        found = drift(before, environment())
    finally:
        torch.use_deterministic_algorithms(mode=False)
    assert [(each.name, each.saved, each.now) for each in found] == [("settings.deterministic", False, True)]


def test_precision_set_by_the_newer_names_is_recorded():
    """Reading does not fail in a process that sets float32 precision by torch's newer names."""
    code = (
        "import torch\ntorch.backends.fp32_precision, torch.backends.cuda.matmul.fp32_precision = 'tf32', 'ieee'\n"
        "from samestep.state.environment import environment; print(environment()['settings'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert "ieee" in done.stdout or "False" in done.stdout


def test_the_code_is_recorded(tmp_path):
    """Commit, uncommitted changes and the script's bytes are told apart, with git and without."""
    script = tmp_path / "train.py"
    lines = ("import json", "from samestep.state.source import source", "print(json.dumps(source()))")
    script.write_text("\n".join(lines))

    def record(**environ):
        done = subprocess.run(
            [sys.executable, script], capture_output=True, check=True, env={**os.environ, **environ}, text=True
        )
        return json.loads(done.stdout)

    def git(*arguments):
        who = ("-c", "user.name=x", "-c", "user.email=x@example.com")
        subprocess.run(["git", *who, *arguments], cwd=tmp_path, check=True, capture_output=True)

    alone = record(PATH="")
    assert alone["commit"] is None
    assert len(alone["script"]) == 32
    git("init")
    git("add", ".")
    git("commit", "-m", "first")
    clean = record()
    assert (len(clean["commit"]), clean["changes"], clean["script"]) == (40, None, alone["script"])
    script.write_text(script.read_text() + "  # changed")
    dirty = record()
    assert dirty["commit"] == clean["commit"]
    assert dirty["changes"] is not None
    assert dirty["script"] != clean["script"]


def test_another_helper_module_is_named(tmp_path, monkeypatch):
    """A module of the user's whose file has changed is named; one that only one of the two has loaded is not."""
    helper = tmp_path / "own_helper_module.py"
    helper.write_text("SIZE = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("own_helper_module")
    before = environment()
    assert "own_helper_module" in before["modules"]
    assert not any(name.partition(".")[0] in {"torch", "numpy", "json", "samestep"} for name in before["modules"])
    helper.write_text("SIZE = 2\n")
    assert [(each.name, each.grade) for each in drift(before, environment())] == [
        ("modules.own_helper_module", "may change bits")
    ]
    monkeypatch.delitem(sys.modules, "own_helper_module")
    assert drift(before, environment()) == []
