"""Which moments of a training are chosen for a kill, and which are the ones that were asked for."""

import json

import pytest

from samestep.errors import SamestepError
from samestep.proof.ledger import Step
from samestep.proof.planning import Plan

PARTS = {"parameters": "x"}


def steps(count, files=None, epochs=()):
    """Give a training of `count` steps; `files` are the operations in front of a step."""
    files = files or {}
    return [
        Step(
            number,
            0,
            PARTS,
            notes={"bytes": 1000, **({"files": files[number]} if number in files else {})}
            | ({"epochs": 1} if number in epochs else {}),
        )
        for number in range(count)
    ]


SAVE = [["torch.save", "work/last.tmp", 3000], ["rename", "work/last.pt", None]]
MOVED = [["mkdir", "work/states", None], ["rename", "work/states/last.pt", 3000]]


def asked(kill):
    """Give what a recorded process is told of a kill."""
    return json.loads(kill.variables()["SAMESTEP_RECORD_KILL"])


def test_all_kinds_are_chosen():
    """The default choice kills between steps, in a write, at an epoch's edge, before an operation, twice, and never."""
    plan = Plan(steps(24, dict.fromkeys(range(4, 24, 4), SAVE), epochs=(8, 16)))
    kills = plan.trials(6)
    assert [[each.kind for each in trial] for trial in kills] == [
        ["step"],
        ["save"],
        ["epoch"],
        ["save"],
        ["step", "step"],
        ["end"],
    ]
    assert kills[1][0].bytes == 1500
    assert kills[3][0].at == 20
    assert [each.at for each in kills[4]] == [17, 5]  # behind the save of step 16, and behind that of step 20


def test_what_is_moved_in_is_not_written():
    """No kill is planned in the middle of a write that happens somewhere else."""
    plan = Plan(steps(12, {4: MOVED, 8: MOVED}))
    assert [each.bytes for trial in plan.parsed("saves") for each in trial] == [None] * 4
    assert all(each.bytes is None for trial in plan.trials(6) for each in trial)


def test_a_later_process_is_named():
    """Where a command starts one process after the other, a kill counts from the start of the one that dies."""
    plan = Plan(steps(14, {10: SAVE}), lengths=[5, 9])
    assert asked(plan.parsed("step:3")[0][0]) == {"after": 2, "operation": None, "bytes": None, "rank": 0}
    assert asked(plan.parsed("step:5")[0][0])["after"] == 4
    assert asked(plan.parsed("step:7")[0][0]) == {
        "after": 1,
        "operation": None,
        "bytes": None,
        "rank": 0,
        "process": 1,
    }
    in_save = asked(plan.parsed("save:1.2")[0][0])
    assert (in_save["process"], in_save["after"], in_save["operation"]) == (1, 4, 1)


@pytest.mark.parametrize("spec", ["step:0", "step:12", "epoch:1", "save:3", "save:1.3", "step:3.1", "end:1", "saves:2"])
def test_a_moment_that_is_not_there_is_refused(spec):
    """A moment that the training has not, or that is written wrongly, is refused with what there is."""
    with pytest.raises(SamestepError) as raised:
        Plan(steps(12, {4: SAVE, 8: SAVE})).parsed(spec)
    assert raised.value.expected
