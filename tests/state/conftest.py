"""What the tests of state share: a comparison to the last bit, and a way of items through the form of a file."""

import json

import pytest
import torch

from samestep.state.mark import independent
from samestep.state.snapshot import Item
from samestep.state.tensors import dtype_name, tensor_bytes


def as_bits(tensor):
    """Give dtype, shape, strides and bytes of a tensor."""
    return dtype_name(tensor.dtype), tuple(tensor.shape), tensor.stride(), tensor_bytes(tensor).tobytes()


@pytest.fixture
def bits():
    """Give all tensors of nested containers, and the other values, in a form that `==` compares exactly."""

    def read(value):
        if isinstance(value, torch.Tensor):
            return as_bits(value)
        if isinstance(value, dict):
            return {key if not isinstance(key, torch.Tensor) else id(key): read(each) for key, each in value.items()}
        if isinstance(value, (list, tuple)):
            return [read(each) for each in value]
        return repr(value)

    return read


@pytest.fixture
def stored():
    """Give items as a file would hold them: trees through JSON text, tensors copied with their strides."""

    def through_file(items):
        copies = independent(items)
        return {
            name: Item(item.kind, json.loads(json.dumps(item.tree)), item.tensors, item.extra)
            for name, item in copies.items()
        }

    return through_file
