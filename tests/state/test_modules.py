"""Claims about modules: weights, buffers, flags and strides come back in place, or nothing changes at all."""

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from samestep.errors import StateMismatch, UnsupportedValue
from samestep.state.capture import capture, restore
from samestep.state.tensors import tensor_bytes


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Sequential(nn.Dropout(), nn.Linear(4, 2))
        self.register_buffer("scale", torch.rand(3), persistent=False)
        self.register_buffer("cache", None, persistent=False)

    def forward(self, x):
        return self.head(self.norm(self.conv(x)).mean((2, 3)))


def everything(net):
    """Read all that a module's restore promises, as bytes."""
    tensors = [*net.named_parameters(), *net.named_buffers()]
    return {
        **{name: (each.dtype, each.stride(), tensor_bytes(each).tobytes()) for name, each in tensors},
        "training": [each.training for each in net.modules()],
        "frozen": [each.requires_grad for each in net.parameters()],
    }


def test_a_module_is_restored_completely_and_in_place(stored):
    """Parameters, all buffers, strides, training and requires_grad flags come back, in the same objects."""
    net = Net().to(memory_format=torch.channels_last)
    net(torch.randn(2, 3, 5, 5))
    net.norm.eval()
    net.conv.requires_grad_(requires_grad=False)
    net.cache = torch.arange(3)
    items = stored(capture({"model": net}))
    fresh = Net()
    before = [id(each) for each in fresh.parameters()]
    restore({"model": fresh}, items)
    assert everything(fresh) == everything(net)
    assert [id(each) for each in fresh.parameters()] == before
    assert "cache" not in fresh.state_dict()


def test_tensor_names_are_those_of_the_state_dict():
    """The file written from an item is the inference file: the state dict's names, the rest apart."""
    net = Net()
    item = capture({"model": net})["model"]
    assert set(item.tensors) - item.extra == set(net.state_dict())
    assert item.extra == {"scale"}


def test_a_cache_of_another_size_is_put_in_anew(stored):
    """A non-persistent buffer that grew while training comes back in its size, not in that of a fresh model."""
    net, fresh = Net(), Net()
    net.scale = torch.rand(9)
    restore({"model": fresh}, stored(capture({"model": net})))
    assert torch.equal(fresh.scale, net.scale)
    assert "scale" not in fresh.state_dict()


def test_tied_weights_are_written_once_and_stay_tied(stored):
    """Tied weights are one tensor in the item and one parameter after the restore, optimizer and all."""

    def build():
        net = nn.ModuleDict({"embed": nn.Embedding(5, 3), "head": nn.Linear(3, 5, bias=False)})
        net["head"].weight = net["embed"].weight
        return net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

    net, optimizer = build()
    items = capture({"model": net, "optimizer": optimizer})
    assert list(items["model"].tensors) == ["embed.weight"]
    assert items["optimizer"].tree["groups"][0]["params"] == ["model.embed.weight"]
    fresh, other = build()
    restore({"model": fresh, "optimizer": other}, stored(items))
    assert fresh["head"].weight is fresh["embed"].weight
    assert torch.equal(fresh["head"].weight, net["embed"].weight)


def test_ties_that_differ_are_refused():
    """Weights tied on one side only would train differently, so they are refused both ways."""
    tied = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    tied[1].weight = tied[0].weight
    free = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    for saved, live, word in ((tied, free, "checkpoint"), (free, tied, "live object")):
        with pytest.raises(StateMismatch) as caught:
            restore({"model": live}, capture({"model": saved}))
        assert caught.value.found == f"0.weight and 1.weight are tied in the {word} only"


def test_all_differences_are_listed_and_nothing_changes():
    """Missing, unexpected, shapes and dtypes are all named in one error, and the model stays as it was."""
    saved = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 3), "c": nn.Linear(1, 1), "e": nn.Linear(1, 1)})
    live = nn.ModuleDict(
        {"a": nn.Linear(2, 2), "b": nn.Linear(2, 4), "c": nn.Linear(1, 1).half(), "d": nn.Linear(1, 1)}
    )
    before = everything(live)
    with pytest.raises(StateMismatch, match="'model' does not fit") as caught:
        restore({"model": live}, capture({"model": saved}))
    for sentence in (
        "e.weight is in the checkpoint but not in the live object",
        "d.bias is in the live object but not in the checkpoint",
        "b.weight is float32[3, 2] in the checkpoint and float32[4, 2] in the live object",
        "c.bias is float32[1] in the checkpoint and float16[1] in the live object",
    ):
        assert sentence in caught.value.found
    assert everything(live) == before


def test_wrappers_leave_no_trace_in_names():
    """Weights of a data-parallel or compiled model load into the plain one, and the other way round."""

    class Compiled(nn.Module):
        """What torch.compile returns, without the compiler: it holds the module as `_orig_mod`."""

        def __init__(self, module):
            super().__init__()
            self._orig_mod = module

    plain, inner = nn.Sequential(nn.Linear(2, 2)), nn.Sequential(nn.Linear(2, 2))
    for wrapped in (nn.DataParallel(inner), Compiled(inner), nn.DataParallel(Compiled(inner))):
        optimizer = torch.optim.Adam(wrapped.parameters())
        items = capture({"model": wrapped, "optimizer": optimizer})
        assert list(items["model"].tensors) == ["0.weight", "0.bias"]
        assert items["optimizer"].tree["groups"][0]["params"] == ["model.0.weight", "model.0.bias"]
        nn.init.ones_(plain[0].weight)
        restore({"model": plain, "optimizer": torch.optim.Adam(plain.parameters())}, items)
        assert torch.equal(plain[0].weight, inner[0].weight)
        nn.init.zeros_(plain[0].weight)
        restore({"model": wrapped}, capture({"model": plain}))
        assert not inner[0].weight.any()


def test_a_compiled_model_is_captured_under_its_own_names():
    """The object that torch.compile really returns has the names of the model inside."""
    net = nn.Sequential(nn.Linear(2, 2))
    compiled = torch.compile(net, backend="eager")
    assert list(capture({"model": compiled})["model"].tensors) == ["0.weight", "0.bias"]


class Counting(nn.Module):
    """A module with extra state, as torch calls it."""

    def __init__(self, seen=()):
        super().__init__()
        self.layer = nn.Linear(1, 1)
        self.seen = set(seen)

    def get_extra_state(self):
        return {"seen": self.seen, "mean": torch.tensor(0.5)}

    def set_extra_state(self, state):
        if not isinstance(state["seen"], set) or state["mean"] != 0.5:
            raise TypeError
        self.seen = state["seen"]


def test_extra_state_goes_through_the_codec(stored):
    """What `get_extra_state` gives comes back through `set_extra_state`, types and all."""
    fresh = Counting()
    restore({"model": nn.Sequential(fresh)}, stored(capture({"model": nn.Sequential(Counting({1, 2}))})))
    assert fresh.seen == {1, 2}


class Refusing(Counting):
    def set_extra_state(self, state):
        super().set_extra_state(state)
        if len(state["seen"]) > 2:
            raise RuntimeError("too many")


def test_a_module_that_refuses_its_state_leaves_all_objects_as_they_were():
    """A module whose own code fails while loading is rehearsed first: all objects keep their state."""
    saved = {"a": nn.Linear(1, 1), "b": Refusing({1, 2, 3})}
    live = {"a": nn.Linear(1, 1), "b": Refusing({9})}
    before = everything(live["a"]), everything(live["b"]), live["b"].seen
    with pytest.raises(StateMismatch, match="b does not accept its saved state") as caught:
        restore(live, capture(saved))
    assert caught.value.found == "RuntimeError: too many"
    assert (everything(live["a"]), everything(live["b"]), live["b"].seen) == before


def test_hooks_on_the_state_dict_are_respected(stored):
    """Spectral normalisation changes the state dict by hooks; it goes on exactly."""

    def build(seed):
        torch.manual_seed(seed)
        net = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3)), nn.Linear(3, 3))
        net[1].register_load_state_dict_post_hook(lambda module, _: setattr(module, "loaded", True))
        return net

    net, fresh = build(0), build(1)
    x = torch.ones(1, 3)
    net(x)
    restore({"model": fresh}, stored(capture({"model": net})))
    assert torch.equal(fresh(x), net(x))
    assert torch.equal(fresh(x), net(x))
    assert fresh[1].loaded


def test_averaged_models_go_on_exactly(stored):
    """lightly-train PR#892, YOLOX#1318: EMA weights and their integer counter go on where they were."""

    def build(seed):
        torch.manual_seed(seed)
        net = nn.Linear(2, 2)
        return net, AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)

    (net, ema), (fresh, other) = build(0), build(1)
    for _ in range(3):
        net.weight.data.add_(0.1)
        ema.update_parameters(net)
    restore({"model": fresh, "ema": other}, stored(capture({"model": net, "ema": ema})))
    for model, average in ((net, ema), (fresh, other)):
        model.weight.data.mul_(1.1)
        average.update_parameters(model)
    assert everything(other) == everything(ema)
    assert other.n_averaged == 4


def test_lazy_modules_are_refused_clearly():
    """A module without shapes can neither be saved nor restored, and the error says what to do."""
    ready, lazy = nn.LazyLinear(2), nn.LazyLinear(2)
    ready(torch.ones(1, 3))
    with pytest.raises(UnsupportedValue, match=r"model\.weight has no shape yet"):
        capture({"model": lazy})
    with pytest.raises(UnsupportedValue, match=r"model\.weight has no shape yet"):
        restore({"model": lazy}, capture({"model": ready}))
    fresh = nn.LazyLinear(2)
    fresh(torch.ones(1, 3))
    restore({"model": fresh}, capture({"model": ready}))
    assert torch.equal(fresh.weight, ready.weight)


def test_models_on_the_meta_device_are_refused():
    """Copying to the meta device would silently do nothing."""
    net = nn.Linear(1, 1)
    with pytest.raises(StateMismatch) as caught:
        restore({"model": nn.Linear(1, 1, device="meta")}, capture({"model": net}))
    assert "materialise" in caught.value.found


def test_expanded_and_shared_buffers(stored):
    """Buffers that are expanded, or views of one another, are restored without breaking the sharing."""

    def build(value):
        net = nn.Module()
        net.register_buffer("base", torch.full((4,), value))
        net.register_buffer("part", net.base[1:3])
        net.register_buffer("wide", torch.tensor([value]).expand(5))
        return net

    fresh = build(0.0)
    restore({"model": fresh}, stored(capture({"model": build(2.0)})))
    assert fresh.part.tolist() == [2, 2]
    assert fresh.wide.tolist() == [2] * 5
    fresh.base.zero_()
    assert not fresh.part.any()
    assert fresh.wide.stride() == (0,)


class Cached(nn.Module):
    """A module with buffers of both sorts, one of each filled and one empty."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 1)
        for name, value in (("full", torch.ones(2)), ("empty", None)):
            self.register_buffer(f"kept_{name}", None if value is None else value.clone())
            self.register_buffer(f"passing_{name}", None if value is None else value.clone(), persistent=False)


class Hooked(Cached):
    """The same, with code of its own in loading."""

    def _load_from_state_dict(self, *args):
        super()._load_from_state_dict(*args)


@pytest.mark.parametrize("kind", [Cached, Hooked])
def test_buffers_that_became_none_or_tensors_do_so_again(kind, stored):
    """A buffer that the training emptied is empty after a resume, one that it filled is full, kept or passing."""
    net, fresh = kind(), kind()
    for sort in ("kept", "passing"):
        setattr(net, f"{sort}_full", None)
        setattr(net, f"{sort}_empty", torch.full((3,), 5.0))
    items = stored(capture({"model": net}))
    restore({"model": fresh}, items)
    for sort in ("kept", "passing"):
        assert getattr(fresh, f"{sort}_full") is None
        assert getattr(fresh, f"{sort}_empty").tolist() == [5, 5, 5]
    assert capture({"model": fresh})["model"].tree == items["model"].tree
    assert list(fresh.state_dict()) == list(net.state_dict())


@pytest.mark.parametrize("kind", [Cached, Hooked])
def test_a_refused_restore_puts_emptied_buffers_back(kind):
    """When another object refuses its state, buffers are as full or empty as before."""
    net, fresh = kind(), kind()
    net.kept_full, net.kept_empty = None, torch.ones(1)
    scaler = torch.amp.GradScaler("cpu")
    items = capture({"model": net, "scaler": scaler})
    items["scaler"].tree.clear()
    with pytest.raises(StateMismatch):
        restore({"model": fresh, "scaler": scaler}, items)
    assert fresh.kept_full.tolist() == [1, 1]
    assert fresh.kept_empty is None
