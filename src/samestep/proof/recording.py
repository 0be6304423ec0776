"""Owns the start of a command whose Python processes record themselves. Imports no torch.

The recorder comes in through the environment: PYTHONPATH names a folder with a `sitecustomize` first, and
SAMESTEP_RECORD the folder of the ledgers.
"""

import os
import shlex
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import samestep
from samestep.errors import SamestepError
from samestep.proof.importing import PROBLEMS
from samestep.proof.ledger import Ledger, find_ledgers

STARTUP = Path(__file__).parent / "startup"
"""The folder of our `sitecustomize`."""


@dataclass(frozen=True)
class Settings:
    """How a command is recorded.

    Args:
        steps: After how many optimizer steps each process ends; None: when it ends itself.
        every: At every how many steps the large parts are noted; None: at each.
        seed: What the generators are seeded with when torch is imported; None leaves them alone.
    """

    steps: int | None = None
    every: int | None = None
    seed: int | None = None

    def variables(self) -> dict[str, str]:
        """Give them as variables of the environment."""
        given = {"STEPS": self.steps, "EVERY": self.every, "SEED": self.seed}
        return {f"SAMESTEP_RECORD_{name}": str(value) for name, value in given.items() if value is not None}


def recorded_environment(folder: Path, settings: Settings) -> dict[str, str]:
    """Give the environment in which Python processes record themselves.

    Args:
        folder: Where the ledgers are made.
        settings: How they are recorded.
    """
    package = str(Path(samestep.__file__).parent.parent)
    paths = [str(STARTUP), *filter(None, [os.environ.get("PYTHONPATH")]), package]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "SAMESTEP_RECORD": str(folder.absolute()),
        **settings.variables(),
    }


class Process(Protocol):
    """What is asked of a started command; a `subprocess.Popen` is one."""

    @property
    def pid(self) -> int:
        """Its number."""
        ...

    def poll(self) -> int | None:
        """Give its exit status if it has ended."""
        ...

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end."""
        ...


Launch = Callable[..., Process]
"""What starts a command: `subprocess.Popen`, or what takes the same arguments by name."""


def start_command(command: Sequence[str], launch: Launch = subprocess.Popen, **options: Any) -> Process:
    """Start the user's command.

    Args:
        command: The command and its arguments.
        launch: What starts it.
        options: More arguments for `launch`.

    Raises:
        SamestepError: It cannot be started.
    """
    try:
        return launch(list(command), **options)
    except OSError as error:
        raise SamestepError(
            "The command cannot be started.",
            path=command[0],
            found=error.strerror,
            hint="Write it as in a shell, behind --, such as: -- python train.py",
        ) from error


def run_recorded(command: Sequence[str], folder: Path, settings: Settings) -> int:
    """Run a command to its end, recorded.

    Args:
        command: The command and its arguments.
        folder: Where the ledgers are made; it exists.
        settings: How it is recorded.

    Returns:
        Its exit status, negative for a signal.

    Raises:
        SamestepError: The command cannot be started.
    """
    process = start_command(command, env=recorded_environment(folder, settings))
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:  # the command has had it too: a second one would not let it save
            continue


def ledgers_of(folder: Path, command: Sequence[str]) -> list[Ledger]:
    """Read what a recorded command has noted.

    Raises:
        SamestepError: It has noted nothing, with the reason where it is known.
    """
    if list(folder.glob("rank-*.jsonl")):
        return find_ledgers(folder)
    problems = folder / PROBLEMS
    if problems.exists():
        raise SamestepError(
            "The Python of the command cannot import samestep, so it was not recorded.",
            path=command[0],
            found=problems.read_text(errors="replace").splitlines()[0],
            hint="Install samestep there, or start the command with the Python that has it.",
        )
    raise SamestepError(
        "No optimizer made a step, so nothing was recorded.",
        path=shlex.join(command),
        expected="a command whose Python processes import torch and call optimizer.step()",
        hint="Is it a training? `python -I` and `python -E`, and a cleared environment, keep the recorder out. "
        "Or is it finished already, by a checkpoint in this directory? samestep prove --leave-out 'PATTERN' leaves it "
        "out.",
    )
