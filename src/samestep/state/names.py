"""Owns the names of parameters over all tracked objects. Never reads a value."""

from collections.abc import Iterator, Mapping

from torch import Tensor, nn

_COMPILED = "_orig_mod"


class ParameterNames:
    """The parameters and buffers of all tracked modules, and all tracked tensors, each under one name.

    A parameter is named "<tracked name>.<name in the module>"; a tied one by its first name.

    Args:
        objects: The tracked objects by name.

    Example:
        >>> names = ParameterNames({"model": nn.Linear(2, 1)})
        >>> list(names.tensors)
        ['model.weight', 'model.bias']
    """

    def __init__(self, objects: Mapping[str, object]) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._names: dict[int, str] = {}
        for name, tensor in _named(objects):
            if id(tensor) not in self._names:
                self._names[id(tensor)] = name
                self.tensors[name] = tensor

    def of(self, tensor: Tensor) -> str | None:
        """Give the name of a parameter; None if no tracked object holds it."""
        return self._names.get(id(tensor))


def unwrapped(module: nn.Module) -> nn.Module:
    """Take a module out of its data-parallel wrappers, which put "module." before every name."""
    while isinstance(module, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        module = module.module
    return module


def canonical(name: str) -> str:
    """Remove from a module's or parameter's name what `torch.compile` puts into it.

    Example:
        >>> canonical("_orig_mod.layers._orig_mod.weight")
        'layers.weight'
    """
    if _COMPILED not in name:
        return name
    return ".".join(part for part in name.split(".") if part != _COMPILED)


def _named(objects: Mapping[str, object]) -> Iterator[tuple[str, Tensor]]:
    for name, tracked in objects.items():
        if isinstance(tracked, nn.Module):
            module = unwrapped(tracked)
            for inner, tensor in (*module.named_parameters(), *module.named_buffers()):
                yield f"{name}.{canonical(inner)}", tensor
        elif isinstance(tracked, Tensor):
            yield name, tracked
