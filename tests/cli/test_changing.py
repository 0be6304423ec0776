"""What prune deletes and export writes."""

import os
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from samestep.run import Run
from samestep.store.lock import RunLock
from samestep.store.retention import Keep
from samestep.store.store import Store


def names(run):
    return sorted(path.name for path in (run / "checkpoints").iterdir())


def test_dry_run_shows_what_prune_does(digits, samestep_json):
    """A dry run deletes nothing, and says exactly what the same command then deletes."""
    before = names(digits)
    _, shown = samestep_json("prune", digits, "--last", 1, "--best", 1, "--metric", "acc", "--dry-run")
    assert names(digits) == before
    status, done = samestep_json("prune", digits, "--last", 1, "--best", 1, "--metric", "acc")
    assert status == 0
    assert shown["deleted"] == done["deleted"] == ["step-000000100"]
    assert names(digits) == ["step-000000200", "step-000000300"]


def test_prune_says_why_the_others_stay(digits, samestep, samestep_json):
    """Every checkpoint that stays has its reasons."""
    _, found = samestep_json("prune", digits, "--last", 1, "--every", 200, "--dry-run")
    assert found["kept"] == [
        {"name": "step-000000200", "reasons": ["every 200 steps"]},
        {"name": "step-000000300", "reasons": ["newest", "last 1"]},
    ]
    _, out, _ = samestep("prune", digits, "--last", 1, "--dry-run")
    assert out.splitlines()[1].split()[:3] == ["step-000000100", "would", "go"]


def test_prune_waits_for_nobody(digits, samestep_json):
    """While a process works on the run, prune deletes nothing: status 2."""
    code = (
        "import sys, time\n"
        "from samestep.store.lock import RunLock\n"
        "RunLock(sys.argv[1]).acquire()\n"
        "print(1, flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, digits], stdout=subprocess.PIPE) as trainer:
        trainer.stdout.readline()
        status, found = samestep_json("prune", digits, "--last", 1)
        trainer.kill()
    assert (status, found["error"]["kind"]) == (2, "RunLocked")
    assert len([name for name in names(digits) if name.startswith("step-")]) == 3


def test_prune_keeps_the_only_sound_one(digits, samestep_json):
    """When nothing that would stay is sound, nothing is deleted: status 1."""
    path = digits / "checkpoints" / "step-000000300" / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    status, found = samestep_json("prune", digits, "--last", 1)
    assert (status, found["error"]["kind"]) == (1, "CorruptCheckpoint")
    assert len(names(digits)) == 3


def test_prune_never_deletes_the_newest_sound_one(tmp_path, samestep_json):
    """With the newest damaged, what a policy would keep besides is older than what it would delete: nothing goes."""
    run = Run(tmp_path / "run", save_every=1, keep=Keep(last=9))
    run.track(model=torch.nn.Linear(1, 1))
    for step in run.steps(4):
        run.step()
        run.score(acc=-step)
    run.close()
    path = tmp_path / "run" / "checkpoints" / "step-000000004" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    status, found = samestep_json("prune", tmp_path / "run", "--last", 1, "--best", 1, "--metric", "acc")
    assert (status, found["error"]["found"]) == (1, "step-000000003")
    assert len(names(tmp_path / "run")) == 4


def test_prune_gives_the_lock_back(digits, samestep_json):
    """After prune the run can be worked on."""
    samestep_json("prune", digits, "--last", 2)
    with RunLock(digits) as lock:
        assert lock.is_held


@pytest.mark.parametrize("has_lock", [False, True])
def test_prune_leaves_nothing_that_was_not_there(digits, samestep_json, has_lock):
    """The lock file that prune needs goes with it, also from a refused prune, unless it was there before."""
    folder = digits / "checkpoints"
    if has_lock:
        (folder / ".lock").touch()
    before = {path.name for path in folder.iterdir()}
    for last, gone in ((2, {"step-000000100"}), (2, set()), (0, set())):
        samestep_json("prune", folder, "--last", last)
        before -= gone
        assert {path.name for path in folder.iterdir()} == before


def test_export_keeps_names_and_bits(digits, tmp_path, samestep_json):
    """Both kinds of file hold the model's tensors under their names, tied ones included, and nothing else."""
    status, found = samestep_json("export", f"{digits}@200", "--out", tmp_path / "model.safetensors")
    assert (status, found["omitted"]) == (0, [])
    samestep_json("export", f"{digits}@200", "--out", tmp_path / "model.pt")
    plain = torch.load(tmp_path / "model.pt", weights_only=True)
    tensors = load_file(tmp_path / "model.safetensors")
    expected = load_file(digits / "checkpoints" / "step-000000200" / "model.safetensors")
    assert set(plain) == set(tensors) == {*expected, "tied"}
    assert all(torch.equal(plain[name], tensors[name]) for name in plain)
    assert all(torch.equal(plain[name], expected[name]) for name in expected)
    assert plain["tied"].data_ptr() == plain["layers.0.weight"].data_ptr()
    assert sorted(path.name for path in tmp_path.glob("*.*")) == ["model.pt", "model.safetensors"]


def test_export_replaces_only_by_force(digits, tmp_path, samestep_json):
    """An existing file stays as it is, unless --force is given."""
    out = tmp_path / "model.pt"
    out.write_bytes(b"precious")
    status, found = samestep_json("export", digits, "--out", out)
    assert status == 2
    assert "exists" in found["error"]["message"]
    assert out.read_bytes() == b"precious"
    assert samestep_json("export", digits, "--out", out, "--force")[0] == 0
    assert "tied" in torch.load(out, weights_only=True)


def test_export_of_damaged_weights_fails(digits, tmp_path, samestep_json):
    """A flipped bit in the weights is status 1, and no file is left."""
    path = digits / "checkpoints" / "step-000000300" / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    status, found = samestep_json("export", digits, "--out", tmp_path / "model.pt")
    assert (status, found["error"]["kind"]) == (1, "CorruptCheckpoint")
    assert not list(tmp_path.glob("*model*"))


def test_export_of_what_is_no_model(digits, tmp_path, samestep_json):
    """An item without tensors by name, a missing one and an unknown kind of file are refused."""
    for words in (
        ("--item", "scheduler", "--out", tmp_path / "a.pt"),
        ("--item", "nothing", "--out", tmp_path / "a.pt"),
        ("--out", tmp_path / "a.onnx"),
        ("--out", tmp_path / "none" / "a.pt"),
    ):
        status, found = samestep_json("export", digits, *words)
        assert status == 2
        assert found["error"]["message"]


class Tied(torch.nn.Module):
    """A model with tied weights, buffers and channels_last weights."""

    def __init__(self):
        super().__init__()
        self.convolution = torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        self.norm = torch.nn.BatchNorm2d(4)
        self.embedding = torch.nn.Embedding(5, 4)
        self.head = torch.nn.Linear(4, 5, bias=False)
        self.head.weight = self.embedding.weight


def test_exported_weights_load_into_the_model(tmp_path, samestep_json):
    """What is exported from a real model loads strictly into the same model, bit for bit."""
    model = Tied()
    Store(tmp_path / "store").save({"model": model}, step=1)
    for name in ("model.safetensors", "model.pt"):
        assert samestep_json("export", tmp_path / "store", "--out", tmp_path / name)[0] == 0
    for state in (load_file(tmp_path / "model.safetensors"), torch.load(tmp_path / "model.pt", weights_only=True)):
        fresh = Tied()
        fresh.load_state_dict(state)
        assert all(torch.equal(value, fresh.state_dict()[name]) for name, value in model.state_dict().items())


def test_prune_without_options_follows_the_runs_own_policy(tmp_path, samestep_json):
    """Plain prune keeps what the run's Keep keeps, the best by its score too; a run without one is refused."""
    run = Run(tmp_path / "run", save_every=1, keep=Keep(last=1, best=1, metric="acc"))
    run.track(model=torch.nn.Linear(1, 1))
    for step in run.steps(5):
        run.step()
        run.score(acc=[0.1, 0.9, 0.3, 0.2, 0.1][step])
    run.close()
    status, done = samestep_json("prune", tmp_path / "run")
    assert status == 0
    assert done["deleted"] == []
    assert [each["name"] for each in done["kept"]] == ["step-000000002", "step-000000005"]
    Store(tmp_path / "plain").save({"model": torch.nn.Linear(1, 1)}, step=1)
    status, found = samestep_json("prune", tmp_path / "plain")
    assert status == 2
    assert "do not say" in found["error"]["message"]


def test_an_export_that_cannot_be_written_is_one_message(digits, samestep_json, monkeypatch):
    """What the disk refuses while a file is exported is one message of status 2, not a defect."""

    def refuse(*_):
        raise RuntimeError("No space left on device (os error 28)")

    monkeypatch.setattr("safetensors.torch.save_file", refuse)
    status, found = samestep_json("export", digits, "--out", digits / "out.safetensors")
    assert status == 2
    assert found["error"]["message"] == "The file cannot be written."


def test_ls_says_what_the_last_process_did(tmp_path, samestep, samestep_json):
    """Ls names the last attempt: process, where it began, and whether it finished, was killed or is running."""
    run = Run(tmp_path / "run", save_every=1)
    run.track(model=torch.nn.Linear(1, 1))
    for _ in run.steps(2):
        run.step()
    run.close()
    _, out, _ = samestep("ls", tmp_path / "run")
    assert f"process {os.getpid()}" in out
    assert "finished at step 2" in out
    assert samestep_json("ls", tmp_path / "run")[1]["attempts"][0]["how"] == "finished"
