"""Owns what makes a loader the one whose state was saved: data set, order, batches. Never changes a loader."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch.utils.data
import xxhash
from torch.utils.data import BatchSampler, ConcatDataset, StackDataset, Subset

from samestep.data.fetch import name_of
from samestep.data.listing import are_listings, check_listings
from samestep.errors import StateMismatch
from samestep.wording import shown


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


def check_place(state: Any) -> None:
    """Raise `StateMismatch` for a state whose place no loader comes to, whatever its data set.

    Args:
        state: The saved state.
    """
    if not isinstance(state, dict) or type(state.get("version")) is not int:
        raise StateMismatch("This is not the state of a samestep.DataLoader.", path="version")
    for name, is_valid, expected in _PLACE:
        if name in state and not is_valid(state[name]):
            raise StateMismatch(
                "The state is at no place of any epoch.", path=name, expected=expected, found=state[name]
            )
    missing = next((name for name in ("seed", "epoch", "position", "sampler", *_WHAT) if name not in state), None)
    if missing is not None:
        raise StateMismatch("A part of the loader's state is missing.", path=missing)


def check_position(state: dict[str, Any]) -> None:
    """Raise `StateMismatch` for a position behind an epoch's end: the epoch would be empty, and nobody would know.

    Args:
        state: The saved state of a loader that computes its order, whose length has been compared.
    """
    batches = state if state["sampler"] is None else state["sampler"]
    size = 1 if batches.get("batch_size") is None else batches["batch_size"]
    named = state["sampler"] is None or batches.keys() == {"batch_size", "drop_last"}
    if not named or not _is_count(size) or size == 0 or not isinstance(batches["drop_last"], bool):
        raise StateMismatch("The state's epoch is batched as none can be.", path="sampler", found=state["sampler"])
    whole, rest = divmod(state["dataset"]["length"], size)
    most = whole + (rest > 0 and not batches["drop_last"])
    if state["position"] > most:
        raise StateMismatch(
            "The state is behind the end of its epoch.",
            path="position",
            expected=f"at most {most} batches",
            found=state["position"],
        )


def check_course(state: dict[str, Any]) -> None:
    """Raise `StateMismatch` for a state of a sampler that says not where it is; else that would show in the epoch.

    Args:
        state: The saved state of a loader with a sampler.
    """
    saved = state["sampler"]
    if saved is None and not state.get("open", state["position"]):
        return
    inside = state.get("open", "digest" in (saved or ()))
    counts = [saved.get(name) for name in ("samples", "digest")] if inside and saved is not None else []
    if not isinstance((saved or {}).get("start"), dict) or not all(type(each) is int and each >= 0 for each in counts):
        raise StateMismatch("The sampler's state is incomplete.", path="sampler", expected="start, samples and digest")


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


_PLACE: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    (
        "seed",
        lambda value: value is None or (isinstance(value, (int, np.integer)) and type(value) is not bool),
        "an integer",
    ),
    ("epoch", _is_count, "a number of epochs"),
    ("position", _is_count, "a number of batches"),
    ("open", lambda value: isinstance(value, bool), "true or false"),
    ("sampler", lambda value: value is None or isinstance(value, dict), "a dict"),
    ("lists", are_listings, "two digests for each list of names"),
)


def check_identity(state: dict[str, Any], found: dict[str, Any], given_seed: int | None) -> None:
    """Raise `StateMismatch` at the first value of a state that differs from the loader's own.

    Args:
        state: The saved state.
        found: The loader's `identity`.
        given_seed: The seed that the user gave, if any.
    """
    version = state.get("version") if isinstance(state, dict) else state
    if version != 1 or not isinstance(state, dict):
        raise StateMismatch(
            "This is not the state of a samestep.DataLoader that this version can read.",
            path="version",
            expected=1,
            found=shown(version),
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
    elif _differ(saved, live):
        raise StateMismatch(
            f"The state was saved by a loader with another {what}.",
            path=path,
            expected=saved,
            found=live,
            hint="Build the loader as in the run that saved the state. To begin it anew, track it under another name"
            " and give both names to allow_missing.",
        )


def _differ(saved: Any, live: Any) -> bool:
    try:
        return bool(saved != live)
    except Exception:  # noqa: BLE001  (a stranger's array, whose comparison gives another array)
        return True


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
