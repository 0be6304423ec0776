"""Owns one question: is this code installed, or the user's own? Never imports or reads it."""

import functools
import os
import sysconfig

_INSTALLED = tuple(
    os.path.join(os.path.realpath(sysconfig.get_path(name)), "")  # noqa: PTH118 — called for thousands of modules
    for name in ("stdlib", "platstdlib", "purelib", "platlib")
)


def is_installed(file: str) -> bool:
    """Tell whether code belongs to Python or to an installed package.

    Args:
        file: The code's file, as in `module.__file__` or `code.co_filename`. Symbolic links are followed, so that a
            working tree that is linked into `site-packages` is the user's own.

    Returns:
        False for the user's files, and for what has none, such as the cells of a notebook.

    Example:
        >>> is_installed(os.__file__), is_installed("<frozen os>"), is_installed("<stdin>")
        (True, True, False)
    """
    if file.startswith("<"):
        return file.startswith("<frozen")
    return _is_installed_folder(os.path.dirname(file))  # noqa: PTH120 — as above


@functools.cache
def _is_installed_folder(folder: str) -> bool:
    return os.path.join(os.path.realpath(folder), "").startswith(_INSTALLED)  # noqa: PTH118 — as above
