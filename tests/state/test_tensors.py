"""Claims about tensors: their bytes, digests and strides are exact for every dtype and layout."""

import itertools
import operator
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from samestep.errors import CorruptCheckpoint
from samestep.state.digest import Digest
from samestep.state.tensors import (
    copy_into,
    copy_of,
    digest,
    dtype_from_name,
    dtype_name,
    placed,
    tensor_bytes,
    why_unsupported,
    with_strides,
)

QUANTIZED_OR_WARNING = {torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4, torch.complex32}
ALL = {each for each in vars(torch).values() if isinstance(each, torch.dtype)} - QUANTIZED_OR_WARNING
DTYPES = sorted((each for each in ALL if why_unsupported(torch.empty(0, dtype=each)) is None), key=str)


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_name)
def test_bytes_of_every_dtype(dtype):
    """Any dtype gives its elements' bytes, is copied with strides to the same bytes, and keeps its name."""
    raw = torch.arange(96, dtype=torch.uint8)
    tensor = (raw % 2 == 1) if dtype == torch.bool else raw.view(dtype)
    expected = tensor.view(torch.uint8).numpy().tobytes()
    assert tensor_bytes(tensor).tobytes() == expected
    assert tensor_bytes(with_strides(tensor, (3,))).tobytes() == expected
    assert dtype_from_name(dtype_name(dtype)) is dtype


def test_contiguous_tensors_are_not_copied():
    """The bytes of a contiguous tensor are its own memory, also if it needs a gradient."""
    tensor = torch.zeros(4, requires_grad=True)
    view = tensor_bytes(tensor)
    tensor.data.fill_(1)
    assert view.tobytes() == b"\x00\x00\x80\x3f" * 4


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor(3.5),
        torch.empty(0, 3),
        torch.arange(6.0).reshape(2, 3).t(),
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.ones(1).expand(3),
        torch.randn(3, dtype=torch.complex64).conj(),
        torch.randn(3, dtype=torch.complex64).conj().imag,
    ],
    ids=["0-dim", "empty", "transposed", "channels_last", "expanded", "conjugate", "negative"],
)
def test_bytes_are_logical_elements_in_row_major_order(tensor):
    """Strides and pending operations do not show in the bytes or the digest."""
    plain = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor)
    assert tensor_bytes(tensor).tobytes() == plain.numpy().tobytes()
    assert digest(tensor) == digest(plain)
    assert copy_of(tensor).stride() == tensor.stride()


def test_digests_see_what_sums_miss():
    """Swapped elements, the sign of zero, NaN payloads, dtype and shape all change the digest."""
    tensor = torch.tensor([1.0, 2.0, 0.0])
    nan = torch.tensor([0x7FC00001, 0x40000000, 0], dtype=torch.int32).view(torch.float32)
    other = torch.tensor([0x7FC00002, 0x40000000, 0], dtype=torch.int32).view(torch.float32)
    minus = torch.tensor([1.0, 2.0, -0.0])
    variants = [tensor, tensor.flip(0), minus, nan, other, tensor.view(torch.int32), tensor[None]]
    assert len({digest(each) for each in variants}) == len(variants)


def test_the_digest_is_fixed():
    """The digest of a known tensor never changes: checkpoints of every release must verify."""
    assert digest(torch.arange(4.0)) == Digest_of("float32", [4], torch.arange(4.0).numpy().tobytes())
    assert digest(torch.arange(4.0)) == "62113c3c0de444b40ae18917c34b5369"


def Digest_of(dtype, shape, content):  # noqa: N802
    """Feed the bytes one by one."""
    result = Digest(dtype, shape)
    for byte in content:
        result.update(bytes([byte]))
    return result.hexdigest()


def test_digests_need_no_torch():
    """`samestep verify` starts without torch and NumPy, so the digest does too."""
    code = "import sys, samestep.state.digest, samestep.state.source; print({'torch', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout.strip() == "set()"


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 20)), max_size=4))
def test_strides_are_exact_or_refused(layout):
    """A tensor gets exactly the strides asked for and its own elements, or two that differ would share a place."""
    shape, strides = [size for size, _ in layout], [stride for _, stride in layout]
    tensor = torch.arange(torch.Size(shape).numel()).reshape(shape)
    places = [sum(map(operator.mul, index, strides)) for index in itertools.product(*map(range, shape))]
    if len(set(places)) < len(places):
        with pytest.raises(CorruptCheckpoint, match="differ on one place"):
            with_strides(tensor, strides)
        tensor = torch.full(shape, 7)
    result = with_strides(tensor, strides)
    assert (result.shape, result.stride()) == (tensor.shape, tuple(strides))
    assert torch.equal(result, tensor)


@pytest.mark.parametrize("strides", [(1,), (1, 2, 3), (-1, 1), ()])
def test_impossible_strides_are_corrupt(strides):
    """Strides that cannot belong to the shape are an error of ours, not of torch's."""
    with pytest.raises(CorruptCheckpoint, match="strides"):
        with_strides(torch.zeros(2, 2), strides)


def test_gaps_are_zero():
    """What lies between the elements is zero, so that equal tensors make equal files."""
    result = with_strides(torch.ones(2, 2), (7, 2))
    assert result.as_strided((10,), (1,)).tolist() == [1, 0, 1, 0, 0, 0, 0, 1, 0, 1]


def test_unknown_dtypes_are_corrupt():
    """A dtype's name is never looked up as anything else."""
    for name in ("float", "save", "Tensor", "", "torch.float32", 3):
        with pytest.raises(CorruptCheckpoint, match="no dtype"):
            dtype_from_name(name)


def test_copying_keeps_the_identity_and_takes_over_the_strides():
    """A live tensor gets elements and strides; where the strides agree its memory stays the same."""
    live = torch.nn.Parameter(torch.zeros(2, 3))
    memory = live.data_ptr()
    copy_into(live, torch.ones(2, 3))
    assert live.data_ptr() == memory
    copy_into(live, torch.full((3, 2), 2.0).t())
    assert live.stride() == (1, 2)
    assert live.unique().tolist() == [2]
    assert live.requires_grad
    assert placed(live[:, ::2], "cpu").stride() == (1, 4)


@pytest.mark.parametrize(
    "tensor",
    [torch.zeros(()).expand(1), torch.arange(10.0)[5::7][:1], torch.ones(3, 4)[:1, 2], torch.ones(2, 3)[:1, :1].t()],
    ids=lambda tensor: f"{list(tensor.shape)} {list(tensor.stride())}",
)
def test_a_single_element_may_have_any_stride(tensor):
    """A tensor of one element, cut out of a larger one, has its bytes and digest, whatever its strides."""
    assert tensor_bytes(tensor).tobytes() == tensor.numpy().tobytes()
    assert digest(tensor) == digest(tensor.clone().reshape(tensor.shape))
    assert with_strides(tensor, tensor.stride()).stride() == tensor.stride()


def test_bytes_of_bool_are_kept():
    """Truth that was written as another byte than 1 keeps that byte: a copy has the digest of its original."""
    tensor = torch.tensor([0, 1, 2, 255], dtype=torch.uint8).view(torch.bool)
    target = torch.zeros(4, dtype=torch.bool)
    copy_into(target, tensor)
    for copied in (copy_of(tensor), with_strides(tensor, (2,)), target):
        assert tensor_bytes(copied).tobytes() == bytes([0, 1, 2, 255])


def test_expanded_tensors_are_compared_without_being_written_out():
    """An expanded tensor of 2**50 elements is copied with its strides in no time and memory."""
    assert with_strides(torch.ones(1).expand(2**50), (0,)).stride() == (0,)
