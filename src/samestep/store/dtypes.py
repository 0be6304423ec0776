"""Owns the element types that format 1 knows: their names, sizes and safetensors codes. Never imports torch."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ElementType:
    """One element type as files describe it.

    Args:
        code: Its code in a safetensors header; None when the elements are written as plain bytes ("U8").
        size: Bytes of one element.
    """

    code: str | None
    size: int


ELEMENT_TYPES = {
    "bool": ElementType("BOOL", 1),
    "uint8": ElementType("U8", 1),
    "int8": ElementType("I8", 1),
    "int16": ElementType("I16", 2),
    "uint16": ElementType("U16", 2),
    "int32": ElementType("I32", 4),
    "uint32": ElementType("U32", 4),
    "int64": ElementType("I64", 8),
    "uint64": ElementType("U64", 8),
    "float16": ElementType("F16", 2),
    "bfloat16": ElementType("BF16", 2),
    "float32": ElementType("F32", 4),
    "float64": ElementType("F64", 8),
    "float8_e4m3fn": ElementType("F8_E4M3", 1),
    "float8_e5m2": ElementType("F8_E5M2", 1),
    # The rest is unknown to safetensors 0.5, the oldest that we accept, and two of them to every release.
    "float8_e4m3fnuz": ElementType(None, 1),
    "float8_e5m2fnuz": ElementType(None, 1),
    "float8_e8m0fnu": ElementType(None, 1),
    "float4_e2m1fn_x2": ElementType(None, 1),
    "complex32": ElementType(None, 4),
    "complex64": ElementType(None, 8),
    "complex128": ElementType(None, 16),
}
"""By torch's name without `torch.`; what is missing here cannot be stored."""
