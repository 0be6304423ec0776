"""Starts one fuzzing target under atheris: `python fuzz/starter.py manifest [libFuzzer's options]`.

Only samestep is instrumented, so that its branches guide the search and torch's speed stays. Inputs that reached
something new go to `.fuzz/TARGET`; `make fuzz` says how to run all targets, CONTRIBUTING how to keep what was found.
"""

import importlib
import random
import shlex
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import atheris
import torch

ROOT = Path(__file__).resolve().parents[1]
FOUND = ROOT / ".fuzz"
OPTIONS = ("-timeout=10", "-rss_limit_mb=4096", "-max_len=20000", "-print_final_stats=1", "-verbosity=0")


def main() -> None:
    """Fuzz the target that the first argument names, with its kept corpus as seeds."""
    name, *options = sys.argv[1:]
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    with atheris.instrument_imports(include=["samestep"]):
        target = importlib.import_module(name)
    folder = FOUND / name
    folder.mkdir(parents=True, exist_ok=True)
    folders = [str(folder), str(ROOT / "fuzz" / "corpus" / name)]
    if "-merge=1" in options:
        folders.reverse()  # libFuzzer writes into the first one
    options = [each for each in options if each.startswith("-")]  # merging, libFuzzer starts us again with its folders
    again = shlex.join([sys.executable, __file__, name])
    arguments = [again, *OPTIONS, f"-artifact_prefix={FOUND}/{name}-", *options, *folders]
    if hasattr(target, "mutated"):
        atheris.Setup(arguments, target.check, custom_mutator=_mutator(target.mutated))
    else:
        atheris.Setup(arguments, target.check)
    atheris.Fuzz()


def _mutator(mutated: Callable[[bytes, random.Random], bytes]) -> Callable[[bytes, int, int], bytes]:
    """Let the target change every second input by what it knows of it, and libFuzzer the others."""

    def mutator(data: bytes, max_size: int, seed: int) -> bytes:
        if seed % 2:
            return atheris.Mutate(data, max_size)
        return mutated(data, random.Random(seed))[:max_size]

    return mutator


if __name__ == "__main__":
    main()
