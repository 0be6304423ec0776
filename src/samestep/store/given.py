"""Owns the checking of what is given to a store by name, before anything is written. Never looks into an object."""

import operator
import re
from collections.abc import Collection, Mapping

from samestep.errors import SamestepError
from samestep.wording import shown, written


def require(where: str, expected: str, found: object, is_right: bool) -> None:
    """Raise if an argument is not what was expected.

    Args:
        where: Which argument it is.
        expected: What it should be.
        found: What it is.
        is_right: Whether it is.
    """
    if not is_right:
        raise SamestepError("An argument is not understood.", path=where, expected=expected, found=shown(found))


def check_objects(objects: object, where: str) -> None:
    """Raise if objects are not given by names.

    Args:
        objects: What was given.
        where: To whom, for the error.
    """
    found = type(objects).__name__
    if isinstance(objects, Mapping):
        nameless = [each for each in objects if not isinstance(each, str)]
        if not nameless:
            return
        found = f"the name {shown(nameless[0])}"
    raise SamestepError(
        "The objects are not given by names.",
        path=where,
        expected='a dict such as {"model": model, "optimizer": optimizer}',
        found=found,
    )


def check_marks(epoch: object, metrics: object, tags: object) -> None:
    """Raise if what a checkpoint is marked with cannot be written beside it.

    Args:
        epoch: A whole number or None.
        metrics: Scores by name, or None.
        tags: A list of texts.
    """
    is_epoch = epoch is None or (isinstance(epoch, int) and not isinstance(epoch, bool))
    require("Store.save(epoch=…)", "a whole number, or None", epoch, is_epoch)
    require("Store.save(metrics=…)", "scores by name", metrics, metrics is None or isinstance(metrics, Mapping))
    is_list = isinstance(tags, list | tuple | set | frozenset) and all(isinstance(each, str) for each in tags)
    require("Store.save(tags=…)", "a list of texts", tags, is_list)


def check_wishes(map_location: object, allow_missing: object) -> None:
    """Raise if objects cannot be loaded as it is wished.

    Args:
        map_location: Where tensors go; the device "meta" holds no values, which only a look at shapes can do with.
        allow_missing: Names that may be missing.
    """
    holds_values = written(map_location).partition(":")[0] != "meta"
    require("map_location", "a device that holds values", map_location, holds_values)
    require("Store.load(allow_missing=…)", "a list of names", allow_missing, are_names(allow_missing))


def are_names(value: object) -> bool:
    """Tell whether a value is a collection of names, and not one name."""
    if isinstance(value, str | bytes) or not isinstance(value, Collection):
        return False
    try:
        return all(isinstance(each, str) for each in value)
    except TypeError:  # a tensor of no dimensions
        return False


def named_step(which: object) -> tuple[str, int, int | None] | None:
    """Read which step's checkpoint is asked for.

    Args:
        which: A step such as 400, also an integer of another library, or a name such as "step-000000400.1".

    Returns:
        The name as it is understood, the step, and the order among those of the step where that is said; None when it
        names none.

    Example:
        >>> named_step(400), named_step("step-000000400.1"), named_step("newest")
        (('step-400', 400, None), ('step-000000400.1', 400, 1), None)
    """
    name = which
    if not isinstance(which, str) and not isinstance(which, bool):
        try:
            name = f"step-{operator.index(which):d}"  # type: ignore[arg-type]
        except (TypeError, ValueError):  # Python writes no integer of more than 4,300 digits
            return None
    match = _WHICH.fullmatch(name) if isinstance(name, str) else None
    if match is None:
        return None
    return match[0], int(match[1]), None if match[2] is None else int(match[2])


_WHICH = re.compile(r"step-(\d{1,19})(?:\.(\d{1,9}))?")
