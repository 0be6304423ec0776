"""Owns the folder of an arm: the mirror in which its command runs, its output, ledgers and logs. Starts nothing.

    reference/
      work/project/     the mirrored working directory, in which the command runs
      work/data         a link to what lies beside the original
      out/              what stands for {dir}
      redirected/       samestep runs that the script names by absolute paths, and
      borrowed/         links to the checkpoints that it reads so
      ledgers-0/ log-0.txt    of the first attempt; each further one has the next number

Whatever the command writes by a relative path stays in its arm, and nothing that the user has is touched.
"""

import copy
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from samestep.errors import SamestepError
from samestep.proof.mirroring import Mirror, copy_tree, link_siblings, looked_at
from samestep.store import files
from samestep.store.redirection import ARM

GUARDED = "SAMESTEP_RECORD_GUARDED"
PROVER = "SAMESTEP_RECORD_PROVER"

DIRECTORY = "{dir}"
"""What stands for the arm's output directory in a command."""

MOST_SIBLINGS = 500


class Workspace:
    """An arm's folder, made when this is built.

    Args:
        base: The folder of all arms; made if it is not there. It may lie inside the working directory.
        name: The arm's name; an arm is never made over another one.
        source: The working directory in which the user's command would run.
        left_out: Patterns of what is not mirrored: of a name, such as `*.ckpt`, or of a path below `source`.

    Raises:
        SamestepError: The working directory cannot be mirrored, or the arm cannot be made.

    Attributes:
        folder: The arm.
        directory: The mirrored working directory.
        output: What stands for `{dir}`.
        skipped: What could not be read, by its path below `source`.
    """

    def __init__(self, base: Path, name: str, source: Path, *, left_out: Sequence[str] = ()) -> None:
        self._base, self._source = Path(os.path.realpath(base)), Path(os.path.realpath(source))
        _require_project(self._source, self._base)
        self._name_places(name)
        try:
            files.make_folder(self._base)
            files.system.mkdir(self.folder)
            files.system.mkdir(self.directory.parent)
            mirror = Mirror(self._source, self.directory, left_out, apart={self._base})
            link_siblings(self._source, self.directory, MOST_SIBLINGS, apart=self.folder)
            files.system.mkdir(self.output)
        except OSError as error:
            raise _refused(self.folder, error) from error
        self.skipped, self._linked = tuple(mirror.skipped), mirror.linked

    def _name_places(self, name: str) -> None:
        self.folder = self._base / name
        self.directory = self.folder / "work" / self._source.name
        self.output = self.folder / "out"

    def command(self, command: Sequence[str], dir_argument: str | None = None) -> list[str]:
        """Give the command as it is started in this arm.

        Args:
            command: The user's command; `{dir}` in any of its arguments is the arm's output directory.
            dir_argument: The option that names the directory, such as `--output_dir`, which is added with it. One
                that ends with "=", or that holds `{dir}`, is a word by itself.

        Returns:
            The words. A program that the mirror lacks, such as one in a folder that was left out, is the original's.
        """
        words = list(command)
        if dir_argument is not None and DIRECTORY in dir_argument:
            words.append(dir_argument)
        elif dir_argument is not None:
            words += [f"{dir_argument}{DIRECTORY}"] if dir_argument.endswith("=") else [dir_argument, DIRECTORY]
        words = [each.replace(DIRECTORY, str(self.output)) for each in words]
        if words and os.sep in words[0] and not (self.directory / words[0]).exists():
            original = self._source / words[0]
            words[0] = str(original) if original.exists() else words[0]
        return words

    def ledgers(self, attempt: int) -> Path:
        """Give the folder of an attempt's ledgers; it is made at the first call."""
        folder = self.folder / f"ledgers-{attempt}"
        try:
            files.make_folder(folder)
        except OSError as error:
            raise _refused(folder, error) from error
        return folder

    def log(self, attempt: int) -> Path:
        """Give the file for what an attempt prints."""
        return self.folder / f"log-{attempt}.txt"

    def environment(self, attempt: int) -> dict[str, str]:
        """Give the variables by which the processes of an attempt know their arm.

        Args:
            attempt: Its number, from 0.
        """
        return {
            "SAMESTEP_RECORD": str(self.ledgers(attempt)),
            ARM: str(self.folder),
            GUARDED: os.pathsep.join(map(str, [self._source, *self._siblings()])),
            PROVER: str(os.getpgrp()),
            "GIT_OPTIONAL_LOCKS": "0",  # `git status` in an arm leaves the original's index alone
            "PWD": str(self.directory),  # a shell takes it for the way to its working directory
        }

    def _siblings(self) -> list[Path]:
        """Give what lies beside the original, and is reached from the mirror by links; what is temporary is free."""
        if self._source.parent == Path(tempfile.gettempdir()).resolve():
            return []
        return [each.resolve() for each in self.directory.parent.iterdir() if each.is_symlink()]

    def has_output(self) -> bool:
        """Tell whether there is anything in the directory that stands for `{dir}`."""
        return any(self.output.iterdir())

    def changed_originals(self) -> list[Path]:
        """Name the files and folders behind links that are not as they were when this arm was made.

        The guard sees Python's writes alone: what `cp`, `rm` or `>>` of a shell do to a linked file reaches the
        original. Of a linked folder only its own entries are looked at. The arm that was made first knows most.

        Returns:
            Their real paths, in order.
        """
        return sorted(path for path, look in self._linked.items() if looked_at(path) != look)

    def copy_to(self, name: str) -> "Workspace":
        """Copy the arm as it is on disk, so that one killed state can be resumed more than once.

        Args:
            name: The copy's name. Paths of the arm that the script wrote into files lead to the first one.

        Returns:
            The copy, which shares no byte with this one.

        Raises:
            SamestepError: It cannot be made.
        """
        twin = copy.copy(self)
        twin._name_places(name)  # noqa: SLF001  (of the same class)
        try:
            copy_tree(self.folder, twin.folder)
        except OSError as error:
            raise _refused(twin.folder, error) from error
        return twin


def _require_project(source: Path, base: Path) -> None:
    """Raise if a working directory is none that can be mirrored."""
    if not source.is_dir():
        raise SamestepError("The working directory is not there.", path=source)
    try:
        home = Path.home().resolve()
    except RuntimeError:  # nobody knows where it is
        home = Path(source.anchor)
    if source in {home, *home.parents}:
        raise SamestepError(
            "The command would run in the home directory, or above it, and a proof mirrors the working directory.",
            path=source,
            expected="a folder that holds the training and little else",
            hint="Go to the project's folder first: cd project; samestep prove -- python train.py",
        )
    if source == base:
        raise SamestepError(
            "The arms of a proof cannot lie in the working directory itself, which is mirrored into each of them.",
            path=base,
            hint="Give a folder of their own.",
        )


def _refused(path: Path, error: OSError) -> SamestepError:
    hint = "An arm is made once: give another folder." if isinstance(error, FileExistsError) else None
    return SamestepError(
        "The arm of a proof cannot be made.", path=error.filename or path, found=error.strerror, hint=hint
    )
