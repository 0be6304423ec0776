"""What no module of the package does: run code from files, or change files behind the store's back."""

import ast

import pytest
from sources import MODULES, PACKAGE, calls, label, syntax

FORBIDDEN_MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "imp"}
FORBIDDEN_CALLS = {
    "eval",
    "exec",
    "compile",
    "__import__",
    "os.system",
    "os.popen",
    "torch.load",
    "torch.jit.load",
    "np.load",
    "numpy.load",
    "copyreg.pickle",
}
RUNS_CODE = {
    # module, call: why it is allowed
    ("proof/outputs.py", "np.load"): "allow_pickle=False",
    ("proof/outputs.py", "torch.load"): "weights_only: it unpickles tensors and plain values, and calls nothing else",
}

CHANGES_FILES = {
    "open",
    "os.rename",
    "os.replace",
    "os.remove",
    "os.unlink",
    "os.mkdir",
    "os.makedirs",
    "os.rmdir",
    "os.removedirs",
    "os.link",
    "os.symlink",
    "os.truncate",
    "os.ftruncate",
    "os.write",
    "os.open",
    "torch.save",
    "save_file",
    "np.save",
    "np.savez",
}
CHANGING_METHODS = {
    "write_text",
    "write_bytes",
    "unlink",
    "mkdir",
    "rmdir",
    "rename",
    "touch",
    "symlink_to",
    "hardlink_to",
    "truncate",
    "open",
}
WRITES = {
    # module, call: why it does not go through store/files.py
    ("store/lock.py", "os.open"): "the lock file is never written; its descriptor is the lock",
    ("store/folder.py", "os.open"): "opened for reading, to ask for a lock",
    ("store/verifying.py", "os.open"): "opened for reading",
    ("store/exporting.py", "torch.save"): "torch writes a draft, which files.py syncs and renames",
    ("store/exporting.py", "save_file"): "safetensors writes a draft, which files.py syncs and renames",
    ("store/foreign.py", "archive.open"): "opened for reading",
    ("data/loader.py", "self._mode.open"): "opens an epoch, not a file",
    ("demo/training.py", "ledger.open"): "the demo's notes of its steps, which are no part of a run",
    ("demo/training.py", "super().rename"): "dies in place of one of the store's own calls",
    ("demo/proof.py", "(folder / 'log').open"): "what the demo's processes say, in its temporary folder",
    ("cli/demo.py", "tempfile.TemporaryDirectory"): "the demo's folder, which goes at its end",
    ("cli/prove.py", "tempfile.TemporaryDirectory"): "the proof's folder, which goes at its end",
    ("proof/workspace.py", "tempfile.gettempdir"): "asks where temporary files are",
    ("testing.py", "shutil.copytree"): "copies a checkpoint within the helper's folder",
    ("testing.py", "tempfile.TemporaryDirectory"): "the helper's folder, which goes at its end",
    ("cli/group.py", "os.open"): "/dev/null in place of a pipe that nobody reads",
}


def within(path):
    """Name a module inside the package."""
    return path.relative_to(PACKAGE).as_posix()


@pytest.mark.parametrize("path", MODULES, ids=label)
def test_nothing_is_unpickled_or_evaluated(path):
    """No module imports pickle or its kin, or calls eval, exec or torch.load."""
    imported = set()
    for node in ast.walk(syntax(path)):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add((node.module or "").split(".")[0])
    assert not imported & FORBIDDEN_MODULES
    called = {name for _, name in calls(path) if name in FORBIDDEN_CALLS}
    assert {name for name in called if (within(path), name) not in RUNS_CODE} == set()


@pytest.mark.parametrize("path", MODULES, ids=label)
def test_no_shell(path):
    """No process is started through a shell."""
    assert [name for node, name in calls(path) if any(each.arg == "shell" for each in node.keywords)] == []


@pytest.mark.parametrize("path", [path for path in MODULES if within(path) != "store/files.py"], ids=label)
def test_files_are_changed_in_one_place(path):
    """Every call that changes files goes through store/files.py, or stands in the list with its reason."""
    found = {name for node, name in calls(path) if changes_files(node, name)}
    assert {name for name in found if (within(path), name) not in WRITES} == set()


def changes_files(node, name):
    """Tell whether a call may change files; `files.…` is the one place, and reading is no change."""
    if name.startswith(("files.", "system.")) or name in {"shutil.disk_usage", "shutil.which"}:
        return False
    if name.startswith(("shutil.", "tempfile.")):
        return True
    method = name.rpartition(".")[2]
    if name in CHANGES_FILES - {"open"} or method in CHANGING_METHODS - {"open"}:
        return True
    is_path_replace = method == "replace" and "." in name and len(node.args) == 1 and not node.keywords
    return is_path_replace or (method == "open" and not reads_only(node, is_method="." in name))


def reads_only(node, *, is_method):
    """Tell whether `open(path, mode)` or `path.open(mode)` opens for reading."""
    modes = [each.value for each in node.keywords if each.arg == "mode"] + node.args[0 if is_method else 1 :][:1]
    return all(isinstance(each, ast.Constant) and not set(str(each.value)) & set("wax+") for each in modes)


KEEPS_ERRORS = {
    # module, what keeps it: why its traceback does no harm
    ("signals.py", "self._raised"): "raised again as soon as the state is saved",
}


@pytest.mark.parametrize("path", MODULES, ids=label)
def test_no_error_is_kept_with_its_traceback(path):
    """No caught error is given to a log or an attribute: its traceback would keep the loop's frames alive."""
    kept = set()
    for handler in ast.walk(syntax(path)):
        if isinstance(handler, ast.ExceptHandler) and handler.name:
            kept |= {ast.unparse(keeper) for node in ast.walk(handler) for keeper in keepers(node, handler.name)}
    assert {keeper for keeper in kept if (within(path), keeper) not in KEEPS_ERRORS} == set()


def keepers(node, error):
    """Give the attributes and log calls of a statement or expression that are given an error as it is."""
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name) and node.value.id == error:
        return [target for target in node.targets if not isinstance(target, ast.Name)]
    is_log = isinstance(node, ast.Call) and ast.unparse(node.func).startswith(("log.", "_log."))
    return [node] if is_log and any(isinstance(each, ast.Name) and each.id == error for each in node.args) else []


def test_the_lists_hold_nothing_stale():
    """Every exception in the lists is still needed."""
    used = {(within(path), name) for path in MODULES for _, name in calls(path)}
    assert set(WRITES) | set(RUNS_CODE) <= used
