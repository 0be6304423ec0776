"""Recording a command: nothing of what it computes changes, and each step is noted, whoever starts the processes."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import pytest

from samestep.cli.group import run
from samestep.errors import SamestepError
from samestep.proof.comparing import differing, first_difference
from samestep.proof.ledger import PARTS, find_ledgers
from samestep.proof.recording import ledgers_of

TRAINED = Path(__file__).with_name("trained.py")
STEPS = 12


def recorded(out, *words, options=(), status=0):
    """Record a command in a process of its own, and give its ledgers and what it printed."""
    command = [sys.executable, "-m", "samestep", "record", "--out", out, *options, "--", *map(str, words)]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
    return find_ledgers(out), done.stdout


def script(tmp_path, text):
    """Write a script and give the words that run it."""
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(text))
    return sys.executable, path


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """Record the training, undisturbed and spoiled in each of the ways, in one process one after the other."""
    spoils = ["", "", *SPOILED]
    (ledger,), printed = recorded(
        tmp_path_factory.mktemp("reference") / "ledger", sys.executable, TRAINED, "--spoil", *spoils
    )
    alike = [replace(each, number=each.number % STEPS, optimizer=0) for each in ledger.steps]
    steps = [alike[begin : begin + STEPS] for begin in range(0, len(alike), STEPS)]
    assert [len(each) for each in steps] == [STEPS] * len(spoils)
    return dict(zip(["plain", "again", *SPOILED], steps, strict=True)), printed


SPOILED = [
    "inputs",
    "parameters",
    "buffers",
    "optimizer",
    "learning_rate",
    "scaler",
    "random.torch",
    "random.numpy",
    "random.python",
    "loss",
    "gradients",
    "augmentation",
]


# --- inert ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [(), ("--every", 5), ("--workers", 2), ("--workers", 2, "--start", "spawn"), ("--optimizer", "LBFGS")],
    ids=lambda options: " ".join(map(str, options)) or "as it is",
)
def test_a_recorded_training_ends_with_the_same_bits(options, tmp_path):
    """With and without a recorder a training ends with the same weights, also with workers and inside step(closure)."""
    own = [each for each in options if each not in {"--every", 5}]
    without = subprocess.run(
        [sys.executable, TRAINED, *map(str, own)], capture_output=True, text=True, check=True
    ).stdout
    ledgers, printed = recorded(
        tmp_path / "ledger", sys.executable, TRAINED, *own, options=[each for each in options if each not in own]
    )
    assert printed.startswith(without)
    assert [len(each.steps) for each in ledgers] == [STEPS]


ODD = {
    # what: steps, steps with a batch, with inputs, with buffers
    "adversaries": (12, 6, 12, 0),
    "recomputed": (6, 6, 6, 0),
    "accumulated": (2, 2, 2, 0),
    "fetched_ahead": (6, 5, 6, 0),  # the last one has nothing to fetch
    "without_modules": (5, 0, 0, 0),
    "averaged": (4, 0, 4, 0),
    "frozen": (6, 6, 6, 6),
    "compiled": (6, 6, 6, 0),
}


def test_trainings_of_unusual_shapes_are_recorded_and_not_changed(tmp_path):
    """Several optimizers, recomputation, compilation, no modules at all: the same bits, and every step is noted."""
    words = [sys.executable, TRAINED.with_name("odd_trainings.py"), *ODD]
    without = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    (ledger,), printed = recorded(tmp_path / "ledger", *words)
    assert printed.startswith(without)
    begin = 0
    for name, (steps, *expected) in ODD.items():
        own = ledger.steps[begin : begin + steps]
        begin += steps
        counted = [sum(part in each.parts for each in own) for part in ("batch", "inputs", "buffers")]
        assert (name, counted) == (name, expected)
        assert all({"parameters", "gradients", "learning_rate", "loss"} <= each.parts.keys() for each in own)
    assert begin == len(ledger.steps)


# --- power ----------------------------------------------------------------------------------------------


def test_the_same_training_gives_the_same_ledger(reference):
    """Two trainings of one process that begin alike are equal in every part of every step."""
    steps, _ = reference
    assert first_difference(steps["plain"], steps["again"]) is None
    assert {part for each in steps["plain"] for part in each.parts} == {*PARTS} - {"random.cuda", "copies"}


@pytest.mark.parametrize("spoil", SPOILED)
def test_what_is_changed_in_a_step_is_named(spoil, reference):
    """One changed bit, swapped elements, one more draw: the first difference is in that step and in that part."""
    steps, _ = reference
    found = first_difference(steps["plain"], steps[spoil])
    assert (found.step, found.part) == (3, "batch" if spoil == "augmentation" else spoil)


def test_details_name_tensors_samples_and_losses(reference):
    """A difference names the tensors, says whether the samples are others, and gives both losses."""
    steps, _ = reference
    details = {spoil: first_difference(steps["plain"], steps[spoil]).detail for spoil in SPOILED}
    assert details["parameters"] == "0.weight"
    assert details["buffers"] == "1.running_mean"
    assert details["optimizer"] == "4.weight.exp_avg_sq"
    assert details["gradients"] == "4.weight"
    assert details["augmentation"].startswith("the same samples [")
    left, right = (float(each.strip("[]")) for each in details["loss"].split(" and "))
    assert right - left == pytest.approx(4, rel=1e-3)  # the loss is scaled by 4


def test_batches_of_an_evaluation_are_no_batches_of_a_step(reference):
    """What is evaluated between two epochs is not in the next step: its batch is that of the first step's size."""
    steps, _ = reference
    assert all(len(each.notes["indices"]) == 1 for each in steps["plain"])


# --- which processes ------------------------------------------------------------------------------------


def test_a_torch_that_is_only_looked_for_is_recorded_once_it_is_imported(tmp_path):
    """`find_spec("torch")` before the import, as transformers does it, does not keep the recorder out."""
    words = script(
        tmp_path,
        """
        import importlib.util, inspect
        assert importlib.util.find_spec("torch").loader is not None
        assert "torch" not in __import__("sys").modules
        import torch
        assert type(torch.__spec__.loader).__module__ == "_frozen_importlib_external"
        assert "def typename" in inspect.getsource(torch)
        p = torch.nn.Parameter(torch.ones(2))
        o = torch.optim.SGD([p], lr=1.0)
        for _ in range(3):
            p.grad = torch.ones(2)
            o.step()
        """,
    )
    (ledger,), _ = recorded(tmp_path / "ledger", *words)
    assert len(ledger.steps) == 3
    assert list(ledger.steps[0].tensors["parameters"]) == ["group 0, parameter 0"]


def test_processes_of_a_shell_are_recorded_one_by_one(tmp_path):
    """A command that starts several trainings, one after the other, leaves a ledger of each."""
    line = f"{sys.executable} {TRAINED} && {sys.executable} {TRAINED}"
    ledgers, _ = recorded(tmp_path / "ledger", "sh", "-c", line)
    assert [len(each.steps) for each in ledgers] == [STEPS, STEPS]
    assert first_difference(ledgers[0].steps, ledgers[1].steps) is None


def test_ranks_have_ledgers_of_their_own(tmp_path):
    """Under torchrun each rank is recorded under its number, and the agent is not."""
    words = script(
        tmp_path,
        """
        import torch, torch.distributed as dist
        dist.init_process_group("gloo")
        torch.manual_seed(0)
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(4):
            optimizer.zero_grad()
            model(torch.ones(2, 4) * (dist.get_rank() + step)).sum().backward()
            optimizer.step()
        dist.destroy_process_group()
        """,
    )
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    ledgers, _ = recorded(tmp_path / "ledger", *torchrun, words[1], options=["--seed", 0])
    assert [(each.rank, len(each.steps)) for each in ledgers] == [(0, 4), (1, 4)]
    assert differing(ledgers[0].steps[0], ledgers[1].steps[0]) == ["inputs", "loss"]  # the gradients are averaged


def test_another_sitecustomize_still_runs(tmp_path):
    """A `sitecustomize` of the user's environment runs as without the recorder."""
    (tmp_path / "sitecustomize.py").write_text("import os; os.environ['FROM_SITE'] = 'yes'")
    words = script(
        tmp_path,
        """
        import os, torch
        assert os.environ["FROM_SITE"] == "yes"
        p = torch.nn.Parameter(torch.ones(2))
        p.grad = torch.ones(2)
        torch.optim.SGD([p], lr=1.0).step()
        """,
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", "samestep", "record", "--out", str(tmp_path / "ledger"), "--", *map(str, words)]
    subprocess.run(command, env=environment, check=True)
    assert [len(each.steps) for each in find_ledgers(tmp_path / "ledger")] == [1]


# --- options and mistakes ---------------------------------------------------------------------------------


def test_a_training_ends_after_the_steps_that_were_asked_for(tmp_path):
    """`--steps 3` ends the process behind its third step, whatever the script would go on to do."""
    (ledger,), printed = recorded(tmp_path / "ledger", sys.executable, TRAINED, options=["--steps", 3])
    assert len(ledger.steps) == 3
    assert "3 steps in" in printed


def test_a_seed_makes_a_script_that_seeds_nothing_repeat_itself(tmp_path):
    """With `--seed` two trainings of a script without a seed are equal; with another seed they are not."""
    words = script(
        tmp_path,
        """
        import random, numpy, torch
        p = torch.nn.Parameter(torch.rand(2) + numpy.random.random() + random.random())
        p.grad = torch.rand(2)
        torch.optim.SGD([p], lr=1.0).step()
        """,
    )
    ledgers = [
        recorded(tmp_path / name, *words, options=["--seed", seed])[0] for name, seed in (("a", 1), ("b", 1), ("c", 2))
    ]
    assert first_difference(ledgers[0][0].steps, ledgers[1][0].steps) is None
    assert first_difference(ledgers[0][0].steps, ledgers[2][0].steps).part == "parameters"


MISTAKES = {
    "no such command": (["nonsense-of-mine"], "The command cannot be started."),
    "no training": (["true"], "No optimizer made a step, so nothing was recorded."),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_command_that_is_no_training_is_told_in_one_sentence(mistake, tmp_path, capsys):
    """What is no command, or no training, is said in one sentence, with exit status 2."""
    words, sentence = MISTAKES[mistake]
    assert run(["record", "--json", "--out", str(tmp_path / "ledger"), "--", *words]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["message"] == sentence


def test_what_records_nothing_is_named_whole(tmp_path):
    """The command that made no step is shown with its arguments, and that it may be finished already."""
    with pytest.raises(SamestepError, match="No optimizer made a step") as found:
        ledgers_of(tmp_path, ["python", "my train.py", "--out", "x"])
    assert found.value.path == "python 'my train.py' --out x"
    assert "finished already" in found.value.hint


def test_a_ledger_is_never_written_over_another(tmp_path, capsys):
    """A folder that is not empty is refused before the command starts."""
    (tmp_path / "kept").touch()
    assert run(["record", "--out", str(tmp_path), "--", "touch", str(tmp_path / "started")]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert not (tmp_path / "started").exists()


def test_the_status_is_that_of_the_command(tmp_path):
    """A training that fails behind its steps ends the recording with its own status."""
    words = script(
        tmp_path,
        """
        import sys, torch
        p = torch.nn.Parameter(torch.ones(2))
        p.grad = torch.ones(2)
        torch.optim.SGD([p], lr=1.0).step()
        sys.exit(7)
        """,
    )
    recorded(tmp_path / "ledger", *words, status=7)


def test_an_interrupt_reaches_the_command_once(tmp_path):
    """Ctrl-C, which a terminal sends to the whole group, lets the command end by itself: it gets no second one."""
    words = script(
        tmp_path,
        f"""
        import pathlib, signal, sys, time, torch
        interrupts = []
        signal.signal(signal.SIGINT, lambda *_: interrupts.append(1))
        p = torch.nn.Parameter(torch.ones(2))
        p.grad = torch.ones(2)
        torch.optim.SGD([p], lr=1.0).step()
        pathlib.Path({str(tmp_path / "ready")!r}).touch()
        while not interrupts:
            time.sleep(0.01)
        time.sleep(0.5)  # what is tested: that no second one comes
        sys.exit(40 + len(interrupts))
        """,
    )
    command = [sys.executable, "-m", "samestep", "record", "--out", str(tmp_path / "ledger"), "--", *map(str, words)]
    process = subprocess.Popen(command, start_new_session=True)
    try:
        while not (tmp_path / "ready").exists():
            assert process.poll() is None
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(60) == 41
    finally:
        process.kill()
        process.wait()
