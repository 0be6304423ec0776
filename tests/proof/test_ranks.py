"""What a proof says of processes that train together: all of them are killed, and the one at fault is named."""

import sys

import pytest

from samestep.errors import SamestepError
from samestep.proof import telling
from samestep.proof.arms import Order
from samestep.proof.proving import Wishes, prove
from samestep.proof.recording import Settings

SOUND = """
import os

import torch
import torch.distributed as dist

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))
model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.Adam(model.parameters())
data = torch.randn(32, 4)
torch.manual_seed(rank)
sampler = torch.utils.data.DistributedSampler(data)
epoch = 0
if os.path.exists("last.pt"):
    saved = torch.load("last.pt")
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    epoch = saved["epoch"]
    torch.set_rng_state(saved["random"][rank])
for epoch in range(epoch, 3):
    sampler.set_epoch(epoch)
    for batch in torch.utils.data.DataLoader(data, 4, sampler=sampler):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    states = [None, None]
    dist.all_gather_object(states, torch.get_rng_state())
    if rank == 0:
        torch.save(
            {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "epoch": epoch + 1,
                "random": states,
            },
            "last.tmp",
        )
        os.replace("last.tmp", "last.pt")
"""
"""Two processes, 12 steps in 3 epochs, saved by rank 0 behind each."""

LOST_BY_RANK_1 = SOUND.replace("    torch.set_rng_state", "    if rank == 0:\n        torch.set_rng_state")
"""Dropout of the other process draws other numbers after a resume."""

OWN_FILES = SOUND.replace('torch.set_rng_state(saved["random"][rank])', 'torch.set_rng_state(torch.load(f"{rank}.pt"))')
OWN_FILES = OWN_FILES.replace("    states =", '    torch.save(torch.get_rng_state(), f"{rank}.pt")\n    states =')
"""Each process keeps its generator in a file of its own; they are not written all at once."""

RANKS = ["ranks", "train.py"]
"""Two processes, as torchrun starts them; it starts them anew when one fails."""


def test_ranks_that_restore_everything_are_proved(proved):
    """Two ranks that restore everything are proved, whichever is killed, and behind or before the first save."""
    found = proved(SOUND, at=["step:5@1", "step:2", "step:6+step:1@1"], command=RANKS, timeout=60)
    assert (found.verdict, found.control, found.ranks, found.steps) == ("proved", True, 2, 12)
    assert [each.verdict for each in found.trials] == ["proved"] * 3
    # The second process of the last one may be killed before its other rank has noted a step.
    assert [{*each.resumed_from} for each in found.trials] == [{4}, {0}, {4}]
    assert found.trials[0].as_json()["kill"]["words"] == "after step 5, rank 1"


def test_the_rank_that_loses_something_is_named(proved):
    """What only rank 1 loses is told of rank 1, although rank 0 is given other gradients in the same step."""
    found = proved(LOST_BY_RANK_1, at=["step:6"], command=RANKS, timeout=60).as_json()
    trial = found["trials"][0]
    assert (found["verdict"], trial["rank"]) == ("diverged", 1)
    first = trial["first_difference"]
    assert (first["rank"], first["step"], first["part"]) == (1, 4, "random.torch")
    assert any("step 4 of rank 1 on: random.torch first" in line for line in telling.lines(found))


def test_rank_0_is_named_too(proved):
    """What rank 0 loses is told of rank 0 in words, since there are others."""
    found = proved(
        LOST_BY_RANK_1.replace("rank == 0:\n        torch.set", "rank == 1:\n        torch.set"),
        at=["step:6"],
        command=RANKS,
        timeout=60,
    )
    assert found.trials[0].rank == 0
    assert any("step 4 of rank 0 on" in line for line in telling.lines(found.as_json()))


def test_all_from_scratch(proved):
    """Ranks that begin anew although one of them has written a checkpoint are found, and it is said of which step."""
    found = proved(SOUND.replace('os.path.exists("last.pt")', "False"), at=["step:6@1"], command=RANKS, timeout=60)
    assert found.trials[0].verdict == "from_scratch"
    assert "step 4 was complete" in found.reason


def test_the_moments_of_a_rank_are_its_own(proved):
    """A save of rank 1 is counted by the files that rank 1 writes."""
    found = proved(OWN_FILES, at=["save:2.1@1"], command=RANKS, timeout=60)
    assert found.trials[0].as_json()["kill"]["what"] == "before torch.save work/project/1.pt"
    assert found.trials[0].as_json()["kill"]["rank"] == 1


def test_ranks_that_are_cut(proved):
    """With `--steps` each rank ends by itself after so many steps, and what was made until then is compared."""
    found = proved(SOUND, at=["step:5@1"], command=RANKS, timeout=60, settings=Settings(steps=7))
    assert (found.verdict, found.steps, found.trials[0].compared) == ("proved", 7, 3)


@pytest.mark.parametrize("spec", ["step:5@2", "save:1@1"])
def test_no_such_moment(spec, proved):
    """A rank that is not there, or that saves nothing, is told in one sentence."""
    with pytest.raises(SamestepError, match="has no such") as raised:
        proved(SOUND, at=[spec], command=RANKS, timeout=60)
    assert spec.rpartition("@")[0] in str(raised.value)


# --- real launchers -------------------------------------------------------------------------------------


def launched(tmp_path, text, command, *, at, **files):
    """Prove a script with real processes."""
    project = tmp_path / "project"
    project.mkdir()
    for name, content in {"train": text, **files}.items():
        (project / f"{name}.py").write_text(content)
    return prove(Order(command, project, timeout=120), tmp_path / "arms", Wishes(at=at))


TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1", "train.py"]


@pytest.mark.slow
@pytest.mark.parametrize("at", ["step:5@1", "save:1"])
def test_torchrun_is_proved(tmp_path, at):
    """A training under torchrun that restores everything is proved, although torchrun would start it anew by itself."""
    found = launched(tmp_path, SOUND, TORCHRUN, at=[at])
    assert (found.verdict, found.ranks, found.control) == ("proved", 2, True)
    assert {len(each.steps) for each in found.trials} == {2}  # the killed processes, and those that were started again


@pytest.mark.slow
def test_torchrun_is_refuted(tmp_path):
    """Under torchrun what only rank 1 loses is told of rank 1, and what has failed is told in its own words."""
    found = launched(tmp_path, LOST_BY_RANK_1, TORCHRUN, at=["step:6"])
    assert (found.verdict, found.trials[0].rank) == ("diverged", 1)


@pytest.mark.slow
def test_a_rank_that_fails_is_quoted(tmp_path):
    """A rank that fails behind a resume is quoted, not torchrun's forty lines about it."""
    found = launched(
        tmp_path, SOUND.replace('saved["random"][rank]', 'saved["random"][2 * rank]'), TORCHRUN, at=["step:6"]
    )
    assert found.trials[0].verdict == "crashed"
    assert found.reason.endswith("IndexError: list index out of range")


LAUNCH = """
import subprocess
import sys
import tempfile

with tempfile.TemporaryDirectory() as place:
    ranks = [subprocess.Popen([sys.executable, "train.py", str(rank), place]) for rank in range(2)]
    sys.exit(max(each.wait() for each in ranks))
"""
"""Starts both processes with a number of their own as an argument, which is no variable of their environment."""


@pytest.mark.slow
def test_ranks_of_a_launcher_of_ones_own(tmp_path):
    """Ranks that a script starts and numbers by itself are told apart, and killed by their number."""
    begins = 'dist.init_process_group("gloo")'
    numbered = 'dist.init_process_group("gloo", f"file://{sys.argv[2]}/store", rank=int(sys.argv[1]), world_size=2)'
    text = SOUND.replace("import os", "import os\nimport sys").replace(begins, numbered)
    found = launched(tmp_path, text, [sys.executable, "launch.py"], at=["step:5@1"], launch=LAUNCH)
    assert (found.verdict, found.ranks) == ("proved", 2)
    assert found.trials[0].kills[0].rank == 1


@pytest.mark.slow
def test_a_shell_script_that_tries_again(tmp_path):
    """A shell script that starts its training until it succeeds is killed with it, and started again by the prover."""
    single = SOUND.replace(
        'dist.init_process_group("gloo")',
        'dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)',
    ).replace("[None, None]", "[None]")
    script = f"until {sys.executable} train.py; do sleep 0.1; done"
    found = launched(tmp_path, single, ["bash", "-c", script], at=["step:10", "save:1.1"])
    assert (found.verdict, found.ranks) == ("proved", 1)
    assert [len(each.steps) for each in found.trials] == [2, 2]
