"""Places that fail while a training runs: real full and read-only file systems, and a directory that goes away."""

import errno
import os
import shutil
import subprocess
import sys
import warnings

import pytest
from test_loop import checkpoints, metrics, small, train
from test_refused_starts import in_fork

import samestep
from samestep import attempt, logbook
from samestep.errors import SamestepError, SaveFailed
from samestep.keeper import Keeper
from samestep.store import files
from samestep.store.attempts import read_attempts
from samestep.store.metrics import read_metrics


def fill(disk):
    """Take the last byte of a disk."""
    descriptor = os.open(disk / "ballast", os.O_WRONLY | os.O_CREAT)
    try:
        while True:
            os.write(descriptor, bytes(512))
    except OSError:
        return
    finally:
        os.close(descriptor)


def texts(caught):
    return [str(each.message) for each in caught]


def trained(directory, steps, before, **settings):
    """Train with what `before` does ahead of each step, and give the run and the texts of the warnings."""
    run, _, update = small(directory, **settings)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in run.steps(steps):
            before(step)
            run.step(loss=update())
    return run, texts(caught)


def test_a_disk_that_is_really_full_is_loud_at_each_save(small_disk):
    """On a full disk each due save says so once, the training and the last checkpoint stay, and room is used again."""
    directory, during = small_disk / "run", []

    def before(step):
        if step == 3:
            fill(small_disk)
        if step == 7:
            during.extend(checkpoints(directory))
            (small_disk / "ballast").unlink()

    _, said = trained(directory, 8, before, save_every=2)
    assert [text.splitlines()[0] for text in said] == [
        f"No checkpoint at step {step}; the training goes on. The disk is full; the checkpoint of step {step} was not"
        " saved."
        for step in (4, 6)
    ]
    assert "0 bytes free" in said[0]
    assert during == ["step-000000002"]
    assert checkpoints(directory) == ["step-000000002", "step-000000008"]
    assert [line["step"] for line in metrics(directory)] == list(range(1, 9))


def test_a_start_on_a_full_disk_goes_on_and_says_so(small_disk, monkeypatch):
    """A resume on a disk without a free byte trains, says once that records wait, and writes them later."""
    monkeypatch.setattr(logbook, "_PATIENCE", 0.0)
    directory = small_disk / "run"
    run, _, update = small(directory)
    train(run, update, 1)
    run.close()
    fill(small_disk)

    def before(step):
        if step == 2:
            (small_disk / "ballast").unlink()

    run, (said,) = trained(directory, 3, before)
    assert said.startswith("The records of the run could not be written; the training goes on. No space left")
    assert [line["step"] for line in metrics(directory)] == [1, 2, 3]
    lines = (directory / "attempts.jsonl").read_text().splitlines()
    assert ["finished" in line for line in lines] == [True, True]


def test_a_disk_that_fills_while_only_metrics_are_written_is_told(small_disk, monkeypatch):
    """When metrics.jsonl alone cannot be written that is said once, and no line is lost when there is room again."""
    monkeypatch.setattr(logbook, "_FLUSH_EVERY", 0.0)
    monkeypatch.setattr(logbook, "_PATIENCE", 0.0)
    lines = []

    def before(step):
        if step == 2:
            fill(small_disk)
        if step == 198:
            lines.extend(read_metrics(small_disk / "run"))
            (small_disk / "ballast").unlink()

    _, said = trained(small_disk / "run", 200, before)
    assert len(said) == 1
    assert "No space left" in said[0]
    assert 2 <= len(lines) < 190
    assert [line["step"] for line in metrics(small_disk / "run")] == list(range(1, 201))


def test_a_directory_that_turns_read_only_is_loud_at_each_save(small_disk, tmp_path):
    """Where the checkpoints lie read-only each due save names it, and the training goes on; later saves work again."""
    directory = tmp_path / "run"

    def before(step):
        place = directory / "checkpoints"
        if step == 3:
            subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", place], check=True)
        if step == 5:
            subprocess.run(["umount", place], check=True)

    _, (gone, said) = trained(directory, 6, before, save_every=2)
    assert "gone:     step-000000002" in gone
    assert said.startswith("No checkpoint at step 4; the training goes on.")
    assert "Read-only file system" in said
    assert "mount it writable" in said
    assert checkpoints(directory) == ["step-000000002", "step-000000006"]


def test_a_read_only_disk_is_refused_at_the_start(small_disk):
    """On a read-only file system no run is made, in one sentence with the system's reason."""
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with pytest.raises(SamestepError, match="directory cannot be written") as caught:
        samestep.Run(small_disk / "run")
    assert caught.value.found == "Read-only file system"


class Refusing(files.System):
    """The operating system, which refuses writes for a reason that cannot be had at will: a quota, a broken disk."""

    reason = 0

    def write(self, descriptor, data):
        if self.reason:
            raise OSError(self.reason, os.strerror(self.reason))
        return super().write(descriptor, data)


@pytest.mark.parametrize(
    ("reason", "hint"),
    [
        (errno.EDQUOT, "quota of this user is used up"),
        (errno.EIO, "system's log"),
        (errno.EACCES, "permissions"),
        (errno.ESTALE, "Earlier checkpoints are untouched"),
        (errno.EMFILE, "Earlier checkpoints are untouched"),
    ],
)
def test_what_the_system_refuses_is_loud_once_for_each_save(reason, hint, tmp_path, monkeypatch):
    """A quota, a failing disk and their kin cost the due checkpoints only, and each is named with what to do."""
    system = Refusing()
    monkeypatch.setattr(files, "system", system)

    def before(step):
        system.reason = reason if 3 <= step < 7 else 0

    _, said = trained(tmp_path, 8, before, save_every=2)
    assert [text.partition(";")[0] for text in said] == ["No checkpoint at step 4", "No checkpoint at step 6"]
    assert all(os.strerror(reason) in text and hint in text for text in said)
    assert checkpoints(tmp_path) == ["step-000000002", "step-000000008"]
    assert [line["step"] for line in metrics(tmp_path)] == list(range(1, 9))


def test_a_directory_that_is_removed_is_made_anew_and_locked(tmp_path):
    """When the run's directory is removed that is said, and the run goes on there: same identity, lock and all."""
    directory = tmp_path / "run"
    identities = []

    def before(step):
        if step == 3:
            identities.append((directory / "run.json").read_bytes())
            shutil.rmtree(directory)

    run, (said,) = trained(directory, 6, before, save_every=2)
    assert said.startswith("The run's directory was removed, renamed or emptied while the training ran")
    assert checkpoints(directory) == ["step-000000004", "step-000000006"]
    assert (directory / "run.json").read_bytes() == identities[0]
    assert "finished" in (directory / "attempts.jsonl").read_text()
    assert run._attempt._lock.is_in_place()
    run.close()
    run, _, update = small(directory)
    assert train(run, update, 7) == [6]


def test_a_directory_that_another_run_has_taken_is_left_alone(tmp_path):
    """When another run works in the directory's place, saves fail loudly and write nothing there."""
    directory = tmp_path / "run"
    run, _, update = small(directory, save_every=2)
    others = []
    with pytest.warns(UserWarning, match="removed or replaced") as caught, pytest.raises(SaveFailed):
        for step in run.steps(4):
            if step == 1:
                directory.rename(tmp_path / "moved")
                attempt._open.clear()  # as in another process, which knows nothing of this one
                others.append(samestep.Run(directory))
            run.step(loss=update())
    assert {text[:23] for text in texts(caught)} == {"No checkpoint at step 2", "No checkpoint at step 4"}
    assert sorted(each.name for each in directory.iterdir()) == [".lock", "lock.json", "run.json"]
    others[0].close()


HOLD = """
import sys, time
from samestep.store.lock import RunLock
RunLock(sys.argv[1]).acquire()
print("held", flush=True)
time.sleep(60)
"""


def test_a_run_that_another_process_has_taken_is_left_alone(tmp_path):
    """When a copy made by the script has dropped the lock and another process works on the run, saves fail loudly."""
    run, _, update = small(tmp_path / "run", save_every=2)
    others = []

    def let_another_in():
        shutil.copytree(tmp_path / "run", tmp_path / "copy")
        others.append(subprocess.Popen([sys.executable, "-c", HOLD, tmp_path / "run"], stdout=subprocess.PIPE))
        others[0].stdout.readline()

    try:
        with pytest.warns(UserWarning, match="Another process works on this run") as caught, pytest.raises(SaveFailed):
            for step in run.steps(6):
                if step == 3:
                    let_another_in()
                run.step(loss=update())
    finally:
        for other in others:
            other.kill()
            other.communicate()
    assert {text[:23] for text in texts(caught)} == {"No checkpoint at step 4", "No checkpoint at step 6"}
    assert checkpoints(tmp_path / "run") == ["step-000000002"]


# --- what another program takes from a run at work ---------------------------------------------------------


def take(path, how):
    """Take a file or folder away, empty it, write zeros over it, or put something else in its place."""
    if how == "zeroed":
        path.write_bytes(bytes(path.stat().st_size))
        return
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    if how == "a folder":
        path.mkdir()
    elif how in {"a file", "emptied"}:
        path.touch()


@pytest.mark.parametrize("how", ["removed", "emptied", "zeroed"])
@pytest.mark.parametrize("name", ["attempts.jsonl", "run.json", "metrics.jsonl"])
def test_a_record_that_is_taken_while_the_training_runs_is_named_and_made_anew(name, how, tmp_path):
    """A record that is gone is told once, at the next save, and written again as far as it is known."""
    identity = []

    def before(step):
        if step == 3:
            identity.append((tmp_path / "run.json").read_bytes())
            take(tmp_path / name, how)

    run, said = trained(tmp_path, 8, before, save_every=2)
    run.close()
    is_seen_later = (name, how) == ("metrics.jsonl", "zeroed")  # of the same length, so that its digest must tell
    assert [text.split()[0] for text in said] == ([] if is_seen_later else [name])
    assert is_seen_later or (str(tmp_path / name) in said[0] and "while the training ran" in said[0])
    assert (tmp_path / "run.json").read_bytes() == identity[0]
    assert [(line["attempt"], line["how"], line["saved"]) for line in read_attempts(tmp_path)] == [
        (1, "finished", "step-000000002")
    ]
    assert [line["step"] for line in read_metrics(tmp_path)][-5:] == [4, 5, 6, 7, 8]
    _, said = trained(tmp_path, 10, lambda _: None)
    assert [text.partition(":")[0] for text in said] == (
        [f"{tmp_path / name} is not what was written there"] if is_seen_later else []
    )
    assert [line["step"] for line in read_metrics(tmp_path)][-2:] == [9, 10]


@pytest.mark.parametrize(
    ("name", "how"),
    [
        (name, how)
        for name in ("step-000000002", "step-000000004", ".")
        for how in ("removed", "a file", "a folder")
        if (name, how) != (".", "a file")
    ],
)
def test_checkpoints_that_are_taken_while_the_training_runs_are_named(name, how, tmp_path):
    """Checkpoints that are gone, or folders without a manifest, are told once, at the next save, which follows."""
    folder = tmp_path / "checkpoints"
    before_it = {"step-000000002", "step-000000004"}
    gone = before_it if name == "." else {name}

    def before(step):
        if step == 5:
            take(folder / name, how)

    run, (said,) = trained(tmp_path, 8, before, save_every=2)
    run.close()
    assert said.startswith("Checkpoints of this run were removed or damaged while the training ran")
    assert f"gone:     {', '.join(sorted(gone))}\n" in said
    assert f"found:    {', '.join(sorted(before_it - gone)) or 'none'}" in said
    assert {"step-000000006", "step-000000008"} <= set(checkpoints(tmp_path))
    run, _, update = small(tmp_path)
    assert train(run, update, 9) == [8]


def test_a_file_in_the_place_of_the_checkpoints_is_named_by_each_save(tmp_path):
    """Where the folder of checkpoints has become a file, the training goes on, and each save says what is there."""
    folder = tmp_path / "checkpoints"

    def before(step):
        if step == 3:
            take(folder, "a file")
        if step == 7:
            folder.unlink()

    _, said = trained(tmp_path, 8, before, save_every=2)
    assert [text.partition(";")[0] for text in said[1:]] == ["No checkpoint at step 4", "No checkpoint at step 6"]
    assert "gone:     step-000000002" in said[0]
    assert all(f"where:    {folder}\n" in text and "move it away" in text for text in said[1:])
    assert checkpoints(tmp_path) == ["step-000000008"]


def test_nothing_is_finished_whose_end_is_gone(tmp_path, monkeypatch):
    """When the last checkpoint is taken before the loop has ended it is saved again, and that is said."""
    save, last = Keeper.save, tmp_path / "checkpoints" / "step-000000004"

    def save_and_lose(keeper):
        save(keeper)
        if last.exists():
            monkeypatch.undo()
            take(last, "removed")

    monkeypatch.setattr(Keeper, "save", save_and_lose)
    _, (said,) = trained(tmp_path, 4, lambda _: None, save_every=2)
    assert "gone:     step-000000004" in said
    assert checkpoints(tmp_path) == ["step-000000002", "step-000000004"]


def test_a_record_that_cannot_be_written_is_told_although_another_can(tmp_path):
    """A folder in the place of metrics.jsonl is named at the next save, though attempts.jsonl can be written."""

    def before(step):
        if step == 1:
            (tmp_path / "metrics.jsonl").unlink(missing_ok=True)
            (tmp_path / "metrics.jsonl").mkdir()

    _, said = trained(tmp_path, 4, before, save_every=2)
    assert len(said) == 1
    assert said[0].startswith("The records of the run could not be written; the training goes on.")
    assert f"where:    {tmp_path / 'metrics.jsonl'}\n  to do:    Move it away." in said[0]


def test_attempts_that_are_gone_at_the_next_start_are_named(tmp_path):
    """A run whose attempts.jsonl has vanished between two starts goes on, and says so; a copied checkpoint does not."""
    run, _, update = small(tmp_path / "run")
    train(run, update, 2)
    run.close()
    take(tmp_path / "run" / "attempts.jsonl", "zeroed")
    _, said = trained(tmp_path / "run", 3, lambda _: None)
    assert len(said) == 1
    assert said[0].startswith("attempts.jsonl does not know who has written step-000000002")
    _, said = trained(tmp_path / "run", 4, lambda _: None)
    assert said == []


def loses_its_lock_and_is_killed(directory):
    run, _, update = small(directory, save_every=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for step in run.steps(9):
            if step == 3:
                (directory / ".lock").unlink()
            run.step(loss=update())
            if step == 4:
                os._exit(0)


def test_what_waits_is_written_before_the_checkpoint_that_speaks_of_it(tmp_path):
    """After a removed lock file and a kill behind the next save, no line of the steps before it is missing."""
    in_fork(loses_its_lock_and_is_killed, tmp_path)
    assert checkpoints(tmp_path) == ["step-000000002", "step-000000004"]
    assert [line["step"] for line in read_metrics(tmp_path)][:4] == [1, 2, 3, 4]
    assert [line["attempt"] for line in read_attempts(tmp_path)] == [1]
    run, _, update = small(tmp_path)
    assert train(run, update, 5) == [4]
    assert [line["step"] for line in read_metrics(tmp_path)] == [1, 2, 3, 4, 5]
