"""House rule: docs/cases.md tells the truth about which test shows what."""

import ast
import re

import pytest
from sources import ROOT, TESTS, functions

TEXT = (ROOT / "docs" / "cases.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in TEXT.splitlines()
    if re.match(r"\| (?!thread)", line)
]
THREAD = re.compile(r"[\w/-]+(?: PR)?#\d+")


def shown_by(row):
    """Give the tests that a row links, as (path in tests, name)."""
    return re.findall(r"\[([\w/.]+)::(\w+)\]\(\.\./tests/\1\)", row[2])


def docstring(path, name):
    """Read the claim of a test; a test that is not there has none."""
    tests = {each.name: each for each in functions(ROOT / "tests" / path)} if (ROOT / "tests" / path).exists() else {}
    return (ast.get_docstring(tests[name]) or "") if name in tests else None


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_each_case_is_shown_or_open(row):
    """Each row links tests that are there and cite its threads, or says which feature it waits for."""
    assert len(row) == 3
    assert shown_by(row) or "open: " in row[2]
    claims = [docstring(*test) for test in shown_by(row)]
    assert None not in claims
    for claim in claims:
        cited = [thread for thread in THREAD.findall(row[0]) if thread in claim]
        assert cited or not THREAD.search(row[0]), f"{claim!r} cites no thread of {row[0]}"
    if claims:
        assert all(any(thread in claim for claim in claims) for thread in THREAD.findall(row[0]))
    assert len(row[2].split("<br>")) == len(claims) + row[2].count("open: ")


def test_every_thread_that_a_test_cites_is_in_the_table():
    """Whatever thread a test's claim cites has its row."""
    named = set(THREAD.findall(TEXT))
    cited = {
        thread
        for path in TESTS
        for each in functions(path)
        if each.name.startswith("test_")
        for thread in THREAD.findall(ast.get_docstring(each) or "")
    }
    assert cited <= named
