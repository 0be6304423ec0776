"""House rules 1 and 2: small modules that say what they own."""

import ast

import pytest
from sources import MODULES, functions, label, syntax

MOST_LINES_OF_A_MODULE = 400
MOST_LINES_OF_A_FUNCTION = 50


@pytest.mark.parametrize("path", MODULES, ids=label)
def test_modules_are_small(path):
    """No module is longer than 400 lines."""
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MOST_LINES_OF_A_MODULE


@pytest.mark.parametrize("path", MODULES, ids=label)
def test_functions_are_small(path):
    """No function has more than 50 lines, its docstring not counted."""
    assert {each.name: lines(each) for each in functions(path) if lines(each) > MOST_LINES_OF_A_FUNCTION} == {}


def lines(function):
    """Count a function's lines from its `def`, without its docstring."""
    total = function.end_lineno - function.lineno + 1
    first = function.body[0]
    has_docstring = ast.get_docstring(function, clean=False) is not None
    return total - (first.end_lineno - first.lineno + 1 if has_docstring else 0)


@pytest.mark.parametrize("path", MODULES, ids=label)
def test_modules_say_what_they_own(path):
    """Every module opens with a sentence."""
    opening = (ast.get_docstring(syntax(path)) or "").split("\n\n")[0]
    assert opening.endswith((".", ")"))


@pytest.mark.parametrize("path", MODULES, ids=label)
def test_names_are_words_of_the_field(path):
    """No module is called util, helper, manager or misc."""
    assert not {"util", "utils", "helper", "helpers", "manager", "misc", "common"} & set(path.stem.split("_"))
