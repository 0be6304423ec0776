"""What a process holds, measured in ways that a leak of any kind shows in: one gauge for each kind."""

import ctypes
import gc
import os
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import torch

PAGE = os.sysconf("SC_PAGE_SIZE")


def measure() -> dict[str, int]:
    """Count what this process holds after a garbage collection; bytes of Python only while tracemalloc runs."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # else free memory that the allocator holds back hides and imitates leaks
    python = tracemalloc.get_traced_memory()[0]
    objects = gc.get_objects()
    return {
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "threads": len(list(Path("/proc/self/task").iterdir())),
        "children": sum(len(path.read_text().split()) for path in Path("/proc/self/task").glob("*/children")),
        "objects": len(objects),
        "bytes of tensors": _tensor_bytes(objects),
        "bytes of Python": python,
        "resident bytes": int(Path("/proc/self/statm").read_text().split()[1]) * PAGE,
    }


def objects_by_type() -> Counter[str]:
    """Count the objects that the garbage collector knows: which type has grown says where to look."""
    return Counter(f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.get_objects())


def _tensor_bytes(objects: list[Any]) -> int:
    tensors = [each for each in objects if issubclass(type(each), torch.Tensor) and each.layout is torch.strided]
    return sum({each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors}.values())
