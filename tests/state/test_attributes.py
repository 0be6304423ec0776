"""Claims about attributes: what a training changes beside the state is named, and nothing else."""

import time

import pytest
import torch
from torch import nn

from samestep.state.attributes import AttributeWatch


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.drop = nn.Dropout(0.5)
        self.register_buffer("mean", torch.zeros(2))
        self.scale = torch.ones(3)
        self.table = torch.zeros(600, 600)
        self.temperature = 1.0
        self.unknown = float("nan")
        self._calls = 0

    def forward(self, x):
        self._calls += 1
        self.mean += 1
        return self.drop(self.layer(x))


class Lookahead(torch.optim.SGD):
    """An optimizer that counts beside its state."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.rounds = 0


class Told(Lookahead):
    """The same, with a state_dict that tells it."""

    def state_dict(self):
        return {**super().state_dict(), "rounds": self.rounds}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda net: setattr(net.drop, "p", 0.4), "net.drop.p: 0.5 -> 0.4"),
        (lambda net: setattr(net, "temperature", 1), "net.temperature: 1.0 -> 1"),
        (lambda net: net.scale.mul_(2), "net.scale: a tensor"),
        (lambda net: setattr(net, "scale", torch.zeros(3)), "net.scale: a tensor"),
        (lambda net: setattr(net, "scale", None), "net.scale: a tensor"),
        (lambda net: net.table.add_(1), "net.table: a tensor"),
        (lambda net: net.layer.register_forward_hook(print), "net.layer (hooks): 0 -> 1"),
        (lambda net: net.register_forward_pre_hook(print), "net (hooks): 0 -> 1"),
        (lambda net: net.layer.register_full_backward_hook(print), "net.layer (hooks): 0 -> 1"),
    ],
)
def test_what_changes_in_a_module_is_named(change, said):
    """Plain values, tensors that are no buffers, and hooks of a module are named once they are not as they were."""
    net = Net()
    watch = AttributeWatch({"net": net})
    change(net)
    (found,) = watch.changed()
    assert found.startswith(said)


def test_what_is_saved_or_private_is_not_named():
    """Weights, buffers, modes, NaN, private attributes, tensors computed anew and untouched ones give no alarm."""
    net = Net()
    net.double = net.layer.weight * 2
    optimizer = Lookahead(net.parameters(), lr=0.1, momentum=0.9)
    watch = AttributeWatch({"net": net, "optimizer": optimizer})
    net(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    optimizer.param_groups[0]["lr"] = 0.2
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    net.eval()
    net.scale, net.double = net.scale.clone(), net.layer.weight * 3
    assert watch.changed() == []


def test_what_changes_in_an_optimizer_is_named():
    """A subclass's own values and the defaults of new groups are named; what its own state_dict tells is not."""
    net = Net()
    optimizers = {name: kind(net.parameters(), lr=0.1) for name, kind in (("silent", Lookahead), ("told", Told))}
    watch = AttributeWatch(optimizers)
    for optimizer in optimizers.values():
        optimizer.rounds += 1
    optimizers["silent"].defaults["lr"] = 0.5
    assert watch.changed() == ["silent.rounds: 0 -> 1", "silent.defaults.lr: 0.1 -> 0.5"]


def test_a_look_is_cheap():
    """A look at a model of 300 layers takes a few milliseconds."""
    net = nn.Sequential(*(nn.Sequential(nn.Linear(2, 2), nn.Dropout()) for _ in range(150)))
    watch = AttributeWatch({"net": net, "optimizer": torch.optim.Adam(net.parameters())})
    times = []
    for _ in range(5):
        begin = time.process_time()
        assert watch.changed() == []
        times.append(time.process_time() - begin)
    assert min(times) < 0.03


class Decaying(nn.Module):
    """Decays a private number, and counts in an attribute that appears in the training."""

    def __init__(self, *, saves=False):
        super().__init__()
        self._temperature = 1.0
        self.saves = saves

    def forward(self, x):
        self._temperature *= 0.5
        self.calls = getattr(self, "calls", 0) + 1
        return x * self._temperature


class Saving(Decaying):
    """Saves what it holds."""

    def get_extra_state(self):
        return self._temperature

    def set_extra_state(self, state):
        self._temperature = state


def test_a_private_number_and_a_new_attribute_are_named_unless_the_module_saves_them():
    """A decaying private number and a new attribute are losses; a module with an extra state saves its own."""
    model, saving = Decaying(), Saving()
    watch = AttributeWatch({"model": model, "saving": saving})
    model(1.0)
    saving(1.0)
    assert watch.changed() == ["model._temperature: 1.0 -> 0.5", "model.calls: None -> 1"]
