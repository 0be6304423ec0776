"""Claims about whole checkpoints of strangers, with right digests: read and restored into real objects, or refused."""

import copy
import json
import warnings

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sealing import places, seal, unsealed
from torch import nn

import samestep
from samestep.errors import SamestepError
from samestep.progress import Progress
from samestep.state.capture import capture, restore
from samestep.state.random import RandomState, isolated
from samestep.state.snapshot import Snapshot
from samestep.state.tensors import digest
from samestep.store.reading import Checkpoint
from samestep.store.writing import write_checkpoint


def make_objects():
    """Make one tracked object of every kind whose state is ours to read, trained for a step."""
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    model.register_buffer("cache", torch.ones(2), persistent=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(2, 2)).sum().backward()
    optimizer.step()
    progress = Progress(completed_steps=4, epoch=1, kind="epochs", best=[(0.5, 3)], loop_ends={1: ("epochs", 3, "a")})
    progress.values.total = {"a": [1, 2.5], "b": (torch.ones(2), {3, 4}), "c": float("nan")}
    return {
        "model": model,
        "optimizer": optimizer,
        "scheduler": torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer),
        "scaler": torch.amp.GradScaler("cpu"),
        "tensor": torch.zeros(2),
        "loader": samestep.DataLoader(list(range(6)), batch_size=2, shuffle=True, seed=3),
        "generator": np.random.Generator(np.random.MT19937(1)),
        "random": RandomState(),
        "run": progress,
    }


def fingerprint(objects):
    """Describe all state of objects to the bit."""
    return {
        name: (json.dumps(item.tree), {each: digest(tensor) for each, tensor in item.tensors.items()})
        for name, item in capture(objects).items()
    }


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    """Write a checkpoint of all objects, and give its folder and the content of its manifest."""
    with isolated():
        torch.manual_seed(1)
        items = capture(make_objects())
    path = write_checkpoint(tmp_path_factory.mktemp("pristine"), Snapshot(4, 1, items), {}).path
    return path, unsealed(path)


ODD = [
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        3,
        625,
        2**31,
        2**53,
        2**62,
        10**30,
        10**4000,
        0.5,
        -0.0,
        "",
        "a",
        "0.weight",
        "\0",
        "$kind",
    ),
    *([], [0], [1, 1], [2**40, 1], {}, {"a": 1}, {"$tensor": "value"}, {"$tensor": "0.weight"}, {"$tensor": "nowhere"}),
    *(
        {"$kind": "tuple", "value": []},
        {"$kind": "float", "value": "7ff8000000000000"},
        {"$kind": "int", "value": "0x1"},
    ),
    *({"$kind": "dict", "value": [[1, 2]]}, {"$kind": "enum", "class": "os:system", "value": []}, {"$same": 0}),
    {"$view": {"base": "0.weight", "dtype": "float32", "shape": [2**40], "strides": [0], "offset": 0}},
]


@st.composite
def spoiled(draw, content):
    """Spoil one to three places of the items: another value, another name, one less, or two exchanged."""
    content = copy.deepcopy(content)
    for _ in range(draw(st.integers(1, 3))):
        parent, key = draw(st.sampled_from(list(places(content["items"]))))
        what = draw(st.integers(0, 5))
        if what == 0:
            del parent[key]
        elif what == 1 and isinstance(parent, dict):
            parent[draw(st.sampled_from(["a", "", "$kind", "step", "0.forward", "params"]))] = parent.pop(key)
        elif what == 2:
            source, its_key = draw(st.sampled_from(list(places(content["items"]))))
            parent[key] = copy.deepcopy(source[its_key])
        else:
            parent[key] = copy.deepcopy(draw(st.sampled_from(ODD)))
    return content


def try_to_restore(path, live):
    """Read and restore as a resume does; give the error of ours, or None."""
    try:
        restore(live, Checkpoint(path).read().items)
    except SamestepError as error:
        return error
    return None


@pytest.mark.parametrize(
    "examples", [pytest.param(100, id="short"), pytest.param(2000, id="long", marks=pytest.mark.slow)]
)
def test_spoiled_checkpoints_are_restored_or_change_nothing(pristine, tmp_path, examples):
    """A checkpoint with any of its values replaced is restored so that it can be saved, or leaves all as it was."""
    path, content = pristine
    outcomes = {"restored": 0, "refused": 0}

    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(spoiled(content))
    def spoil(changed):
        (path / "manifest.json").write_bytes(seal(changed))
        with isolated(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of sets, and of devices that this machine lacks
            torch.manual_seed(2)
            live = make_objects()
            before = fingerprint(live)
            error = try_to_restore(path, live)
            if error is None:
                capture(live)
                outcomes["restored"] += 1
                return
            outcomes["refused"] += 1
            assert fingerprint(live) == before
            assert "already changed" not in error.message
            assert error.message.count(".") >= 1

    spoil()
    (path / "manifest.json").write_bytes(seal(content))
    assert outcomes["restored"] > examples // 50
    assert outcomes["refused"] > examples // 5


def test_the_pristine_one_is_restored(pristine):
    """The checkpoint that nobody spoiled is restored, and what it holds is captured again, to the bit."""
    path, content = pristine
    (path / "manifest.json").write_bytes(seal(content))
    with isolated():
        live = make_objects()
        assert try_to_restore(path, live) is None
        items = capture(live)
    assert {name: item.tree for name, item in items.items()} == {
        name: item["tree"] for name, item in content["items"].items()
    }
