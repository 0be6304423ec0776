"""Claims about marks: what was marked is what is saved, or it is an error."""

import pytest
import torch

from samestep.errors import StateMismatch
from samestep.state.mark import Mark, independent
from samestep.state.snapshot import Item


def items(**tensors):
    return {"model": Item("module", {"state": {name: {"$tensor": name} for name in tensors}}, tensors)}


def test_small_state_is_that_of_the_mark():
    """Small tensors changed after the mark are saved as they were marked; large ones are the live ones."""
    small, large = torch.zeros(3), torch.zeros(20_000)
    mark = Mark(items(small=small, large=large))
    small.add_(1)
    state = mark.items(items(small=small, large=large))
    assert state["model"].tensors["small"].tolist() == [0, 0, 0]
    assert state["model"].tensors["large"] is large
    assert list(state["model"].tensors) == ["small", "large"]


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.data.__setitem__(slice(0, 1), 1e-30),
        lambda t: t.numpy().__setitem__((0, 1), -0.0),
        lambda t: t.set_(t.clone().t().contiguous().t()),
        lambda t: t.set_(t.flip(0)),
        lambda t: t.resize_(300, 200),
    ],
    ids=["data", "sign of a zero", "strides", "order", "shape"],
)
def test_any_change_of_a_large_tensor_is_seen(change):
    """Writes through .data and NumPy, permuted elements, strides and shapes are seen."""
    large = torch.zeros(200, 300)
    large[0, 0] = 1
    mark = Mark(items(large=large))
    assert mark.changed(items(large=large)) == []
    change(large)
    assert mark.changed(items(large=large)) == ["model.large"]
    with pytest.raises(StateMismatch, match="changed since it was marked") as caught:
        mark.items(items(large=large))
    assert caught.value.path == "model.large"


def test_a_large_tensor_that_is_gone_is_seen():
    """A large tensor that has vanished counts as changed, and an equal copy in its place does not."""
    large = torch.rand(20_000)
    mark = Mark(items(large=large))
    assert mark.changed({}) == mark.changed(items()) == ["model.large"]
    assert mark.changed(items(large=large.clone())) == []


def test_independent_items_do_not_follow_the_live_ones():
    """R21: "best" is a full copy that later steps do not change, strides included."""
    live = torch.zeros(2, 3).t()
    copy = independent(items(w=live))
    live.add_(1)
    assert not copy["model"].tensors["w"].any()
    assert copy["model"].tensors["w"].stride() == (1, 3)
