"""Owns the line on which a name is first bound in a script. Never reads the script's text."""

import dis
from types import CodeType, FrameType

_STORES = ("STORE_NAME", "STORE_FAST", "STORE_GLOBAL", "STORE_DEREF")


def line_of_binding(frame: FrameType, name: str) -> int:
    """Find where a name is first bound: in the frame's code, or else in its module's among the callers.

    Args:
        frame: The frame that uses the name.
        name: A local or global name.

    Returns:
        The line: for an argument that of the function, for a name bound elsewhere the frame's current line.
    """
    if name in frame.f_code.co_varnames[: frame.f_code.co_argcount + frame.f_code.co_kwonlyargcount]:
        return frame.f_code.co_firstlineno
    line = _first_store(frame.f_code, name)
    module = _module_frame(frame)
    if line is None and module is not None:
        line = _first_store(module.f_code, name)
    return frame.f_lineno if line is None else line


def _first_store(code: CodeType, name: str) -> int | None:
    stores = (
        each.positions.lineno
        for each in dis.get_instructions(code)
        if each.opname.startswith(_STORES) and _binds(each.argval, name) and each.positions is not None
    )
    return next((line for line in stores if line is not None), None)


def _binds(value: object, name: str) -> bool:
    """Compare with one name, or with the pair that Python 3.13 stores at once."""
    return value == name or (isinstance(value, tuple) and name in value)


def _module_frame(frame: FrameType) -> FrameType | None:
    each: FrameType | None = frame
    while each is not None:
        if each.f_code.co_name == "<module>" and each.f_globals is frame.f_globals:
            return each
        each = each.f_back
    return None
