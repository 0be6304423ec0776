"""The page of a proof: it says what was found, holds what others named harmlessly, and needs nothing besides."""

import json
import re
import sys
from html.parser import HTMLParser

import pytest

from samestep.cli.group import run
from samestep.errors import SamestepError
from samestep.proof.comparing import Difference
from samestep.proof.diagnosis import Finding
from samestep.proof.page import page, require_writable, write_page
from samestep.proof.planning import Kill
from samestep.proof.result import DIVERGED, PROVED, UNVERIFIED, Proof, TrialResult
from samestep.proof.strips import MOST_CELLS, processes_of

LOST = Finding("random.torch", "as at the start of the training", "save torch.get_rng_state()", "run.epochs(n)")


def failed(**changes):
    """Give a trial that differs from step 7 on."""
    first = Difference(7, "random.torch", "", ("random.torch", "loss"))
    values = {
        "kills": (Kill("step", 9),),
        "verdict": "diverged",
        "resumed_from": [5],
        "first_difference": first,
        "restored": ["parameters", "optimizer"],
        "not_restored": ["random.torch"],
        "harmless": ["random.python"],
        "findings": [LOST],
        "compared": 15,
        "steps": [9, 15],
    }
    return TrialResult(**values | changes)


def sound(**changes):
    """Give a trial that is the same."""
    values = {"kills": (Kill("step", 9),), "verdict": PROVED, "resumed_from": [5], "compared": 15, "steps": [9, 15]}
    return TrialResult(**values | changes)


def proof(*trials, verdict=DIVERGED, **changes):
    """Give a proof as JSON."""
    values = {"steps": 20, "epochs": [10], "saves": [5, 15], "masked": ["random.numpy"], "seconds": 12.3}
    values |= {"begun": "2026-10-12T09:14:03+00:00", "versions": {"python": "3.11", "torch": "2.13.0"}}
    found = Proof(["python", "train.py"], verdict, "It is so.", trials=list(trials), **values | changes)
    return json.loads(json.dumps(found.as_json()))


class Reader(HTMLParser):
    """Reads a page: the tags that are open, what it refers to, its text."""

    def __init__(self, source):
        super().__init__()
        self.open, self.names, self.links, self.text = [], [], [], ""
        self.feed(source)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.names.append(tag)
        self.links += [value for name, value in attributes if name in {"src", "href", "xlink:href", "action"}]
        assert not [name for name, _ in attributes if name.startswith("on")]
        if tag not in {"meta", "br"}:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data if self.open and self.open[-1] != "style" else ""


def read(described):
    """Read a proof's page as a browser does."""
    reader = Reader(page(described))
    assert reader.open == []
    return reader


# --- what it says ---------------------------------------------------------------------------------------


def test_the_page_says_what_was_lost_and_how_to_repair_it():
    """Verdict, command, versions, kill, first difference, restored parts, lost ones and repairs stand on the page."""
    text = read(proof(failed())).text
    for said in (
        "Diverged: after a kill this is another training.",
        "It is so.",
        "python train.py",
        "2026-10-12 09:14:03 UTC",
        "torch 2.13.0",
        "1 (after step 10)",
        "2 (after step 5, 15)",
        "Killed after step 9: diverged",
        "▲ step 7: random.torch",
        "First difference: step 7, random.torch; with it loss",
        "parameters, optimizer",
        "save torch.get_rng_state()",
        "run.epochs(n)",
        "nothing follows from them: random.python",
        "nothing follows from them: random.numpy",
    ):
        assert said in text, said


@pytest.mark.parametrize(("control", "says"), [(True, "was noticed, as it must be"), (False, "was not noticed")])
def test_the_page_says_whether_a_spoiled_resume_was_noticed(control, says):
    """The page tells of the control; a proof has it only where all trials are the same."""
    assert says in read(proof(sound(), verdict=PROVED, control=control)).text


def test_a_proved_training_is_told_so():
    """A proof says how often it killed and how many steps are the same, and names no difference."""
    text = read(proof(sound(), sound(), verdict=PROVED)).text
    assert "Proved: killed 2 times, and 30 steps after it are the same bit for bit." in text
    assert "▲" not in text


def test_a_training_that_is_not_the_same_twice_is_told_without_trials():
    """A difference between two undisturbed runs is drawn in the second, and stands in words."""
    first = Difference(7, "loss", "0.5 and 0.6", ("loss",))
    text = read(proof(verdict=UNVERIFIED, repeat=first, masked=[])).text
    assert "Differs without a kill: step 7, loss: 0.5 and 0.6" in text
    assert "▲ step 7: loss" in text
    assert "Killed" not in text


def test_what_several_trials_lost_is_told_once():
    """A repair that several trials need stands at the first of them; the others refer to it."""
    reader = read(proof(failed(), sound(), failed()))
    assert reader.text.count("save torch.get_rng_state()") == 1
    assert [each for each in reader.links if each.startswith("#trial")] == ["#trial-1"]


# --- the strips -----------------------------------------------------------------------------------------


def drawn(described):
    """Give the runs of steps in the strips: their kind, first step and number."""
    boxes = re.findall(r'<rect class="(\w+)" x="(\d+)" width="(\d+)"', page(described))
    return [(kind, int(begin), int(count)) for kind, begin, count in boxes]


def test_a_trial_is_drawn_as_it_was():
    """A trial's strips show the steps before the kill, those that are the same, the first other one, and the rest."""
    assert drawn(proof(failed()))[2:] == [("before", 0, 9), ("same", 5, 2), ("first", 7, 1), ("follows", 8, 12)]


def test_processes_behind_a_difference_are_not_drawn():
    """A process that nobody compared is told, and no place is made up for it."""
    kills = (Kill("step", 9), Kill("step", 4))
    described = proof(failed(kills=kills, steps=[9, 4, 11]))
    assert drawn(described)[2:] == [("before", 0, 9), ("same", 5, 2), ("first", 7, 1), ("follows", 8, 1)]
    assert "Process 3: 11 steps, not compared" in read(described).text
    assert "Killed after step 9, and again after step 4 (counted from the resume)" in read(described).text


def test_a_process_without_a_step_is_marked_where_steps_are_missing():
    """A resumed process that made no step carries the mark of the steps that it left out."""
    first = Difference(9, "steps", "It made no step.", ("steps",))
    trial = failed(verdict="skipped_steps", resumed_from=[], first_difference=first, steps=[9, 0]).as_json()
    assert [each.difference for each in processes_of(trial)] == [None, 9]
    assert "Process 2: no step" in read(proof(failed(verdict="skipped_steps", resumed_from=[], steps=[9, 0]))).text


def test_a_training_that_goes_too_far_fits_into_its_strip():
    """All strips have the scale of the longest training, so that steps too many are seen."""
    described = proof(failed(verdict="repeated_steps", steps=[9, 19]))
    assert 'viewBox="0 0 24 1"' in page(described)
    assert drawn(described)[-1] == ("follows", 8, 16)


def test_a_training_that_was_not_killed_carries_no_kill():
    """One that ended before the moment came, and one that is only started again at its end, have no mark of a kill."""
    for trial in (
        sound(verdict="not_killed", resumed_from=[], compared=0, steps=[20]),
        sound(kills=(Kill("end", 20),), resumed_from=[], compared=0, steps=[20, 0]),
    ):
        source = page(proof(trial, verdict=UNVERIFIED))
        assert 'class="kill' not in source
        assert "from the start, 20 steps, to step 20" in source
    assert "Started again at its own end, after step 20" in source
    assert 'class="kill' in page(proof(sound(), verdict=PROVED))


def test_a_difference_at_the_end_stands_at_the_end():
    """What differs only in the files written at the end is marked behind the last step."""
    described = proof(failed(first_difference=Difference(20, "files", "last.pt", ("files",))))
    assert "▲ the end: files" in read(described).text
    assert ("first", 20, 1) not in drawn(described)


@pytest.mark.parametrize("steps", [MOST_CELLS, MOST_CELLS + 1, 10**6])
def test_a_long_training_has_a_small_page(steps):
    """Up to 300 steps are single cells; a page grows with the trials and not with the steps behind that."""
    described = proof(failed(), steps=steps)
    assert ("One cell is one step" in read(described).text) == (steps <= MOST_CELLS)
    assert len(page(described)) < 12_000


# --- what others named ----------------------------------------------------------------------------------


def test_names_of_others_stay_text():
    """Marks of HTML and unseen characters in any text of a script are shown, and none of them acts."""
    evil = "<script>alert(1)</script>\"'><img src=x onerror=y>\x1b[2J\u202e\udc80"
    first = Difference(7, evil, evil, (evil, evil))
    finding = Finding(evil, evil, evil, evil)
    lists = {"restored": [evil], "not_restored": [evil], "harmless": [evil]}
    kill = (Kill("save", 5, 1, what=evil),)
    trial = failed(kills=kill, first_difference=first, findings=[finding], explanation=evil, **lists)
    found = Proof([evil], DIVERGED, evil, 20, masked=[evil], notes=[evil], trials=[trial], versions={evil: evil})
    found.repeat, found.begun = first, evil
    source = page(found.as_json())
    reader = Reader(source)
    assert not {"script", "img"} & {*reader.names}
    assert set(reader.links) == {"#grid"}
    assert "<script>alert(1)</script>" in reader.text
    assert not {"\x1b", "\u202e", "\udc80"} & {*source}


def test_the_page_needs_nothing_besides():
    """A page refers to nothing outside itself, has no script, and forbids a browser to load anything."""
    source = page(proof(failed(), sound()))
    assert "default-src 'none'" in source
    assert not re.search(r"https?:|//|@import|url\(", source)
    assert "script" not in read(proof(failed())).names


# --- the file -------------------------------------------------------------------------------------------


def test_a_page_takes_the_place_of_an_older_one(tmp_path):
    """A page is written whole, over an older one, and nothing else is left beside it."""
    path = tmp_path / "proof.html"
    path.write_text("old")
    require_writable(path)
    assert path.read_text() == "old"
    write_page(path, proof(failed()))
    assert path.read_text(encoding="utf-8") == page(proof(failed()))
    assert [each.name for each in tmp_path.iterdir()] == ["proof.html"]


@pytest.mark.parametrize("name", ["missing/proof.html", "file/proof.html", "folder", "x" * 300])
def test_a_page_that_cannot_be_written_is_told_before_anything_is_trained(name, tmp_path, monkeypatch, capsys):
    """`samestep prove --html` refuses a file that cannot be written in one sentence, and starts nothing."""
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    with pytest.raises(SamestepError, match="cannot be written"):
        require_writable(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    assert run(["prove", "--html", name, "--", "touch", "started"]) == 2
    assert "The page cannot be written." in capsys.readouterr().err
    assert not (tmp_path / "started").exists()


NEVER_THE_SAME = """
import os, torch
torch.manual_seed(int.from_bytes(os.urandom(4), "big"))
layer = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(layer.parameters(), 0.1)
for _ in range(3):
    layer(torch.ones(2)).sum().backward()
    optimizer.step()
"""


def test_the_command_writes_the_page_of_what_it_found(tmp_path, monkeypatch, capsys):
    """`samestep prove --json --html` prints one JSON object, and writes the page of exactly that."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "train.py").write_text(NEVER_THE_SAME)
    monkeypatch.chdir(project)
    status = run(["prove", "--kills", "1", "--json", "--html", "proof.html", "--", sys.executable, "train.py"])
    described = json.loads(capsys.readouterr().out)
    assert (status, described["verdict"]) == (3, "unverified")
    assert (project / "proof.html").read_text(encoding="utf-8") == page(described)
    assert "Differs without a kill: step 0, parameters" in read(described).text
