"""What a long life costs: a start with many attempts and a long metrics.jsonl behind it, and late saves against early.

How to run it: `python benchmarks/long_life.py`. Goals: a start with 10,000 attempts and 1,000,000 lines of metrics
takes less than a second more than a fresh one; late saves cost what early ones did (a ratio near 1).
"""

import itertools
import json
import statistics
import tempfile
import time
from pathlib import Path

import torch

import samestep

ATTEMPTS, LINES, SAVES = 10_000, 1_000_000, 2_000


def train(directory: Path, steps: int) -> list[float]:
    """Train to a number of steps with a save at each; give the seconds between the boundaries, the start first."""
    model = torch.nn.Sequential(torch.nn.Linear(16, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    optimizer = torch.optim.Adam(model.parameters())
    x = torch.ones(4, 16)
    times = [time.perf_counter()]
    run = samestep.Run(directory, seed=0, save_every=1)
    run.track(model=model, optimizer=optimizer)
    for _ in run.steps(steps):
        times.append(time.perf_counter())
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.step(loss=loss)
    run.close()
    return [after - before for before, after in itertools.pairwise(times)]


def grow_old(directory: Path) -> None:
    """Give a run of 2 steps the records of many attempts and steps."""
    attempts = directory / "attempts.jsonl"
    line = json.loads(attempts.read_text().splitlines()[0])
    attempts.write_text("".join(json.dumps(line | {"attempt": number}) + "\n" for number in range(1, ATTEMPTS + 1)))
    metrics = directory / "metrics.jsonl"
    lines = metrics.read_text()
    metrics.write_text(lines + "".join(f'{{"step": 3, "epoch": 0, "loss": {number}}}\n' for number in range(LINES)))


def start(directory: Path) -> tuple[float, float]:
    """Time a start until the first body, and all until the end of one step."""
    began = time.perf_counter()
    first = train(directory, 3)[0]
    return first, time.perf_counter() - began


def main() -> None:
    """Measure starts, then saves."""
    with tempfile.TemporaryDirectory() as folder:
        train(Path(folder) / "warm", 2)
        for name in ("young", "old"):
            directory = Path(folder) / name
            train(directory, 2)
            if name == "old":
                grow_old(directory)
            sizes = [(directory / each).stat().st_size / 1e6 for each in ("attempts.jsonl", "metrics.jsonl")]
            first, whole = start(directory)
            print(f"{name}: start {first:.3f} s, start, step, save and end {whole:.3f} s; records of {sizes} MB")
        times = train(Path(folder) / "saves", SAVES)[1:]
    tenth = len(times) // 10
    parts = [statistics.median(times[begin : begin + tenth]) * 1e3 for begin in range(0, tenth * 10, tenth)]
    print(f"save and step, median of each tenth of {SAVES}: {[round(each, 2) for each in parts]} ms")
    print(f"late to early: {parts[-1] / parts[0]:.2f}")


if __name__ == "__main__":
    main()
