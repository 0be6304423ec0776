"""What a proof is told in: lines without empty endings, and headlines that say what was done."""

from samestep.proof.comparing import Difference
from samestep.proof.diagnosis import Finding
from samestep.proof.planning import Kill
from samestep.proof.result import DIVERGED, PROVED, UNVERIFIED, Proof, TrialResult
from samestep.proof.telling import headline, lines


def told(verdict, *trials, **changes):
    """Give the proof of some trials as JSON."""
    return Proof(["python", "train.py"], verdict, "It is so.", 20, trials=list(trials), **changes).as_json()


def trial(verdict=PROVED, kind="step", resumed_from=(5,), **changes):
    """Give a trial of one kill."""
    return TrialResult((Kill(kind, 9),), verdict, resumed_from, compared=15, **changes)


def test_only_what_was_killed_is_counted():
    """A training that was only started again, or ended before its kill, is not said to be killed."""
    both = told(PROVED, trial(), trial(kind="end", resumed_from=()), trial("not_killed"))
    assert headline(both) == "Proved: killed once, and 30 steps after it are the same bit for bit."
    none = told(PROVED, trial(kind="end"))
    assert headline(none) == "Proved: started again once, and 15 steps after it are the same bit for bit."


def test_steps_that_are_done_twice_are_no_other_training():
    """Where all that failed went on from an older checkpoint, the headline says that no more than time is lost."""
    twice = told(DIVERGED, trial(), trial("older_checkpoint"), trial("older_checkpoint"))
    assert headline(twice) == "Diverged: the same training, but steps are done twice."
    other = told(DIVERGED, trial("older_checkpoint"), trial("diverged"))
    assert headline(other) == "Diverged: after a kill this is another training."


def test_no_line_ends_with_nothing_behind_a_colon():
    """Differences and findings without a detail are told without a colon."""
    first = Difference(7, "random.torch", "", ("random.torch",))
    lost = trial("diverged", first_difference=first, findings=[Finding("random.torch", "", "", "")])
    for found in (told(DIVERGED, lost), told(UNVERIFIED, repeat=first)):
        assert [each for each in lines(found) if each.rstrip().endswith(":")] == []
    assert "  step 7: random.torch differs" in lines(told(UNVERIFIED, repeat=first))


def test_of_a_process_without_a_step_nothing_is_said_to_be_restored():
    """What a process had restored is known by its first step: without one, neither list is shown."""
    shown = "\n".join(lines(told(DIVERGED, trial("crashed", resumed_from=()))))
    assert "restored" not in shown
    assert "restored       nothing" in "\n".join(lines(told(DIVERGED, trial("from_scratch", resumed_from=[0]))))
