"""Thousands of saves in one process: nothing that it holds grows, and the gauges that say so see every kind of leak."""

import ctypes
import json
import os
import subprocess
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import enduring
import gauges
import pytest
from ledger import Ledger
from processes import start_child

STEPS = 10  # in an epoch, each with a save


class Level(enduring.Enduring):
    """Measures what the process holds at the ends of its epochs; leaks at each step of the epochs that say so."""

    items = 4 * STEPS
    leaks: dict[int, str] = {}  # noqa: RUF012  (set by the tests)
    first, every = 2, 1

    def __init__(self, directory: Path, ledger: Ledger, **changes: Any) -> None:
        super().__init__(directory, ledger, **changes)
        self.directory, self.held, self.kept = directory, [], []

    def note_step(self, *_: Any) -> None:
        leak = self.leaks.get(self.run.epoch)
        if leak is not None:
            self.kept.append(getattr(self, f"leak_{leak}")())

    def evaluate(self, epoch: int) -> None:
        self.run.score(total=1.0)
        if not tracemalloc.is_tracing():
            tracemalloc.start()
        if epoch >= self.first and (epoch - self.first) % self.every == 0:
            self.held.append(gauges.measure() | {"bytes on disk": self.bytes_on_disk()})

    def bytes_on_disk(self) -> int:
        checkpoints = (self.directory / "checkpoints").rglob("*")
        return sum(path.stat().st_size for path in checkpoints if path.is_file())

    # what a save or step might leave behind

    def leak_snapshots(self) -> object:
        return self.run._keeper.snapshot()

    def leak_copies(self) -> object:
        return [each.clone() for each in self.model.state_dict().values()]

    def leak_bytes(self) -> object:
        return bytes(10_000)

    def leak_memory(self) -> object:
        size = 80_000  # of libc's, as an extension would
        libc = ctypes.CDLL(None)
        libc.malloc.restype = ctypes.c_void_p
        place = libc.malloc(ctypes.c_size_t(size))
        ctypes.memset(place, 1, size)
        return place

    def leak_descriptors(self) -> object:
        return os.open("/dev/null", os.O_RDONLY)

    def leak_threads(self) -> object:
        thread = threading.Thread(target=threading.Event().wait, daemon=True)
        thread.start()
        return thread

    def leak_children(self) -> object:
        return subprocess.Popen(["sleep", "1000"]) if len(self.kept) % STEPS == 0 else None

    def leak_hooks(self) -> object:
        return [self.optimizer.register_step_post_hook(lambda *_: None) for _ in range(10)]

    def end_children(self) -> None:
        for each in self.kept:
            if isinstance(each, subprocess.Popen):
                each.kill()
                each.wait()


def train_level(directory: Path, answers: Path, changes: dict[str, Any]) -> None:
    training = Level(directory, Ledger(directory.parent / "ledger"), **changes)
    training.train()
    training.end_children()
    answers.write_text(json.dumps(training.held))


def held_by(folder: Path, **changes: Any) -> list[dict[str, int]]:
    """Train in a fresh process and give what it held at the ends of its epochs."""
    child = start_child(train_level, folder / "run", folder / "answers", changes, log=folder / "log")
    child.join()
    assert child.exitcode == 0, (folder / "log").read_text()
    return json.loads((folder / "answers").read_text())


NOISE = {
    "descriptors": 0,
    "threads": 0,
    "children": 0,
    "objects": 130,  # two epochs of workers differ by so many, in turn
    "bytes of tensors": 0,
    "bytes of Python": 50_000,  # 100 B a save: caches of msgspec and others that are still filling
    "resident bytes": 400_000,
    "bytes on disk": 100,  # numbers of more digits
}
"""How much a gauge may show between two moments without a leak."""


def grown(before: dict[str, int], after: dict[str, int]) -> set[str]:
    return {name for name, noise in NOISE.items() if after[name] - before[name] > noise}


LEAKS = {
    3: ("snapshots", "objects"),
    4: ("copies", "bytes of tensors"),
    5: ("bytes", "bytes of Python"),
    6: ("memory", "resident bytes"),
    7: ("descriptors", "descriptors"),
    8: ("threads", "threads"),
    9: ("children", "children"),
    10: ("hooks", "objects"),
}


def test_every_kind_of_leak_shows(fast: Path) -> None:
    """Each kind of leak, small and in 10 saves, moves its gauge beyond what it shows without a leak."""
    leaks = {epoch: leak for epoch, (leak, _) in LEAKS.items()}
    held = held_by(fast, epochs=max(LEAKS) + 1, workers=0, leaks=leaks)
    for epoch, (leak, gauge) in LEAKS.items():
        assert gauge in grown(held[epoch - 3], held[epoch - 2]), f"a leak of {leak} does not show in {gauge}"


def test_fifty_saves_leave_nothing_behind(fast: Path) -> None:
    """Over 50 saves in one process nothing grows: descriptors, threads, children, objects, bytes of Python and tensors.

    Resident memory goes up and down by more than 50 saves could leak; the slow form looks at it over 1,600.
    """
    held = held_by(fast, epochs=9, workers=2, every=5, first=3)
    assert grown(held[0], held[-1]) <= {"resident bytes"}


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_thousands_of_saves_leave_nothing_behind(fast: Path, workers: int, record_property: Any) -> None:
    """After 440 saves, 1,600 more in one process let nothing grow: neither files, descriptors nor memory."""
    held = held_by(fast, epochs=204, workers=workers, every=40, first=3)
    for name in NOISE:
        record_property(name, [each[name] for each in held])
    assert grown(held[1], held[-1]) == set(), "caches of msgspec and others were full after 400 saves"
