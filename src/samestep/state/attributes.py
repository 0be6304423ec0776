"""Owns the watch over plain attributes of modules that a training changes, and that no `state_dict` holds."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch import nn

from samestep.state.paths import child_path

_PLAIN = (bool, int, float, complex, str, type(None))


class AttributeWatch:
    """Knows the plain public attributes of modules as they were, to name those that have changed.

    `self.temperature *= 0.99` or `dropout.p = 0.1` decides the next step like any weight, but a `state_dict` does not
    hold it: a resume would begin with the value that the constructor gives.

    Args:
        modules: The tracked modules by name.

    Example:
        >>> model = nn.Sequential(nn.Dropout(0.5))
        >>> watch = AttributeWatch({"model": model})
        >>> model[0].p = 0.4
        >>> watch.changed()
        ['model.0.p: 0.5 -> 0.4']
    """

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        self._modules = modules
        self._before = dict(_attributes(modules.items()))

    def changed(self) -> list[str]:
        """Name the attributes whose values are not those they had, with both values."""
        now = dict(_attributes(self._modules.items()))
        return [
            f"{path}: {before!r} -> {now[path]!r}"
            for path, before in self._before.items()
            if path in now and (type(now[path]), now[path]) != (type(before), before)
        ]


def _attributes(modules: Iterable[tuple[str, nn.Module]]) -> Iterator[tuple[str, Any]]:
    for root, module in modules:
        for name, part in module.named_modules():
            for attribute, value in vars(part).items():
                # `training` is saved; what begins with an underscore is the module's own business.
                if isinstance(value, _PLAIN) and attribute != "training" and not attribute.startswith("_"):
                    yield f"{child_path(root, name) if name else root}.{attribute}", value
