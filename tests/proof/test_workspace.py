"""The folder of an arm: what is mirrored, what is linked, what is left out, and that nothing of the user is touched."""

import os
import socket
import stat
import subprocess
from pathlib import Path

import pytest

from samestep.errors import SamestepError
from samestep.proof import mirroring
from samestep.proof.workspace import Workspace
from samestep.store.records import open_run


@pytest.fixture
def project(tmp_path):
    """Make a working directory with a source, a package, and data beside it."""
    source = tmp_path / "all" / "project"
    (source / "package").mkdir(parents=True)
    (source / "train.py").write_text("print('train')")
    (source / "package" / "model.py").write_text("")
    (source.parent / "data").mkdir()
    (source.parent / "data" / "x.csv").write_text("1")
    return source


@pytest.fixture
def arm(tmp_path, project):
    """Give what makes an arm of the working directory."""

    def make(name="reference", base=tmp_path / "proof", **options):
        return Workspace(base, name, project, **options)

    return make


def below(folder):
    """List all files, folders and links below a folder by their paths."""
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


def contents(folder):
    """Read a folder with all that decides whether it was touched: names, bytes, modes, times, links."""
    found = {}
    for path in [folder, *folder.rglob("*")]:
        status = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(status.st_mode) else None
        found[path] = (status.st_mode, status.st_mtime_ns, content, path.readlink() if path.is_symlink() else None)
    return found


# --- the mirror -----------------------------------------------------------------------------------------


def test_small_files_are_copies_with_their_modes_and_times(arm, project):
    """A file is another file in each arm, with the same bytes, permissions and time of change."""
    script = project / "run.sh"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o750)
    os.utime(script, ns=(10**18, 10**18 + 7))
    made = arm().directory / "run.sh"
    assert (made.read_text(), made.stat().st_ino != script.stat().st_ino) == ("#!/bin/sh\n", True)
    assert (stat.S_IMODE(made.stat().st_mode), made.stat().st_mtime_ns) == (0o750, 10**18 + 7)


def test_what_is_written_in_the_mirror_is_not_in_the_original(arm, project):
    """New, changed and removed files of an arm, hard links of the original among them, leave the original as it was."""
    os.link(project / "train.py", project / "second_name.py")
    before = contents(project)
    there = arm().directory
    (there / "train.py").write_text("changed")
    (there / "second_name.py").write_text("too")
    (there / "package" / "new.py").write_text("new")
    (there / "package" / "model.py").unlink()
    assert contents(project) == before


def test_large_files_and_large_folders_are_links(arm, project, monkeypatch):
    """A file above the limit, and a folder with more entries than the limit, cost one link and no copy."""
    monkeypatch.setattr(mirroring, "MOST_OF_A_FILE", 100)
    monkeypatch.setattr(mirroring, "MOST_IN_A_FOLDER", 5)
    (project / "weights.bin").write_bytes(bytes(101))
    (project / "images" / "deep").mkdir(parents=True)
    for number in range(5):
        (project / "images" / f"{number}.png").touch()
    there = arm().directory
    assert (there / "weights.bin").readlink() == project / "weights.bin"
    assert (there / "images").readlink() == project / "images"
    assert not (there / "train.py").is_symlink()


def test_behind_the_limits_of_a_mirror_all_is_linked(arm, project, monkeypatch):
    """When entries or bytes are used up the rest is linked: the deepest, so that sources at the top are copies."""
    for top in "abc":
        (project / top / "deep").mkdir(parents=True)
        for number in range(10):
            (project / top / "deep" / f"{number}").write_bytes(bytes(50))
    monkeypatch.setattr(mirroring, "MOST_ENTRIES", 20)
    few = arm("few").directory
    assert [(few / top / "deep").is_symlink() for top in "abc"] == [False, True, True]
    assert not (few / "train.py").is_symlink()
    monkeypatch.setattr(mirroring, "MOST_ENTRIES", 20_000)
    monkeypatch.setattr(mirroring, "MOST_BYTES", 1000)
    small = arm("small").directory
    assert sum(path.is_symlink() for path in small.rglob("deep/*")) == 11  # train.py and 19 of them fit
    assert below(small) == below(project)


def test_a_working_directory_with_too_many_files_is_refused(arm, monkeypatch):
    """More files in the working directory itself than a mirror may hold is one clear sentence."""
    monkeypatch.setattr(mirroring, "MOST_ENTRIES", 1)
    with pytest.raises(SamestepError, match="holds too many files to be mirrored"):
        arm()


def test_links_lead_where_they_lead(arm, project, tmp_path):
    """A link out of the working directory leads to the same place, one inside it to the mirror, a dead one nowhere."""
    (tmp_path / "elsewhere").mkdir()
    (project / "out_of_it").symlink_to("../../elsewhere")
    (project / "last").symlink_to("package")
    (project / "package" / "again").symlink_to(project / "train.py")
    (project / "dead").symlink_to("gone")
    (project / "itself").symlink_to("itself")
    made = arm()
    there = made.directory
    assert (there / "out_of_it").readlink() == tmp_path / "elsewhere"
    assert (there / "last").resolve() == there / "package"
    assert (there / "package" / "again").resolve() == there / "train.py"
    assert (there / "dead").is_symlink()
    assert not (there / "dead").exists()
    twin = made.copy_to("twin").directory
    assert (twin / "last").resolve() == twin / "package"


def test_caches_and_runs_are_left_out(arm, project):
    """What does not belong to a training is not in an arm: caches, and samestep's runs."""
    for name in (".tox", "__pycache__", ".pytest_cache", "package/__pycache__"):
        (project / name).mkdir()
    (project / "runs" / "mine").mkdir(parents=True)
    open_run(project / "runs" / "mine", None, version="0")
    (project / "runs" / "damaged" / "checkpoints").mkdir(parents=True)
    (project / "runs" / "damaged" / "run.json").write_text("{")
    (project / "runs" / "foreign").mkdir()
    (project / "runs" / "foreign" / "run.json").write_text('{"name": "of another program"}')
    found = below(arm().directory)
    assert found == {"train.py", "package", "package/model.py", "runs", "runs/foreign", "runs/foreign/run.json"}


def test_a_run_in_the_working_directory_itself_is_left_out(arm, project):
    """Where the working directory is a run's directory, the run's own files are not in an arm, and the others are."""
    open_run(project, None, version="0")
    (project / "checkpoints").mkdir()
    assert below(arm().directory) == {"train.py", "package", "package/model.py"}


def test_patterns_leave_out_by_name_and_by_path(arm, project):
    """`--leave-out` names files and folders by a pattern of their names or of their paths."""
    for name in ("a.ckpt", "package/b.ckpt", "out/c.txt", "package/out/d.txt"):
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).touch()
    found = below(arm(left_out=["*.ckpt", "./package/out/"]).directory)
    assert found == {"train.py", "package", "package/model.py", "out", "out/c.txt"}


def test_installed_packages_are_one_link(arm, project):
    """A virtual environment, whatever its name, is linked: `.venv/bin/python train.py` runs as before."""
    for name in (".venv", "environment"):
        (project / name / "bin").mkdir(parents=True)
        (project / name / "pyvenv.cfg").touch()
    there = arm().directory
    assert [(there / name).readlink() for name in (".venv", "environment")] == [
        project / ".venv",
        project / "environment",
    ]


def test_the_commit_can_be_asked_for(arm, project):
    """`git rev-parse HEAD` says the same in an arm, and the state of the files is asked for without a trace."""

    def git(*words, where=project):
        names = [f"{which}_{what}" for which in ("GIT_AUTHOR", "GIT_COMMITTER") for what in ("NAME", "EMAIL")]
        environment = {**os.environ, **dict.fromkeys(names, "x"), "GIT_CONFIG_GLOBAL": os.devnull}
        environment["GIT_OPTIONAL_LOCKS"] = "0"
        return subprocess.run(["git", *words], cwd=where, env=environment, check=True, capture_output=True).stdout

    git("init")
    git("add", ".")
    git("commit", "-m", "first")
    made = arm()
    (made.directory / "train.py").write_text("changed")
    assert (made.directory / ".git").readlink() == project / ".git"
    assert git("rev-parse", "HEAD", where=made.directory) == git("rev-parse", "HEAD")
    assert b"train.py" in git("status", "--short", where=made.directory)
    assert (made.changed_originals(), git("status", "--short")) == ([], b"")
    git("commit", "-am", "second", where=made.directory)
    assert made.changed_originals() == [project / ".git" / "logs" / "HEAD"]


def test_what_is_changed_through_links_is_named(arm, project, tmp_path, monkeypatch):
    """A shell writes through links unseen: files and folders that are not as before are named afterwards."""
    monkeypatch.setattr(mirroring, "MOST_OF_A_FILE", 100)
    monkeypatch.setattr(mirroring, "MOST_IN_A_FOLDER", 5)
    for name in ("appended.bin", "replaced.bin", "removed.bin", "read.bin", "touched.bin"):
        (project / name).write_bytes(bytes(101))
    for name in ("images", "read", ".venv"):
        (project / name).mkdir()
        for number in range(6):
            (project / name / f"{number}.png").touch()
    (tmp_path / "elsewhere").mkdir()
    (project / "out_of_it").symlink_to(tmp_path / "elsewhere")
    (project / "dead").symlink_to("gone")
    made = arm()
    twin = made.copy_to("twin")
    assert made.changed_originals() == []
    script = """
    echo x >> appended.bin; echo x > replaced.bin; rm "$(readlink removed.bin)"; cat read.bin read/1.png > own
    rm images/1.png touched.bin; cp train.py .venv; cp train.py out_of_it; echo x > train.py
    """
    subprocess.run(["sh", "-c", script], cwd=made.directory, check=True)
    changed = [project / each for each in ("appended.bin", "images", "removed.bin", "replaced.bin")]
    assert made.changed_originals() == twin.changed_originals() == sorted([*changed, tmp_path / "elsewhere"])


def test_special_files_are_passed_over(arm, project):
    """A pipe or a socket in the working directory is not in an arm, and stops nothing."""
    os.mkfifo(project / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        here = Path.cwd()
        os.chdir(project)  # a socket's path may have no more than 108 bytes
        try:
            listener.bind("socket")
        finally:
            os.chdir(here)
        assert below(arm().directory) == {"train.py", "package", "package/model.py"}


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser can read everything")
def test_what_cannot_be_read_is_named(arm, project):
    """An unreadable file or folder is passed over, and the arm says which."""
    (project / "secret").touch(0o000)
    (project / "locked").mkdir(0o000)
    assert arm().skipped == ("secret", "locked")


def test_what_a_mirror_cannot_open_is_named(arm, project, monkeypatch):
    """A file that the system lets us not read is passed over and named, for a superuser by a test's refusal."""

    def refuse(source, target, copy=mirroring.files.copy_file):
        if source.name == "model.py":
            raise PermissionError(13, "Permission denied", str(source))
        copy(source, target)

    monkeypatch.setattr(mirroring.files, "copy_file", refuse)
    made = arm()
    assert made.skipped == ("package/model.py",)
    assert below(made.directory) == {"train.py", "package"}


# --- beside the mirror ----------------------------------------------------------------------------------


def test_what_lies_beside_the_working_directory_lies_beside_the_mirror(arm, project):
    """`../data` is the same data in an arm; hidden neighbours are not there."""
    (project.parent / ".hidden").mkdir()
    there = arm().directory
    assert (there.parent / "data" / "x.csv").resolve() == project.parent / "data" / "x.csv"
    assert {each.name for each in there.parent.iterdir()} == {"project", "data"}


def test_the_proof_is_never_in_the_proof(arm, project):
    """Arms beside the working directory, or inside it, hold no other arm and not themselves."""
    beside = arm(base=project.parent / "proof")
    assert {each.name for each in beside.directory.parent.iterdir()} == {"project", "data"}
    for name in ("first", "second"):
        inside = arm(name, base=project / "deep" / "proof")
        assert below(inside.directory) == {"train.py", "package", "package/model.py", "deep"}


def test_places_that_are_no_project_are_refused(tmp_path, monkeypatch):
    """The home directory, the root, and the folder of the arms itself are refused, and nothing is made."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    for source in (home, tmp_path, Path("/")):
        with pytest.raises(SamestepError, match="in the home directory, or above it"):
            Workspace(tmp_path / "proof", "reference", source)
    (home / "project").mkdir()
    with pytest.raises(SamestepError, match="cannot lie in the working directory itself"):
        Workspace(home / "project", "reference", home / "project")
    assert below(tmp_path) == {"home", "home/project"}


def test_an_arm_is_never_made_over_another(arm):
    """The name of an arm that is there is refused, for a new one and for a copy."""
    first = arm()
    for again in (arm, lambda: first.copy_to("reference")):
        with pytest.raises(SamestepError, match="cannot be made"):
            again()
    assert (first.directory / "train.py").exists()


def test_a_place_where_no_arm_can_be_made_is_told(arm, tmp_path):
    """Arms below a file, or where nobody may write, are one sentence with the place and the system's reason."""
    (tmp_path / "file").touch()
    with pytest.raises(SamestepError, match="cannot be made") as found:
        arm(base=tmp_path / "file" / "proof")
    assert (found.value.found, str(tmp_path / "file") in found.value.path) == ("Not a directory", True)


# --- the command ----------------------------------------------------------------------------------------


COMMANDS = {
    # what is given, the option for the directory: what is started
    "nothing named": (["python", "train.py"], None, ["python", "train.py"]),
    "in an argument": (["python", "t.py", "--out={dir}/x", "{dir}"], None, ["python", "t.py", "--out=OUT/x", "OUT"]),
    "an option": (["python", "t.py"], "--output_dir", ["python", "t.py", "--output_dir", "OUT"]),
    "an option with =": (["python", "t.py"], "hydra.run.dir=", ["python", "t.py", "hydra.run.dir=OUT"]),
    "an option with {dir}": (["python", "t.py"], "--out={dir}/a", ["python", "t.py", "--out=OUT/a"]),
}


@pytest.mark.parametrize("case", COMMANDS)
def test_the_output_directory_is_put_into_the_command(case, arm):
    """`{dir}` in any argument, or the option that was named, is the arm's own output directory, which exists."""
    words, option, expected = COMMANDS[case]
    made = arm()
    assert made.command(words, option) == [each.replace("OUT", str(made.output)) for each in expected]
    assert made.output.is_dir()


def test_a_program_that_was_left_out_is_the_originals(arm, project):
    """A program by a relative path is taken from the mirror, or where the mirror lacks it, from the original."""
    for name in ("tools/start", ".tox/bin/python"):
        (project / name).parent.mkdir(parents=True)
        (project / name).touch(0o755)
    made = arm()
    assert made.command(["tools/start"]) == ["tools/start"]
    assert made.command([".tox/bin/python"]) == [str(project / ".tox/bin/python")]
    assert made.command(["./gone"]) == ["./gone"]


def test_an_arm_names_itself_in_the_environment(arm, project):
    """The processes of an attempt are told their arm, what is guarded (also beside it), their prover, their place."""
    made = arm()
    assert made.environment(1) == {
        "SAMESTEP_RECORD": str(made.folder / "ledgers-1"),
        "SAMESTEP_RECORD_DIR": str(made.folder),
        "SAMESTEP_RECORD_GUARDED": os.pathsep.join([str(project), str(project.with_name("data"))]),
        "SAMESTEP_RECORD_PROVER": str(os.getpgrp()),
        "GIT_OPTIONAL_LOCKS": "0",
        "PWD": str(made.directory),
    }
    assert made.ledgers(1).is_dir()


def test_output_is_what_lies_in_the_output_directory(arm):
    """An arm has output as soon as something lies in the directory that stands for `{dir}`."""
    made = arm()
    (made.directory / "elsewhere").touch()
    assert not made.has_output()
    (made.output / "model.pt").touch()
    assert made.has_output()


# --- copies of arms -------------------------------------------------------------------------------------


def test_a_copy_of_an_arm_shares_nothing_with_it(arm):
    """What a killed arm has written is in its copy, as it was; writing in one of them changes nothing in the other."""
    first = arm()
    (first.output / "model.pt").write_bytes(b"weights")
    os.link(first.output / "model.pt", first.directory / "best.pt")
    (first.directory / "latest").symlink_to(first.output / "model.pt")
    (first.ledgers(0) / "rank-0.jsonl").write_text("{}")
    before = contents(first.folder)
    twin = first.copy_to("twin")
    assert below(twin.folder) == below(first.folder)
    assert (twin.directory / "latest").resolve() == twin.output / "model.pt"
    assert (twin.directory.parent / "data" / "x.csv").read_text() == "1"
    (twin.output / "model.pt").write_bytes(b"others!")
    (twin.directory / "best.pt").write_bytes(b"others?")
    (twin.directory / "train.py").write_text("other")
    assert contents(first.folder) == before
    assert (twin.environment(1)["SAMESTEP_RECORD_DIR"], first.folder.name) == (str(twin.folder), "reference")
