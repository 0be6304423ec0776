import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samestep.data.permutation import Permutation

LENGTHS = [1, 2, 3, 7, 100, 4_095, 4_096, 4_097, 4_099, 65_536, 100_003]


@pytest.mark.parametrize("length", LENGTHS)
def test_every_item_comes_once(length):
    """A permutation holds every item exactly once, at lengths around every switch of method."""
    assert np.array_equal(np.sort(Permutation(length, 5).take(0, length)), np.arange(length))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 10**12), st.integers(0, 2**64 - 1), st.data())
def test_any_position_is_the_same_from_any_start(length, seed, data):
    """An item depends on its position alone, not on where reading starts or how much is read at once."""
    low = data.draw(st.integers(0, length - 1))
    order = Permutation(length, seed)
    whole = order.take(low, low + 50)
    assert np.array_equal(np.concatenate([order.take(p, p + 1) for p in range(low, low + len(whole))]), whole)
    assert whole.min() >= 0
    assert whole.max() < length


def test_seek_is_instant_at_a_trillion_items(count_calls):
    """The middle of 10**12 items is reached with as few calls as their beginning."""
    order = Permutation(10**12, 0)
    items = []
    calls = count_calls(lambda: items.extend(order.take(5 * 10**11, 5 * 10**11 + 4_096).tolist()))
    assert calls < 100
    assert len(set(items)) == 4_096


def test_short_orders_are_all_equally_likely():
    """Each of the 24 orders of four items comes up equally often over 24,000 seeds (chi-square, 23 degrees)."""
    orders = [tuple(Permutation(4, seed).take(0, 4).tolist()) for seed in range(24_000)]
    counts = np.unique(np.array(orders), axis=0, return_counts=True)[1]
    assert len(counts) == 24
    assert ((counts - 1_000) ** 2 / 1_000).sum() < 60  # 1 in 30,000 for fair orders


@pytest.mark.parametrize("length", [1_000, 5_000])
def test_every_place_is_equally_likely(length):
    """Over 4,000 seeds an item lands in every twentieth of the order equally often, for short and long orders."""
    firsts = np.array([Permutation(length, seed).take(17, 18)[0] for seed in range(4_000)])
    counts = np.bincount(firsts * 20 // length, minlength=20)
    assert ((counts - 200) ** 2 / 200).sum() < 60  # chi-square, 19 degrees: 1 in 200,000 for fair orders


@pytest.mark.parametrize("length", [4_000, 50_000])
def test_neighbours_and_seeds_are_unrelated(length):
    """Places, neighbours in the order and orders of neighbouring seeds show no correlation."""
    order, other = (Permutation(length, seed).take(0, length) for seed in (1, 2))
    bound = 5 / length**0.5
    assert abs(np.corrcoef(np.arange(length), order)[0, 1]) < bound
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < bound
    assert abs(np.corrcoef(order, other)[0, 1]) < bound
    assert np.count_nonzero(order == np.arange(length)) < 10
    assert abs(np.mean(np.diff(order) % length < length / 2) - 0.5) < bound


def test_the_order_never_changes_between_versions():
    """The orders of today are golden: changing them would break the resume of every saved run."""
    assert Permutation(8, 0).take(0, 8).tolist() == [1, 2, 3, 5, 4, 7, 6, 0]
    assert Permutation(10_000, 0).take(0, 4).tolist() == [7871, 3037, 8030, 7721]
    assert Permutation(10**12, 7).take(10**11, 10**11 + 2).tolist() == [491976765876, 226095332591]
