"""Claims about safetensors files: what is written opens elsewhere, what is hostile is refused."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from samestep.errors import CorruptCheckpoint
from samestep.store.dtypes import ELEMENT_TYPES
from samestep.store.manifest import TensorEntry
from samestep.store.safetensors_file import Elements, build_header, key_of, locate, parse_header, write_tensors


def header(content, data=b""):
    """Give a file's bytes with this header."""
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    return len(text).to_bytes(8, "little") + text + data


def tensor(begin=0, end=4, dtype="F32", shape=(1,), **more):
    """Give a header's entry."""
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end], **more}


def parse(data):
    """Parse a file's bytes."""
    return parse_header(data, len(data), "x.safetensors")


def elements(values):
    """Wrap a tensor for writing."""
    name = str(values.dtype).removeprefix("torch.")
    return Elements(name, list(values.shape), lambda: memoryview(values.reshape(-1).view(torch.uint8).numpy()))


def test_bytes_are_as_specified(tmp_path):
    """The file's bytes are those that the specification says, literally."""
    path = tmp_path / "x.safetensors"
    entry, digests = write_tensors(path, {"b": elements(torch.ones(1, dtype=torch.int8)), "a": elements(torch.ones(1))})
    assert path.read_bytes() == (
        b"\x90\0\0\0\0\0\0\0"
        b'{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},'
        b'"b":{"dtype":"I8","shape":[1],"data_offsets":[4,5]}}       '
        b"\0\0\x80\x3f\x01"
    )
    assert entry.bytes == path.stat().st_size
    assert digests.keys() == {"a", "b"}


def test_opens_in_the_safetensors_library(tmp_path):
    """The safetensors library reads every element type that it knows, with names of any script."""
    tensors = {
        f"层.{name}": torch.arange(6).reshape(2, 3).to(getattr(torch, name))
        for name, element in ELEMENT_TYPES.items()
        if element.code
    }
    write_tensors(tmp_path / "x.safetensors", {name: elements(value) for name, value in tensors.items()})
    loaded = load_file(tmp_path / "x.safetensors")
    assert loaded.keys() == tensors.keys()
    for name, value in tensors.items():
        assert loaded[name].dtype == value.dtype
        assert loaded[name].view(torch.uint8).equal(value.view(torch.uint8))


def test_every_tensor_is_aligned(tmp_path):
    """Elements begin at a multiple of their size, so that a mapped file can be used as it is."""
    tensors = {
        str(i): elements(torch.ones(i + 1, dtype=d)) for i, d in enumerate([torch.int8, torch.float64, torch.half])
    }
    write_tensors(tmp_path / "x.safetensors", tensors)
    entries, begin = parse((tmp_path / "x.safetensors").read_bytes())
    assert begin % 8 == 0
    assert all(entries[name].data_offsets[0] % ELEMENT_TYPES[tensors[name].dtype].size == 0 for name in tensors)


@settings(deadline=None)
@given(st.lists(st.sampled_from(["__metadata__", "__metadata__.", "__metadata__..", "a", "a.", ""]), unique=True))
def test_names_and_keys_are_one_to_one(names):
    """Different names get different keys, none of them the one that safetensors keeps for itself."""
    keys = [key_of(name) for name in names]
    assert len(set(keys)) == len(names)
    assert "__metadata__" not in keys


HOSTILE = {
    "empty file": b"",
    "seven bytes": b"1234567",
    "header of 2**63 bytes": (2**63).to_bytes(8, "little") + b"{}",
    "header of 2**64-1 bytes": b"\xff" * 8 + b"{}",
    "header longer than the file": header({})[:-1],
    "pickle": b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00\x8c\x02os\x94.",
    "zip": b"PK\x03\x04" + b"\0" * 60,
    "header of nothing": header(b""),
    "list": header(b"[]"),
    "space first": header(b" {}"),
    "not JSON": header(b"{a}"),
    "not UTF-8": header(b'{"\xff":1}'),
    "deep nesting": header(b'{"a":' * 100_000),
    "deep list": header(b'{"a":' + b"[" * 100_000),
    "duplicate key": header(b'{"a":%s,"a":%s}' % ((json.dumps(tensor()).encode(),) * 2), b"1234"),
    "offsets NaN": header(b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[NaN,4]}}', b"1234"),
    "offsets infinite": header(b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,1e999]}}', b"1234"),
    "offsets fractional": header({"a": tensor(0, 4.5)}, b"1234"),
    "offsets negative": header({"a": tensor(-4, 0)}, b"1234"),
    "offsets reversed": header({"a": tensor(4, 0)}, b"1234"),
    "offsets huge": header({"a": tensor(0, 10**4000)}, b"1234"),
    "offsets of three": header({"a": tensor() | {"data_offsets": [0, 4, 8]}}, b"1234"),
    "offsets behind the file": header({"a": tensor(0, 8, shape=[2])}, b"1234"),
    "overlap": header({"a": tensor(0, 4), "b": tensor(2, 6)}, b"123456"),
    "same place": header({"a": tensor(0, 4), "b": tensor(0, 4)}, b"1234"),
    "hole": header({"a": tensor(0, 4), "b": tensor(6, 10)}, b"1234567890"),
    "hole at the beginning": header({"a": tensor(2, 6)}, b"123456"),
    "bytes left over": header({"a": tensor()}, b"12345"),
    "shape negative": header({"a": tensor(shape=[-1])}, b"1234"),
    "shape that overflows": header({"a": tensor(shape=[2**32, 2**32])}, b"1234"),
    "shape of another size": header({"a": tensor(shape=[2])}, b"1234"),
    "shape of 66 dimensions": header({"a": tensor(shape=[1] * 66)}, b"1234"),
    "unknown member": header({"a": tensor(evil=1)}, b"1234"),
    "dtype as number": header({"a": tensor(dtype=1)}, b"1234"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_header(name):
    """A hostile header is refused by one sentence, without a crash and without memory for its claims."""
    with pytest.raises(CorruptCheckpoint) as caught:
        parse(HOSTILE[name])
    assert caught.value.message.count(".") == 1


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes(data):
    """Any bytes are a header or a CorruptCheckpoint, with a right length or without."""
    for each in (data, header(data), header(b'{"a":' + data + b"}"), header({"a": tensor()}, data)):
        try:
            parse(each)
        except CorruptCheckpoint:
            continue


def test_header_and_manifest_must_agree():
    """A header that names other tensors than the manifest, or describes them otherwise, is refused."""
    entry = TensorEntry(file="x.safetensors", dtype="float32", shape=[1], strides=[1], digest="0" * 32)
    entries, _ = parse(build_header({"a": Elements("float32", [1], lambda: memoryview(b""))}) + b"1234")
    assert locate(entries, {"a": entry}, "x") == {"a": (0, 4)}
    integer = TensorEntry(file="x.safetensors", dtype="int32", shape=[1], strides=[1], digest="0" * 32)
    for other in ({}, {"b": entry}, {"a": entry, "b": entry}, {"a": integer}):
        with pytest.raises(CorruptCheckpoint):
            locate(entries, other, "x")
