"""Owns every call with which the store changes files; never knows what they mean.

All of them end in `system`, which a test replaces to interpose a kill, a full or failing disk, a short write, or
a disk that loses what was not synchronised.
"""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

CHUNK = 16 * 1024 * 1024
"""Bytes handed to one write: large enough for the full speed of a disk, small enough to be killed between two."""

_SYNC_UNSUPPORTED = {errno.EINVAL, errno.ENOTSUP}


class System:
    """The operating system's calls that change files, one method each: the seam for tests."""

    def open(self, path: Path, flags: int) -> int:
        """Open a file or folder; new files get the permissions that the user's umask leaves."""
        return os.open(path, flags | os.O_CLOEXEC, 0o666)

    def write(self, descriptor: int, data: memoryview) -> int:
        """Write some of the bytes and tell how many."""
        return os.write(descriptor, data)

    def fsync(self, descriptor: int) -> None:
        """Make a file's bytes, or a folder's names, durable."""
        os.fsync(descriptor)

    def close(self, descriptor: int) -> None:
        """Close a descriptor."""
        os.close(descriptor)

    def truncate(self, path: Path, size: int) -> None:
        """Cut a file off, never what a link in its place leads to."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            os.ftruncate(descriptor, size)
        finally:
            os.close(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        """Rename atomically, over `target` if it is a file."""
        os.rename(source, target)  # noqa: PTH104 — one name for one call of the system

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name."""
        os.link(source, target, follow_symlinks=False)

    def symlink(self, target: str, path: Path) -> None:
        """Make a symbolic link at `path`; whether `target` exists is not asked."""
        os.symlink(target, path)  # noqa: PTH211 — as above

    def unlink(self, path: Path) -> None:
        """Remove a file's name."""
        os.unlink(path)  # noqa: PTH108 — as above

    def mkdir(self, path: Path) -> None:
        """Make a folder."""
        os.mkdir(path)  # noqa: PTH102 — as above

    def rmdir(self, path: Path) -> None:
        """Remove an empty folder."""
        os.rmdir(path)  # noqa: PTH106 — as above


system = System()
"""What carries out every call; tests put their own in its place."""


def write_all(descriptor: int, data: memoryview) -> None:
    """Write all the bytes, in chunks, going on after short writes.

    Raises:
        OSError: The system refused; also when it takes nothing, which would loop for ever.
    """
    data = data.cast("B")
    while data:
        written = system.write(descriptor, data[:CHUNK])
        if written <= 0:
            raise OSError(errno.EIO, "The system wrote nothing")
        data = data[written:]


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[int]:
    """Open a file that must not exist yet; on leaving without an error make its bytes durable."""
    descriptor = system.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        yield descriptor
        system.fsync(descriptor)
    finally:
        system.close(descriptor)


def write_file(path: Path, data: bytes) -> None:
    """Write a new file durably; its name is durable once its folder is synchronised."""
    with new_file(path) as descriptor:
        write_all(descriptor, memoryview(data))


def replace_file(path: Path, data: bytes) -> None:
    """Put new content in a file's place, atomically and durably: readers see the old or the new, never a part."""
    draft = _draft(path)
    remove_draft(path)
    try:
        write_file(draft, data)
        rename(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):
            system.unlink(draft)
        raise


def remove_draft(path: Path) -> None:
    """Remove what a writer left that was killed in `replace_file`."""
    remove_file(_draft(path))


def _draft(path: Path) -> Path:
    """Name the draft of a file: beside it, so that the rename is one, and always the same, so that none pile up."""
    return path.with_name(f".tmp-{path.name}")


def part_from_links(path: Path) -> None:
    """Give a file that has a second name (a copy by `cp -al`) bytes of its own, before it is changed in place."""
    try:
        is_shared = path.stat().st_nlink > 1
    except FileNotFoundError:
        return
    if is_shared:
        replace_file(path, path.read_bytes())


def rename(source: Path, target: Path) -> None:
    """Rename durably: the names of both folders are synchronised."""
    system.rename(source, target)
    sync_folder(target.parent)
    if source.parent != target.parent:
        sync_folder(source.parent)


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable; file systems that cannot (some network and FUSE ones) are let off."""
    descriptor = system.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        system.fsync(descriptor)
    except OSError as error:
        if error.errno not in _SYNC_UNSUPPORTED:
            raise
    finally:
        system.close(descriptor)


def make_folder(path: Path) -> None:
    """Make a folder with all that is missing above it, durably; one that exists is left as it is."""
    if path.is_dir():
        return
    make_folder(path.parent)
    with contextlib.suppress(FileExistsError):
        system.mkdir(path)
    sync_folder(path.parent)


def remove_tree(path: Path) -> None:
    """Remove a folder with all it holds, never following a symbolic link out of it."""
    if not _is_folder(path):
        system.unlink(path)
        return
    folders = [path]
    for folder in folders:  # grows meanwhile: a recursion would end at a stranger's thousandth level
        for child in sorted(folder.iterdir()):
            if _is_folder(child):
                folders.append(child)
            else:
                system.unlink(child)
    for folder in reversed(folders):
        system.rmdir(folder)


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def append_bytes(path: Path, data: bytes) -> None:
    """Append to a file, making it if needed, never through a link; durable only after `sync_file`."""
    descriptor = system.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        write_all(descriptor, memoryview(data))
    finally:
        system.close(descriptor)


def copy_file(source: Path, target: Path) -> None:
    """Copy a regular file to a new one, with its permissions and times; nothing is made durable, no link followed."""
    given = os.open(source, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        status = os.fstat(given)
        made = system.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            while data := os.read(given, CHUNK):
                write_all(made, memoryview(data))
            os.fchmod(made, status.st_mode & 0o777)
            os.utime(made, ns=(status.st_atime_ns, status.st_mtime_ns))
        finally:
            system.close(made)
    finally:
        os.close(given)


def sync_file(path: Path) -> None:
    """Make a file's bytes and its name durable."""
    descriptor = system.open(path, os.O_RDONLY)
    try:
        system.fsync(descriptor)
    finally:
        system.close(descriptor)
    sync_folder(path.parent)


def truncate_file(path: Path, size: int) -> None:
    """Cut a file off after some bytes, durably."""
    system.truncate(path, size)
    sync_file(path)


def remove_file(path: Path) -> None:
    """Remove a file; one that is not there is fine."""
    with contextlib.suppress(FileNotFoundError):
        system.unlink(path)
