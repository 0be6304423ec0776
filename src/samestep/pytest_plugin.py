"""Owns the fixture `samestep_prove`, by which a test proves a training. Until it is used, this imports nothing.

def test_resume(samestep_prove):
    samestep_prove("python train.py --out {dir}")
"""

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from samestep.proof.arms import Order
    from samestep.proof.proving import Wishes
    from samestep.proof.result import Proof

_OF_THE_TESTS = ("COV_CORE_", "COVERAGE_PROCESS_", "PYTEST_")
"""Variables by which a measurement of coverage follows into all processes; it would write beside the user's files."""


class Prove:
    """Proves trainings for one test.

    Args:
        folder: The test's own folder, in which the trainings run.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._count = folder, 0

    def __call__(  # noqa: PLR0913  (by name, as on the command line)
        self,
        command: str | Sequence[str],
        *,
        kills: int = 6,
        at: str | Sequence[str] = (),
        dir_arg: str | None = None,
        resume_cmd: str | Sequence[str] | None = None,
        steps: int | None = None,
        every: int | None = None,
        seed: int | None = None,
        leave_out: Sequence[str] = (),
        jobs: int | None = None,
        tolerance: float = 0.0,
        timeout: float | None = None,
        cwd: str | os.PathLike[str] | None = None,
    ) -> "Proof":
        """Prove that a training is the same when it is killed and started again; fail the test otherwise.

        Args:
            command: The command: its words, or a text that is split as a shell does. The word `python` alone is the
                interpreter of the tests, and `{dir}` a directory of each training's own.
            kills: How many trainings are killed.
            at: When they are killed, as `samestep prove --at` is told.
            dir_arg: The command's option for its output directory.
            resume_cmd: The command that goes on after a kill (default: the same one).
            steps: After how many optimizer steps each process is ended (default: when it ends itself).
            every: At every how many steps the large parts are noted.
            seed: What the generators are seeded with when torch is imported.
            leave_out: Patterns of what the trainings do not see of the working directory.
            jobs: How many trainings run at once.
            tolerance: By how much losses may differ; above 0 nothing but them and the samples is compared.
            timeout: Seconds after which a process that does not end is killed.
            cwd: The directory in which the command would run (default: the present one); it is copied.

        Returns:
            What was found: its verdict is "proved".
        """
        __tracebackhide__ = True
        from samestep.proof.arms import Order
        from samestep.proof.proving import Wishes
        from samestep.proof.recording import Settings

        source = Path.cwd() if cwd is None else Path(cwd)
        resume = None if resume_cmd is None else _words(resume_cmd)
        order = Order(_words(command), source, resume, dir_arg, Settings(steps, every, seed), leave_out, timeout)
        return self._prove(order, Wishes(kills, [at] if isinstance(at, str) else at, jobs, tolerance, launch=_launch))

    def _prove(self, order: "Order", wishes: "Wishes") -> "Proof":
        __tracebackhide__ = True
        from samestep.errors import SamestepError
        from samestep.proof.page import write_page
        from samestep.proof.proving import prove
        from samestep.proof.result import PROVED
        from samestep.store import files

        self._count += 1
        base = self._folder / f"samestep-prove-{self._count}"
        try:
            found = prove(order, base, wishes)
        except SamestepError as error:
            pytest.fail(f"{error}\n  the trainings lie in {base}", pytrace=False)
        if found.verdict != PROVED:
            page, described = base / "proof.html", found.as_json()
            write_page(page, described)
            pytest.fail(_message(described, page), pytrace=False)
        files.remove_tree(base)  # checkpoints of many trainings, which pytest would keep for three sessions
        return found


@pytest.fixture
def samestep_prove(tmp_path: Path) -> Prove:
    """Prove that a training is the same, bit for bit, when it is killed and started again; fail otherwise."""
    return Prove(tmp_path)


def _words(command: str | Sequence[str]) -> list[str]:
    words = shlex.split(command) if isinstance(command, str) else [os.fspath(each) for each in command]
    return [sys.executable if words[0] == "python" else words[0], *words[1:]] if words else words


def _launch(command: Sequence[str], *, env: Mapping[str, str], **options: Any) -> "subprocess.Popen[bytes]":
    """Start a training without what the tests are followed by."""
    kept = {name: value for name, value in env.items() if not name.startswith(_OF_THE_TESTS)}
    return subprocess.Popen(command, env=kept, **options)  # noqa: S603  (the user's own command)


def _message(described: Mapping[str, Any], page: Path) -> str:
    from samestep.proof.telling import told
    from samestep.wording import printable

    return "\n".join([*map(printable, told(described)), "", f"The page of this proof: {page}"])
