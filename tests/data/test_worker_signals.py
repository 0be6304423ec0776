import os
import signal
import subprocess
import sys
import time

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


def start(tmp_path, text, **options):
    script = tmp_path / "train.py"
    script.write_text(text)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen([sys.executable, script], start_new_session=True, env=environment, **pipes, **options)


def children(process):
    return psutil.Process(process.pid).children(recursive=True)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_signal_to_the_whole_group_leaves_the_workers_alone(tmp_path, method):
    """Workers outlive signals to the whole group, until the main process has saved (KempnerForge#177)."""
    process = start(tmp_path, TRAINING.format(method=method))
    assert process.stdout.readline() == "running\n"
    workers = children(process)
    assert len(workers) >= 2
    for number in (signal.SIGINT, signal.SIGUSR1, signal.SIGTERM):
        os.killpg(process.pid, number)
        time.sleep(0.1)
    output, _ = process.communicate(timeout=30)
    assert output == "saved True\n"
    assert process.returncode == 0
    _, alive = psutil.wait_procs(workers, timeout=10)
    assert not alive


def test_the_workers_end_when_the_main_process_is_killed(tmp_path):
    """Workers whose main process is gone end by themselves."""
    process = start(tmp_path, TRAINING.format(method="fork"))
    assert process.stdout.readline() == "running\n"
    workers = children(process)
    assert len(workers) == 2
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

batches = iter(DataLoader(Hanging(), seed=0, num_workers=1, prefetch_factor=2))
next(batches)
time.sleep(0.5)
print("running", flush=True)
"""


def test_the_main_process_can_end_its_workers(tmp_path):
    """A worker that hangs ends on the SIGTERM of its own main process, when that one exits."""
    process = start(tmp_path, HANGING)
    began = time.monotonic()
    output, _ = process.communicate(timeout=30)
    assert output == "running\n"
    assert process.returncode == 0
    assert time.monotonic() - began < 25


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
    output, _ = start(tmp_path, CHILDREN).communicate(timeout=30)
    assert output.splitlines()[-1] == f"[{-signal.SIGTERM}, {int(signal.SIGTERM)}]"
