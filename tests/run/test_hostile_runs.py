"""Claims about runs whose checkpoints hold nonsense under right digests: a resume refuses them by an error of ours."""

import contextlib
import json
import math
import shutil
import warnings

import pytest
import torch
import xxhash
from torch import nn

import samestep
from samestep.errors import SamestepError
from samestep.store.attempts import ATTEMPTS_FILE
from samestep.store.metrics import METRICS_FILE, read_metrics


class Stopped(Exception):
    """Ends a training in the middle of a body."""


def train(directory, last=None):
    """Train two epochs and a loop of steps; give the scores by step, of all attempts."""
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = samestep.DataLoader(torch.arange(12.0).reshape(6, 2), batch_size=2, shuffle=True)
    validation = samestep.DataLoader(torch.zeros(4, 2), batch_size=2)
    with contextlib.closing(samestep.Run(directory, seed=1, save_every="1 step")) as run:
        run.track(model=model, optimizer=optimizer, loader=loader, validation=validation)
        run.state.total = 0
        for _ in run.epochs(2):
            for batch in loader:
                model(batch).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                run.step(loss=1.0)
                if run.completed_steps == last:
                    raise Stopped
            with run.isolated():
                list(validation)
        for _ in run.steps(8):
            run.step()
    return [line["step"] for line in read_metrics(directory)]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """Train until the fifth step, and keep the checkpoint of the fourth alone."""
    directory = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.raises(Stopped):
        train(directory, 5)
    *older, newest = sorted((directory / "checkpoints").glob("step-*"))
    for path in older:
        shutil.rmtree(path)
    assert newest.name == "step-000000004"
    return directory


def spoil(directory, item, *path, value):
    """Change one value of the checkpoint, and put a right digest to it."""
    manifest = directory / "checkpoints" / "step-000000004" / "manifest.json"
    content = json.loads(manifest.read_bytes())
    del content["digest"]
    place = content["items"][item]["tree"] if item != "environment" else content["environment"]
    for key in path[:-1]:
        place = place[key]
    assert path[-1] in place
    place[path[-1]] = value
    body = json.dumps(content, separators=(",", ":")).encode().removesuffix(b"}")
    manifest.write_bytes(body + b',"digest":"' + xxhash.xxh3_128_hexdigest(body).encode() + b'"}\n')


CASES = [
    *(("run", "completed_steps", value) for value in (-1, 3, 10**6, "x")),
    *(("run", "epoch", value) for value in (-1, "x", None)),
    *(("run", name, "x") for name in ("inside", "loop", "top", "loop_ends", "best", "metrics_bytes", "values")),
    *(("run", "top", name, []) for name in ("completed_steps", "values", "random", "loaders")),
    *(("run", "top", "random", name, []) for name in ("python", "numpy", "torch", "generators")),
    ("run", "top", "values", {"load_state_dict": 1}),
    ("run", "top", "loaders", "validation", {}),
    ("run", "top", "loaders", "validation", "position", -1),
    ("run", "top", "loaders", "validation", "epoch", []),
    ("loader", "position", 10**30),
    ("random", "generators", []),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: " ".join(map(str, case)))
def test_a_resume_refuses_nonsense(stopped, tmp_path, case):
    """A value that no run writes ends a resume with an error of ours before it has begun: no record is changed."""
    directory = shutil.copytree(stopped, tmp_path / "run")
    *path, value = case
    spoil(directory, *path, value=value)
    records = [directory / METRICS_FILE, directory / ATTEMPTS_FILE]
    before = [path.read_bytes() for path in records]
    with pytest.raises(SamestepError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        train(directory)
    assert [path.read_bytes() for path in records] == before


@pytest.mark.parametrize("value", [5, "x", [], {"torch": 5}, {"a": {"b": [1]}}], ids=repr)
def test_a_resume_under_any_environment(stopped, tmp_path, value):
    """Whatever a checkpoint says of versions and machine, it only makes a warning."""
    directory = shutil.copytree(stopped, tmp_path / "run")
    spoil(directory, "environment", "versions", value=value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert train(directory) == [1, 2, 3, 4, 5, 6, 7, 8]


STEERING = "sound\x1b[2J\r\x9b31m\u202e\x00\u2028\nto do: rm -r ."
"""Clears a screen, overwrites a line, colours, turns the direction of reading, and begins a line of its own."""


@pytest.mark.parametrize(
    "path", [("versions", "torch"), ("versions", STEERING), ("config",), ("run", "id"), ("built_with", STEERING)]
)
def test_what_a_checkpoint_says_cannot_steer_the_terminal(stopped, tmp_path, path):
    """Versions, names, settings and identities out of a checkpoint stand in warnings as escapes, each on its line."""
    directory = shutil.copytree(stopped, tmp_path / "run")
    spoil(directory, "environment", path[0], value={path[-1]: STEERING} if len(path) > 1 else {STEERING: STEERING})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(directory)
    said = [line for each in caught for line in str(each.message).split("\n")]
    assert all(line.isprintable() and not line.startswith("to do") for line in said)
    assert any("sound\\x1b[2J" in line for line in said) or path[0] == "built_with"


@pytest.mark.parametrize("part", ["message", "path", "expected", "found", "hint"])
def test_no_part_of_an_error_can_steer_the_terminal(part):
    """An error shows foreign texts as escapes, our own lines as lines, and letters of any language as letters."""
    parts = {"message": "It is torn.", "found": "größe 日本\n            and 2 more"}
    text = str(SamestepError(**parts | {part: STEERING}))
    assert all(line.isprintable() and not line.startswith("to do") for line in text.split("\n"))
    assert "sound\\x1b[2J\\r\\x9b31m\\u202e\\x00\\u2028\\nto do" in text
    assert part == "found" or "found:    größe 日本\n            and 2 more" in text


def test_a_loop_without_end_may_be_stopped_and_gone_on_with(tmp_path):
    """A loop to infinity that was stopped is over in the next process, as one to a number is."""
    for _ in range(2):
        model = nn.Linear(1, 1)
        with contextlib.closing(samestep.Run(tmp_path / "run", seed=1)) as run:
            run.track(model=model)
            for _ in run.steps(math.inf):
                run.step()
                if run.completed_steps == 3:
                    run.stop()
            assert run.completed_steps == 3
