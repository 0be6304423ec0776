"""A kill during a save: at each file operation of it the newest complete checkpoint is found, and no bit is lost."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import trainings
from ledger import Ledger, read_ledger
from processes import run_in_child
from test_matrix import compare

import samestep.logbook
from samestep.store import files

SAVES_AT = (5, 10)


class Short(trainings.Training):
    """Saves after 5 and 10 steps and ends after 12."""

    save_every = 5

    def train(self) -> None:
        batches = iter(self.batches)
        for _ in self.run.steps(12):
            index, x, y = next(batches)
            loss = self.update(x, y)
            self.run.step(loss=loss)
            self.note_step(index, x, loss)
        self.note_end()


class Counting(files.System):
    """The operating system, which writes down each call that changes files, and kills this process at one."""

    def __init__(self, log: Path, fatal: int | None) -> None:
        self._log, self._left = log.open("a", buffering=1), fatal

    def __getattribute__(self, name: str) -> Any:
        call = super().__getattribute__(name)
        if name.startswith("_") or not callable(call):
            return call

        def counted(*arguments: Any) -> Any:
            target = next((str(each) for each in reversed(arguments) if isinstance(each, Path)), "")
            self._log.write(f"{name} {target}\n")
            if self._left is not None:
                self._left -= 1
                if self._left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments)

        return counted


def train_and_die(directory: Path, ledger: Path, calls: Path, fatal: int | None) -> None:
    samestep.logbook._FLUSH_EVERY = -1.0  # each line of metrics at once: the calls must not depend on the time
    files.system = Counting(calls, fatal)
    Short(directory, Ledger(ledger)).train()


def resumed_from(directory: Path) -> str | None:
    return json.loads((directory / "attempts.jsonl").read_text().splitlines()[-1])["resumed_from"]


def test_a_kill_at_each_file_operation_of_a_save_loses_no_complete_checkpoint(tmp_path: Path) -> None:
    """Killed at each file operation between two saves, the run resumes from the newest complete one, bit for bit.

    Reported as KempnerForge#102.
    """
    log, calls = tmp_path / "log", tmp_path / "calls"
    code = run_in_child(train_and_die, tmp_path / "whole", tmp_path / "whole.jsonl", calls, None, log=log)
    assert code == 0, log.read_text()
    whole = read_ledger([tmp_path / "whole.jsonl"])
    lines = calls.read_text().splitlines()
    commits = [number for number, line in enumerate(lines) if line.startswith("rename") and "/step-" in line]
    assert len(commits) == 3
    outcomes = []
    for fatal in range(commits[0] + 1, commits[1] + 4):
        run = tmp_path / f"run-{fatal}"
        ledgers = [tmp_path / f"{fatal}-{attempt}.jsonl" for attempt in range(2)]
        assert run_in_child(train_and_die, run, ledgers[0], tmp_path / "ignored", fatal, log=log) == -9
        assert run_in_child(train_and_die, run, ledgers[1], tmp_path / "ignored", None, log=log) == 0, log.read_text()
        compare(whole, read_ledger(ledgers))
        assert not list((run / "checkpoints").glob(".*")), "leftovers of the killed save"
        assert not (run / "checkpoints" / "quarantine").exists(), "a torn checkpoint counted as one"
        outcomes.append(resumed_from(run))
    commit = commits[1] - commits[0]
    assert outcomes == ["step-000000005"] * commit + ["step-000000010"] * 3
