"""What the tests of exactness share: a folder in memory."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def fast() -> Iterator[Path]:
    """Give a folder in memory, where the machine has one: what is killed here are processes, not the machine."""
    parent = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108
    path = Path(tempfile.mkdtemp(dir=parent))
    yield path
    shutil.rmtree(path)
