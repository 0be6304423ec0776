"""What a script gives to Run and Keep and cannot mean: refused before anything is made or restored."""

import os

import numpy as np
import pytest
import torch
from test_loop import small, train
from test_mistakes_in_scripts import says

import samestep
from samestep.errors import SamestepError, UnsupportedValue
from samestep.testing import check_every_step

# --- the directory ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [samestep.Run, samestep.Store])
@pytest.mark.parametrize(
    ("directory", "message"),
    [
        ("", "has no name"),
        (" ", "has no name"),
        ("a\0b", "has no name"),
        (None, "not a path"),
        (5, "not a path"),
        (b"runs", "not a path"),
        ("s3://bucket/run", "is a URL"),
        ("file:///tmp/run", "is a URL"),
        ("~nobody-of-this-name/run", "home directory"),
    ],
)
def test_a_directory_that_cannot_be_meant_is_refused(make, directory, message, tmp_path, monkeypatch):
    """Nothing, a URL, bytes and numbers are refused as directories, and no folder such as "s3:" is made."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SamestepError, match=message) as caught:
        make(directory)
    says(caught, f"{make.__name__}(directory=…)", "expected:", "found:")
    assert list(tmp_path.iterdir()) == []


def test_a_tilde_means_the_home_directory(tmp_path, monkeypatch):
    """`Run("~/run")` works in the home directory, as in a shell, and makes no folder named "~"."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    samestep.Run("~/run").close()
    assert (tmp_path / "home" / "run" / "run.json").exists()
    assert not (tmp_path / "~").exists()
    assert samestep.Store("~/run").directory == tmp_path / "home" / "run" / "checkpoints"


def test_a_run_among_checkpoints_is_refused(tmp_path):
    """No run is made in a folder of checkpoints or in a checkpoint; the directory that is meant is named."""
    run, model, update = small(tmp_path / "run")
    train(run, update, 1)
    run.close()
    checkpoint = tmp_path / "run" / "checkpoints" / "step-000000001"
    for place in (checkpoint.parent, checkpoint, checkpoint / "deeper"):
        before = sorted(checkpoint.parent.rglob("*"))
        with pytest.raises(SamestepError, match=r"folder of checkpoints|a checkpoint, not") as caught:
            samestep.Run(place)
        says(caught, f"own directory, {tmp_path / 'run'}")
        assert sorted(checkpoint.parent.rglob("*")) == before
    samestep.Store(tmp_path / "store").save({"model": model}, step=1)
    with pytest.raises(SamestepError, match=r"checkpoints of a samestep\.Store"):
        samestep.Run(tmp_path / "store")
    samestep.Run(tmp_path / "run" / "another").close()


# --- arguments --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1.5, "abc", "", -1, 2**64, True, [1]])
def test_a_seed_that_is_none_is_refused(seed, tmp_path):
    """A seed that is no integer in [0, 2**64) is refused with the name of the argument, and no directory is made."""
    with pytest.raises(SamestepError, match="seed cannot be used") as caught:
        samestep.Run(tmp_path / "run", seed=seed)
    says(caught, "Run(seed=…)", "[0, 2**64)", repr(seed))
    assert not (tmp_path / "run").exists()


def test_integers_of_other_libraries_are_seeds_and_bounds(tmp_path):
    """NumPy's and torch's integers are taken as seeds and as numbers of steps."""
    run, _, update = small(tmp_path, seed=np.int64(3))
    assert torch.initial_seed() == 3
    assert train(run, update, torch.tensor(1)) == [0]


@pytest.mark.parametrize("value", [None, 5, b"model", "model", ["model", 5]])
def test_allow_missing_must_be_names(value, tmp_path):
    """What is no list of names is refused as allow_missing before the directory is touched, not when it is resumed."""
    with pytest.raises(SamestepError, match="allow_missing is not understood"):
        samestep.Run(tmp_path / "run", allow_missing=value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("value", [object(), torch.float32, {1, 2}, torch.ones(3), lambda: None])
def test_a_configuration_of_objects_is_refused(value, tmp_path):
    """A configuration that holds an object is refused by the path of the leaf, before the directory is touched."""
    with pytest.raises(UnsupportedValue) as caught:
        samestep.Run(tmp_path / "run", config={"model": {"sizes": [1, value]}})
    says(caught, "config.model.sizes[1]", type(value).__name__)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("kind", ["epochs", "steps"])
@pytest.mark.parametrize("bound", [2.5, 2.0, -1, "2", None, True, float("nan"), range(3), [1]])
def test_a_number_of_epochs_that_is_none_is_refused(kind, bound, tmp_path):
    """run.epochs and run.steps take whole numbers from 0; all else is refused before anything is restored."""
    run, _, _ = small(tmp_path)
    with pytest.raises(SamestepError, match=f"number of {kind} is not understood") as caught:
        next(iter(getattr(run, kind)(bound)))
    says(caught, f"run.{kind}", "whole number", repr(bound))
    assert not (tmp_path / "attempts.jsonl").exists()


@pytest.mark.parametrize("metric", ["loss", "val_loss", "valid/loss", "WER", "test.rmse", "Perplexity", "val error"])
def test_the_best_loss_needs_a_mode(metric):
    """Keep does not keep the highest loss for want of a word: a score that sounds low needs its mode."""
    with pytest.raises(SamestepError, match="lowest") as caught:
        samestep.Keep(best=1, metric=metric)
    says(caught, "Keep.mode", "mode='min'")
    assert samestep.Keep(best=1, metric=metric, mode="max").mode == "max"
    assert samestep.Keep(best=1, metric=metric, mode="min").mode == "min"


@pytest.mark.parametrize("metric", ["acc", "val_acc", "f1", "lossless_ratio", "terrain", "mirrored", "power", "auc"])
def test_other_scores_need_no_mode(metric):
    """A score whose name only holds the letters of a loss is best at its highest, as the default says."""
    assert samestep.Keep(best=1, metric=metric) == samestep.Keep(best=1, metric=metric, mode="max")


@pytest.mark.parametrize("arguments", [{"metric": "acc"}, {"best": 1, "metric": 5}, {"best": 1, "metric": ""}])
def test_a_keep_that_keeps_nothing_is_refused(arguments):
    """A metric without a number of best ones, and a metric that is no name, are refused."""
    with pytest.raises(SamestepError, match="score"):
        samestep.Keep(**arguments)


# --- values of any kind -----------------------------------------------------------------------------------


class Unspeakable:
    """An object of a foreign class that cannot even be shown."""

    def __repr__(self):
        raise RuntimeError("no repr")


class Incomparable:
    """An object of a foreign class that compares with nothing, and is no key."""

    __hash__ = None

    def __eq__(self, other):
        raise RuntimeError("no comparison")


def endless():
    """Make a list that holds itself."""
    own = []
    own.append(own)
    return own


ODD = {
    "a number of 5,000 digits": 10**5000,
    "one below zero": -(10**5000),
    "a list of one": [10**5000],
    "a list": [],
    "a list that holds itself": endless(),
    "a dict": {"a": [1]},
    "a fraction": 3.5,
    "not a number": float("nan"),
    "bytes": b"x",
    "half a letter": "\ud800",
    "an escape": "\x1b[2J",
    "a tensor": torch.ones(3),
    "a tensor of one": torch.tensor(1.5),
    "an array": np.ones(3),
    "an array of texts": np.array(["a", "b"]),
    "a set": {1},
    "a class": int,
    "what cannot be shown": Unspeakable(),
    "what cannot be compared": Incomparable(),
}


def in_a_loop(directory, act):
    run = samestep.Run(directory, save_every=None)
    run.track(model=torch.nn.Linear(1, 1))
    try:
        for _ in run.steps(1):
            act(run)
            run.step()
    finally:
        run.close()


def loaded_with(loader, **changed):
    loader.load_state_dict(loader.state_dict() | changed)


CALLS = {
    "Run(directory)": lambda _, odd: samestep.Run(odd).close(),
    **{
        f"Run({name})": lambda there, odd, name=name: samestep.Run(there, **{name: odd}).close()
        for name in ("seed", "save_every", "keep", "resume", "config", "allow_missing")
    },
    "Run(config) of one": lambda there, odd: samestep.Run(there, config={"a": odd}).close(),
    "run.epochs": lambda there, odd: next(iter(samestep.Run(there).epochs(odd)), None),
    "run.steps": lambda there, odd: next(iter(samestep.Run(there).steps(odd)), None),
    "run.track": lambda there, odd: samestep.Run(there).track(odd=odd),
    "run.step": lambda there, odd: in_a_loop(there, lambda run: run.step(odd=odd)),
    "run.score": lambda there, odd: in_a_loop(there, lambda run: run.score(odd=odd)),
    "run.state": lambda there, odd: in_a_loop(there, lambda run: setattr(run.state, "odd", odd)),
    **{
        f"Keep({name})": lambda _, odd, name=name: samestep.Keep(**{name: odd})
        for name in ("last", "best", "every", "mode")
    },
    "Keep(metric)": lambda _, odd: samestep.Keep(best=1, metric=odd),
    "DataLoader(seed)": lambda _, odd: list(samestep.DataLoader(range(2), seed=odd)),
    "DataLoader(randomness)": lambda _, odd: samestep.DataLoader(range(2), randomness=odd),
    "DataLoader.load_state_dict": lambda _, odd: samestep.DataLoader(range(2)).load_state_dict(odd),
    **{
        f"DataLoader.load_state_dict({name})": lambda _, odd, name=name: loaded_with(
            samestep.DataLoader(range(2), seed=0), **{name: odd}
        )
        for name in samestep.DataLoader(range(2), seed=0).state_dict()
    },
    "seed_everything": lambda _, odd: samestep.seed_everything(odd),
    "isolated": lambda _, odd: samestep.isolated(odd),
    "RandomState": lambda _, odd: samestep.RandomState(odd=odd),
    "RandomState.load_state_dict": lambda _, odd: samestep.RandomState().load_state_dict(odd),
    **{
        f"RandomState.load_state_dict({name})": lambda _, odd, name=name: samestep.RandomState().load_state_dict(
            samestep.RandomState().state_dict() | {name: odd}
        )
        for name in samestep.RandomState().state_dict()
    },
    "check_every_step(every)": lambda _, odd: check_every_step(lambda _: None, every=odd),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_is_no_argument_is_refused_in_one_sentence(name, tmp_path, monkeypatch):
    """Whatever a script gives to anything public, it is taken or refused by a SamestepError that can be printed."""
    monkeypatch.chdir(tmp_path)
    with samestep.isolated():
        for number, odd in enumerate(ODD.values()):
            said = ""
            try:
                CALLS[name](tmp_path / str(number), odd)
            except SamestepError as error:
                said = str(error)
            assert said.replace("\n", "").isprintable()


@pytest.mark.parametrize("make", [samestep.Run, samestep.Store])
def test_a_directory_that_the_system_refuses_is_refused_at_once(make, tmp_path, monkeypatch):
    """A name that is too long, half a letter, and a link to itself are refused with the system's reason."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    for directory, reason in (("a" * 256, "too long"), ("\ud800", "no file can have"), ("loop", "symbolic links")):
        with pytest.raises(SamestepError, match=reason) as caught:
            make(directory)
        says(caught, f"{make.__name__}(directory=…)")
    assert [each.name for each in tmp_path.iterdir()] == ["loop"]


def test_check_every_step_needs_something_to_call():
    """`check_every_step` of no function is refused."""
    with pytest.raises(SamestepError, match="not understood") as caught:
        check_every_step(5)
    says(caught, "check_every_step(make_run)", "found:    5")


def test_a_file_name_that_is_no_text_can_stand_in_the_configuration(tmp_path):
    """Bytes of a file's name that are no UTF-8 are recorded as escapes, and saving and resuming go on."""
    for steps in (1, 2):
        run, _, update = small(tmp_path, save_every=1, config={"data": os.fsdecode(b"d\xff"), os.fsdecode(b"\xff"): 1})
        assert train(run, update, steps) == [steps - 1]
        run.close()
