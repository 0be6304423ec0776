"""samestep makes any PyTorch training bit-exactly resumable, and proves it.

The names below are imported on first use, so that `samestep ls` and its kin start without torch.
"""

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from samestep.data.loader import DataLoader
    from samestep.data.randomness import sample_rng
    from samestep.errors import SamestepError
    from samestep.run import Run
    from samestep.state.random import RandomState, isolated, seed_everything
    from samestep.store.retention import Keep
    from samestep.store.store import Store

__version__ = "0.1.0"

# The library is silent; who wants to hear it configures logging.
logging.getLogger("samestep").addHandler(logging.NullHandler())

_HOME = {
    "DataLoader": "samestep.data.loader",
    "Keep": "samestep.store.retention",
    "RandomState": "samestep.state.random",
    "Run": "samestep.run",
    "SamestepError": "samestep.errors",
    "Store": "samestep.store.store",
    "isolated": "samestep.state.random",
    "sample_rng": "samestep.data.randomness",
    "seed_everything": "samestep.state.random",
}

__all__ = [
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


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'samestep' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
