"""Owns the state of optimizers, by the names of the parameters. Never goes by position, never casts a moment."""

import copy
from collections.abc import Sequence
from typing import Any, cast

from torch import Tensor
from torch.optim import LBFGS, Adafactor, Optimizer

from samestep.errors import CorruptCheckpoint, NotTracked
from samestep.state.codec import Encoder
from samestep.state.decoding import Decoder, Place, to_device_of_type
from samestep.state.likeness import unlike
from samestep.state.names import ParameterNames
from samestep.state.restoration import BEGIN_ANEW, Restoration, Undo, require_no_differences, require_same_type
from samestep.state.snapshot import Item, Json
from samestep.state.stateful import rehearsed
from samestep.state.tensors import copy_into, placed

_HINT = (
    "Build the optimizer from the same parameters in the same order and groups as when the checkpoint was saved."
    f" {BEGIN_ANEW}"
)
_HOOKS = (
    "_optimizer_state_dict_pre_hooks",
    "_optimizer_state_dict_post_hooks",
    "_optimizer_load_state_dict_pre_hooks",
    "_optimizer_load_state_dict_post_hooks",
)


def capture_optimizer(name: str, optimizer: Optimizer, names: ParameterNames) -> Item:
    """Read an optimizer's groups and state by the names of its parameters.

    Args:
        name: The name under which it is tracked.
        optimizer: A stock optimizer, or one with its own `state_dict`, whose result is then stored as it is.
        names: The names of all tracked parameters.

    Raises:
        NotTracked: A parameter is in no tracked object, so it has no name.
    """
    encoder = Encoder()
    params = [_names_in(name, optimizer, index, names) for index in range(len(optimizer.param_groups))]
    tree: dict[str, Json]
    if _has_own_code(optimizer):
        tree = {"groups": [{"params": each} for each in params]}
        tree["own"] = encoder.encode(optimizer.state_dict(), name)
    else:
        tree = encoder.encode(_by_name(name, optimizer, params, names), name)
    tree["type"] = type(optimizer).__name__
    return Item(kind="optimizer", tree=tree, tensors=encoder.finish())


class OptimizerRestoration(Restoration):
    """Restores an optimizer: hyperparameters of its groups, and the state of each parameter under its name.

    Args:
        name: The name under which it is tracked.
        optimizer: The live optimizer.
        item: The saved state.
        names: The names of all tracked parameters.
        defer_added_groups: Whether groups that were added while training are left out, with their states.

    Raises:
        StateMismatch: The names per group differ; the difference is shown.
    """

    def __init__(
        self,
        name: str,
        optimizer: Optimizer,
        item: Item,
        names: ParameterNames,
        *,
        defer_added_groups: bool = False,
    ) -> None:
        super().__init__(name)
        self._optimizer = optimizer
        self._item = item
        self._tensors = names.tensors
        live_type = type(optimizer).__name__
        require_same_type(name, "optimizer", item.tree.get("type", live_type), live_type)
        self._groups = _groups(item)
        self._has_own_code = "own" in item.tree
        self._values: list[dict[str, Any]] = []
        self._state: dict[Any, Any] = {}
        live = [_names_in(name, optimizer, index, names) for index in range(len(optimizer.param_groups))]
        self._places = _places([group["params"] for group in self._groups], live)
        self._added = [group for group, place in zip(self._groups, self._places, strict=True) if place is None]
        self._deferred = {each for group in self._added for each in group["params"]} if defer_added_groups else set()
        differences = [
            *self._compare_kinds(),
            *(
                _compare_groups([group["params"] for group in self._groups], self._places, live)
                or self._compare_added(live)
            ),
            *self._compare_states(),
        ]
        require_no_differences(name, differences, _HINT)

    def rehearse(self) -> Undo | None:
        """Read the state, or load it into an optimizer that has its own code for that."""
        if self._has_own_code:
            return rehearsed(self._optimizer.state_dict, self._load_own, self._optimizer.load_state_dict)
        decoder = Decoder(self._item.tensors)
        self._values = [decoder.decode(_without_params(group), self.name) for group in self._groups]
        self._state = self._decoded_state(decoder)
        require_no_differences(self.name, [*self._compare_values(), *self._compare_layouts()], _HINT)
        self._rehearse_added()
        return None

    def apply(self) -> None:
        """Restore the groups, then the state of every parameter."""
        if self._has_own_code:
            self._load_own()
            return
        self._restore_groups()
        self._optimizer.state.clear()
        self._optimizer.state.update(self._state)

    # --- checks ----------------------------------------------------------------------------------------

    def _compare_kinds(self) -> list[str]:
        if _has_own_code(self._optimizer) == self._has_own_code:
            return []
        who = "the checkpoint" if self._has_own_code else "the live object"
        return [f"only {who} comes from an optimizer with its own state_dict"]

    def _compare_added(self, live: Sequence[Sequence[str]]) -> list[str]:
        """Allow groups that were added while training, if their parameters are tracked and in no live group."""
        if self._added and self._has_own_code:
            return [f"the checkpoint has {len(self._groups)} groups and the live object {len(live)}"]
        taken = {each for group in live for each in group}
        wanted = [each for group in self._added for each in group["params"]]
        unknown = [each for each in wanted if each not in self._tensors]
        doubled = [each for each in wanted if each in taken]
        return [
            *(f"{each} is in a group of the checkpoint only, and in no tracked object" for each in unknown),
            *(f"{each} is in a further group of the checkpoint, but already in a live one" for each in doubled),
        ]

    def _compare_states(self) -> list[str]:
        states = self._item.tree.get("state", {})
        known = {each for group in self._groups for each in group["params"]}
        return [f"{each} has state but is in no group of the checkpoint" for each in states if each not in known]

    def _compare_values(self) -> list[str]:
        """Find hyperparameters of another kind: torch would only stumble over them in the middle of a step."""
        live = self._optimizer.param_groups
        pairs = enumerate(zip(self._values, self._places, strict=True))
        return [
            text
            for index, (values, place) in pairs
            for text in unlike(f"group {index}", values, live[place] if place is not None else self._optimizer.defaults)
        ]

    def _compare_layouts(self) -> list[str]:
        """Find states of torch's own optimizers that do not fit their parameter; of others nothing is known."""
        if not type(self._optimizer).__module__.startswith("torch.optim"):
            return []
        free = isinstance(self._optimizer, (Adafactor, LBFGS))  # they keep rows, columns, or all parameters in one
        return [
            f"{name}: the state {text}"
            for name, parameter in self._tensors.items()
            if parameter in self._state
            for text in _misfits(self._state[parameter], parameter, any_shape=free)
        ]

    def _rehearse_added(self) -> None:
        """Add the groups that were added while training to a stand-in: the optimizer itself may refuse them."""
        if self._added and not self._deferred:
            stand_in = copy.copy(self._optimizer)
            stand_in.param_groups = list(self._optimizer.param_groups)
            for saved, values, place in zip(self._groups, self._values, self._places, strict=True):
                if place is None:
                    stand_in.add_param_group({"params": [self._tensors[each] for each in saved["params"]], **values})

    # --- restoring -------------------------------------------------------------------------------------

    def _load_own(self) -> None:
        self._optimizer.load_state_dict(Decoder(self._item.tensors).decode(self._item.tree["own"], self.name))

    def _restore_groups(self) -> None:
        """Restore the hyperparameters of the live groups, and put groups that were added in where they were."""
        groups, ordered = self._optimizer.param_groups, []
        for saved, values, place in zip(self._groups, self._values, self._places, strict=True):
            if place is not None:
                ordered.append(groups[place])
                for key, value in values.items():
                    groups[place][key] = _kept_in_place(groups[place].get(key), value)
            elif not self._deferred:
                params = [self._tensors[each] for each in saved["params"]]
                self._optimizer.add_param_group({"params": params, **values})
                ordered.append(groups[-1])
        groups[:] = ordered

    def _decoded_state(self, decoder: Decoder) -> dict[Any, Any]:
        devices = self._item.tree.get("devices", {})
        state = decoder.decode(self._item.tree.get("shared", {}), self.name)
        for name, tree in self._item.tree["state"].items():
            parameter, saved_on = self._tensors[name], devices.get(name, "cpu")
            path, place = f"{self.name}.state[{name!r}]", _beside(parameter, saved_on)
            step = tree.get("step") if parameter.device.type != saved_on else None
            value = decoder.decode({**tree, "step": None} if step else tree, path, place=place)
            if step:
                value["step"] = decoder.decode(step, path, place=_step_place(self._groups, name, place))
            if name not in self._deferred:
                state[parameter] = value
        return cast("dict[Any, Any]", state)


def _names_in(name: str, optimizer: Optimizer, index: int, names: ParameterNames) -> list[str]:
    group = optimizer.param_groups[index]
    found = []
    for place, parameter in enumerate(group["params"]):
        known = names.of(parameter)
        if known is None:
            raise NotTracked(
                f"{name} updates a parameter that is in no tracked object.",
                path=f"{name}.param_groups[{index}]['params'][{place}]",
                found=f"a parameter of shape {list(parameter.shape)}",
                hint="Track the module that holds it. If it is tracked, it was rebuilt, or got new parameters, after"
                " the optimizer was built: build the optimizer last.",
            )
        found.append(known)
    return found


def _by_name(name: str, optimizer: Optimizer, params: list[list[str]], names: ParameterNames) -> dict[str, Any]:
    groups = [
        {"params": each, **_without_params(group)} for each, group in zip(params, optimizer.param_groups, strict=True)
    ]
    known = {each for group in params for each in group}
    states: dict[str, Any] = {}
    shared: dict[Any, Any] = {}
    devices: dict[str, str] = {}
    for key, value in cast("dict[Any, Any]", optimizer.state).items():
        if not isinstance(key, Tensor):
            shared[key] = value
            continue
        owner = _owner(name, key, known, names)
        states[owner] = value
        if key.device.type != "cpu":
            devices[owner] = key.device.type
    return {"groups": groups, "state": states, "shared": shared, "devices": devices}


def _owner(name: str, parameter: Tensor, known: set[str], names: ParameterNames) -> str:
    owner = names.of(parameter)
    if owner is None or owner not in known:
        raise NotTracked(
            f"{name} has state for a parameter that is in none of its groups.",
            path=f"{name}.state",
            found=f"a parameter of shape {list(parameter.shape)}",
            hint="Remove the state together with the group.",
        )
    return owner


def _without_params(group: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key != "params"}


def _has_own_code(optimizer: Optimizer) -> bool:
    """Tell whether an optimizer reads or loads its state in its own way, by a method or a hook."""
    kind = type(optimizer)
    own_method = kind.state_dict is not Optimizer.state_dict or kind.load_state_dict is not Optimizer.load_state_dict
    return own_method or any(getattr(optimizer, hooks, None) for hooks in _HOOKS)


def _groups(item: Item) -> list[dict[str, Json]]:
    groups = item.tree.get("groups") if isinstance(item.tree, dict) else None
    if not isinstance(groups, list) or not all(_is_text_list(group["params"]) for group in groups):
        raise CorruptCheckpoint("The groups of an optimizer are missing from its state.", path="groups")
    for part in ("state", "shared", "devices") if "own" not in item.tree else ():
        if not isinstance(item.tree.get(part, {} if part != "state" else None), dict):
            raise CorruptCheckpoint("A part of an optimizer's state is missing.", path=part)
    if any(key.startswith("$") for group in groups for key in group):
        raise CorruptCheckpoint("A group of an optimizer is no dict of hyperparameters.", path="groups")
    return groups


def _misfits(state: Any, parameter: Tensor, *, any_shape: bool) -> list[str]:
    if not isinstance(state, dict):
        return [f"is no dict but {type(state).__name__}"]
    tensors = {key: value for key, value in state.items() if isinstance(value, Tensor)}
    wrong = [
        f"{key} has shape {list(value.shape)} and the parameter {list(parameter.shape)}"
        for key, value in tensors.items()
        if not any_shape and value.numel() != 1 and value.shape != parameter.shape
    ]
    return wrong + [f"{key} is more than one number" for key in ("step",) if _is_many(tensors.get(key))]


def _is_many(value: Tensor | None) -> bool:
    return value is not None and value.numel() != 1


def _is_text_list(value: Json) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _places(saved: Sequence[Sequence[str]], live: Sequence[Sequence[str]]) -> list[int | None]:
    """Find each saved group among the live ones, which come in the same order; None for one that was added."""
    places: list[int | None] = []
    place = 0
    for params in saved:
        is_live = place < len(live) and live[place] == params
        places.append(place if is_live else None)
        place += is_live
    return places


def _compare_groups(
    saved: Sequence[Sequence[str]], places: Sequence[int | None], live: Sequence[Sequence[str]]
) -> list[str]:
    if sum(place is not None for place in places) == len(live):
        return []
    differences = []
    if len(saved) != len(live):
        differences.append(f"the number of groups is {len(saved)} in the checkpoint and {len(live)} here")
    if len(saved) < len(live):
        return differences
    for index, (there, here) in enumerate(zip(saved, live, strict=False)):
        if len(there) != len(here):
            differences.append(f"group {index} has {len(there)} parameters in the checkpoint and {len(here)} here")
        differences += [
            f"group {index}, parameter {place}: {left} in the checkpoint, {right} in the live object"
            for place, (left, right) in enumerate(zip(there, here, strict=False))
            if left != right
        ]
    return differences


def _kept_in_place(current: object, value: object) -> object:
    """Give a learning rate that is a tensor its value in place: a captured graph may hold this very tensor."""
    if not (isinstance(current, Tensor) and isinstance(value, Tensor)):
        return value
    if (current.shape, current.dtype) != (value.shape, value.dtype):
        return value
    copy_into(current, value)
    return current


def _beside(parameter: Tensor, saved_on: str) -> Place:
    """Put what lay on the parameter's device there again; what lay elsewhere (Adam's step) stays elsewhere."""

    def place(tensor: Tensor, kind: str) -> Tensor:
        return placed(tensor, parameter.device) if kind == saved_on else to_device_of_type(tensor, kind)

    return place


def _step_place(groups: Sequence[dict[str, Json]], name: str, place: Place) -> Place:
    """Treat "step" as torch does when a state changes device: it stays on the CPU unless a kernel reads it."""
    group = next(group for group in groups if name in group["params"])
    needed_there = group.get("capturable") or group.get("fused")
    return place if needed_there else lambda tensor, _: tensor
