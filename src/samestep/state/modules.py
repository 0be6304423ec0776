"""Owns the state of modules: weights, all buffers, and the flags that decide how they train. Never casts."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from samestep.errors import CorruptCheckpoint, UnsupportedValue
from samestep.state.codec import Encoder
from samestep.state.decoding import Decoder
from samestep.state.names import canonical, unwrapped
from samestep.state.restoration import Restoration, Undo, compare_names, require_no_differences
from samestep.state.snapshot import Item, Json
from samestep.state.stateful import rehearsed
from samestep.state.tensors import copy_into, copy_of, dtype_name, placed

_HINT = "Build the same model as when the checkpoint was saved; to start anew from other weights, load them by hand."
_METHODS = ("state_dict", "load_state_dict", "_save_to_state_dict", "_load_from_state_dict")
_HOOKS = (
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)


def capture_module(name: str, tracked: nn.Module) -> Item:
    """Read a module's state.

    Args:
        name: The name under which it is tracked.
        tracked: The module; data-parallel and compile wrappers leave no trace in the names.

    Returns:
        Its `state_dict()` (the tensors keep these names), its non-persistent buffers, and which submodules are in
        evaluation mode and which parameters are frozen: an `unfreeze()` in epoch 3 happens once, so it is state.
        A buffer that is None is recorded as such beside the non-persistent ones.
    """
    module = unwrapped(tracked)
    encoder = Encoder(views=False)  # restored in place, so a view stays a view; and the file serves for inference
    state = {canonical(key): value for key, value in module.state_dict().items()}
    tree = encoder.encode(state, name)
    beside = _non_persistent(module) | _empty_buffers(module)
    buffers = {full: getattr(owner, leaf) for full, (owner, leaf) in beside.items()}
    extra = encoder.encode(buffers, name)
    tensors = encoder.finish()
    of_state = {leaf["$tensor"] for leaf in tree.values() if isinstance(leaf, dict) and "$tensor" in leaf}
    return Item(
        kind="module",
        tree={"state": tree, "non_persistent": extra, **_flags(module)},
        tensors=tensors,
        extra=frozenset(leaf["$tensor"] for leaf in extra.values() if leaf is not None) - of_state,
    )


class ModuleRestoration(Restoration):
    """Restores a module in place: parameters and buffers keep their identity, device and ties.

    Args:
        name: The name under which it is tracked.
        tracked: The live module.
        item: The saved state.

    Raises:
        StateMismatch: Names, shapes, dtypes or ties differ; all differences are listed.
    """

    def __init__(self, name: str, tracked: nn.Module, item: Item) -> None:
        super().__init__(name)
        self._module = unwrapped(tracked)
        self._item = item
        self._live = self._live_state()
        self._saved = _section(item, "state")
        self._buffers = {full: self._buffer(full, leaf) for full, leaf in _section(item, "non_persistent").items()}
        self._evaluating, self._frozen = _names(item, "evaluating"), _names(item, "frozen")
        self._owners = {canonical(path): owner for path, owner in self._module.named_modules()}
        self._empty = _empty_buffers(self._module)
        filled = [key for key in self._saved if key not in self._empty]
        buffers = {canonical(path) for path, _ in self._module.named_buffers()}
        emptied = {full for full, saved in self._buffers.items() if saved is None and full in buffers}
        differences = [
            *self._compare_names(filled, [key for key in self._live if key not in emptied]),
            *self._compare_tensors(),
            *self._compare_ties(),
            *self._compare_owners(),
            *self._compare_buffers(),
            *self._compare_frozen(),
        ]
        require_no_differences(name, differences, _HINT)
        self._plain = _is_plain(self._module, self._live)

    def rehearse(self) -> Undo | None:
        """Load into a module whose own code takes part in loading; a plain one cannot fail after the checks."""
        if self._plain:
            return None
        before = [(owner, dict(owner._buffers)) for owner in self._module.modules()]  # noqa: SLF001

        def put_back(state: Mapping[str, Any]) -> None:
            for owner, buffers in before:
                owner._buffers.update(buffers)  # noqa: SLF001
            self._module.load_state_dict(state)

        return rehearsed(self._module.state_dict, self._load_through_module, put_back)

    def apply(self) -> None:
        """Restore weights, buffers, and the flags of every submodule and parameter."""
        if self._plain:
            self._empty_or_fill()
        else:
            self._load_through_module()
        for key, tensor in self._tensors():
            target = self._live.get(key)
            if isinstance(target, Tensor) and (self._plain or target.stride() != tensor.stride()):
                copy_into(target, tensor)
        self._restore_non_persistent()
        self._restore_flags()

    def _live_state(self) -> dict[str, Any]:
        lazy = [path for path, parameter in self._module.named_parameters() if nn.parameter.is_lazy(parameter)]
        if lazy:
            raise UnsupportedValue(
                f"{self.name}.{lazy[0]} has no shape yet, so nothing can be restored into it.",
                path=f"{self.name}.{lazy[0]}",
                hint="Run one batch through the lazy module before the loop begins.",
            )
        return {canonical(key): value for key, value in self._module.state_dict(keep_vars=True).items()}

    def _tensors(self) -> list[tuple[str, Tensor]]:
        return [(key, tensor) for key, leaf in self._saved.items() if (tensor := self._tensor(leaf)) is not None]

    def _tensor(self, leaf: Json) -> Tensor | None:
        if not isinstance(leaf, dict) or "$tensor" not in leaf:
            return None
        if leaf["$tensor"] not in self._item.tensors:
            raise CorruptCheckpoint(
                "A tensor is missing from the checkpoint.", path=self.name, expected=leaf["$tensor"]
            )
        return self._item.tensors[leaf["$tensor"]]

    def _buffer(self, full: str, leaf: Json) -> Tensor | None:
        tensor = self._tensor(leaf)
        if tensor is None and leaf is not None:
            raise CorruptCheckpoint("A buffer is neither a tensor nor empty.", path=f"{self.name}.{full}", found=leaf)
        return tensor

    # --- checks ----------------------------------------------------------------------------------------

    def _compare_names(self, saved: list[str], live: list[str]) -> list[str]:
        shapes = {**_shapes(self._live), **_shapes(dict(self._tensors()))}
        return [
            text + (f": {shapes[key]}" if (key := text.partition(" ")[0]) in shapes else "")
            for text in compare_names(saved, live)
        ]

    def _compare_tensors(self) -> list[str]:
        own = {id(tensor) for tensor in (*self._module.parameters(), *self._module.buffers())}
        lost = [key for key in self._saved if id(self._live.get(key)) in own and self._tensor(self._saved[key]) is None]
        return [f"{key} is no tensor in the checkpoint" for key in lost] + self._compare_shapes()

    def _compare_shapes(self) -> list[str]:
        pairs = ((key, tensor, self._live.get(key)) for key, tensor in self._tensors())
        return [text for key, tensor, live in pairs if key in self._live and (text := _compare(key, tensor, live))]

    def _compare_ties(self) -> list[str]:
        """Find weights that are one here and two there: they would train differently."""
        saved: dict[str, list[str]] = {}
        live: dict[object, list[str]] = {}
        for key, tensor in self._tensors():
            target = self._live.get(key)
            if isinstance(target, Tensor) and target.numel() and tensor.numel():
                saved.setdefault(self._saved[key]["$tensor"], []).append(key)
                live.setdefault((target.data_ptr(), target.shape, target.stride()), []).append(key)
        return [
            *(f"{' and '.join(keys)} are tied in the checkpoint only" for keys in _only(saved, live)),
            *(f"{' and '.join(keys)} are tied in the live object only" for keys in _only(live, saved)),
        ]

    def _compare_owners(self) -> list[str]:
        holders = [full.rpartition(".")[0] for full in _section(self._item, "non_persistent")]
        paths = [*holders, *self._evaluating]
        return [f"the submodule {path!r} is not in the live object" for path in paths if path not in self._owners]

    def _compare_buffers(self) -> list[str]:
        """Find buffers whose place is taken: torch would refuse them only when half of the module is restored."""
        places = ((full, *full.rpartition(".")[::2]) for full, saved in self._buffers.items() if saved is not None)
        taken = [full for full, holder, leaf in places if not _takes_buffer(self._owners.get(holder), leaf)]
        doubled = [full for full in self._buffers if full in self._saved]
        return [f"{full} cannot be a buffer of the live object" for full in dict.fromkeys([*taken, *doubled])]

    def _compare_frozen(self) -> list[str]:
        live = {canonical(path): parameter for path, parameter in self._module.named_parameters()}
        whole = [path for path, each in live.items() if not (each.is_floating_point() or each.is_complex())]
        return [
            *(f"the frozen parameter {path!r} is not in the live object" for path in self._frozen - live.keys()),
            *(f"{path} holds integers, which take no gradient" for path in whole if path not in self._frozen),
        ]

    # --- restoring -------------------------------------------------------------------------------------

    def _empty_or_fill(self) -> None:
        """Set buffers to None that were so, and put those in that are None here: loading would pass them by."""
        for full, saved in self._buffers.items():
            holder, _, buffer = full.rpartition(".")
            if saved is None and buffer in self._owners[holder]._buffers:  # noqa: SLF001
                setattr(self._owners[holder], buffer, None)
        for full, (owner, buffer) in self._empty.items():
            saved = self._tensor(self._saved.get(full))
            if saved is not None:
                setattr(owner, buffer, placed(copy_of(saved), self._device()))

    def _device(self) -> torch.device:
        return next((tensor.device for tensor in self._module.parameters()), torch.device("cpu"))

    def _load_through_module(self) -> None:
        self._empty_or_fill()
        decoder = Decoder(self._item.tensors)
        state = self._module.state_dict()  # kept for its `_metadata`, by which modules know their version
        for key in state:
            state[key] = decoder.decode(self._saved[canonical(key)], f"{self.name}.{key}")
        self._module.load_state_dict(state)

    def _restore_non_persistent(self) -> None:
        """Restore buffers that are not in the state dict; caches that grew while training are put in anew."""
        live = _non_persistent(self._module)
        for full, saved in self._buffers.items():
            holder, _, buffer = full.rpartition(".")
            owner, buffer = live.get(full, (self._owners[holder], buffer))
            current = getattr(owner, buffer, None)
            if saved is None:
                continue
            if current is None:
                owner.register_buffer(buffer, placed(copy_of(saved), self._device()), persistent=False)
            elif (current.shape, current.dtype) == (saved.shape, saved.dtype):
                copy_into(current, saved)
            else:
                setattr(owner, buffer, placed(copy_of(saved), current.device))

    def _restore_flags(self) -> None:
        for path, submodule in self._module.named_modules():
            submodule.training = canonical(path) not in self._evaluating
        for path, parameter in self._module.named_parameters():
            parameter.requires_grad_(canonical(path) not in self._frozen)


def _section(item: Item, name: str) -> dict[str, Json]:
    section = item.tree.get(name) if isinstance(item.tree, dict) else None
    if not isinstance(section, dict):
        raise CorruptCheckpoint("A part of a module's state is missing.", expected=name, found=type(section).__name__)
    return section


def _names(item: Item, part: str) -> set[str]:
    names = item.tree[part]
    if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
        raise CorruptCheckpoint("A part of a module's state is no list of names.", path=part, found=f"{names!r:.80}")
    return set(names)


def _takes_buffer(owner: nn.Module | None, leaf: str) -> bool:
    """Tell whether a module has this buffer, or has nothing of its name; a missing module is named elsewhere."""
    if owner is None or leaf in owner._buffers:  # noqa: SLF001
        return True
    return bool(leaf) and not hasattr(owner, leaf)


def _flags(module: nn.Module) -> dict[str, Json]:
    evaluating = [canonical(path) for path, submodule in module.named_modules() if not submodule.training]
    frozen = [canonical(path) for path, parameter in module.named_parameters() if not parameter.requires_grad]
    return {"evaluating": evaluating, "frozen": frozen}


def _empty_buffers(module: nn.Module) -> dict[str, tuple[nn.Module, str]]:
    """Find the buffers that are None, which no state dict names: the module that owns each, and its name there."""
    return {
        canonical(f"{path}.{name}" if path else name): (owner, name)
        for path, owner in module.named_modules()
        for name, buffer in owner._buffers.items()  # noqa: SLF001  (named_buffers passes them by)
        if buffer is None
    }


def _non_persistent(module: nn.Module) -> dict[str, tuple[nn.Module, str]]:
    """Find the buffers that the state dict leaves out: the module that owns each, and its name there."""
    stored = {canonical(key) for key in module.state_dict()}
    owners = dict(module.named_modules())
    found = {}
    for path, _ in module.named_buffers():
        owner, _, leaf = path.rpartition(".")
        if canonical(path) not in stored:
            found[canonical(path)] = (owners[owner], leaf)
    return found


def _compare(key: str, saved: Tensor, live: object) -> str | None:
    if not isinstance(live, Tensor):
        return f"{key} is a tensor in the checkpoint and a {type(live).__name__} in the live object"
    if live.device.type == "meta":
        return f"{key} is on the meta device: materialise the model first (`to_empty`)"
    if (saved.shape, saved.dtype) == (live.shape, live.dtype):
        return None
    here, there = _shapes({"here": live, "there": saved}).values()
    return f"{key} is {there} in the checkpoint and {here} in the live object"


def _shapes(tensors: Mapping[str, object]) -> dict[str, str]:
    return {
        key: f"{dtype_name(each.dtype)}{list(each.shape)}" for key, each in tensors.items() if isinstance(each, Tensor)
    }


def _only(left: Mapping[Any, list[str]], right: Mapping[Any, list[str]]) -> list[list[str]]:
    others = {key: group for group, keys in enumerate(right.values()) for key in keys}
    return [keys for keys in left.values() if len({others[key] for key in keys}) > 1]


def _is_plain(module: nn.Module, live: Mapping[str, object]) -> bool:
    """Tell whether only torch's own code takes part in loading: then copying in place is all there is to it."""
    own = (*module.parameters(), *module.buffers())
    known = {id(tensor) for tensor in own}
    if any(id(value) not in known for value in live.values()):
        return False
    return all(
        all(getattr(type(each), method).__module__.startswith("torch.") for method in _METHODS)
        and not any(getattr(each, hooks, None) for hooks in _HOOKS)
        for each in module.modules()
    )
