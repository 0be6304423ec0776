"""What the command line says when the user, the disk or the checkpoint is wrong."""

import io
import json
import os
import pickle
import subprocess
import sys
import zipfile

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from samestep.cli.group import run
from samestep.state.snapshot import Item, Snapshot
from samestep.store.store import Store

START = [sys.executable, "-c", "from samestep.cli import main; main()"]


def start(*words, environment=None, **options):
    """Run a verb in a process of its own."""
    options = {"capture_output": True, "text": True} | options
    environment = {**os.environ, **(environment or {})}
    return subprocess.run([*START, *map(str, words)], env=environment, check=False, **options)


MISTAKES = {
    "no such path": ("ls", "{tmp}/nowhere"),
    "no run": ("ls", "{tmp}"),
    "a file as a run": ("ls", "{tmp}/file"),
    "a checkpoint as a run": ("ls", "{run}/checkpoints/step-000000100"),
    "no such step": ("inspect", "{run}@7"),
    "no such tag": ("inspect", "{run}@best"),
    "no such score": ("inspect", "{run}@best:loss"),
    "no such mode": ("inspect", "{run}@best:acc:highest"),
    "nothing to inspect": ("inspect", "{tmp}/nowhere@100"),
    "a file to compare": ("diff", "{run}", "{tmp}/file"),
    "nothing to verify": ("verify", "{tmp}/empty"),
    "contradictory policy": ("prune", "{run}", "--best", "1"),
    "last none": ("prune", "{run}", "--last", "0"),
    "unknown verb": ("lst", "{run}"),
    "unknown option": ("ls", "{run}", "--fast"),
    "missing argument": ("diff", "{run}"),
    "not a number": ("prune", "{run}", "--last", "two"),
    "export without a file": ("export", "{run}"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_get_one_message(name, digits, tmp_path, samestep, samestep_json):
    """A user's mistake is status 2 and one message without a traceback; with --json it is one object."""
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty" / "checkpoints").mkdir(parents=True)
    words = [word.format(tmp=tmp_path, run=digits) for word in MISTAKES[name]]
    status, out, err = samestep(*words)
    assert status == 2
    assert out == ""
    assert err.startswith("samestep: ")
    assert "Traceback" not in err
    status, found = samestep_json(*words)
    assert status == 2
    assert set(found) == {"error"}
    assert found["error"]["message"]


def test_mistakes_in_a_real_process(tmp_path):
    """The process itself ends with status 2, the message on standard error and nothing on standard output."""
    done = start("inspect", tmp_path / "nowhere")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[0] == "samestep: There is nothing at this path."
    done = start("inspect", tmp_path / "nowhere", "--json")
    assert (done.returncode, done.stderr) == (2, "")
    assert json.loads(done.stdout)["error"]["where"] == str(tmp_path / "nowhere")


class Network:
    """A class of the user's, which a pickle names."""


def _zipped(names):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name in names:
            archive.writestr(name, b"x")
    return content.getvalue()


def _torch(value, **options):
    content = io.BytesIO()
    torch.save(value, content, **options)
    return content.getvalue()


def _npz():
    content = io.BytesIO()
    np.savez(content, a=np.ones(2))
    return content.getvalue()


FILES = {
    "weights": (lambda: _torch(torch.nn.Linear(2, 1).state_dict()), "a PyTorch file (zip) with weights"),
    "checkpoint": (
        lambda: _torch({"model": torch.nn.Linear(2, 1).state_dict(), "optimizer": {"state": {}}, "epoch": 3}),
        "a training checkpoint (it has optimizer)",
    ),
    "object": (lambda: _torch(Network()), "whole objects (test_mistakes.Network)"),
    "model": (lambda: _torch(torch.nn.Linear(2, 1)), "whole objects (torch.nn.modules.linear.Linear"),
    "old": (lambda: _torch({"a": 1}, _use_new_zipfile_serialization=False), "a PyTorch file (old format"),
    "script": (lambda: _zipped(["m/data.pkl", "m/constants.pkl"]), "a TorchScript program"),
    "pickle": (lambda: pickle.dumps({"a": 1}), "a pickle file, which can run any code"),
    "npz": (_npz, "a NumPy archive"),
    "zip": (lambda: _zipped(["readme.txt"]), "a zip archive"),
    "empty": (lambda: b"", "an empty file"),
    "cut": (lambda: _torch({"a": 1})[:200], "a file that cannot be read"),
    "hdf5": (lambda: b"\x89HDF\r\n\x1a\n" + bytes(90), "an HDF5 file"),
    "text": (lambda: b"hello", "a file of another kind"),
}


@pytest.mark.parametrize("name", FILES)
def test_foreign_files_are_recognised(name, tmp_path, samestep_json):
    """A file given as a checkpoint is described by its structure, whatever its name: .pt says nothing."""
    make, expected = FILES[name]
    (tmp_path / "model.pt").write_bytes(make())
    status, found = samestep_json("inspect", tmp_path / "model.pt")
    assert status == 2
    assert expected in found["error"]["found"]


def test_a_safetensors_file_is_recognised(tmp_path, samestep_json):
    """A safetensors file is described with the number of its tensors."""
    save_file({"a": torch.ones(2)}, tmp_path / "model.pt", {"format": "pt"})
    assert "with 1 tensors" in samestep_json("inspect", tmp_path / "model.pt")[1]["error"]["found"]


def test_nothing_is_unpickled(tmp_path, samestep_json):
    """A pickle that would run code when loaded is described and not run."""
    trap = tmp_path / "sprung"

    class Trap:
        def __reduce__(self):
            return (os.mkdir, (str(trap),))

    torch.save(Trap(), tmp_path / "model.pt")
    _, found = samestep_json("inspect", tmp_path / "model.pt")
    assert "posix.mkdir" in found["error"]["found"]
    assert not trap.exists()


def test_unreadable_checkpoint(digits, tmp_path, samestep_json):
    """Missing permission is status 2, and is not called damage."""
    checkpoint = digits / "checkpoints" / "step-000000300"
    assert samestep_json("inspect", checkpoint)[0] == 0  # imports what another user may not read
    (checkpoint / "manifest.json").chmod(0)
    for parent in [tmp_path, *tmp_path.parents]:
        if "pytest-of-" in str(parent):  # pytest makes them private to the user
            parent.chmod(0o755)
    output = (tmp_path / "output").open("w")
    child = os.fork()
    if not child:
        os.geteuid() or os.seteuid(65534)
        sys.stdout = output
        os._exit(run(["inspect", str(checkpoint), "--json"]))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
    output.close()
    assert json.loads((tmp_path / "output").read_text())["error"]["found"] == "Permission denied"


def test_broken_pipe_is_silent(digits):
    """When the reader goes away, as in `samestep ls runs/a | head -1`, nothing is said."""
    read, write = os.pipe()
    os.close(read)
    done = start("inspect", digits, "--tensors", capture_output=False, stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


def test_no_color_is_honoured(digits):
    """On a terminal there is colour, and with NO_COLOR none."""
    pty = pytest.importorskip("pty")

    def shown(environment):
        master, slave = pty.openpty()
        done = start("ls", digits, environment=environment, capture_output=False, stdout=slave, stderr=slave)
        os.close(slave)
        content = os.read(master, 65536)
        os.close(master)
        assert done.returncode == 0
        return content

    assert b"\x1b[" in shown({"TERM": "xterm-256color"})
    assert b"\x1b[3" not in shown({"TERM": "xterm-256color", "NO_COLOR": "1"})


def test_names_cannot_steer_the_terminal(tmp_path, samestep):
    """Control characters in names are printed as escapes."""
    status, _, err = samestep("ls", tmp_path / "evil\x1b[2J\x07")
    assert status == 2
    assert "\x1b" not in err
    assert "evil\\x1b[2J" in err


STEERING = "good\nsamestep: all is sound\r\x1b[2J\x9b31m\u202e\x85"


def test_what_a_checkpoint_says_cannot_steer_the_terminal(tmp_path, samestep, samestep_json):
    """Tags, scores and tensors' names in errors are escapes, so that no line is one that samestep has not written."""
    store = Store(tmp_path / "r\nun\x1b[2J" / "checkpoints")
    for step in (1, 2):
        tensors = {STEERING: torch.ones(step)}
        state = Snapshot(step, None, {STEERING: Item("module", {"state": {}}, tensors)}, {STEERING: 1.0})
        store.write(state, tags=[STEERING])
    run, newest = store.directory.parent, store.checkpoints()[-1].path
    file = next(newest.glob("*.safetensors"))
    calls = [("inspect", f"{run}@nope"), ("inspect", f"{run}@best:{STEERING}:x"), ("ls", f"{run}\x1b"), ("ls", run)]
    calls += [("diff", f"{run}@1", f"{run}@2"), ("export", run, "--out", tmp_path / "o.safetensors"), ("prune", run)]
    for damaged in (False, True):
        if damaged:
            content = bytearray(file.read_bytes())
            content[-1] ^= 1
            file.write_bytes(content)
        for words in [*calls, ("verify", run), ("inspect", newest), ("inspect", newest, "--tensors")]:
            _, out, err = samestep(*words)
            lines = [line.rstrip() for line in (out + err).split("\n")]
            assert all(line.isprintable() for line in lines)
            assert sum(line.startswith("samestep:") for line in lines) <= 1
    assert samestep_json("inspect", f"{run}@nope")[1]["error"]["where"] == str(run)


def test_output_in_a_poor_locale(digits):
    """With an ASCII-only terminal nothing breaks; what it cannot show is escaped."""
    done = start("diff", f"{digits}@100", digits, environment={"PYTHONIOENCODING": "ascii", "LC_ALL": "C"})
    assert done.returncode == 1
    assert done.stderr == ""
    assert "\\u2192" in done.stdout


def test_version(samestep):
    """--version names the version."""
    status, out, _ = samestep("--version")
    assert status == 0
    assert out.startswith("samestep 0.")


def test_no_words_show_the_help(samestep):
    """Without arguments the verbs are listed."""
    _, out, err = samestep()
    assert "inspect" in out + err
