"""Owns the warnings of what a resume would lose: untracked objects, carried variables, attributes. Saves nothing."""

from collections.abc import Mapping
from types import CodeType, FrameType
from typing import Any

from samestep.messages import user_frame, warn_user
from samestep.state.attributes import AttributeWatch
from samestep.state.audit import find_untracked, find_wrappers
from samestep.state.carried import Carried, find_carried
from samestep.state.idle import IdleGenerators

_UNTRACKED = "These decide the next step but are not tracked, so a resume loses them"
_CARRIED = (
    "The loop carries these local variables from one body to the next, and a resume begins them anew; if they decide"
    " anything, keep them in run.state"
)
_CHANGED = (
    "These attributes have changed and are in no state_dict, so a resume begins them anew; make them buffers, save"
    " them by get_extra_state, or track the object with a state_dict of its own"
)


class LossWatch:
    """Looks, at each save, for what decides the next step and is in no checkpoint; names everything once.

    Args:
        objects: The tracked objects by name.
    """

    def __init__(self, objects: Mapping[str, Any]) -> None:
        self._objects = objects
        frame = user_frame()
        self._attributes = AttributeWatch(objects, {} if frame is None else find_wrappers(frame, objects))
        self._idle = IdleGenerators([] if frame is None else [each.value for each in find_untracked(frame, objects)])
        self._named: set[str] = set()
        self._read: set[tuple[CodeType, int]] = set()

    def warn(self) -> None:
        """Look from the user's frame that asked for the next batch, step or epoch, and warn of what is new."""
        frame = user_frame()
        if frame is not None:
            found = find_untracked(frame, self._objects)
            untracked = [each for each in found if not self._idle.includes(each.value)]
            self._warn_of(_UNTRACKED, [f"{each.name} ({each.kind}), {each.file}:{each.line}" for each in untracked])
            self._warn_of(_CARRIED, self._carried(frame))
        self._warn_of(_CHANGED, self._attributes.changed())

    def _carried(self, frame: FrameType) -> list[str]:
        place = (frame.f_code, frame.f_lineno)
        if place in self._read:  # the text of a script is parsed once for each place that saves
            return []
        self._read.add(place)
        return [f"{each.name}, {each.file}:{each.line}{_hint(each)}" for each in find_carried(frame)]

    def _warn_of(self, what: str, found: list[str]) -> None:
        # The value of an attribute goes on changing; what stands before the colon is its name.
        new = {name: each for each in found if (name := each.partition(": ")[0]) not in self._named}
        self._named.update(new)
        if new:
            warn_user(what + ":" + "".join(f"\n  {each}" for each in new.values()))


def _hint(carried: Carried) -> str:
    return f" (or count on: {carried.counts_on})" if carried.counts_on else ""
