"""Benchmarks are run by hand: what they name must be there all the same."""

import ast
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = [*(ROOT / "benchmarks").glob("*.py"), *(ROOT / "examples").glob("*.py")]


def names(tree):
    """Give what a script takes from samestep: pairs of a module and a name in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("samestep"):
            yield from ((node.module, alias.name) for alias in node.names)
        place = ast.unparse(node.value) if isinstance(node, ast.Attribute) else ""
        if place.startswith("samestep.") and place.replace(".", "").isidentifier():
            yield place, node.attr


@pytest.mark.parametrize("script", sorted(SCRIPTS), ids=lambda script: script.name)
def test_a_script_names_what_is_there(script):
    """Each name that a benchmark or an example takes from a module of samestep is in that module."""
    for module, name in names(ast.parse(script.read_text())):
        try:
            holder = importlib.import_module(module)
        except ModuleNotFoundError:  # `samestep.Run.…`: a name of a class
            parent, _, inner = module.rpartition(".")
            holder = getattr(importlib.import_module(parent), inner)
        if not hasattr(holder, name):
            importlib.import_module(f"{module}.{name}")
