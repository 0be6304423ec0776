"""Claims about random state: all of it comes back, safely loaded, and isolated blocks leave it alone."""

import io
import random

import numpy as np
import pytest
import torch

from samestep.errors import NotTracked, SamestepError, StateMismatch
from samestep.state.random import RandomState, isolated, seed_everything


def draw():
    return (
        random.random(),
        random.gauss(),
        np.random.rand(),
        np.random.randn(),
        torch.rand(1).item(),
        torch.randn(3).tolist(),
    )


def test_all_random_state_comes_back():
    """Python, NumPy and torch draw the same numbers again, cached halves of Gaussian pairs included."""
    random.gauss(), np.random.randn()
    state = RandomState()
    saved = state.state_dict()
    first = draw()
    state.load_state_dict(saved)
    assert draw() == first


def test_named_generators_come_back():
    """Generator objects of every library and bit generator come back with those of the process."""
    bits = (np.random.PCG64, np.random.PCG64DXSM, np.random.Philox, np.random.SFC64, np.random.MT19937)
    named = {kind.__name__: np.random.Generator(kind(1)) for kind in bits}
    own = random.Random(1), torch.Generator()
    state = RandomState(**named, python_own=own[0], torch_own=own[1])

    def draw_named():
        numbers = [each.integers(0, 2**32, 3, dtype=np.uint32).tolist() for each in named.values()]
        return numbers, own[0].random(), torch.rand(1, generator=own[1]).item()

    draw_named()
    saved = state.state_dict()
    first = draw_named()
    state.load_state_dict(saved)
    assert draw_named() == first


def test_random_state_loads_under_weights_only_rules():
    """transformers#34631, trl#3247: our random state is tensors and plain values, which weights_only accepts."""
    state = RandomState(philox=np.random.Generator(np.random.Philox(3)), legacy=np.random.RandomState(1))
    file = io.BytesIO()
    torch.save(state.state_dict(), file)
    file.seek(0)
    first = draw()
    state.load_state_dict(torch.load(file, weights_only=True, map_location="cpu"))
    assert draw() == first


@pytest.mark.parametrize("part", ["python", "numpy", "torch", "own"])
def test_damaged_random_state_is_an_error_that_names_it(part):
    """accelerate#4283, accelerate#3433: a part that cannot be loaded is named, and every generator stays as it was."""
    state = RandomState(own=random.Random(0))
    saved = state.state_dict()
    draw()
    if part == "own":
        saved["generators"][part] = (3, (1, 2), None)
    else:
        saved[part] = torch.zeros(3, dtype=torch.uint8)
    before = repr(state.state_dict())
    with pytest.raises(StateMismatch) as caught:
        state.load_state_dict(saved)
    assert caught.value.path == f"random.{part}"
    assert repr(state.state_dict()) == before


def test_devices_that_are_absent_are_left_out_with_a_warning():
    """Random state of devices that this machine lacks does not keep the rest from loading, and is mentioned."""
    state = RandomState()
    absent = "xpu" if torch.cuda.is_available() else "cuda"
    saved = {**state.state_dict(), absent: [torch.zeros(16, dtype=torch.uint8)]}
    first = draw()
    with pytest.warns(UserWarning, match=f"of 1 {absent} devices and this machine has 0"):
        state.load_state_dict(saved)
    assert draw() == first


def test_missing_parts_are_errors():
    """A state without one library, or with other generator objects, is refused."""
    saved = RandomState().state_dict()
    without = {key: value for key, value in saved.items() if key != "numpy"}
    with pytest.raises(StateMismatch, match="part of the random state is missing") as caught:
        RandomState().load_state_dict(without)
    assert caught.value.path == "random.numpy"
    with pytest.raises(StateMismatch, match="other generator objects"):
        RandomState(x=random.Random()).load_state_dict(saved)
    with pytest.raises(NotTracked, match="x was given something"):
        RandomState(x=3)
    with pytest.raises(NotTracked, match="isolated was given something") as caught:

        @isolated
        def evaluate():
            pass

    assert "@isolated()" in caught.value.hint


def test_isolated_leaves_random_state_alone_also_after_an_exception():
    """Lightning's isolate_rng forgets the generator after an exception; ours does not, as block or decorator."""
    own = np.random.default_rng(0)
    before = repr(RandomState(own=own).state_dict())

    @isolated(own)
    def evaluate(depth):
        draw()
        own.random()
        if depth:
            evaluate(depth - 1)
        raise ArithmeticError

    with isolated(own):
        draw()
        own.random()
    with pytest.raises(ArithmeticError):
        evaluate(2)
    assert repr(RandomState(own=own).state_dict()) == before


def test_seeding_does_what_the_libraries_do():
    """Plain seeds give the numbers that every tutorial gets: seed 42 of the slides."""
    assert seed_everything(42) == {"seed": 42, "python": 42, "numpy": 42, "torch": 42, "source": "argument"}
    assert random.random() == 0.6394267984578837
    assert np.random.randint(0, 2**31 - 1, dtype=np.int64) == 1608637542
    assert torch.empty((), dtype=torch.int64).random_().item() == 6909045637428952499


def test_the_environment_overrides_the_seed(monkeypatch):
    """SAMESTEP_SEED wins over the argument, and says so; a seed that cannot be used is an error."""
    monkeypatch.setenv("SAMESTEP_SEED", str(2**32 + 5))
    assert seed_everything(1) == {
        "seed": 2**32 + 5,
        "python": 2**32 + 5,
        "numpy": 5,
        "torch": 2**32 + 5,
        "source": "SAMESTEP_SEED",
    }
    monkeypatch.setenv("SAMESTEP_SEED", "many")
    with pytest.raises(SamestepError, match="cannot be used"):
        seed_everything(1)
    monkeypatch.delenv("SAMESTEP_SEED")
    for seed in (-1, 2**64, 1.5):
        with pytest.raises(SamestepError, match="cannot be used"):
            seed_everything(seed)
