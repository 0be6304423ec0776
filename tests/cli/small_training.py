import torch

from samestep.state.snapshot import Item, Snapshot


def snapshot(step, *, layers=3, epoch=0, seed=0, metrics=None):
    """Give a small training's state as the store takes it: a tied model, an optimizer, a scheduler."""
    generator = torch.Generator().manual_seed(seed)
    names = [f"layers.{i}.weight" for i in range(layers)]
    weights = {name: torch.randn(4, 4, generator=generator) for name in names}
    tree = {name: {"$tensor": name} for name in names} | {"tied": {"$tensor": names[0]}}
    moments = {f"{name}.exp_avg": torch.full((4, 4), float(step)) for name in names}
    state = {name: {"step": step, "exp_avg": {"$tensor": f"{name}.exp_avg"}} for name in names}
    group = {"lr": 0.1, "betas": {"$kind": "tuple", "value": [0.9, 0.99]}}
    items = {
        "model": Item("module", {"state": tree}, weights),
        "optimizer": Item("optimizer", {"state": state, "groups": [group]}, moments),
        "scheduler": Item("scheduler", {"last_epoch": step}, {}),
    }
    return Snapshot(step, epoch, items, metrics or {})
