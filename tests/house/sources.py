"""Owns what the house-rule tests read: the project's files and their syntax trees."""

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "samestep"
MODULES = sorted(PACKAGE.rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("test_*.py"))


def label(path):
    """Name a file as people do: from the project's root."""
    return path.relative_to(ROOT).as_posix()


@cache
def syntax(path):
    """Parse a file once."""
    return ast.parse(path.read_text(encoding="utf-8"))


def functions(path):
    """Give all functions and methods of a file."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [node for node in ast.walk(syntax(path)) if isinstance(node, kinds)]


def calls(path):
    """Give all calls of a file with the called name as it is written, such as `os.path.join`."""
    return [(node, ast.unparse(node.func)) for node in ast.walk(syntax(path)) if isinstance(node, ast.Call)]
