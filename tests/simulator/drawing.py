"""Draws the steps that name times, raise the format, erase, and derive collections from others.

`language.py` has the others, and says what a step is.
"""

import random
from typing import Any, Protocol

KEYS = 4
TAGS = ("first", "second")


class Belief(Protocol):
    """Roughly how a collection stands."""

    upper: int
    since: int


class Drawing:
    """Fills in steps, given what is believed of their collection."""

    chance: random.Random

    def _as_of(self, belief: Any) -> int | None:
        raise NotImplementedError

    def _crash_in(self, step: dict[str, Any], calls: int) -> None:
        raise NotImplementedError

    def _tag(self, step: dict[str, Any], belief: Belief) -> None:
        step |= {"tag": self.chance.choice(TAGS), "time": self._as_of(belief), "move": self.chance.random() < 0.5}

    def _untag(self, step: dict[str, Any], belief: Belief) -> None:
        step["tag"] = self.chance.choice(TAGS)

    def _erase(self, step: dict[str, Any], belief: Belief) -> None:
        step["keys"] = sorted(self.chance.sample(range(KEYS), self.chance.choice([1, 1, 2])))
        if self.chance.random() < 0.15:
            self._crash_in(step, calls=6)

    def _upgrade(self, step: dict[str, Any]) -> None:
        if self.chance.random() < 0.3:
            self._crash_in(step, calls=2)
