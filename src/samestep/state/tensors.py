"""Owns what a tensor is: its bytes, strides and dtype name. Never decides which tensors count."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from samestep.errors import CorruptCheckpoint
from samestep.state.digest import Digest
from samestep.wording import shown

_PLAIN_TYPES = (Tensor, torch.nn.Parameter)
_PARTS_OF_BYTES = frozenset(f"{kind}{bits}" for kind in ("int", "uint") for bits in range(1, 8))
_UNSUPPORTED: tuple[tuple[Callable[[Tensor], bool], str], ...] = (
    (torch.nn.parameter.is_lazy, "has no shape yet: run one batch through the lazy module first"),
    (
        lambda tensor: type(tensor) not in _PLAIN_TYPES,
        "is of a subclass of Tensor: store the plain tensors that it is made of",
    ),
    (lambda tensor: tensor.is_nested, "is a nested tensor: store its parts (`unbind()`)"),
    (
        lambda tensor: tensor.layout != torch.strided,
        "is not strided (sparse or the like): store it as `to_dense()`",
    ),
    (lambda tensor: tensor.is_quantized, "is a quantized tensor: store `int_repr()` and its scale"),
    (
        lambda tensor: dtype_name(tensor.dtype) in _PARTS_OF_BYTES,
        "has elements of less than a byte, which torch cannot copy: store it as `view(torch.uint8)`",
    ),
    (
        lambda tensor: tensor.device.type == "meta",
        "is on the meta device and has no bytes: materialise it first (`to_empty`)",
    ),
)


def tensor_bytes(tensor: Tensor) -> memoryview:
    r"""Give the tensor's logical elements as bytes, in row-major order.

    Args:
        tensor: A strided tensor of any dtype on any device.

    Returns:
        A view of unsigned bytes: of the tensor's own memory if it is contiguous and on the CPU, else of a copy.

    Example:
        >>> tensor_bytes(torch.tensor([1, 2], dtype=torch.int16)).tobytes()
        b'\x01\x00\x02\x00'
    """
    plain = _exact(resolved(tensor)).cpu().contiguous()
    if plain.numel() == 0:
        return memoryview(b"")
    return _flat_bytes(plain).numpy().data


def digest(tensor: Tensor) -> str:
    """Hash a tensor's dtype, shape and bytes (not its strides) into 32 hexadecimal digits.

    Example:
        >>> digest(torch.zeros(2)) == digest(torch.zeros(4)[::2])
        True
        >>> digest(torch.zeros(2)) == digest(-torch.zeros(2))
        False
    """
    result = Digest(dtype_name(tensor.dtype), tensor.shape)
    result.update(tensor_bytes(tensor))
    return result.hexdigest()


def with_strides(tensor: Tensor, strides: Sequence[int]) -> Tensor:
    """Copy a tensor's elements into a new tensor that has exactly these strides.

    Args:
        tensor: The elements; the copy stays on its device.
        strides: One stride a dimension, in elements. Gaps are filled with zeros; a dimension of stride 0 keeps
            one element.

    Returns:
        A new tensor without gradient.

    Raises:
        CorruptCheckpoint: The strides cannot belong to the tensor's shape, or put elements that differ on one place.

    Example:
        >>> with_strides(torch.ones(2, 3), (1, 2)).stride()
        (1, 2)
    """
    strides = tuple(strides)
    if len(strides) != tensor.dim() or any(stride < 0 for stride in strides):
        raise CorruptCheckpoint(
            "The strides do not fit the shape.",
            expected=f"{tensor.dim()} strides of 0 or more for shape {list(tensor.shape)}",
            found=list(strides),
        )
    source = resolved(tensor)
    result = torch.empty_strided(source.shape, strides, dtype=source.dtype, device=source.device)
    if result.untyped_storage().nbytes() > source.numel() * source.element_size():
        result.untyped_storage().fill_(0)  # type: ignore[attr-defined]
    _copy_bits(result, source, strides)
    if _has_repeats(result) and not _same_elements(result, source):
        raise CorruptCheckpoint(
            "The strides put elements that differ on one place in memory.",
            expected=f"strides that keep all elements of shape {list(tensor.shape)} apart",
            found=list(strides),
        )
    return result


def copy_of(tensor: Tensor) -> Tensor:
    """Copy a tensor to the CPU with its strides, so that later updates of the original do not show in it."""
    return with_strides(tensor.detach().cpu(), tensor.stride())


def placed(tensor: Tensor, device: torch.device | str) -> Tensor:
    """Move a tensor to a device and keep its strides, which `Tensor.to` loses where there are gaps."""
    moved = tensor.to(device)
    return moved if moved.stride() == tensor.stride() else with_strides(moved, tensor.stride())


def copy_into(target: Tensor, source: Tensor) -> None:
    """Give a live tensor the elements and strides of another of the same shape and dtype, keeping its identity.

    Where the strides agree the bytes are copied in place, so that tensors which share the memory stay tied.
    """
    with torch.no_grad():
        if target.stride() == source.stride():
            _copy_bits(target, source, source.stride())
        else:
            target.data = placed(with_strides(source, source.stride()), target.device)


def resolved(tensor: Tensor) -> Tensor:
    """Detach a tensor and carry out a pending conjugation or negation, whose bytes are not the tensor's yet."""
    return tensor.detach().resolve_conj().resolve_neg()


def is_dense(tensor: Tensor) -> bool:
    """Tell whether the tensor's elements fill their stretch of memory, each place once."""
    return tensor.numel() == extent(tensor.shape, tensor.stride()) and not _has_repeats(tensor)


def extent(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Count the elements from the first to the last place that a tensor of this layout touches."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


def why_unsupported(tensor: Tensor) -> str | None:
    """Say why a tensor cannot be stored exactly: "is a nested tensor: …"; None if it can."""
    return next((reason for is_so, reason in _UNSUPPORTED if is_so(tensor)), None)


def dtype_name(dtype: torch.dtype) -> str:
    """Name a dtype without its package: "float32"."""
    return str(dtype).removeprefix("torch.")


def dtype_from_name(name: str) -> torch.dtype:
    """Give the dtype of a name that `dtype_name` gave.

    Raises:
        CorruptCheckpoint: There is no dtype of this name.
    """
    # Not `getattr`: torch imports some of its packages when it is asked for their names.
    found = vars(torch).get(name) if isinstance(name, str) else None
    if not isinstance(found, torch.dtype) or dtype_name(found) != name:
        raise CorruptCheckpoint("There is no dtype of this name in torch.", found=shown(name))
    return found


def _copy_bits(target: Tensor, source: Tensor, strides: Sequence[int]) -> None:
    if source.dtype == target.dtype:
        target, source = _exact(target), _exact(source)
    _distinct(target, strides).copy_(_distinct(source, strides))


def _exact(tensor: Tensor) -> Tensor:
    """See a tensor so that copies keep its bits: torch makes 1 of any other byte that stands for true."""
    return tensor.view(torch.uint8) if tensor.dtype == torch.bool else tensor


def _distinct(tensor: Tensor, strides: Sequence[int]) -> Tensor:
    """Narrow the dimensions in which all elements lie on one place; torch refuses to write through them."""
    for dimension, (size, stride) in enumerate(zip(tensor.shape, strides, strict=True)):
        if stride == 0 and size > 1:
            tensor = tensor.narrow(dimension, 0, 1)
    return tensor


def _same_elements(left: Tensor, right: Tensor) -> bool:
    """Compare bit by bit; on the meta device there are no bits."""
    for dimension, strides in enumerate(zip(left.stride(), right.stride(), strict=True)):
        if strides == (0, 0) and left.shape[dimension]:  # expanded in both: one element stands for all
            left, right = left.narrow(dimension, 0, 1), right.narrow(dimension, 0, 1)
    return left.is_meta or torch.equal(*(_flat_bytes(_exact(each).contiguous()) for each in (left, right)))


def _flat_bytes(tensor: Tensor) -> Tensor:
    """View contiguous elements as bytes; not by `reshape(-1)`, which keeps any stride that a single element has."""
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def _has_repeats(tensor: Tensor) -> bool:
    layout = sorted((stride, size) for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1)
    reach = 1
    for stride, size in layout:
        if stride < reach:
            return True
        reach = stride * size
    return False
