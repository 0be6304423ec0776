"""Owns whose random numbers the process draws: the run's inside its loops, the notebook's outside. Stores nothing."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from samestep.generators import global_state, set_global_state


class OwnRandomState:
    """The run's random state: swapped in while one of its loops runs, and out again (R27)."""

    def __init__(self) -> None:
        self._own: dict[str, Any] | None = None
        self._ambient: dict[str, Any] | None = None

    def enter(self) -> None:
        """Put the run's generators in the place of the process's."""
        self._ambient = global_state()
        if self._own is not None:
            set_global_state(self._own)

    def leave(self) -> None:
        """Put the process's own generators back as they were when the loop began."""
        self._own = global_state()
        if self._ambient is not None:
            set_global_state(self._ambient)

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Enter for the length of a block."""
        self.enter()
        try:
            yield
        finally:
            self.leave()
