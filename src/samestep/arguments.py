"""Owns the checking of what a script gives to its run, before anything is changed. Knows no file and no loop."""

import math
import operator
import re
from collections.abc import Collection, Mapping
from numbers import Real

from samestep.errors import SamestepError
from samestep.store.given import are_names
from samestep.store.json_lines import plain
from samestep.store.retention import Keep
from samestep.wording import shown

_RESUME = re.compile(r"auto|never|must|step-\d+(\.\d+)?")


def check_arguments(keep: object, resume: object, config: object, allow_missing: object) -> None:
    """Raise if an argument of `Run` is not understood; it is named, with what was expected."""
    expected = {
        "keep": (isinstance(keep, Keep), "a samestep.Keep", keep),
        "resume": (_is_resume(resume), '"auto", "never", "must" or "step-400"', resume),
        "config": (config is None or isinstance(config, Mapping), "a dict of plain values (vars(args))", config),
        "allow_missing": (
            are_names(allow_missing),
            'a list of names of tracked objects, such as ["ema"]',
            allow_missing,
        ),
    }
    for name, (is_right, what, found) in expected.items():
        if not is_right:
            raise SamestepError(f"{name} is not understood.", path=f"Run({name}=…)", expected=what, found=shown(found))
    if isinstance(config, Mapping):
        plain(dict(config), "config")


def checked_bound(kind: str, bound: object) -> float:
    """Give the number of bodies that a loop goes to: a whole number, or infinity for a loop that `run.stop()` ends.

    Args:
        kind: "epochs" or "steps".
        bound: What the script gave.

    Raises:
        SamestepError: It is neither a whole number of at least 0 nor infinity.

    Example:
        >>> checked_bound("epochs", 20)
        20
    """
    is_endless = isinstance(bound, Real) and bound == math.inf
    number = math.inf if is_endless else _index(bound)
    if number is None or number < 0:
        raise SamestepError(
            f"The number of {kind} is not understood.",
            path=f"run.{kind}",
            expected=f"how many {kind} there are in all: a whole number of at least 0",
            found=shown(bound),
            hint="int(…) makes one of a float or a text; math.inf is a loop that run.stop() ends.",
        )
    return number


def require_named(what: str, unnamed: tuple[object, ...], example: str) -> None:
    """Raise if values were given without names.

    Args:
        what: The method: "run.track".
        unnamed: What was given without a name.
        example: How it is written: "model=model".
    """
    if unnamed:
        raise SamestepError(
            f"What is given to {what} needs a name.",
            path=what,
            expected=f"{what}({example})",
            found=", ".join(type(each).__name__ for each in unnamed),
        )


def require_free_names(what: str, names: Collection[str], taken: Collection[str]) -> None:
    """Raise if a value has a name that each line of `metrics.jsonl` has already.

    Args:
        what: The method: "run.step".
        names: The names of the values.
        taken: Those that the run writes itself.
    """
    doubled = [name for name in names if name in taken]
    if doubled:
        raise SamestepError(
            f"The name {doubled[0]!r} belongs to the run itself, which writes it beside the values.",
            path=what,
            hint="Give the value another name.",
        )


def _index(value: object) -> int | None:
    try:
        return None if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def _is_resume(value: object) -> bool:
    return isinstance(value, str) and _RESUME.fullmatch(value) is not None
