"""What a step of a run costs when no checkpoint is due: run.step, and the loader's boundary, against the bare loop.

How to run it: `python benchmarks/step.py`; prints medians of interleaved rounds. Goal: run.step ≤ 10 µs.
"""

import statistics
import tempfile
import time
from collections.abc import Callable

import torch

import samestep

STEPS, ROUNDS = 2_000, 7


def bare() -> float:
    """Time the loop without a run: what is left is the cost of Python's own loop."""
    loss = torch.zeros(())
    began = time.perf_counter()
    for _ in range(STEPS):
        loss.detach()
    return (time.perf_counter() - began) / STEPS


def run_steps() -> float:
    """Time `run.steps` with `run.step(loss=loss)`: a boundary and a line of metrics each."""
    with tempfile.TemporaryDirectory() as directory:
        run = samestep.Run(directory, save_every="1 h")
        run.track(model=torch.nn.Linear(1, 1))
        loss = torch.zeros(())
        began = elapsed = 0.0
        for step in run.steps(STEPS):  # between the first body and the last: the loop's own ends save
            began = began or time.perf_counter()
            run.step(loss=loss)
            if step == STEPS - 1:
                elapsed = time.perf_counter() - began
        run.close()
    return elapsed / STEPS


def step_alone() -> float:
    """Time `run.step(loss=loss)` alone."""
    with tempfile.TemporaryDirectory() as directory:
        run = samestep.Run(directory, save_every="1 h")
        run.track(model=torch.nn.Linear(1, 1))
        loss = torch.zeros(())
        for _ in run.steps(STEPS):
            began = time.perf_counter()
            for _ in range(STEPS):
                run.step(loss=loss)
            elapsed = time.perf_counter() - began
        run.close()
    return elapsed / STEPS


def loader(kind: type[torch.utils.data.DataLoader], *, tracked: bool) -> float:
    """Time a batch of 8 cheap samples of a loader, in or out of a run."""
    data = torch.utils.data.TensorDataset(torch.zeros(8 * 500, 4))
    batches = kind(data, batch_size=8, shuffle=True)
    with tempfile.TemporaryDirectory() as directory:
        run = samestep.Run(directory, save_every="1 h")
        run.track(model=torch.nn.Linear(1, 1))
        if tracked:
            run.track(batches=batches)
        elapsed = 0.0
        for _ in run.epochs(2):
            began = time.perf_counter()
            for _ in batches:
                pass
            elapsed += time.perf_counter() - began
        run.close()
    return elapsed / 1_000


MEASURED: dict[str, Callable[[], float]] = {
    "bare loop": bare,
    "run.step(loss=loss)": step_alone,
    "run.steps and run.step(loss=loss)": run_steps,
    "batch of torch's DataLoader": lambda: loader(torch.utils.data.DataLoader, tracked=False),
    "batch of samestep's, not tracked": lambda: loader(samestep.DataLoader, tracked=False),
    "batch of samestep's, tracked": lambda: loader(samestep.DataLoader, tracked=True),
}


def main() -> None:
    """Measure all in turn, round after round, so that a slow moment of the machine meets all of them."""
    times: dict[str, list[float]] = {name: [] for name in MEASURED}
    for _ in range(ROUNDS):
        for name, measure in MEASURED.items():
            times[name].append(measure() * 1e6)
    print("| | µs (minimum, maximum) |\n|---|---|")
    for name, each in times.items():
        print(f"| {name} | {statistics.median(each):.1f} ({min(each):.1f}, {max(each):.1f}) |")


if __name__ == "__main__":
    main()
