"""Claims about state from strangers, under right digests: refused by a path before anything changes, or restored."""

import copy
import json
import random
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn

import samestep
from samestep.errors import CorruptCheckpoint, SamestepError, UnsupportedValue
from samestep.progress import Progress, Values
from samestep.state.capture import capture, restore
from samestep.state.codec import decode, encode
from samestep.state.in_place import assign_in_place
from samestep.state.random import RandomState, isolated
from samestep.state.snapshot import Item
from samestep.state.tensors import digest
from samestep.tracked import Tracked


def make_objects():
    """Make one tracked object of every kind, trained for a step."""
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    model.register_buffer("cache", torch.ones(2), persistent=False)
    model[0].bias.requires_grad = False
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 2)).sum().backward()
    optimizer.step()
    progress = Progress(completed_steps=4, epoch=1, inside=True, kind="epochs", best=[(0.5, 3)])
    progress.values.total = [1, 2]
    return {
        "model": model,
        "optimizer": optimizer,
        "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1),
        "scaler": torch.amp.GradScaler("cpu"),
        "tensor": torch.zeros(2, dtype=torch.int64),
        "loader": samestep.DataLoader(list(range(6)), batch_size=2, shuffle=True, seed=3),
        "twister": np.random.Generator(np.random.MT19937(1)),
        "philox": np.random.Generator(np.random.Philox(1)),
        "random": RandomState(python=random.Random(1)),
        "run": progress,
    }


def fingerprint(objects):
    """Describe all state of objects to the bit."""
    return {
        name: (item.tree, {each: digest(tensor) for each, tensor in item.tensors.items()})
        for name, item in capture(objects).items()
    }


def _at(item, *path, value):
    def spoil(trees, tensors):
        place = trees[item]
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value

    return spoil


def _tensor(item, name, value):
    return lambda _, tensors: tensors[item].__setitem__(name, value)


def _random(path, value):
    """Change the state of random generators, decoded and encoded again."""

    def spoil(trees, tensors):
        state = decode(trees["random"], tensors["random"])
        place = state
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value if not callable(value) else value(place[path[-1]])
        trees["random"], tensors["random"] = encode(state, "random")

    return spoil


WEIGHT = ("state", "0.weight")
HOSTILE = {
    # modules: what is no tensor would be passed over, and the weight stay as it was
    "weight a number": _at("model", *WEIGHT, value=5),
    "weight a view": _at("model", *WEIGHT, value={"$view": {"base": "0.weight"}}),
    "weight a list": _at("model", *WEIGHT, value=[]),
    "weight without a name": _at("model", *WEIGHT, value={"$tensor": []}),
    "weight elsewhere": _at("model", *WEIGHT, value={"$tensor": "nowhere"}),
    "buffer a number": _at("model", "non_persistent", "cache", value=5),
    "buffer in a weight's place": _at("model", "non_persistent", "0.weight", value={"$tensor": "0.bias"}),
    "buffer in a method's place": _at("model", "non_persistent", "0.forward", value={"$tensor": "0.bias"}),
    "buffer in a flag's place": _at("model", "non_persistent", "0.training", value={"$tensor": "0.bias"}),
    "buffer of the state": _at("model", "non_persistent", "1.running_mean", value={"$tensor": "0.weight"}),
    "buffer without a name": _at("model", "non_persistent", "0.", value={"$tensor": "0.bias"}),
    "evaluating a number": _at("model", "evaluating", value=5),
    "evaluating nobody": _at("model", "evaluating", value=["7"]),
    "frozen a text": _at("model", "frozen", value="0.weight"),
    "frozen nobody": _at("model", "frozen", value=["7.weight"]),
    # optimizers
    "group a tuple": lambda trees, _: trees["optimizer"]["groups"][0].update({"$kind": "tuple", "value": []}),
    "group a number": _at("optimizer", "groups", value=[5]),
    "rate a text": _at("optimizer", "groups", 0, "lr", value="high"),
    "betas a number": _at("optimizer", "groups", 0, "betas", value=0.9),
    "moment of another shape": _tensor("optimizer", "state.model.0.weight.exp_avg", torch.ones(3)),
    "step of many": _tensor("optimizer", "state.model.0.weight.step", torch.ones(3, 2)),
    "state a list": _at("optimizer", "state", "model.0.weight", value=[]),
    "state a number": _at("optimizer", "state", "model.0.weight", value=5),
    "state of nobody": _at("optimizer", "state", "model.7.weight", value={}),
    "shared a number": _at("optimizer", "shared", value=5),
    "shared a text": _at("optimizer", "shared", value="ab"),
    "devices a number": _at("optimizer", "devices", value=5),
    # what torch loads without a look
    "scheduler's method": _at("scheduler", "state", "step", value=5),
    "scheduler's optimizer": _at("scheduler", "state", "optimizer", value=5),
    "scheduler's epoch a text": _at("scheduler", "state", "last_epoch", value="x"),
    "scheduler a list": _at("scheduler", "state", value=[]),
    "scale a text": _at("scaler", "scale", value="x"),
    # gradients, tensors
    "gradients a list": lambda trees, _: trees.update(gradients=[1]),
    "gradient a number": _at("gradients", "model.0.weight", value=5),
    "gradient of integers": _tensor("gradients", "model.0.weight", torch.ones(3, 2, dtype=torch.int64)),
    "gradient of doubles": _tensor("gradients", "model.0.weight", torch.ones(3, 2, dtype=torch.float64)),
    "gradient of nobody": _at("gradients", "model.7.weight", value={"$tensor": "model.0.weight"}),
    "gradient for integers": _at("tensor", "requires_grad", value=True),
    "tensor a number": _at("tensor", "value", value=5),
    # generators: NumPy reads memory wherever the position points to
    "twister far behind": _at("twister", "state", "state", "pos", value=10**8),
    "twister before": _at("twister", "state", "state", "pos", value=-(10**8)),
    "philox before": _at("philox", "state", "buffer_pos", value=-(10**8)),
    "philox behind": _at("philox", "state", "buffer_pos", value=5),
    "generator a number": _at("twister", "state", value=5),
    "numpy far behind": _random(("numpy", "state", "pos"), 10**8),
    "numpy a text": _random(("numpy", "state", "pos"), "0"),
    "python's gauss a text": _random(("python",), lambda state: (*state[:2], "x")),
    "python's gauss in an object": _random(("generators", "python"), lambda state: (*state[:2], "x")),
    "python too short": _random(("python",), lambda state: (state[0], state[1][:5], None)),
    "python's place behind": _random(("python",), lambda state: (state[0], (*state[1][:-1], 10**6), None)),
    "torch of noise": _random(("torch",), lambda state: torch.full_like(state, 255)),
    "random of nobody": lambda trees, _: trees["random"].update(quantum=1),
    "generators a number": _random(("generators",), 5),
    "generators a list": _random(("generators",), ["python"]),
    # loaders
    **{
        f"loader's {name} {value!r:.9}": _at("loader", name, value=value)
        for name, value in [
            *(("position", each) for each in (10**30, 4, -5, "x", 1.5, None, True)),
            *(("epoch", each) for each in (-1, "x", 10**30)),
            *(("seed", "x"), ("sampler", 5), ("open", "x"), ("version", True), ("version", 2)),
        ]
    },
    "loader's batches of none": lambda trees, _: trees["loader"].update(
        open=True, sampler={"batch_size": 0, "drop_last": False}
    ),
    "loader's batches without a word": lambda trees, _: trees["loader"].update(open=True, sampler={"batch_size": 2}),
    "loader's batches of other words": lambda trees, _: trees["loader"].update(open=True, sampler={"start": {}}),
    # progress
    **{
        f"progress's {name} {value!r:.9}": _at("run", name, value=value)
        for name, value in [
            *(("completed_steps", each) for each in (-5, "x", 10**30, None, True, 1.5)),
            *(("epoch", -1), ("inside", 1), ("loop", "1"), ("kind", 5), ("finished_at", -1), ("stopping", None)),
            *(("leader", 5), ("ends_bodies", "x"), ("top", 5), ("top", {"completed_steps": 1}), ("loop_ends", "abc")),
            *(("loop_ends", {"1": 5}), ("best", 5), ("best", [5]), ("best", [["x", 1]]), ("metrics_bytes", -4)),
            *(("values", 5), ("values", {"state_dict": 1}), ("values", {"load_state_dict": 1})),
        ]
    },
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_state_is_refused_before_anything_changes(name):
    """Nonsense in any state is an error that names its place, and every object is what it was, to the bit."""
    with isolated():
        saved, live = capture(make_objects()), make_objects()
        trees = {each: copy.deepcopy(item.tree) for each, item in saved.items()}
        tensors = {each: dict(item.tensors) for each, item in saved.items()}
        HOSTILE[name](trees, tensors)
        items = {each: replace(item, tree=trees[each], tensors=tensors[each]) for each, item in saved.items()}
        live["model"][0].weight.data += 1  # whatever is restored of it shows
        live["run"].values.total.append(3)
        before = fingerprint(live)
        with pytest.raises(SamestepError) as caught:
            restore(live, items)
        assert fingerprint(live) == before
        assert caught.value.path
        assert "already changed" not in caught.value.message


def test_what_is_not_spoiled_is_restored():
    """The same objects take the state that was not spoiled."""
    with isolated():
        source, live = make_objects(), make_objects()
        source["model"][0].weight.data += 1
        items, wanted = capture(source), fingerprint(source)
        restore(live, items)
        assert fingerprint(live) == wanted


def test_a_scheduler_loses_what_a_refused_state_has_put_into_it():
    """Names that a state adds to a scheduler, or to one inside of it, go when another object refuses its own."""
    with isolated():
        objects = make_objects()
        steps = [torch.optim.lr_scheduler.StepLR(objects["optimizer"], 1) for _ in range(2)]
        objects["scheduler"] = torch.optim.lr_scheduler.SequentialLR(objects["optimizer"], steps, [1])
        items = capture(objects)
        tree = copy.deepcopy(items["scheduler"].tree)
        tree["state"]["new"] = tree["state"]["_schedulers"][1]["newer"] = 5
        items["scheduler"] = replace(items["scheduler"], tree=tree)
        items["run"] = replace(items["run"], tree=[1])
        before = [set(vars(each)) for each in (objects["scheduler"], *steps)]
        with pytest.raises(SamestepError):
            restore(objects, items)
        assert [set(vars(each)) for each in (objects["scheduler"], *steps)] == before
        assert not hasattr(steps[1], "newer")


class Failing(dict):
    """Tensors on a disk that dies after so many of them have been read."""

    def __init__(self, tensors, times):
        super().__init__(tensors)
        self.left = times

    def __getitem__(self, name):
        self.left -= 1
        if self.left < 0:
            raise CorruptCheckpoint("The disk has died.")
        return super().__getitem__(name)


def test_what_the_checks_cannot_foresee_is_told_as_it_is():
    """Where a disk dies in the middle of restoring, the error does not say that nothing has been changed."""
    with isolated():
        saved, live = capture(make_objects()), make_objects()
        counted = Failing(saved["model"].tensors, 1000)
        restore(live, saved | {"model": replace(saved["model"], tensors=counted)})
        dying = Failing(saved["model"].tensors, 999 - counted.left)
        with pytest.raises(SamestepError, match="already changed") as caught:
            restore(live, saved | {"model": replace(saved["model"], tensors=dying)})
    assert "The disk has died" in caught.value.found


def test_progress_is_checked_where_it_is_first_read():
    """A run reads its progress before it restores: nonsense in it is an error of ours there too."""
    for tree in ([1], 5, {}, {"completed_steps": 1}):
        with pytest.raises(CorruptCheckpoint) as caught:
            Tracked.saved_progress({"run": Item("values", tree, {})})
        assert caught.value.path.startswith("run")


# --- trees that unfold, collide or reach far -----------------------------------------------------------


def shared(levels):
    """Make a tree of lists each of which holds the one below it twice: 2**levels places in a few hundred bytes."""
    tree = {"$shared": 0, "value": []}
    for number in range(1, levels):
        tree = {"$shared": number, "value": [tree, {"$same": number - 1}]}
    return tree


def test_shared_lists_do_not_unfold():
    """Lists that share lists over 90 levels are read, put into live values and written again without unfolding."""
    value = decode(shared(90), {})
    assert assign_in_place([], value) is not value
    live = Values()
    live.load_state_dict({"a": decode(shared(90), {})})
    live.load_state_dict({"a": decode(shared(90), {})})
    assert len(json.dumps(encode(live.state_dict(), "values")[0])) < 10_000


TREES = {
    "a fraction of a million digits": {"$kind": "fraction", "value": ["0x" + "f" * 10**6, "0x" + "7" * 10**6]},
    "numbers of one hash": {
        "$kind": "set",
        "value": [{"$kind": "int", "value": hex(i * (2**61 - 1))} for i in range(999)],
    },
    "keys of one hash": {
        "$kind": "dict",
        "value": [[{"$kind": "int", "value": hex(i * (2**61 - 1))}, 1] for i in range(999)],
    },
    "a key twice": {"$kind": "dict", "value": [[1, 1], [1, 2]]},
    "a member twice": {"$kind": "set", "value": [1, 1]},
    "a tensor as a key": {"$kind": "dict", "value": [[{"$tensor": "w"}, 1]]},
    "a tensor deep in a key": {
        "$kind": "frozenset",
        "value": [{"$kind": "tuple", "value": [{"$kind": "frozenset", "value": [{"$tensor": "w"}]}]}],
    },
    "a dtype of many": {"$kind": "numpy.dtype", "value": "i4," * 10},
    "a dtype of brackets": {"$kind": "numpy.dtype", "value": "(" * 1000},
    "a size of 70 bits": {"$kind": "torch.Size", "value": [2**70]},
    "a package of torch": {"$kind": "torch.dtype", "value": "onnx"},
    "a layout of torch": {"$kind": "torch.layout", "value": "_dynamo"},
    "a quantized view": {"$view": {"base": "w", "dtype": "quint8", "shape": [2], "strides": [1], "offset": 0}},
    "a view of half bytes": {"$view": {"base": "w", "dtype": "uint4", "shape": [2], "strides": [1], "offset": 0}},
    "100,000 shared levels": None,
}


@pytest.mark.parametrize("name", TREES)
def test_trees_made_to_deceive(name):
    """Trees that take hours, collide, or name what no state holds are damage, by one sentence."""
    tree = TREES[name]
    if tree is None:
        tree = []
        for number in range(100_000):
            tree = {"$shared": number, "value": tree}
    with pytest.raises(CorruptCheckpoint) as caught:
        decode(tree, {"w": torch.zeros(3)})
    assert caught.value.message.count(".") == 1


def test_names_of_torch_are_looked_up_without_importing():
    """A tree that names a package of torch does not have it imported: torch does so when asked for the attribute."""
    code = """
import sys, contextlib
from samestep.state.codec import decode
from samestep.errors import SamestepError
for kind in ("torch.dtype", "torch.layout", "torch.memory_format"):
    for name in ("onnx", "_dynamo", "_inductor", "_export"):
        before = set(sys.modules)
        with contextlib.suppress(SamestepError):
            decode({"$kind": kind, "value": name}, {})
        assert set(sys.modules) == before, name
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_long_keys_do_not_multiply():
    """A key of megabytes over thousands of values makes no path of megabytes for each of them."""
    tree = {"k" * 10**7: {str(index): [index] for index in range(10_000)}}
    assert decode(tree, {}) == tree
    with pytest.raises(CorruptCheckpoint) as caught:
        decode({"k" * 10**7: {"$kind": "no such"}}, {})
    assert len(caught.value.path) < 300


def test_numbers_that_python_does_not_write():
    """Keys of more than 4,300 digits are stored and read, and an error can name what lies beneath them."""
    value = {10**5000: [1], -(10**5000): [2]}
    assert decode(*encode(value, "x")) == value
    with pytest.raises(UnsupportedValue, match="too long to write"):
        encode({10**5000: object()}, "x")
    assert "too long" in str(SamestepError("No.", found=10**5000))


def test_keys_hold_no_tensors():
    """A tensor is refused anywhere in a key or a member of a set, for two tensors are never one key."""
    for key in (torch.zeros(1), (1, torch.zeros(1)), frozenset({(torch.zeros(1),)})):
        for value in ({key: 1}, {key}):
            with pytest.raises(UnsupportedValue, match="tensor as a key"):
                encode(value, "x")


def test_tensors_under_sets_have_one_name_in_every_process():
    """A tensor whose key is a frozenset is named by its place: the key's text is another one in every process."""
    value = {"a": {1: torch.zeros(1), frozenset({"b", "c"}): torch.ones(1), (frozenset(), 2): torch.ones(2)}}
    tree, tensors = encode(value, "x")
    assert list(tensors) == ["a.1", "a.#1", "a.#2"]
    assert decode(tree, tensors)["a"][frozenset({"b", "c"})].equal(torch.ones(1))


def test_fractions_have_a_longest():
    """A fraction that would not be read again is not written."""
    assert decode(*encode(fraction(2**16), "x")) == fraction(2**16)
    with pytest.raises(UnsupportedValue, match="bits"):
        encode(fraction(2**18), "x")


def fraction(bits):
    """Make a fraction of so many bits."""
    return Fraction(2**bits, 3)
