"""What a user changes between two starts of a script: refused, told, or taken up; never passed over in silence."""

import warnings

import numpy as np
import pytest
import torch
from test_loop import small, train
from test_mistakes_in_scripts import says
from torch import nn
from torch.nn.functional import mse_loss

import samestep
from samestep.errors import StateMismatch

RATES = torch.optim.lr_scheduler


class Chain(nn.Module):
    """Layers of the given names, applied in their order."""

    def __init__(self, names, width=4):
        super().__init__()
        self.names = names
        sizes = [2, *(len(names) - 1) * [width], 1]
        for name, width_in, width_out in zip(names, sizes, sizes[1:], strict=False):
            setattr(self, name, nn.Linear(width_in, width_out))

    def forward(self, x):
        for name in self.names:
            x = getattr(self, name)(x)
        return x


def session(directory, steps, *, names="abc", width=4, optimizer=torch.optim.Adam, scheduler=None, **settings):
    """Build a training from scratch and go on with it to a number of steps, as a started script does."""
    run = samestep.Run(directory, **{"seed": 0, "save_every": None} | settings)
    model = Chain(list(names), width)
    adam = optimizer(model.parameters())
    objects = {"model": model, "optimizer": adam} | ({} if scheduler is None else {"scheduler": scheduler(adam)})
    run.track(**objects)
    try:
        for _ in run.steps(steps):
            loss = mse_loss(model(torch.rand(8, 2)), torch.rand(8, 1))
            adam.zero_grad()
            loss.backward()
            adam.step()
            if scheduler is not None:
                objects["scheduler"].step()
            run.step(loss=loss)
    finally:
        run.close()
    return objects


def refusal(directory, **changes):
    """Train to step 2, change the script, and give the error that its resume gets."""
    session(directory, 2, **changes.pop("before", {}))
    with pytest.raises(StateMismatch) as caught:
        session(directory, 4, **changes)
    session(directory, 3)  # nothing was damaged: the script as it was goes on
    return caught


ARCHITECTURES = {
    "added": ({"names": "abcd"}, ["d.weight is in the live object but not in the checkpoint: float32[1, 4]"]),
    "removed": ({"names": "ab"}, ["c.weight is in the checkpoint but not in the live object: float32[1, 4]"]),
    "renamed": ({"names": "axc"}, ["b.weight is in the checkpoint", "x.weight is in the live object", "[4, 4]"]),
    "widened": ({"width": 5}, ["b.weight is float32[4, 4] in the checkpoint and float32[5, 5] in the live object"]),
}


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_another_architecture_is_described_by_names_and_shapes(kind, tmp_path):
    """A layer that is added, removed, renamed or widened is named with its shape, and nothing is changed."""
    change, parts = ARCHITECTURES[kind]
    says(refusal(tmp_path, **change), "'model' does not fit", "where:    model", *parts)


def test_a_long_list_of_differences_is_cut(tmp_path):
    """Of 82 differences the first ten are shown, and how many more there are."""
    session(tmp_path, 1, names=[f"layer_{n}" for n in range(41)])
    with pytest.raises(StateMismatch) as caught:
        session(tmp_path, 2, names=[f"layer_{n}" for n in range(41)], width=8)
    says(caught, "layer_0.weight", "layer_4.bias", "and 71 more")
    assert "layer_5" not in str(caught.value)


def test_swapped_layers_of_one_shape_are_named(tmp_path):
    """Two layers of one shape that change places are named, each once, and only they."""
    session(tmp_path, 1, names="abcd")
    for change in ({"names": "acbd"}, {"names": "abcd", "optimizer": _swapped}):
        with pytest.raises(StateMismatch) as caught:
            session(tmp_path, 2, **change)
        says(caught, "'optimizer' does not fit", "model.b.weight in the checkpoint, model.c.weight in the live object")
        assert "model.a" not in str(caught.value)
        assert "further" not in str(caught.value)


def _swapped(parameters):
    a, a_bias, b, b_bias, c, c_bias, *rest = parameters
    return torch.optim.Adam([a, a_bias, c, c_bias, b, b_bias, *rest])


def test_another_class_of_optimizer_or_scheduler_is_named(tmp_path):
    """SGD in place of Adam, Adam in place of AdamW and another scheduler are refused by the names of both classes."""
    for before, now in ((torch.optim.Adam, torch.optim.SGD), (torch.optim.AdamW, torch.optim.Adam)):
        directory = tmp_path / before.__name__
        session(directory, 1, optimizer=before)
        with pytest.raises(StateMismatch, match="another kind of optimizer") as caught:
            session(directory, 2, optimizer=now)
        says(caught, f"expected: {before.__name__}", f"found:    {now.__name__}", "allow_missing")
    session(tmp_path / "rates", 1, scheduler=lambda adam: RATES.StepLR(adam, 2))
    with pytest.raises(StateMismatch, match="another kind of scheduler"):
        session(tmp_path / "rates", 2, scheduler=lambda adam: RATES.ExponentialLR(adam, 0.9))


def test_a_refused_object_begins_anew_under_another_name(tmp_path):
    """What the message says works: under another name, with both in allow_missing, an optimizer begins anew."""
    session(tmp_path, 2)
    run = samestep.Run(tmp_path, seed=0, save_every=None, allow_missing=["optimizer", "sgd"])
    model = Chain("abc")
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    run.track(model=model, sgd=sgd)
    for _ in run.steps(3):
        sgd.step()
        run.step()
    assert run.completed_steps == 3


def test_names_that_come_and_go_are_said_with_what_allows_them(tmp_path):
    """A name that only one side has is named with its side, and the argument that allows it can be copied."""
    session(tmp_path, 1, scheduler=lambda adam: RATES.StepLR(adam, 2))
    with pytest.raises(StateMismatch, match="do not track the same objects") as caught:
        session(tmp_path, 2)
    says(caught, "scheduler is in the checkpoint but not tracked here", 'allow_missing=["scheduler"]')
    session(tmp_path, 2, allow_missing=["scheduler"])
    with pytest.raises(StateMismatch) as caught:
        session(tmp_path, 3, scheduler=lambda adam: RATES.StepLR(adam, 2))
    says(caught, "scheduler is tracked here but not in the checkpoint", 'allow_missing=["scheduler"]')


# --- settings that the checkpoint overrides ---------------------------------------------------------------


def warned(directory, steps, **changes):
    """Go on, and give the texts of the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        objects = session(directory, steps, **changes)
    return objects, [str(each.message) for each in caught]


SETTINGS = {
    "lr": ({"optimizer": lambda p: torch.optim.Adam(p, lr=0.5)}, "optimizer.lr: 0.001 -> 0.5"),
    "betas": ({"optimizer": lambda p: torch.optim.Adam(p, betas=(0.5, 0.9))}, "optimizer.betas: [0.9, 0.999] -> [0.5"),
    "foreach": ({"optimizer": lambda p: torch.optim.Adam(p, amsgrad=True)}, "optimizer.amsgrad: False -> True"),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_hyperparameter_that_is_edited_between_two_starts_is_told(name, tmp_path):
    """An edited learning rate and its kin have no effect on a resume: that is said, at each start, with both values."""
    change, line = SETTINGS[name]
    session(tmp_path, 1)
    for steps in (2, 3):
        objects, (text,) = warned(tmp_path, steps, **change)
        assert "has no effect" in text.splitlines()[0]
        assert line in text
        assert objects["optimizer"].param_groups[0]["lr"] == 0.001


def test_an_edited_scheduler_is_told(tmp_path):
    """Another length of a cosine has no effect on a resume, and that is said."""
    session(tmp_path, 1, scheduler=lambda adam: RATES.CosineAnnealingLR(adam, 10))
    _, (text,) = warned(tmp_path, 2, scheduler=lambda adam: RATES.CosineAnnealingLR(adam, 20))
    assert "scheduler.T_max: 10 -> 20" in text


def test_rates_that_a_scheduler_has_changed_give_no_alarm(tmp_path):
    """A script that is started again as it was is silent, whatever schedulers have done to its rates."""
    kinds = {
        "step": lambda adam: RATES.StepLR(adam, 1, gamma=0.5),
        "warm": lambda adam: RATES.LinearLR(adam, 0.1, total_iters=3),
        "chain": lambda adam: RATES.SequentialLR(
            adam, [RATES.ConstantLR(adam, 0.1, 2), RATES.ExponentialLR(adam, 0.9)], [2]
        ),
        "one_cycle": lambda adam: RATES.OneCycleLR(adam, 0.1, total_steps=9),
    }
    for name, scheduler in kinds.items():
        for steps in (2, 4, 6):
            assert warned(tmp_path / name, steps, scheduler=scheduler)[1] == []


def test_settings_that_the_loop_sets_give_no_alarm(tmp_path):
    """A rate that the script builds with and sets in its loop too is in force, so nothing is said of it."""
    session(tmp_path, 1)
    for steps, expected in ((2, 1), (3, 0)):
        run = samestep.Run(tmp_path, seed=0, save_every=None)
        model = Chain("abc")
        optimizer = torch.optim.Adam(model.parameters(), lr=0.5)
        run.track(model=model, optimizer=optimizer)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in run.steps(steps):
                optimizer.param_groups[0]["lr"] = 0.5
                run.step()
        assert len(caught) == expected
        run.close()


def test_a_lambda_in_a_scheduler_is_resumed_in_silence(tmp_path):
    """R6: a LambdaLR with a lambda resumes to the same weights and rates; the lambda itself comes from the script."""
    rate = {"scheduler": lambda adam: RATES.LambdaLR(adam, lambda step: 0.9**step)}
    whole, _ = warned(tmp_path / "whole", 6, **rate)
    warned(tmp_path / "parts", 3, **rate)
    parts, texts = warned(tmp_path / "parts", 6, **rate)
    assert texts == []
    assert parts["optimizer"].param_groups[0]["lr"] == whole["optimizer"].param_groups[0]["lr"] == 0.001 * 0.9**6
    assert all(map(torch.equal, parts["model"].parameters(), whole["model"].parameters()))


def test_another_seed_of_the_run_is_told(tmp_path):
    """Another seed in the script is named when the checkpoint's random numbers go on."""
    session(tmp_path, 1)
    _, (text,) = warned(tmp_path, 2, seed=5)
    assert "training.seed: 0 -> 5" in text


# --- the data ---------------------------------------------------------------------------------------------


class Numbers(torch.utils.data.Dataset):
    """Numbers with a fingerprint."""

    def __init__(self, length=12, mark="a"):
        self.length, self.mark = length, mark

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return float(index)

    def fingerprint(self):
        return self.mark


class OtherNumbers(Numbers):
    """The same numbers by another class."""


DATA = {
    "length": (lambda: samestep.DataLoader(Numbers(16), 4), "loader.dataset.length", "12", "16"),
    "type": (lambda: samestep.DataLoader(OtherNumbers(), 4), "loader.dataset.type", "Numbers", "OtherNumbers"),
    "fingerprint": (lambda: samestep.DataLoader(Numbers(mark="b"), 4), "loader.dataset.fingerprint", "a", "b"),
    "batch size": (lambda: samestep.DataLoader(Numbers(), 6), "loader.batch_size", "4", "6"),
    "order": (lambda: samestep.DataLoader(Numbers(), 4, shuffle=True), "loader.order", "sequential", "shuffled"),
}


@pytest.mark.parametrize("kind", DATA)
def test_another_data_set_is_named_with_its_loader(kind, tmp_path):
    """Other data, batches or order are refused by the loader's name, what is different, and both values."""
    make, path, expected, found = DATA[kind]
    for loader, is_right in ((samestep.DataLoader(Numbers(), 4), True), (make(), False)):
        run, _, update = small(tmp_path)
        run.track(loader=loader)
        if is_right:
            train(run, update, 1)
        else:
            with pytest.raises(StateMismatch) as caught:
                train(run, update, 2)
            says(caught, path, f"expected: {expected}", f"found:    {found}", "allow_missing")
        run.close()


@pytest.mark.parametrize("state", [None, [], {"a": 1}, "state"])
def test_what_is_no_state_of_a_loader_is_refused(state):
    """None, a list or a foreign dict given to load_state_dict is refused in one sentence."""
    with pytest.raises(StateMismatch, match="not the state of a samestep"):
        samestep.DataLoader(Numbers()).load_state_dict(state)


@pytest.mark.parametrize("seed", [1.5, "7", True, np.float64(2)])
def test_a_loader_seed_that_is_no_integer_is_refused(seed):
    """The seed of a loader is an integer: anything else would be hashed by its spelling."""
    with pytest.raises(samestep.SamestepError, match="seed cannot be used"):
        samestep.DataLoader(Numbers(), seed=seed)


def test_settings_that_are_no_json_give_no_alarm(tmp_path):
    """The infinite best of ReduceLROnPlateau is the same after the way through the record."""
    for steps in (2, 4):
        run, model, update = small(tmp_path)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)
        run.track(second=optimizer, scheduler=scheduler)
        for _ in run.steps(steps):
            run.step(loss=update())
            scheduler.step(1.0)
        run.close()


# --- the config -------------------------------------------------------------------------------------------


def resumed_with(directory, before, now):
    """Train a step under one config, go on under another, and give the texts of the warnings."""
    session(directory, 1, config=before)
    return warned(directory, 2, config=now)[1]


def test_another_config_is_one_line_without_an_alarm(tmp_path):
    """More epochs and another rate in the config are told in one line with both values; nothing is said of bits."""
    (text,) = resumed_with(tmp_path, {"epochs": 4, "lr": 0.1}, {"epochs": 6, "lr": 0.2})
    assert text == "step-000000001 was written with another config: config.epochs: 4 -> 6, config.lr: 0.1 -> 0.2"


def test_another_config_stands_behind_what_changes_bits(tmp_path):
    """Beside another seed, which is graded, the config is one line more, without a grade."""
    session(tmp_path, 1, config={"epochs": 4})
    _, (text,) = warned(tmp_path, 2, config={"epochs": 6}, seed=5)
    assert text.splitlines()[1:] == [
        "  training.seed: 0 -> 5 (may change bits)",
        "  another config: config.epochs: 4 -> 6",
    ]
