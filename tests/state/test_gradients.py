"""Claims about gradients: a half window is kept, a finished one is not."""

import pytest
import torch
from torch import nn

from samestep.errors import StateMismatch
from samestep.state.capture import capture, reapply, restore
from samestep.state.gradients import GradientWatch

X = torch.randn(5, 4, 3, generator=torch.Generator().manual_seed(0))


def build(seed=0):
    torch.manual_seed(seed)
    net = nn.Linear(3, 2)
    return net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)


def backward(net, index):
    net(X[index]).square().mean().backward()


def test_half_a_window_of_gradients_is_restored(stored, bits):
    """OneTrainer PR#1465, transformers#22143: saved at micro-batch 3 of 5, the update is that of all five."""
    (net, optimizer), (fresh, other) = build(), build(1)
    for index in range(3):
        backward(net, index)
    items = stored(capture({"model": net, "optimizer": optimizer}, watch=GradientWatch([optimizer])))
    restore({"model": fresh, "optimizer": other}, items)
    for model, update in ((net, optimizer), (fresh, other)):
        backward(model, 3)
        backward(model, 4)
        update.step()
    assert bits([fresh.weight, fresh.bias]) == bits([net.weight, net.bias])
    assert bits(dict(items["gradients"].tensors))["model.weight"][0] == "float32"
    assert items["gradients"].kind == "gradients"


@pytest.mark.parametrize("place", ["top", "end"])
def test_finished_gradients_are_not_saved(place):
    """Loops that drop their gradients between updates store none, wherever they do it."""
    net, optimizer = build()
    watch = GradientWatch([optimizer])
    for index in range(4):
        if place == "top":
            optimizer.zero_grad()
        backward(net, index)
        optimizer.step()
        if place == "end":
            optimizer.zero_grad()
    assert "gradients" not in capture({"model": net, "optimizer": optimizer}, watch=watch)


def test_gradients_that_the_loop_never_drops_are_saved():
    """A loop that never zeroes, or zeroes in place, keeps its gradients in the checkpoint."""
    for zero in (lambda _: None, lambda optimizer: optimizer.zero_grad(set_to_none=False)):
        net, optimizer = build()
        watch = GradientWatch([optimizer])
        for index in range(3):
            zero(optimizer)
            backward(net, index)
            optimizer.step()
        assert len(capture({"model": net, "optimizer": optimizer}, watch=watch)["gradients"].tensors) == 2


def test_gradients_added_after_the_last_step_are_saved():
    """A window that began after an update is unfinished, also when it adds to the old gradients in place."""
    net, optimizer = build()
    watch = GradientWatch([optimizer])
    for index in range(4):
        optimizer.zero_grad()
        backward(net, index)
        optimizer.step()
    names = {"weight": net.weight, "bias": net.bias}
    assert watch.unfinished(names) == {}
    backward(net, 3)
    assert list(watch.unfinished(names)) == ["weight", "bias"]
    optimizer.zero_grad()
    assert watch.unfinished(names) == {}
    backward(net, 4)
    assert list(watch.unfinished(names)) == ["weight", "bias"]


def test_the_first_windows_are_saved():
    """Before three steps have replaced the gradients nobody knows what the loop does, so they are kept."""
    net, optimizer = build()
    watch = GradientWatch([optimizer])
    kept = []
    for index in range(5):
        optimizer.zero_grad()
        backward(net, index)
        optimizer.step()
        kept.append(len(watch.unfinished({"weight": net.weight})))
    assert kept == [1, 1, 1, 0, 0]


@pytest.mark.parametrize("period", [2, 3, 4])
def test_gradients_that_the_loop_keeps_now_and_then_are_always_saved(period):
    """`if step % 3 != 2: optimizer.zero_grad()`: after one step has added to old gradients none is taken for done."""
    net, optimizer = build()
    watch = GradientWatch([optimizer])
    for step in range(5 * period):
        backward(net, step % 5)
        optimizer.step()
        if step < 3 or step > period:
            assert len(watch.unfinished({"weight": net.weight})) == 1
        if step % period != period - 1:
            optimizer.zero_grad()


def test_a_kept_gradient_speaks_for_its_optimizer_only():
    """An optimizer that keeps its gradients does not make those of another one unfinished."""
    (net, optimizer), (other, second) = build(), build(1)
    watch = GradientWatch([optimizer, second])
    for index in range(5):
        second.zero_grad()
        for model, update in ((net, optimizer), (other, second)):
            backward(model, index)
            update.step()
    assert list(watch.unfinished({"kept": net.weight, "dropped": other.weight})) == ["kept"]


def test_gradients_of_parameters_without_optimizer_are_saved():
    """A gradient that no optimizer has used is unfinished."""
    net, _ = build()
    backward(net, 0)
    assert list(capture({"model": net})["gradients"].tensors) == ["model.weight", "model.bias"]


def test_restoring_clears_gradients_that_the_snapshot_lacks():
    """A parameter without a saved gradient has none after the restore, so that nothing stale is added to."""
    net, optimizer = build()
    items = capture({"model": net, "optimizer": optimizer})
    backward(net, 0)
    restore({"model": net, "optimizer": optimizer}, items)
    assert net.weight.grad is None


def test_gradients_are_applied_again_after_a_zero_grad(bits):
    """A `zero_grad()` at the top of an epoch, run again on a resume, does not cost the window."""
    net, optimizer = build()
    backward(net, 0)
    objects = {"model": net, "optimizer": optimizer}
    items = capture(objects)
    restore(objects, items)
    expected = bits(net.weight.grad)
    optimizer.zero_grad()
    reapply(objects, items)
    assert bits(net.weight.grad) == expected
    backward(net, 1)
    reapply(objects, items)
    assert bits(net.weight.grad) == expected


def test_gradients_of_unknown_parameters_are_refused():
    """A saved gradient whose parameter is not tracked here is an error, unless it is allowed to be missing."""
    net, _ = build()
    backward(net, 0)
    items = capture({"model": net})
    other = {"model": nn.Linear(3, 2)}
    gradients = {"model": capture(other)["model"], "gradients": capture({"old": net})["gradients"]}
    with pytest.raises(StateMismatch, match="'gradients' does not fit"):
        restore(other, gradients)
    restore(other, gradients, allow_missing=["gradients"])
    restore(other, gradients, allow_missing=["old"])
    assert items["gradients"].extra == {"model.weight", "model.bias"}


def test_a_closed_watch_leaves_the_optimizer_alone():
    """After `close` no hook is left on the optimizer."""
    _, optimizer = build()
    watch = GradientWatch([optimizer])
    watch.close()
    assert not optimizer._optimizer_step_post_hooks
