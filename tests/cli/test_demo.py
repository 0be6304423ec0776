"""`samestep demo`: the proof that a new user sees first."""

import json
import subprocess
import sys

from samestep.demo.proof import Demonstration, find_differences


def test_demo_proves_its_training() -> None:
    """`samestep demo --json` kills its training twice, resumes it, and proves 168 steps equal."""
    done = subprocess.run(
        [sys.executable, "-m", "samestep", "demo", "--json"], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["verdict"], found["steps"], found["kills"]) == ("proved", 168, 2)
    assert found["differences"] == []


def test_demo_would_notice_a_difference() -> None:
    """One differing digest, a missing step, or a step too many make the verdict "diverged", by name."""
    whole = {1: {"loss": "a"}, 2: {"loss": "b"}, "final": {"tensors": {}}}
    resumed = {1: [{"loss": "a"}, {"loss": "x"}], 3: [{"loss": "c"}], "final": [{"tensors": {}}]}
    found = Demonstration(whole, resumed)
    found.differences = find_differences(found)
    assert found.verdict == "diverged"
    assert found.differences == ["step 1: loss", "step 2 is missing", "step 3 is one too many"]
