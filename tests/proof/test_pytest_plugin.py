"""The fixture `samestep_prove`: a test that uses it proves a training, and says what is lost where it fails."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import samestep
from samestep.pytest_plugin import Prove, _launch, _words

pytest_plugins = ["pytester"]

ROOT = Path(__file__).resolve().parents[2]
SOURCE = Path(samestep.__file__).parents[1]

TRAINING = """
import os
import sys

import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), 0.01)
begin = 0
if os.path.exists("last.pt"):
    saved = torch.load("last.pt")
    model.load_state_dict(saved["model"])
    if "forget" not in sys.argv:
        optimizer.load_state_dict(saved["optimizer"])
    torch.set_rng_state(saved["random"])
    begin = saved["step"]
for step in range(begin, 6):
    loss = model(torch.full((2, 4), float(step))).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state | {"random": torch.get_rng_state(), "step": step + 1}, "draft.pt")
    os.replace("draft.pt", "last.pt")
"""


@pytest.fixture
def project(pytester, monkeypatch):
    """Give a project with a training, and a pytest that knows our plugin alone."""
    folder = pytester.mkdir("project")
    (folder / "train.py").write_text(TRAINING)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # it is named, wherever it is installed besides
    monkeypatch.setenv("PYTHONPATH", str(SOURCE))
    monkeypatch.chdir(folder)
    return folder


def outcome_of(pytester, folder, body):
    """Run a test file in the project."""
    (folder / "test_training.py").write_text(body)
    return pytester.runpytest_subprocess("-p", "samestep.pytest_plugin", "-p", "no:cacheprovider", "test_training.py")


def test_a_training_is_proved_and_another_one_refuted(project, pytester):
    """The test of an exact resume passes and gets the proof; that of a lossy one says what is lost, and shows it."""
    body = """
        def test_exact(samestep_prove, tmp_path):
            found = samestep_prove("python train.py", at="step:3")
            assert found.verdict == "proved" and found.steps == 6
            assert not list(tmp_path.iterdir())

        def test_forgetful(samestep_prove):
            samestep_prove(["python", "train.py", "forget"], at=["step:3"], jobs=2)
    """
    done = outcome_of(pytester, project, "\n".join(line[8:] for line in body.splitlines()))
    done.assert_outcomes(passed=1, failed=1)
    text = done.stdout.str()
    for said in ("Diverged: after a kill this is another training.", "killed after step 3", "optimizer first"):
        assert said in text, text
    assert "save optimizer.state_dict() and load it" in text
    assert "in _prove" not in text, "no line of ours is shown"
    page = Path(text.split("The page of this proof: ")[1].splitlines()[0])
    assert "Diverged" in page.read_text(encoding="utf-8")
    assert sorted(each.name for each in project.iterdir() if each.name != "__pycache__") == [
        "test_training.py",
        "train.py",
    ]


def test_a_command_that_cannot_be_proved_fails_in_a_sentence(project, pytester):
    """A command that fails by itself fails the test with its own last words, without a traceback of ours."""
    (project / "train.py").write_text("raise SystemExit('no such data set')")
    done = outcome_of(pytester, project, 'def test_it(samestep_prove):\n    samestep_prove("python train.py")\n')
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(["*does not come to its end by itself*", "*no such data set*", "*the trainings lie in *"])
    assert "Traceback" not in done.stdout.str()


def test_the_plugin_is_found_and_costs_no_torch(tmp_path):
    """An installed samestep gives pytest the fixture by its entry point, and pytest starts without torch."""
    points = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"]["pytest11"]
    installed = tmp_path / "site" / "samestep_of_a_test-1.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: samestep-of-a-test\nVersion: 1\n")
    entries = "".join(f"{name} = {module}\n" for name, module in points.items())
    (installed / "entry_points.txt").write_text(f"[pytest11]\n{entries}")
    (tmp_path / "test_it.py").write_text(
        "import sys\n\ndef test_it(samestep_prove):\n"
        "    assert not {'torch', 'numpy', 'samestep.proof.proving'} & {*sys.modules}\n"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment["PYTHONPATH"] = os.pathsep.join([str(installed.parent), str(SOURCE)])
    words = [sys.executable, "-W", "error", "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py"]
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_command_is_split_as_a_shell_does():
    """A text is split at spaces outside quotes; `python` alone is the interpreter of the tests."""
    assert _words("python train.py --name 'a b'") == [sys.executable, "train.py", "--name", "a b"]
    assert _words(["torchrun", Path("train.py")]) == ["torchrun", "train.py"]


def test_coverage_does_not_follow_into_trainings(tmp_path):
    """Variables by which a measurement or pytest follows into processes are not in a training's environment."""
    given = {"COV_CORE_SOURCE": "a", "COVERAGE_PROCESS_START": "b", "PYTEST_CURRENT_TEST": "c", "KEPT": "d"}
    with (tmp_path / "out").open("wb") as out:
        process = _launch([sys.executable, "-c", "import os; print(*sorted(os.environ))"], env=given, stdout=out)
        assert process.wait() == 0
    names = (tmp_path / "out").read_text().split()
    assert {*given} & {*names} == {"KEPT"}


def test_the_fixture_takes_what_the_command_takes():
    """Each option of `samestep prove` that says how is an argument of the fixture, by the same name."""
    from samestep.cli.prove import command

    options = {each.name for each in command.params} - {"as_json", "html", "keep"}
    assert {*Prove.__call__.__annotations__} - {"return", "cwd"} == options
