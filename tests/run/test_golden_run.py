"""Runs that earlier versions have written: they go on."""

import datetime as dt
import json
import math
import shutil
from pathlib import Path

import pytest
import torch
from golden_run import train

from samestep.state.capture import capture
from samestep.store.store import Store

GOLDEN = Path(__file__).parent / "golden"


def bits(item):
    """Give an item as plain values: its tree, and each tensor's dtype, strides and bytes."""
    tensors = {
        name: (str(each.dtype), each.stride(), each.contiguous().reshape(-1).view(torch.uint8).tolist())
        for name, each in item.tensors.items()
    }
    return item.kind, json.dumps(item.tree), tensors


@pytest.mark.parametrize("version", sorted(path.name for path in GOLDEN.iterdir()))
@pytest.mark.filterwarnings("ignore:.*written under other conditions")
def test_a_run_that_was_begun_by_an_earlier_version_goes_on(version, tmp_path):
    """Model, optimizer, scheduler, average and values are restored bit for bit in mid-epoch, and the run ends."""
    shutil.copytree(GOLDEN / version, tmp_path / "run")
    saved = Store(GOLDEN / version / "checkpoints").latest()
    seen = []

    def look(run, objects):
        if not seen:
            items = saved.read().items
            assert {name: bits(item) for name, item in capture(objects).items()} == {
                name: bits(items[name]) for name in objects
            }
            assert (run.state.note["when"], run.state.note[3]) == (dt.date(2026, 11, 30), b"\0\xff")
            assert math.isnan(run.state.note["not a number"])
            lines = (GOLDEN / version / "metrics.jsonl").read_text().splitlines()
            assert run.state.losses == [json.loads(line)["loss"] for line in lines[:6]]
        seen.append(run.completed_steps)

    train(tmp_path / "run", look)
    assert seen == [6, 7, 8, 9, 10, 11]
    steps = [json.loads(line)["step"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(1, 13))
