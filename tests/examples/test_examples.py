"""The examples that draw much: a small GPT and a GAN print the same, undisturbed and killed from outside."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_figures import ENVIRONMENT, EXAMPLES, run_example


def kill_when_saved(name: str, run: Path, step: int, *arguments: object) -> list[str]:
    """Start an example, kill it with its workers alive once a step is saved, and return what it had printed."""
    command = [sys.executable, "-u", str(EXAMPLES / name), str(run), *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT) as process:
        until = time.monotonic() + 100
        while not (run / "checkpoints" / f"step-{step:09d}").exists():
            assert process.poll() is None, "the example ended before it could be killed"
            assert time.monotonic() < until
            time.sleep(0.005)
        os.kill(process.pid, signal.SIGKILL)
        return process.stdout.read().splitlines()


@pytest.mark.parametrize(
    ("name", "saved", "arguments"),
    [("gan.py", 25, ("--epochs", 3)), ("char_gpt.py", 20, ("--steps", 48, "--write-every", 12))],
)
def test_an_example_prints_the_same_when_killed(
    tmp_path: Path, name: str, saved: int, arguments: tuple[object, ...]
) -> None:
    """Losses, samples drawn in between and loss scales are the same lines, whichever process printed them."""
    whole = run_example(name, tmp_path / "whole", *arguments)
    killed = kill_when_saved(name, tmp_path / "killed", saved, *arguments)
    resumed = run_example(name, tmp_path / "killed", *arguments)
    assert len(whole) >= 3
    assert 0 < len(resumed) < len(whole) + 1
    assert list(dict.fromkeys(killed + resumed)) == whole
