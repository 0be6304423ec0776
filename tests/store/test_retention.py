import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samestep.errors import SamestepError
from samestep.store.retention import Entry, Keep, decide, is_best


def entries(*steps, **metrics):
    """Checkpoints in the order in which they were written."""
    columns = {name: list(values) for name, values in metrics.items()}
    return [
        Entry(
            name=f"step-{step}-{i}",
            step=step,
            order=i,
            metrics={name: values[i] for name, values in columns.items()},
            created=float(i),
        )
        for i, step in enumerate(steps)
    ]


def kept_steps(keep, given_entries, **options):
    kept = decide(keep, given_entries, **options).kept
    return [entry.step for entry in given_entries if entry.name in kept]


def test_the_highest_steps_stay():
    """Steps are compared as numbers: of 900, 1000 and 1100 the last two are 1000 and 1100 (accelerate#1163)."""
    assert kept_steps(Keep(last=2), entries(900, 1000, 1100)) == [1000, 1100]


def test_order_of_listing_does_not_matter():
    """An unsorted directory listing leads to the same decision."""
    listed = entries(100, 200, 300, 400)
    assert decide(Keep(last=2), listed[::-1]) == decide(Keep(last=2), listed)


def test_best_older_than_the_window_stays():
    """The best checkpoint stays when it is older than the last ones (Lightning#1150)."""
    listed = entries(100, 200, 300, 400, acc=[0.9, 0.1, 0.2, 0.3])
    assert kept_steps(Keep(last=2, best=1, metric="acc"), listed) == [100, 300, 400]


def test_best_by_the_lowest():
    """With mode "min" the lowest score is the best."""
    listed = entries(100, 200, 300, loss=[3.0, 1.0, 2.0])
    assert kept_steps(Keep(last=1, best=1, metric="loss", mode="min"), listed) == [200, 300]


@pytest.mark.parametrize("mode", ["max", "min"])
def test_nan_is_never_best(mode):
    """A NaN score never wins, neither as highest nor as lowest."""
    listed = entries(100, 200, 300, 400, loss=[math.nan, 1.0, math.nan, math.nan])
    assert kept_steps(Keep(last=1, best=1, metric="loss", mode=mode), listed) == [200, 400]
    assert not is_best(Keep(best=2, metric="loss", mode=mode), math.nan, listed)


def test_of_equal_scores_the_earlier_stays():
    """A tie does not displace the earlier checkpoint."""
    listed = entries(100, 200, 300, acc=[0.5, 0.5, 0.5])
    keep = Keep(last=1, best=1, metric="acc")
    assert kept_steps(keep, listed) == [100, 300]
    assert not is_best(keep, 0.5, listed)
    assert is_best(keep, 0.6, listed)


def test_first_scores_are_best():
    """While fewer than k checkpoints have a score, every score is among the best k."""
    assert is_best(Keep(best=2, metric="acc"), -math.inf, entries(100, acc=[0.5]))


def test_every_takes_the_first_after_each_multiple():
    """Every n steps keeps the first checkpoint at or after each multiple: saves by time miss the multiples."""
    listed = entries(400, 980, 1020, 1990, 2000, 2500, 3100)
    assert kept_steps(Keep(last=1, every=1000), listed) == [1020, 2000, 3100]
    assert kept_steps(Keep(last=1, every=1), listed) == [400, 980, 1020, 1990, 2000, 2500, 3100]


def test_pinned_stays():
    """The tag "pinned" keeps a checkpoint that no policy wants."""
    old = Entry("old", 100, tags={"pinned"})
    assert decide(Keep(last=1), [old, *entries(200, 300)]).kept["old"] == ("pinned",)


def test_resume_source_stays():
    """A protected checkpoint stays whatever the policy says."""
    assert kept_steps(Keep(last=1), entries(100, 200, 300), protect=["step-100-0"]) == [100, 300]


def test_a_run_that_went_back_keeps_what_it_writes():
    """After going back from 600 to 200, the new checkpoints stay although the abandoned ones have higher steps."""
    assert kept_steps(Keep(last=1), entries(400, 500, 600, 300)) == [600, 300]
    assert kept_steps(Keep(last=2), entries(500, 600, 200, 300, 350)) == [500, 600, 300, 350]


def test_a_step_saved_again_replaces_the_older_one():
    """Of two checkpoints of one step only the later one counts; the older one goes, unless it is pinned."""
    assert list(decide(Keep(last=2), entries(50, 100, 100)).kept) == ["step-50-0", "step-100-2"]
    pinned = Entry("pinned", 100, order=0, tags={"pinned"})
    newer = Entry("newer", 100, order=1, created=1.0)
    assert decide(Keep(last=1), [pinned, newer]).deleted == ()


def test_no_checkpoint_no_decision():
    """An empty run leads to an empty decision."""
    assert decide(Keep(), []) == decide(Keep(best=1, metric="acc", every=5), [])


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        ({"last": 0}, "Keep.last"),
        ({"last": None}, "Keep.last"),
        ({"last": True}, "Keep.last"),
        ({"best": -1}, "Keep.best"),
        ({"best": 1}, "Keep.metric"),
        ({"best": 1, "metric": "acc", "mode": "maximum"}, "Keep.mode"),
        ({"every": 0}, "Keep.every"),
        ({"every": 2.5}, "Keep.every"),
    ],
)
def test_contradictory_policies_are_refused(arguments, where):
    """A policy that cannot be meant is refused with the argument's name, what was expected and what was found."""
    with pytest.raises(SamestepError) as caught:
        Keep(**arguments)
    assert caught.value.path == where
    assert caught.value.expected
    assert caught.value.found


policies = st.builds(
    lambda best, **others: Keep(best=best, metric="score" if best else None, **others),
    last=st.integers(1, 4),
    best=st.integers(0, 4),
    mode=st.sampled_from(["max", "min"]),
    every=st.none() | st.integers(1, 50),
)
scores = st.dictionaries(st.just("score"), st.floats(allow_nan=True, allow_infinity=True))
histories = st.lists(st.tuples(st.integers(0, 100), scores, st.booleans()), max_size=12).map(
    lambda rows: [
        Entry(f"c{i}", step, i, metrics, {"pinned"} if pinned else set(), float(i))
        for i, (step, metrics, pinned) in enumerate(rows)
    ]
)


@given(policies, histories, st.sets(st.integers(0, 11)))
def test_invariants(keep, history, protected):
    """Whatever the policy: the newest, pinned and protected stay, and deciding again deletes nothing."""
    protect = {f"c{i}" for i in protected}
    decision = decide(keep, history, protect=protect)
    assert sorted([*decision.kept, *decision.deleted]) == sorted(entry.name for entry in history)
    assert all(decision.kept.values())
    left = [entry for entry in history if entry.name in decision.kept]
    assert decide(keep, left, protect=protect).deleted == ()
    if history:
        assert history[-1].name in decision.kept
        assert max(history, key=lambda entry: (entry.step, entry.order)).name in decision.kept
        assert len({entry.step for entry in left}) >= min(keep.last, len({entry.step for entry in history}))
    assert {e.name for e in history if "pinned" in e.tags or e.name in protect} <= set(decision.kept)


@given(policies, histories, st.floats(allow_nan=True, allow_infinity=True))
def test_is_best_agrees_with_decide(keep, history, value):
    """A score is called best exactly when the checkpoint with it would be kept for it."""
    new = Entry("new", 1000, 0, {"score": value}, created=1000.0)
    why = decide(keep, [*history, new]).kept["new"]
    assert is_best(keep, value, history) == any(reason.startswith("best") for reason in why)
