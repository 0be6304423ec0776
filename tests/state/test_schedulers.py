"""Claims about schedulers: each one of torch goes on with the same learning rates."""

import pytest
import torch
from torch.optim import lr_scheduler as schedulers
from torch.optim.swa_utils import SWALR

from samestep.errors import StateMismatch, UnsupportedValue
from samestep.state.capture import capture, reapply, restore


class Warmup:
    """A callable with a state of its own."""

    def __init__(self):
        self.calls = 0

    def __call__(self, epoch):
        self.calls += 1
        return self.calls / (1 + epoch)


SCHEDULERS = {
    "ChainedScheduler": lambda o: schedulers.ChainedScheduler(
        [schedulers.ConstantLR(o), schedulers.ExponentialLR(o, 0.9)], optimizer=o
    ),
    "ConstantLR": lambda o: schedulers.ConstantLR(o, total_iters=4),
    "CosineAnnealingLR": lambda o: schedulers.CosineAnnealingLR(o, 5),
    "CosineAnnealingWarmRestarts": lambda o: schedulers.CosineAnnealingWarmRestarts(o, 3, 2),
    "CyclicLR": lambda o: schedulers.CyclicLR(o, 0.01, 0.3, step_size_up=3),
    "CyclicLR custom": lambda o: schedulers.CyclicLR(o, 0.01, 0.3, 3, scale_fn=lambda x: 0.9**x),
    "ExponentialLR": lambda o: schedulers.ExponentialLR(o, 0.9),
    "LambdaLR": lambda o: schedulers.LambdaLR(o, lambda epoch: 1 / (1 + epoch)),
    "LambdaLR callable": lambda o: schedulers.LambdaLR(o, Warmup()),
    "LinearLR": lambda o: schedulers.LinearLR(o, total_iters=6),
    "MultiStepLR": lambda o: schedulers.MultiStepLR(o, [2, 4, 4, 5]),
    "MultiplicativeLR": lambda o: schedulers.MultiplicativeLR(o, lambda _: 0.9),
    "OneCycleLR": lambda o: schedulers.OneCycleLR(o, 0.5, total_steps=20),
    "PolynomialLR": lambda o: schedulers.PolynomialLR(o, 8, 2.0),
    "ReduceLROnPlateau": lambda o: schedulers.ReduceLROnPlateau(o, patience=1, cooldown=1),
    "SequentialLR": lambda o: schedulers.SequentialLR(
        o, [schedulers.LinearLR(o, total_iters=3), schedulers.CosineAnnealingLR(o, 5)], [4]
    ),
    "StepLR": lambda o: schedulers.StepLR(o, 2, 0.5),
    "SWALR": lambda o: SWALR(o, 0.05, anneal_epochs=4),
}


def build(name):
    net = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    return {"model": net, "scheduler": SCHEDULERS[name](optimizer), "optimizer": optimizer}


def run(objects, steps):
    history = []
    for step in steps:
        objects["optimizer"].step()
        plateau = isinstance(objects["scheduler"], schedulers.ReduceLROnPlateau)
        objects["scheduler"].step(*([[3, 2, 2, 2, 2, 1, 1, 1, 1, 1][step]] if plateau else []))
        group = objects["optimizer"].param_groups[0]
        history.append((group["lr"], group["momentum"], objects["scheduler"].get_last_lr()))
    return history


@pytest.mark.parametrize("name", SCHEDULERS)
def test_every_stock_scheduler_goes_on_with_the_same_rates(name, stored):
    """Lightning#1772, Lightning#4655: after each possible step of saving, the rates are those without a stop."""
    for stop in (1, 4, 5):
        objects = build(name)
        run(objects, range(stop))
        items = stored(capture(objects))
        fresh = build(name)
        restore(fresh, items)
        assert run(fresh, range(stop, 10)) == run(objects, range(stop, 10))


def test_all_schedulers_of_torch_are_tested():
    """A new scheduler in torch makes this test fail until it is added to the list."""
    kinds = {name for name in schedulers.__all__ if isinstance(getattr(schedulers, name), type)}
    assert kinds - {"LRScheduler"} <= {name.split()[0] for name in SCHEDULERS}


class Writing(schedulers.StepLR):
    """A scheduler that writes its rates when it is loaded, as some outside torch do."""

    def load_state_dict(self, state_dict):
        super().load_state_dict(state_dict)
        for group, rate in zip(self.optimizer.param_groups, self.get_last_lr(), strict=True):
            group["lr"] = rate


def test_the_optimizer_comes_after_the_scheduler(stored):
    """R16: rates set by hand since the scheduler's last step survive one that writes its own when loaded."""

    def build():
        net = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        return {"optimizer": optimizer, "model": net, "scheduler": Writing(optimizer, 2)}

    objects, fresh = build(), build()
    objects["optimizer"].param_groups[0]["lr"] = 0.123
    restore(fresh, stored(capture(objects)))
    assert fresh["optimizer"].param_groups[0]["lr"] == 0.123


def test_a_step_at_the_top_of_the_epoch_is_undone_on_a_resume(stored):
    """The statements above an epoch's loop run again on a resume in it; scheduler and rates stay as saved."""
    objects = build("StepLR")
    run(objects, range(3))
    items = stored(capture(objects))
    expected = run(objects, range(3, 6))
    fresh = build("StepLR")
    restore(fresh, items)
    run(fresh, range(2))
    reapply(fresh, items)
    assert run(fresh, range(3, 6)) == expected


def test_a_scheduler_of_another_shape_leaves_everything_as_it_was():
    """A scheduler that cannot take its state is rehearsed before anything changes, and itself put back."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    saved = {"s": SCHEDULERS["ChainedScheduler"](optimizer)}
    live = {"s": schedulers.ChainedScheduler([schedulers.ConstantLR(optimizer)])}
    before = repr(live["s"].state_dict())
    with pytest.raises(StateMismatch, match="s does not accept its saved state"):
        restore(live, capture(saved))
    assert repr(live["s"].state_dict()) == before


def test_another_kind_of_scheduler_is_refused():
    """StepLR would take the state of a cosine without a word; it is refused by the names of the classes."""
    with pytest.raises(StateMismatch, match="another kind of scheduler") as caught:
        restore(build("StepLR"), capture(build("CosineAnnealingLR")))
    assert caught.value.expected == "torch.optim.lr_scheduler.CosineAnnealingLR"


def test_a_bound_function_in_a_scheduler_is_named():
    """A state that holds a function is refused by its path."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    scheduler = schedulers.StepLR(optimizer, 1)
    scheduler.hook = print
    with pytest.raises(UnsupportedValue) as caught:
        capture({"scheduler": scheduler})
    assert caught.value.path == "scheduler.hook"
