"""The public names."""

import subprocess
import sys

import samestep

FROZEN = [
    "DataLoader",
    "Keep",
    "RandomState",
    "Run",
    "SamestepError",
    "Store",
    "isolated",
    "sample_rng",
    "seed_everything",
]


def test_public_names_are_frozen():
    """The public names are these; a new one is a decision, and there are at most 14."""
    assert samestep.__all__ == FROZEN
    assert len(samestep.__all__) <= 14


def test_all_is_what_the_package_shows():
    """`dir(samestep)` shows `__all__` and the version, and nothing else."""
    assert dir(samestep) == sorted([*samestep.__all__, "__version__"])


def test_every_public_name_can_be_imported():
    """Each name of `__all__` is there, and has a docstring."""
    for name in samestep.__all__:
        assert getattr(samestep, name).__doc__, name


def test_star_import_gives_all():
    """`from samestep import *` gives exactly `__all__`."""
    code = "before = {*globals(), 'before'}\nfrom samestep import *\nprint(*sorted({*globals()} - before))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == sorted(samestep.__all__)


def test_unknown_names_are_unknown():
    """A name that does not exist is an AttributeError, as in any module."""
    assert not hasattr(samestep, "Checkpointer")
