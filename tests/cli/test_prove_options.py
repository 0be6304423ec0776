"""The options of `samestep prove` and `record`: what is ours, what is the command's, and what is refused."""

import json

import pytest

from samestep.proof import proving
from samestep.proof.result import Proof


@pytest.fixture
def asked(monkeypatch):
    """Take down what a proof is asked for, instead of making it."""
    seen = []

    def note(order, base, wishes):
        seen.append((order, base, wishes))
        return Proof(order.command, "proved")

    monkeypatch.setattr(proving, "prove", note)
    return seen


@pytest.mark.parametrize("dashes", [[], ["--"]])
def test_options_behind_the_command_are_the_commands(asked, samestep, dashes):
    """`prove python train.py --seed 3` gives the seed to the training, with `--` and without."""
    status, _, _ = samestep("prove", "--kills", 2, *dashes, "python", "train.py", "--seed", 3, "--kills", 9, "--json")
    [(order, _, wishes)] = asked
    assert (status, wishes.kills, order.settings.seed) == (0, 2, None)
    assert order.command == ("python", "train.py", "--seed", "3", "--kills", "9", "--json")


REFUSED = {
    "no such option": (["prove", "--kils", "2", "--", "true"], "No such option"),
    "no such option of record": (["record", "--stps", "2", "--", "true"], "No such option"),
    "a quotation without an end": (["prove", "--resume-cmd", "python 'x", "--", "true"], "No closing quotation"),
    "an empty command": (["prove", "--resume-cmd", " ", "--", "true"], "--resume-cmd is not understood"),
    "no time at all": (["prove", "--timeout", "0", "--", "true"], "x>0"),
}


@pytest.mark.parametrize("mistake", REFUSED)
def test_what_is_no_option_is_refused(asked, samestep, mistake):
    """A mistake in our own options is one message and status 2, and nothing is started."""
    words, sentence = REFUSED[mistake]
    status, out, err = samestep(*words)
    assert (status, out, asked, sentence in err, "Traceback" in err) == (2, "", [], True, False)


def test_the_resume_command_is_split_as_a_shell_does(asked, samestep):
    """`--resume-cmd` is one word for us and several for the training."""
    samestep("prove", "--resume-cmd", "python 'my train.py' --resume", "--", "true")
    assert asked[0][0].resume == ["python", "my train.py", "--resume"]


def test_a_json_behind_the_dashes_does_not_change_how_an_error_is_told(samestep, monkeypatch, tmp_path):
    """`--json` of the training does not make our error an object."""
    monkeypatch.chdir(tmp_path)
    status, out, err = samestep("prove", "--", "nonsense-of-mine", "--json")
    assert (status, out.count("{"), "cannot be started" in err) == (2, 0, True)


def test_what_was_started_is_kept(samestep, monkeypatch, tmp_path):
    """The arm of a command that ran and failed stays in the directory of `--keep`: there one finds why."""
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    words = ["prove", "--keep", tmp_path / "kept", "--json", "--", "sh", "-c", "echo I cannot; exit 1"]
    status, out, _ = samestep(*words)
    assert (status, "exit status 1" in json.loads(out)["error"]["found"]) == (2, True)
    assert (tmp_path / "kept" / "reference" / "log-0.txt").read_text() == "I cannot\n"


def test_ctrl_c_is_answered_in_a_line(samestep, monkeypatch):
    """Ctrl-C ends with status 130 and one line on standard error, which says that nothing runs any more."""

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(proving, "prove", interrupted)
    assert samestep("prove", "--", "true") == (130, "", "Ended; nothing is left running.\n")
