"""What a script gives to Run and Keep and cannot mean: refused before anything is made or restored."""

import numpy as np
import pytest
import torch
from test_loop import small, train
from test_mistakes_in_scripts import says

import samestep
from samestep.errors import SamestepError, UnsupportedValue

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
