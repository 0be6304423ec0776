"""The figures of the source documents, through our API, also when the process is killed in between."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

# Threads that wait for each other on shared cores are slow; the figures do not depend on their number.
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}

EPOCHS = ["2.228253", "2.016717", "1.794023", "1.62148", "1.542186", "1.509996"]


def run_example(name: str, *arguments: object, code: int = 0) -> list[str]:
    command = [sys.executable, str(EXAMPLES / name), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=ENVIRONMENT)
    assert done.returncode == code, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("kills", [(), (84,), (37, 101, 103)], ids=str)
def test_digits_print_the_mean_losses_of_plain_pytorch(tmp_path: Path, kills: tuple[int, ...]) -> None:
    """C1: the six mean losses come out to the last digit, uninterrupted, killed after epoch 3, killed three times."""
    lines = []
    for kill in kills:
        lines += run_example("digits.py", tmp_path / "run", "--kill-after", kill, code=-9)
    lines += run_example("digits.py", tmp_path / "run")
    assert list(dict.fromkeys(lines)) == [f"epoch {n}: mean loss {loss}" for n, loss in enumerate(EPOCHS, start=1)]


def test_digits_ablation_prints_the_articles_rows() -> None:
    """C1 and R15: with a part left out the losses are those of the article, and none equals the exact resume."""
    rows = {line[:28].strip(): line[28:] for line in run_example("digits.py", "--ablate")[1:]}
    assert rows["everything restored"] == "1.62148 1.542186 1.509996"
    assert rows["only the model"] == "1.560023 1.306732 1.122574"
    assert rows["all but the random state"] == "1.622284 1.534141 1.509169"
    assert len(set(rows.values())) == len(rows) == 5


@pytest.mark.parametrize("kills", [(), (1,)], ids=str)
def test_two_workers_draw_as_in_plain_pytorch(tmp_path: Path, kills: tuple[int, ...]) -> None:
    """C2: order, NumPy draws and weight sum come out, also when the process dies between the two batches."""
    lines = []
    for kill in kills:
        lines += run_example("loader_seeds.py", tmp_path / "run", "--kill-after", kill, code=-9)
    lines += run_example("loader_seeds.py", tmp_path / "run")
    assert lines == [
        "order 5 3 1 7 draws 522 297 434 198",
        "order 2 6 4 0 draws 234 407 586 805",
        "weight sum -0.187",
    ]


@pytest.mark.parametrize("kills", [(), (4,), (1, 3)], ids=str)
def test_the_loss_of_update_five_is_the_articles(tmp_path: Path, kills: tuple[int, ...]) -> None:
    """C3: the loss of update 5 is 10.83563042, in one process and in a process that resumes after update 4."""
    lines = []
    for kill in kills:
        lines += run_example("fixed_batch.py", tmp_path / "run", "--kill-after", kill, code=-9)
    lines += run_example("fixed_batch.py", tmp_path / "run")
    assert len(lines) == 5
    assert lines[-1] == "update 5: loss 10.83563042"


SLIDES = (
    "main 0.6394267984578837 1608637542 6909045637428952499",
    "epoch 0 worker 0 seed 6909045637428952499 draws 0.76579821087278 959832575 1170639138655272132",
    "epoch 0 worker 0 seed 6909045637428952499 draws 0.5290557382213695 882448501 3236260051783816896",
    "epoch 0 worker 1 seed 6909045637428952500 draws 0.622363687543226 1662264820 2388289256833682258",
    "epoch 0 worker 1 seed 6909045637428952500 draws 0.1621540338542381 1141922919 5646074976271009539",
    "epoch 1 worker 0 seed 8314211556539077902 draws 0.497469773115513 1524043329 8205711491232393797",
    "epoch 1 worker 0 seed 8314211556539077902 draws 0.33839484957051635 389623752 7724067224563570751",
    "epoch 1 worker 1 seed 8314211556539077903 draws ",
    "epoch 1 worker 1 seed 8314211556539077903 draws ",
)


@pytest.mark.parametrize("kills", [(), (1,), (2, 3)], ids=str)
def test_the_slides_seeds_and_draws_come_out(tmp_path: Path, kills: tuple[int, ...]) -> None:
    """C5: seeds and draws of Python, NumPy and torch in two workers and two epochs are the slides', across kills."""
    lines = []
    for kill in kills:
        lines += run_example("loader_seeds.py", tmp_path / "run", "--slides", "--kill-after", kill, code=-9)
    lines += run_example("loader_seeds.py", tmp_path / "run", "--slides")
    found = list(dict.fromkeys(lines))
    assert all(line.startswith(expected) for line, expected in zip(found, SLIDES, strict=True))
