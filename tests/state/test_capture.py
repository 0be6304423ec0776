"""Claims about restoring as a whole: what can be tracked, both ways of missing, the order, all or nothing."""

import random

import numpy as np
import pytest
import torch
from torch import nn

from samestep.errors import CorruptCheckpoint, NotTracked, StateMismatch
from samestep.state.capture import capture, restore
from samestep.state.kinds import kind_of
from samestep.state.random import RandomState
from samestep.state.snapshot import Item


class Counter:
    """Any object with the two methods."""

    def __init__(self, value=0, log=None):
        self.value = value
        self.log = [] if log is None else log

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.log.append(self)
        if state["value"] == "bad":
            self.value = "half loaded"
            raise RuntimeError("no")
        self.value = state["value"]


class Loader(Counter):
    is_samestep_loader = True


def test_kinds():
    """Every kind of object is recognised."""
    net = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    expected = {
        "module": net,
        "optimizer": optimizer,
        "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1),
        "scaler": torch.amp.GradScaler("cpu"),
        "tensor": torch.zeros(1),
        "random": RandomState(),
        "loader": Loader(),
        "other": Counter(),
        "generator": torch.Generator(),
    }
    assert {kind: kind_of(each, kind) for kind, each in expected.items()} == {kind: kind for kind in expected}
    for generator in (np.random.default_rng(), np.random.RandomState(), random.Random(), np.random.Philox()):
        assert kind_of(generator, "x") == "generator"


@pytest.mark.parametrize(
    ("tracked", "sentence", "hint"),
    [
        (torch.utils.data.DataLoader([1]), "a torch DataLoader", "samestep.DataLoader"),
        (lambda: 0, "a function", "run.state"),
        (nn.Linear, "the class Linear", "an object"),
        ({"total": 0}, "of type dict", "run.state"),
        (object(), "of type object", "two methods"),
        (None, "None", "leave it out"),
    ],
)
def test_what_cannot_be_tracked_is_refused_in_one_sentence(tracked, sentence, hint):
    """An object without state of its own is refused with what it is and what to do instead."""
    with pytest.raises(NotTracked, match=f"thing cannot be tracked: it is {sentence}") as caught:
        capture({"thing": tracked})
    assert hint in caught.value.hint
    assert caught.value.path == "thing"


def test_missing_is_an_error_both_ways_unless_allowed():
    """What only the checkpoint has, or only the run, is refused by name; allow_missing lets it pass."""
    items = capture({"a": Counter(1), "b": Counter(2)})
    live = {"a": Counter(), "c": Counter()}
    with pytest.raises(StateMismatch) as caught:
        restore(live, items)
    assert caught.value.found.splitlines() == [
        "b is in the checkpoint but not tracked here",
        "            c is tracked here but not in the checkpoint",
    ]
    assert 'allow_missing=["b", "c"]' in caught.value.hint
    assert live["a"].value == 0
    restore(live, items, allow_missing=["b", "c"])
    assert (live["a"].value, live["c"].value) == (1, 0)


def test_another_kind_is_an_error():
    """A name that now stands for another kind of object is refused."""
    with pytest.raises(StateMismatch, match="another kind"):
        restore({"a": Counter()}, capture({"a": nn.Linear(1, 1)}))


def test_the_name_gradients_is_taken():
    """An object cannot be tracked under the name of the unfinished gradients."""
    with pytest.raises(StateMismatch, match="'gradients' is taken"):
        capture({"gradients": Counter()})


def test_a_refusal_leaves_everything_as_before():
    """When any object refuses its state, all objects are as they were, the refusing one and random state too."""
    net = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def objects(value):
        return {"first": Counter(value), "last": Counter("bad" if value else 0), "random": RandomState()}

    items = {**capture({"model": nn.Linear(1, 1)}), **capture(objects(5))}
    live = {"model": net, "optimizer": optimizer, **objects(0)}
    items["optimizer"] = capture({"model": net, "optimizer": torch.optim.SGD(net.parameters(), lr=9)})["optimizer"]
    torch.rand(1)
    before = [net.weight.item(), repr(live["random"].state_dict())]
    with pytest.raises(StateMismatch, match="last does not accept its saved state"):
        restore(live, items)
    assert [net.weight.item(), repr(live["random"].state_dict())] == before
    assert (live["first"].value, live["last"].value) == (0, 0)
    assert optimizer.param_groups[0]["lr"] == 0.1


def test_the_order_of_restoring():
    """Others come before loaders, loaders before random state, whatever the order of tracking."""
    log = []
    draws = []

    class Drawing(Loader):
        def load_state_dict(self, state):
            super().load_state_dict(state)
            draws.append(torch.rand(1).item())

    torch.manual_seed(3)
    live = {"random": RandomState(), "loader": Drawing(1, log), "other": Counter(1, log)}
    items = capture(live)
    expected = torch.rand(1)
    restore(live, items)
    assert [type(each).__name__ for each in log[-2:]] == ["Counter", "Drawing"]
    assert draws
    assert torch.equal(torch.rand(1), expected)


def test_generators_and_tensors_are_restored_in_place(stored):
    """A generator object and a bare tensor keep their identity and get their state back."""
    live = {
        "torch": torch.Generator().manual_seed(1),
        "numpy": np.random.default_rng(1),
        "philox": np.random.Generator(np.random.Philox(1)),
        "legacy": np.random.RandomState(1),
        "python": random.Random(1),
        "total": torch.zeros(2, dtype=torch.float64),
    }

    def draw():
        return [
            torch.rand(1, generator=live["torch"]).item(),
            live["numpy"].standard_normal(),
            live["philox"].integers(0, 9, 3, dtype=np.int8).tolist(),
            live["legacy"].randn(),
            live["python"].gauss(),
        ]

    draw()
    items = stored(capture(live))
    expected = draw()
    live["total"] += 1
    restore(live, items)
    assert draw() == expected
    assert not live["total"].any()


def test_another_kind_of_generator_is_refused():
    """The state of a PCG64 is not given to a Philox."""
    items = capture({"rng": np.random.default_rng(0)})
    with pytest.raises(StateMismatch, match="another kind of generator") as caught:
        restore({"rng": np.random.Generator(np.random.Philox(0))}, items)
    assert caught.value.expected == "numpy.random._generator.Generator(PCG64)"


def test_the_loss_scale_goes_on(stored):
    """transformers#34053, ultralytics PR#22189: scale, growth tracker and backoff go on, not from 65536 again."""
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=3)
    net = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for value in (1.0, float("inf"), 1.0):
        optimizer.zero_grad()
        scaler.scale(net(torch.tensor([value])).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    fresh = torch.amp.GradScaler("cpu", growth_interval=3)
    restore({"scaler": fresh}, stored(capture({"scaler": scaler})))
    assert fresh.get_scale() == scaler.get_scale() == 128
    assert fresh.state_dict() == scaler.state_dict()


@pytest.mark.parametrize(
    "damage",
    [
        lambda _: None,
        lambda _: [],
        lambda _: {},
        lambda tree: {**tree, next(iter(tree)): 3},
        lambda tree: {**tree, "state": {"weight": {"$tensor": "gone"}, "bias": {"$tensor": "gone"}}},
        lambda tree: {**tree, "groups": [{"params": [[1]]}]},
        lambda tree: {**tree, "groups": [{"params": 3}]},
        lambda tree: {**tree, "evaluating": 3},
        lambda tree: {**tree, "frozen": [{}]},
    ],
)
@pytest.mark.parametrize("name", ["model", "optimizer", "generator", "total"])
def test_damaged_trees_give_one_clear_error_and_change_nothing(name, damage):
    """A tree that was not written by us raises a samestep error before anything has changed."""
    net = nn.Linear(1, 1)
    live = {
        "model": net,
        "optimizer": torch.optim.Adam(net.parameters()),
        "generator": torch.Generator(),
        "total": torch.zeros(1),
    }
    items = capture(live)
    tree = damage(items[name].tree)
    items[name] = Item(items[name].kind, tree, items[name].tensors)
    before = net.weight.item()
    try:
        restore(live, items)
    except (CorruptCheckpoint, StateMismatch):
        assert net.weight.item() == before
    else:
        assert tree is not None


def test_only_some_objects_can_be_captured():
    """A subset takes its parameters' names from all tracked objects, and reads nothing else."""
    net = nn.Linear(1, 1)
    live = {"model": net, "optimizer": torch.optim.SGD(net.parameters(), lr=0.1)}
    items = capture({"optimizer": live["optimizer"]}, named_by=live)
    assert list(items) == ["optimizer"]
    assert items["optimizer"].tree["groups"][0]["params"] == ["model.weight", "model.bias"]
