"""The verdict over a proof is that of all its trials together."""

from samestep.proof.comparing import Difference
from samestep.proof.planning import Kill
from samestep.proof.result import Proof, TrialResult
from samestep.proof.saves import Operation, Save
from samestep.proof.verdicts import conclude, reconsider

OTHER = Difference(3, "batch", "", ("batch",))


def trial(verdict, *resumed, passed_over=(), difference=None, explanation=""):
    """Give a trial that has gone on from these steps."""
    found = TrialResult((Kill("step", 5),), verdict, resumed, difference, explanation=explanation)
    found.passed_over = passed_over
    return found


def save(completed, path):
    """Give a save of one file."""
    return Save(completed, (Operation("torch.save", path, 3000),))


def concluded(*trials, control=True):
    """Give the verdict over trials."""
    proof = Proof(["python"], trials=list(trials))
    conclude(proof, control)
    return proof


def test_an_export_is_no_checkpoint():
    """Who begins anew although a large file is there has lost nothing, if others go on from files of another kind."""
    saves = [save(2, "samples-2.pt"), save(6, "last-6.pt")]
    early, late = trial("from_scratch", 0, passed_over=saves[:1]), trial("proved", 6)
    reconsider([early, late], saves, 12)
    assert early.verdict == "proved"


def test_a_checkpoint_of_a_known_kind_was_passed_over():
    """Who begins anew although a file is there of the kind that others go on from has lost it."""
    saves = [save(3, "last-3.pt"), save(6, "last-6.pt")]
    early, late = trial("from_scratch", 0, passed_over=saves[:1]), trial("proved", 6)
    reconsider([early, late], saves, 12)
    assert early.verdict == "from_scratch"


def test_another_training_stays_another():
    """Who begins anew by right and then differs has diverged."""
    saves = [save(2, "samples-2.pt"), save(6, "last-6.pt")]
    early = trial("from_scratch", 0, passed_over=saves[:1], difference=OTHER)
    reconsider([early, trial("proved", 6)], saves, 12)
    assert early.verdict == "diverged"


def test_nobody_ever_goes_on():
    """Where nothing is saved between the steps a start from scratch is a fault; elsewhere it may be by right."""
    for saves, verdict in ([save(0, "a"), save(12, "b")], "from_scratch"), ([save(6, "a")], "proved"):
        only = trial("proved", 0)
        reconsider([only], saves, 12)
        assert only.verdict == verdict


def test_what_is_proved():
    """Proved needs a resume that went on, and a control that was noticed."""
    assert concluded(trial("proved", 6)).verdict == "proved"
    assert concluded(trial("proved", 6), control=False).verdict == "unverified"
    assert concluded(trial("proved", 6), control=None).verdict == "unverified"
    assert concluded(trial("proved", 0)).verdict == "unverified"
    assert concluded(trial("proved")).verdict == "unverified"
    assert concluded(trial("not_killed")).verdict == "unverified"


def test_one_fault_is_enough():
    """One trial that failed refutes, and an unstable one leaves everything open, in whatever order."""
    assert concluded(trial("proved", 6), trial("crashed", explanation="why")).verdict == "diverged"
    for order in (1, -1):
        found = concluded(*[trial("diverged", 6), trial("unstable", explanation="a port")][::order])
        assert (found.verdict, found.reason) == ("unverified", "a port")
