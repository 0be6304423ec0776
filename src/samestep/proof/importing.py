"""Owns the moment at which a recorded process has imported torch: then the recorder starts. Imports no package.

Every Python below a recorded command runs this, also those that never import torch; so it costs them nothing.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from samestep.store.files import append_bytes

PROBLEMS = "problems.txt"
"""What is written beside the ledgers where the recorder cannot start."""


def watch_for_torch() -> None:
    """Start the recorder as soon as torch has been imported, whoever imports it."""
    sys.meta_path.insert(0, _TorchFinder())


class _TorchFinder(importlib.abc.MetaPathFinder):
    """Finds torch as all others would, and wraps its loader. Asked for its place alone, it changes nothing."""

    def __init__(self) -> None:
        self._is_asking = False

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None,  # noqa: ARG002  (Python's signature)
        target: ModuleType | None = None,  # noqa: ARG002  (as above)
    ) -> importlib.machinery.ModuleSpec | None:
        """Find torch; everything else is left to the other finders."""
        if name != "torch" or self._is_asking:
            return None
        self._is_asking = True
        try:
            found = importlib.util.find_spec(name)
        finally:
            self._is_asking = False
        if found is not None and found.loader is not None:
            found.loader = _TorchLoader(found.loader, self)
        return found


class _TorchLoader(importlib.abc.Loader):
    """Loads torch as its own loader does, and then starts the recorder."""

    def __init__(self, loader: importlib.abc.Loader, finder: _TorchFinder) -> None:
        self._loader, self._finder = loader, finder

    def __getattr__(self, name: str) -> object:
        return getattr(self._loader, name)  # `get_source`, `get_data` and others that inspect or pkgutil ask for

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        """Leave it to torch's loader."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Import torch, then start."""
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader  # from here on it is as if we had never been here
        if hasattr(module, "__loader__"):
            module.__loader__ = self._loader
        self._loader.exec_module(module)
        if self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)
        _start()


def _start() -> None:
    folder = Path(os.environ["SAMESTEP_RECORD"])
    try:
        from samestep.proof.recorder import start
    except ImportError as error:  # the command's Python has torch, but not what we stand on
        append_bytes(folder / PROBLEMS, f"{sys.executable}: {error}\n".encode())
        return
    start(folder)
