"""Claims about the audit: what decides the next step and is tracked by nobody is named, with its line; no more."""

import copy
import itertools
import os
import random
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, RandomSampler, WeightedRandomSampler

import samestep
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


class Draws:
    """A data set that draws from a generator of its own."""

    def __init__(self, generator):
        self.generator = generator

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return index + torch.rand(1, generator=self.generator)


def test_generators_of_the_data_are_named_if_the_loop_draws_from_them_too():
    """A tracked loader keys its data set's generators and reads its own one's seed, but does not save them."""
    of_data, seed_only, drawn = (torch.Generator().manual_seed(0) for _ in range(3))
    first = samestep.DataLoader(Draws(of_data), shuffle=True, generator=seed_only)
    second = samestep.DataLoader(range(4), shuffle=True, generator=drawn)
    found = []
    for _ in range(1):
        torch.rand(1, generator=of_data)
        torch.rand(1, generator=drawn)
        found = find_untracked(here(), {"first": first, "second": second})
    assert named(found) == {"of_data": "generator", "drawn": "generator"}


def test_ordinary_loaders_give_no_alarm():
    """Generators that only the loader or its data use are not named, however they are bound."""
    seed, of_data = torch.Generator().manual_seed(0), np.random.default_rng(0)
    data = Draws(of_data)
    of_sampler, stock = torch.Generator(), torch.Generator()
    objects = {
        "plain": samestep.DataLoader(data, shuffle=True, generator=seed),
        "sampled": samestep.DataLoader(range(4), sampler=RandomSampler(range(4), generator=of_sampler)),
        "stock": samestep.DataLoader(range(4), shuffle=True, generator=stock, randomness="torch"),
    }
    for _ in range(2):
        for loader in objects.values():
            found = find_untracked(here(), objects)
            assert (found, bool(loader)) == ([], True)
    assert [len(list(objects[name])) for name in ("sampled", "stock")] == [4, 4]
    for _ in range(2):
        assert find_untracked(here(), objects) == []
    assert all((seed, of_data))


class Average:
    """A hand-written average with the two methods."""

    def __init__(self, model):
        self.decay = 0.9
        self.shadow = {name: each.detach().clone() for name, each in model.named_parameters()}

    def state_dict(self):
        return self.shadow

    def load_state_dict(self, state):
        self.shadow = state


class Silent:
    """A hand-written average without them."""

    def __init__(self, model):
        self.shadow = [each.detach().clone() for each in model.parameters()]


class Wrapper:
    """An object that passes on what a tracked one says."""

    def __init__(self, inner):
        self.inner, self.name = inner, "wrapped"

    def state_dict(self):
        return self.inner.state_dict()

    def load_state_dict(self, state):
        self.inner.load_state_dict(state)


class Warmup:
    """A scheduler of the user's own."""

    def __init__(self, optimizer):
        self.optimizer, self.done = optimizer, 0

    def state_dict(self):
        return {"done": self.done}

    def load_state_dict(self, state):
        self.done = state["done"]


def network():
    net = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    return net, torch.optim.SGD(net.parameters(), lr=0.1)


def test_objects_with_a_state_of_their_own_are_named():
    """Averages and warm-ups written by hand are named, once each; what passes a tracked state on is not."""
    net, optimizer = network()
    average, warmup, wrapper, silent = Average(net), Warmup(optimizer), Wrapper(net), Silent(net)
    found = []
    for _ in range(1):
        found = find_untracked(here(), {"net": net, "optimizer": optimizer})
        assert all((average, warmup, wrapper, silent))
    assert named(found) == {"average": "object", "warmup": "object", "silent.shadow": "weights"}


def test_copies_of_the_weights_are_named():
    """A dict, list or tuple of the weights' shapes that the loop carries is named: the best state, a shadow."""
    net, optimizer = network()
    net[0].bias.requires_grad_(requires_grad=False)
    shadow = {name: each.detach().clone() for name, each in net.named_parameters()}
    trained = tuple(each.detach().clone() for each in net.parameters() if each.requires_grad)
    best = None
    found = []
    for step in range(2):
        if step == 0:
            best = copy.deepcopy(net.state_dict())
        shadow["0.weight"].mul_(0.9)
        trained[0].mul_(0.9)
        found = find_untracked(here(), {"net": net, "optimizer": optimizer})
    assert named(found) == {"shadow": "weights", "trained": "weights", "best": "weights"}
    assert best


def test_the_weights_themselves_and_what_each_body_makes_anew_are_not_named():
    """Live weights and gradients, gradients taken anew, and a start that the loop never looks at give no alarm."""
    net, optimizer = network()
    start = copy.deepcopy(net.state_dict())
    parameters, state = list(net.parameters()), net.state_dict()
    old = None
    for _ in range(2):
        loss = net(torch.ones(4, 3)).sum() + len(parameters) + len(state)
        loss.backward()
        old = [each.grad for each in parameters]
        taken = torch.autograd.grad(net(torch.ones(4, 3)).sum(), parameters)
        assert len(taken) == len(old)
        assert find_untracked(here(), {"net": net, "optimizer": optimizer}) == []
        for batch in (1, 2):
            inner = {name: each.clone() for name, each in net.named_parameters()}
            assert find_untracked(here(), {"net": net, "optimizer": optimizer}) == []
            assert all((batch, inner))
        optimizer.zero_grad()
    assert start


def test_a_model_that_each_body_makes_anew_is_not_named():
    """A copy that each evaluation makes is nothing that a resume loses; an optimizer for the epoch's batches is."""
    net, _ = network()
    found = []
    for _ in range(2):
        found.append(named(find_untracked(here(), {"net": net})))
        copied = copy.deepcopy(net)
        copied(torch.ones(4, 3)).sum().backward()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(1):
            found.append(named(find_untracked(here(), {"net": net})))
            optimizer.step()
    # Seen from the batches, the copy of this body is still there and comes anew before the next look at it.
    assert found == [{}, {"optimizer": "optimizer"}, {}, {"optimizer": "optimizer"}]


def test_a_copy_that_is_read_behind_the_batches_is_named():
    """What the top of an epoch copies and its end reads is carried over the batches between them."""
    net, _ = network()
    found = []
    for _ in range(1):
        before = copy.deepcopy(net.state_dict())
        for _ in range(1):
            found = find_untracked(here(), {"net": net})
        assert before
    assert named(found) == {"before": "weights"}


def test_counters_are_named():
    """Iterators that begin anew in a new process are named if the loop uses them; those made anew are not."""

    class Holder:
        def __init__(self):
            self.numbers = itertools.count()

    numbers, turns, rows, unused = itertools.count(), itertools.cycle("ab"), iter([1, 2, 3]), iter([1])
    holder = Holder()
    found = []
    for _ in range(1):
        anew = iter([1, 2])
        assert [next(each) for each in (numbers, turns, rows, anew, holder.numbers)]
        found = find_untracked(here(), {})
    assert named(found) == dict.fromkeys(["numbers", "turns", "rows", "holder.numbers"], "counter")
    assert unused


def test_keys_that_are_objects_are_not_written():
    """A key that is no plain value stands by its type: writing a tensor would fetch it from its device."""

    class Key:
        def __repr__(self):
            raise AssertionError

    found = {Key(): torch.Generator(), "a": torch.Generator()}
    assert named(find_untracked(here(), {})) == {"found[<Key>]": "generator", "found['a']": "generator"}
    assert found


def test_names_do_not_depend_on_the_process():
    """One object under several names gets the same one in every process."""
    script = (
        "import sys, torch\n"
        "from samestep.state.audit import find_untracked\n"
        "zeta = alpha = torch.Generator()\n"
        "beta, gamma, delta = alpha, alpha, alpha\n"
        "def use(): return alpha, beta, gamma, delta, zeta\n"
        "def main(): return use, find_untracked(sys._getframe(), {})\n"
        "print([each.name for each in main()[1]])\n"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert printed == {"['alpha']\n"}


def test_the_audit_is_cheap_enough_for_every_save(count_calls):
    """A model of 300 layers costs few calls: an optimizer's state is not written out for its keys."""
    net = nn.Sequential(*(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)) for _ in range(150)))
    objects = {"net": net, "optimizer": torch.optim.Adam(net.parameters())}
    shadow = {name: each.detach().clone() for name, each in net.named_parameters()}
    frame, found = here(), []
    assert count_calls(lambda: found.extend(find_untracked(frame, objects))) < 200_000
    assert named(found) == {"shadow": "weights"}
    assert shadow


def test_the_audit_is_cheap(count_calls):
    """A model of 1,000 layers and 100,000 plain objects cost at most a dozen calls an object."""
    net = nn.ModuleList([nn.Linear(2, 2) for _ in range(1_000)])
    optimizer = torch.optim.Adam(net.parameters())
    rows = {str(index): [object() for _ in range(900)] for index in range(110)}
    frame, objects, found = here(), {"model": net, "optimizer": optimizer}, []
    assert count_calls(lambda: found.extend(find_untracked(frame, objects))) < 2_000_000
    assert found == []
    assert rows


def test_what_lies_far_from_the_loop_is_no_alarm():
    """A generator of a framework that hangs far behind a name of the loop, such as a test runner's, is not named."""
    net = nn.Linear(1, 1)
    chain = near = {"generator": torch.Generator()}
    for _ in range(9):
        chain = SimpleNamespace(inner=chain)
    assert near
    found = find_untracked(here(), {"net": net})
    assert [each.name for each in found] == ["near['generator']"]
    del near
    assert find_untracked(here(), {"net": net}) == []
    assert chain
