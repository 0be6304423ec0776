"""Owns the digest of a tensor: xxh3-128 of its dtype, shape and bytes. Imports neither torch nor NumPy."""

from collections.abc import Sequence

import xxhash


class Digest:
    """The digest of one tensor, fed piece by piece.

    Hashed are the tensor's logical elements in row-major order, little-endian, whatever its strides. The prefix
    of dtype and shape makes equal bytes of different tensors differ. Sums and XOR would miss swapped elements.

    Args:
        dtype: The dtype's name, such as "float32".
        shape: The tensor's sizes.

    Example:
        >>> digest = Digest("float32", [2])
        >>> digest.update(memoryview(b"12345678"))
        >>> digest.hexdigest()
        '1e05dbb4a650749513ca59bf1d1c067e'
    """

    __slots__ = ("_hash",)

    def __init__(self, dtype: str, shape: Sequence[int]) -> None:
        self._hash = xxhash.xxh3_128(f"{dtype}{list(shape)}".encode())

    def update(self, data: memoryview | bytes) -> None:
        """Add the next bytes."""
        self._hash.update(data)

    def hexdigest(self) -> str:
        """Return the digest of what was added so far: 32 hexadecimal digits."""
        return self._hash.hexdigest()
