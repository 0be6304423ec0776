"""Owns how texts of others and odd values are written in messages: short, and harmless to a terminal. Imports nothing.

Names in a checkpoint come from others: characters that could steer a terminal, or turn the direction of what is read,
are shown as escapes. Letters of all languages stay.
"""

CONTINUED = "\n            "
"""The line break inside a part of an error: what follows stands under the part, and can pass for no other one."""

_MOST_LETTERS = 200
"""A longer text is shown by its two ends: a stranger's keys may have megabytes."""


def printable(text: str) -> str:
    r"""Show what could steer a terminal as an escape, line breaks too.

    Example:
        >>> printable("weight\x1b[2J"), printable("größe")
        ('weight\\x1b[2J', 'größe')
    """
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def printable_lines(text: str, end: str = "\n") -> str:
    r"""Show what could steer a terminal as an escape, but for the line breaks that we have written.

    Args:
        text: The text.
        end: How such a line break is written.

    Example:
        >>> printable_lines("lost:\n  weight\x1b[2J")
        'lost:\n  weight\\x1b[2J'
    """
    return end.join(map(printable, text.split(end)))


def shown(value: object) -> str:
    """Write a value that a script gave as Python does, shortened; whatever it is, this raises nothing.

    Example:
        >>> shown((1, "a")), shown(10**5000)
        ("(1, 'a')", 'int too long to write')
    """
    try:
        return shortened_text(repr(value))
    except ValueError:  # Python writes no integer of more than 4,300 digits
        return f"{type(value).__name__} too long to write"
    except Exception:  # noqa: BLE001  (the code of a foreign class)
        return f"a {type(value).__name__}"


def written(value: object) -> str:
    """Write a value as text, an error in one line.

    Example:
        >>> written("größe"), written(OSError("a b"))
        ('größe', 'a b')
    """
    if isinstance(value, str):
        return value
    try:
        text = str(value)
    except Exception:  # noqa: BLE001  (as above)
        return shown(value)
    return " ".join(text.split()) if isinstance(value, BaseException) else text


def told(error: BaseException) -> str:
    """Write an error of others in one line, with its kind.

    Example:
        >>> told(KeyError("step"))
        "KeyError: 'step'"
    """
    return f"{type(error).__name__}: {written(error)}"


def shortened_text(text: str) -> str:
    """Show a long text by its two ends."""
    return text if len(text) <= _MOST_LETTERS else f"{text[: _MOST_LETTERS - 41]}…{text[-40:]}"
