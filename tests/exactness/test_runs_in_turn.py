"""Several runs in one process, one after the other and in turn, as in notebooks: none leaves anything to the next."""

import atexit
import contextlib
import gc
import json
import signal
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import gauges
import torch
import trainings
from ledger import Ledger, read_ledger
from processes import run_in_child

import samestep
from samestep import attempt
from samestep.signals import STOP_SIGNALS
from samestep.store import lock


class InParts(trainings.Augmented):
    """Trains to a number of steps, and later to a higher one."""

    save_every = 2

    def train_to(self, steps: int) -> None:
        for _ in self.run.steps(steps):
            index, x, y = next(self.given)
            loss = self.update(x, y)
            self.run.step(loss=loss)
            self.note_step(index, x, loss)

    def build(self) -> None:
        super().build()
        self.given = self.endless()

    def endless(self):
        while True:
            yield from self.batches


def alone(directory: Path, ledger: Path, workers: int) -> None:
    """Train in two cells of a notebook that does nothing else."""
    training = InParts(directory, Ledger(ledger), workers=workers)
    training.train_to(5)
    training.train_to(9)
    training.note_end()


def in_turn(folder: Path) -> None:
    """Train two runs in turn, between one that fails, one that is left behind, and draws of the notebook's own."""
    failing = InParts(folder / "failing", Ledger(folder / "ignored"))
    failing.loss = None
    with contextlib.suppress(TypeError):
        failing.train_to(3)
    first = InParts(folder / "first", Ledger(folder / "first.jsonl"), workers=0)
    first.train_to(5)
    torch.manual_seed(99)
    left_behind = InParts(folder / "left behind", Ledger(folder / "ignored"))
    left_behind.train_to(4)
    second = InParts(folder / "second", Ledger(folder / "second.jsonl"), workers=2)
    second.train_to(5)
    torch.rand(7)
    first.train_to(9)
    del failing
    gc.collect()
    second.train_to(9)
    first.note_end()
    second.note_end()


def test_runs_in_one_process_do_not_touch_each_other(tmp_path: Path) -> None:
    """Two runs in turn in one process, among failed and forgotten ones, have the bits of each alone in a process."""
    log = tmp_path / "log"
    for name, workers in (("first", 0), ("second", 2)):
        code = run_in_child(alone, tmp_path / name, tmp_path / f"{name} alone.jsonl", workers, log=log)
        assert code == 0, log.read_text()
    (tmp_path / "in turn").mkdir()
    assert run_in_child(in_turn, tmp_path / "in turn", log=log) == 0, log.read_text()
    for name in ("first", "second"):
        assert read_ledger([tmp_path / "in turn" / f"{name}.jsonl"]) == read_ledger([tmp_path / f"{name} alone.jsonl"])


def left_in_process() -> dict[str, Any]:
    """Describe all that a run could leave behind in its process beside memory."""
    from torch.nn.modules import module
    from torch.optim import optimizer

    return {
        "handlers": [repr(signal.getsignal(number)) for number in STOP_SIGNALS],
        "hooks of all modules": [len(each) for name, each in vars(module).items() if _is_global_hooks(name, each)],
        "hooks of all optimizers": [
            len(each) for name, each in vars(optimizer).items() if _is_global_hooks(name, each)
        ],
        "called at exit": atexit._ncallbacks(),
        "filters": [str(each) for each in warnings.filters],
        "excepthooks": [repr(sys.excepthook), repr(threading.excepthook), repr(sys.unraisablehook)],
        "locks": len(lock._held),
        "open runs": len(attempt._open),
        "observers": len(samestep.Run._observers),
    }


def _is_global_hooks(name: str, value: object) -> bool:
    return name.startswith("_global_") and isinstance(value, dict)


def train_shortly(directory: Path, end: str, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Make a run, train, save, and end the run in one of the ways of a notebook."""
    run = samestep.Run(directory, seed=0, save_every="1 epoch")
    data = torch.utils.data.TensorDataset(torch.ones(4, 3))
    loader = samestep.DataLoader(data, batch_size=2, shuffle=True)
    run.track(model=model, optimizer=optimizer, loader=loader)
    for _ in run.epochs(2):
        for (x,) in loader:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            run.step()
            if end == "exception":
                raise InterruptedError
    if end == "closed":
        run.close()


def many_runs(folder: Path, answers: Path) -> None:
    model = torch.nn.Linear(3, 3)
    optimizer = torch.optim.Adam(model.parameters())
    found = []
    for number in range(20):
        for end in ("closed", "forgotten", "exception"):
            with contextlib.suppress(InterruptedError):
                train_shortly(folder / f"{end} {number % 3} {number // 3}", end, model, optimizer)
        if number in {4, 19}:
            measured = gauges.measure()
            hooks = [len(each) for name, each in vars(optimizer).items() if name.endswith("_hooks")]
            found.append([left_in_process() | {"hooks of the optimizer": hooks}, measured])
    answers.write_text(json.dumps(found))


def test_many_runs_in_one_process_leave_nothing_behind(fast: Path) -> None:
    """After 60 runs of one optimizer, closed, forgotten and failed, a process holds what it held after 15."""
    log, answers = fast / "log", fast / "answers"
    assert run_in_child(many_runs, fast, answers, log=log) == 0, log.read_text()
    (early, before), (late, after) = json.loads(answers.read_text())
    assert late == early
    assert late["locks"] == late["open runs"] == late["observers"] == 0
    assert not any(late["hooks of the optimizer"])
    assert after["descriptors"] == before["descriptors"]
    assert after["threads"] == before["threads"]
    assert after["bytes of tensors"] <= before["bytes of tensors"] + 4096
    assert after["objects"] <= before["objects"] + 200, "a run that stays holds thousands of objects"
