"""Owns how errors write the place of a value: `optimizer.state["layer.weight"].hook`. Never looks at values."""

_MOST_LETTERS = 200
"""A longer key is shown by its two ends: paths are made for every value, and a stranger's keys may have megabytes."""


def child_path(path: str, element: object) -> str:
    """Write the path of a child.

    Args:
        path: The path of the container; "" at the root.
        element: A key or an index of it.

    Example:
        >>> child_path("optimizer.state", "layer.weight"), child_path("groups", 0), child_path("", "rate")
        ('optimizer.state["layer.weight"]', 'groups[0]', 'rate')
    """
    text = _shortened(element) if isinstance(element, str) else shown(element)
    if isinstance(element, str) and text.isidentifier():
        return f"{path}.{text}" if path else text
    if isinstance(element, str):
        return f'{path}["{text}"]'
    return f"{path}[{text}]"


def shown(value: object) -> str:
    """Write a value as Python does, shortened.

    Example:
        >>> shown((1, "a")), shown(10**5000)
        ("(1, 'a')", 'int too long to write')
    """
    try:
        return _shortened(repr(value))
    except ValueError:  # Python writes no integer of more than 4,300 digits
        return f"{type(value).__name__} too long to write"


def _shortened(text: str) -> str:
    return text if len(text) <= _MOST_LETTERS else f"{text[: _MOST_LETTERS - 41]}…{text[-40:]}"
