"""The report card says what the proofs found, and nothing that they did not."""

import importlib.util
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def load_card():
    """Load the script, which is no part of the package."""
    spec = importlib.util.spec_from_file_location("report_card", ROOT / "docs" / "report_card.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


report_card = load_card()
PARTS = ["parameters", "optimizer", "learning_rate"]


def trial(kind, at, verdict="proved", resumed_from=21, **others):
    """Give a trial as `prove --json` does."""
    found = {"kill": {"kind": kind, "at": at, "rank": 0}, "verdict": verdict, "resumed_from": resumed_from}
    return found | {"first_difference": None, "restored": [], "not_restored": [], "explanation": ""} | others


def diverged(kind, at, part="batch"):
    """Give a trial that went wrong."""
    return trial(
        kind,
        at,
        "diverged",
        first_difference={"step": 21, "part": part, "detail": "other samples: [1, 2] and [3, 4]", "parts": [part]},
        restored=PARTS,
        not_restored=[part, "random.torch"],
    )


def proof(command, *trials, verdict="diverged", **others):
    """Give a proof as `prove --json` does."""
    return {
        "verdict": verdict,
        "reason": "",
        "command": ["python", *command],
        "steps": 42,
        "trials": list(trials),
    } | others


def write(folder, **proofs):
    """Write proofs as the script keeps them."""
    for name, found in proofs.items():
        (folder / f"{name}.json").write_text(json.dumps(found))
    about = {
        "date": "2026-11-30",
        "machine": "a machine, 2 cores",
        "versions": {"torch": "2.13.0", "numpy": "2.4.6"},
    }
    (folder / "about.json").write_text(json.dumps(about))


def card(folder):
    """Make the report and read it."""
    report_card.main([str(folder), "--out", str(folder / "card.md")])
    return (folder / "card.md").read_text()


def row(text, script):
    """Find a script's row in the table."""
    [line] = [each for each in text.splitlines() if each.startswith(f"| `{script}`")]
    return [each.strip() for each in line.strip("| ").split(" | ")]


def test_a_row_tells_each_kind_of_kill_with_verdict_and_cause(tmp_path):
    """A kind of kill that left the training as it was is counted; of the others fault and part are named."""
    write(
        tmp_path,
        lightning_trainer=proof(
            ["lightning_trainer.py"], diverged("step", 24), diverged("step", 29), trial("epoch", 28), trial("save", 21)
        ),
    )
    text = card(tmp_path)
    assert "| script | verdict | between steps | at an epoch's end | in a save |" in text
    assert row(text, "lightning_trainer.py") == [
        "`lightning_trainer.py`",
        "diverged",
        "✗ 2\u00d7 another training: `batch`",
        "✔ 1",
        "✔ 1",
    ]


def test_a_proved_script_is_said_to_be_proved(tmp_path):
    """A proof without a fault says how many kills it survived, and names no fault."""
    write(
        tmp_path,
        samestep=proof(["samestep_plain.py", "--noise"], trial("step", 24), trial("end", 42), verdict="proved"),
    )
    text = card(tmp_path)
    assert row(text, "samestep_plain.py --noise") == ["`samestep_plain.py --noise`", "**proved**", "✔ 1", "✔ 1"]
    assert "Killed at 2 moments, each later step is the same bit for bit." in text
    assert "✗" not in "".join(line for line in text.splitlines() if line.startswith("| `"))


def test_the_sentence_is_made_from_what_was_found(tmp_path):
    """The explanation names the kill, where it went on, what came back, what did not, and what differs first."""
    write(tmp_path, lightning=proof(["lightning_trainer.py"], diverged("step", 24)))
    assert (
        "- Killed after step 24, it went on from step 21, with the right `parameters`, `optimizer` and "
        "`learning_rate`, but not the right `batch` and `random.torch`; from step 21 on it differs, first in `batch` "
        "(other samples: [1, 2] and [3, 4])." in card(tmp_path)
    )


def test_what_the_proof_says_of_a_part_is_taken_over(tmp_path):
    """Where the proof explains the part that differs first, its words stand in the sentence, without the samples."""
    what = "other samples: the order of the first epoch again ([[1, 2] instead of [[3, 4])"
    found = diverged("step", 24) | {"findings": [{"part": "batch", "what": what, "repair": "", "with_samestep": ""}]}
    write(tmp_path, lightning=proof(["lightning_trainer.py"], found))
    assert "first in `batch` (other samples: the order of the first epoch again)." in card(tmp_path)


def test_a_fault_that_recurs_is_explained_once(tmp_path):
    """Kills with one fault share one sentence, which counts them; the exact ones are counted too."""
    trials = [diverged("step", step) for step in (22, 23, 24)] + [trial("epoch", 28)]
    write(tmp_path, lightning=proof(["lightning_trainer.py"], *trials))
    text = card(tmp_path)
    assert text.count("from step 21 on it differs") == 1
    assert "2 more of this kind." in text
    assert "One other kill changed nothing." in text


def test_a_resume_that_crashes_is_told_with_its_reason(tmp_path):
    """A crash after a kill in a save is counted apart from the kills that were survived."""
    kill = {"kind": "save", "at": 14, "rank": 0, "what": "in the middle of writing model.pt"}
    crashed = trial("save", 14, "crashed", None, explanation="It ended with status 1: a | b", kill=kill)
    write(tmp_path, plain=proof(["plain_recipe.py"], crashed, trial("save", 14)))
    text = card(tmp_path)
    assert row(text, "plain_recipe.py")[2] == "✔ 1<br>✗ 1\u00d7 crashes"
    assert "Killed in the save after step 14 (in the middle of writing model.pt), it cannot go on: It ended" in text
    assert "a ¦ b" in text


def test_a_script_that_is_not_the_same_twice_is_told_as_unverified(tmp_path):
    """Without trials the reason stands for them, and the part that differs without a kill is named."""
    unverified = proof(
        ["x.py"], verdict="unverified", reason="It differs when nobody kills it.", repeat={"step": 3, "part": "batch"}
    )
    write(tmp_path, x=unverified)
    text = card(tmp_path)
    assert row(text, "x.py") == ["`x.py`", "unverified: `batch` differs without a kill"]
    assert "- It differs when nobody kills it." in text


def test_a_kill_that_never_came_counts_for_nothing(tmp_path):
    """A trial that ended before its kill is in no cell."""
    trials = [trial("step", 24), trial("random", 30, "not_killed")]
    write(tmp_path, x=proof(["x.py"], *trials, verdict="proved"))
    assert row(card(tmp_path), "x.py")[2:] == ["✔ 1", "\u2013"]


def test_the_card_tells_where_and_when_it_was_made(tmp_path):
    """Date, machine, versions and command are in it."""
    write(tmp_path, x=proof(["x.py"], trial("step", 24), verdict="proved"))
    text = card(tmp_path)
    assert "- Date: 2026-11-30" in text
    assert "- Machine: a machine, 2 cores" in text
    assert "- Versions: torch 2.13.0, numpy 2.4.6" in text
    assert "--at step:24" in text


def test_cases_name_scripts_that_are_there():
    """Each case of the report card is a script of examples/peers with a docstring that names the page it follows."""
    for case in report_card.CASES:
        assert "Follows " in report_card.description(case.split()[0]) or case.startswith("plain_random_state")
    assert len({report_card.name_of(case) for case in report_card.CASES}) == len(report_card.CASES)


@pytest.mark.parametrize("script", sorted((ROOT / "examples" / "peers").glob("*.py")), ids=lambda path: path.name)
def test_every_peer_is_in_the_report_card(script):
    """No script of examples/peers is left out of the report card."""
    assert script.name == "digits_task.py" or any(case.startswith(script.name) for case in report_card.CASES)
