"""Prints what the tests prove, claim by claim: `python docs/proven.py > docs/proven.md`."""

# ruff: noqa: INP001 — a script, no part of a package

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def claims(path: Path) -> list[str]:
    """Read the claims of a test file: the first paragraph of each test's docstring, in the order of the file."""
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    tests = [node for node in nodes if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    tests.sort(key=lambda test: test.lineno)
    return [" ".join((ast.get_docstring(test) or test.name).split("\n\n")[0].split()) for test in tests]


def main() -> None:
    """Print all claims, by folder and file."""
    sys.stdout.write("# What the tests prove\n\nPrinted by `docs/proven.py` from the tests themselves.\n")
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        found = claims(path)
        if found:
            sys.stdout.write(f"\n## {path.relative_to(ROOT / 'tests').as_posix()}\n\n")
            sys.stdout.writelines(f"- {claim}\n" for claim in found)


if __name__ == "__main__":
    main()
