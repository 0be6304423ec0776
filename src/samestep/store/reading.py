"""Owns the checkpoint as it is found on disk: what it is, whether it is sound, and reading it. Never writes.

Looking and verifying work without torch; only reading tensors imports it.
"""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from samestep.errors import CorruptCheckpoint, NoCheckpoint
from samestep.state.snapshot import Snapshot
from samestep.store import folder, verifying
from samestep.store.manifest import MANIFEST_FILE, Manifest, created_seconds, metric_values
from samestep.store.retention import Entry
from samestep.store.verifying import Problem
from samestep.wording import shown

if TYPE_CHECKING:
    from torch import Tensor


class Checkpoint:
    """A checkpoint on disk; making one reads nothing, its manifest is read when first needed.

    Args:
        path: The checkpoint's folder.

    Example:
        >>> Checkpoint("runs/digits/checkpoints/step-000000400").step
        400
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def __repr__(self) -> str:
        return f"Checkpoint({str(self.path)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Checkpoint) and self.path == other.path

    def __hash__(self) -> int:
        return hash(self.path)

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.name

    @property
    def step(self) -> int:
        """Completed optimizer updates; read from the folder's name where that says it."""
        named = folder.parse_name(self.name)
        return named[0] if named else self.manifest.step

    @property
    def order(self) -> int:
        """How many checkpoints of the same step were written before this one."""
        named = folder.parse_name(self.name)
        return named[1] if named else 0

    @cached_property
    def manifest(self) -> Manifest:
        """The manifest, checked; raises `CorruptCheckpoint` when it is missing or damaged."""
        manifest = verifying.read_manifest(self.path)
        named = folder.parse_name(self.name)
        if named is not None and named[0] != manifest.step:
            raise CorruptCheckpoint(
                "The folder's name and the manifest speak of different steps.",
                path=self.path,
                expected=f"step {named[0]}",
                found=f"step {manifest.step}",
                hint="Give the folder its own name again.",
            )
        return manifest

    @property
    def epoch(self) -> int | None:
        """The epoch that the next step belongs to; None when the loop counts steps only."""
        return self.manifest.epoch

    @property
    def metrics(self) -> dict[str, float]:
        """The last scores by name."""
        return metric_values(self.manifest)

    @property
    def tags(self) -> list[str]:
        """Marks given by the user."""
        return self.manifest.tags

    @property
    def created(self) -> str:
        """When it was written: ISO 8601, UTC."""
        return self.manifest.created

    @property
    def environment(self) -> dict[str, Any]:
        """Versions, machine and settings under which it was written."""
        return self.manifest.environment

    @property
    def bytes(self) -> int:
        """The size of all files, the manifest included."""
        return sum(file.bytes for file in self.manifest.files) + (self.path / MANIFEST_FILE).stat().st_size

    def check(self) -> None:
        """Check manifest and sizes, without reading tensors.

        Raises:
            CorruptCheckpoint: They do not hold.
        """
        verifying.check_sizes(self.path, self.manifest)

    def verify(self) -> list[Problem]:
        """Read every byte and compare every digest, without torch and with little memory.

        Returns:
            What is wrong; an empty list when every byte is the one that was written.
        """
        try:
            return list(verifying.find_problems(self.path, self.manifest))
        except CorruptCheckpoint as error:
            return [Problem(MANIFEST_FILE, None, error.message)]

    def read(self, map_location: Any = None, *, verify: bool = True) -> Snapshot:
        """Read the checkpoint; its tensors are loaded one by one when they are used.

        Args:
            map_location: Where tensors go, as in `torch.load`: None (the CPU), a device, its name, a dict from
                devices to devices, or a function of storage and location. Random state stays on the CPU.
            verify: Whether to compare every digest before anything is returned (default). Each tensor is
                compared again when it is loaded, whatever this says.

        Returns:
            The snapshot. Its tensors are read from the folder when they are used, so that must stay until then.

        Raises:
            CorruptCheckpoint: Something is not what was written; it names file and tensor.
        """
        from samestep.store.loading import load_snapshot

        if verify:
            self.require_sound()
        return load_snapshot(self.path, self.manifest, map_location)

    def tensor(self, item: str, name: str) -> "Tensor":
        """Read one tensor to the CPU and compare its digest.

        Args:
            item: The name under which the object is tracked.
            name: The tensor's name.

        Raises:
            NoCheckpoint: The checkpoint holds no such tensor.
            CorruptCheckpoint: Its bytes are not those that were written.
        """
        from samestep.store.loading import load_snapshot

        held: Mapping[str, Any] = self.manifest.items
        are_texts = isinstance(item, str) and isinstance(name, str)
        if not are_texts or item not in held or name not in held[item].tensors:
            found = f"{shown(item)}, {shown(name)}"
            raise NoCheckpoint("The checkpoint holds no such tensor.", path=self.path, found=found)
        return load_snapshot(self.path, self.manifest, None).items[item].tensors[name]

    def require_sound(self) -> None:
        """Verify, and raise `CorruptCheckpoint` for the first thing that is wrong."""
        for problem in verifying.find_problems(self.path, self.manifest):
            where = f"{self.path / problem.file}" + (f": {problem.tensor}" if problem.tensor else "")
            raise CorruptCheckpoint(problem.problem, path=where)

    def entry(self) -> Entry:
        """Give what retention needs to know; raises `CorruptCheckpoint` when the manifest is damaged."""
        return Entry(
            name=self.name,
            step=self.step,
            order=self.order,
            metrics=self.metrics,
            tags=tuple(self.tags),
            created=created_seconds(self.manifest) or 0.0,
        )


def find_checkpoints(directory: str | Path) -> list[Checkpoint]:
    """Find the committed checkpoints of a folder, oldest first, by names and the presence of manifests alone.

    Args:
        directory: The folder that holds `step-…` folders; one that does not exist holds none.

    Returns:
        The checkpoints, by step, then by order within a step.

    Example:
        >>> find_checkpoints("nowhere")
        []
    """
    return [Checkpoint(path) for path in folder.list_folders(Path(directory)) if folder.is_committed(path)]
