"""Claims about assigning in place: whoever holds a live value sees what it becomes, and nothing is mixed up."""

import copy
import typing
from collections import Counter, OrderedDict, defaultdict, deque

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from samestep.state.codec import decode, encode
from samestep.state.in_place import assign_in_place


class Pair(typing.NamedTuple):
    left: object
    right: object


def saved(value):
    """Give a value as it comes out of a checkpoint."""
    return decode(*encode(value, "value"))


@pytest.mark.parametrize(
    ("live", "other"),
    [
        ([1, 2, 3], [4]),
        ([], [1, [2]]),
        ({"a": 1}, {"b": 2, "a": 3}),
        (OrderedDict(a=1), OrderedDict(b=2)),
        (Counter("aab"), Counter("bcc")),
        (defaultdict(int, a=1), defaultdict(list, b=[2])),
        ({1, 2}, {3}),
        (deque([1], 3), deque([2, 3], 3)),
        (bytearray(b"abc"), bytearray(b"d")),
    ],
    ids=lambda each: type(each).__name__,
)
def test_containers_keep_their_identity(live, other):
    """A container becomes equal to the saved one, in its order, and stays the object it was."""
    result = assign_in_place(live, copy.deepcopy(other))
    assert result is live
    assert live == other
    assert list(live) == list(other)
    assert getattr(live, "default_factory", None) is getattr(other, "default_factory", None)


def test_identity_is_kept_at_any_depth():
    """Aliases of inner containers, tensors and arrays see the saved values, also inside tuples."""
    live = {"log": [[1], (2, {"w": torch.zeros(2)})], "pair": Pair([0], np.zeros(3)), "gone": [9]}
    inner, tensor = live["log"][0], live["log"][1][1]["w"]
    left, array = live["pair"]
    new = {"log": [[5, 6], (3, {"w": torch.ones(2)}), "new"], "pair": Pair([7], np.ones(3)), "more": 1}
    result = assign_in_place(live, saved(new))
    assert result is live
    assert list(live) == ["log", "pair", "more"]
    assert inner == [5, 6]
    assert live["log"][0] is inner
    assert live["log"][1][1]["w"] is tensor
    assert tensor.tolist() == [1, 1]
    assert live["pair"] == Pair([7], array)
    assert live["pair"].left is left
    assert array.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("live", "other"),
    [
        ([1], (1,)),
        ({}, OrderedDict()),
        (1, 2),
        (None, [1]),
        (deque(maxlen=2), deque(maxlen=3)),
        (torch.zeros(2), torch.zeros(3)),
        (torch.zeros(2), torch.zeros(2, dtype=torch.float64)),
        (torch.zeros(2), np.zeros(2)),
        (np.zeros(2), np.zeros(2, dtype=np.float32)),
        (np.broadcast_to(np.zeros(1), 2), np.zeros(2)),
        (torch.zeros(2, requires_grad=True) * 1, torch.zeros(2)),
    ],
)
def test_what_does_not_match_is_replaced(live, other):
    """Values of other types, shapes, dtypes, and those that cannot be written to, give way to the saved ones."""
    assert assign_in_place(live, other) is other


def test_tensors_take_the_saved_strides():
    """A tensor of other strides keeps its identity and takes over the saved layout, on which bits depend."""
    live = torch.zeros(2, 3)
    other = torch.arange(6.0).reshape(3, 2).t()
    assert assign_in_place(live, other) is live
    assert live.stride() == (1, 2)
    assert torch.equal(live, other)


def test_two_saved_objects_are_not_put_into_one_live_one():
    """What was one before the loop and two in the checkpoint becomes two: lists and tensors."""
    for one, first, second in (([], [1], [2]), (torch.zeros(1), torch.ones(1), torch.full((1,), 2.0))):
        live = {"a": one, "b": one}
        assign_in_place(live, saved({"a": first, "b": second}))
        assert (live["a"], live["b"]) == (first, second)
        assert live["a"] is not live["b"]


def test_one_saved_object_is_not_put_into_two_live_ones():
    """What was two before the loop and one in the checkpoint becomes one: lists and tensors."""
    for kind in (list, lambda: torch.zeros(1)):
        live, both = {"a": kind(), "b": kind()}, kind()
        first = live["a"]
        assign_in_place(live, saved({"new": both, "a": both, "b": both}))
        assert live["a"] is live["b"] is live["new"] is first


def test_views_stay_views():
    """A tensor and a view of it go into live ones of the same kind, and are replaced together elsewhere."""
    base, other = torch.zeros(4), torch.zeros(2)
    for live in ({"base": base, "view": base[:2]}, {"base": base, "view": other}):
        whole = torch.arange(4.0)
        assign_in_place(live, saved({"base": whole, "view": whole[:2]}))
        live["view"] += 10
        assert live["base"].tolist() == [10, 11, 2, 3]
    assert base.tolist() == [10, 11, 2, 3]
    assert other.tolist() == [0, 0]


def test_an_array_at_two_places_stays_one():
    """An array that lies at two places is changed in place once; two saved ones are not put into one."""
    array = np.zeros(2)
    live, other = {"a": array, "b": array}, np.arange(2.0)
    assign_in_place(live, saved({"a": other, "b": other}))
    live["a"] += 1
    assert live["b"].tolist() == array.tolist() == [1, 2]
    assign_in_place(live, saved({"a": np.zeros(2), "b": np.ones(2)}))
    assert (live["a"].tolist(), live["b"].tolist()) == ([0, 0], [1, 1])


def test_a_value_can_be_assigned_to_itself():
    """Values that stay, because the saved ones do not name them, are left as they are."""
    live = {"a": [1, {2}], "b": torch.ones(2), "c": bytearray(b"x"), "d": deque([1])}
    before = copy.deepcopy(live)
    assert assign_in_place(live, dict(live)) is live
    assert all(str(live[name]) == str(before[name]) for name in before)


trees = st.recursive(
    st.integers() | st.text(max_size=2),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.lists(inner, max_size=3).map(deque)
        | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
    ),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None)
@given(trees, trees)
def test_the_result_is_always_the_saved_value(live, other):
    """Whatever the live value is, the result equals the saved one."""
    assert assign_in_place(live, copy.deepcopy(other)) == other
