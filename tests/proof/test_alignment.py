"""Where a resumed training stands is found by what it has, and which differences count is known."""

from samestep.proof.alignment import align
from samestep.proof.ledger import Step
from samestep.proof.lives import Life, Reference
from samestep.proof.material import differences


def step(number, parameters, rate="r", **notes):
    """Give a step with these digests."""
    return Step(number, 0, {"parameters": parameters, "learning_rate": rate}, notes=notes)


REFERENCE = [step(number, f"p{number}", f"r{number // 4}") for number in range(12)]


def test_by_state():
    """Parameters that occur at one step name it, and none behind what was done."""
    assert align([step(0, "p5", "r1")], REFERENCE, 8).at == 5
    assert align([step(0, "p9", "r2")], REFERENCE, 8).by != "parameters"


def test_by_rate():
    """Where nothing else was restored the learning rate tells."""
    assert align([step(0, "other", "r2"), step(1, "more", "r2")], REFERENCE, 9).by == "learning_rate"


def test_by_count():
    """What samestep has counted counts before all digests."""
    counted = [step(number, "same", completed=number) for number in range(12)]
    assert (align([step(0, "same", completed=7)], counted, 9).at) == 7


def test_by_length():
    """Where no state is known the number of steps to the end tells."""
    found = align([step(number, f"other {number}", "none") for number in range(4)], REFERENCE, 9)
    assert (found.at, found.by) == (8, "length")


def test_standing_still():
    """Where several steps have the same state it is the one that leaves as many as were made."""
    still = [step(number, f"p{min(number, 5)}") for number in range(12)]
    assert align([step(number, "p5") for number in range(5)], still, 9).at == 7


def test_averages_at_the_end():
    """An average that is made behind the last step is compared, if both have it under one name."""
    ends = [Step(12, 0, {"parameters": "p", "copies": each}, {"copies": {"average": each}}) for each in ("a", "b")]
    reference = Reference(REFERENCE, ends[0])
    assert differences(reference, Life(REFERENCE[8:], ends[0]), 8) == []
    assert differences(reference, Life(REFERENCE[8:], ends[1]), 8) == [(4, ["copies"])]
