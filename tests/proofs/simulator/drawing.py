"""Draws the steps that name times, raise the format, erase, and derive collections from others.

`language.py` has the others, and says what a step is.
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

KEYS = 4
VIEW = "w"
VIEWED = ("snapshot", "changes", "upper", "since", "listen", "subscribe", "hold", "compact", "tags")
TAGS = ("first", "second")
FALLS_ASLEEP = 1 / 25
# Where a round may be late, after how many of these requests: mostly between what it lists and what it reads.
ASLEEP_AT = [("list checkpoint/", 2, 6)] * 4 + [
    ("list ", 0, 12),
    ("list log/", 0, 3),
    ("get checkpoint/", 0, 4),
    ("", 0, 60),
]
ASLEEP_S = (8000, 12_000, 20_000)
PASSES_ASLEEP_S = (40, 400, 2000, 4000)


class Belief(Protocol):
    """Roughly how a collection stands."""

    upper: int
    since: int


@dataclass
class Asleep:
    """Who sleeps in the middle of a collection of garbage, and the one collection that others change meanwhile.

    What nobody changes stands in objects that newer checkpoints take over, and these are what one who wakes may delete.
    """

    slot: int
    busy: str
    left_s: float


class Drawing:
    """Fills in steps, given what is believed of their collection."""

    chance: random.Random
    names: tuple[str, ...]
    modes: dict[int, str]  # Of the clients, by slot.
    asleep: Asleep | None
    viewing: set[int]  # The slots that have a handle of the view.

    def _as_of(self, belief: Any) -> int | None:
        raise NotImplementedError

    def _crash_in(self, step: dict[str, Any], calls: int) -> None:
        raise NotImplementedError

    def _fallen_asleep(self) -> dict[str, Any] | None:
        """Return a collection of garbage that sleeps in the middle of itself for hours, now and then."""
        slots = [slot for slot, mode in self.modes.items() if mode != "read"]
        if not slots or self.chance.random() >= FALLS_ASLEEP:
            return None
        chance = self.chance
        request, fewest, most = chance.choice(ASLEEP_AT)
        self.asleep = Asleep(chance.choice(slots), chance.choice(self.names), chance.choice(ASLEEP_S))
        stop = {"request": request, "skipped": chance.randint(fewest, most), "seconds": self.asleep.left_s}
        return {"op": "gc", "slot": self.asleep.slot, "stop": stop}

    def _awake(self, slots: Iterable[int]) -> list[int]:
        return [slot for slot in slots if self.asleep is None or slot != self.asleep.slot]

    def _sleep_on(self, step: dict[str, Any]) -> None:
        """Let time pass while somebody sleeps, until that one wakes."""
        assert self.asleep is not None
        step["seconds"] = self.chance.choice(PASSES_ASLEEP_S)
        self.asleep.left_s -= step["seconds"]
        if self.asleep.left_s < 0:
            self.asleep = None

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
