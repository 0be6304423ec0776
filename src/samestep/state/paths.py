"""Owns how errors write the place of a value: `optimizer.state["layer.weight"].hook`. Never looks at values."""

from samestep.wording import shortened_text, shown


def child_path(path: str, element: object) -> str:
    """Write the path of a child.

    Args:
        path: The path of the container; "" at the root.
        element: A key or an index of it.

    Example:
        >>> child_path("optimizer.state", "layer.weight"), child_path("groups", 0), child_path("", "rate")
        ('optimizer.state["layer.weight"]', 'groups[0]', 'rate')
    """
    text = shortened_text(element) if isinstance(element, str) else shown(element)
    if isinstance(element, str) and text.isidentifier():
        return f"{path}.{text}" if path else text
    if isinstance(element, str):
        return f'{path}["{text}"]'
    return f"{path}[{text}]"
