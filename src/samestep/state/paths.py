"""Owns how errors write the place of a value: `optimizer.state["layer.weight"].hook`. Never looks at values."""


def child_path(path: str, element: object) -> str:
    """Write the path of a child.

    Args:
        path: The path of the container; "" at the root.
        element: A key or an index of it.

    Example:
        >>> child_path("optimizer.state", "layer.weight"), child_path("groups", 0), child_path("", "rate")
        ('optimizer.state["layer.weight"]', 'groups[0]', 'rate')
    """
    if isinstance(element, str) and element.isidentifier():
        return f"{path}.{element}" if path else element
    if isinstance(element, str):
        return f'{path}["{element}"]'
    return f"{path}[{element!r}]"
