"""What a person learns who gives `samestep prove` a training: it is exact, it is not, or it cannot be proved."""

import dataclasses
import json
import subprocess
import sys

import pytest

from samestep.errors import SamestepError
from samestep.proof import planning, proving
from samestep.proof.arms import Order
from samestep.proof.proving import Wishes, prove
from samestep.proof.recording import Settings

SOUND = """
import os
import sys

import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters())
data = torch.randn(24, 4)
epoch = 0
if os.path.exists("last.pt"):
    saved = torch.load("last.pt")
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    epoch = saved["epoch"]
    torch.set_rng_state(saved["random"])
for epoch in range(epoch, 3):
    for batch in torch.utils.data.DataLoader(data, 8, shuffle=True):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    torch.save(
        {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "epoch": epoch + 1,
            "random": torch.get_rng_state(),
        },
        "last.tmp",
    )
    os.replace("last.tmp", "last.pt")
"""
"""A training of 9 steps in 3 epochs, saved behind each."""


def without(text, *lines):
    """Leave lines out of a text in which each stands once."""
    for line in lines:
        assert text.count(line) == 1
        text = text.replace(line, "")
    return text


def test_sound(proved):
    """A training that restores everything is proved, with a control that notices one flipped bit."""
    found = proved(SOUND)
    assert (found.verdict, found.control, found.steps) == ("proved", True, 9)
    assert found.epochs == [3, 6]
    assert found.saves == [3, 6, 9]
    assert {each.kills[0].kind for each in found.trials} >= {"step", "epoch", "save", "end"}
    assert sum(each.compared for each in found.trials) > 9


def test_every_operation(proved):
    """`--at saves` kills before each operation of each save and in the middle of each file, and all are proved."""
    found = proved(SOUND, at=["saves"])
    assert [each.verdict for each in found.trials] == ["proved"] * 9  # two operations and one file, three times
    assert found.verdict == "proved"


def test_nothing_outside(proved, tmp_path):
    """The working directory is as it was, although the training writes into it."""
    proved(SOUND, at=["step:4"])
    assert [each.name for each in (tmp_path / "project").iterdir()] == ["train.py"]


def test_json(proved):
    """What is found can be written as JSON, with the fields that are promised."""
    found = json.loads(json.dumps(proved(without(SOUND, '    torch.set_rng_state(saved["random"])\n')).as_json()))
    assert found["verdict"] == "diverged"
    trial = found["trials"][0]
    assert {"kill", "resumed_from", "verdict", "first_difference", "restored", "not_restored"} <= trial.keys()
    assert trial["resumed_from"] == 3
    assert trial["first_difference"]["step"] == 3
    assert trial["first_difference"]["part"] == "batch"
    assert trial["restored"] == ["parameters", "optimizer", "learning_rate"]
    assert trial["not_restored"] == ["batch", "random.torch"]
    assert "first epoch" in trial["findings"][0]["what"]
    assert [each["part"] for each in trial["findings"]] == ["batch", "random.torch"]  # not the variable `batch`, too


def test_unsteady(proved):
    """A training that is not the same twice is unverified, with the first step and part that differ."""
    found = proved(SOUND.replace("torch.manual_seed(0)", "torch.seed()"))
    assert found.verdict == "unverified"
    assert (found.repeat.step, found.repeat.part) == (0, "parameters")
    assert "--seed" in found.reason


def test_seeded(proved):
    """`--seed` makes a proof of a training that seeds nothing; a resume then draws the same numbers once more."""
    found = proved(without(SOUND, "torch.manual_seed(0)\n"), at=["step:4"], settings=Settings(seed=1))
    assert found.verdict == "proved"


def test_cut(proved):
    """With `--steps` each process ends after so many steps, and what was made until then is compared."""
    found = proved(SOUND.replace("range(epoch, 3)", "range(epoch, 3000)"), at=["step:4"], settings=Settings(steps=8))
    assert (found.verdict, found.steps) == ("proved", 8)
    assert found.trials[0].compared == 5


def test_sparse(proved):
    """With `--every` the large parts are compared at the steps at which the reference has them."""
    found = proved(SOUND, at=["step:5"], settings=Settings(every=2))
    assert found.verdict == "proved"
    found = proved(
        without(SOUND, '    optimizer.load_state_dict(saved["optimizer"])\n'),
        at=["step:8"],
        settings=Settings(every=2),
        name="lost",
    )
    assert found.verdict == "diverged"
    assert found.trials[0].first_difference.part == "optimizer"


def test_unnoticed_control(proved, monkeypatch):
    """Where a spoiled resume is not noticed nothing is proved."""
    monkeypatch.setattr(proving, "SPOIL", "SOMETHING_ELSE")
    found = proved(SOUND, at=["step:4"])
    assert (found.verdict, found.control) == ("unverified", False)


def test_resume_command(proved):
    """A resume command that is given is the one that is started after a kill."""
    resumable = SOUND.replace('if os.path.exists("last.pt"):', 'if "--resume" in sys.argv:')
    found = proved(resumable, at=["step:4"], resume=["python", "train.py", "--resume"])
    assert found.verdict == "proved"
    assert found.trials[0].resumed_from == [3]


def test_resume_from_scratch(proved):
    """A resume command that starts anew although a checkpoint is there is found, whatever it ends with."""
    found = proved(SOUND.replace('if os.path.exists("last.pt"):', 'if "--resume" in sys.argv:'), at=["step:4"])
    assert found.verdict == "diverged"
    assert found.trials[0].verdict == "from_scratch"
    assert "step 3 was complete" in found.reason
    assert "newest checkpoint" in found.trials[0].findings[0].repair


def test_never_saved(proved):
    """A training that saves nothing starts from scratch, and that is said."""
    found = proved(SOUND.split("    torch.save(", maxsplit=1)[0], at=["step:4"])
    assert found.trials[0].verdict == "from_scratch"
    assert "saves nothing" in found.reason


def test_saved_at_the_end_only(proved):
    """A training that saves its weights at its end only is never resumed, and that is said."""
    text = SOUND.split("    torch.save(", maxsplit=1)[0] + 'torch.save(model.state_dict(), "final.pt")\n'
    found = proved(text, at=["step:4", "end"])
    assert [each.verdict for each in found.trials] == ["from_scratch", "from_scratch"]


def test_nothing_resumed(proved):
    """Where no kill came behind a checkpoint nothing was resumed, and nothing is proved."""
    found = proved(SOUND, at=["step:2", "end"])
    assert found.verdict == "unverified"
    assert "nothing was resumed" in found.reason


def test_two_phases(proved):
    """A resume in the second phase of a training never uses the optimizer of the first, and is proved."""
    phases = SOUND.replace("epoch = 0\n", "epoch = 0\nhead = torch.optim.SGD(model[2].parameters(), 0.1)\n").replace(
        "        optimizer.step()\n", "        (optimizer if epoch else head).step()\n"
    )
    found = proved(phases, at=["step:7"])
    assert (found.verdict, found.trials[0].resumed_from) == ("proved", [6])


def test_dry_forward(proved):
    """A forward before the loop, to see shapes, is no part of the first step."""
    found = proved(SOUND.replace("epoch = 0\n", "epoch = 0\nmodel(data[:2])\n"), at=["step:4"])
    assert found.verdict == "proved"


def test_counter_in_the_checkpoint(proved):
    """That a checkpoint tells how often it was resumed is no other training."""
    counted = SOUND.replace("epoch = 0\n", "epoch = starts = 0\n").replace(
        '    epoch = saved["epoch"]\n', '    epoch = saved["epoch"]\n    starts = saved["starts"] + 1\n'
    )
    found = proved(counted.replace('            "epoch": ', '            "starts": starts, "epoch": '), at=["step:4"])
    assert found.verdict == "proved"


LARGE = """
import copy
import os
import torch

torch.manual_seed(0)
model = torch.nn.Linear(600, 600, bias=False)
average = copy.deepcopy(model)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
begin = 0
if os.path.exists("last.pt"):
    saved = torch.load("last.pt")
    model.load_state_dict(saved["model"])
    average.load_state_dict(saved["average"])
    begin = saved["step"]
for step in range(begin, 8):
    optimizer.zero_grad()
    model(torch.full((1, 600), step / 8)).square().mean().backward()
    optimizer.step()
    for one, other in zip(average.parameters(), model.parameters()):
        one.data.mul_(0.5).add_(other.data, alpha=0.5)
    if step % 2:
        torch.save({"model": model.state_dict(), "average": average.state_dict(), "step": step + 1}, "last.tmp")
        os.replace("last.tmp", "last.pt")
os.remove("last.pt")
"""
"""A training with an average of 1.4 MB that is written to past PyTorch's notice, and not kept in the end."""


def test_large_average(proved):
    """A large average that is lost is missed at the first step after the resume, however it is written to."""
    assert proved(LARGE, at=["step:5"]).verdict == "proved"
    found = proved(without(LARGE, '    average.load_state_dict(saved["average"])\n'), at=["step:5"], name="lost")
    assert (found.verdict, found.trials[0].first_difference.part) == ("diverged", "copies")
    assert found.trials[0].first_difference.step == 4


def test_sorted_state(proved):
    """In which order an optimizer's state names its parts says nothing."""
    line = '    optimizer.load_state_dict(saved["optimizer"])\n'
    backwards = (
        '    for number, each in saved["optimizer"]["state"].items():\n'
        '        saved["optimizer"]["state"][number] = dict(sorted(each.items()))\n'
    )
    assert proved(SOUND.replace(line, backwards + line), at=["step:4"]).verdict == "proved"


def test_late_kill(proved, monkeypatch):
    """A kill in a write that was over before it came is told as one that came late."""
    whole = planning.Plan._within

    def beyond(plan, save, number):
        return dataclasses.replace(whole(plan, save, number), bytes=10**9)

    monkeypatch.setattr(planning.Plan, "_within", beyond)
    found = proved(SOUND, at=["save:2"])
    assert found.verdict == "proved"
    assert [each for each in found.notes if "the write was over" in each]


def test_nothing_left(proved):
    """A training that was killed behind its last save has nothing left to notice a spoiled resume by: another has."""
    done = SOUND + '\nopen("done.txt", "w").write("done")\n'
    found = proved(done, at=["save:3.3", "step:4"])
    assert (found.verdict, found.control) == ("proved", True)
    assert [each.resumed_from for each in found.trials] == [[], [3]]
    found = proved(done, at=["save:3.3"], name="alone")
    assert found.verdict == "unverified"


def test_hanging_resume(proved, monkeypatch):
    """A resume that does not end is killed after a time that follows from the reference's, and has failed."""
    monkeypatch.setattr(proving, "_LEAST_PATIENCE", 1.0)
    monkeypatch.setattr(proving, "_PATIENCE", 1.0)
    hanging = SOUND.replace('    saved = torch.load("last.pt")\n', "    import time; time.sleep(600)\n")
    found = proved(hanging, at=["step:4"])
    assert found.trials[0].verdict == "crashed"
    assert "did not end in time" in found.reason


def test_changed_original(proved, tmp_path):
    """What a program that is not Python writes through a link to a large file is said."""
    large = tmp_path / "project" / "large.bin"
    large.parent.mkdir()
    with large.open("wb") as file:
        file.truncate(70_000_000)
    found = proved(SOUND + '\nos.system("echo changed >> large.bin")\n', at=["step:4"])
    assert [each for each in found.notes if str(large) in each]


def test_idle_step(proved):
    """A step that only makes the optimizer's state, with a rate and gradients of zero, is none of the training."""
    idle = (
        "    for each in model.parameters():\n        each.grad = torch.zeros_like(each)\n"
        '    optimizer.param_groups[0]["lr"] = 0.0\n    optimizer.step()\n'
    )
    line = '    saved = torch.load("last.pt")\n'
    assert proved(SOUND.replace(line, idle + line), at=["step:4"]).verdict == "proved"


def test_counted_epochs(proved):
    """An epoch ends where the next begins, although nobody asks for the batch behind its last."""
    counted = SOUND.replace(
        "in torch.utils.data.DataLoader(data, 8, shuffle=True):",
        "in itertools.islice(torch.utils.data.DataLoader(data, 8, shuffle=True), 3):",
    ).replace("import os\n", "import itertools\nimport os\n", 1)
    assert proved(counted, at=["step:4"]).epochs == [3, 6]


def test_moved_in(proved, tmp_path):
    """A checkpoint that is written elsewhere, and moved into its place, is a save."""
    elsewhere = tmp_path / "elsewhere.tmp"
    found = proved(SOUND.replace('"last.tmp"', f'"{elsewhere}"'), at=["step:4"], jobs=1)
    assert found.saves == [3, 6, 9]
    assert found.verdict == "proved"


def test_harmless_variables(proved):
    """A counter that is not restored, and from which nothing follows, is named beside the proof."""
    counting = SOUND.replace("epoch = 0\n", "epoch = seen = 0\n").replace(
        "        optimizer.step()\n", "        optimizer.step()\n        seen += 1\n"
    )
    found = proved(counting, at=["step:4"])
    assert found.verdict == "proved"
    assert "seen" in found.trials[0].explanation


def test_other_length(proved):
    """Where the repeated training is longer, that is what differs, and no generator that nobody uses."""
    found = proved(SOUND.replace("range(epoch, 3)", 'range(epoch, 3 + ("repeat" in os.getcwd()))'))
    assert (found.verdict, found.repeat.part) == ("unverified", "steps")


@pytest.mark.slow
def test_second_process(proved, tmp_path):
    """A kill in the second of two processes that a command starts one after the other hits that one."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "stage.py").write_text(SOUND.replace('"last.', 'sys.argv[1] + ".'))
    stages = "import subprocess, sys\nfor each in 'one', 'two':\n"
    found = proved(stages + "    subprocess.run([sys.executable, 'stage.py', each], check=True)\n", at=["step:13"])
    assert (found.verdict, found.steps) == ("proved", 18)
    assert found.trials[0].kills[0].process == 1
    assert found.trials[0].resumed_from == [12]


def test_missing_output(proved):
    """A checkpoint that is there without the kill, and not after it, is missed."""
    best = SOUND.replace(
        "    torch.save(\n", '    if epoch == 0: torch.save(model.state_dict(), "best.pt")\n    torch.save(\n'
    )
    dropped = best.replace(
        '    saved = torch.load("last.pt")\n', '    saved = torch.load("last.pt")\n    os.remove("best.pt")\n'
    )
    found = proved(dropped, at=["step:4"])
    assert (found.verdict, found.trials[0].first_difference.part) == ("diverged", "files")
    assert "best.pt is missing" in found.trials[0].first_difference.detail


def test_crash(proved):
    """A resume that fails is told with the last line that it printed."""
    found = proved(SOUND.replace('saved["epoch"]', 'saved["iteration"]'), at=["step:4"])
    assert (found.verdict, found.trials[0].verdict) == ("diverged", "crashed")
    assert "KeyError: 'iteration'" in found.reason
    assert "os.replace" in found.trials[0].findings[0].repair


def test_goes_on(proved):
    """A finished training that goes on when it is started again is found."""
    found = proved(SOUND.replace("range(epoch, 3)", "range(epoch, epoch + 3)"), at=["end"])
    assert found.trials[0].verdict == "repeated_steps"
    assert "9 steps more" in found.reason


def test_begins_anew(proved):
    """A finished training may begin anew when it is started again."""
    found = proved(SOUND + '\nos.remove("last.pt")\n', at=["step:4", "end"])
    assert found.verdict == "proved"


def test_own_checkpoint(proved, tmp_path):
    """Where the undisturbed training goes on from a checkpoint of the user's, that is said."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "train.py").write_text(SOUND.replace("range(epoch, 3)", "range(epoch, 1)"))
    subprocess.run([sys.executable, "train.py"], cwd=project, check=True)
    found = proved(SOUND, at=["step:2"])
    assert found.steps == 6
    assert any("--leave-out" in each for each in found.notes)
    assert proved(SOUND, at=["step:4"], left_out=["*.pt"], name="left").notes == []


MISTAKES = {
    "it fails": ("raise ValueError('no data')", {}, "does not come to its end", "ValueError: no data"),
    "no training": ("import torch", {}, "No optimizer made a step", None),
    "no torch": ("print(1)", {}, "No optimizer made a step", None),
    "too short": (SOUND.split("    for batch", maxsplit=1)[0] + "    optimizer.step(); break", {}, "too short", None),
    "{dir} is ignored": (SOUND, {"command": ["python", "train.py", "{dir}"]}, "{dir}", None),
    "no such moment": (SOUND, {"at": ["step:9"]}, "no such moment", "9"),
    "no such epoch": (SOUND, {"at": ["epoch:7"]}, "no such moment", "7"),
    "no such operation": (SOUND, {"at": ["save:1.3"]}, "no such moment", "3"),
    "no moment": (SOUND, {"at": ["tomorrow"]}, "not understood", "tomorrow"),
    "no number": (SOUND, {"at": ["step"]}, "number", "step"),
    "outside": (SOUND.replace('"last.tmp"', '"/proc/x"'), {}, "does not come to its end", None),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes(mistake, proved):
    """What a person gets wrong is told in one sentence."""
    text, options, message, found = MISTAKES[mistake]
    with pytest.raises(SamestepError) as raised:
        proved(text, **options)
    assert message in raised.value.message
    if found is not None:
        assert found in str(raised.value)


def test_no_command(tmp_path):
    """A command that is not there is told in one sentence."""
    project = tmp_path / "project"
    project.mkdir()
    with pytest.raises(SamestepError, match="cannot be started"):
        prove(Order(["no-such-command"], project), tmp_path / "arms", Wishes())


def test_original_output(proved, tmp_path):
    """A training that would overwrite what the user has, by an absolute path, is stopped before it does."""
    kept = tmp_path / "project" / "last.pt"
    kept.parent.mkdir()
    kept.write_bytes(b"mine")
    with pytest.raises(SamestepError, match="does not come to its end") as raised:
        proved(SOUND.replace('"last.tmp"', f'"{kept}"').replace('os.path.exists("last.pt")', "False"))
    assert kept.read_bytes() == b"mine"
    assert "{dir}" in str(raised.value)
