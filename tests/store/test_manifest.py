"""Claims about the manifest: its bytes, its schema, and what is refused."""

import json
import math
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_snapshots import make_snapshot
from sealing import places, seal, unsealed

from samestep.errors import CorruptCheckpoint, UnsupportedValue
from samestep.store import manifest as module
from samestep.store.manifest import (
    Manifest,
    NewerFormat,
    decode_manifest,
    encode_manifest,
    json_schema,
    metric_entries,
    metric_values,
)
from samestep.store.writing import write_checkpoint

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def content(tmp_path):
    """Give the content of a real manifest, to be spoiled."""
    checkpoint = write_checkpoint(tmp_path, make_snapshot(4, metrics={"acc": 0.5}), {"torch": "2.13.0"}, ["pinned"])
    return unsealed(checkpoint.path)


def empty(**changes):
    """Make a manifest without tensors."""
    fields = {
        "step": 1, "epoch": None, "metrics": {}, "tags": [], "created": "2026-11-29T23:26:29Z",
        "files": [], "items": {}, "environment": {},
    }  # fmt: skip
    return Manifest(**(fields | changes))


def test_bytes_are_as_specified():
    """The manifest's bytes are those that the specification says, literally."""
    assert encode_manifest(empty()) == (
        b'{"format":1,"step":1,"epoch":null,"metrics":{},"tags":[],"created":"2026-11-29T23:26:29Z",'
        b'"files":[],"items":{},"environment":{},"digest":"4a987a9c8e520ee582b14eb786f7b21f"}\n'
    )


def test_schema_in_the_docs_is_the_one_of_the_code():
    """docs/manifest.schema.json says of every field what the code enforces."""
    assert json.loads((DOCS / "manifest.schema.json").read_bytes()) == json_schema()


def test_real_manifests_fit_the_schema(tmp_path):
    """A written manifest is valid by the JSON Schema, NaN scores and all."""
    checkpoint = write_checkpoint(tmp_path, make_snapshot(4, metrics={"a": math.nan, "b": -math.inf, "c": 1.5}), {})
    schema = json.loads((DOCS / "manifest.schema.json").read_bytes())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(json.loads((checkpoint.path / "manifest.json").read_bytes()), schema)


@settings(deadline=None)
@given(st.dictionaries(st.text(), st.floats() | st.integers(-5, 5)))
def test_metrics_come_back(metrics):
    """Scores come back exactly, NaN and infinities too."""
    decoded = decode_manifest(encode_manifest(empty(metrics=metric_entries(metrics))))
    assert {key: repr(value) for key, value in metric_values(decoded).items()} == {
        key: repr(float(value)) for key, value in metrics.items()
    }


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@settings(deadline=None)
@given(json_values)
def test_environment_comes_back(value):
    """Any plain JSON comes back equal from the environment."""
    environment = {"value": value}
    assert repr(decode_manifest(encode_manifest(empty(environment=environment))).environment) == repr(environment)


@pytest.mark.parametrize(
    "value",
    [math.nan, math.inf, (1, 2), {1: 2}, "\ud800", 10**5000, object(), {1, 2}],
    ids=lambda value: type(value).__name__,
)
def test_what_would_come_back_changed_is_not_written(value):
    """What JSON would change in silence is refused when writing."""
    with pytest.raises(UnsupportedValue):
        encode_manifest(empty(environment={"value": value}))


def test_deep_nesting_is_not_written():
    """Nesting that could not be read again is refused when writing, without a crash."""
    value = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(UnsupportedValue):
        encode_manifest(empty(environment={"value": value}))


# --- hostile manifests, each with a right digest --------------------------------------------------------


def _entry(content):
    return content["items"]["model"]["tensors"]["weight"]


def _set(*path, value):
    def spoil(content):
        for key in path[:-1]:
            content = content[key]
        content[path[-1]] = value

    return spoil


WEIGHT = ("items", "model", "tensors", "weight")
HOSTILE = {
    "step as text": _set("step", value="4"),
    "step negative": _set("step", value=-1),
    "step fractional": _set("step", value=4.5),
    "step true": _set("step", value=True),
    "step of thousands of digits": _set("step", value=10**4000),
    "step beyond 2**62": _set("step", value=2**62 + 1),
    "format 0": _set("format", value=0),
    "format as text": _set("format", value="1"),
    "format huge": _set("format", value=10**30),
    "unknown member": _set("surprise", value=1),
    "metrics as list": _set("metrics", value=[1]),
    "metric beyond all floats": _set("metrics", value={"acc": 10**400}),
    "metric true": _set("metrics", value={"acc": True}),
    "tags of numbers": _set("tags", value=[1]),
    "epoch negative": _set("epoch", value=-1),
    "kind as number": _set("items", "model", "kind", value=1),
    "environment as list": _set("environment", value=[]),
    "metric as text": _set("metrics", value={"acc": "high"}),
    "items as list": _set("items", value=[]),
    "created not a time": _set("created", value="yesterday"),
    "created no such day": _set("created", value="2026-13-45T99:99:99Z"),
    "created with line feed": _set("created", value="2026-11-29T23:26:29Z\n"),
    "file outside": _set("files", 0, "name", value="../model.safetensors"),
    "file absolute": _set("files", 0, "name", value="/etc/passwd"),
    "file in folder": _set("files", 0, "name", value="a/model.safetensors"),
    "file with backslash": _set("files", 0, "name", value="a\\model.safetensors"),
    "file with NUL": _set("files", 0, "name", value="model\0.safetensors"),
    "file with line feed": _set("files", 0, "name", value="model.safetensors\n"),
    "file of another kind": _set("files", 0, "name", value="model.pt"),
    "file hidden": _set("files", 0, "name", value=".model.safetensors"),
    "file with long name": _set("files", 0, "name", value="a" * 300 + ".safetensors"),
    "file in other letters": _set("files", 0, "name", value="ｍodel.safetensors"),  # noqa: RUF001
    "file with a right-to-left mark": _set("files", 0, "name", value="model\u202e.safetensors"),
    "file with a combining mark": _set("files", 0, "name", value="mode\u0301l.safetensors"),
    "file twice but for its case": lambda content: content["files"].append(
        content["files"][0] | {"name": content["files"][0]["name"].replace("model", "MODEL")}
    ),
    "the manifest as its own file": _set("files", 0, "name", value="manifest.json"),
    "file's size true": _set("files", 0, "bytes", value=True),
    "file's size fractional": _set("files", 0, "bytes", value=1.0),
    "file's size huge": _set("files", 0, "bytes", value=2**64),
    "file's size negative": _set("files", 0, "bytes", value=-1),
    "file's digest short": _set("files", 0, "digest", value="ab"),
    "tensor outside": _set(*WEIGHT, "file", value="../../model.safetensors"),
    "tensor in no file": _set(*WEIGHT, "file", value="other.safetensors"),
    "tensor in another item's file": _set(*WEIGHT, "file", value="random.safetensors"),
    "dtype unknown": _set(*WEIGHT, "dtype", value="float1024"),
    "dtype of Python": _set(*WEIGHT, "dtype", value="__class__"),
    "shape negative": _set(*WEIGHT, "shape", value=[-2, 3]),
    "shape huge": _set(*WEIGHT, "shape", value=[2**61, 2**61]),
    "shape larger than the file": _set(*WEIGHT, "shape", value=[20, 30]),
    "shape of 65 dimensions": _set(*WEIGHT, "shape", value=[1] * 65),
    "shape true": _set(*WEIGHT, "shape", value=[True, 3]),
    "shape of numbers of 4000 digits": _set(*WEIGHT, "shape", value=[10**3999, 3]),
    "shape that overflows and is empty": _set(*WEIGHT, "shape", value=[2**64, 0]),
    "dtype of a module": _set(*WEIGHT, "dtype", value="onnx"),
    "dtype with its package": _set(*WEIGHT, "dtype", value="torch.float32"),
    "strides of another length": _set(*WEIGHT, "strides", value=[3]),
    "strides negative": _set(*WEIGHT, "strides", value=[-3, 1]),
    "strides that exhaust the memory": _set(*WEIGHT, "strides", value=[2**40, 1]),
    "no tensors": lambda content: content["items"]["model"].pop("tensors"),
    "file twice": lambda content: content["files"].append(content["files"][0]),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_manifest(content, name):
    """A manifest with a right digest and a wrong content is refused by one sentence."""
    decode_manifest(seal(content))
    HOSTILE[name](content)
    with pytest.raises(CorruptCheckpoint) as caught:
        decode_manifest(seal(content))
    assert ". " not in caught.value.message
    assert len(caught.value.message) < 100


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null}",
        b"[1,2]}",
        b'{"format":1}',
        b'{"format":1,}',
        b'{"format":1,"step":NaN}',
        b'{"format":1,"step":1e999}',
        b'{"format":1,"environment":' + b"[" * 100_000 + b"}",
        b'{"format":1,"environment":' + b'{"a":' * 100_000 + b"}",
        b'{"format":1,"a":"\xff"}',
        b'{"format":1,"a":"\\ud800"}',
        b"\x80\x04\x95.}",
        b'{"step":1,"format":1}',
    ],
    ids=lambda body: repr(body[:20]),
)
def test_hostile_bytes(body):
    """Bytes that are no manifest, with a right digest, are refused without a crash."""
    with pytest.raises(CorruptCheckpoint):
        decode_manifest(seal(body))


@pytest.mark.parametrize("duplicate", ['"step":4', '"environment":{"a":1,"a":1}'])
def test_duplicate_keys(content, duplicate):
    """A key that comes twice is refused, in the manifest's own members and in free-form ones."""
    del content["environment"]
    text = json.dumps(content, separators=(",", ":")).removesuffix("}") + ',"environment":{}}'
    decode_manifest(seal(text.encode()))
    spoiled = text.replace('"environment":{}', duplicate if "env" in duplicate else f'"environment":{{}},{duplicate}')
    with pytest.raises(CorruptCheckpoint, match="not one of format 1") as caught:
        decode_manifest(seal(spoiled.encode()))
    assert "same key twice" in caught.value.found


def test_newer_format(content):
    """An intact manifest of a newer format says so, and what to do."""
    content["format"] = 2
    content["unheard of"] = 1
    with pytest.raises(NewerFormat, match="newer version") as caught:
        decode_manifest(seal(content))
    assert "pip install" in caught.value.hint


def test_too_large(monkeypatch):
    """A manifest beyond the limit is refused before it is decoded."""
    data = encode_manifest(empty())
    monkeypatch.setattr(module, "MOST_MANIFEST_BYTES", len(data) - 1)
    with pytest.raises(CorruptCheckpoint, match="too large"):
        decode_manifest(data)


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes(data):
    """Any bytes are a manifest or a CorruptCheckpoint, with a right digest or without."""
    for each in (data, seal(data + b"}"), seal(b'{"format":1,' + data + b"}")):
        try:
            decode_manifest(each)
        except CorruptCheckpoint:
            continue


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_spoiled_member(data):
    """A real manifest with any one value replaced by any other is a manifest or a CorruptCheckpoint."""
    content = unsealed(Path(__file__).parent / "golden/step-000000007")
    parent, key = data.draw(st.sampled_from(list(places(content))))
    parent[key] = data.draw(json_values | st.integers(0, 2**70) | st.lists(st.integers(0, 2**63)))
    try:
        decode_manifest(seal(content))
    except CorruptCheckpoint:
        return
