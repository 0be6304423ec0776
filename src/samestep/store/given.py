"""Owns the checking of what is given to a store by name, before anything is written. Never looks into an object."""

from collections.abc import Mapping

from samestep.errors import SamestepError


def require(where: str, expected: str, found: object, is_right: bool) -> None:
    """Raise if an argument is not what was expected.

    Args:
        where: Which argument it is.
        expected: What it should be.
        found: What it is.
        is_right: Whether it is.
    """
    if not is_right:
        raise SamestepError("An argument is not understood.", path=where, expected=expected, found=repr(found))


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
        found = f"the name {nameless[0]!r}"
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
