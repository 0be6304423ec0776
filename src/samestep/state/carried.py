"""Owns the search for local variables that a loop carries from one body to the next, which no resume brings back.

Reads the script's text, never runs any of it. A name is *carried* if a body reads it before it writes it, and writes
it later (`best = max(best, score)`, `hidden = cell(x, hidden)`); or if it grows (`total += loss`, `buffer.append(x)`)
and the loop reads it too; or if it counts batches (`enumerate(loader)`, `islice(loader, 10)`) and a step hangs on it.
"""

import ast
import inspect
import linecache
import logging
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType

import numpy as np
from torch import Tensor

from samestep.state.source import is_installed

_log = logging.getLogger("samestep")

_PLAIN = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    tuple,
    list,
    dict,
    set,
    deque,
    np.ndarray,
    np.generic,
    Tensor,
    type(None),
)
"""Types of values that are lost. Objects with a state of their own are the audit's concern."""

_GROWING = {"append", "appendleft", "extend", "add", "update", "insert", "setdefault"}
_UPDATING = {"step", "zero_grad", "backward", "update", "update_parameters", "save", "score", "add_param_group"}
_FRAMES = 8


_Loop = ast.For | ast.While | ast.AsyncFor
_Event = tuple[str, str, int]


@dataclass(frozen=True, slots=True)
class Carried:
    """A local variable that a resume begins anew.

    Args:
        name: The variable.
        file: The script's file.
        line: Where the loop writes it.
    """

    name: str
    file: str
    line: int


def find_carried(frame: FrameType) -> list[Carried]:
    """Look through the loops around the line that each frame of the stack is at, from this frame outwards.

    Args:
        frame: The user's frame that asked for the next batch, step or epoch.

    Returns:
        The variables, each once; nothing for code without a file, such as what is typed at a prompt.

    Example:
        >>> import sys
        >>> find_carried(sys._getframe())
        []
    """
    found: dict[tuple[str, str], Carried] = {}
    each: FrameType | None = frame
    for _ in range(_FRAMES):
        if each is None or is_installed(each.f_code.co_filename):
            break
        try:
            for carried in _in_frame(each):
                found.setdefault((carried.file, carried.name), carried)
        except Exception:  # noqa: BLE001  (unparsable text or a proxy of the user's: the search must not stop a training)
            _log.debug("The search for carried variables gave up.", exc_info=True)
        each = each.f_back
    return list(found.values())


def _in_frame(frame: FrameType) -> Iterator[Carried]:
    file = inspect.getsourcefile(frame) or frame.f_code.co_filename
    text = "".join(linecache.getlines(file, frame.f_globals))
    if not text:
        return
    loops = _loops_around(ast.parse(text), frame.f_lineno)
    reads = {name for loop in loops[:1] for name, kind, _ in _body_events(loop) if kind == "read"}
    for loop in loops:
        if isinstance(loop, ast.For) and "islice" in map(_called, _calls(loop.iter)):
            yield Carried("islice(…)", file, loop.lineno)
        for name, line in (_carried_by(loop, reads) | _counters(loop)).items():
            if isinstance(frame.f_locals.get(name, _ABSENT), _PLAIN):
                yield Carried(name, file, line)


_ABSENT = object()


def _loops_around(tree: ast.AST, line: int) -> list[_Loop]:
    """Find the loops whose lines hold this one, within the innermost function that does; outermost first."""
    around: list[ast.AST] = [
        node
        for node in ast.walk(tree)
        if getattr(node, "lineno", line + 1) <= line <= (getattr(node, "end_lineno", 0) or 0)
    ]
    functions = [node for node in around if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)]
    inner = max(functions, key=lambda node: node.lineno, default=None)
    loops = [node for node in around if isinstance(node, _Loop) and (inner is None or node.lineno >= inner.lineno)]
    return sorted(loops, key=lambda loop: loop.lineno)


def _carried_by(loop: _Loop, reads: set[str]) -> dict[str, int]:
    """Give the names that one body hands to the next, with the lines that write them."""
    events = _body_events(loop)
    first = {name: kind for name, kind, _ in reversed(events)}
    lines = {name: line for name, kind, line in reversed(events) if kind != "read"}
    return {
        name: line for name, line in lines.items() if first[name] == "read" or (first[name] == "grow" and name in reads)
    }


def _counters(loop: _Loop) -> dict[str, int]:
    """Give the counter of `enumerate(…)` if a step, a break or the like hangs on it: a resume counts from 0 again."""
    if not isinstance(loop, ast.For) or not isinstance(loop.target, ast.Tuple):
        return {}
    calls = [call for call in _calls(loop.iter) if _called(call) == "enumerate"]
    counter = loop.target.elts[0]
    if not isinstance(counter, ast.Name) or not any(len(call.args) + len(call.keywords) == 1 for call in calls):
        return {}
    branches = [node for statement in loop.body for node in ast.walk(statement) if isinstance(node, ast.If)]
    decides = [each for each in branches if _names(each.test, counter.id) and any(map(_updates, ast.walk(each)))]
    return {counter.id: counter.lineno} if decides else {}


def _calls(node: ast.AST) -> list[ast.Call]:
    return [each for each in ast.walk(node) if isinstance(each, ast.Call)]


def _names(node: ast.AST, name: str) -> bool:
    return any(isinstance(each, ast.Name) and each.id == name for each in ast.walk(node))


def _updates(node: ast.AST) -> bool:
    return isinstance(node, ast.Break | ast.Continue) or (isinstance(node, ast.Call) and _called(node) in _UPDATING)


def _called(call: ast.Call) -> str:
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def _body_events(loop: _Loop) -> list[_Event]:
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
