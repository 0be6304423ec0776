"""Owns the way of tracked objects into items and back: all or nothing, in order. Never touches storage."""

import logging
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from samestep.errors import CorruptCheckpoint, SamestepError, StateMismatch
from samestep.state.gradients import GRADIENTS, GradientRestoration, GradientWatch, capture_gradients
from samestep.state.kinds import ORDER, kind_of
from samestep.state.modules import ModuleRestoration, capture_module
from samestep.state.names import ParameterNames
from samestep.state.optimizers import OptimizerRestoration, capture_optimizer
from samestep.state.restoration import BEGIN_ANEW, Restoration, Undo, compare_names, shortened
from samestep.state.snapshot import Item
from samestep.state.stateful import (
    GeneratorRestoration,
    SchedulerRestoration,
    StatefulRestoration,
    TensorRestoration,
    capture_generator,
    capture_scheduler,
    capture_stateful,
    capture_tensor,
    refused,
)
from samestep.wording import told

_log = logging.getLogger("samestep")


def capture(
    objects: Mapping[str, object],
    *,
    watch: GradientWatch | None = None,
    named_by: Mapping[str, object] | None = None,
) -> dict[str, Item]:
    """Read the state of tracked objects.

    Args:
        objects: The objects to read, by the names under which they are tracked.
        watch: Knows which gradients are finished; without it every gradient counts as state.
        named_by: All tracked objects, where `objects` are only some of them: parameters get their names here.

    Returns:
        Items by name, and one named "gradients" if there are unfinished ones. Tensors are live references.

    Raises:
        NotTracked: An object cannot be tracked, or an optimizer's parameter is in no tracked object.
        UnsupportedValue: A value cannot be stored exactly; the error names its path.

    Example:
        >>> import torch
        >>> capture({"model": torch.nn.Linear(1, 1)})["model"].tree["state"]
        {'weight': {'$tensor': 'weight'}, 'bias': {'$tensor': 'bias'}}
    """
    if GRADIENTS in objects:
        raise StateMismatch(
            f"The name {GRADIENTS!r} is taken by the unfinished gradients.",
            path=GRADIENTS,
            hint="Track the object under another name.",
        )
    names = ParameterNames(named_by or objects)
    items = {name: _captured(name, tracked, names) for name, tracked in objects.items()}
    gradients = capture_gradients(ParameterNames(objects), watch)
    return items if gradients is None else {**items, GRADIENTS: gradients}


def restore(
    objects: Mapping[str, object],
    items: Mapping[str, Item],
    *,
    allow_missing: Collection[str] = (),
    defer_added_groups: bool = False,
) -> None:
    """Restore tracked objects, all or nothing: everything is checked before anything is changed.

    Args:
        objects: The live objects by name.
        items: The saved state by name.
        allow_missing: Names that may be in only one of the two.
        defer_added_groups: Whether optimizers wait for `reapply` to get the groups that were added while training
            and the states of their parameters: a statement at the top of an epoch may add them once more.

    Raises:
        StateMismatch: Saved and live state do not belong together, or an object refuses its state.
        CorruptCheckpoint: An item is not one that `capture` gave.
    """
    _require_same_names(objects, items, allow_missing)
    _all_or_nothing(_prepared(objects, items, allow_missing, defer_added_groups=defer_added_groups))


def reapply(
    objects: Mapping[str, object],
    items: Mapping[str, Item],
    *,
    except_for: Collection[str] = (),
    allow_missing: Collection[str] = (),
) -> None:
    """Restore everything again, after the user's statements at the top of an epoch have run a second time.

    On a resume in the middle of an epoch they do: `scheduler.step()`, `optimizer.zero_grad()`, a decay of the
    weights, an update of an average, a draw. What they did, and what came since, is in the items.

    Args:
        objects: The live objects by name.
        items: The saved state by name.
        except_for: Names of objects that are left as they are: loaders whose iterators are already at work.
        allow_missing: What was given to `restore`.

    Raises:
        StateMismatch: A statement has made an object another one than was saved; nothing has been changed.
    """
    _all_or_nothing(_prepared(objects, items, allow_missing, except_for=except_for))


def _captured(name: str, tracked: Any, names: ParameterNames) -> Item:
    kind = kind_of(tracked, name)
    if kind == "module":
        return capture_module(name, tracked)
    if kind == "optimizer":
        return capture_optimizer(name, tracked, names)
    own: dict[str, Callable[[str, Any], Item]] = {
        "scheduler": capture_scheduler,
        "generator": capture_generator,
        "tensor": capture_tensor,
    }
    return own[kind](name, tracked) if kind in own else capture_stateful(name, kind, tracked)


def _all_or_nothing(restorations: list[Restoration]) -> None:
    undo = _rehearse(restorations)
    for restoration in restorations:
        try:
            restoration.apply()
        except Exception as error:
            _put_back(undo)
            raise _half_restored(restoration.name, error) from error


def _half_restored(name: str, error: Exception) -> SamestepError:
    """Say the truth about what the checks have missed, such as a disk that fails between them and the reading."""
    return SamestepError(
        f"{name} could not be restored, and objects before it are already changed.",
        path=name,
        found=told(error),
        hint="Begin again in a new process, with objects made anew.",
    )


def _checked(name: str, build: Callable[[], Restoration]) -> Restoration:
    try:
        return build()
    except SamestepError:
        raise
    except Exception as error:  # a hostile tree may hold anything anywhere
        raise CorruptCheckpoint("The saved state of an object cannot be read.", path=name, found=told(error)) from error


def _restoration(
    name: str, tracked: Any, item: Item, names: ParameterNames, *, defer_added_groups: bool
) -> Restoration:
    if item.kind == "optimizer":
        return OptimizerRestoration(name, tracked, item, names, defer_added_groups=defer_added_groups)
    kinds: dict[str, Callable[[str, Any, Item], Restoration]] = {
        "module": ModuleRestoration,
        "scheduler": SchedulerRestoration,
        "generator": GeneratorRestoration,
        "tensor": TensorRestoration,
    }
    return kinds.get(item.kind, StatefulRestoration)(name, tracked, item)


def _prepared(
    objects: Mapping[str, object],
    items: Mapping[str, Item],
    allow_missing: Collection[str],
    *,
    except_for: Collection[str] = (),
    defer_added_groups: bool = False,
) -> list[Restoration]:
    """Check every item against its live object, in the order of restoring."""
    names = ParameterNames(objects)
    by_kind: dict[str, list[Restoration]] = {kind: [] for kind in ORDER}
    for name, tracked in objects.items():
        if name in items and name not in except_for:
            kind = kind_of(tracked, name)
            _require_same_kind(name, kind, items[name])
            build = partial(_restoration, name, tracked, items[name], names, defer_added_groups=defer_added_groups)
            by_kind[kind].append(_checked(name, build))
    if GRADIENTS not in allow_missing:
        gradients = partial(GradientRestoration, names, items.get(GRADIENTS), allow_missing)
        by_kind[GRADIENTS].append(_checked(GRADIENTS, gradients))
    return [each for kind in ORDER for each in by_kind[kind]]


def _require_same_names(
    objects: Mapping[str, object], items: Mapping[str, Item], allow_missing: Collection[str]
) -> None:
    saved = [name for name in items if name not in {GRADIENTS, *allow_missing}]
    live = [name for name in objects if name not in allow_missing]
    differences = compare_names(saved, live, "tracked here")
    if differences:
        alone = [name for name in (*saved, *live) if (name in saved) != (name in live)]
        raise StateMismatch(
            "The checkpoint and the run do not track the same objects; nothing has been changed.",
            found="\n            ".join(shortened(differences)),
            hint="Give the same objects the same names; or, if these may begin without a saved state, or lose theirs:"
            f" allow_missing={_quoted(alone)}.",
        )


def _quoted(names: Collection[str]) -> str:
    """Write a list of names as one writes it in a script, to be copied there."""
    return "[" + ", ".join(f'"{name}"' for name in names) + "]"


def _require_same_kind(name: str, kind: str, item: Item) -> None:
    if item.kind != kind:
        raise StateMismatch(
            f"{name} is another kind of object than when it was saved.",
            path=name,
            expected=item.kind,
            found=kind,
            hint=f"Give the same objects the same names. {BEGIN_ANEW}",
        )


def _rehearse(restorations: list[Restoration]) -> list[Undo]:
    undo: list[Undo] = []
    for restoration in restorations:
        try:
            put_back = restoration.rehearse()
        except Exception as error:
            _put_back(undo)
            raise refused(restoration.name, error) from error
        if put_back is not None:
            undo.append(put_back)
    return undo


def _put_back(undo: list[Undo]) -> None:
    for put_back in reversed(undo):
        try:
            put_back()
        except Exception:  # noqa: BLE001  (the error that brought us here is the one to raise)
            _log.exception("An object could not be put back to its state before the failed restore.")
