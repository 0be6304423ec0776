"""What all tests share: a small disk, how they are collected, and that the figures which they note are printed."""

import subprocess
import sys
from collections import Counter

import pytest

collect_ignore_glob = ["*conftest.py"]  # --doctest-modules would import them all under the one name "conftest"


@pytest.fixture
def count_calls():
    """Give what counts the Python calls of some work: a cost that does not depend on the machine or its load."""

    def of(work):
        counts = Counter()
        sys.setprofile(lambda _frame, event, _argument: counts.update((event,)))
        try:
            work()
        finally:
            sys.setprofile(None)
        return counts["call"] + counts["c_call"]

    return of


def pytest_terminal_summary(terminalreporter):
    """Print what tests have noted by `record_property("states", 4715)`, so that a run shows its figures."""
    reports = [each for kind in ("passed", "failed") for each in terminalreporter.getreports(kind)]
    noted = sorted(
        (each.nodeid, *each.user_properties) for each in reports if each.when == "call" and each.user_properties
    )
    if noted:
        terminalreporter.section("figures")
    for test, *figures in noted:
        terminalreporter.line(f"{test}: " + ", ".join(f"{name} {value}" for name, value in figures))


@pytest.fixture
def small_disk(tmp_path):
    """Mount a real file system of 256 kB, where the machine lets us."""
    path = tmp_path / "disk"
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", path], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting needs rights that this process lacks: run the tests as root")
    yield path
    subprocess.run(["umount", "--lazy", path], check=True)
