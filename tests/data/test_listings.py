"""Claims about the names that a data set lists: their order is part of what a state belongs to."""

import itertools
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset

import samestep
from samestep.data.listing import listings
from samestep.data.loader import DataLoader
from samestep.errors import StateMismatch

NAMES = ["b.png", "a.png", "d.png", "c.png"]


class Files(Dataset):
    """Reads a number from each file of a list."""

    def __init__(self, files):
        self.files = files

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        each = self.files[index]
        return float(Path(os.fsdecode(each[0] if isinstance(each, tuple) else each)).read_text())


class Wrapped(Dataset):
    """Reads from the data set inside, as those do that add a transform."""

    def __init__(self, inner):
        self.inner = inner

    def __len__(self):
        return len(self.inner)

    def __getitem__(self, index):
        return self.inner[index]


def files_in(folder):
    """Write a number into each of some files, and give their paths in no order."""
    folder.mkdir()
    for number, name in enumerate(NAMES):
        (folder / name).write_text(str(number))
    return [folder / name for name in NAMES]


def state_of_names(names):
    return state_of(Files(names))


def state_of(dataset):
    return DataLoader(dataset, batch_size=2, shuffle=True, seed=0).state_dict()


FORMS = {
    "texts": lambda paths: [str(each) for each in paths],
    "paths": lambda paths: paths,
    "bytes": lambda paths: [os.fsencode(each) for each in paths],
    "a tuple": lambda paths: tuple(map(str, paths)),
    "an array": lambda paths: np.array([str(each) for each in paths]),
    "an array of objects": lambda paths: np.array([str(each) for each in paths], dtype=object),
    "pairs with a class": lambda paths: [(str(each), 3) for each in paths],
}
WRAPS = {
    "alone": lambda files: files,
    "in a wrapper": Wrapped,
    "in a subset": lambda files: Subset(Wrapped(files), [2, 0, 1]),
    "beside another": lambda files: ConcatDataset([Files(["one"]), files]),
}


@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_files_in_another_order_are_refused(form, wrap, tmp_path):
    """torchvision#192, VeOmni#330: files that are listed in another order than before the kill are refused by name."""
    paths = files_in(tmp_path / "data")
    state = state_of(wrap(Files(form(paths))))
    same = DataLoader(wrap(Files(form(paths))), batch_size=2, shuffle=True, seed=0)
    same.load_state_dict(state)
    other = DataLoader(wrap(Files(form(sorted(paths)))), batch_size=2, shuffle=True, seed=0)
    before = other.state_dict()
    with pytest.raises(StateMismatch, match="same names in another order") as caught:
        other.load_state_dict(state)
    assert caught.value.path.endswith("files")
    assert "sorted" in caught.value.hint
    assert other.state_dict() == before


def test_a_training_on_files_in_another_order_does_not_go_on(tmp_path):
    """torchvision#192, VeOmni#330: the run refuses before it changes anything, and goes on with the old order."""
    paths = list(map(str, files_in(tmp_path / "data")))

    def start(files, steps):
        run = samestep.Run(tmp_path / "run", seed=0, save_every=1)
        total = torch.zeros(())
        loader = DataLoader(Files(files), batch_size=1, shuffle=True)
        run.track(total=total, loader=loader)
        for _ in run.epochs(2):
            for x in loader:
                total.mul_(3).add_(x[0])
                run.step()
                if run.completed_steps == steps:
                    run.close()
                    return total
        run.close()
        return total

    whole = start(paths, None)
    (tmp_path / "run").rename(tmp_path / "whole")
    start(paths, 2)
    with pytest.raises(StateMismatch, match="another order"):
        start(sorted(paths), None)
    assert torch.equal(start(paths, None), whole)


def test_a_data_set_built_from_a_set_is_refused_in_another_process():
    """Names listed by iterating a set stand in another order under another hash seed (torchgeo PR#1918)."""
    text = f"import sys; sys.stdout.write('|'.join(set({[*NAMES, 'e.png', 'f.png']!r})))"
    orders = [
        subprocess.run(
            [sys.executable, "-c", text],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split("|")
        for seed in ("1", "2")
    ]
    assert sorted(orders[0]) == sorted(orders[1])
    with pytest.raises(StateMismatch, match="another order"):
        DataLoader(Files(orders[1]), batch_size=2, shuffle=True, seed=0).load_state_dict(state_of_names(orders[0]))


def test_data_that_was_moved_is_the_same(tmp_path):
    """The folder that all files lie in does not count; folders below it do."""
    names = ["cat/1.png", "cat/2.png", "dog/1.png"]
    here, there = ([str(root / name) for name in names] for root in (tmp_path / "a", tmp_path / "b" / "c"))
    DataLoader(Files(there), batch_size=2, shuffle=True, seed=0).load_state_dict(state_of_names(here))
    swapped = [there[2], there[1], there[0]]
    with pytest.raises(StateMismatch, match="another order"):
        DataLoader(Files(swapped), batch_size=2, shuffle=True, seed=0).load_state_dict(state_of_names(here))


def test_other_names_are_mentioned():
    """A list that holds other names may belong to other samples: that is warned of, and no reason to refuse."""
    loader = DataLoader(Files(["a", "c"]), batch_size=2, shuffle=True, seed=0)
    with pytest.warns(UserWarning, match="'files' holds other names"):
        loader.load_state_dict(state_of_names(["a", "b"]))


def test_an_order_that_the_loop_gives_each_epoch_is_its_own_affair():
    """What counts is the order in which the data set was built: one shuffled at each epoch's top resumes there."""

    def shuffle(files, epoch):
        files.files = sorted(files.files)
        random.Random(epoch).shuffle(files.files)

    first, second = Files(list(NAMES)), Files(list(NAMES))
    loader = DataLoader(first, batch_size=2, seed=0)
    shuffle(first, 5)
    DataLoader(second, batch_size=2, seed=0).load_state_dict(loader.state_dict())


def test_a_fingerprint_stands_for_the_lists():
    """A data set with a fingerprint of its own is compared by that alone; one that was added since is accepted."""

    class Known(Files):
        def fingerprint(self):
            return "v1"

    Known.__qualname__ = "Files"
    for saved in (state_of_names(["a", "b"]), state_of_names(["b", "a"])):
        DataLoader(Known(["a", "b"]), batch_size=2, shuffle=True, seed=0).load_state_dict(saved)


def test_states_without_lists_resume():
    """A state that was saved before lists were looked at is taken as it is."""
    state = state_of_names(["a", "b"])
    del state["lists"]
    DataLoader(Files(["b", "a"]), batch_size=2, shuffle=True, seed=0).load_state_dict(state)


def test_only_lists_of_names_count():
    """Numbers, texts of one value, empty lists and tensors are no names; a list that is held twice counts once."""
    dataset = Files(["a", "b"])
    dataset.same = dataset.files
    dataset.other = [1, 2], [], ["a"], [("a", 1), (2, 3)], [[], ["a"]], torch.zeros(2), "abc", np.zeros(3), None
    for number, value in enumerate(dataset.other):
        setattr(dataset, f"value{number}", value)
    dataset.itself = dataset
    assert list(listings(dataset)) == ["files"]


def test_names_that_are_cut_or_joined_elsewhere_differ():
    """No two lists of names digest alike because their texts joined would be the same."""
    lists = [["a", "bc"], ["ab", "c"], ["a", "b", "c"], ["a", "b"], ["b", "a"], ["x/a", "y/a"], ["x/y/a", "x/z/a"]]
    digests = [listings(Files(names))["files"] for names in lists]
    assert all(one != other for one, other in itertools.combinations(digests, 2))
