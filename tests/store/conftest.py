"""What the tests of the store share: other operating systems, and a small real disk."""

import subprocess

import pytest

from samestep.store import files


@pytest.fixture
def use_system(monkeypatch):
    """Put another operating system in place until the test ends."""
    return lambda system: monkeypatch.setattr(files, "system", system) or system


@pytest.fixture
def small_disk(tmp_path):
    """Mount a real file system of 256 kB, where the machine lets us."""
    path = tmp_path / "disk"
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", path], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting needs rights that this process lacks")
    yield path
    subprocess.run(["umount", path], check=True)
