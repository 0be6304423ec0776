"""Claims about the corpus of `make fuzz`, run without its machinery."""

import importlib
import random
from pathlib import Path

import pytest

CORPUS = Path(__file__).parents[2] / "fuzz" / "corpus"
TARGETS = ["manifest", "safetensors_header", "tree"]


@pytest.mark.parametrize("name", TARGETS)
def test_what_fuzzing_has_reached_stays_well(name):
    """Every kept input, those that once broke something among them, is read or refused by an error of ours."""
    check = importlib.import_module(name).check
    inputs = sorted((CORPUS / name).iterdir())
    assert len(inputs) > 20
    for path in inputs:
        check(path.read_bytes())


@pytest.mark.parametrize("name", TARGETS[:2])
def test_inputs_changed_by_their_structure(name):
    """Inputs whose values are replaced, doubled, removed or renamed are read or refused by an error of ours."""
    target, draw = importlib.import_module(name), random.Random(20261130)
    inputs = [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]
    for _ in range(500):
        target.check(target.mutated(draw.choice(inputs), draw))


def test_programs_of_any_bytes():
    """A tree made by any program of bytes is a value, which is written the same again, or an error of ours."""
    check, draw = importlib.import_module("tree").check, random.Random(20261130)
    for length in range(300):
        check(draw.randbytes(length % 100))
