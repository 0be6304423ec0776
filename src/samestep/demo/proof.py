"""Runs the demo: trains once undisturbed and once killed and resumed, and compares them. Imports no torch itself."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from samestep.errors import SamestepError

KILL_AT_STEP = 71
"""In the middle of epoch 2 (28 steps an epoch), between two saves."""

DIE_IN_SAVE = 4
"""The second process is killed in the middle of its fourth save."""

_PATIENCE = 300.0


@dataclass
class Demonstration:
    """What the demo found.

    Args:
        whole: The undisturbed training: what was noted for each step.
        resumed: The killed and resumed one: for each step what each process noted that did it.
        kills: How each killed process ended.
        differences: Steps and parts that are not equal bit by bit.
    """

    whole: dict[int | str, dict[str, Any]]
    resumed: dict[int | str, list[dict[str, Any]]]
    kills: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """The verdict in one word: proved or diverged."""
        return "diverged" if self.differences else "proved"

    @property
    def steps(self) -> int:
        """How many optimizer updates were compared."""
        return len(self.whole) - 1


def demonstrate(folder: Path, say: Callable[[str], None]) -> Demonstration:
    """Train undisturbed; train, kill and resume; compare every step and every final tensor.

    Args:
        folder: An empty folder to work in.
        say: Told what happens, one sentence at a time.

    Returns:
        What was found.

    Raises:
        SamestepError: A process ended in another way than it should.
    """
    say("A training of 168 steps on 1,797 handwritten digits, undisturbed …")
    _finish(_start(folder, "whole", 0))
    say(f"The same training, killed with SIGKILL after step {KILL_AT_STEP}, in the middle of an epoch …")
    _kill_at_step(folder)
    say("… resumed by a fresh process, which is killed in the middle of a save …")
    _expect(_start(folder, "killed", 1, "--die-in-save", str(DIE_IN_SAVE)), -signal.SIGKILL)
    say("… and resumed by another one to the end.")
    _finish(_start(folder, "killed", 2))
    found = Demonstration(
        whole={step: lines[0] for step, lines in _read(folder, "whole").items()},
        resumed=_read(folder, "killed"),
        kills=[f"SIGKILL after step {KILL_AT_STEP}", f"SIGKILL in save {DIE_IN_SAVE} of the second process"],
    )
    found.differences = find_differences(found)
    return found


def _start(folder: Path, name: str, attempt: int, *options: str) -> subprocess.Popen[bytes]:
    ledger = folder / f"{name}-{attempt}.jsonl"
    command = [sys.executable, "-m", "samestep.demo.training", str(folder / name), str(ledger), *options]
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)  # noqa: S603 — our own module


def _kill_at_step(folder: Path) -> None:
    child = _start(folder, "killed", 0, "--pause-after-step", str(KILL_AT_STEP))
    ledger = folder / "killed-0.jsonl"
    until = time.monotonic() + _PATIENCE
    while not (ledger.exists() and ledger.read_bytes().count(b"\n") >= KILL_AT_STEP):
        if child.poll() is not None or time.monotonic() > until:
            child.kill()
            raise _surprise(child, f"step {KILL_AT_STEP}")
        time.sleep(0.01)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()


def _finish(child: subprocess.Popen[bytes]) -> None:
    _expect(child, 0)


def _expect(child: subprocess.Popen[bytes], code: int) -> None:
    try:
        child.wait(_PATIENCE)
    finally:
        child.kill()
    if child.returncode != code:
        raise _surprise(child, f"exit code {code}")


def _surprise(child: subprocess.Popen[bytes], expected: str) -> SamestepError:
    return SamestepError(
        "A training process of the demo ended unexpectedly.",
        expected=expected,
        found=f"exit code {child.returncode}",
        hint="Run `python -m samestep.demo.training RUN LEDGER` to see what it says.",
    )


def _read(folder: Path, name: str) -> dict[int | str, list[dict[str, Any]]]:
    steps: dict[int | str, list[dict[str, Any]]] = {}
    for path in sorted(folder.glob(f"{name}-*.jsonl")):
        for line in path.read_text().splitlines():
            parts = json.loads(line)
            steps.setdefault(parts.pop("step"), []).append(parts)
    return steps


def find_differences(found: Demonstration) -> list[str]:
    """Name every step and part in which any resumed process differs from the undisturbed one."""
    differences = [f"step {step} is missing" for step in found.whole.keys() - found.resumed.keys()]
    differences += [f"step {step} is one too many" for step in found.resumed.keys() - found.whole.keys()]
    for step in found.whole.keys() & found.resumed.keys():
        for parts in found.resumed[step]:
            differences += [
                f"step {step}: {part}" for part, digest in found.whole[step].items() if parts.get(part) != digest
            ]
    return sorted(differences)
