"""Owns the comparison of a training that was killed and started again with the one that was left alone."""

import hashlib
import re
import shutil
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from forked import BEFORE, BEHIND, STEP, TORN

EXACT = Path(__file__).with_name("exact")


@dataclass(frozen=True)
class Training:
    """What one or several lives of a script have done.

    Args:
        lives: Per life its exit status, digests of its steps, and after how many of them it saved a checkpoint last.
        files: A digest of the content of each file that is left.
        moments: All moments in which the first life could be killed.
    """

    lives: tuple[tuple[int, tuple[str, ...], int], ...]
    files: dict[str, str]
    moments: tuple[tuple[str, int], ...] = ()


def train(run, script, place, kills=()):
    """Run a script until it is done: one life for each kill, and then without.

    Args:
        run: What `forker` gives.
        script: The script's text.
        place: An empty folder, in which the training gets one.
        kills: Moments, one for each of the first lives.
    """
    folder = place / "run"
    folder.mkdir(parents=True)
    (folder / "train.py").write_text(script)
    lives, moments, planned = [], (), list(kills)
    while True:
        kill = planned.pop(0) if planned else None
        done = run(folder, kill)
        steps = tuple(each["step"] for each in done["noted"] if "step" in each)
        lives.append((done["status"], steps, saved_after(done["noted"])))
        if not moments:
            moments = moments_of(done["noted"])
        if done["status"] != -9:
            break
    files = contents(folder)
    shutil.rmtree(place)
    return Training(tuple(lives), files, moments)


def saved_after(noted):
    """Count the steps in front of the last complete checkpoint; -1 if there is none."""
    steps, found = 0, -1
    for each in noted:
        steps += "step" in each
        if re.search(r"checkpoint.*\.pt$|step-\d{9}$", each.get("saved", "")):
            found = steps
    return found


def moments_of(noted):
    """Give all moments in which a life with these notes can be killed."""
    steps = sum("step" in each for each in noted)
    saves = [each["saved"] for each in noted if "saved" in each]
    renamed = sum("renamed" in each for each in noted)
    written = len(saves) - renamed
    torn = [(TORN, count) for count in range(written)]
    around = [(kind, count) for count in range(renamed) for kind in (BEFORE, BEHIND)]
    return (*((STEP, count) for count in range(steps)), *torn, *around)


def contents(folder):
    """Digest the files of a training: what lies in tensors, not how pickle has put it."""
    found = sorted(each for each in folder.rglob("*") if each.is_file() and each.name != "train.py")
    kept = [each for each in found if not re.search(r"(\.tmp|\.part|\.new|~)$", each.name)]
    return {each.relative_to(folder).as_posix(): digest(each) for each in kept if "runs/" not in str(each)}


def digest(path):
    """Digest a file by what it means."""
    whole = hashlib.sha256()
    if path.suffix == ".pt":
        import torch

        try:
            _feed(whole, torch.load(path, weights_only=False))
        except Exception as error:  # noqa: BLE001  (a torn file raises many kinds)
            whole.update(repr(type(error)).encode())
    else:
        whole.update(path.read_bytes())
    return whole.hexdigest()


def _feed(whole, value):
    import numpy as np
    import torch

    whole.update(type(value).__name__.encode())
    if isinstance(value, torch.Tensor):
        whole.update(f"{value.dtype}{tuple(value.shape)}".encode() + value.detach().contiguous().numpy().tobytes())
    elif isinstance(value, np.ndarray):
        whole.update(f"{value.dtype}{value.shape}".encode() + value.tobytes())
    elif isinstance(value, dict):
        for key, each in value.items():
            _feed(whole, key)
            _feed(whole, each)
    elif isinstance(value, list | tuple):
        for each in value:
            _feed(whole, each)
    else:
        whole.update(repr(value).encode())


def difference(reference, training):
    """Say how a training that was killed is not the one that was left alone; "" if it is."""
    expected = reference.lives[0][1]
    reached, saved = 0, 0
    for status, steps, saved_here in training.lives:
        if status not in {0, -9}:
            return "crashed"
        begin = _begin(expected, steps, reached)
        if steps and begin != saved:
            return _where(begin, saved)
        if expected[begin : begin + len(steps)] != steps:
            same = sum(1 for _ in _while_equal(expected[begin:], steps))
            more = "ran on" if begin + same >= len(expected) else "other parameters"
            return f"{more} at step {begin + same}"
        reached = max(reached, begin + len(steps))
        saved = begin + saved_here if saved_here >= 0 else saved
    if reached != len(expected):
        return f"ended after {reached} steps of {len(expected)}"
    return "" if training.files == reference.files else f"other files: {_other(reference.files, training.files)}"


def _begin(expected, steps, reached):
    return expected.index(steps[0]) if steps and steps[0] in expected else (reached if not steps else -1)


def _where(begin, saved):
    if begin < 0:
        return f"other parameters at once behind step {saved}"
    return "from scratch" if begin == 0 else f"went on at step {begin} and not at {saved}"


def _while_equal(left, right):
    for one, other in zip(left, right, strict=False):
        if one != other:
            return
        yield one


def _other(left, right):
    return ", ".join(sorted(name for name in {*left, *right} if left.get(name) != right.get(name)))


def undisturbed(exact, training):
    """Tell whether a training that was never killed is the exact one, whatever else its checkpoints hold."""
    results = [
        {name: each for name, each in one.files.items() if "checkpoint" not in name} for one in (exact, training)
    ]
    return exact.lives[0][1] == training.lives[0][1] and results[0] == results[1]


def chosen(moments, *, saves=False):
    """Give a few of the moments behind steps, or all those around and within saves; late ones first."""
    steps = [each for each in moments if each[0] == STEP]
    if saves:
        return [each for each in moments[::-1] if each[0] != STEP]
    places = (len(steps) * 7 // 8, len(steps) * 5 // 8, len(steps) * 3 // 8, len(steps) // 8)
    return [*(steps[each] for each in places), moments[-1]]


@cache
def text_of(name):
    """Read an exact script."""
    return (EXACT / f"{name}.py").read_text()
