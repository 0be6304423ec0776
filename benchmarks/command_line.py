"""How long `ls`, `inspect` and `diff` take on a checkpoint of 10,000 tensors, as whole processes.

How to run it: `python benchmarks/command_line.py`; prints a Markdown table. The goal is 0.3 s without importing torch.
"""

import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from samestep.state.snapshot import Item, Snapshot
from samestep.store.store import Store

TENSORS, REPEATS = 10_000, 9


def write_run(directory: Path) -> None:
    """Write two checkpoints of 10,000 tensors of four numbers that differ in one tensor."""
    names = [f"layers.{number}.weight" for number in range(TENSORS)]
    for step in (1, 2):
        tensors = {name: torch.full((4,), float(number)) for number, name in enumerate(names)}
        tensors[names[7]] += step
        tree = {name: {"$tensor": name} for name in names}
        snapshot = Snapshot(step, None, {"model": Item("module", {"state_dict": tree}, tensors)})
        Store(directory / "checkpoints").write(snapshot)


def seconds(*arguments: object) -> float:
    """Time one whole process."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "samestep", *map(str, arguments)], stdout=subprocess.DEVNULL, check=False)
    return time.perf_counter() - began


def main() -> None:
    """Measure the verbs in turn, so that a slow moment of the machine meets all of them."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        run.mkdir()
        write_run(run)
        commands = {
            "python -c pass": None,
            "ls": ("ls", run),
            "inspect": ("inspect", run),
            "diff": ("diff", f"{run}@1", f"{run}@2"),
            "inspect --json": ("inspect", run, "--json"),
        }
        times: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(REPEATS):
            for name, arguments in commands.items():
                times[name].append(empty_process() if arguments is None else seconds(*arguments))
    print(f"Python {platform.python_version()}, {platform.machine()}, median (minimum, maximum) of {REPEATS}\n")
    print("| command | seconds |\n|---|---|")
    for name, each in times.items():
        print(f"| {name} | {statistics.median(each):.3f} ({min(each):.3f}, {max(each):.3f}) |")


def empty_process() -> float:
    """Time a Python that does nothing: what no command can be faster than."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
