"""Recorded trainings that change files, each in a process of its own, forked once torch is imported: some have to die.

Reads trials as JSON from standard input and prints how each has ended. Files are opened in all the ways there are.
"""
# ruff: noqa: PTH102, PTH103, PTH104, PTH105, PTH106, PTH107, PTH123, PTH211, SIM115

import json
import os
import select
import shutil
import sqlite3
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

import samestep
from samestep.proof import recorder


def updates():
    """Give a function that makes an optimizer step."""
    weights = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weights], lr=0.1)

    def update():
        weights.grad = torch.ones(2)
        optimizer.step()

    return update


def append():
    """Add ten bytes."""
    with open("log.txt", "a") as log:
        log.write("y" * 10)


def in_a_thread():
    """Write in another thread."""
    thread = threading.Thread(target=lambda: Path("thread.txt").write_text("z" * 300))
    thread.start()
    thread.join()


OPERATIONS = [  # name, path, bytes, and what does it
    ("open", "log.txt", 5000, lambda: Path("log.txt").write_text("x" * 5000)),
    ("open", "log.txt", 10, append),
    ("torch.save", "a.pt", True, lambda: torch.save(torch.arange(1000), "a.pt")),
    ("safetensors", "a.safetensors", 8072, lambda: save_file({"x": torch.arange(1000)}, "a.safetensors")),
    ("mkdir", "folder", None, lambda: os.mkdir("folder")),
    ("rename", "folder/b.pt", None, lambda: os.replace("a.pt", "folder/b.pt")),
    ("open", "c.npy", 928, lambda: np.save("c.npy", np.arange(100))),
    ("truncate", "c.npy", -918, lambda: os.truncate("c.npy", 10)),
    ("link", "d.npy", None, lambda: os.link("c.npy", "d.npy")),
    ("symlink", "e.npy", None, lambda: os.symlink("c.npy", "e.npy")),
    ("remove", "c.npy", None, lambda: os.remove(b"c.npy")),
    ("mkdir", "empty", None, lambda: Path("empty").mkdir()),
    ("rmdir", "empty", None, lambda: os.rmdir("empty")),
    ("sqlite3.connect", "q.db", 0, lambda: sqlite3.connect("q.db").close()),
    ("open", "thread.txt", 300, in_a_thread),
]


def changing():
    """Do all the operations between two steps, save with samestep before the next one, and write once more."""
    update = updates()
    update()
    for *_, work in OPERATIONS:
        work()
    update()
    samestep.Store("store").save({"model": torch.nn.Linear(30, 30)}, step=1)
    update()
    Path("end.txt").write_text("end")
    return {"end": recorder._recorder._notes_of_files()}


def without_a_change():
    """Do what changes nothing, or what others than this process change, and what goes other ways."""
    Path("there/sub").mkdir(parents=True)  # tries without parents first
    Path("there/sub/file").touch()
    update = updates()
    update()
    Path("there/sub/file").read_bytes()
    os.makedirs("there/sub", exist_ok=True)
    Path("there").mkdir(exist_ok=True)
    Path("there/sub/file").touch()
    Path("there/__pycache__").mkdir()
    Path("there/__pycache__/module.cpython-311.pyc").touch()
    Path("/dev/null").write_text("x")
    for wrong in (
        lambda: os.remove("nothing"),
        lambda: os.rename("nothing", "something"),
        lambda: open("there/sub/file", "x"),
        lambda: open("nothing", "r+"),
        lambda: open("no/folder", "w"),
    ):
        with suppress(OSError):
            wrong()
    child = os.fork()
    if child == 0:
        Path("child").touch()
        os._exit(0)
    os.waitpid(child, 0)
    update()
    shutil.rmtree("there")  # by descriptors of folders
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), "model.pt")
    descriptor = os.open("low", os.O_RDWR | os.O_CREAT)
    with os.fdopen(descriptor, "w") as file:
        file.write("abc")
        file.flush()
        os.ftruncate(descriptor, 1)
    update()


def refusing():
    """Try to change the original in many ways, and tell how each has ended."""
    original = Path(os.environ["SAMESTEP_RECORD_GUARDED"])
    Path("own").write_text("own")
    folder = os.open("package", os.O_RDONLY)

    def in_a_child():
        child = os.fork()
        if child == 0:
            try:
                Path("package/module").write_text("x")
            except PermissionError:
                os._exit(7)
            os._exit(0)
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7:
            raise PermissionError("samestep prove: in a child")

    tries = {
        "open": lambda: Path("package/module").write_text("x"),
        "append": lambda: open(original / "data", "a"),
        "new": lambda: Path("package/new").touch(),
        "torch.save": lambda: torch.save(1, "package/new"),
        "safetensors": lambda: save_file({"x": torch.ones(1)}, "package/new"),
        "over": lambda: os.replace("own", "package/module"),
        "away": lambda: os.rename("package/module", "own"),
        "remove": lambda: os.remove("package/module", dir_fd=None),
        "by descriptor": lambda: os.remove("module", dir_fd=folder),
        "mkdir": lambda: os.mkdir("package/new"),
        "rmdir": lambda: os.rmdir("package/empty"),
        "tree": lambda: shutil.rmtree("package/empty"),
        "truncate": lambda: os.truncate("package/module", 0),
        "second name": lambda: os.link("package/module", "second"),
        "into": lambda: os.symlink("own", "package/new"),
        "times": lambda: os.utime("package/module"),
        "sqlite": lambda: sqlite3.connect("package/module"),
        "compiled": lambda: Path("package/__pycache__").mkdir(),
        "child": in_a_child,
    }
    return {name: outcome(attempt) for name, attempt in tries.items()}


def outcome(attempt):
    """Tell how an attempt ends."""
    try:
        attempt()
    except PermissionError as error:
        return str(error)
    return "done"


def linked():
    """Write through links to files of the original."""
    with open("data", "a") as file:
        file.write(" and more")
    Path("config").write_text("mine")
    torch.save(1, "weights")
    Path("dangling").write_text("mine")
    os.truncate("cut", 2)
    os.remove("removed")
    Path("untouched").read_text()
    with suppress(FileExistsError):
        open("exclusive", "x")
    updates()()


def with_a_child():
    """Make steps beside a child that goes on for some seconds unless it is killed."""
    if os.fork() == 0:
        time.sleep(5)
        os._exit(0)
    update = updates()
    update()
    update()


def run(trial, prover):
    """Be the training of a trial."""
    if trial.get("own_group", True):
        os.setsid()
    os.chdir(trial["arm"])
    os.environ |= {"SAMESTEP_RECORD_DIR": trial["arm"], "SAMESTEP_RECORD_PROVER": str(prover)}
    os.environ |= trial.get("variables", {})
    recorder.start(Path(trial["ledgers"]))
    outcome = globals()[trial["work"]]()
    (Path(trial["ledgers"]) / "outcome.json").write_text(json.dumps(outcome))


def attend(trial):
    """Run a trial, and give its status, negative for a signal, and whether its whole process group is gone."""
    alive, held = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            run(trial, os.getpgrp())
        except BaseException:  # noqa: BLE001  (a process that was forked ends here, whatever happens)
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)
    os.close(held)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    is_gone = bool(select.select([alive], [], [], 1)[0])
    os.close(alive)
    return {"status": status, "is_gone": is_gone}


if __name__ == "__main__":
    updates()()  # the first step imports much of torch: here once, and not in each of the processes
    sys.stdout.write(json.dumps([attend(trial) for trial in json.load(sys.stdin)]))
