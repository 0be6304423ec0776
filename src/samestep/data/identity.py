"""Owns what makes a loader the one whose state was saved: data set, order, batches. Never changes a loader."""

from typing import Any

import numpy as np
import torch.utils.data
import xxhash
from torch.utils.data import BatchSampler, ConcatDataset, StackDataset, Subset

from samestep.data.fetch import name_of
from samestep.data.listing import check_listings
from samestep.errors import StateMismatch


def identity(loader: torch.utils.data.DataLoader[Any], randomness: str, order: str) -> dict[str, Any]:
    """Describe a loader by what a state of it depends on.

    Args:
        loader: The loader.
        randomness: "sample", "batch" or "torch".
        order: "sequential", "shuffled", "sampler" or "batch_sampler".

    Returns:
        Plain values by name.
    """
    return {
        "dataset": _describe(loader.dataset),
        **batching(loader),
        "order": order,
        "randomness": randomness,
    }


def batching(loader: torch.utils.data.DataLoader[Any]) -> dict[str, Any]:
    """Read how indices are batched now: PyTorch's own batch sampler may be changed between epochs, and is obeyed.

    Args:
        loader: The loader.

    Returns:
        "batch_size", None for single samples or batches of the user's own, and "drop_last".
    """
    source = loader if type(loader.batch_sampler) is not BatchSampler else loader.batch_sampler
    return {"batch_size": source.batch_size, "drop_last": source.drop_last}


def check_identity(state: dict[str, Any], found: dict[str, Any], given_seed: int | None) -> None:
    """Raise `StateMismatch` at the first value of a state that differs from the loader's own.

    Args:
        state: The saved state.
        found: The loader's `identity`.
        given_seed: The seed that the user gave, if any.
    """
    if state.get("version") != 1:
        raise StateMismatch(
            "This is not the state of a samestep.DataLoader that this version can read.",
            path="version",
            expected=1,
            found=state.get("version"),
        )
    for name, what in _WHAT.items():
        _compare(name, what, state[name], found[name])
    check_listings(state.get("lists", {}), found["lists"])  # states of the first versions have none
    if given_seed is not None:
        _compare("seed", "seed", state["seed"], given_seed)


_WHAT = {
    "randomness": "randomness",
    "order": "kind of order",
    "batch_size": "batch size",
    "drop_last": "drop_last",
    "dataset": "data set",
}


def _compare(path: str, what: str, saved: Any, live: Any) -> None:
    if isinstance(saved, dict) and isinstance(live, dict):
        for name in {**saved, **live}:
            if name == "fingerprint" and name not in saved:
                continue  # one that was added since says nothing about the data set as it was
            _compare(f"{path}.{name}", what, saved.get(name), live.get(name))
    elif saved != live:
        raise StateMismatch(
            f"The state was saved by a loader with another {what}.",
            path=path,
            expected=saved,
            found=live,
            hint="Build the loader as in the run that saved the state, or start anew without it.",
        )


def _describe(dataset: Any) -> dict[str, Any]:
    described: dict[str, Any] = {"type": type(dataset).__qualname__, "length": _length(dataset)}
    fingerprint = getattr(dataset, "fingerprint", None)
    if callable(fingerprint):
        described["fingerprint"] = fingerprint()
    if isinstance(dataset, Subset):
        described |= {"indices": _digest(dataset.indices), "of": _describe(dataset.dataset)}
    elif isinstance(dataset, (ConcatDataset, StackDataset)):
        parts = dataset.datasets
        names = parts if isinstance(parts, dict) else range(len(parts))
        described["parts"] = {str(name): _describe(parts[name]) for name in names}
    return described


def _digest(indices: Any) -> str:
    """Digest which items a subset consists of: a split that was drawn without a seed is another one each time."""
    try:
        text = np.asarray(indices, dtype=np.int64).tobytes()
    except (TypeError, ValueError):  # keys of the user's own
        text = name_of(list(indices)).encode()
    return xxhash.xxh3_128_hexdigest(text)


def _length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except TypeError:
        return None
