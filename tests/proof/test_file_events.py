"""What a recorded training does to files: each operation is seen, and nothing of the original directory is changed."""

import json
import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest
from forked_trainings import OPERATIONS

from samestep.proof.changes import Change, opened, read_event
from samestep.proof.guard import Guard, Refused
from samestep.proof.ledger import find_ledgers
from samestep.proof.recording import Settings, recorded_environment

TEMPORARY = os.path.realpath(tempfile.gettempdir())
DRIVER = Path(__file__).with_name("forked_trainings.py")


def run_trials(trials):
    """Run trials by name: each gets a directory `arm` and a folder `ledgers`, and how it ended as `status`."""
    for each in trials.values():
        Path(each["arm"]).mkdir(parents=True, exist_ok=True)
        Path(each["ledgers"]).mkdir()
    words = [sys.executable, DRIVER]
    done = subprocess.run(
        words, input=json.dumps(list(trials.values())), stdout=subprocess.PIPE, text=True, check=True, timeout=300
    )
    for each, ended in zip(trials.values(), json.loads(done.stdout), strict=True):
        each.update(ended)
    return trials


def trial(folder, work, **variables):
    """Describe a trial."""
    return {"arm": f"{folder}/arm", "ledgers": f"{folder}/ledgers", "work": work, "variables": variables}


def files_of(trial):
    """Give the operations that were noted, one list for each step."""
    (ledger,) = find_ledgers(trial["ledgers"])
    return [each.notes.get("files", []) for each in ledger.steps]


def outcome(trial):
    """Read what a trial says itself."""
    return json.loads(Path(trial["ledgers"], "outcome.json").read_text())


@pytest.fixture(scope="module")
def trials(tmp_path_factory):
    """Run all trainings of this file, in one go."""
    base = tmp_path_factory.mktemp("trials")
    original = base / "original"
    (original / "package" / "empty").mkdir(parents=True)
    for name in ("package/module", "data", "config", "weights", "cut", "removed", "untouched", "exclusive"):
        (original / name).write_text(f"original {name}")
    before = tree(original)
    described = {name: trial(base / name, name) for name in ("changing", "without_a_change")}
    for name in ("refusing", "linked"):
        described[name] = trial(base / name, name, SAMESTEP_RECORD_GUARDED=str(original))
        arm = Path(described[name]["arm"])
        arm.mkdir(parents=True)
        for each in [*original.iterdir(), original / "dangling"]:
            (arm / each.name).symlink_to(each)
    return run_trials(described) | {"original": (before, tree(original))}


def tree(folder):
    """Read all that a folder holds: the bytes of files, None for folders."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


# --- what is seen -----------------------------------------------------------------------------------------


def test_each_operation_is_seen_once_with_its_name_path_and_bytes(trials):
    """Writers in Python, C++ and Rust, renames, links and removals: each is one operation, in any thread."""
    seen = files_of(trials["changing"])[1]
    assert [each[:2] for each in seen] == [[name, path] for name, path, *_ in OPERATIONS]
    expected = [size for _, _, size, _ in OPERATIONS]
    assert [size if wanted is not True else size > 8000 for wanted, (*_, size) in zip(expected, seen, strict=True)] == (
        expected
    )


def test_a_save_of_samestep_is_seen_as_several_operations(trials):
    """A checkpoint's folder, tensors, manifest and the rename that makes it count are operations of their own."""
    seen = files_of(trials["changing"])[2]
    assert [name for name, *_ in seen] == ["mkdir", "mkdir", "open", "open", "rename"]
    assert seen[-1][1] == "store/step-000000001"
    assert all(size > 500 for name, _, size in seen if name == "open")


def test_what_happens_behind_the_last_step_is_not_lost(trials):
    """Operations after the last line wait for a closing one."""
    assert outcome(trials["changing"]) == {"end": {"files": [["open", "end.txt", 3]]}}


def test_what_changes_nothing_is_no_operation(trials):
    """Reading, folders that exist, failures, compiled modules, devices, and what a forked child does do not count."""
    first, second, third = files_of(trials["without_a_change"])
    assert [each[:2] for each in first] == [["mkdir", "there"], ["mkdir", "there/sub"], ["open", "there/sub/file"]]
    assert second == []
    assert [each[:2] for each in third] == [
        ["remove", "there/sub/file"],
        ["rmdir", "there/sub"],
        ["rmdir", "there"],
        ["torch.jit.save", "model.pt"],
        ["open", "low"],
        ["truncate", "low"],
    ]


# --- the guard ----------------------------------------------------------------------------------------------


def test_nothing_of_the_original_is_changed(trials):
    """Whatever a training tries through linked folders, absolute paths and descriptors is refused in one sentence."""
    ended = outcome(trials["refusing"])
    assert {name for name, said in ended.items() if "samestep prove: " not in said} == set()
    assert "/original/package/module (open) outside its own directory" in ended["open"]
    before, after = trials["original"]
    assert before == after


def test_what_was_refused_stands_beside_the_ledgers(trials):
    """Each refusal is one line of the problems, said once; compiled modules are not worth one."""
    lines = Path(trials["refusing"]["ledgers"], "problems.txt").read_text().splitlines()
    assert len(lines) == len(set(lines)) > 10
    assert all(line.startswith("samestep prove: the training wants to change /") for line in lines)
    assert not any("__pycache__" in line for line in lines)


def test_a_link_is_replaced_by_a_copy_before_it_is_written_through(trials):
    """A linked file that is changed becomes the arm's own, with the old content where it is kept."""
    arm = Path(trials["linked"]["arm"])
    own = {path.name for path in arm.iterdir() if not path.is_symlink()}
    assert own == {"data", "config", "weights", "dangling", "cut"}
    assert (arm / "data").read_text() == "original data and more"
    assert (arm / "config").read_text() == (arm / "dangling").read_text() == "mine"
    assert (arm / "cut").read_text() == "or"
    assert (arm / "untouched").is_symlink()
    assert not os.path.lexists(arm / "removed")
    assert files_of(trials["linked"])[0][0] == ["open", "data", len(" and more")]


def test_other_places_are_allowed_and_noted():
    """Outside both directories all is allowed; files count as outside, but not caches, devices and temporary ones."""
    guard = Guard(Path("/somewhere/arm"), [Path("/somewhere/original")], Path("/somewhere/ledgers"))
    home = os.path.realpath(Path.home())
    noted = ["/somewhere/else", f"{home}/results", "/somewhere/original-2/x"]
    silent = ["/somewhere/arm/x", "/somewhere/ledgers/x", "/dev/pts/x", f"{TEMPORARY}/x", f"{home}/.cache/x"]
    places = {place: guard.admit(Change("open", place, opens=True)) for place in noted + silent}
    assert places == {place: place for place in noted} | dict.fromkeys(silent)
    assert guard.admit(Change("remove", "/somewhere/else")) is None


def test_caches_below_the_original_directory_stay_writable(tmp_path):
    """Who proves in the home directory, or in /, still has caches, devices and temporary files."""
    home = os.path.realpath(Path.home())
    guard = Guard(tmp_path / "arm", [Path("/")], tmp_path / "ledgers")
    for place in ("/dev/null", f"{TEMPORARY}/x", f"{home}/.cache/x", f"{tmp_path}/arm/x"):
        assert guard.admit(Change("open", place, opens=True)) is None
    (tmp_path / "ledgers").mkdir()
    with pytest.raises(Refused, match="wants to change /etc/x"):
        guard.admit(Change("open", "/etc/x", opens=True))


# --- events -------------------------------------------------------------------------------------------------


def test_events_are_read_by_mode_or_flags(tmp_path):
    """Modes and flags tell whether a file is written, and whether its old content goes; a descriptor is no path."""
    path = tmp_path / "file"
    path.touch()
    for mode, is_truncated in (("wb", True), ("a", False), ("r+", False), ("w+", True)):
        assert opened("open", path, mode, 0) == Change("open", str(path), opens=True, is_truncated=is_truncated)
    assert opened("open", os.fsencode(path), None, os.O_RDWR).place == str(path)
    for event in (("open", (3, "w", 1)), ("open", (path, "rb", 0)), ("open", (tmp_path, "w+", os.O_RDWR))):
        assert read_event(*event) is None
    assert read_event("sqlite3.connect", (f"file:{path}?mode=ro",)) is None
    assert read_event("sqlite3.connect", (f"file:{path}",)).place == str(path)
    assert read_event("sqlite3.connect", (":memory:",)) is None
    assert read_event("os.rename", (f"{tmp_path}/./file", b"x", -1, -1)).source == str(path)


# --- whole commands -----------------------------------------------------------------------------------------


def test_a_training_that_is_watched_ends_with_the_same_bits(tmp_path):
    """With all variables set a training with workers prints the same weights; what workers write is not counted."""
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            import os, torch
            class Data(torch.utils.data.Dataset):
                def __len__(self):
                    return 8
                def __getitem__(self, index):
                    open(f"sample-{index}", "w").close()
                    return torch.rand(3) + index
            if __name__ == "__main__":
                torch.manual_seed(0)
                model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(), torch.nn.Linear(4, 1))
                optimizer = torch.optim.Adam(model.parameters())
                for number, batch in enumerate(torch.utils.data.DataLoader(
                    Data(), 2, shuffle=True, num_workers=1, multiprocessing_context="spawn"
                )):
                    optimizer.zero_grad()
                    model(batch).mean().backward()
                    optimizer.step()
                    torch.save(model.state_dict(), f"model-{number}.pt")
                print([each.tolist() for each in model.parameters()])
            """
        )
    )
    ledgers = tmp_path / "ledgers"
    printed = []
    for name in ("plain", "watched"):
        (tmp_path / name).mkdir()
        environment = dict(os.environ)
        if name == "watched":
            ledgers.mkdir()
            environment = recorded_environment(ledgers, Settings()) | {
                "SAMESTEP_RECORD_DIR": str(tmp_path / name),
                "SAMESTEP_RECORD_GUARDED": str(tmp_path / "original"),
                "SAMESTEP_RECORD_KILL": json.dumps({"after": 99, "operation": 0, "bytes": 10, "rank": 0}),
            }
        words = [sys.executable, script]
        printed.append(subprocess.run(words, cwd=tmp_path / name, env=environment, check=True, capture_output=True))
    assert printed[0].stdout == printed[1].stdout
    assert tree(tmp_path / "plain") == tree(tmp_path / "watched")
    (ledger,) = find_ledgers(ledgers)
    seen = [each.notes.get("files", []) for each in ledger.steps]
    assert [[each[:2] for each in step] for step in seen] == [
        [],
        *([["torch.save", f"model-{number}.pt"]] for number in range(3)),
    ]


def test_what_lies_beside_is_guarded(tmp_path):
    """All places that are guarded are, not only the first of them."""
    guard = Guard(Path("/somewhere/arm"), [Path("/somewhere/one"), Path("/somewhere/two")], tmp_path)
    for place in ("/somewhere/one/a", "/somewhere/two/b"):
        with pytest.raises(Refused):
            guard.admit(Change("open", place, opens=True))
    assert guard.admit(Change("open", "/somewhere/arm/c", opens=True)) is None
