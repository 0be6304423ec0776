"""Owns the telling of what a script only shows, or times, from what decides something. Reads its text, runs none of it.

A name is *only shown* if a print, a logger or a progress bar gets it, directly or through other such names, and nothing
else reads it: no call of the user's, no `return`, no condition of anything but showing. A name is a *moment* if all
that is ever written into it is the time of a clock, which no resume could bring back. When in doubt a name is neither.
"""

import ast
import builtins
import inspect
import linecache
import logging
import os
import sys
import time
from collections.abc import Iterator
from functools import lru_cache
from types import FrameType, ModuleType
from typing import Any

_CLOCKS = {"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time"}
_SHOWING = {
    "debug",
    "info",
    "warning",
    "error",
    "log",
    "print",
    "write",
    "set_postfix",
    "set_postfix_str",
    "set_description",
}
_SHOWN_BY = {"tqdm", "rich"}
_BUILT_IN = {"len", "sum", "min", "max", "abs", "round", "float", "int", "str", "sorted", "zip"}
_COMPUTING = {"mean", "median", "std", "var", "sum", "sqrt", "log", "exp", "min", "max", "tensor", "array", "stack"}
_OF_VALUES = {"item", "mean", "sum", "detach", "cpu", "tolist", "format", "join", "get_last_lr"}
_MAKING = {"zeros", "ones", "tensor", "array", "zeros_like", "full"}
_GROWING = {"append", "extend"}
_NEW = (ast.Constant, ast.UnaryOp, ast.BinOp, ast.List, ast.Dict, ast.Set, ast.JoinedStr)

_Scope = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef
_INNER = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.Lambda, ast.NamedExpr)
_CONDITIONS = (ast.IfExp, ast.BoolOp, ast.Compare)


def only_shown(frame: FrameType, names: set[str]) -> set[str]:
    """Give those of a frame's names that are only shown, or are moments.

    Args:
        frame: The frame of the loop.
        names: Names of variables that its text uses.
    """
    file = inspect.getsourcefile(frame) or frame.f_code.co_filename
    if not os.path.isfile(file):  # noqa: PTH113  (another cell of a notebook may read what this one writes)
        return set()
    module = _parsed("".join(linecache.getlines(file, frame.f_globals)))
    scope = _scope_at(module, frame)
    if scope is None or any(map(_looks_names_up, ast.walk(module))):
        return set()
    reading = _Reading(frame, scope)
    return {name for name in names if reading.is_moment(name) or reading.is_shown(name)}


class _Reading:
    """How the text of a function or script uses its names."""

    def __init__(self, frame: FrameType, scope: _Scope) -> None:
        self._values = {**vars(builtins), **frame.f_globals, **frame.f_locals}
        self._scope = scope
        self._own = (
            None if isinstance(scope, ast.Module) else {*frame.f_code.co_varnames}
        )  # captured names are not in it
        self._elsewhere = {name for each in _inner(scope) for name in _used_inside(each)}
        self._shown: set[str] = set()
        self._is_shown = False

    def is_moment(self, name: str) -> bool:
        written = list(_written(self._scope, name))
        return self._is_seen_whole(name) and bool(written) and all(map(self._is_clock, written))

    def is_shown(self, name: str) -> bool:
        names, self._shown, self._is_shown = [name], {name}, False
        for each in names:  # grows by what is computed from them
            written = list(_written(self._scope, each))
            if not self._is_seen_whole(each) or not written or not all(map(self._is_new, written)):
                return False
            if not all(self._allows(statement, each) for statement in self._scope.body):
                return False
            names.extend(self._shown.difference(names))
        return self._is_shown

    def _is_seen_whole(self, name: str) -> bool:
        """Tell whether nothing outside the scope's own statements can read or write a name."""
        return name not in self._elsewhere and (self._own is None or name in self._own)

    # --- statements -------------------------------------------------------------------------------------

    def _allows(self, statement: ast.stmt, name: str) -> bool:
        """Tell whether a statement reads a name at most to show it, or to compute what is only shown."""
        if isinstance(statement, _INNER) or not _reads(statement, name):
            return True
        if isinstance(statement, ast.If):
            if _reads(statement.test, name):
                return self._is_harmless(statement.test, name) and self._only_shows(statement, name)
            return all(self._allows(each, name) for each in (*statement.body, *statement.orelse))
        heads, blocks = _taken_apart(statement)
        if blocks:
            return not any(_reads(head, name) for head in heads) and all(self._allows(each, name) for each in blocks)
        return self._writes_or_shows(statement, name, everything=False)

    def _only_shows(self, statement: ast.stmt, name: str) -> bool:
        """Tell whether a statement that hangs on a name does nothing but show, and write what is only shown."""
        if isinstance(statement, ast.If):
            is_harmless = self._is_harmless(statement.test, name, everything=True)
            return is_harmless and all(self._only_shows(each, name) for each in (*statement.body, *statement.orelse))
        return isinstance(statement, ast.Pass) or self._writes_or_shows(statement, name, everything=True)

    def _writes_or_shows(self, statement: ast.stmt, name: str, *, everything: bool) -> bool:
        if isinstance(statement, (ast.Assign, ast.AugAssign, ast.AnnAssign)) and statement.value is not None:
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            names = [each for target in targets for each in _parts(target)]
            if not all(isinstance(each, ast.Name) for each in names):
                return False
            self._shown.update(each.id for each in names if isinstance(each, ast.Name))
            return self._is_harmless(statement.value, name, everything=everything)
        call = statement.value if isinstance(statement, ast.Expr) else None
        if not isinstance(call, ast.Call):
            return False
        given = [*call.args, *(keyword.value for keyword in call.keywords)]
        if not all(self._is_harmless(each, name, everything=everything) for each in given):
            return False
        if _grown(call) is not None:
            self._shown.add(_grown(call) or "")
            return True
        self._is_shown |= self._shows(call)
        return self._shows(call)

    # --- expressions ------------------------------------------------------------------------------------

    def _is_harmless(self, value: ast.expr, name: str, *, everything: bool = False) -> bool:
        """Tell whether an expression gives a name to nothing but computations that keep and change nothing.

        Args:
            value: The expression.
            name: The name.
            everything: Whether no other call may be in it either, since it hangs on the name whether it is run.
        """
        inside = list(ast.walk(value))
        if any(isinstance(each, (ast.Await, ast.Yield, ast.YieldFrom)) for each in inside):
            return False
        everything = everything or any(isinstance(each, (*_COMPREHENSIONS, *_CONDITIONS)) for each in inside)
        calls = [each for each in inside if isinstance(each, ast.Call)]
        return all(self._computes(each) for each in calls if everything or _reads(each, name))

    def _computes(self, call: ast.Call) -> bool:
        function = call.func
        if isinstance(function, ast.Name):
            return function.id in _BUILT_IN and self._is_built_in(function.id)
        if not isinstance(function, ast.Attribute):
            return False
        if self._is_module(function.value, {"numpy", "torch", "math", "statistics"}):
            return function.attr in _COMPUTING
        given = [*call.args, *(keyword.value for keyword in call.keywords)]
        is_of_text = isinstance(function.value, (ast.Constant, ast.JoinedStr))
        takes_none = is_of_text or all(isinstance(each, ast.Constant) for each in given)  # a user's `mean` may keep it
        return (function.attr in _OF_VALUES and takes_none) or self._is_clock(call)

    def _shows(self, call: ast.Call) -> bool:
        function = call.func
        if any(keyword.arg == "file" for keyword in call.keywords):
            return False
        if isinstance(function, ast.Name):
            return function.id == "print" and self._is_built_in("print")
        if not isinstance(function, ast.Attribute) or function.attr not in _SHOWING:
            return False
        shower = self._value(function.value)
        by = type(shower).__module__.partition(".")[0]
        is_stream = any(shower is each for each in (logging, sys.stdout, sys.stderr))
        return is_stream or isinstance(shower, logging.Logger) or by in _SHOWN_BY

    def _is_clock(self, value: ast.expr | None) -> bool:
        if not isinstance(value, ast.Call):
            return False
        function = value.func
        if isinstance(function, ast.Attribute):
            return function.attr in _CLOCKS and self._is_module(function.value, {"time"})
        return isinstance(function, ast.Name) and self._values.get(function.id) in [
            getattr(time, each) for each in _CLOCKS
        ]

    def _is_new(self, value: ast.expr | None) -> bool:
        """Tell an expression whose value nobody else has: growing it in place changes nothing of theirs."""
        if isinstance(value, ast.IfExp):
            return self._is_new(value.body) and self._is_new(value.orelse)
        if isinstance(value, ast.Call):
            makes = isinstance(value.func, ast.Attribute) and value.func.attr in _MAKING
            return makes or self._computes(value)
        return isinstance(value, _NEW)

    def _is_built_in(self, name: str) -> bool:
        return self._values.get(name) is getattr(builtins, name)

    def _is_module(self, value: ast.expr, names: set[str]) -> bool:
        module = self._value(value)
        return isinstance(module, ModuleType) and module.__name__ in names

    def _value(self, expression: ast.expr) -> Any:
        """Give what a name, or an attribute of one, means now; attributes are not computed."""
        if isinstance(expression, ast.Name):
            return self._values.get(expression.id)
        if isinstance(expression, ast.Attribute):
            return inspect.getattr_static(self._value(expression.value), expression.attr, None)
        return None


# --- the text -------------------------------------------------------------------------------------------


@lru_cache(maxsize=8)
def _parsed(text: str) -> ast.Module:
    return ast.parse(text)


def _scope_at(module: ast.Module, frame: FrameType) -> _Scope | None:
    """Find the text of a frame's function, or of the script; none for a class or a lambda."""
    if frame.f_code.co_name == "<module>":
        return module
    functions = [each for each in ast.walk(module) if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef))]
    line = frame.f_code.co_firstlineno  # of the first decorator, if there is one
    lines = {min([each.lineno, *(decorator.lineno for decorator in each.decorator_list)]): each for each in functions}
    found = lines.get(line)
    return found if found is not None and found.name == frame.f_code.co_name else None


def _looks_names_up(node: ast.AST) -> bool:
    """Tell code that may read any name: `locals()`, `vars()`, `eval(…)`."""
    if isinstance(node, ast.Call) and not node.args:
        return isinstance(node.func, ast.Name) and node.func.id == "vars"
    return isinstance(node, ast.Name) and node.id in {"locals", "globals", "eval", "exec"}


def _inner(scope: _Scope) -> Iterator[ast.AST]:
    for each in ast.walk(scope):
        if isinstance(each, _INNER) and each is not scope:
            yield each


def _used_inside(inner: ast.AST) -> set[str]:
    """Give the names that a function or class inside may take from around it."""
    nodes = list(ast.walk(inner))
    shared = {name for each in nodes if isinstance(each, (ast.Global, ast.Nonlocal)) for name in each.names}
    names = [each for each in nodes if isinstance(each, ast.Name)]
    parameters = {each.arg for each in nodes if isinstance(each, ast.arg)}
    own = {each.id for each in names if not isinstance(each.ctx, ast.Load)} | parameters
    return {each.id for each in names if each.id not in own} | shared


def _reads(node: ast.AST, name: str) -> bool:
    return any(
        isinstance(each, ast.Name) and each.id == name and isinstance(each.ctx, ast.Load) for each in ast.walk(node)
    )


def _taken_apart(statement: ast.stmt) -> tuple[list[ast.AST], list[ast.stmt]]:
    """Part a statement that holds others into what is at its head and the statements inside."""
    heads: list[ast.AST] = []
    blocks: list[ast.stmt] = []
    for each in ast.iter_child_nodes(statement):
        if isinstance(each, ast.stmt):
            blocks.append(each)
        elif isinstance(each, ast.ExceptHandler):
            heads += [] if each.type is None else [each.type]
            blocks += each.body
        else:
            heads.append(each)
    return heads, blocks


def _written(scope: _Scope, name: str) -> Iterator[ast.expr | None]:
    """Give what is plainly written into a name; None for what the text does not tell, such as an argument."""
    inside = {id(node) for each in _inner(scope) for node in ast.walk(each)}
    told: set[int] = set()
    for node in (each for each in ast.walk(scope) if id(each) not in inside):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                for part, value in _pairs(target, node.value):
                    if isinstance(part, ast.Name) and part.id == name:
                        told.add(id(part))
                        yield value
        elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
            told.add(id(node.target))
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == name:
                yield node.value
        elif isinstance(node, ast.arg) and node.arg == name:
            yield None
        elif (
            isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store) and id(node) not in told
        ):
            yield None  # ast.walk comes to targets behind their statements


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    if not isinstance(target, (ast.Tuple, ast.List)):
        yield target, value
    elif isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(target.elts):
        yield from (pair for each, part in zip(target.elts, value.elts, strict=True) for pair in _pairs(each, part))
    else:
        yield from ((each, None) for each in _parts(target))


def _parts(target: ast.expr) -> list[ast.expr]:
    if isinstance(target, (ast.Tuple, ast.List)):
        return [part for each in target.elts for part in _parts(each)]
    return [target]


def _grown(call: ast.Call) -> str | None:
    """Give the name of a list that a call makes longer."""
    function = call.func
    if isinstance(function, ast.Attribute) and function.attr in _GROWING and isinstance(function.value, ast.Name):
        return function.value.id
    return None
