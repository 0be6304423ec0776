"""Owns the start of recorded commands by forking a process that has imported torch: each starts in milliseconds.

A forked process is as fresh as a new one in all that a training sees: it has drawn nothing, made no optimizer, and
begins with generators of its own. It is killed as any other.
"""

import atexit
import importlib
import json
import os
import random
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
from contextlib import contextmanager, suppress
from pathlib import Path


class WarmedProcess:
    """A process that the server has forked; what `samestep.proof.starting` asks of one."""

    def __init__(self, pid, server):
        self.pid, self._server = pid, server

    def poll(self):
        """Give its exit status, None while it runs; who could tell it may be gone itself."""
        is_known = self._server.is_alive or self.pid in self._server.ended
        return self._server.ended.get(self.pid) if is_known else -signal.SIGKILL

    def wait(self, timeout=None):
        """Wait for its end."""
        waited = threading.Event()
        for _ in range(int((timeout or 600) / 0.005)):
            if self.poll() is not None:
                return self.poll()
            waited.wait(0.005)
        raise subprocess.TimeoutExpired("a forked process", timeout)


class Warmed:
    """The server's other side."""

    def __init__(self):
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._lock, self._begun, self.ended = threading.Lock(), [], {}
        self.is_alive = True
        self._has_begun = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def launch(self, command, *, cwd, env, stdout, **_others):
        """Start a recorded `python script.py arguments` as `subprocess.Popen` would.

        With `ranks` instead of `python` two processes of it train together, started by one that does as torchrun does.
        """
        request = {
            "command": list(command[1:]),
            "ranks": 2 if command[0] == "ranks" else 0,
            "cwd": str(cwd),
            "env": env,
            "log": str(Path(f"/proc/self/fd/{stdout}").readlink()),
        }
        with self._lock, self._has_begun:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            self._has_begun.wait_for(lambda: self._begun)
            return WarmedProcess(self._begun.pop(), self)

    def close(self):
        """End the server."""
        self._process.stdin.close()
        self._process.wait()
        self._reader.join()
        self._process.stdout.close()

    def _read(self):
        for line in self._process.stdout:
            told = json.loads(line)
            if "begun" in told:
                with self._has_begun:
                    self._begun.append(told["begun"])
                    self._has_begun.notify()
            else:
                self.ended[told["ended"]] = told["status"]
        self.is_alive = False


@contextmanager
def warmed():
    """Give what starts processes."""
    server = Warmed()
    try:
        yield server
    finally:
        server.close()


def serve():
    """Fork a process for each line, and tell when one ends."""
    # Imported once for all: NumPy, torch, what optimizers import at their first step, and the recorder.
    for name in ("numpy", "torch._dynamo", "torch.optim.swa_utils", "torch.utils.data", "samestep.proof.recorder"):
        importlib.import_module(name)

    pending = b""
    while True:
        readable, _, _ = select.select([0], [], [], 0.005)
        if readable:
            got = os.read(0, 1 << 20)
            if not got:
                return
            *lines, pending = (pending + got).split(b"\n")
            for line in lines:
                pid = os.fork()
                if pid == 0:
                    _run(json.loads(line))
                _tell(begun=pid)
        _tell_of_ends()


def _tell_of_ends():
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        _tell(ended=pid, status=os.waitstatus_to_exitcode(status))


def _tell(**told):
    os.write(1, json.dumps(told).encode() + b"\n")


def _run(request):
    """Be the recorded process."""
    os.setsid()
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    log = os.open(request["log"], os.O_WRONLY | os.O_APPEND)
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    if request["ranks"]:
        _be_agent(request["ranks"])
    status = 1
    try:
        import numpy as np

        from samestep.proof.recorder import start

        random.seed()
        np.random.seed()
        start(Path(os.environ["SAMESTEP_RECORD"]))
        script, *_ = sys.argv = request["command"]
        sys.path.insert(0, str(Path(script).resolve().parent))
        runpy.run_path(script, run_name="__main__")
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001  (as Python does with what nobody catches)
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _be_agent(count, restarts=1):
    """Fork ranks, and return in each; when one fails, end them all and start them once more."""
    for attempt in range(1 + restarts):
        ranks = []
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        for rank in range(count):
            ranks.append(os.fork())
            if ranks[-1] == 0:
                os.setpgrp()
                os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count)}
                os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RESTARTS": str(attempt)}
                return
        statuses = [os.wait()[1]]
        while len(statuses) < count:
            if any(statuses):
                for rank in ranks:
                    with suppress(ProcessLookupError):
                        os.kill(rank, signal.SIGKILL)
            statuses.append(os.wait()[1])
        if not any(statuses):
            os._exit(0)
    os._exit(1)


if __name__ == "__main__":
    serve()
