import json
import math
import os
import subprocess
import sys
import weakref
from pathlib import Path

import pytest
import torch

from samestep.errors import SamestepError, UnsupportedValue
from samestep.store.attempts import ATTEMPTS_FILE, Attempt, command_line, read_attempts
from samestep.store.folder import RUN_FILE
from samestep.store.json_lines import plain
from samestep.store.metrics import METRICS_FILE, Metrics, read_metrics
from samestep.store.records import Difference, open_run, read_run


def strict(raw):
    """Read JSON as a strict reader does: no NaN, no Infinity."""

    def refuse(name):
        raise ValueError(name)

    return [json.loads(line, parse_constant=refuse) for line in raw.splitlines()]


# --- run.json ---


def test_run_is_written_once(tmp_path):
    """run.json keeps its bytes when the run is opened again, also with another configuration."""
    open_run(tmp_path, {"lr": 0.1}, version="0.1.0")
    before = (tmp_path / RUN_FILE).read_bytes()
    open_run(tmp_path, {"lr": 0.2}, version="9.9.9")
    assert (tmp_path / RUN_FILE).read_bytes() == before
    assert read_run(tmp_path).samestep == "0.1.0"


def test_runs_have_different_ids(tmp_path):
    """Two runs of one configuration have different ids, drawn without the training's random numbers."""
    state = torch.get_rng_state()
    ids = set()
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        ids.add(open_run(tmp_path / name, {}, version="0.1.0").id)
    assert len(ids) == 2
    assert torch.equal(state, torch.get_rng_state())


def test_changed_configuration_is_told(tmp_path):
    """Every changed, added and removed value of the configuration is named by its path; 1 and 1.0 differ."""
    open_run(tmp_path, {"lr": 0.1, "opt": {"betas": (0.9, 0.99), "n": [1]}, "gone": 1}, version="0.1.0")
    again = open_run(tmp_path, {"lr": 0.1, "opt": {"betas": (0.9, 0.95), "n": [1.0]}, "new": 5}, version="0.1.0")
    assert again.differences == (
        Difference("config.gone", 1, None),
        Difference("config.new", None, 5),
        Difference("config.opt.betas", [0.9, 0.99], [0.9, 0.95]),
        Difference("config.opt.n", [1], [1.0]),
    )


def test_equal_configuration_has_no_difference(tmp_path):
    """NaN, tuples, paths and numbers of NumPy and torch compare equal after the way through the file."""
    config = {"nan": math.nan, "shape": (1, 2), "path": Path("x"), "n": torch.tensor(3), "big": 10**30}
    assert open_run(tmp_path, config, version="0.1.0").differences == ()
    assert open_run(tmp_path, config, version="0.1.0").differences == ()
    assert open_run(tmp_path, None, version="0.1.0").differences == ()
    strict((tmp_path / RUN_FILE).read_bytes())


def test_unsupported_configuration_is_named(tmp_path):
    """A value that JSON cannot express is refused by its path, and no run is made."""
    with pytest.raises(UnsupportedValue) as caught:
        open_run(tmp_path, {"model": {"layers": [1, print]}}, version="0.1.0")
    assert caught.value.path == "config.model.layers[1]"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b"\xff\xfe", b"null"])
def test_damaged_run_record_is_named(tmp_path, content):
    """A damaged run.json is an error that names the file, never a new identity."""
    (tmp_path / RUN_FILE).write_bytes(content)
    with pytest.raises(SamestepError, match="damaged") as caught:
        open_run(tmp_path, {}, version="0.1.0")
    assert caught.value.path == str(tmp_path / RUN_FILE)
    assert (tmp_path / RUN_FILE).read_bytes() == content


# --- attempts.jsonl ---


def test_attempt_tells_who_works(tmp_path):
    """An attempt's line holds host, process, command, what the caller knows, and no end yet."""
    Attempt.begin(tmp_path, {"versions": {"torch": "2.13.0"}, "pid": "not this"}, resumed_from="step-4")
    (line,) = strict((tmp_path / ATTEMPTS_FILE).read_bytes())
    assert line["attempt"] == 1
    assert line["pid"] == os.getpid()
    assert line["host"] == os.uname().nodename
    assert line["versions"] == {"torch": "2.13.0"}
    assert line["resumed_from"] == "step-4"
    assert line["ended"] is line["how"] is line["steps"] is None


def test_killed_attempt_is_marked_by_the_next(tmp_path):
    """A process killed with SIGKILL leaves its end open, and the next attempt writes "killed" for it."""
    code = (
        "import os, sys\n"
        "from samestep.store.attempts import Attempt\n"
        "attempt = Attempt.begin(sys.argv[1], {})\n"
        "attempt.update(steps=7)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    killed = subprocess.run([sys.executable, "-c", code, tmp_path], check=False)
    assert killed.returncode == -9
    assert read_attempts(tmp_path)[0]["how"] is None
    second = Attempt.begin(tmp_path, {})
    second.end("finished", steps=12)
    assert [(line["attempt"], line["how"], line["steps"]) for line in read_attempts(tmp_path)] == [
        (1, "killed", 7),
        (2, "finished", 12),
    ]


def test_ended_attempts_stay_as_they_are(tmp_path):
    """The end of an earlier attempt is never rewritten."""
    Attempt.begin(tmp_path, {}).end("signal 15", steps=3)
    first = (tmp_path / ATTEMPTS_FILE).read_bytes()
    Attempt.begin(tmp_path, {})
    assert (tmp_path / ATTEMPTS_FILE).read_bytes().startswith(first)


def test_lines_of_others_keep_their_bytes(tmp_path):
    """Starting and ending an attempt copies the lines of closed ones as they are, also reformatted or sorted ones."""
    for _ in range(3):
        Attempt.begin(tmp_path, {"note": "\u2028 \r"})
    path = tmp_path / ATTEMPTS_FILE
    first, second, third = path.read_bytes().splitlines(keepends=True)
    first = json.dumps(json.loads(first), separators=(",", ":"), sort_keys=True).encode() + b"\n"
    path.write_bytes(first + second + third)
    attempt = Attempt.begin(tmp_path, {})
    attempt.end("finished", steps=3)
    lines = path.read_bytes().splitlines(keepends=True)
    assert lines[:2] == [first, second]
    assert json.loads(lines[2]) == json.loads(third) | {"how": "killed"}
    assert [line["attempt"] for line in read_attempts(tmp_path)] == [1, 2, 3, 4]


@pytest.mark.parametrize("torn", [b'{"attempt": 2, "sta', b"\x00\x00\x00", b'{"attempt": "x"}'])
def test_torn_last_line_is_repaired(tmp_path, torn):
    """What a dying machine left behind the last whole line is passed over, and gone after the next attempt."""
    Attempt.begin(tmp_path, {}).end("finished", steps=1)
    with (tmp_path / ATTEMPTS_FILE).open("ab") as file:
        file.write(torn)
    assert len(read_attempts(tmp_path)) == 1
    assert Attempt.begin(tmp_path, {}).number == 2
    assert [line["attempt"] for line in strict((tmp_path / ATTEMPTS_FILE).read_bytes())] == [1, 2]


@pytest.mark.parametrize("damaged", [b"[1]", b'{"attempt": "x"}', b'{"bttempt": 1, "how": null}', b"\xff", b""])
def test_a_damaged_attempt_stays_as_it_is(tmp_path, damaged):
    """A line that cannot be read is passed over by readers, and later attempts neither lose nor change it."""
    Attempt.begin(tmp_path, {}).end("finished", steps=1)
    Attempt.begin(tmp_path, {}).end("finished", steps=2)
    path = tmp_path / ATTEMPTS_FILE
    path.write_bytes(damaged + b"\n" + path.read_bytes().partition(b"\n")[2])
    assert [line["attempt"] for line in read_attempts(tmp_path)] == [2]
    third = Attempt.begin(tmp_path, {})
    third.end("finished", steps=3)
    assert path.read_bytes().startswith(damaged + b"\n")
    assert [(line["attempt"], line["how"]) for line in read_attempts(tmp_path)] == [(2, "finished"), (3, "finished")]


def test_command_line_survives_foreign_bytes(tmp_path):
    """An argument that is no UTF-8 is written as JSON and read back the same."""
    code = "import sys\nfrom samestep.store.attempts import Attempt\nAttempt.begin(sys.argv[1], {})"
    subprocess.run([sys.executable, "-c", code, tmp_path, b"\xff a"], check=True)
    assert "\udcff a" in read_attempts(tmp_path)[0]["command"]
    assert command_line()


# --- metrics.jsonl ---


def written(directory, *steps):
    metrics = Metrics(directory)
    for step in steps:
        metrics.append({"step": step, "loss": 1 / (step + 1)})
    metrics.flush()
    return metrics


def steps_of(directory):
    return [line["step"] for line in read_metrics(directory)]


def test_lines_come_back_exactly(tmp_path):
    """Floats come back with the same bits; NaN and infinities are strings that float() reads."""
    values = [0.1, 1e-308, 5e-324, 1.7976931348623157e308, -0.0, float(torch.tensor(0.1))]
    metrics = Metrics(tmp_path)
    metrics.append({"values": values, "odd": [math.nan, math.inf, -math.inf]})
    metrics.flush()
    (line,) = strict((tmp_path / METRICS_FILE).read_bytes())
    assert [value.hex() for value in line["values"]] == [value.hex() for value in values]
    assert [float(text) for text in line["odd"]][1:] == [math.inf, -math.inf]
    assert math.isnan(float(line["odd"][0]))


def test_tensors_are_taken_as_they_are_now(tmp_path):
    """A tensor is written with the value it had when it was given, and its graph is not kept alive."""
    weight = torch.ones((), requires_grad=True)
    loss, alive = weight * 2, weakref.ref(weight)
    metrics = Metrics(tmp_path)
    metrics.append({"step": 1, "loss": loss, "score": {"acc": loss}})
    loss.detach().add_(1)
    del loss, weight
    assert alive() is None
    metrics.flush()
    assert read_metrics(tmp_path) == [{"step": 1, "loss": 2.0, "score": {"acc": 2.0}}]


def test_bad_line_is_named_and_dropped(tmp_path):
    """A line that JSON cannot express is refused where it is reported, by its path, and does not block the others."""
    metrics = Metrics(tmp_path)
    metrics.append({"step": 1})
    for value in (torch.ones(2), object(), {"inner": [torch.ones(0)]}):
        with pytest.raises(UnsupportedValue) as caught:
            metrics.append({"step": value})
        assert caught.value.path.startswith("metrics.step")
    metrics.append({"step": torch.full((1,), 3)})
    metrics.flush()
    assert steps_of(tmp_path) == [1, 3]


def test_resume_cuts_back(tmp_path):
    """After a resume at step 2 the lines of later steps are gone, and no step stands in the file twice."""
    metrics = written(tmp_path, 1, 2)
    position = metrics.position()
    written(tmp_path, 3, 4)
    resumed = Metrics(tmp_path)
    resumed.cut(position, step=2)
    for step in (3, 4, 5):
        resumed.append({"step": step})
    resumed.sync()
    assert steps_of(tmp_path) == [1, 2, 3, 4, 5]


def test_position_tells_a_score_before_from_one_after_the_checkpoint(tmp_path):
    """A score of the resumed step stays if it was reported before the checkpoint, and goes if it was after it."""
    metrics = written(tmp_path, 1)
    metrics.append({"step": 1, "score": {"acc": 0.5}})
    position = metrics.position()
    metrics.append({"step": 1, "score": {"acc": 0.6}})
    metrics.flush()
    Metrics(tmp_path).cut(position, step=1)
    assert read_metrics(tmp_path)[1:] == [{"step": 1, "score": {"acc": 0.5}}]


@pytest.mark.parametrize("position", [None, 10**6, 5])
def test_cut_without_a_usable_position(tmp_path, position):
    """When the position does not fit the file, lines are kept by their steps instead."""
    written(tmp_path, 1, 2, 3, 4)
    Metrics(tmp_path).cut(position, step=2)
    assert steps_of(tmp_path) == [1, 2]


def test_cut_drops_what_waits(tmp_path):
    """Lines that were not written yet belong to the abandoned steps and are dropped."""
    metrics = written(tmp_path, 1)
    metrics.append({"step": 2})
    metrics.cut(metrics.path.stat().st_size, step=1)
    metrics.flush()
    assert steps_of(tmp_path) == [1]


def test_cut_of_nothing(tmp_path):
    """A missing file is fine, and none is made."""
    Metrics(tmp_path).cut(100, step=4)
    Metrics(tmp_path).sync()
    assert Metrics(tmp_path).position() == 0
    assert not list(tmp_path.iterdir())


def test_cut_to_the_start(tmp_path):
    """A run that starts anew cuts everything."""
    written(tmp_path, 1, 2)
    Metrics(tmp_path).cut(0, step=0)
    assert steps_of(tmp_path) == []


@pytest.mark.parametrize("torn", [b'{"step": 3, "lo', b'{"step": 1}', b"\x00\x00"])
def test_torn_line_is_repaired(tmp_path, torn):
    """The torn line of a killed writer is passed over by readers and never glued to the next line."""
    written(tmp_path, 1, 2)
    with (tmp_path / METRICS_FILE).open("ab") as file:
        file.write(torn)
    written(tmp_path, 3)
    assert steps_of(tmp_path) == [1, 2, 3]
    with (tmp_path / METRICS_FILE).open("ab") as file:
        file.write(torn)
    Metrics(tmp_path).cut(None, step=2)
    assert strict((tmp_path / METRICS_FILE).read_bytes())[-1]["step"] == 2


@pytest.mark.parametrize("torn", [0, 1, 100_000, 200_000])
def test_the_end_of_a_long_file_is_found_from_the_back(tmp_path, torn):
    """Behind long lines, and a torn one longer than what is read at once, the next line goes to the right place."""
    metrics = Metrics(tmp_path)
    metrics.append({"step": 1, "text": "x" * 150_000})
    metrics.flush()
    with metrics.path.open("ab") as file:
        file.write(b"y" * torn)
    later = Metrics(tmp_path)
    later.append({"step": 2})
    later.flush()
    assert [line["step"] for line in map(json.loads, metrics.path.read_bytes().splitlines())] == [1, 2]


def test_an_unknown_position_takes_no_line_of_an_earlier_step(tmp_path):
    """Without a position, as when the file could not be written, a cut keeps all lines up to the step."""
    metrics = Metrics(tmp_path)
    for step in (1, 2, 3):
        metrics.append({"step": step})
    metrics.flush()
    assert Metrics(tmp_path).cut(None, step=2) == 0
    assert [line["step"] for line in read_metrics(tmp_path)] == [1, 2]
    assert Metrics(tmp_path).cut(1000, step=2) == 1000 - metrics.path.stat().st_size


def test_lines_survive_a_full_disk(tmp_path):
    """Lines that did not fit on a full disk are written, once and whole, when there is room again."""
    code = """
import resource, signal, sys
from samestep.store.folder import RUN_FILE
from samestep.store.metrics import Metrics
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
metrics = Metrics(sys.argv[1])
metrics.append({"step": 1})
metrics.flush()
metrics.append({"step": 2, "text": "x" * 100})
resource.setrlimit(resource.RLIMIT_FSIZE, (50, resource.RLIM_INFINITY))
try:
    metrics.flush()
except OSError as error:
    print("full")
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
metrics.append({"step": 3})
metrics.flush()
"""
    run = subprocess.run([sys.executable, "-c", code, tmp_path], check=True, capture_output=True, text=True)
    assert run.stdout == "full\n"
    assert [line["step"] for line in strict((tmp_path / METRICS_FILE).read_bytes())] == [1, 2, 3]


def test_plain_refuses_with_the_path():
    """The path of the leaf that cannot be written is named down to its index."""
    with pytest.raises(UnsupportedValue) as caught:
        plain({"a": [0, {"b": {1, 2}}]}, "config")
    assert caught.value.path == "config.a[1].b"
