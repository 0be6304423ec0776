"""Claims about optimizers: every one of torch goes on with the same bits, by the names of its parameters."""

import copy

import pytest
import torch
from torch import nn

from samestep.errors import NotTracked, StateMismatch, UnsupportedValue
from samestep.state.capture import capture, reapply, restore

OPTIMIZERS = {
    "ASGD": lambda p: torch.optim.ASGD(p, lr=0.01),
    "Adadelta": torch.optim.Adadelta,
    "Adafactor": torch.optim.Adafactor,
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr_decay=0.1),
    "Adagrad fused": lambda p: torch.optim.Adagrad(p, fused=True),
    "Adam": lambda p: torch.optim.Adam(p, amsgrad=True),
    "Adam fused": lambda p: torch.optim.Adam(p, fused=True),
    "Adam foreach": lambda p: torch.optim.Adam(p, foreach=True),
    "Adam tensor rate": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01)),
    "AdamW": lambda p: torch.optim.AdamW(p, weight_decay=0.1),
    "AdamW fused": lambda p: torch.optim.AdamW(p, fused=True, lr=torch.tensor(0.01)),
    "Adamax": torch.optim.Adamax,
    "LBFGS": lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=3, history_size=4, line_search_fn="strong_wolfe"),
    "Muon": lambda p: torch.optim.Muon([each for each in p if each.dim() == 2]),
    "NAdam": torch.optim.NAdam,
    "RAdam": torch.optim.RAdam,
    "RMSprop": lambda p: torch.optim.RMSprop(p, momentum=0.9, centered=True),
    "Rprop": torch.optim.Rprop,
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "SGD fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "SGD plain": lambda p: torch.optim.SGD(p, lr=0.1),
}
X = torch.randn(16, 5, generator=torch.Generator().manual_seed(1))


def model(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 4), nn.Linear(4, 1))


def train(net, optimizer, steps):
    for _ in range(steps):

        def closure():
            optimizer.zero_grad()
            loss = net(X).square().mean()
            loss.backward()
            return loss

        optimizer.step(closure)


def copy_weights(source, target):
    target.load_state_dict(source.state_dict())


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_stock_optimizer_goes_on_with_the_same_bits(name, bits, stored):
    """Three steps, a restore into fresh objects and three more steps equal six steps, state included."""
    net = model()
    optimizer = OPTIMIZERS[name](list(net.parameters()))
    train(net, optimizer, 3)
    items = stored(capture({"model": net, "optimizer": optimizer}))
    train(net, optimizer, 3)

    fresh = model(seed=1)
    other = OPTIMIZERS[name](list(fresh.parameters()))
    restore({"model": fresh, "optimizer": other}, items)
    train(fresh, other, 3)
    assert bits(fresh.state_dict()) == bits(net.state_dict())
    assert bits(other.state_dict()) == bits(optimizer.state_dict())


def test_all_optimizers_of_torch_are_tested():
    """A new optimizer in torch makes this test fail until it is added to the list."""
    kinds = {name for name in dir(torch.optim) if isinstance(getattr(torch.optim, name), type)}
    assert kinds - {"Optimizer"} - {name.split()[0] for name in OPTIMIZERS} == {"SparseAdam"}


def test_sparse_adam_goes_on_with_the_same_bits(bits, stored):
    """SparseAdam and the sparse gradients of an embedding are restored exactly."""

    def build(seed):
        torch.manual_seed(seed)
        net = nn.Embedding(10, 3, sparse=True)
        return net, torch.optim.SparseAdam(net.parameters(), lr=0.1)

    def steps(net, optimizer, count):
        for step in range(count):
            optimizer.zero_grad()
            net(torch.tensor([1, step, step])).square().sum().backward()
            optimizer.step()

    net, optimizer = build(0)
    steps(net, optimizer, 3)
    net(torch.tensor([4, 4])).sum().backward()
    items = stored(capture({"model": net, "optimizer": optimizer}))
    fresh, other = build(1)
    restore({"model": fresh, "optimizer": other}, items)
    assert bits(fresh.weight.grad.to_dense()) == bits(net.weight.grad.to_dense())
    assert fresh.weight.grad.is_sparse
    steps(net, optimizer, 3)
    steps(fresh, other, 3)
    assert bits([fresh.weight, other.state_dict()]) == bits([net.weight, optimizer.state_dict()])


def test_moments_keep_their_dtype(stored):
    """Moments in float32 of parameters in bfloat16 are not cast, as Optimizer.load_state_dict would do."""
    net = nn.Linear(2, 2).bfloat16()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    optimizer.state[net.weight]["momentum_buffer"] = torch.full((2, 2), 1 / 3)
    items = stored(capture({"model": net, "optimizer": optimizer}))
    fresh = nn.Linear(2, 2).bfloat16()
    other = torch.optim.SGD(fresh.parameters(), lr=0.1, momentum=0.9)
    restore({"model": fresh, "optimizer": other}, items)
    buffer = other.state[fresh.weight]["momentum_buffer"]
    assert buffer.dtype == torch.float32
    assert torch.equal(buffer, torch.full((2, 2), 1 / 3))


def test_moments_keep_their_strides(stored):
    """Moments in channels_last stay so: strides decide kernels, and so bits."""
    net = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.randn(1, 3, 5, 5)).sum().backward()
    optimizer.step()
    items = stored(capture({"model": net, "optimizer": optimizer}))
    fresh = nn.Conv2d(3, 4, 3)
    other = torch.optim.Adam(fresh.parameters())
    restore({"model": fresh, "optimizer": other}, items)
    assert other.state[fresh.weight]["exp_avg"].stride() == optimizer.state[net.weight]["exp_avg"].stride()
    assert fresh.weight.stride() == net.weight.stride()


def test_two_swapped_layers_are_detected():
    """pytorch#1489, Lightning#17025: state never lands on another parameter of the same shape."""
    torch.manual_seed(0)
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    net = nn.ModuleDict({"a": first, "b": second})
    optimizer = torch.optim.Adam([first.weight, second.weight])
    items = capture({"model": net, "optimizer": optimizer})
    swapped = torch.optim.Adam([second.weight, first.weight])
    with pytest.raises(StateMismatch, match="does not fit") as caught:
        restore({"model": net, "optimizer": swapped}, items)
    assert "model.a.weight in the checkpoint, model.b.weight in the live object" in caught.value.found


def test_layers_registered_in_another_order_are_detected():
    """pytorch#1489, Lightning#17025: a model that names the same layers in another order is refused, not mixed up."""

    def build(*names):
        net = nn.ModuleDict({name: nn.Linear(3, 3) for name in names})
        return net, torch.optim.Adam(net.parameters())

    net, optimizer = build("a", "b")
    net["a"](torch.ones(1, 3)).sum().backward()
    optimizer.step()
    items = capture({"model": net, "optimizer": optimizer})
    other, another = build("b", "a")
    with pytest.raises(StateMismatch, match="does not fit") as caught:
        restore({"model": other, "optimizer": another}, items)
    assert "model.a.weight in the checkpoint, model.b.weight in the live object" in caught.value.found


def test_a_parameter_in_no_tracked_module_is_refused():
    """An optimizer that updates something untracked is refused with the shape and the group."""
    net, head = nn.Linear(2, 2), nn.Linear(2, 7)
    optimizer = torch.optim.SGD([{"params": net.parameters()}, {"params": head.parameters()}], lr=0.1)
    with pytest.raises(NotTracked, match="no tracked object") as caught:
        capture({"model": net, "optimizer": optimizer})
    assert (caught.value.path, caught.value.found) == (
        "optimizer.param_groups[1]['params'][0]",
        "a parameter of shape [7, 2]",
    )
    capture({"model": net, "head": head, "optimizer": optimizer})


def test_a_group_added_while_training_is_added_again(bits, stored):
    """A group that an unfreeze added in epoch 3 is added on resume, with its hyperparameters and state."""
    net = model()
    optimizer = torch.optim.Adam(net[3].parameters(), lr=0.1)
    train(net, optimizer, 2)
    optimizer.add_param_group({"params": list(net[0].parameters()), "lr": 0.01})
    train(net, optimizer, 2)
    items = stored(capture({"model": net, "optimizer": optimizer}))
    fresh = model(1)
    other = torch.optim.Adam(fresh[3].parameters(), lr=0.1)
    restore({"model": fresh, "optimizer": other}, items)
    train(net, optimizer, 2)
    train(fresh, other, 2)
    assert bits(fresh.state_dict()) == bits(net.state_dict())
    assert [group["lr"] for group in other.param_groups] == [0.1, 0.01]


def test_a_group_that_cannot_be_added_is_refused():
    """A further group whose parameters are already in a live one, or fewer groups, are refused."""
    net = model()
    two = torch.optim.SGD([{"params": net[0].parameters()}, {"params": net[2].parameters()}], lr=0.1)
    one = torch.optim.SGD(net[0].parameters(), lr=0.1)
    items = capture({"model": net, "optimizer": two})
    with pytest.raises(StateMismatch, match="does not fit") as caught:
        restore({"model": net, "optimizer": torch.optim.SGD(net.parameters(), lr=0.1)}, items)
    assert "the number of groups is 2 in the checkpoint and 1 here" in caught.value.found
    assert "further" not in caught.value.found
    with pytest.raises(StateMismatch) as caught:
        restore({"model": net, "optimizer": two}, capture({"model": net, "optimizer": one}))
    assert caught.value.found == "the number of groups is 1 in the checkpoint and 2 here"


def test_groups_keep_their_identity_and_tensor_rates_too(stored):
    """Whoever holds a group or a learning-rate tensor sees the restored value in it."""
    net = model()
    optimizer = torch.optim.Adam(net.parameters(), lr=torch.tensor(0.5))
    items = stored(capture({"model": net, "optimizer": optimizer}))
    group, rate = optimizer.param_groups[0], optimizer.param_groups[0]["lr"]
    rate.fill_(0.1)
    group["weight_decay"] = 3.0
    restore({"model": net, "optimizer": optimizer}, items)
    assert optimizer.param_groups[0] is group
    assert group["lr"] is rate
    assert (rate.item(), group["weight_decay"]) == (0.5, 0)


class Lookahead(torch.optim.SGD):
    """An optimizer with state of its own, beside groups and parameter state."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.rounds = 0

    def state_dict(self):
        return {**super().state_dict(), "rounds": self.rounds}

    def load_state_dict(self, state_dict):
        self.rounds = state_dict["rounds"]
        super().load_state_dict({key: state_dict[key] for key in ("state", "param_groups")})


def test_an_optimizer_with_its_own_state_dict_is_respected(bits, stored):
    """An overridden state_dict is stored and loaded through, and the parameters' names are checked too."""
    net = model()
    optimizer = Lookahead(net.parameters(), lr=0.1, momentum=0.9)
    train(net, optimizer, 3)
    optimizer.rounds = 7
    items = stored(capture({"model": net, "optimizer": optimizer}))
    fresh = model(1)
    other = Lookahead(fresh.parameters(), lr=0.1, momentum=0.9)
    restore({"model": fresh, "optimizer": other}, items)
    assert other.rounds == 7
    assert bits(other.state_dict()) == bits(optimizer.state_dict())
    other.param_groups[0]["lr"] = 5
    reapply({"model": fresh, "optimizer": other}, items)
    assert other.param_groups[0]["lr"] == 0.1
    with pytest.raises(StateMismatch, match="does not fit"):
        restore({"model": fresh, "optimizer": Lookahead(list(fresh.parameters())[::-1], lr=0.1)}, items)
    with pytest.raises(StateMismatch, match="another kind of optimizer"):
        restore({"model": fresh, "optimizer": torch.optim.SGD(fresh.parameters(), lr=0.1)}, items)


def test_a_value_that_cannot_be_stored_is_named():
    """A function in the state of a parameter is refused by its path."""
    net = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    optimizer.state[net.weight]["hook"] = lambda: 0
    with pytest.raises(UnsupportedValue, match="is a function") as caught:
        capture({"model": net, "optimizer": optimizer})
    assert caught.value.path == 'optimizer.state["model.weight"].hook'


def test_a_restored_state_is_not_shared_with_the_items(bits):
    """Training on after a restore does not change the items."""
    net = model()
    optimizer = torch.optim.Adam(net.parameters())
    train(net, optimizer, 1)
    items = capture({"model": copy.deepcopy(net), "optimizer": optimizer}, named_by={"model": net})
    other = torch.optim.Adam(net.parameters())
    before = bits(dict(items["optimizer"].tensors))
    restore({"model": net, "optimizer": other}, items)
    train(net, other, 1)
    assert bits(dict(items["optimizer"].tensors)) == before


def test_the_step_of_adam_stays_where_it_was(stored):
    """pytorch#80809: moments follow the parameters to another device, the step counter stays on the CPU."""
    net = nn.Linear(2, 2)
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    items = {"optimizer": stored(capture({"model": net, "optimizer": optimizer}))["optimizer"]}
    elsewhere = nn.Linear(2, 2, device="meta")  # any device that is not the CPU
    other = torch.optim.Adam(elsewhere.parameters())
    restore({"model": elsewhere, "optimizer": other}, items, allow_missing=["model"])
    state = other.state[elsewhere.weight]
    assert {key: each.device.type for key, each in state.items()} == {
        "step": "cpu",
        "exp_avg": "meta",
        "exp_avg_sq": "meta",
    }


def test_a_checkpoint_from_a_device_loads_without_it(stored):
    """R17: state saved on a GPU goes where the parameters live; a step counter saved on the CPU stays there."""
    net = nn.Linear(1, 1)
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.ones(1, 1)).sum().backward()
    optimizer.step()
    item = stored(capture({"model": net, "optimizer": optimizer}))["optimizer"]
    item.tree["devices"] = {"model.weight": "cuda", "model.bias": "cuda"}
    for state in item.tree["state"].values():
        state["exp_avg"]["device"] = state["exp_avg_sq"]["device"] = "cuda"
    fresh = torch.optim.Adam(net.parameters())
    restore({"model": net, "optimizer": fresh}, {"optimizer": item}, allow_missing=["model"])
    for parameter in net.parameters():
        assert {each.device.type for each in fresh.state[parameter].values()} == {"cpu"}
        assert torch.equal(fresh.state[parameter]["exp_avg"], optimizer.state[parameter]["exp_avg"])


def test_another_class_of_optimizer_is_refused():
    """The state of Adam does not go into SGD, which would silently train on without it."""
    model = torch.nn.Linear(2, 1)
    adam = torch.optim.Adam(model.parameters())
    items = capture({"model": model, "optimizer": adam})
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(StateMismatch, match="another kind of optimizer") as caught:
        restore({"model": model, "optimizer": sgd}, items)
    assert (caught.value.expected, caught.value.found) == ("Adam", "SGD")
