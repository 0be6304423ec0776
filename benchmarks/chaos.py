"""Has a foreign harness, ckpt-chaos, kill trainings at their file events: ours, and one that saves by `torch.save`.

How to run it: `make chaos`, which installs the harness in a virtual environment of its own. The harness counts what
Python does to files (opening for writing, renaming, removing, making folders), kills the process at each of these
events by `os._exit`, runs the same command again, and compares what the training ends with, byte by byte, with an
uninterrupted one; and whether it went on from the newest checkpoint that was complete. It tears files, or takes back
what was not synchronised, only where Python's own `open` or `torch.save` writes them, and the store calls the system
directly; so our training is run a second time with an adapter that gives the store files of Python's `open`.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import torch
from torch import nn

import samestep
import samestep.logbook
from samestep.store import files
from samestep.store.attempts import read_attempts

EPOCHS = 3
_VERDICT = re.compile(r"  (PASS|LOST_WORK|SILENT_DIVERGENCE|HARD_FAIL|CONTROL_FAIL|\(todo\))")
TRAININGS = {
    # name: (modes of the harness, whether it must pass everywhere)
    "samestep": ("before", True),
    "samestep-through-open": ("torn,unsynced", True),
    "torch-save": ("before,torn", False),
}


class ThroughOpen(files.System):
    """The operating system, by Python's `open`, which the harness can tear and knows to be unsynchronised."""

    def __init__(self) -> None:
        self._open: dict[int, object] = {}

    def open(self, path: Path, flags: int) -> int:
        """Open new files, and those that are appended to, by Python."""
        if not flags & os.O_WRONLY:
            return super().open(path, flags)
        mode = "ab" if flags & os.O_APPEND else "xb"
        file = open(path, mode, buffering=0)  # noqa: SIM115, PTH123  # closed below, by the descriptor
        self._open[file.fileno()] = file
        return file.fileno()

    def close(self, descriptor: int) -> None:
        """Close what was opened, where it was opened."""
        file = self._open.pop(descriptor, None)
        super().close(descriptor) if file is None else file.close()


class Momentum:
    """SGD with momentum, by hand: importing torch's optimizers takes longer than this training."""

    def __init__(self, model: nn.Module) -> None:
        self.parameters = dict(model.named_parameters())
        self.velocity = {name: torch.zeros_like(each) for name, each in self.parameters.items()}

    @torch.no_grad()
    def step(self) -> None:
        """Update the parameters and drop their gradients."""
        for name, parameter in self.parameters.items():
            self.velocity[name].mul_(0.9).add_(parameter.grad)
            parameter.sub_(self.velocity[name], alpha=0.1)
            parameter.grad = None

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the velocities by the parameters' names."""
        return self.velocity

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Take over what `state_dict` gave."""
        for name, velocity in state.items():
            self.velocity[name].copy_(velocity)


def build() -> tuple[nn.Module, Momentum]:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1))
    return model, Momentum(model)


def update(model: nn.Module, momentum: Momentum, x: torch.Tensor) -> torch.Tensor:
    loss = (model(x + 0.1 * torch.randn(x.shape)) - x.sum(1, keepdim=True)).square().mean()
    loss.backward()
    momentum.step()
    return loss.detach()


def train_with_samestep(out: Path) -> None:
    """Train as our users do; keep all checkpoints, as the harness asks for."""
    run = samestep.Run(out / "run", seed=0, save_every="1 epoch", keep=samestep.Keep(last=EPOCHS))
    model, momentum = build()
    loader = samestep.DataLoader(torch.eye(8), batch_size=4, shuffle=True)
    run.track(model=model, momentum=momentum, loader=loader)
    for _ in run.epochs(EPOCHS):
        for x in loader:
            run.step(loss=update(model, momentum, x))
    run.close()
    resumed_from = read_attempts(out / "run")[-1]["resumed_from"]
    print(f"resumed from step {0 if resumed_from is None else samestep.Store(out / 'run').find(resumed_from).step}")
    write_end(out, model, momentum)


def train_with_torch_save(out: Path) -> None:
    """Train as many scripts do: everything that decides the next step in one file, written over the last one."""
    torch.manual_seed(0)
    model, momentum = build()
    out.mkdir(parents=True, exist_ok=True)
    path, begin = out / "ckpt.pt", 0
    if path.exists():
        saved = torch.load(path)
        begin = saved["epoch"]
        model.load_state_dict(saved["model"])
        momentum.load_state_dict(saved["momentum"])
        torch.set_rng_state(saved["random"])
    print(f"resumed from step {2 * begin}")
    for epoch in range(begin, EPOCHS):
        for x in torch.eye(8)[torch.randperm(8)].split(4):
            update(model, momentum, x)
        state = {"model": model.state_dict(), "momentum": momentum.state_dict(), "random": torch.get_rng_state()}
        torch.save(state | {"epoch": epoch + 1}, path)
    write_end(out, model, momentum)


def write_end(out: Path, model: nn.Module, momentum: Momentum) -> None:
    """Write down, for the harness to compare, all that the training has ended with."""
    tensors = [*model.state_dict().values(), *momentum.state_dict().values(), torch.get_rng_state()]
    (out / "end.json").write_text(json.dumps([each.tolist() for each in tensors]))


# --- the harness ---------------------------------------------------------------------------------------


def kill(harness: Path, name: str, work: Path) -> Counter[str]:
    """Have the harness kill one training at its file events; count its verdicts."""
    modes, _ = TRAININGS[name]
    contract = [] if name == "torch-save" else ["--checkpoint-glob", "{out}/run/checkpoints/step-*"]
    command = [sys.executable, __file__, "--train", name, "--out", "{out}"]
    options = ["--modes", modes, "--max-points", "1000", "--work", str(work), "--result-file", "{out}/end.json"]
    options += ["--step-regex", r"resumed from step (\d+)", "--jobs", "2", *contract]
    subprocess.run([harness, "run", *options, "--", *command], check=False)
    results = [json.loads(path.read_text()) for path in sorted(work.glob("pt_*/result.json"))]
    # Drafts have names of chance, so at those the harness cannot see that it killed where it meant to.
    missed = [each["label"] for each in results if "point" in each and not each["crashed"]]
    missed += [each["label"] for each in results if each["drift"] and ":.tmp-" not in each["label"]]
    if missed:
        raise SystemExit(f"the harness did not kill where it meant to: {missed}")
    return Counter(judged(harness, work))


def judged(harness: Path, work: Path) -> list[str]:
    """Read the verdicts that the harness gives on the killed processes, without its control."""
    table = subprocess.run([harness, "judge", work], capture_output=True, text=True, check=False).stdout
    # A line may end with a remark behind its verdict: that a draft has another name than in the run without a kill.
    return [_VERDICT.findall(line)[-1] for line in table.splitlines() if line.startswith("#")]


def main() -> None:
    """Train, or have all trainings killed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--harness", type=Path, help="the command ckpt-chaos")
    parser.add_argument("--train", choices=TRAININGS)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if arguments.train is None:
        report(arguments.harness)
        return
    torch.set_num_threads(1)
    samestep.logbook._FLUSH_EVERY = -1.0  # noqa: SLF001  # the events must not depend on how long a step takes
    if arguments.train == "samestep-through-open":
        files.system = ThroughOpen()
    (train_with_torch_save if arguments.train == "torch-save" else train_with_samestep)(arguments.out)


def report(harness: Path) -> None:
    """Kill all trainings and print one line for each; fail if ours fails, or if the other one never does."""
    lines, as_meant = [], True
    for name, (modes, must_pass) in TRAININGS.items():
        with tempfile.TemporaryDirectory() as work:
            verdicts = kill(harness, name, Path(work) / "work")
        as_meant = as_meant and (set(verdicts) == {"PASS"}) is must_pass
        counts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items()))
        lines.append(f"{name} ({modes}): {verdicts.total()} kill points: {counts}")
    print("\n".join(lines))
    sys.exit(0 if as_meant else 1)


if __name__ == "__main__":
    main()
