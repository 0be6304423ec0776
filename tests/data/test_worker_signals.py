import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress

import psutil
import pytest

TRAINING = """
import os, signal, subprocess, sys, time, torch
from torch.utils.data import get_worker_info
from samestep.data.loader import DataLoader

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 400

    def __getitem__(self, index):
        time.sleep(0.02)
        return index

stop = []
for each in (signal.SIGINT, signal.SIGUSR1, signal.SIGTERM):
    signal.signal(each, lambda *_: stop.append(time.monotonic()))
loader = DataLoader(Slow(), batch_size=2, seed=0, num_workers=2, multiprocessing_context="{method}")

def main():
    for number, batch in enumerate(loader):
        if number == 1:
            print("running", flush=True)
        if len(stop) == 3 and time.monotonic() - stop[-1] > 0.5:
            print("saved", loader.position == number + 1, flush=True)
            return

if __name__ == "__main__":
    main()
"""


@contextmanager
def started(tmp_path, text):
    """Start a script in a session of its own; whatever happens, all of it is gone at the end."""
    script = tmp_path / "train.py"
    script.write_text(text)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, script], start_new_session=True, env=environment, **pipes) as process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def children(process):
    return psutil.Process(process.pid).children(recursive=True)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_signal_to_the_whole_group_leaves_the_workers_alone(tmp_path, method):
    """Workers outlive signals to the whole group, until the main process has saved (KempnerForge#177)."""
    with started(tmp_path, TRAINING.format(method=method)) as process:
        assert process.stdout.readline() == "running\n"
        workers = children(process)
        assert len(workers) >= 2
        for number in (signal.SIGINT, signal.SIGUSR1, signal.SIGTERM):
            os.killpg(process.pid, number)
            time.sleep(0.1)
        # Only standard output: PyTorch itself may complain on the other one that a spawned worker, which still had
        # a batch to send, was aborted while the interpreter ended.
        output, errors = process.communicate(timeout=30)
        assert output == "saved True\n", errors
        assert process.returncode == 0
        _, alive = psutil.wait_procs(workers, timeout=10)
        assert not alive


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_the_workers_end_when_the_main_process_is_killed(tmp_path, method):
    """Workers whose main process is gone end by themselves, and a fork server with them."""
    with started(tmp_path, TRAINING.format(method=method)) as process:
        assert process.stdout.readline() == "running\n"
        workers = children(process)
        assert len(workers) >= 2
        process.kill()
        _, alive = psutil.wait_procs(workers, timeout=20)
        assert not alive


HANGING = """
import sys, time, torch
from samestep.data.loader import DataLoader

class Hanging(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        if index:
            time.sleep(1000)
        return index

if __name__ == "__main__":
    options = {{"num_workers": 1, "prefetch_factor": 2, "multiprocessing_context": "{method}"}}
    batches = iter(DataLoader(Hanging(), seed=0, **options))
    next(batches)
    time.sleep(0.5)
    print("running", flush=True)
"""


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_the_main_process_can_end_its_workers(tmp_path, method):
    """A worker that hangs ends on the SIGTERM of its own main process, when that one exits."""
    with started(tmp_path, HANGING.format(method=method)) as process:
        began = time.monotonic()
        output, errors = process.communicate(timeout=60)
        assert output == "running\n", errors
        assert process.returncode == 0
        assert time.monotonic() - began < 50, "the worker hangs for 1,000 s"


CHILDREN = """
import os, signal, subprocess, torch
from samestep.data.loader import DataLoader

class Starts(torch.utils.data.Dataset):
    def __len__(self):
        return 1

    def __getitem__(self, index):
        program = subprocess.Popen(["sleep", "1000"])
        program.terminate()
        by_program = program.wait(timeout=5)
        fork = os.fork()
        if fork == 0:
            signal.pause()
            os._exit(0)
        os.kill(fork, signal.SIGTERM)
        return by_program, os.WTERMSIG(os.waitpid(fork, 0)[1])

print(next(iter(DataLoader(Starts(), seed=0, num_workers=1, batch_size=None))), flush=True)
"""


def test_what_a_data_set_starts_can_be_ended(tmp_path):
    """Programs and forks that a worker starts do not inherit its shield: they end on SIGTERM."""
    with started(tmp_path, CHILDREN) as process:
        output, _ = process.communicate(timeout=60)
    assert output.splitlines()[-1] == f"[{-signal.SIGTERM}, {int(signal.SIGTERM)}]"


def test_a_fork_server_that_a_loader_has_started_holds_no_signals_back(tmp_path):
    """What others start later from the fork server that a loader's workers came from can be signalled."""
    script = tmp_path / "script.py"
    script.write_text("""
import multiprocessing, signal
from samestep import DataLoader

def tell():
    print(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())), flush=True)

if __name__ == "__main__":
    context = multiprocessing.get_context("forkserver")
    list(DataLoader([1, 2], seed=0, num_workers=1, multiprocessing_context=context))
    other = context.Process(target=tell)
    other.start()
    other.join()
""")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
