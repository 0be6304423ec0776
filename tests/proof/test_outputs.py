"""What trainings have written in the end is compared by its tensors, also in files that only unpickling could read."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from samestep.proof.outputs import changed_outputs
from samestep.proof.saves import Operation, Save


@dataclass
class Checkpoint:
    """A class of the user's, which `weights_only` refuses."""

    weight: torch.Tensor
    note: str = ""


def written(folder, **values):
    """Write files into three folders: those of reference, repeat and trial."""
    for number, name in enumerate(("reference", "repeat", "trial")):
        (folder / name).mkdir()
        for path, each in values.items():
            torch.save(each[number], folder / name / f"{path}.pt")
    return [folder / name for name in ("reference", "repeat", "trial")]


@pytest.mark.parametrize("wrap", [lambda each: {"weight": each}, Checkpoint], ids=["plain", "of a class"])
def test_a_tensor_that_differs(wrap, tmp_path):
    """A tensor that only the trial has otherwise is named, whatever holds it."""
    zero, one = wrap(torch.zeros(3)), wrap(torch.ones(3))
    found = changed_outputs(*written(tmp_path, best=[zero, zero, one], last=[one, one, one]))
    assert [each.partition(":")[0] for each in found] == ["best.pt"]


def test_what_differs_already(tmp_path):
    """What reference and repeat do not share says nothing; nor do numbers and texts."""
    zero, one = ({"weight": torch.full((3,), float(number))} for number in (0, 1))
    texts = [{"weight": torch.zeros(3), "resumed": each} for each in ("no", "no", "yes")]
    assert changed_outputs(*written(tmp_path, noise=[zero, one, zero], told=texts)) == []


def test_arrays(tmp_path):
    """Arrays of NumPy are compared too."""
    folders = written(tmp_path)
    for folder, value in zip(folders, (0, 0, 1), strict=True):
        np.savez(folder / "average.npz", weight=np.full(3, value))
    assert changed_outputs(*folders) == ["average.npz: weight"]


def test_kinds_of_names():
    """Numbers and random names are no kinds of their own."""

    def kinds(path):
        return Save(1, (Operation("open", path, 3000),)).kinds

    assert kinds("states/step-400/last.pt") == kinds("states/step-5/last.pt") != kinds("states/step-5/best.pt")
    assert kinds("ck-0a1b2c3d4e.pt") == kinds("ck-ff01cc99aa.pt")
