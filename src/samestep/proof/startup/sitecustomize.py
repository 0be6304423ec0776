"""Runs at the start of every Python of a recorded command: waits for torch, then starts the recorder.

Stands alone in its folder, which PYTHONPATH names first; what another `sitecustomize` would have done is done too.
"""

import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path

from samestep.proof.importing import watch_for_torch


def _run_the_other() -> None:
    """Run the `sitecustomize` that Python would have found without this one."""
    here = Path(__file__).resolve().parent
    found = PathFinder.find_spec("sitecustomize", [path for path in sys.path if Path(path).resolve() != here])
    if found is not None and found.loader is not None:
        found.loader.exec_module(module_from_spec(found))


_run_the_other()
if "SAMESTEP_RECORD" in os.environ:
    watch_for_torch()
