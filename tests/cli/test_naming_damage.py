"""What `samestep verify` names for damage at any byte of any file of tensors."""

import json

import pytest


def owners(data):
    """Give for each byte of a safetensors file the tensor that it belongs to; None in the header."""
    begin = 8 + int.from_bytes(data[:8], "little")
    names = [None] * len(data)
    for name, entry in json.loads(data[8:begin]).items():
        if name != "__metadata__":
            first, last = entry["data_offsets"]
            names[begin + first : begin + last] = [name] * (last - first)
    return names


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors"])
def test_verify_names_the_tensor_of_any_damaged_byte(digits, samestep_json, name):
    """A flipped bit in any byte of a file of tensors is status 1, and the file and that byte's tensor are named."""
    checkpoint = digits / "checkpoints" / "step-000000300"
    path = checkpoint / name
    whole = path.read_bytes()
    found = {"tensor": 0, "header": 0}
    for index, owner in enumerate(owners(whole)):
        data = bytearray(whole)
        data[index] ^= 1 << index % 8
        path.write_bytes(data)
        status, verdict = samestep_json("verify", checkpoint)
        ((problem,),) = [each["problems"] for each in verdict["checkpoints"]]
        assert (status, problem["file"], problem["tensor"]) == (1, name, owner), index
        found["header" if owner is None else "tensor"] += 1
    path.write_bytes(whole)
    assert samestep_json("verify", checkpoint)[0] == 0
    print(f"{name}: {found['tensor']} bytes of tensors and {found['header']} of the header, all named")  # noqa: T201
