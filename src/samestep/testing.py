"""Public helpers for tests of one's own training: restore at every boundary, compare the whole remainder."""

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from samestep.run import Run
from samestep.state.gradients import GRADIENTS
from samestep.state.random import isolated
from samestep.state.snapshot import Item
from samestep.state.tensors import digest
from samestep.store.files import make_folder
from samestep.store.given import require
from samestep.store.retention import Keep
from samestep.store.store import Store

_NOT_COMPARED = ("run.metrics_bytes", "run.metrics_digest", "run.loop_ends", "run.top", "run: top.")
"""What depends on the directory, or only says how to enter an epoch again: no part of the training's state."""

Leaves = dict[str, Any]
"""The state at one boundary, flat: what stands at each path, tensors as digests."""


def check_every_step(make_run: Callable[[Path], object], *, every: int = 1) -> int:
    """Restore a training at every boundary and compare everything that follows with the uninterrupted training.

    Every tracked object, all random generators and the position of every loader are compared bit by bit at each
    later boundary. All happens in this process, so it is fast enough for a test; it proves your loop and your own
    `state_dict`s, and leaves the killing to `samestep demo` and to your own processes. The idea is Grain's.

    Args:
        make_run: Trains from beginning to end: it is given a directory, builds everything anew, makes a
            `samestep.Run` of that directory with a seed, and loops. It must be deterministic and small.
        every: Restore only at every so many boundaries (default 1: at each).

    Returns:
        At how many boundaries the training was restored.

    Raises:
        SamestepError: An argument is not understood.
        AssertionError: A restored training went another way; the message names the boundary, the step and the
            first part that differs.

    Example:
        >>> import torch
        >>> def train(directory):
        ...     run = Run(directory, seed=0, save_every=None)
        ...     model = torch.nn.Linear(2, 1)
        ...     optimizer = torch.optim.Adam(model.parameters())
        ...     run.track(model=model, optimizer=optimizer)
        ...     for step in run.steps(3):
        ...         optimizer.zero_grad()
        ...         model(torch.rand(4, 2)).square().mean().backward()
        ...         optimizer.step()
        ...         run.step()
        >>> check_every_step(train)
        3
    """
    whole_number = isinstance(every, int) and not isinstance(every, bool) and every > 0
    require("check_every_step(make_run)", "a function that trains in a directory", make_run, callable(make_run))
    require("check_every_step(every=…)", "a whole number of at least 1", every, whole_number)
    with tempfile.TemporaryDirectory() as folder, isolated():
        whole = _Recorder(Path(folder), every)
        with _observing(whole):
            make_run(Path(folder) / "whole")
        for number in whole.kept:
            resumed = _Recorder()
            with _observing(resumed):
                make_run(whole.directory(number))
            _compare(whole.seen, resumed.seen, number)
        return len(whole.kept)


class _Recorder:
    """Sees every boundary of a run; keeps a checkpoint of each if it has a folder for them."""

    def __init__(self, folder: Path | None = None, every: int = 1) -> None:
        self._folder, self._every = folder, every
        self.seen: list[tuple[int, Leaves]] = []
        self.kept: list[int] = []

    def directory(self, number: int) -> Path:
        assert self._folder is not None  # noqa: S101  # only called on the recorder of the whole training
        return self._folder / f"boundary-{number}"

    def __call__(self, run: Run) -> None:
        snapshot = run._keeper.snapshot()  # noqa: SLF001  # the run's own tests stand behind its walls
        number = len(self.seen)
        self.seen.append((snapshot.step, _leaves(snapshot.items)))
        if self._folder is not None and number % self._every == 0:
            checkpoints = self.directory(number) / "checkpoints"
            make_folder(checkpoints)
            for _, _, name in run._progress.loop_ends.values():  # noqa: SLF001  # see above
                shutil.copytree(run._attempt.directory / "checkpoints" / name, checkpoints / name)  # noqa: SLF001
            Store(checkpoints, keep=Keep(every=1)).write(snapshot, environment=run._attempt.environment)  # noqa: SLF001
            self.kept.append(number)


@contextmanager
def _observing(recorder: _Recorder) -> Iterator[None]:
    Run._observers.append(recorder)  # noqa: SLF001  # see above
    try:
        yield
    finally:
        Run._observers.remove(recorder)  # noqa: SLF001  # see above


def _leaves(items: Mapping[str, Item]) -> Leaves:
    leaves: Leaves = {}
    for name, item in items.items():
        leaves[name] = item.kind
        _flatten(name, item.tree, leaves)
        leaves.update({f"{name}: {tensor}": digest(value) for tensor, value in item.tensors.items()})
    return {path: leaf for path, leaf in leaves.items() if not path.startswith(_NOT_COMPARED)}


def _flatten(path: str, tree: Any, leaves: Leaves) -> None:
    if isinstance(tree, dict) and tree:
        for key, child in tree.items():
            _flatten(f"{path}.{key}", child, leaves)
    elif isinstance(tree, list) and tree:
        for index, child in enumerate(tree):
            _flatten(f"{path}[{index}]", child, leaves)
    else:
        leaves[path] = repr(tree)  # repr tells 1 from 1.0 and True, and -0.0 from 0.0


def _compare(whole: list[tuple[int, Leaves]], resumed: list[tuple[int, Leaves]], number: int) -> None:
    # A resume in the middle of an epoch comes by the boundary it was saved at once more; others begin behind it.
    rest = whole[len(whole) - len(resumed) :]
    where = f"restored at boundary {number} (step {whole[number][0]})"
    if len(resumed) not in (len(whole) - number, len(whole) - number - 1):
        raise AssertionError(f"{where}: {len(resumed)} boundaries follow instead of {len(whole) - number - 1}")
    for (step, expected), (_, found) in zip(rest, resumed, strict=True):
        differing = [path for path in {**expected, **found} if expected.get(path) != found.get(path)]
        if GRADIENTS not in expected or GRADIENTS not in found:
            # A fresh process cannot know yet that the loop drops its gradients, and keeps them once more.
            differing = [path for path in differing if not path.startswith(GRADIENTS)]
        if differing:
            path = differing[0]
            raise AssertionError(
                f"{where}: the first difference is at step {step}, {path}:"
                f" {expected.get(path)} became {found.get(path)} ({len(differing)} parts differ)"
            )
