"""What the tests of the store share: other operating systems."""

import pytest

from samestep.store import files


@pytest.fixture
def use_system(monkeypatch):
    """Put another operating system in place until the test ends."""
    return lambda system: monkeypatch.setattr(files, "system", system) or system
