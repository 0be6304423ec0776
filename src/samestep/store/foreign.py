"""Owns the telling what a file is that samestep did not write. Looks at its structure, never unpickles."""

import contextlib
import io
import json
import pickletools
import zipfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import IO, Any

_ZIP = b"PK\x03\x04"
_LEGACY_TORCH = bytes.fromhex("80028a0a6cfc9c46f9206aa85019")  # pickle protocol 2 of torch's old magic number
_SIGNATURES = {
    b"\x89HDF\r\n\x1a\n": "an HDF5 file (Keras or similar)",
    b"\x93NUMPY": "a NumPy array file",
    b"\x1f\x8b": "a gzip archive",
    b"GGUF": "a GGUF model file",
    b"\x80": "a pickle file, which can run any code when it is loaded",
    b"{": "a JSON file",
}

_MOST_OPERATIONS = 200_000
"""So many steps of a pickle are looked at: enough for the largest models' names, and bounded for hostile files."""

_MOST_BYTES = 16 * 1024 * 1024
"""So much of a pickle is unpacked: a few megabytes of zip can become terabytes."""

_TENSOR_BUILDERS = (
    "torch._utils _rebuild_",
    "torch._tensor _rebuild_",
    "collections OrderedDict",
    "__builtin__ set",
    "torch ",
)
_TRAINING_KEYS = {
    "optimizer",
    "optimizer_state_dict",
    "optimizer_states",
    "optimizers",
    "lr_scheduler",
    "scheduler",
}


def describe(path: Path) -> str:
    """Say what a file is: `.pt` and `.pth` are only names, so its structure is looked at.

    Args:
        path: A file.

    Returns:
        A few words such as "a PyTorch file (zip) with a training checkpoint: …".

    Example:
        >>> describe(Path("/nowhere"))
        'a file that cannot be read'
    """
    if path.exists() and not path.is_file():
        return "a pipe, device or socket"
    try:
        with path.open("rb") as file:
            start = file.read(16)
            if not start:
                return "an empty file"
            if start.startswith(_ZIP):
                return _describe_zip(file)
            if start.startswith(_LEGACY_TORCH):
                file.seek(len(_LEGACY_TORCH) + 1)
                return "a PyTorch file (old format, a pickle)"
            return _describe_start(start, path.stat().st_size, file)
    except Exception:  # noqa: BLE001 — archives and pickles made to deceive raise anything
        return "a file that cannot be read"


def _describe_start(start: bytes, size: int, file: IO[bytes]) -> str:
    header = int.from_bytes(start[:8], "little")
    if start[8:9] == b"{" and 8 + header <= size:
        file.seek(8)
        return _describe_safetensors(file.read(min(header, 100_000_000)))
    known = (text for signature, text in _SIGNATURES.items() if start.startswith(signature))
    return next(known, "a file of another kind")


def _describe_safetensors(header: bytes) -> str:
    try:
        count = sum(name != "__metadata__" for name in json.loads(header))
    except ValueError:
        return "a file of another kind"
    return f"a safetensors file with {count} tensors: weights"


def _describe_zip(file: IO[bytes]) -> str:
    with zipfile.ZipFile(file) as archive:
        names = archive.namelist()
        if any(name.endswith("/constants.pkl") for name in names):
            return "a TorchScript program, made for inference"
        if any(name.endswith(("models/model.json", "archive_format")) for name in names):
            return "an exported PyTorch program (torch.export), made for inference"
        pickles = [name for name in names if name == "data.pkl" or name.endswith("/data.pkl")]
        if pickles:
            with archive.open(pickles[0]) as pickle:
                return f"a PyTorch file (zip) with {_describe_pickle(io.BytesIO(pickle.read(_MOST_BYTES)))}"
        if any(name.endswith(".npy") for name in names):
            return "a NumPy archive (npz)"
    return "a zip archive"


def _operations(pickle: IO[bytes]) -> Iterator[tuple[pickletools.OpcodeInfo, Any, int | None]]:
    """Go through a pickle's operations as far as it was read."""
    with contextlib.suppress(ValueError):
        yield from pickletools.genops(pickle)


def _describe_pickle(pickle: IO[bytes]) -> str:
    """Read a pickle's operations as text: which classes it would call, and which names it holds."""
    classes, words = set(), []
    strings: list[str] = []
    for operation, argument, _ in islice(_operations(pickle), _MOST_OPERATIONS):
        if operation.name in {"GLOBAL", "INST"}:
            classes.add(str(argument))
        elif operation.name == "STACK_GLOBAL":
            classes.add(" ".join(strings[-2:]))
        elif isinstance(argument, str):
            strings.append(argument)
            words.append(argument)
    others = sorted(name for name in classes if not name.startswith(_TENSOR_BUILDERS))
    if others:
        shown = ", ".join(name.replace(" ", ".") for name in others[:3])
        return f"whole objects ({shown}), which run code when they are loaded"
    training = sorted(_TRAINING_KEYS.intersection(words))
    if training:
        return f"a training checkpoint (it has {', '.join(training)})"
    return "weights: tensors by name"
