"""A disk that forgets what was not synchronised, and all that it may hold after a power loss.

`LossyDisk` stands in for `files.system`, lets every call through to real files, and after each one enumerates what a
disk may hold if the power goes there. Only this is sure: a file's bytes as they were at its last `fsync`, and a
folder's names as they were at the folder's. What came later has reached the disk or not, in any order and each for
itself (after ALICE, Pillai et al., OSDI 2014, with a disk that is weaker than any of the file systems tried there):

- of the changes of names in one folder, any subset; a rename inside a folder is one change, between two folders it is
  one in each, so that both names may be there afterwards, or neither;
- of the writes to a file, any tail may be lost, any single one may be missing, torn in the middle, or have left only
  its length with zeros for bytes, and a later one may be there without those before it.
"""

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from samestep.store import files, folder

MOST_CHANGES = 12
"""Unsynchronised names in one folder; with more, the enumeration refuses rather than leave states out."""

State = tuple[tuple[str, object], ...]
"""A folder as the disk holds it: pairs of a name and its bytes, or its own pairs, sorted by name."""


@dataclass(frozen=True)
class Names:
    """A change of names in one folder: what each means from now on, None for nothing."""

    changes: tuple[tuple[str, "Inode | None"], ...]

    def apply(self, names):
        """Give the names after it."""
        changed = {**names, **dict(self.changes)}
        return {name: inode for name, inode in changed.items() if inode is not None}


@dataclass(frozen=True)
class Bytes:
    """Bytes written at an offset; nothing of them if only a length is meant."""

    offset: int
    data: bytes

    def apply(self, content):
        """Give the file's content after it."""
        end = self.offset + len(self.data)
        return content[: self.offset].ljust(self.offset, b"\0") + self.data + content[end:]

    def torn(self):
        """Give what may be there of it besides nothing and everything: the length alone, or one half."""
        half = len(self.data) // 2
        zeros = bytes(len(self.data))
        return [Bytes(self.offset, data) for data in (zeros, self.data[:half], zeros[:half] + self.data[half:])]


@dataclass(frozen=True)
class Length:
    """A file cut off."""

    size: int

    def apply(self, content):
        """Give the file's content after it."""
        return content[: self.size].ljust(self.size, b"\0")

    def torn(self):
        """Say that it is there or not."""
        return []


@dataclass(eq=False)
class Inode:
    """A file or a folder, whatever its names: what is sure of it, and what has happened to it since."""

    sure: dict[str, "Inode"] | bytes
    since: list[Names | Bytes | Length] = field(default_factory=list)

    @property
    def now(self):
        """What the running system shows: names of a folder, content of a file."""
        shown = self.sure
        for change in self.since:
            shown = change.apply(shown)
        return shown

    def sync(self):
        """Make everything sure that has happened."""
        self.sure, self.since = self.now, []

    def outcomes(self) -> list[State | bytes]:
        """Enumerate what the disk may hold of it."""
        return self._folders() if isinstance(self.sure, dict) else self._contents()

    def _folders(self) -> list[State]:
        assert len(self.since) <= MOST_CHANGES, f"{len(self.since)} unsynchronised changes of names in one folder"
        listings = {tuple(sorted(names.items(), key=lambda each: each[0])) for names in _subsets(self.sure, self.since)}
        found = []
        for listing in listings:
            inner = [inode.outcomes() for _, inode in listing]
            found += [
                tuple(zip([name for name, _ in listing], each, strict=True)) for each in itertools.product(*inner)
            ]
        return found

    def _contents(self) -> list[bytes]:
        orders = [self.since[:end] for end in range(len(self.since) + 1)]
        for place, change in enumerate(self.since):
            before, after = self.since[:place], self.since[place + 1 :]
            orders += [[*before, *after], [change]]
            orders += [[*before, torn, *rest] for torn in change.torn() for rest in ([], after)]
        return list({_applied(self.sure, order) for order in orders})


def _subsets(sure, changes) -> Iterator[dict[str, Inode]]:
    for chosen in itertools.product((False, True), repeat=len(changes)):
        yield _applied(sure, itertools.compress(changes, chosen))


def _applied(shown, changes):
    for change in changes:
        shown = change.apply(shown)
    return shown


class LossyDisk(files.System):
    """The operating system, which collects what its disk may hold after a power loss at any call.

    Args:
        root: The folder that is watched; what it holds now is taken as sure. All calls must be inside it.
        promise: What has been promised already, such as a step.
        deaf_to: The number of an `fsync` that does nothing, from 0 (default: none); shows whether it is needed.
    """

    def __init__(self, root: Path, *, promise: int = 0, deaf_to: int | None = None) -> None:
        self.root = root
        self.promise = promise
        self.states: dict[State, set[int]] = {}
        self.syncs: list[Path] = []
        self._top = _scan(root)
        self._deaf_to = deaf_to
        self._descriptors: dict[int, tuple[Path, Inode, bool]] = {}
        self._positions: dict[int, int] = {}
        self._collect()

    def promised(self, promise: int) -> None:
        """Note what the program has said, such as that a step is durable: it holds for every state from here on."""
        self.promise = promise
        self._collect()

    def _collect(self) -> None:
        for state in self._top.outcomes():
            self.states.setdefault(state, set()).add(self.promise)

    def _find(self, path: Path) -> Inode | None:
        inode = self._top
        for name in path.relative_to(self.root).parts:
            inode = inode.now.get(name) if inode is not None and isinstance(inode.sure, dict) else None
        return inode

    def _rename_in(self, folder: Path, *changes: tuple[str, Inode | None]) -> None:
        self._find(folder).since.append(Names(changes))

    def by_what_shows(self) -> list[tuple[list[State], int]]:
        """Group the states that differ only inside drafts and trash, which all pass over and the next save removes.

        Returns:
            The groups, each with the highest promise that any of its states has to keep.
        """
        groups: dict[State, list[State]] = {}
        for state in self.states:
            groups.setdefault(_without_hidden(state), []).append(state)
        return [(group, max(max(self.states[state]) for state in group)) for group in groups.values()]

    # --- the calls --------------------------------------------------------------------------------------

    def open(self, path, flags):
        """Open; a file that this makes gets its name."""
        is_new = not os.path.lexists(path)
        descriptor = super().open(path, flags)
        if is_new:
            self._rename_in(path.parent, (path.name, Inode(b"")))
            self._collect()
        self._descriptors[descriptor] = path, self._find(path), bool(flags & os.O_APPEND)
        self._positions[descriptor] = 0
        return descriptor

    def write(self, descriptor, data):
        """Write; the bytes are not sure yet."""
        count = super().write(descriptor, data)
        _, inode, appends = self._descriptors[descriptor]
        position = len(inode.now) if appends else self._positions[descriptor]
        inode.since.append(Bytes(position, bytes(data[:count])))
        self._positions[descriptor] = position + count
        self._collect()
        return count

    def fsync(self, descriptor):
        """Make sure, unless the disk is deaf to this one."""
        super().fsync(descriptor)
        path, inode, _ = self._descriptors[descriptor]
        if len(self.syncs) != self._deaf_to:
            inode.sync()
        self.syncs.append(path)
        self._collect()

    def truncate(self, path, size):
        """Cut a file off; its new length is not sure yet."""
        super().truncate(path, size)
        self._find(path).since.append(Length(size))
        self._collect()

    def rename(self, source, target):
        """Rename: one change in a folder, two between folders."""
        inode = self._find(source)
        super().rename(source, target)
        if source.parent == target.parent:
            self._rename_in(source.parent, (target.name, inode), (source.name, None))
        else:
            self._rename_in(target.parent, (target.name, inode))
            self._rename_in(source.parent, (source.name, None))
        self._collect()

    def link(self, source, target):
        """Give a second name."""
        super().link(source, target)
        self._rename_in(target.parent, (target.name, self._find(source)))
        self._collect()

    def unlink(self, path):
        """Take a name away."""
        super().unlink(path)
        self._rename_in(path.parent, (path.name, None))
        self._collect()

    def mkdir(self, path):
        """Make a folder."""
        super().mkdir(path)
        self._rename_in(path.parent, (path.name, Inode({})))
        self._collect()

    def rmdir(self, path):
        """Take a folder away."""
        super().rmdir(path)
        self._rename_in(path.parent, (path.name, None))
        self._collect()


def _scan(path: Path) -> Inode:
    if path.is_dir():
        return Inode({child.name: _scan(child) for child in path.iterdir()})
    return Inode(path.read_bytes())


def _without_hidden(state: State) -> State:
    return tuple((name, _shown(name, content)) for name, content in state)


def _shown(name: str, content: object) -> object:
    if name.startswith((folder.DRAFT_PREFIX, folder.TRASH_PREFIX)):
        return None
    return content if isinstance(content, bytes) else _without_hidden(content)


class NoWaiting(files.System):
    """The operating system without the disk's delays, for what is only looked at after a power loss."""

    def fsync(self, descriptor):
        """Do nothing."""


def lay_out(state: State, path: Path) -> None:
    """Make real files and folders of what a disk may hold."""
    path.mkdir()
    for name, content in state:
        if isinstance(content, bytes):
            (path / name).write_bytes(content)
        else:
            lay_out(content, path / name)
