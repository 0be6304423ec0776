"""Claims about the top of an epoch: what it does again on a resume counts once, whatever it does it to."""

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from samestep.errors import StateMismatch
from samestep.state.capture import capture, reapply, restore
from samestep.state.random import RandomState


class Extra(nn.Module):
    """A module with a value that only get_extra_state knows."""

    def __init__(self):
        super().__init__()
        self.temperature = 1.0

    def get_extra_state(self):
        return {"temperature": self.temperature}

    def set_extra_state(self, state):
        self.temperature = state["temperature"]


class Loader:
    """A loader as the run sees it."""

    is_samestep_loader = True

    def __init__(self):
        self.epoch = 0

    def state_dict(self):
        return {"epoch": self.epoch}

    def load_state_dict(self, state):
        self.epoch = state["epoch"]


def build(seed=0):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
    return {
        "model": net,
        "optimizer": torch.optim.Adam(net.parameters(), lr=0.1),
        "ema": AveragedModel(net, use_buffers=True),
        "extra": Extra(),
        "loader": Loader(),
        "validation": Loader(),
        "total": torch.zeros(1),
        "random": RandomState(),
    }


def train(objects, seed=5):
    for index in range(2):
        x = torch.randn(4, 3, generator=torch.Generator().manual_seed(seed + index))
        objects["optimizer"].zero_grad()
        objects["model"](x).square().mean().backward()
        objects["optimizer"].step()
    objects["ema"].update_parameters(objects["model"])


@torch.no_grad()
def decay(objects):
    for parameter in objects["model"].parameters():
        parameter.mul_(0.9)


def evaluate(objects):
    objects["model"].eval()
    objects["validation"].epoch += 1


TOPS = {
    "weights are decayed": decay,
    "buffers are reset": lambda objects: objects["model"][1].reset_running_stats(),
    "flags change": evaluate,
    "moments are cleared": lambda objects: objects["optimizer"].state.clear(),
    "moments change": lambda objects: [each["exp_avg"].zero_() for each in objects["optimizer"].state.values()],
    "rates change": lambda objects: objects["optimizer"].param_groups[0].update(lr=3.0),
    "the average is updated": lambda objects: objects["ema"].update_parameters(objects["model"]),
    "extra state changes": lambda objects: setattr(objects["extra"], "temperature", 0.5),
    "a total is reset": lambda objects: objects["total"].fill_(7),
    "gradients are dropped": lambda objects: objects["optimizer"].zero_grad(),
    "numbers are drawn": lambda _: torch.rand(3),
}


@pytest.mark.parametrize("top", TOPS.values(), ids=TOPS)
def test_what_the_top_of_an_epoch_does_again_is_overwritten(top, bits, stored):
    """Everything tracked is as in the checkpoint after the statements at the top of a resumed epoch."""
    objects, fresh = build(), build(1)
    train(objects)
    objects["random"] = RandomState()
    items = stored(capture(objects))
    expected = {name: (bits(dict(each.tensors)), each.tree) for name, each in items.items()}
    restore(fresh, items, defer_added_groups=True)
    top(fresh)
    reapply(fresh, items, except_for=["loader"])
    assert {name: (bits(dict(each.tensors)), each.tree) for name, each in capture(fresh).items()} == expected


def test_open_loaders_are_left_alone():
    """A loader whose iterator is at work is named by the run and keeps its place; another one is put back."""
    objects = build()
    items = capture(objects)
    objects["loader"].epoch = objects["validation"].epoch = 4
    reapply(objects, items, except_for=["loader"])
    assert (objects["loader"].epoch, objects["validation"].epoch) == (4, 0)


def layers(net):
    return [list(net[index].parameters()) for index in (2, 1, 0)]


def unfreezing(seed, epochs):
    torch.manual_seed(seed)
    net = build(seed)["model"]
    optimizer = torch.optim.Adam(layers(net)[0], lr=0.1)
    objects = {"model": net, "optimizer": optimizer, "ema": AveragedModel(net)}
    for epoch in epochs:
        unfreeze(objects, epoch)
        train(objects, seed=10 * epoch)
    return objects


def unfreeze(objects, epoch):
    if epoch > 0:
        objects["optimizer"].add_param_group({"params": layers(objects["model"])[epoch], "lr": 0.1 / (1 + epoch)})


@pytest.mark.parametrize("epoch", [1, 2])
def test_a_group_that_the_top_of_an_epoch_adds_is_there_once(epoch, bits, stored):
    """Gradual unfreezing at the top of an epoch resumes in it: added groups are deferred until it has run again."""
    objects = unfreezing(0, range(epoch + 1))
    items = stored(capture(objects))
    fresh = unfreezing(1, [])
    restore(fresh, items, defer_added_groups=True)
    assert len(fresh["optimizer"].param_groups) == 1
    assert len(fresh["optimizer"].state) == 2
    unfreeze(fresh, epoch)
    reapply(fresh, items)
    for each in (objects, fresh):
        train(each, seed=77)
    assert bits(fresh["model"].state_dict()) == bits(objects["model"].state_dict())
    assert bits(fresh["optimizer"].state_dict()) == bits(objects["optimizer"].state_dict())


def test_a_deferred_group_is_added_if_the_top_does_not(bits, stored):
    """An epoch whose top does not add the group gets it from `reapply`, in its place and with its state."""
    objects = unfreezing(0, range(3))
    items = stored(capture(objects))
    fresh = unfreezing(1, [])
    restore(fresh, items, defer_added_groups=True)
    reapply(fresh, items)
    assert bits(fresh["optimizer"].state_dict()) == bits(objects["optimizer"].state_dict())


def test_a_deferred_group_of_unknown_parameters_is_refused_at_once():
    """Deferring a group does not defer its check."""
    net, more = nn.Linear(1, 1), nn.Linear(1, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    live = {"model": net, "optimizer": torch.optim.SGD(net.parameters(), lr=0.1)}
    optimizer.add_param_group({"params": more.parameters()})
    items = capture({"model": net, "optimizer": optimizer}, named_by={"model": net, "more": more})
    with pytest.raises(StateMismatch, match="does not fit"):
        restore(live, items, defer_added_groups=True)


def test_a_refusal_changes_nothing():
    """Statements that turn an object into another one are refused before anything is put back."""
    objects = build()
    items = capture(objects)
    objects["total"].fill_(3)
    objects["model"].append(nn.Linear(1, 1))
    with pytest.raises(StateMismatch, match="does not fit"):
        reapply(objects, items)
    assert objects["total"].item() == 3
