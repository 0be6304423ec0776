"""Owns metrics.jsonl: what the loop reported, and no step twice. Never computes a metric."""

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import xxhash

from samestep.errors import SamestepError, SaveFailed, UnsupportedValue
from samestep.store import files
from samestep.store.json_lines import encode_line, parse_line, plain, read_own
from samestep.wording import shown

METRICS_FILE = "metrics.jsonl"

_BLOCK = 1024 * 1024


class Metrics:
    """The run's metrics.jsonl, written by the process that holds the run's lock.

    Lines wait in memory until `flush`: a line may hold a tensor whose value the device has not computed yet, and
    writing a step down must not make the training wait for it.

    Args:
        directory: The run's directory.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     metrics = Metrics(directory)
        ...     metrics.append({"step": 1, "loss": 0.5})
        ...     saved = metrics.position()
        ...     metrics.append({"step": 2, "loss": float("nan")})
        ...     metrics.flush()
        ...     missing = metrics.cut(saved, step=1)
        ...     missing, read_metrics(directory)
        (0, [{'step': 1, 'loss': 0.5}])
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.path = Path(directory) / METRICS_FILE
        self._waiting: list[Any] = []  # lines; as bytes once it has been tried to write them
        self._size: int | None = None  # of the file's whole lines; None: not looked at yet
        self._digest = xxhash.xxh3_128()  # of those lines
        self._due_cut: tuple[int | None, int] | None = None
        self.lost = 0
        """How many bytes another program has taken away since this was last looked at and set back to 0."""

    def append(self, line: Mapping[str, Any]) -> None:
        """Add a line; nothing is written yet, and no device is waited for.

        Args:
            line: Such as `{"step": 12, "epoch": 0, "loss": loss}`: plain JSON and tensors of one element.

        Raises:
            UnsupportedValue: The line holds what JSON cannot express; nothing is added.
        """
        self._waiting.append(_held(line, "metrics"))

    @property
    def is_waiting(self) -> bool:
        """Whether there are lines that the operating system has not been given."""
        return bool(self._waiting)

    def flush(self) -> None:
        """Hand all lines to the operating system: they survive the end of the process, not that of the machine.

        Raises:
            UnsupportedValue: A line holds what JSON cannot express; that line is dropped, the others stay.
            OSError: They could not be written; they stay in memory for the next time.
        """
        written = self._encoded()
        self._look()
        if not written:
            return
        self._cut()
        files.part_from_links(self.path)
        size = self._whole_size()
        try:
            files.append_bytes(self.path, written)
        except OSError:
            self._size = None  # a part may have been written: the next time looks again
            raise
        self._digest.update(written)
        self._size = size + len(written)
        self._waiting.clear()

    def _look(self) -> None:
        """Look whether the file is still as long as it was left, and how much of it is gone."""
        if self._size is None or (size := self._regular_size()) == self._size:
            return
        self.lost += max(0, self._size - size)
        self.look_again()

    def look_again(self) -> None:
        """Forget what is known of the file: another one, or none, stands in its place."""
        self._size = None

    def sync(self) -> None:
        """Flush, and have the file on the disk: afterwards the lines survive the end of the machine too."""
        self.flush()
        if self.path.exists():
            files.sync_file(self.path)

    def position(self) -> int:
        """Flush, and tell where the next line begins; a checkpoint records it for `cut`.

        Returns:
            Bytes from the file's start.
        """
        self.flush()
        return self._whole_size()

    def digest(self) -> str:
        """Tell the digest (xxh3-128) of all lines up to `position`."""
        self.position()
        return self._digest.hexdigest()

    def cut(self, position: int | None, step: int) -> int:
        """Cut the file back to where it was when the checkpoint was written that the run resumes from.

        Args:
            position: What `position` returned then. When it is None, or the file does not have the start of a
                line there (it was edited, or lost its end), all lines of later steps are taken out instead.
            step: The completed steps of that checkpoint.

        Returns:
            How many bytes are missing: 0, unless the file is there and shorter than it was then.
        """
        self._waiting.clear()
        self._due_cut = position, step
        return self._cut()

    def _cut(self) -> int:
        """Carry out the cut that is due; where the system refuses, it stays due: nothing is added behind old lines."""
        if self._due_cut is None:
            return 0
        position, step = self._due_cut
        self._size = None
        missing, size = 0, self._regular_size()
        if position is not None and position <= size and self._begins_line(position):
            if position < size:
                files.part_from_links(self.path)
                files.truncate_file(self.path, position)
        elif self.path.exists():
            lines = self.path.read_bytes().splitlines(keepends=True)
            files.replace_file(self.path, b"".join(line for line in lines if _is_up_to(step, line)))
            missing = max(0, (position or 0) - size)
        self._due_cut = None
        return missing

    def _encoded(self) -> bytes:
        """Encode what waits, once: a line that cannot be written is dropped, the others stay."""
        for index, line in enumerate(self._waiting):
            try:
                self._waiting[index] = line if isinstance(line, bytes) else encode_line(line)
            except UnsupportedValue:
                del self._waiting[index]
                raise
        return b"".join(self._waiting)

    def _whole_size(self) -> int:
        """Find the end of the last whole line, and cut off what a dying writer left behind it."""
        if self._size is None:
            size = self._regular_size()
            self._size, self._digest = self._whole_lines()
            if self._size < size:
                files.truncate_file(self.path, self._size)
        return self._size

    def _regular_size(self) -> int:
        """Tell the size, 0 without a file; a link would lead what is written, or cut off, into another one."""
        try:
            status = self.path.lstat()
        except FileNotFoundError:
            return 0
        if not stat.S_ISREG(status.st_mode):
            raise SaveFailed("A file of the run is no regular file.", path=self.path, hint="Move it away.")
        return status.st_size

    def _whole_lines(self) -> tuple[int, xxhash.xxh3_128]:
        """Find the end of the last whole line, and the digest of all, in one pass: after a year the file is long."""
        size, digest, tail = 0, xxhash.xxh3_128(), b""
        if not self.path.exists():
            return size, digest
        with self.path.open("rb") as file:
            while block := file.read(_BLOCK):
                lines, end, tail = (tail + block).rpartition(b"\n")
                digest.update(lines + end)
                size += len(lines + end)
        return size, digest

    def _begins_line(self, position: int) -> bool:
        if position == 0:
            return True
        with self.path.open("rb") as file:
            file.seek(position - 1)
            return file.read(1) == b"\n"


def checked_scores(scores: Mapping[str, Any], where: str) -> dict[str, float]:
    """Give scores as numbers.

    Args:
        scores: Numbers, or tensors and arrays of one element, by name.
        where: Who was given them, for the error.

    Raises:
        SamestepError: One is something else.

    Example:
        >>> checked_scores({"acc": 1}, "run.score")
        {'acc': 1.0}
    """
    return {name: _number(name, value, where) for name, value in scores.items()}


def _number(name: str, value: Any, where: str) -> float:
    try:
        if isinstance(value, str | bytes):
            raise TypeError  # noqa: TRY301  ("0.9" would do, but then so would "nan" and "infinity")
        return float(value.detach() if hasattr(value, "detach") else value)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        shape = getattr(value, "shape", None)
        raise SamestepError(
            f"The score {name!r} is not a number.",
            path=where,
            expected="a number, or a tensor of one element",
            found=shown(value) if shape is None else f"a {type(value).__name__} of shape {list(shape)}",
        ) from error


def read_metrics(directory: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Read what the loop reported.

    Args:
        directory: The run's directory.

    Returns:
        The lines in their order; a torn line is passed over.
    """
    try:
        raw = read_own(Path(directory) / METRICS_FILE)
    except FileNotFoundError:
        return []
    return [line for line in map(parse_line, raw.splitlines()) if line is not None]


def _held(value: Any, path: str) -> Any:
    """Take a tensor out of its graph and away from later changes; a clone is queued on its device, not awaited.

    What cannot be written is refused here, at the line of the loop that reports it, and not when it is written.
    """
    if isinstance(value, (float, int, str)):
        return plain(value, path)
    if isinstance(value, Mapping):
        return {str(key): _held(inner, f"{path}.{key}") for key, inner in value.items()}
    if not hasattr(value, "detach"):
        return plain(value, path)
    if value.numel() != 1:
        raise UnsupportedValue(
            "This tensor has not one element, so it is no metric.",
            path=path,
            expected="a tensor of one element, or a number",
            found=f"a tensor of shape {list(value.shape)}",
            hint="Report its mean, or some of its elements by names of their own.",
        )
    return plain(value.item(), path) if is_at_hand(value) else value.detach().clone().reshape(())


def is_at_hand(value: Any) -> bool:
    """Tell whether a value is known already: a tensor of a device may still be computed.

    Example:
        >>> is_at_hand(0.5)
        True
    """
    return bool(getattr(getattr(value, "device", None), "type", "cpu") == "cpu")


def _is_up_to(step: int, raw: bytes) -> bool:
    line = parse_line(raw)
    its_step = 0 if line is None else line.get("step", 0)
    return raw.endswith(b"\n") and line is not None and isinstance(its_step, (int, float)) and its_step <= step
