"""Faults around a run: a disk that fails, a damaged checkpoint, a run directory that moves."""

import errno
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from test_loop import checkpoints, metrics, small, train

import samestep
from samestep.errors import CorruptCheckpoint, SaveFailed
from samestep.store import files


class FullDisk(files.System):
    """The operating system, whose disk takes no more bytes while `full`."""

    full = False

    def write(self, descriptor: int, data: memoryview) -> int:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(descriptor, data)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[FullDisk]:
    system = FullDisk()
    monkeypatch.setattr(files, "system", system)
    yield system
    system.full = False


def test_a_full_disk_is_loud_and_the_training_goes_on(tmp_path: Path, disk: FullDisk) -> None:
    """While the disk is full each due save warns; no step is lost, the last good checkpoint stays, later saves work."""
    run, _, update = small(tmp_path, save_every=2)
    given = []
    with pytest.warns(UserWarning, match=r"(?s)No checkpoint at step 4; the training goes on.*space"):
        for step in run.steps(8):
            disk.full = 2 <= step < 5
            given.append(step)
            run.step(loss=update())
            if step == 5:
                assert checkpoints(tmp_path) == ["step-000000002"]
    assert given == list(range(8))
    assert checkpoints(tmp_path) == ["step-000000006", "step-000000008"]
    assert [line["step"] for line in metrics(tmp_path)] == list(range(1, 9))
    assert not list((tmp_path / "checkpoints").glob(".tmp*"))


@pytest.mark.usefixtures("caplog")
def test_a_failed_save_does_not_keep_an_iterator_alive(tmp_path: Path, disk: FullDisk) -> None:
    """An epoch that is left by break has ended, also where a save in it has failed and logs are kept."""
    run, model, _ = small(tmp_path, save_every=1)
    loader = samestep.DataLoader(torch.ones(8, 3), batch_size=2)
    run.track(loader=loader)
    for epoch in run.epochs(2):
        disk.full = epoch == 0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for batch in loader:
                run.step(loss=model(batch).mean())
                if loader.position == 3:
                    break
        assert (loader.epoch, loader.position) == (epoch + 1, 0)
        disk.full = False


class NoMetrics(files.System):
    """The operating system, which refuses to append to metrics.jsonl while `full`."""

    full = False

    def open(self, path: Path, flags: int) -> int:
        if self.full and path.name == "metrics.jsonl":
            raise OSError(errno.EDQUOT, "Disk quota exceeded")
        return super().open(path, flags)


def test_metrics_that_could_not_be_written_at_a_save_are_not_lost_by_the_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint that was saved while metrics.jsonl could not be written does not let its resume empty that file."""
    system = NoMetrics()
    monkeypatch.setattr(files, "system", system)
    run, _, update = small(tmp_path, save_every=2)
    with pytest.warns(UserWarning, match="records of the run could not be written"):
        for step in run.steps(8):
            system.full = step in {3, 4}
            run.step(loss=update())
            if step == 4:
                break
    system.full = False
    run.close()
    assert checkpoints(tmp_path) == ["step-000000002", "step-000000004"]
    run, _, update = small(tmp_path)
    assert train(run, update, 6) == [4, 5]
    assert [line["step"] for line in metrics(tmp_path)] == [1, 2, 3, 4, 5, 6]


def test_a_run_whose_end_cannot_be_saved_does_not_count_as_finished(tmp_path: Path, disk: FullDisk) -> None:
    """When the last checkpoint cannot be written the loop ends with an error, and the attempt is not "finished"."""
    run, _, update = small(tmp_path)
    with pytest.warns(UserWarning, match="No checkpoint at step 3"), pytest.raises(SaveFailed, match="full"):
        for step in run.steps(3):
            disk.full = step == 2
            run.step(loss=update())
    disk.full = False
    run.close()
    assert '"finished"' not in (tmp_path / "attempts.jsonl").read_text()


def test_a_run_with_nothing_but_damage_does_not_begin_anew(tmp_path: Path) -> None:
    """When no checkpoint is sound any more the training stops and says so; resume="never" begins anew."""
    run, _, update = small(tmp_path)
    train(run, update, 3)
    run.close()
    for path in (tmp_path / "checkpoints").rglob("manifest.json"):
        path.write_bytes(path.read_bytes()[:-9])
    run, _, update = small(tmp_path)
    with pytest.warns(UserWarning, match="damaged"), pytest.raises(CorruptCheckpoint, match="nothing is begun anew"):
        train(run, update, 3)
    run, _, update = small(tmp_path, resume="never")
    assert train(run, update, 1) == [0]


def test_a_damaged_newest_checkpoint_is_named_and_the_one_before_taken(tmp_path: Path) -> None:
    """One flipped bit in the newest weights is noticed before anything is restored; nothing is deleted."""
    run, _, update = small(tmp_path, save_every=2)
    train(run, update, 6)
    run.close()
    weights = tmp_path / "checkpoints" / "step-000000006" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    run, _, update = small(tmp_path)
    with pytest.warns(UserWarning, match=r"step-000000006 is damaged.*model\.safetensors"):
        assert train(run, update, 6) == [4, 5]
    assert list((tmp_path / "checkpoints" / "quarantine").glob("step-000000006*"))


def test_a_checkpoint_of_another_run_is_named(tmp_path: Path) -> None:
    """A whole checkpoint of another run, put among a run's own, is taken as the newest, but never in silence."""
    for name, steps in (("a", 2), ("b", 3)):
        run, _, update = small(tmp_path / name)
        train(run, update, steps)
        run.close()
    theirs = Path("checkpoints") / "step-000000003"
    shutil.copytree(tmp_path / "b" / theirs, tmp_path / "a" / theirs)
    run, _, update = small(tmp_path / "a")
    with pytest.warns(UserWarning, match="step-000000003 was written by another run"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "metrics")  # its records are those of another run, too
        assert train(run, update, 4) == [3]


def test_edited_metrics_are_named(tmp_path: Path) -> None:
    """A figure in metrics.jsonl that is not the one the loop reported is said at the next resume, and stays."""
    run, _, update = small(tmp_path)
    train(run, update, 3)
    run.close()
    path = tmp_path / "metrics.jsonl"
    edited = path.read_text().replace('"loss": ', '"loss": 1', 1)
    path.write_text(edited)
    run, _, update = small(tmp_path)
    with pytest.warns(UserWarning, match=r"metrics\.jsonl is not what was written there"):
        train(run, update, 4)
    assert path.read_text().startswith(edited.splitlines()[0])


def test_a_run_may_be_moved_and_renamed(tmp_path: Path) -> None:
    """The directory holds no absolute path: moved to another name, with spaces and umlauts, it resumes.

    Reported as transformers PR#48319.
    """
    run, _, update = small(tmp_path / "first")
    train(run, update, 3)
    run.close()
    moved = tmp_path / "zweiter Läufer ü"
    shutil.move(tmp_path / "first", moved)
    run, _, update = small(moved)
    assert train(run, update, 5) == [3, 4]


def test_the_working_directory_may_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative run directory is meant from where the run was made, whatever the script changes to later."""
    monkeypatch.chdir(tmp_path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    run, _, update = small(Path("run"), save_every=1)
    for step in run.steps(4):
        if step == 2:
            monkeypatch.chdir(elsewhere)
        run.step(loss=update())
    assert checkpoints(tmp_path / "run") == ["step-000000003", "step-000000004"]
    assert list(elsewhere.iterdir()) == []


def test_a_file_in_the_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    """A run directory that is a file is refused in one sentence."""
    (tmp_path / "run").write_text("")
    with pytest.raises(samestep.SamestepError, match="directory cannot be"):
        samestep.Run(tmp_path / "run")


def test_saved_weights_open_in_plain_pytorch(tmp_path: Path) -> None:
    """R19: model.safetensors of a run is the inference file: it loads into a fresh model with strict names."""
    from safetensors.torch import load_file

    run, model, update = small(tmp_path)
    train(run, update, 2)
    weights = load_file(tmp_path / "checkpoints" / "step-000000002" / "model.safetensors")
    fresh = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(0.2), torch.nn.Linear(4, 1))
    fresh.load_state_dict(weights, strict=True)
    assert all(torch.equal(each, model.state_dict()[name]) for name, each in fresh.state_dict().items())
