"""Signals: a training that is asked to end saves first, and its continuation has the same bits."""

import json
import logging
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import trainings
from ledger import Ledger, read_ledger
from processes import run_in_child, start_child
from test_matrix import compare
from trainings import STEPS

import samestep


class Waiting(trainings.Augmented):
    """Waits to be signalled: in the body of a step, or for a long time inside the evaluation."""

    workers = 2
    save_every = None
    wait_at: tuple[str, int] = ("nowhere", 0)

    def __init__(self, directory: Path, ledger: Ledger, **changes: Any) -> None:
        super().__init__(directory, ledger, **changes)
        self.ready = Path(f"{directory}-ready")

    def note_step(self, index: torch.Tensor, x: torch.Tensor, loss: torch.Tensor) -> None:
        super().note_step(index, x, loss)
        self.wait("step", self.run.completed_steps, 0.5)

    def evaluate(self, epoch: int) -> None:
        with self.run.isolated():
            torch.rand(3)
            self.wait("evaluation", epoch, 100)
        self.scheduler.step()
        self.ledger.note("evaluated", epoch, rates=self.rates())

    def wait(self, place: str, number: int, seconds: float) -> None:
        if (place, number) != self.wait_at:
            return
        self.ready.touch()
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(0.01)


def wait_for(path: Path, child: Any, log: Path) -> None:
    until = time.monotonic() + 60
    while not path.exists():
        assert child.is_alive(), log.read_text()
        assert time.monotonic() < until
        time.sleep(0.01)


def signalled(tmp_path: Path, number: int, wait_at: tuple[str, int], *, group: bool) -> tuple[int, float]:
    """Start a training, signal it where it waits, and return its exit code and how long it took to end."""
    log = tmp_path / "log"
    changes = {"wait_at": wait_at}
    arguments = (Waiting, tmp_path / "run", tmp_path / "attempt-0.jsonl", None, changes)
    child = start_child(trainings.train, *arguments, log=log)
    wait_for(tmp_path / "run-ready", child, log)
    began = time.monotonic()
    (os.killpg if group else os.kill)(child.pid, number)
    child.join(60)
    assert child.exitcode is not None, "the training did not end"
    return child.exitcode, time.monotonic() - began


def resumed_equals_whole(tmp_path: Path) -> dict[tuple[str, int], list[dict[str, Any]]]:
    """Resume, compare with a training that nobody disturbed, and return what the second process noted."""
    log = tmp_path / "log"
    whole, second = tmp_path / "whole.jsonl", tmp_path / "attempt-1.jsonl"
    assert run_in_child(trainings.train, Waiting, tmp_path / "whole", whole, None, {}, log=log) == 0, log.read_text()
    assert run_in_child(trainings.train, Waiting, tmp_path / "run", second, None, {}, log=log) == 0, log.read_text()
    compare(read_ledger([whole]), read_ledger([tmp_path / "attempt-0.jsonl", second]))
    return read_ledger([second])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1], ids=lambda each: each.name)
def test_a_signal_in_a_step_saves_at_the_next_boundary(tmp_path: Path, number: signal.Signals) -> None:
    """SIGTERM, SIGINT and SIGUSR1 let the body end, save, and exit with 128 + signal; no step is lost or repeated."""
    code, _ = signalled(tmp_path, number, ("step", STEPS + 5), group=False)
    assert code == 128 + number, (tmp_path / "log").read_text()
    second = resumed_equals_whole(tmp_path)
    assert min(step for place, step in second if place == "step") == STEPS + 6


def test_a_signal_to_the_whole_group_does_not_kill_the_workers_first(tmp_path: Path) -> None:
    """Signalled with its two workers, as Slurm and systemd do, a training saves first (KempnerForge#177)."""
    code, _ = signalled(tmp_path, signal.SIGTERM, ("step", STEPS + 5), group=True)
    assert code == 128 + signal.SIGTERM, (tmp_path / "log").read_text()
    second = resumed_equals_whole(tmp_path)
    assert min(step for place, step in second if place == "step") == STEPS + 6


@pytest.mark.parametrize("group", [False, True], ids=["process", "group"])
def test_a_signal_in_a_long_evaluation_saves_the_last_boundary(tmp_path: Path, group: bool) -> None:
    """In an evaluation of 100 s a SIGTERM saves the epoch's end at once; the evaluation runs again, once."""
    code, seconds = signalled(tmp_path, signal.SIGTERM, ("evaluation", 1), group=group)
    assert code == 128 + signal.SIGTERM, (tmp_path / "log").read_text()
    assert seconds < 30, "the grace period of most systems"
    second = resumed_equals_whole(tmp_path)
    assert min(step for place, step in second if place == "step") == 2 * STEPS + 1
    assert ("evaluated", 1) in second


def logs_of_a_signal(directory: Path, answers: Path) -> None:
    """Note what is logged when a signal stops a loop."""
    logging.basicConfig(level=logging.INFO, filename=answers, format="%(message)s")
    run = samestep.Run(directory, save_every=None)
    run.track(model=torch.nn.Linear(1, 1))
    for _ in run.steps(10):
        os.kill(os.getpid(), signal.SIGTERM)
        run.step()


def test_a_signal_is_logged_by_its_name(tmp_path: Path) -> None:
    """The log of a training that is asked to end says SIGTERM, not 15."""
    run_in_child(logs_of_a_signal, tmp_path / "run", tmp_path / "answers", log=tmp_path / "log")
    assert "SIGTERM: the state is saved at the next boundary" in (tmp_path / "answers").read_text()


def handlers_of_others(directory: Path, answers: Path) -> None:
    """Count calls of an earlier handler, which also raises, while a signal stops a loop."""
    calls = []

    def earlier(number: int, frame: object) -> None:
        calls.append(number)
        raise SystemExit(7)

    signal.signal(signal.SIGTERM, earlier)
    model = torch.nn.Linear(1, 1)
    run = samestep.Run(directory, save_every=None)
    run.track(model=model)
    code = None
    try:
        for step in run.steps(10):
            if step == 4:
                os.kill(os.getpid(), signal.SIGTERM)
            run.step()
    except SystemExit as error:
        code = error.code
    is_back = signal.getsignal(signal.SIGTERM) is earlier
    answers.write_text(json.dumps([calls, code, is_back, run.completed_steps]))


def test_earlier_handlers_are_called_and_given_back(tmp_path: Path) -> None:
    """A handler that was there before is called; what it raises comes after the save; it is back after the loop."""
    log = tmp_path / "log"
    assert run_in_child(handlers_of_others, tmp_path / "run", tmp_path / "answers", log=log) == 0, log.read_text()
    assert json.loads((tmp_path / "answers").read_text()) == [[signal.SIGTERM], 7, True, 5]
    assert [each.name for each in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-000000005"]


def second_interrupt(directory: Path) -> None:
    model = torch.nn.Linear(1, 1)
    run = samestep.Run(directory, save_every=None)
    run.track(model=model)
    for _ in run.steps(10):
        os.kill(os.getpid(), signal.SIGINT)
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt:
            os._exit(5)


def test_a_second_interrupt_is_pythons_own(tmp_path: Path) -> None:
    """The first Ctrl-C asks for a save at the next boundary, the second one interrupts at once."""
    log = tmp_path / "log"
    assert run_in_child(second_interrupt, tmp_path / "run", log=log) == 5, log.read_text()
