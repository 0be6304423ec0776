"""How fast the verbs start, and without what."""

import subprocess
import sys

import pytest
from small_training import snapshot

from samestep.cli.group import VERBS
from samestep.store.retention import Keep
from samestep.store.store import Store

HEAVY = ("torch", "numpy", "safetensors", "asyncio", "multiprocessing")


def loaded_after(*words):
    """Run a verb in a process of its own and name the heavy modules that it imported."""
    code = (
        "import sys\n"
        "from samestep.cli.group import run\n"
        "status = run(sys.argv[1:])\n"
        f"heavy = [name for name in {HEAVY} if name in sys.modules]\n"
        "print(status, *heavy, file=sys.stderr)\n"
    )
    words = [sys.executable, "-c", code, *map(str, words)]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    return done.stderr.split("\n")[-2].split(" ")


@pytest.mark.parametrize(
    "words",
    [
        ("ls", "{run}"),
        ("ls", "{run}", "--json"),
        ("inspect", "{run}", "--tensors"),
        ("diff", "{run}", "{run}"),
        ("verify", "{run}"),
        ("prune", "{run}", "--last", "2", "--dry-run"),
        ("prune", "{run}", "--last", "2"),
        *((verb, "--help") for verb in VERBS),
        ("--help",),
    ],
    ids=" ".join,
)
def test_looking_starts_without_torch(digits, words):
    """Every verb that looks, compares, checks or tidies works without importing torch or numpy."""
    assert loaded_after(*(word.format(run=digits) for word in words)) == ["0"]


def test_mistakes_need_no_torch(tmp_path):
    """Saying what a foreign file is needs no torch either."""
    (tmp_path / "model.pt").write_bytes(b"\x80\x02.")
    assert loaded_after("inspect", tmp_path / "model.pt") == ["2"]


def test_importing_the_package_needs_no_torch():
    """`import samestep` and its error class cost no torch."""
    code = "import sys, samestep; samestep.SamestepError; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """Write a run whose checkpoints have 10,000 tensors."""
    directory = tmp_path_factory.mktemp("large")
    store = Store(directory / "checkpoints", keep=Keep(last=9))
    for step in (100, 200, 300):
        store.write(snapshot(step, layers=5000, seed=step))
    return directory


def calls_of(words):
    """Count the Python calls of a whole process: a cost that does not depend on the machine or its load."""
    done = subprocess.run([sys.executable, "-c", COUNTED, *words], capture_output=True, text=True, check=False)
    return int(done.stderr.splitlines()[-1])


COUNTED = """
import atexit, sys
calls = 0
def count(frame, event, argument):
    global calls
    calls += event == "call"
def tell():
    sys.setprofile(None)
    print(calls, file=sys.stderr)
atexit.register(tell)
sys.setprofile(count)
from samestep.cli import main
main()
"""


@pytest.mark.parametrize(
    "words",
    [("ls", "{run}"), ("inspect", "{run}"), ("diff", "{run}", "{run}@100"), ("diff", "{run}", "{run}", "--json")],
    ids=" ".join,
)
def test_ten_thousand_tensors_cost_few_calls(large, words):
    """Ls, inspect and diff answer on checkpoints of 10,000 tensors with few calls a tensor, start included."""
    assert calls_of([word.format(run=large) for word in words]) < 400_000
