"""Owns what Python's audit events say of files: which one is about to be changed, and how. Changes nothing itself.

Tried with CPython 3.11 and torch 2.13. An event is raised by `open`, `os.open` and all that stands on them (pathlib,
shutil, NumPy with `tofile` and `memmap`, zipfile, logging, torch's distributed checkpoints; torch.save in the legacy
format, with a path that is not ASCII or with an open file), by rename and replace, remove and unlink, mkdir, rmdir,
link, symlink, truncate and ftruncate, sqlite3.connect; for what is no content by utime, chmod, chown and setxattr.
None is raised by what opens a path in C++ or Rust: torch.save (`PyTorchFileWriter`), torch.jit.save and safetensors'
serialize_file, which are wrapped; `torch.from_file`, dbm in C, mkfifo, TensorFlow and HDF5, which are not.
Nor by writes into what is open already: an operation is an opening, with all that is written before the next one.
`os.open` does not tell its `dir_fd`: such a path is taken as one of the working directory.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_CREATED = os.O_WRONLY | os.O_CREAT
_MODES = {
    "w": _CREATED | os.O_TRUNC,
    "a": _CREATED | os.O_APPEND,
    "x": _CREATED | os.O_EXCL,
    "+": os.O_RDWR,
}


@dataclass(frozen=True)
class Change:
    """A change of a file that is about to happen.

    Args:
        operation: What does it: "open", "rename", "torch.save" …
        place: The file's absolute path; links of its parent folders are followed, one in its own place is not.
        opens: A file is opened for writing: where `place` is a link, what it leads to is changed.
        is_truncated: Nothing remains of the file's old content.
        source: The place that a rename takes the file from, or the file that is given a second name.
        is_content: Names or bytes are changed, not only times and permissions.
    """

    operation: str
    place: str
    opens: bool = False
    is_truncated: bool = False
    source: str | None = None
    is_content: bool = True

    @property
    def is_of_python(self) -> bool:
        """It concerns compiled modules, which Python writes when it likes."""
        return "/__pycache__" in self.place or self.place.endswith(".pyc")


def read_event(event: str, arguments: tuple[Any, ...]) -> Change | None:
    """Give the change that an audit event announces.

    Args:
        event: Its name; one of `EVENTS`.
        arguments: What it comes with.

    Returns:
        None where nothing is changed: files opened for reading, and operations that are going to fail since
        something is there already, or is not.
    """
    return EVENTS[event](*arguments)


def opened(operation: str, path: Any, mode: str | None, flags: int) -> Change | None:
    """Give the change that the opening of a path announces.

    Args:
        operation: What opens it.
        path: A path as text, bytes or path object; a descriptor changes nothing, it was opened before.
        mode: Python's mode, such as "wb", which counts where there are no flags.
        flags: The flags of `os.open`.
    """
    flags = flags or sum({_MODES.get(letter, 0) for letter in mode or ""})
    if not flags & _WRITES or isinstance(path, int) or path is None:
        return None
    place = _place(path)
    is_there = os.path.lexists(place)
    if is_there and (flags & os.O_EXCL or os.path.isdir(place)):
        return None  # a folder is "opened for writing" by tempfile, whose own opener then makes a file in it
    if not is_there and not (flags & os.O_CREAT and _may_hold(place)):
        return None
    return Change(operation, place, opens=True, is_truncated=bool(flags & os.O_TRUNC) or not is_there)


def written(operation: str, path: Any) -> Change | None:
    """Give the change that a library makes which opens and overwrites a path past Python's `open`."""
    return opened(operation, path, "w", 0)


def _place(path: Any, folder: int = -1) -> str:
    """Give the real folder and the name of a path; `folder` is a descriptor, negative for the working directory."""
    name = os.fsdecode(path)
    if folder >= 0:
        name = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), name)
    above, last = os.path.split(os.path.abspath(name) if name.endswith("/") else name)
    if last in {"", ".", ".."}:
        return os.path.realpath(name)
    return os.path.join(os.path.realpath(above or "."), last)


def _open(path: Any, mode: str | None, flags: int) -> Change | None:
    return opened("open", path, mode, flags)


def _rename(source: Any, target: Any, source_folder: int = -1, target_folder: int = -1) -> Change | None:
    left, right = _place(source, source_folder), _place(target, target_folder)
    return Change("rename", right, source=left) if os.path.lexists(left) else None


def _link(source: Any, target: Any, source_folder: int = -1, target_folder: int = -1) -> Change | None:
    left, right = _place(source, source_folder), _place(target, target_folder)
    return (
        None if os.path.lexists(right) or not _may_hold(right) else Change("link", right, source=os.path.realpath(left))
    )


def _symlink(_source: Any, target: Any, folder: int = -1) -> Change | None:
    return _made("symlink", _place(target, folder))


def _mkdir(path: Any, _mode: int = 0, folder: int = -1) -> Change | None:
    return _made("mkdir", _place(path, folder))


def _made(operation: str, place: str) -> Change | None:
    return Change(operation, place) if _may_hold(place) and not os.path.lexists(place) else None


def _may_hold(place: str) -> bool:
    """Tell whether the folder is there in which something is made: `Path.mkdir(parents=True)` tries without first."""
    return os.path.isdir(os.path.dirname(place))


def _remove(path: Any, folder: int = -1) -> Change | None:
    place = _place(path, folder)
    return Change("remove", place) if os.path.lexists(place) else None


def _rmdir(path: Any, folder: int = -1) -> Change | None:
    place = _place(path, folder)
    return Change("rmdir", place) if os.path.isdir(place) else None


def _truncate(path: Any, _length: int) -> Change | None:
    if isinstance(path, int):
        return Change("truncate", os.path.realpath(f"/proc/self/fd/{path}"))
    return opened("truncate", path, None, os.O_WRONLY)


def _connect(database: Any) -> Change | None:
    """Read what SQLite opens, in C; its own journals and writes raise no event."""
    name = os.fsdecode(database)
    if name.startswith("file:"):
        name, _, asked = name.removeprefix("file:").partition("?")
        name = unquote(name).removeprefix("//")
        if {"mode=ro", "mode=memory", "immutable=1"} & set(asked.split("&")):
            return None
    return None if name in {"", ":memory:"} else opened("sqlite3.connect", name, "a", 0)


def _touched(operation: str) -> Callable[..., Change | None]:
    def touched(path: Any, *_arguments: Any) -> Change | None:
        if isinstance(path, int) or not os.path.lexists(path):
            return None
        return Change(operation, _place(path), opens=True, is_content=False)

    return touched


EVENTS: Mapping[str, Callable[..., Change | None]] = {
    "open": _open,
    "os.rename": _rename,
    "os.remove": _remove,
    "os.mkdir": _mkdir,
    "os.rmdir": _rmdir,
    "os.link": _link,
    "os.symlink": _symlink,
    "os.truncate": _truncate,
    "sqlite3.connect": _connect,
    **{f"os.{name}": _touched(name) for name in ("chmod", "chown", "utime", "setxattr", "removexattr")},
}
"""The audit events that concern files, and what reads each."""
