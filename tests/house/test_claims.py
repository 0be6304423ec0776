"""House rule 8: a test states its claim."""

import ast
import subprocess
import sys

import pytest
from sources import ROOT, TESTS, functions, label


def functions_that_test(path):
    """Give the test functions of a file."""
    return [each for each in functions(path) if each.name.startswith("test_")]


@pytest.mark.parametrize("path", TESTS, ids=label)
def test_every_test_states_its_claim(path):
    """Every test opens with a sentence, in the present tense, that says what is so."""
    silent = []
    for each in functions_that_test(path):
        claim = (ast.get_docstring(each) or "").split("\n\n")[0]
        if not claim.endswith((".", "`", ")")) or claim.lower().startswith(("test ", "tests ", "should ", "check ")):
            silent.append(each.name)
    assert silent == []


def test_file_names_are_unique():
    """No two test files have one name: they are imported by it."""
    names = [path.name for path in TESTS]
    assert sorted(names) == sorted(set(names))


def test_claims_are_printed():
    """`python docs/proven.py` prints every claim."""
    words = [sys.executable, ROOT / "docs" / "proven.py"]
    printed = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    assert printed.count("\n- ") == sum(len(functions_that_test(path)) for path in TESTS)


def test_what_is_proved_is_printed_anew():
    """docs/proven.md is what `python docs/proven.py` prints of the tests as they are."""
    printed = subprocess.run([sys.executable, ROOT / "docs" / "proven.py"], capture_output=True, text=True, check=True)
    assert (ROOT / "docs" / "proven.md").read_text(encoding="utf-8") == printed.stdout
