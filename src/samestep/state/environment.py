"""Owns the record of where a run works, and the grading of what has changed since. Never decides to stop a run."""

import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch

from samestep import __version__
from samestep.state.snapshot import Json
from samestep.state.source import modules, source

Grade = Literal["harmless", "as the script uses it", "may change bits", "will change bits"]
AS_USED: Grade = "as the script uses it"
"""The grade of the user's config: a number of epochs only says how long to train, a rate may decide every step."""


@dataclass(frozen=True, slots=True)
class Drift:
    """One thing that is no longer as it was when the checkpoint was saved.

    Args:
        name: What, such as "versions.torch".
        saved: Its value in the checkpoint; None if it was not recorded.
        now: Its value here.
        grade: How sure it is that bits change.
    """

    name: str
    saved: Json
    now: Json
    grade: Grade


def environment() -> dict[str, Json]:
    """Record versions, hardware, settings and code, as plain JSON.

    Returns:
        Parts "versions", "machine", "devices", "settings", "code" and "modules" (the user's own, by name), each a
        dict. Git is asked for two seconds at most; without it "code" holds the digest of the main script alone.

    Example:
        >>> environment()["versions"]["torch"] == str(torch.__version__)
        True
    """
    return {
        "versions": _versions(),
        "machine": _machine(),
        "devices": _devices(),
        "settings": _settings(),
        "code": source(),
        "modules": modules(),
    }


def drift(saved: Mapping[str, Json], now: Mapping[str, Json]) -> list[Drift]:
    """Compare two environments.

    Args:
        saved: The environment in the checkpoint.
        now: The environment here.

    Returns:
        What differs, gravest first. The host's name is not compared.

    Example:
        >>> here = environment()
        >>> there = {**here, "settings": {**here["settings"], "threads": 64}}
        >>> [(each.name, each.grade) for each in drift(there, here)]
        [('settings.threads', 'may change bits')]
    """
    there, here = _flat(saved), _flat(now)
    names = [
        name for name in {**there, **here} if _is_compared(name, there, here) and there.get(name) != here.get(name)
    ]
    found = [Drift(name, there.get(name), here.get(name), _grade(name)) for name in names]
    return sorted(found, key=lambda each: _GRAVITY[each.grade], reverse=True)


_GRAVITY: dict[str, int] = {"harmless": 0, AS_USED: 1, "may change bits": 2, "will change bits": 3}
_NOT_COMPARED = {"machine.host"}
_GRADES: dict[str, Grade] = {
    # Random streams and kernels have changed between releases, though not in each.
    "versions.torch": "may change bits",
    "versions.numpy": "may change bits",
    "versions.python": "harmless",
    "versions.samestep": "harmless",
    "machine.system": "harmless",
    "machine.architecture": "will change bits",
    # Vector width decides in which order sums are added.
    "machine.cpu": "may change bits",
    "devices.names": "will change bits",
    "devices.cuda": "may change bits",
    "devices.cudnn": "may change bits",
    # Measured: the weight gradients of conv2d and layer_norm differ between 1 and 2 threads.
    "settings.threads": "may change bits",
    "settings.interop_threads": "harmless",
    "settings.deterministic": "may change bits",
    "settings.cudnn_benchmark": "may change bits",
    "settings.cudnn_deterministic": "may change bits",
    "settings.tf32_matmul": "will change bits",
    "settings.tf32_cudnn": "will change bits",
    "settings.matmul_precision": "will change bits",
    "settings.default_dtype": "will change bits",
    "settings.mkldnn": "will change bits",
    "code.commit": "may change bits",
    "code.changes": "may change bits",
    "code.script": "may change bits",
}


def _is_compared(name: str, there: Mapping[str, Json], here: Mapping[str, Json]) -> bool:
    """Leave out the host's name, and modules that only one of the two has: they may be loaded later."""
    if name.startswith("modules."):
        return name in there and name in here
    return name not in _NOT_COMPARED


def _grade(name: str) -> Grade:
    return _GRADES.get(name, AS_USED if name.startswith("config.") else "may change bits")


def _flat(environment: Mapping[str, Json]) -> dict[str, Json]:
    parts = {part: values for part, values in environment.items() if isinstance(values, Mapping)}
    return {f"{part}.{name}": value for part, values in parts.items() for name, value in values.items()}


def _versions() -> dict[str, str]:
    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "samestep": __version__,
    }


def _machine() -> dict[str, Json]:
    return {
        "system": platform.system(),
        "architecture": platform.machine(),
        "cpu": _cpu_model(),
        "host": platform.node(),
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return f"{next(names, platform.processor())} ({torch.backends.cpu.get_cpu_capability()})"


def _devices() -> dict[str, Json]:
    available = torch.cuda.is_available()
    count = torch.cuda.device_count() if available else 0
    return {
        "names": [torch.cuda.get_device_name(index) for index in range(count)],
        "cuda": torch.version.cuda,
        "cudnn": cast("Any", torch.backends.cudnn).version() if available else None,
    }


def _settings() -> dict[str, Json]:
    return {
        "threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "cudnn_deterministic": torch.backends.cudnn.deterministic,
        "tf32_matmul": _read(lambda: torch.backends.cuda.matmul.allow_tf32),
        "tf32_cudnn": _read(lambda: torch.backends.cudnn.allow_tf32),
        "matmul_precision": _read(torch.get_float32_matmul_precision),
        "default_dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "mkldnn": torch.backends.mkldnn.enabled,
    }


def _read(setting: Callable[[], Json]) -> Json:
    """Read a setting of float32 precision: torch 2.9 and newer raise where the script has used the newer names."""
    try:
        return setting()
    except RuntimeError:
        precision = getattr(torch.backends.cuda.matmul, "fp32_precision", None)
        return f"set by fp32_precision, {precision} for matmul"
