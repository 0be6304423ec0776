"""Signals that arrive where a loop begins or ends: none is swallowed."""

import json
import os
import signal
from pathlib import Path

import torch
from processes import run_in_child

import samestep
from samestep.signals import StopSignals


class Treacherous:
    """State whose restoring takes long enough for a SIGTERM to arrive in it."""

    def __init__(self, *, armed: bool) -> None:
        self.armed = armed

    def state_dict(self) -> dict[str, int]:
        return {"value": 1}

    def load_state_dict(self, _state: dict[str, int]) -> None:
        if self.armed:
            os.kill(os.getpid(), signal.SIGTERM)


def two_loops(directory: Path, notes: Path, die_at: int | None = None, *, armed: bool = False) -> None:
    """Train in two loops with a statement between them."""
    run = samestep.Run(directory, save_every=1)
    run.track(model=torch.nn.Linear(1, 1), other=Treacherous(armed=armed))
    for _ in run.steps(3):
        run.step()
    with notes.open("a") as file:
        file.write("between\n")
    for step in run.steps(6):
        run.step()
        if step == die_at:
            os.kill(os.getpid(), signal.SIGKILL)


def signalled_in_the_first(directory: Path, notes: Path) -> None:
    two_loops(directory, notes, armed=True)


def test_a_signal_while_a_finished_loop_is_restored_ends_the_process(tmp_path: Path) -> None:
    """A SIGTERM during the restoring of a loop that is over ends the process there, before the next loop."""
    log, notes = tmp_path / "log", tmp_path / "notes"
    assert run_in_child(two_loops, tmp_path / "run", notes, 4, log=log) == -9
    assert run_in_child(signalled_in_the_first, tmp_path / "run", notes, log=log) == 128 + signal.SIGTERM
    assert notes.read_text() == "between\n"
    assert run_in_child(two_loops, tmp_path / "run", notes, log=log) == 0, log.read_text()


def signalled_at_the_very_end(directory: Path, answers: Path) -> None:
    """Signal the process right before the handlers are given back, when the end is already recorded."""
    remove = StopSignals.remove

    def signalled(self: StopSignals) -> None:
        if self.installed:
            os.kill(os.getpid(), signal.SIGTERM)
        remove(self)

    StopSignals.remove = signalled
    run = samestep.Run(directory, save_every=None)
    run.track(model=torch.nn.Linear(1, 1))
    code = None
    try:
        for _ in run.steps(3):
            run.step()
    except SystemExit as error:
        code = error.code
    StopSignals.remove = remove
    for _ in run.steps(4):  # as in a notebook, which stays alive
        run.step()
    answers.write_text(json.dumps([code, run.completed_steps]))


def test_a_signal_right_at_a_loops_end_is_not_lost(tmp_path: Path) -> None:
    """A SIGTERM that comes when the loop's end is recorded already still ends the process, and spoils no later loop."""
    log, answers = tmp_path / "log", tmp_path / "answers"
    assert run_in_child(signalled_at_the_very_end, tmp_path / "run", answers, log=log) == 0, log.read_text()
    assert json.loads(answers.read_text()) == [128 + signal.SIGTERM, 4]
