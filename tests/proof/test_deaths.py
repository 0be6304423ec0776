"""Deaths of recorded trainings: at the very moment that was asked for, by a signal, and nobody else with them."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from forked_trainings import OPERATIONS
from test_file_events import files_of, run_trials, tree, trial

from samestep import Store

SAVED = 5
"""Operations of a save with samestep."""

WRITES = {  # which operation, bytes, the file and its size when the process dies
    "open": (0, 1234, "log.txt", 1234),
    "append": (1, 4, "log.txt", 5004),
    "torch.save": (2, 700, "a.pt", 700),
    "safetensors": (3, 100, "a.safetensors", None),
    "NumPy": (6, 200, "c.npy", 200),
    "thread": (14, 1, "thread.txt", 1),
}


def killed(folder, work="changing", **plan):
    """Describe a trial that is killed."""
    return trial(folder, work, SAMESTEP_RECORD_KILL=json.dumps({"operation": None, "bytes": None} | plan))


@pytest.fixture(scope="module")
def trials(tmp_path_factory):
    """Run all trainings of this file, in one go; each dies another death."""
    base = tmp_path_factory.mktemp("trials")
    described = {f"before {n}": killed(base / f"{n}", after=0, operation=n) for n in range(len(OPERATIONS))}
    for n in range(SAVED):
        described[f"saving {n}"] = killed(base / f"saving-{n}", after=1, operation=n)
    for name, (operation, size, *_) in WRITES.items():
        described[name] = killed(base / name, after=0, operation=operation, bytes=size)
    described["manifest"] = killed(base / "manifest", after=1, operation=3, bytes=500)
    described["no write"] = killed(base / "no-write", after=0, operation=4, bytes=10)
    described["too many bytes"] = killed(base / "many", after=0, operation=14, bytes=400)  # and the ledger is larger
    described["start"] = killed(base / "start", after=-1)
    described["before any step"] = killed(base / "before", "without_a_change", after=-1, operation=1)
    described["line"] = killed(base / "line", after=1)
    described["behind"] = killed(base / "behind", after=2, operation=0)
    described["never"] = killed(base / "never", after=0, operation=15)
    described["other rank"] = killed(base / "other", after=0, rank=1)
    described["a forked child"] = killed(base / "forked", "without_a_change", after=0, operation=0)
    described["group"] = killed(base / "group", "with_a_child", after=0, rank=0)
    described["alone"] = killed(base / "alone", "with_a_child", after=0) | {"own_group": False}
    return run_trials(described)


def marker(trial):
    """Read what a process has written before it died."""
    return json.loads(Path(trial["ledgers"], "killed-0.json").read_text())


def steps(trial):
    """Count the lines of steps."""
    return len(files_of(trial))


@pytest.fixture
def expected(tmp_path, monkeypatch):
    """Give what the first operations make, without a recorder."""
    monkeypatch.chdir(tmp_path)

    def of(number):
        for *_, work in OPERATIONS[:number]:
            work()
        return tree(tmp_path)

    return of


@pytest.mark.parametrize("number", range(len(OPERATIONS)), ids=lambda number: f"{number} {OPERATIONS[number][0]}")
def test_a_death_before_an_operation_leaves_what_the_earlier_ones_made(number, trials, expected):
    """Killed right before an operation, a training leaves the files of all operations before it, and no other."""
    ended = trials[f"before {number}"]
    assert ended["status"] == -signal.SIGKILL
    assert tree(Path(ended["arm"])) == expected(number)
    said = marker(ended)
    assert (said["name"], said["path"]) == OPERATIONS[number][:2]
    assert (said["after"], said["operation"], said["fallback"], steps(ended)) == (0, number, None, 1)


@pytest.mark.parametrize("number", range(SAVED))
def test_a_save_of_samestep_is_killed_at_each_operation(number, trials):
    """Whichever operation of a save is not done, there is no checkpoint; all but the last leave no folder of one."""
    ended = trials[f"saving {number}"]
    assert (ended["status"], steps(ended)) == (-signal.SIGKILL, 2)
    store = Path(ended["arm"], "store")
    assert store.exists() == (number > 0)
    assert Store(store).checkpoints() == []
    assert len(list(store.glob(".tmp-*/*"))) == max(0, number - 2)


@pytest.mark.parametrize("name", WRITES)
def test_a_death_in_a_write_leaves_so_many_bytes(name, trials, expected):
    """Killed in a write, whatever language writes, a file has exactly the bytes asked for: those that it would have."""
    operation, size, path, length = WRITES[name]
    ended = trials[name]
    assert ended["status"] == -signal.SIGXFSZ
    left, before, after = tree(Path(ended["arm"])), expected(operation), None
    OPERATIONS[operation][3]()
    after = tree(Path.cwd())
    if length is None:  # safetensors replaces the file by a draft, which it makes as large as it will be, first
        drafts = [each for each in left if each.startswith(".tmp")]
        assert [left.pop(each) for each in drafts] == [b""]
        assert left == before
    else:
        assert left == before | {path: after[path][:length]}
    said = marker(ended)
    assert (said["operation"], said["bytes"], said["path"], said["fallback"]) == (operation, size, path, None)
    assert steps(ended) == 1


def test_a_manifest_of_samestep_is_cut(trials):
    """A save dies in the middle of its manifest, and there is no checkpoint."""
    ended = trials["manifest"]
    store = Path(ended["arm"], "store")
    assert ended["status"] == -signal.SIGXFSZ
    assert [path.stat().st_size for path in store.glob(".tmp-*/manifest.json")] == [500]
    assert Store(store).checkpoints() == []


def test_where_nothing_is_written_death_comes_at_the_next_operation(trials, expected):
    """An operation that does not reach the bytes is done, and the next one is not."""
    ended = trials["no write"]
    assert (ended["status"], marker(ended)["fallback"]) == (-signal.SIGKILL, "next operation")
    assert tree(Path(ended["arm"])) == expected(5)


def test_where_no_operation_follows_death_comes_behind_the_next_line(trials, expected):
    """The last operation before a step is done, the step's line is whole, and then the training dies."""
    ended = trials["too many bytes"]
    assert (ended["status"], marker(ended)["fallback"]) == (-signal.SIGKILL, "next line")
    assert steps(ended) == 2
    assert tree(Path(ended["arm"])) == expected(len(OPERATIONS))


def test_deaths_at_the_start_behind_a_line_and_behind_the_last_one(trials):
    """A training dies before any step, right behind a line, and at an operation behind its last step."""
    assert [trials[name]["status"] for name in ("start", "line", "behind")] == [-signal.SIGKILL] * 3
    assert not list(Path(trials["start"]["ledgers"]).glob("rank-*"))
    assert list(tree(Path(trials["before any step"]["arm"]))) == ["there"]
    assert (steps(trials["line"]), Path(trials["line"]["arm"], "store").exists()) == (2, False)
    assert (steps(trials["behind"]), Path(trials["behind"]["arm"], "end.txt").exists()) == (3, False)
    assert marker(trials["line"])["after"] == 1


@pytest.mark.parametrize("name", ["never", "other rank", "a forked child"])
def test_who_is_not_meant_lives(name, trials):
    """Another rank's death, an operation that does not come before the next line, or that is a child's: nobody dies."""
    assert (trials[name]["status"], steps(trials[name])) == (0, 3)
    assert not list(Path(trials[name]["ledgers"]).glob("killed-*"))


def test_the_whole_group_dies_but_never_that_of_the_prover(trials):
    """Children of the training die with it; where the group is the prover's, the training dies alone."""
    assert (trials["group"]["status"], trials["group"]["is_gone"]) == (-signal.SIGKILL, True)
    assert (trials["alone"]["status"], trials["alone"]["is_gone"]) == (-signal.SIGKILL, False)


@pytest.mark.parametrize(("number", "status"), [(0, 0), (1, -9)])
def test_only_the_process_that_is_meant_dies(number, status, tmp_path):
    """Of the processes that a command starts one after the other only the one that is meant dies."""
    text = (
        "import sys; from pathlib import Path; from samestep.proof.deaths import Death\n"
        "plan = {'after': 1, 'operation': None, 'bytes': None, 'rank': 0, 'process': 1}\n"
        "death = Death(Path(sys.argv[1]), 0, plan, None)\n"
        f"death.number = {number}\n"
        "death.after_step(1)\n"
    )
    ended = subprocess.run([sys.executable, "-c", text, tmp_path], check=False)
    assert ended.returncode == status
