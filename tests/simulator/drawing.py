"""Draws the steps that name times, raise the format, erase, and derive collections from others.

`language.py` has the others, and says what a step is.
"""

import random
from typing import Any, Protocol

KEYS = 4
VIEW = "w"
VIEWED = ("snapshot", "changes", "upper", "since", "listen", "subscribe", "hold", "compact", "tags")
TAGS = ("first", "second")


class Belief(Protocol):
    """Roughly how a collection stands."""

    upper: int
    since: int


class Drawing:
    """Fills in steps, given what is believed of their collection."""

    chance: random.Random
    names: tuple[str, ...]
    viewing: set[int]  # The slots that have a handle of the view.

    def _as_of(self, belief: Any) -> int | None:
        raise NotImplementedError

    def _crash_in(self, step: dict[str, Any], calls: int) -> None:
        raise NotImplementedError

    def _tag(self, step: dict[str, Any], belief: Belief) -> None:
        step |= {"tag": self.chance.choice(TAGS), "time": self._as_of(belief), "move": self.chance.random() < 0.5}

    def _untag(self, step: dict[str, Any], belief: Belief) -> None:
        step["tag"] = self.chance.choice(TAGS)

    def _about_view(self, op: str, slot: int) -> dict[str, Any]:
        """Return a step about the one view, which is of the first two collections."""
        step: dict[str, Any] = {"op": op, "slot": slot, "name": VIEW}
        if op == "create_view":
            step["inputs"] = list(self.names[:2])
            self.viewing.add(slot)
            return step
        if self.viewing:
            step["slot"] = self.chance.choice(sorted(self.viewing))
        if self.chance.random() < 0.1:
            self._crash_in(step, calls=4)
        return step

    def _index(self, step: dict[str, Any], belief: Belief) -> None:
        if self.chance.random() < 0.1:
            self._crash_in(step, calls=4)

    def _find(self, step: dict[str, Any], belief: Belief) -> None:
        step["v"] = self.chance.choice("xyz")

    def _erase(self, step: dict[str, Any], belief: Belief) -> None:
        step["keys"] = sorted(self.chance.sample(range(KEYS), self.chance.choice([1, 1, 2])))
        if self.chance.random() < 0.15:
            self._crash_in(step, calls=6)

    def _upgrade(self, step: dict[str, Any]) -> None:
        if self.chance.random() < 0.3:
            self._crash_in(step, calls=2)
