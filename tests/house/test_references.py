"""What the pages say is shown by a test is shown by a test that exists."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = re.compile(r"`(?:tests/)?([\w/]+\.py)::(\w+)`")


def functions(path):
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}


PAGES = sorted({*(ROOT / "docs").glob("*.md")} - {ROOT / "docs/proven.md"})  # which is printed from the tests


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tests_that_a_page_names_exist(page):
    """Each `file.py::test_name` in the documentation is a test."""
    named = REFERENCE.findall(page.read_text())
    assert [f"{file}::{test}" for file, test in named if test not in functions(ROOT / "tests" / file)] == []


def test_every_promise_names_a_test():
    """Each line of promises.md names at least one test."""
    rows = [line for line in (ROOT / "docs/promises.md").read_text().splitlines() if line.startswith("| ")]
    rows = [line for line in rows if not line.startswith("| fault |")]
    assert len(rows) > 5
    assert [line for line in rows if not REFERENCE.search(line)] == []
