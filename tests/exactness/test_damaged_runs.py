"""Damage in a run's directory: what a resume does with flipped bits and cuts in any of its files."""

import shutil
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import killing
import lives
import pytest
from processes import run_in_child

import samestep.attempt
from samestep.errors import SamestepError
from samestep.store.attempts import read_attempts

LIMIT = 7200
"""Seconds for a sweep; the slow ones resume tens of thousands of times."""

CHECKPOINTS, METRICS = "run/checkpoints", "run/metrics.jsonl"
RECORDS = ("run/run.json", "run/attempts.jsonl", METRICS, "run/lock.json")


def in_sweep(target: Callable[..., None], place: Path, *arguments: object) -> None:
    """Run a sweep in a process of its own, and print what it has counted."""
    log = place / "log"
    code = run_in_child(target, place, *arguments, log=log, limit=LIMIT)
    assert code == 0, log.read_text()
    print(log.read_text())  # noqa: T201


class Damaged:
    """A run with checkpoints of steps 2 and 4, of which copies are damaged and resumed.

    Args:
        place: A folder for it.
    """

    def __init__(self, place: Path) -> None:
        killing.warm_up()
        samestep.attempt.environment = dict  # what is recorded is long, and decides nothing
        self.whole, self.here = place / "whole", place / "here"
        self.whole.mkdir()
        train = partial(lives.train, self.whole, keep=samestep.Keep(last=9))
        assert killing.in_fork(partial(train, epochs=1)) == killing.in_fork(train) == 0
        (self.whole / "run" / "lock.json").write_text('{"host": "node1", "pid": 4, "command": "python train.py"}')
        self.newest = self.whole / CHECKPOINTS / "step-000000004"
        self.counts: Counter[str] = Counter()

    def resume(self, name: str, data: bytes) -> tuple[str | None, str]:
        """Resume a copy in which a file has other bytes; give the checkpoint that is taken, and all that is said."""
        shutil.rmtree(self.here, ignore_errors=True)
        shutil.copytree(self.whole, self.here)
        (self.here / name).write_bytes(data)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            lives.train(self.here)
        assert self.read("end.json") == (self.whole / "end.json").read_bytes()
        return read_attempts(self.here / "run")[-1]["resumed_from"], "\n".join(str(each.message) for each in said)

    def read(self, name: str) -> bytes:
        return (self.here / name).read_bytes()


def damages(data: bytes, stride: int, bits: int) -> Iterator[tuple[str, bytes]]:
    """Give what becomes of some bytes when a bit flips in every so many of them, and when they are cut there."""
    for index in range(0, len(data), stride):
        for bit in range(bits):
            flipped = bytearray(data)
            flipped[index] ^= 1 << (index + bit) % 8
            yield f"bit {(index + bit) % 8} of byte {index} flipped", bytes(flipped)
        yield f"cut to {index} bytes", data[:index]


def sweep_checkpoint(place: Path, stride: int, bits: int) -> None:
    """Damage each file of the newest checkpoint."""
    run = Damaged(place)
    for path in sorted(run.newest.iterdir()):
        for what, data in damages(path.read_bytes(), stride, bits):
            taken, said = run.resume(str(path.relative_to(run.whole)), data)
            assert taken == "step-000000002", (path.name, what)
            assert "step-000000004 is damaged" in said, (path.name, what)
            assert path.name in said, (path.name, what)
            assert run.read(f"{CHECKPOINTS}/quarantine/step-000000004/{path.name}") == data, "nothing is deleted"
            assert run.read(METRICS) == (run.whole / METRICS).read_bytes()
            run.counts[what.split()[0]] += 1
    print(f"newest checkpoint: {run.counts['bit']} flips and {run.counts['cut']} cuts, all found")  # noqa: T201


def sweep_records(place: Path, stride: int, bits: int) -> None:
    """Damage each record of the run."""
    run = Damaged(place)
    for name in RECORDS:
        whole = (run.whole / name).read_bytes()
        for what, data in damages(whole, stride, bits):
            if name == "run/run.json":
                with pytest.raises(SamestepError, match="record is damaged") as refused:
                    run.resume(name, data)
                assert refused.value.path == str(run.here / name), what
                assert run.read(name) == data, what
                run.counts[f"{name} refused by name"] += 1
                continue
            taken, said = run.resume(name, data)
            assert taken == "step-000000004", (name, what)
            run.counts[f"{name} {outcome(run, name, data, said)}"] += 1
    print("\n".join(f"{count:6} {what}" for what, count in run.counts.items()))  # noqa: T201


def outcome(run: Damaged, name: str, data: bytes, said: str) -> str:
    """Tell what a resume with a damaged record came to; fail if that is neither said nor harmless."""
    if name == METRICS:
        is_told = "metrics.jsonl is not what was written" in said or "bytes shorter than when" in said
        assert is_told, "each byte of it is the loop's"
        return "said"
    if name == "run/attempts.jsonl":
        whole_lines = data[: data.rfind(b"\n") + 1]
        assert run.read(name).startswith(whole_lines), "an earlier attempt was changed"
    return "harmless: it only informs"


def test_damage_in_the_newest_checkpoint_makes_a_resume_fall_back(tmp_path: Path) -> None:
    """With a bit flipped, or the end cut off, in any of its files, a resume names it and takes the one before."""
    in_sweep(sweep_checkpoint, tmp_path, 701, 1)


def test_damage_in_the_records_never_misleads_a_resume(tmp_path: Path) -> None:
    """With a damaged run.json, attempts, metrics or lock.json, a resume goes on rightly, or says what is wrong."""
    in_sweep(sweep_records, tmp_path, 31, 1)


@pytest.mark.slow
def test_any_damage_in_the_newest_checkpoint_makes_a_resume_fall_back(tmp_path: Path) -> None:
    """With a bit flipped, or a cut, at any byte of any of its files, a resume takes the checkpoint before."""
    in_sweep(sweep_checkpoint, tmp_path, 1, 1)


@pytest.mark.slow
def test_any_damage_in_the_records_never_misleads_a_resume(tmp_path: Path) -> None:
    """With any bit of any record flipped, or any cut, a resume goes on rightly, or says what is wrong."""
    in_sweep(sweep_records, tmp_path, 1, 8)
