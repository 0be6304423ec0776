"""Claims about the audit: what decides the next step and is tracked by nobody is named, with its line; no more."""

import copy
import random
import sys
import time

import numpy as np
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, RandomSampler, WeightedRandomSampler

from samestep.state.audit import find_untracked
from samestep.state.random import RandomState

MODULE_LEVEL = torch.Generator()


class Stateful:
    def __init__(self, **parts):
        self.parts = parts

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


def here():
    return sys._getframe(1)


def named(found):
    return {each.name: each.kind for each in found}


def test_every_kind_is_found_with_its_line():
    """Optimizers, schedulers, scalers, generators, samplers, EMA models, shuffling loaders are found by name."""
    net = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    scaler = torch.amp.GradScaler("cpu")
    generators = [torch.Generator(), np.random.default_rng(), random.Random()]
    sampler = WeightedRandomSampler([1.0], 1)
    ema = AveragedModel(net)
    loader = DataLoader([1, 2], shuffle=True)
    found = find_untracked(here(), {"model": net})
    assert named(found) == {
        "optimizer": "optimizer",
        "scheduler": "scheduler",
        "scaler": "scaler",
        "generators[0]": "generator",
        "generators[1]": "generator",
        "generators[2]": "generator",
        "sampler": "sampler",
        "ema": "module",
        "loader": "loader",
    }
    first = test_every_kind_is_found_with_its_line.__code__.co_firstlineno
    lines = {each.name: each.line - first for each in found}
    assert (lines["optimizer"], lines["scheduler"], lines["generators[1]"], lines["loader"]) == (3, 4, 6, 9)
    assert {each.file for each in found} == {__file__}
    assert all((scheduler, scaler, generators, sampler, ema, loader))


def test_nothing_is_found_when_everything_is_tracked():
    """Tracked objects, what is inside them, wrappers around them and harmless objects are not reported."""
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    wrapped = nn.DataParallel(net)
    inner = net[0]
    optimizer = torch.optim.Adam(net.parameters())
    first = torch.optim.lr_scheduler.ConstantLR(optimizer)
    scheduler = torch.optim.lr_scheduler.SequentialLR(
        optimizer, [first, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)], [3]
    )
    shared = torch.Generator()
    loader = DataLoader([1, 2], sampler=RandomSampler([1, 2], generator=shared), generator=shared)
    loss = nn.CrossEntropyLoss(weight=torch.ones(2))
    frozen = nn.Linear(7, 7).requires_grad_(requires_grad=False)
    evaluation = DataLoader([1, 2])
    bits = np.random.PCG64(0)
    draws = np.random.Generator(bits)
    own = RandomState(draws=draws)
    objects = {"model": net, "optimizer": optimizer, "scheduler": scheduler, "own": own}
    objects["loader"] = Stateful(loader=loader)
    assert find_untracked(here(), objects) == []
    assert all((wrapped, inner, loss, frozen, evaluation))


def test_a_scheduler_does_not_vouch_for_its_optimizer():
    """An optimizer that only a tracked scheduler holds is untracked."""
    net = nn.Linear(2, 2)
    scheduler = torch.optim.lr_scheduler.StepLR(torch.optim.SGD(net.parameters(), lr=0.1), 1)
    assert named(find_untracked(here(), {"model": net, "scheduler": scheduler})) == {"scheduler.optimizer": "optimizer"}


def test_a_module_does_not_vouch_for_its_attributes():
    """A generator that a tracked module holds as an attribute is not in its state dict, so it is reported."""
    net = nn.Linear(2, 2)
    net.rng = np.random.default_rng(0)
    assert named(find_untracked(here(), {"model": net})) == {"net.rng": "generator"}


def test_objects_are_found_inside_others():
    """Trainers, dicts, closures and bound methods are looked through."""

    class Trainer:
        def __init__(self, net):
            self.options = {"opt": torch.optim.SGD(net.parameters(), lr=0.1)}

    net = nn.Linear(2, 2)
    trainer = Trainer(net)
    hidden = torch.Generator()

    def draw():
        return torch.rand(1, generator=hidden)

    def loop(draw):
        assert trainer
        assert draw
        return find_untracked(here(), {"model": net})

    assert named(loop(draw)) == {"trainer.options['opt']": "optimizer", "draw.hidden": "generator"}


def test_a_frozen_copy_of_a_tracked_model_is_taken_for_an_average():
    """A hand-made EMA is a frozen deep copy: it has the shapes of the tracked model, so it is reported."""
    net = nn.Linear(3, 4)
    shadow = copy.deepcopy(net).requires_grad_(requires_grad=False)
    assert named(find_untracked(here(), {"model": net})) == {"shadow": "module"}
    assert shadow


def use_module_level():
    return find_untracked(here(), {}), MODULE_LEVEL


def test_globals_count_if_the_loop_or_a_function_beside_it_uses_them():
    """A global generator is found from the function that uses it, and from one that calls that function."""

    def unrelated():
        return find_untracked(here(), {})

    assert named(use_module_level()[0])["MODULE_LEVEL"] == "generator"
    assert "MODULE_LEVEL" not in named(unrelated())
    found = [each for each in find_untracked(here(), {}) if each.name == "MODULE_LEVEL"]
    assert len(found) == 1 == len([use_module_level])


def test_the_line_of_a_global_is_that_of_the_script():
    """In a script with a main function the line of a global is where the script binds it."""
    source = (
        "import sys, torch\n"
        "from samestep.state.audit import find_untracked\n"
        "rng = torch.Generator()\n"
        "def main():\n"
        "    rng.initial_seed()\n"
        "    return find_untracked(sys._getframe(), {})\n"
        "found = main()\n"
    )
    names = {"__name__": "script"}
    exec(compile(source, "train.py", "exec"), names)  # noqa: S102
    assert [(each.name, each.file, each.line) for each in names["found"]] == [("rng", "train.py", 3)]


def test_a_hostile_object_does_not_stop_the_audit():
    """An object whose every access raises does not raise through the audit."""

    class Hostile:
        @property
        def __class__(self):
            raise RuntimeError

        def __getattribute__(self, name):
            raise RuntimeError

    thing = Hostile()
    assert find_untracked(here(), {}) == []
    assert thing is not None


def test_the_audit_is_cheap():
    """A model of 1,000 layers and 100,000 plain objects cost well under a tenth of a second."""
    net = nn.ModuleList([nn.Linear(2, 2) for _ in range(1_000)])
    optimizer = torch.optim.Adam(net.parameters())
    rows = {str(index): [object() for _ in range(900)] for index in range(110)}
    begin = time.process_time()
    assert find_untracked(here(), {"model": net, "optimizer": optimizer}) == []
    assert time.process_time() - begin < 0.5
    assert rows
