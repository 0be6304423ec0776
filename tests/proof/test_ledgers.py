"""Ledgers on disk and their comparison: what is written comes back, damage is seen, what differs first is named."""

import itertools
import json
from array import array
from collections import deque
from datetime import date
from decimal import Decimal

import pytest
import torch

from samestep.cli.group import run
from samestep.errors import SamestepError
from samestep.proof.comparing import compare_ledgers, first_difference
from samestep.proof.fingerprint import fingerprint
from samestep.proof.ledger import LedgerWriter, Step, find_ledgers, read_ledger


def steps(*values, **changes):
    """Give steps whose parts hold the given values; `changes` replaces parts of the last one."""
    made = [Step(n, 0, {"batch": value, "loss": value}, {"gradients": {"w": value}}) for n, value in enumerate(values)]
    if changes:
        last = made[-1]
        made[-1] = Step(last.number, 0, dict(last.parts) | changes, last.tensors)
    return made


def written(folder, *values, rank=0, **changes):
    """Write a ledger."""
    folder.mkdir(exist_ok=True)
    writer = LedgerWriter(folder, rank, {"command": "train.py"})
    for each in steps(*values, **changes):
        writer.write(each)
    return folder


# --- on disk --------------------------------------------------------------------------------------------


def test_steps_come_back_as_they_were_written(tmp_path):
    """Parts, tensors by name and notes of every step are read as they were written, also when the names change."""
    made = [
        Step(0, 0, {"parameters": "aa"}, {"parameters": {"w": "1", "b": "2"}}, {"indices": [[3, 1]]}),
        Step(1, 1, {"parameters": "bb"}, {"parameters": {"v": "3"}}),
        Step(2, 0, {"loss": "cc"}),
        Step(3, 0, {"parameters": "aa"}, {"parameters": {"w": "1", "b": "2"}}),
    ]
    writer = LedgerWriter(tmp_path, 3, {"command": "train.py"})
    for each in made:
        writer.write(each)
    ledger = read_ledger(tmp_path / "rank-3.jsonl")
    assert (ledger.rank, ledger.about["command"]) == (3, "train.py")
    assert list(ledger.steps) == made


def test_a_torn_last_line_is_passed_over(tmp_path):
    """A ledger that is cut anywhere in its last line holds the steps before."""
    path = written(tmp_path, "a", "b") / "rank-0.jsonl"
    whole = path.read_bytes()
    begin = whole[:-1].rindex(b"\n") + 1
    for end in range(begin, len(whole)):
        path.write_bytes(whole[:end])
        assert len(read_ledger(path).steps) == 1


DAMAGES = {
    "no ledger": (b'{"step": 0}\n', "This is no ledger of this version."),
    "a newer one": (b'{"ledger": 2}\n', "This is no ledger of this version."),
    "an empty file": (b"", "This is no ledger of this version."),
    "no JSON": (b'{"ledger": 1}\nnothing\n', "The ledger is damaged."),
    "tensors without names": (
        b'{"ledger": 1}\n{"step": 0, "optimizer": 0, "parts": {}, "tensors": {"loss": ["a"]}}\n',
        "The ledger is damaged.",
    ),
    "lists for parts": (
        b'{"ledger": 1}\n{"step": 0, "optimizer": 0, "parts": [], "tensors": 5}\n',
        "The ledger is damaged.",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_no_ledger_is_named(damage, tmp_path):
    """A file that is no ledger, or a damaged one, is refused in one sentence, with its place."""
    content, sentence = DAMAGES[damage]
    path = tmp_path / "rank-0.jsonl"
    path.write_bytes(content)
    with pytest.raises(SamestepError) as caught:
        find_ledgers(tmp_path)
    assert caught.value.message == sentence
    assert str(path) in caught.value.path


def test_a_folder_without_a_ledger_is_named(tmp_path):
    """A folder in which nothing was recorded is refused, with what makes one."""
    with pytest.raises(SamestepError, match="no ledger here"):
        find_ledgers(tmp_path)


# --- comparing ------------------------------------------------------------------------------------------


def test_the_first_step_and_the_part_nearest_to_a_cause_are_named():
    """Of all differences the first step counts, and in it the part that stands first among causes and effects."""
    found = first_difference(steps("a", "b", "c"), steps("a", "x", "y"))
    assert (found.step, found.part, found.parts) == (1, "batch", ("batch", "loss"))
    assert first_difference(steps("a", "b", loss="n"), steps("a", "b"), ignored=["loss"]) is None


def test_a_shorter_training_differs_where_it_ends():
    """A training that has more steps than another differs behind the last common one."""
    found = first_difference(steps("a", "b"), steps("a", "b", "c"))
    assert (found.step, found.part, found.detail) == (2, "steps", "2 steps and 3")


def test_the_rank_that_differs_first_is_named(tmp_path):
    """Of several ranks the one that differs at the earliest step is named; a missing rank too."""
    for rank in range(2):
        written(tmp_path / "a", "a", "b", "c", rank=rank)
        written(tmp_path / "b", "a", *("bc" if rank else "bx"), rank=rank)
        written(tmp_path / "c", "a", *("xy" if rank else "bx"), rank=rank)
    ledgers = {name: find_ledgers(tmp_path / name) for name in "abc"}
    assert compare_ledgers(ledgers["a"], ledgers["b"]).rank == 0
    assert compare_ledgers(ledgers["a"], ledgers["c"]).rank == 1
    assert compare_ledgers(ledgers["a"], ledgers["a"][:1]).detail == "2 ledgers and 1"


def test_compare_says_it_in_words_and_in_json(tmp_path, capsys):
    """`samestep compare` ends with 0 or 1, and names step, part, detail and all parts."""
    first, second = written(tmp_path / "a", "a", "b"), written(tmp_path / "b", "a", "b", loss="n")
    assert run(["compare", str(first), str(first)]) == 0
    assert "Identical: 2 steps" in capsys.readouterr().out
    assert run(["compare", str(first), str(second)]) == 1
    assert "Different from step 1 on: loss first." in capsys.readouterr().out
    assert run(["compare", "--json", str(first), str(second)]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["identical"] is False
    assert said["first_difference"] | {"detail": ""} == {
        "step": 1,
        "part": "loss",
        "detail": "",
        "parts": ["loss"],
        "rank": 0,
    }
    assert run(["compare", "--ignore", "loss", str(first), str(second)]) == 0
    assert run(["compare", "--ignore", "weights", str(first), str(second)]) == 2
    assert "There is no such part." in capsys.readouterr().err


# --- digests --------------------------------------------------------------------------------------------


class Holder:
    """An object of a user's: its attributes are its value, the address is not."""

    def __init__(self, value):
        self.value = value


UNLIKE = [
    ([1, 2], [2, 1]),
    ([1, True], [True, 1]),
    ([0.0], [-0.0]),
    ([1], (1,)),
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    ([[1], 2], [[1, 2]]),
    ("1", 1),
    (Holder(1), Holder(2)),
    (torch.zeros(2), torch.zeros(2, 1)),
    (torch.zeros(2), torch.zeros(2, dtype=torch.float64)),
    (torch.tensor([1.0, 2.0]), torch.tensor([2.0, 1.0])),
    (torch.tensor([True, False]), torch.tensor([False, True])),
    (torch.tensor([[1, 0]]).to_sparse(), torch.tensor([[0, 1]]).to_sparse()),
    (torch.zeros(2, device="meta"), torch.zeros(3, device="meta")),
    (torch.zeros(2).numpy(), torch.ones(2).numpy()),
    (deque([1, 2]), deque([3, 4])),
    (range(3), range(4)),
    (array("i", [1]), array("i", [2])),
    (bytearray(b"a"), bytearray(b"b")),
    (date(2026, 1, 1), date(2026, 1, 2)),
    (Decimal(1), Decimal(2)),
    (itertools.count(1), itertools.count(2)),
]


@pytest.mark.parametrize("pair", range(len(UNLIKE)))
def test_values_that_differ_have_other_digests(pair):
    """Order, type, shape, sign of zero, nesting: whatever differs gives another digest."""
    left, right = UNLIKE[pair]
    assert fingerprint(left) != fingerprint(right)


def test_values_that_are_alike_have_the_same_digest():
    """Equal values give equal digests: objects of one's own, sets in any order, strided and plain tensors."""
    assert fingerprint(Holder([1])) == fingerprint(Holder([1]))
    assert fingerprint({f"k{n}" for n in range(99)}) == fingerprint({f"k{n}" for n in reversed(range(99))})
    assert fingerprint(torch.arange(8.0)[::2]) == fingerprint(torch.tensor([0.0, 2.0, 4.0, 6.0]))
    deep = []
    deep.append(deep)
    assert fingerprint(deep) == fingerprint(deep)
