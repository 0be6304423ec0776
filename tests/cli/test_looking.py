"""What ls, inspect, diff and verify say."""

import os

import pytest
from small_training import snapshot

from samestep.state.codec import encode
from samestep.store.manifest import MANIFEST_FILE
from samestep.store.retention import Keep
from samestep.store.store import Store


def checkpoint(run, step):
    return run / "checkpoints" / f"step-{step:09d}"


def flip_bit(path, offset=-1):
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)


# --- ls ---


def test_ls_lists_steps_sizes_and_scores(digits, samestep_json):
    """Ls gives each checkpoint's step, epoch, bytes, metrics and tags, oldest first, and its real size on disk."""
    status, found = samestep_json("ls", digits)
    assert status == 0
    assert [each["step"] for each in found["checkpoints"]] == [100, 200, 300]
    second = found["checkpoints"][1]
    assert second["metrics"] == {"acc": 0.9, "loss": "nan"}
    assert (second["epoch"], second["tags"], second["status"]) == (2, ["good"], "complete")
    assert second["bytes"] == sum(path.stat().st_size for path in checkpoint(digits, 200).iterdir())


def test_ls_in_words(digits, samestep):
    """Without --json ls prints a table for people."""
    status, out, err = samestep("ls", digits)
    assert (status, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines()] == ["step", "100", "200", "300"]
    assert "acc 0.9, loss nan" in out


def test_ls_names_the_signal_that_ended_a_training(digits, samestep, samestep_json):
    """In words an attempt that a signal ended says which by its name; the file and --json keep the number."""
    (digits / "attempts.jsonl").write_text('{"attempt": 1, "how": "signal 15", "steps": 300}\n')
    assert "signal 15 (SIGTERM) at step 300" in samestep("ls", digits)[1]
    assert samestep_json("ls", digits)[1]["attempts"][0]["how"] == "signal 15"


def test_ls_marks_what_does_not_count(digits, samestep, samestep_json):
    """A torn, a damaged and a quarantined checkpoint appear as such, and an unfinished save is counted."""
    (checkpoint(digits, 100) / MANIFEST_FILE).unlink()
    flip_bit(checkpoint(digits, 200) / MANIFEST_FILE)
    aside = digits / "checkpoints" / "quarantine"
    aside.mkdir()
    checkpoint(digits, 300).rename(aside / "step-000000300-12ab34cd")
    (digits / "checkpoints" / ".tmp-1234").mkdir()
    status, found = samestep_json("ls", digits)
    assert status == 0
    assert [(each["step"], each["status"]) for each in found["checkpoints"]] == [
        (100, "torn"),
        (200, "damaged"),
        (300, "quarantined"),
    ]
    assert all(each["problem"] for each in found["checkpoints"])
    assert found["unfinished"] == 1
    _, out, err = samestep("ls", digits)
    assert "TORN" in out
    assert "quarantine" in err


def test_ls_notices_a_short_file(digits, samestep_json):
    """A checkpoint whose file lost its end is damaged, and the file is named."""
    path = checkpoint(digits, 300) / "model.safetensors"
    os.truncate(path, path.stat().st_size - 1)
    _, found = samestep_json("ls", digits)
    assert found["checkpoints"][2]["status"] == "damaged"
    assert "model.safetensors" in found["checkpoints"][2]["problem"]


def test_ls_of_a_store_without_a_run(digits, samestep_json):
    """The folder of checkpoints itself, as samestep.Store writes it, is listed too."""
    _, found = samestep_json("ls", digits / "checkpoints")
    assert len(found["checkpoints"]) == 3


def test_ls_of_a_run_without_checkpoints(tmp_path, samestep):
    """A run that has saved nothing yet is no error."""
    (tmp_path / "checkpoints").mkdir()
    status, out, err = samestep("ls", tmp_path)
    assert (status, out) == (0, "")
    assert "holds no checkpoint" in err


# --- inspect ---


def test_inspect_shows_items(digits, samestep_json):
    """Inspect gives progress, scores, environment and, for each object, kind, tensors, bytes and dtypes."""
    status, found = samestep_json("inspect", checkpoint(digits, 200))
    assert status == 0
    assert (found["step"], found["epoch"], found["format"]) == (200, 2, 1)
    assert "torch" in found["environment"]
    assert found["items"]["model"] == {
        "kind": "module",
        "tensors": 3,
        "bytes": 192,
        "dtypes": ["float32"],
        "files": ["model.safetensors"],
    }


def test_inspect_names_every_tensor(digits, samestep, samestep_json):
    """With --tensors every tensor stands there with dtype, shape and digest."""
    _, found = samestep_json("inspect", digits, "--tensors")
    (first, *_), count = found["items"]["model"]["tensor_list"], len(found["items"]["model"]["tensor_list"])
    assert count == 3
    assert (first["name"], first["dtype"], first["shape"]) == ("layers.0.weight", "float32", [4, 4])
    _, out, _ = samestep("inspect", digits, "--tensors")
    assert "layers.2.weight  float32  4×4" in out  # noqa: RUF001 — the sign that it prints


def test_inspect_shows_values_of_the_state(digits, samestep):
    """A scheduler's last_epoch is shown beside it."""
    assert "last_epoch=200" in samestep("inspect", f"{digits}@200")[1]


@pytest.mark.parametrize(
    ("which", "step"),
    [("", 300), ("@latest", 300), ("@100", 100), ("@best:acc", 200), ("@best:acc:min", 100), ("@good", 200)],
)
def test_checkpoints_are_named_by_their_run(digits, samestep_json, which, step):
    """RUN means its latest checkpoint, RUN@400 that of a step, RUN@best:METRIC the best, RUN@TAG a tagged one."""
    assert samestep_json("inspect", f"{digits}{which}")[1]["step"] == step


def test_latest_passes_over_damaged_ones(digits, samestep_json):
    """RUN means the newest complete checkpoint, and looking moves nothing into quarantine."""
    flip_bit(checkpoint(digits, 300) / MANIFEST_FILE)
    assert samestep_json("inspect", digits)[1]["step"] == 200
    assert checkpoint(digits, 300).is_dir()


def test_a_directory_with_an_at_sign(digits, samestep_json):
    """A path that exists is taken as it is, also with an @ in its name."""
    renamed = digits.rename(digits.with_name("run@home"))
    assert samestep_json("inspect", renamed)[1]["step"] == 300
    assert samestep_json("inspect", f"{renamed}@100")[1]["step"] == 100


def test_inspect_of_a_damaged_checkpoint(digits, samestep_json):
    """A damaged manifest is status 1 and an error that names the file."""
    flip_bit(checkpoint(digits, 300) / MANIFEST_FILE, offset=100)
    status, found = samestep_json("inspect", checkpoint(digits, 300))
    assert status == 1
    assert found["error"]["kind"] == "CorruptCheckpoint"
    assert found["error"]["where"].endswith(MANIFEST_FILE)


# --- diff ---


def test_equal_checkpoints(digits, samestep, samestep_json):
    """A checkpoint equals itself: status 0."""
    status, found = samestep_json("diff", digits, f"{digits}@300")
    assert (status, found["equal"]) == (0, True)
    assert found["changed"] == found["only_a"] == found["only_b"] == []
    assert samestep("diff", digits, digits)[1].startswith("Equal: 6 tensors")


def test_diff_names_what_changed(digits, samestep, samestep_json):
    """Diff names every tensor and value of the state that differs, by item and path: status 1."""
    status, found = samestep_json("diff", f"{digits}@100", f"{digits}@200")
    assert (status, found["equal"]) == (1, False)
    changed = {(each["item"], each["name"]): each for each in found["changed"]}
    assert changed["scheduler", "last_epoch"]["detail"] == "100 → 200"
    assert changed["optimizer", 'state["layers.0.weight"].step']["kind"] == "value"
    assert "elements differ" in changed["model", "layers.1.weight"]["detail"]
    assert changed["checkpoint", "step"]["detail"] == "100 → 200"
    assert ("optimizer", "groups[0].betas[0]") not in changed
    status, out, _ = samestep("diff", f"{digits}@100", f"{digits}@200")
    assert status == 1
    assert "last_epoch" in out


def written(directory, state):
    return Store(directory, keep=Keep(last=9)).write(state).path


def test_diff_names_what_only_one_has(tmp_path, samestep_json):
    """Objects, tensors and values that only one side has are listed apart."""
    a = snapshot(100)
    b = snapshot(100, layers=4)
    del b.items["scheduler"]
    _, found = samestep_json("diff", written(tmp_path / "a", a), written(tmp_path / "b", b))
    assert [(each["item"], each["kind"]) for each in found["only_a"]] == [("scheduler", "item")]
    names = [(each["item"], each["name"], each["kind"]) for each in found["only_b"]]
    assert ("model", "layers.3.weight", "tensor") in names
    assert ("optimizer", 'state["layers.3.weight"]', "value") in names
    assert found["changed"] == []


@pytest.mark.parametrize(
    ("a", "b", "name"),
    [
        (1, 1.0, "x"),
        (1, True, "x"),
        (0.0, -0.0, "x"),
        ([1, 2], [1, 3], "x[1]"),
        ([1], [1, 2], "x[1]"),
        ({"a": {"b c": 1}}, {"a": {"b c": 2}}, 'x.a["b c"]'),
        ({"$kind": "tuple", "value": [0.9, [1]]}, {"$kind": "tuple", "value": [0.9, [2]]}, "x[1][0]"),
        ({"$kind": "tuple", "value": [[1]]}, [[1]], "x"),
        ({"$kind": "dict", "value": [[1, 5]]}, {"$kind": "dict", "value": [[1, 6]]}, "x[1]"),
        (
            {"$kind": "OrderedDict", "value": [["a", 1], ["b", 2]]},
            {"$kind": "OrderedDict", "value": [["b", 2], ["a", 1]]},
            "x",
        ),
        ({"$tensor": "layers.0.weight.exp_avg"}, {"$tensor": "layers.1.weight.exp_avg"}, "x"),
    ],
)
def test_diff_is_exact_about_values(tmp_path, samestep_json, a, b, name):
    """Values that are not the same bits and types differ, and the path of the leaf is named."""
    paths = []
    for side, value in (("a", a), ("b", b)):
        state = snapshot(100)
        state.items["optimizer"].tree["x"] = value
        paths.append(written(tmp_path / side, state))
    status, found = samestep_json("diff", *paths)
    assert status == 1
    every = [*found["changed"], *found["only_a"], *found["only_b"]]
    assert [(each["item"], each["name"]) for each in every] == [("optimizer", name)]


def test_diff_shows_numbers_that_json_lacks(tmp_path, samestep_json):
    """NaN and infinities, which the state keeps as bits, are shown as numbers."""
    a, b = snapshot(100), snapshot(100)
    a.items["scheduler"].tree["best"] = encode(float("inf"), "best")[0]
    b.items["scheduler"].tree["best"] = 0.5
    _, found = samestep_json("diff", written(tmp_path / "a", a), written(tmp_path / "b", b))
    assert [each["detail"] for each in found["changed"]] == ["inf → 0.5"]


def test_diff_sees_memory_layout(tmp_path, samestep_json):
    """A tensor with the same elements and other strides is different: strides decide kernels, so bits."""
    a, b = snapshot(100), snapshot(100)
    b.items["model"].tensors["layers.0.weight"] = b.items["model"].tensors["layers.0.weight"].T.contiguous().T
    _, found = samestep_json("diff", written(tmp_path / "a", a), written(tmp_path / "b", b))
    assert [each["detail"] for each in found["changed"]] == ["strides [4, 1] → [1, 4]"]


# --- verify ---


def test_verify_of_a_sound_run(digits, samestep, samestep_json):
    """All digests of all checkpoints hold: status 0."""
    status, found = samestep_json("verify", digits)
    assert (status, found["ok"]) == (0, True)
    assert [each["problems"] for each in found["checkpoints"]] == [[], [], []]
    assert samestep("verify", f"{digits}@200")[1].endswith("sound\n")


def test_verify_names_the_flipped_tensor(digits, samestep, samestep_json):
    """One flipped bit is status 1, and file and tensor are named."""
    flip_bit(checkpoint(digits, 200) / "model.safetensors")
    status, found = samestep_json("verify", digits)
    assert (status, found["ok"]) == (1, False)
    (problem,) = found["checkpoints"][1]["problems"]
    assert (problem["file"], problem["tensor"]) == ("model.safetensors", "layers.2.weight")
    status, out, _ = samestep("verify", checkpoint(digits, 200))
    assert status == 1
    assert "layers.2.weight" in out


def test_verify_of_a_torn_checkpoint(digits, samestep_json):
    """A folder named like a checkpoint without a manifest does not pass."""
    (checkpoint(digits, 300) / MANIFEST_FILE).unlink()
    status, found = samestep_json("verify", digits)
    assert status == 1
    assert found["checkpoints"][2]["problems"][0]["file"] == MANIFEST_FILE
