"""Owns the comparison of what trainings have written: the tensors in checkpoints. Executes nothing of them.

Logs, records of times, and how often a training was resumed differ by right; tensors do not.
"""

import filecmp
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import xxhash

_SUFFIXES = {".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".tar", ".npz", ".npy"}
_APART = ("ledgers-", "log-")


def changed_outputs(reference: Path, repeat: Path, found: Path) -> list[str]:
    """Compare the checkpoints that trainings left, and name those that are not the same.

    Args:
        reference: The folder of the reference's arm.
        repeat: That of the repeated one: what differs there already does not count.
        found: That of the trial.

    Returns:
        For each file that differs its name and what differs in it.
    """
    changed = []
    for path in _files(reference):
        one, two, three = (base / path for base in (reference, repeat, found))
        if not two.is_file():  # of another name each time
            continue
        if not three.is_file():
            changed.append(f"{path} is missing")
            continue
        names = _differences(one, three)
        steady = set(names) - set(_differences(one, two)) if names else set()
        if steady:
            changed.append(f"{path}: {', '.join([name for name in names if name in steady][:5])}")
    return changed


def _files(base: Path) -> Iterator[Path]:
    for path in sorted(base.rglob("*")):
        relative = path.relative_to(base)
        is_theirs = path.suffix in _SUFFIXES and not relative.parts[0].startswith(_APART)
        if is_theirs and path.is_file() and not path.is_symlink():
            yield relative


def _differences(one: Path, two: Path) -> list[str]:
    if filecmp.cmp(one, two, shallow=False):
        return []
    left, right = _tensors(one), _tensors(two)
    return [name for name in left | right if left.get(name) != right.get(name)]


def _tensors(path: Path) -> dict[str, str]:
    """Give the digests of a file's tensors by name; by number where it cannot be read without executing it."""
    try:
        return dict(_leaves(_loaded(path)))
    except Exception:  # noqa: BLE001  (whatever a foreign file does to its reader)
        return _storages(path)


def _storages(path: Path) -> dict[str, str]:
    """Give the digests of the raw tensors in a file of torch.save."""
    if not zipfile.is_zipfile(path):
        return {}
    with zipfile.ZipFile(path) as archive:
        names = [each for each in archive.namelist() if "/data/" in each]
        return {f"tensor {each.rpartition('/')[2]}": xxhash.xxh3_128_hexdigest(archive.read(each)) for each in names}


def _loaded(path: Path) -> Any:
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    if path.suffix in {".npz", ".npy"}:
        import numpy as np

        read = np.load(path, allow_pickle=False)
        return dict(read) if path.suffix == ".npz" else read
    import torch

    with torch.serialization.safe_globals(_harmless_globals()):
        return torch.load(path, map_location="cpu", weights_only=True)


def _harmless_globals() -> list[Any]:
    """Give what NumPy's arrays and the states of its generators are made of; `weights_only` refuses them by itself."""
    import _codecs

    import numpy as np

    kinds = [type(np.dtype(each)) for each in (*np.typecodes["All"],) if each not in "OVSUMm"]
    array: Any = np._core.multiarray  # type: ignore[attr-defined]  # noqa: SLF001
    return [array._reconstruct, array.scalar, np.ndarray, np.dtype, _codecs.encode, *kinds]  # noqa: SLF001


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    from samestep.proof.fingerprint import fingerprint

    if isinstance(value, dict):
        for key, each in value.items():
            yield from _leaves(each, f"{name}.{key}" if name else str(key))
    elif isinstance(value, (list, tuple)) and len(value) <= 1000:  # noqa: PLR2004
        for number, each in enumerate(value):
            yield from _leaves(each, f"{name}[{number}]")
    elif hasattr(value, "dtype") and hasattr(value, "shape"):  # numbers and texts may tell of the resume itself
        yield name, fingerprint(value)
