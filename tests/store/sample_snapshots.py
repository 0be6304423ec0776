"""Small snapshots for tests of the store, and equality to the bit."""

import torch

from samestep.state.snapshot import Item, Snapshot


def make_snapshot(step, *, epoch=0, fill=None, metrics=None):
    """Make a small snapshot whose values depend on the step alone."""
    value = float(step if fill is None else fill)
    weight = torch.full((2, 3), value)
    return Snapshot(
        step=step,
        epoch=epoch,
        items={
            "model": Item(
                kind="module",
                tree={"weight": {"$tensor": "weight"}, "grad": {"$tensor": "grad"}},
                tensors={"weight": weight, "grad": -weight},
                extra=frozenset({"grad"}),
            ),
            "random": Item(kind="random", tree={"torch": {"$tensor": "torch"}}, tensors={"torch": torch.arange(8)}),
            "values": Item(kind="values", tree={"step": step}),
        },
        metrics=metrics or {},
    )


def same(left, right):
    """Tell whether two tensors are equal in dtype, shape, strides and every bit."""
    return (left.dtype, left.shape, left.stride()) == (
        right.dtype,
        right.shape,
        right.stride(),
    ) and left.contiguous().reshape(-1).view(torch.uint8).equal(right.contiguous().reshape(-1).view(torch.uint8))


def same_snapshot(left, right):
    """Tell whether two snapshots are equal to the bit."""
    return (
        (left.step, left.epoch, repr(left.metrics)) == (right.step, right.epoch, repr(right.metrics))
        and left.items.keys() == right.items.keys()
        and all(_same_item(item, right.items[name]) for name, item in left.items.items())
    )


def _same_item(left, right):
    return (
        (left.kind, left.tree, left.extra) == (right.kind, right.tree, right.extra)
        and left.tensors.keys() == right.tensors.keys()
        and all(same(tensor, right.tensors[name]) for name, tensor in left.tensors.items())
    )
