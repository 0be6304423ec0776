"""What a training did, line by line, on disk at once; and the killing of it at a chosen place."""

import json
import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import xxhash

from samestep.generators import global_state


@dataclass(frozen=True)
class Kill:
    """Where a training is killed: at a place of its loop, when a number (step or epoch) is reached."""

    place: str
    number: int


class Ledger:
    """Writes one line for each thing that must be equal, and dies where it is told to."""

    def __init__(self, path: Path, kill: Kill | None = None) -> None:
        self._file = path.open("a", buffering=1)
        self._kill = kill

    def note(self, place: str, number: int, **values: Any) -> None:
        """Write down values, then die if this is the place."""
        self._file.write(json.dumps([place, number, {name: digest(each) for name, each in values.items()}]) + "\n")
        self.maybe_die(place, number)

    def maybe_die(self, place: str, number: int) -> None:
        if self._kill is not None and (self._kill.place, self._kill.number) == (place, number):
            os.kill(os.getpid(), signal.SIGKILL)


def read_ledger(paths: Iterable[Path]) -> dict[tuple[str, int], list[dict[str, Any]]]:
    """Read what one or several attempts wrote: for each place and number all the values that were noted."""
    lines: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for path in paths:
        for text in path.read_text().splitlines():
            place, number, values = json.loads(text)
            lines.setdefault((place, number), []).append(values)
    return lines


def digest(value: Any) -> Any:
    """Make any state comparable bit by bit: tensors and arrays as digests of their bytes, floats in hexadecimal."""
    if isinstance(value, torch.Tensor):
        data = value.detach().cpu().contiguous()
        raw = data.reshape(-1).view(torch.uint8) if data.numel() else data
        text = f"{value.dtype}{list(value.shape)}{list(value.stride())}".encode()
        return xxhash.xxh3_128_hexdigest(text + raw.numpy().tobytes())
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, dict):
        return {str(key): digest(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [digest(each) for each in value]
    if hasattr(value, "dtype"):
        return [str(value.dtype), value.tolist()]
    return value if isinstance(value, int | str | bool | None) else repr(value)


def random_digest() -> str:
    """Digest all random generators of this process."""
    return xxhash.xxh3_128_hexdigest(json.dumps(digest(global_state())).encode())
