"""Kills of what is not a training: prune, export, and a beginning anew that the next command does not repeat."""

import contextlib
import io
import os
import shutil
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import killing
import lives
import pytest
import safetensors.torch
import torch
from ledger import digest
from processes import run_in_child

import samestep.cli.group
from samestep.store.reading import find_checkpoints

ALL = {"save_every": 2, "keep": samestep.Keep(last=9)}
LIMIT = 1800
"""Seconds for a sweep."""


def command(*words: str) -> Callable[[Path], None]:
    """Give a command of the command line as something to run on a directory, which stands for the word "DIR"."""
    return partial(_call, words)


def _call(words: tuple[str, ...], directory: Path) -> None:
    with contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO())):
        status = samestep.cli.group.run([word.replace("DIR", str(directory)) for word in words])
    assert status == 0


def in_sweep(target: Callable[..., None], place: Path, *arguments: object) -> None:
    """Run a sweep in a process of its own."""
    log = place / "log"
    code = run_in_child(target, place, *arguments, log=log, limit=LIMIT)
    assert code == 0, log.read_text()
    print(log.read_text())  # noqa: T201


def trained(place: Path, **settings: object) -> Path:
    """Train three epochs in a directory for the sweep's commands, keeping a checkpoint of each."""
    killing.warm_up()
    base = place / "base"
    base.mkdir()
    assert killing.in_fork(partial(lives.train, base, **(ALL | {"epochs": 3} | settings))) == 0
    return base


def listing(directory: Path) -> list[str]:
    """List all files of a directory, without the one that only the lock needs."""
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.name != ".lock")


# --- prune ---------------------------------------------------------------------------------------------


def kill_prune(place: Path) -> None:
    base, prune = trained(place), command("prune", "DIR/run", "--last", "1", "--json")
    shutil.copytree(base, place / "whole")
    calls = killing.calls_of(prune, place / "whole")
    newest = find_checkpoints(base / "run" / "checkpoints")[-1]
    content, deleted, points = lives.content(newest), 0, killing.telling_points(calls)
    for at, directory in killing.killed(base, prune, points):
        left = find_checkpoints(directory / "run" / "checkpoints")
        assert left[-1].name == newest.name, calls[at]
        assert all(lives.content(each) for each in left), calls[at]
        deleted += len(left) < 3
        assert killing.in_fork(partial(prune, directory)) == 0, calls[at]
        assert listing(directory) == listing(place / "whole"), calls[at]
        assert lives.content(find_checkpoints(directory / "run" / "checkpoints")[-1]) == content
    assert 0 < deleted < len(points)
    print(f"prune: {len(points)} kills at {len(calls)} file operations")  # noqa: T201


def test_a_killed_prune_leaves_the_newest_and_its_repetition_leaves_nothing_half_deleted(tmp_path: Path) -> None:
    """Killed wherever it changes the disk, prune leaves whole checkpoints and the newest; again, it ends its work."""
    in_sweep(kill_prune, tmp_path)


# --- export --------------------------------------------------------------------------------------------


def kill_export(place: Path, name: str) -> None:
    base, export = trained(place), command("export", "DIR/run", "--out", f"DIR/{name}", "--force", "--json")
    (base / name).write_bytes(b"what was there before")
    shutil.copytree(base, place / "whole")
    calls = killing.calls_of(export, place / "whole")
    old, new = (base / name).read_bytes(), (place / "whole" / name).read_bytes()
    for at, directory in killing.killed(base, export, range(len(calls))):
        renamed = any(call.startswith("rename") for call in calls[:at])
        found = (directory / name).read_bytes()
        assert weights(found, name) == weights(new, name) if renamed else found == old, calls[at]
        assert killing.in_fork(partial(export, directory)) == 0, calls[at]
        assert weights((directory / name).read_bytes(), name) == weights(new, name), calls[at]
        assert listing(directory) == listing(place / "whole"), calls[at]
    print(f"export {name}: {len(calls)} kills")  # noqa: T201


def weights(data: bytes, name: str) -> dict[str, object]:
    """Digest the tensors of an exported file; the order of a safetensors file's own notes is left to chance."""
    loaded = safetensors.torch.load(data) if name.endswith(".safetensors") else torch.load(io.BytesIO(data))
    return digest(dict(loaded))


@pytest.mark.parametrize("name", ["model.safetensors", "model.pt"])
def test_a_killed_export_leaves_the_old_file_or_the_new_one(name: str, tmp_path: Path) -> None:
    """Killed at each file operation, an export leaves the earlier file or the whole new one; again, nothing else."""
    in_sweep(kill_export, tmp_path, name)


def kill_inside_torch_save(place: Path) -> None:
    base, export = trained(place, epochs=1), command("export", "DIR/run", "--out", "DIR/model.pt", "--json")

    def half_a_save(_state: object, draft: Path) -> None:
        draft.write_bytes(b"half")
        os.kill(os.getpid(), signal.SIGKILL)

    whole, torch.save = torch.save, half_a_save
    assert killing.in_fork(partial(export, base)) == -signal.SIGKILL
    assert not (base / "model.pt").exists()
    torch.save = whole
    assert killing.in_fork(partial(export, base)) == 0
    assert list(torch.load(base / "model.pt", weights_only=True)) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert [path.name for path in base.iterdir() if path.name.startswith(".")] == []


def test_an_export_killed_inside_the_library_that_writes_leaves_no_file(tmp_path: Path) -> None:
    """A kill in the middle of `torch.save` leaves no file under the final name, and the next export tidies up."""
    in_sweep(kill_inside_torch_save, tmp_path)


# --- a beginning anew that is not repeated -------------------------------------------------------------


def kill_then_resume_automatically(place: Path, resume: str, own: str | None) -> None:
    base = trained(place, seed=5)
    anew = partial(lives.train, resume=resume, epochs=3, **ALL)
    auto = partial(lives.train, epochs=3, **ALL)
    ends = {}
    for name, work in (("old", auto), ("new", anew)):
        shutil.copytree(base, place / name)
        calls = killing.calls_of(work, place / name)
        ends[name] = (place / name / "end.json").read_text()
    assert (ends["old"] != ends["new"]) is (own is None)  # going back to a checkpoint restores its random state
    moves = [at for at, call in enumerate(calls) if "quarantine/step-" in call]
    commits = [at for at, call in enumerate(calls) if call.startswith("rename run/checkpoints/step-")]
    last = find_checkpoints(base / "run" / "checkpoints")[-1].name
    draft = next(at for at, call in enumerate(calls) if call.startswith("mkdir run/checkpoints/.tmp-"))
    points = sorted({0, moves[0] - 1, *moves, moves[-1] + 1, draft, commits[0] - 1, commits[0], commits[0] + 1})
    for at, directory in killing.killed(base, anew, points):
        assert killing.in_fork(partial(auto, directory)) == 0, calls[at]
        expected = last if at <= moves[-1] else own if at <= commits[0] else calls[commits[0]].rpartition("/")[2]
        assert lives.attempts(directory)[-1]["resumed_from"] == expected, calls[at]
        assert (directory / "end.json").read_text() == ends["old" if at <= moves[-1] else "new"], calls[at]
    print(f"resume={resume}: {len(points)} kills, each followed by resume=auto")  # noqa: T201


@pytest.mark.parametrize(("resume", "own"), [("never", None), ("step-2", "step-000000002")])
def test_a_killed_way_back_is_gone_or_not_begun(resume: str, own: str | None, tmp_path: Path) -> None:
    """After a kill of resume="never" or "step-2", resume="auto" stands where the run was, or where it went back to."""
    in_sweep(kill_then_resume_automatically, tmp_path, resume, own)


def kill_with_little_kept(place: Path) -> None:
    base = trained(place)
    back = partial(lives.train, resume="step-2", epochs=4, save_every=1, keep=samestep.Keep(last=1))
    calls = killing.calls_of(back, shutil.copytree(base, place / "whole"))
    for at, directory in killing.killed(base, back, [len(calls) - 1]):
        assert killing.in_fork(partial(back, directory)) == 0, calls[at]
        assert (directory / "end.json").read_text() == (place / "whole" / "end.json").read_text()
        assert [each.step for each in find_checkpoints(directory / "run" / "checkpoints")] == [2, 8]


def test_the_checkpoint_that_a_command_names_stays_as_long_as_it_works(tmp_path: Path) -> None:
    """A command with resume="step-2" can be started again after any kill: retention leaves it its checkpoint."""
    in_sweep(kill_with_little_kept, tmp_path)
