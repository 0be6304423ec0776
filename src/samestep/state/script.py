"""Owns the reading of a script's text: the loops around a line, and the order in which they use names. Runs nothing."""

import ast
import inspect
import linecache
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from types import FrameType

Loop = ast.For | ast.While | ast.AsyncFor

_Event = tuple[str, str, int]
_GROWING = {"append", "appendleft", "extend", "add", "update", "insert", "setdefault"}


@dataclass(frozen=True, slots=True)
class LoopNames:
    """How the loops around a line use names.

    Args:
        used: Names that they mention.
        fresh: Names that are written anew before anything reads them again, so that their values are not carried.
    """

    used: frozenset[str]
    fresh: frozenset[str]


def loops_of(frame: FrameType) -> tuple[str, list[Loop]]:
    """Find the loops around the line that a frame is at, within its function: outermost first.

    Returns:
        The frame's file and the loops; none for code without text, such as what is typed at a prompt.
    """
    file = inspect.getsourcefile(frame) or frame.f_code.co_filename
    text = "".join(linecache.getlines(file, frame.f_globals))
    return file, _loops_around(text, frame.f_lineno)


def expressions_at(frame: FrameType) -> list[ast.expr]:
    """Find the expressions on the line that a frame is at, outer ones first; none for code without text."""
    file, line = inspect.getsourcefile(frame) or frame.f_code.co_filename, frame.f_lineno
    text = ast.parse("".join(linecache.getlines(file, frame.f_globals)))
    nodes = [node for node in ast.walk(text) if isinstance(node, ast.expr)]
    return [node for node in nodes if node.lineno <= line <= (node.end_lineno or node.lineno)]


def loop_names(frame: FrameType) -> LoopNames | None:
    """Read how the loops around the frame's line use names; None where there are none, or no text."""
    _, loops = loops_of(frame)
    if not loops:
        return None
    first: dict[str, bool] = {}
    for node, is_sure in _what_comes(loops):
        order = _Order()
        order.visit(node)
        for name, kind, _ in order.events:
            first.setdefault(name, is_sure and kind == "write")
    used = {node.id for node in ast.walk(loops[0]) if isinstance(node, ast.Name)}
    return LoopNames(frozenset(used), frozenset(name for name, is_fresh in first.items() if is_fresh))


@lru_cache(maxsize=32)
def _loops_around(text: str, line: int) -> list[Loop]:
    around: list[ast.AST] = [
        node
        for node in ast.walk(ast.parse(text))
        if getattr(node, "lineno", line + 1) <= line <= (getattr(node, "end_lineno", 0) or 0)
    ]
    functions = [node for node in around if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)]
    inner = max(functions, key=lambda node: node.lineno, default=None)
    loops = [node for node in around if isinstance(node, Loop) and (inner is None or node.lineno >= inner.lineno)]
    return sorted(loops, key=lambda loop: loop.lineno)


def _what_comes(loops: list[Loop]) -> Iterator[tuple[ast.AST, bool]]:
    """Give what runs from the head of the innermost loop on, in order, and whether it surely runs."""
    inner = loops[-1]
    yield from _sure([inner])
    for loop in reversed(loops[:-1]):
        statements = list(_sure([loop]))
        yield from ((node, is_sure) for node, is_sure in statements if _line(node) > (inner.end_lineno or 0))
        yield from statements


def _sure(statements: list[ast.stmt]) -> Iterator[tuple[ast.AST, bool]]:
    """Take loops and `with` blocks apart; what hangs on a condition is not sure to run."""
    for each in statements:
        if isinstance(each, ast.For | ast.AsyncFor):
            yield from ((part, True) for part in (each.iter, each.target))
            yield from _sure(each.body)
        elif isinstance(each, ast.With | ast.AsyncWith):
            yield from ((item, True) for item in each.items)
            yield from _sure(each.body)
        else:
            yield each, not isinstance(each, ast.If | ast.While | ast.Try | ast.Match)


def _line(node: ast.AST) -> int:
    return getattr(node, "lineno", 0)


def body_events(loop: Loop) -> list[_Event]:
    """Give the reads, writes and growths of names in one body of a loop, in their order."""
    order = _Order()
    for part in [loop.test, *loop.body] if isinstance(loop, ast.While) else [loop.target, *loop.body]:
        order.visit(part)
    return order.events


class _Order(ast.NodeVisitor):
    """Lists reads, writes and growths of names in the order in which they happen, branches one after the other."""

    def __init__(self) -> None:
        self.events: list[_Event] = []

    def visit_Name(self, node: ast.Name) -> None:
        self.events.append((node.id, "read" if isinstance(node.ctx, ast.Load) else "write", node.lineno))

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.visit(node.value)
        if isinstance(node.target, ast.Name):
            self.events.append((node.target.id, "grow", node.lineno))
        else:
            self.visit(node.target)

    def visit_Assign(self, node: ast.Assign) -> None:
        for part in (node.value, *node.targets):  # Python's own fields name the targets first
            self.visit(part)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self.visit(node.value)
        self.visit(node.target)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)
            self.visit(node.target)

    def visit_For(self, node: ast.For) -> None:
        for part in (node.iter, node.target, *node.body, *node.orelse):
            self.visit(part)

    def visit_Call(self, node: ast.Call) -> None:
        grown = _grown(node)
        if grown is not None:
            self.events.append((grown, "grow", node.lineno))
        for part in ast.iter_child_nodes(node):
            if grown is None or part is not node.func:
                self.visit(part)

    def visit_ListComp(self, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp) -> None:
        self.visit(node.generators[0].iter)  # the rest has names of its own

    visit_SetComp = visit_DictComp = visit_GeneratorExp = visit_ListComp

    def _skip(self, node: ast.AST) -> None:
        """Pass by what has names of its own."""

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = visit_Lambda = _skip


def _grown(node: ast.AST) -> str | None:
    """Give the name of a container that a call makes grow, such as `losses.append(loss)`."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    method = node.func
    return method.value.id if method.attr in _GROWING and isinstance(method.value, ast.Name) else None
