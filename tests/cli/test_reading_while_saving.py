"""What the reading verbs say of a run whose training saves, deletes and dies while they read."""

import contextlib
import io
import json
import os
import signal

import pytest
from small_training import snapshot

from samestep.cli.group import run
from samestep.store import files, folder, verifying
from samestep.store.retention import Keep
from samestep.store.store import Store

LAST_TWO = Keep(last=2)


def answer(*words):
    """Run a verb in this process: its status and the object that it prints."""
    printed = io.TextIOWrapper(io.BytesIO(), write_through=True)
    with contextlib.redirect_stdout(printed):
        status = run([*map(str, words), "--json"])
    return status, json.loads(printed.buffer.getvalue())


class Watched(files.System):
    """The operating system of a training; ahead of each of its calls somebody looks at the run."""

    def __init__(self, look):
        self._look = look

    def __getattribute__(self, name):
        call = super().__getattribute__(name)
        if name.startswith("_"):
            return call

        def watched(*arguments):
            self._look()
            return call(*arguments)

        return watched


def test_a_reader_between_any_two_operations_of_a_save_sees_whole_checkpoints(digits, monkeypatch):
    """Ahead of each file operation of a save and its retention, ls and verify name whole checkpoints and no damage."""
    seen = []

    def look():
        status, verified = answer("verify", digits)
        _, listed = answer("ls", digits)
        names = [each["name"] for each in listed["checkpoints"]]
        assert (status, verified["ok"]) == (0, True)
        assert names == [each["name"] for each in verified["checkpoints"]]
        assert {each["status"] for each in listed["checkpoints"]} == {"complete"}
        seen.append(names[-1])

    store = Store(digits / "checkpoints", keep=LAST_TWO)
    monkeypatch.setattr(files, "system", Watched(look))
    store.write(snapshot(400))
    assert set(seen) == {"step-000000300", "step-000000400"}
    print(f"{len(seen)} places")  # noqa: T201


@pytest.mark.parametrize("verb", ["verify", "ls"])
def test_what_retention_deletes_under_a_reader_is_no_damage(digits, monkeypatch, verb):
    """A checkpoint that goes between the listing of the folder and the reading of its files is not called damaged."""
    whole = verifying.open_regular

    def delete_then_open(path):
        if path.parent.name == "step-000000100" and path.parent.exists():
            folder.remove(path.parent)
        return whole(path)

    monkeypatch.setattr(verifying, "open_regular", delete_then_open)
    status, found = answer(verb, digits)
    assert status == 0
    assert [each["name"] for each in found["checkpoints"]] == ["step-000000200", "step-000000300"]


def test_an_export_whose_checkpoint_goes_says_so(digits, tmp_path, monkeypatch):
    """An export whose checkpoint is deleted while it is read says that it is gone, not that it is damaged."""
    whole = verifying.read_manifest

    def read_then_delete(path):
        manifest = whole(path)
        folder.remove(path)
        return manifest

    monkeypatch.setattr(verifying, "read_manifest", read_then_delete)
    status, found = answer("export", f"{digits}@300", "--out", tmp_path / "model.pt")
    assert (status, found["error"]["message"]) == (
        2,
        "There is no checkpoint here, or not any more: a running training deletes old ones.",
    )
    assert not (tmp_path / "model.pt").exists()


def test_a_reader_outlives_the_training_that_it_watches(digits, monkeypatch):
    """A verify that stands in the middle of a file while the training is killed and its successor saves ends well."""
    asked, answered = os.pipe(), os.pipe()
    reader = os.fork()
    if reader == 0:
        whole = verifying.read_chunks

        def wait_then_read(*arguments):
            os.write(asked[1], b"?")
            os.read(answered[0], 1)
            verifying.read_chunks = whole
            return whole(*arguments)

        verifying.read_chunks = wait_then_read
        status, found = answer("verify", digits)
        names = [each["name"] for each in found["checkpoints"]]
        os._exit(0 if (status, found["ok"], names) == (0, True, ["step-000000200", "step-000000300"]) else 1)
    assert os.read(asked[0], 1) == b"?"
    trainer = os.fork()
    if trainer == 0:
        deaths = iter(range(20))
        files.system = Watched(lambda: next(deaths, None) is None and os.kill(os.getpid(), signal.SIGKILL))
        Store(digits / "checkpoints", keep=LAST_TWO).write(snapshot(400))
        os._exit(1)
    assert os.WTERMSIG(os.waitpid(trainer, 0)[1]) == signal.SIGKILL
    folder.remove(digits / "checkpoints" / "step-000000100")
    os.write(answered[1], b"!")
    assert os.waitstatus_to_exitcode(os.waitpid(reader, 0)[1]) == 0
    for end in (*asked, *answered):
        os.close(end)
    assert Store(digits / "checkpoints").latest().step == 300
