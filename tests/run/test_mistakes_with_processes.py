"""Mistakes that take more than one process: two trainings of one run, workers that import the script again."""

import subprocess
import sys

import pytest
import torch
from test_loop import small, train

import samestep
from samestep import attempt
from samestep.errors import RunLocked, SamestepError

HOLDER = """
import sys
import samestep
run = samestep.Run(sys.argv[1])
print("ready", flush=True)
sys.stdin.read()
"""

SCRIPT = """
import torch
import samestep

run = samestep.Run("run", seed=0, save_every=1)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.rand(8, 3))
loader = samestep.DataLoader(data, batch_size=4, num_workers=1, multiprocessing_context="spawn")
run.track(model=model, optimizer=optimizer, loader=loader)
for epoch in run.epochs(1):
    for (x,) in loader:
        model(x).mean().backward()
        optimizer.step()
        run.step()
"""


def test_two_processes_in_one_directory(tmp_path, monkeypatch):
    """The second process is refused with the first one's number and command; when that ends, the run is free."""
    monkeypatch.setattr(attempt, "_LOCK_PATIENCE", 0.1)
    first = subprocess.Popen(
        [sys.executable, "-c", HOLDER, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert first.stdout.readline() == "ready\n"
        with pytest.raises(RunLocked, match="Another process is working on this run") as caught:
            samestep.Run(tmp_path)
        assert f"process {first.pid}" in caught.value.found
        assert "another directory" in caught.value.hint
    finally:
        first.communicate()
    run, _, update = small(tmp_path)
    assert train(run, update, 1) == [0]


def test_a_script_that_its_workers_import_again_is_told_so(tmp_path):
    """Without `if __name__ == "__main__"` a spawned worker says at once that it came to the Run, and what to do."""
    (tmp_path / "train.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 1
    assert "RunLocked: A worker process has come to the line that makes the Run" in done.stderr
    assert 'if __name__ == "__main__":' in done.stderr


class Doubled(torch.utils.data.Dataset):
    """Numbers through a function that only this process knows."""

    def __init__(self):
        self.change = lambda value: 2 * value

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return self.change(index)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.filterwarnings("ignore:Got pickle error:UserWarning")
def test_a_lambda_that_cannot_be_sent_to_workers_is_told(method):
    """A data set with a lambda under spawn is one message of ours that names the lambda, not one from inside pickle."""
    loader = samestep.DataLoader(Doubled(), num_workers=1, multiprocessing_context=method)
    with pytest.raises(SamestepError, match="workers cannot be started") as caught:
        next(iter(loader))
    assert "lambda" in caught.value.found
    assert 'multiprocessing_context="fork"' in caught.value.hint
    assert [int(each) for each in samestep.DataLoader(Doubled(), num_workers=1)] == [0, 2, 4, 6]


def test_a_data_set_that_raises_in_a_worker_is_the_users_own_error(tmp_path):
    """An error of the user's own data set goes through as it is, and a run goes on behind it once it is mended."""
    for stops in (True, False):
        run, _, update = small(tmp_path, save_every=1)
        loader = samestep.DataLoader(Raising(2 if stops else None), num_workers=1)
        run.track(loader=loader)
        given = []

        def epochs(given=given, run=run, loader=loader, update=update):
            for _ in run.epochs(1):
                for batch in loader:
                    given.append(int(batch))
                    run.step(loss=update())

        if stops:
            with pytest.raises(KeyError, match="item 2 is missing"):
                epochs()
        else:
            epochs()
            assert given == [2, 3]
        run.close()


class Raising(torch.utils.data.Dataset):
    """Numbers, one of which may be missing."""

    def __init__(self, missing):
        self.missing = missing

    def __len__(self):
        return 4

    def __getitem__(self, index):
        if index == self.missing:
            raise KeyError(f"item {index} is missing")
        return index
