"""Owns the running of training scripts in forked children of one process that has imported torch: traced, and killed.

It is an oracle of its own for the power table, which shares nothing with `samestep prove`. Per optimizer step a child
notes a digest of what the optimizer updates; it can die by SIGKILL behind any step and around or within any save.
"""

import json
import os
import random
import runpy
import signal
import subprocess
import sys
import traceback
from contextlib import contextmanager
from pathlib import Path

STEP, TORN, BEFORE, BEHIND = "step", "torn", "before", "behind"
"""Moments of a kill: behind the n-th step; in the middle of the n-th `torch.save`; before or behind the n-th rename."""


@contextmanager
def forker():
    """Start the process that has imported torch; give what runs a script in a folder, and kills it at a moment."""
    process = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(folder, kill=None, environment=None):
        """Give the exit status and what was noted: {"step": digest} and {"saved": path}."""
        request = {"folder": str(folder), "kill": kill, "environment": environment or {}}
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    try:
        yield run
    finally:
        process.stdin.close()
        process.wait()
        process.stdout.close()


def serve():
    """Run one script after the other, as they are asked for."""
    import numpy as np  # noqa: F401  (imported once for all children)
    import torch._dynamo  # optimizers import it at their first step
    import torch.optim.swa_utils
    import torch.utils.data

    import samestep  # noqa: F401

    torch.set_num_threads(1)
    for line in sys.stdin:
        request = json.loads(line)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            _child(request, writing)
        os.close(writing)
        with os.fdopen(reading, "rb") as notes:
            noted = [json.loads(each) for each in notes.read().splitlines()]
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        sys.stdout.write(json.dumps({"status": status, "noted": noted}) + "\n")
        sys.stdout.flush()


def _child(request, writing):
    """Be a fresh process as far as a script can see; never come back."""
    status = 1
    try:
        os.setsid()  # its workers die with it, as they do when a machine is lost
        os.chdir(request["folder"])
        os.environ.update(request["environment"])
        output = os.open("../output.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        _seed_by_chance()
        _Tracer(writing, request["kill"]).install()
        sys.argv, sys.path[0] = ["train.py"], request["folder"]
        runpy.run_path("train.py", run_name="__main__")
        status = 0
    except SystemExit as ended:
        status = int(ended.code or 0)
    except BaseException:  # noqa: BLE001  (as the interpreter does)
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _seed_by_chance():
    """Give each child other generators, as a fresh process has: a script that seeds nothing must not look exact."""
    import numpy as np
    import torch

    random.seed()
    np.random.seed()
    torch.seed()


class _Tracer:
    def __init__(self, descriptor, kill):
        self.descriptor = descriptor
        self.kill = tuple(kill) if kill else None
        self.counts = {STEP: 0, TORN: 0, BEFORE: 0, BEHIND: 0}
        self.optimizers = []

    def install(self):
        import torch
        from torch.optim.optimizer import register_optimizer_step_post_hook

        register_optimizer_step_post_hook(self.stepped)
        save, replace, rename = torch.save, os.replace, os.rename
        torch.save = lambda state, path, *more, **named: self.save(save, state, path, *more, **named)
        os.replace = lambda source, target, **named: self.rename(replace, source, target, **named)
        os.rename = lambda source, target, **named: self.rename(rename, source, target, **named)

    def note(self, **what):
        os.write(self.descriptor, json.dumps(what).encode() + b"\n")

    def moment(self, kind):
        """Die, if this is the moment."""
        count = self.counts[kind]
        self.counts[kind] += 1
        if self.kill == (kind, count):
            self.die()

    def die(self):
        os.killpg(os.getpid(), signal.SIGKILL)

    def stepped(self, optimizer, _arguments, _named):
        import xxhash

        if optimizer not in self.optimizers:
            self.optimizers.append(optimizer)
        whole = xxhash.xxh3_128(f"{self.optimizers.index(optimizer)}".encode())
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                whole.update(parameter.detach().numpy().tobytes())
        self.note(step=whole.hexdigest())
        self.moment(STEP)

    def save(self, save, state, path, *more, **named):
        save(state, path, *more, **named)
        if self.kill == (TORN, self.counts[TORN]):
            os.truncate(path, Path(path).stat().st_size // 2)
        self.moment(TORN)
        self.note(saved=str(path))

    def rename(self, rename, source, target, **named):
        self.moment(BEFORE)
        rename(source, target, **named)
        self.note(saved=str(target), renamed=True)
        self.moment(BEHIND)


if __name__ == "__main__":
    serve()
