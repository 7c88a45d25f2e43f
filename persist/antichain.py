"""Frontiers: antichains of times, which say how far a set of times reaches.

A frontier `{t}` stands for the times `>= t` ("beyond" it); the empty frontier has no time beyond it. Times are
totally ordered here, so an antichain holds one time or none. Frontiers are ordered by how far they have come:
`Antichain(3) <= Antichain(5) <= Antichain()`. (Timely dataflow, `src/progress/frontier.rs`.)
"""

import math
import operator
from dataclasses import dataclass
from typing import Any

from persist.blob import InvalidUsage
from persist.codecs import TIME_MAX


def as_time(what: str, value: Any, *, most: int = TIME_MAX) -> int:
    """Return value as a time, from any kind of integer.

    Raises:
        InvalidUsage: it is no integer in `[0, most]`; what says what it is.
    """
    try:
        time = operator.index(value)
    except TypeError:
        time = -1
    if isinstance(value, bool) or not 0 <= time <= most:
        raise InvalidUsage(f"{what} {value!r} is not an integer in [0, {most}]: give a whole number from there")
    return time


@dataclass(frozen=True, slots=True, init=False, eq=False)
class Antichain:
    """A frontier over totally ordered integer times: `Antichain(11)`, or the empty one, `Antichain()`.

    It compares with integers, too: `Antichain(11) == 11`, and the empty one comes after every integer.

    Attributes:
        elements: the times, at most one of them, each in `[0, 2**63 - 1]`.
    """

    elements: tuple[int, ...]

    def __init__(self, *elements: int) -> None:
        # One more than the greatest time of an update, so that a seal can cover all of them.
        if len(elements) == 1 and type(elements[0]) is int and 0 <= elements[0] <= TIME_MAX + 1:
            object.__setattr__(self, "elements", elements)  # Nearly all of them, in a fraction of the time.
            return
        times = [as_time("frontier time", time, most=TIME_MAX + 1) for time in elements]
        object.__setattr__(self, "elements", (min(times),) if times else ())

    @classmethod
    def at(cls, frontier: "int | Antichain") -> "Antichain":
        """Return frontier itself, or the frontier at a single time."""
        return frontier if isinstance(frontier, Antichain) else cls(frontier)

    @property
    def is_empty(self) -> bool:
        """Whether no time is beyond this frontier: complete, for ever."""
        return not self.elements

    @property
    def time(self) -> int | None:
        """The least time beyond this frontier, or None when it is empty."""
        return self.elements[0] if self.elements else None

    def has_beyond(self, time: int) -> bool:
        """Return whether time is beyond (greater than or equal to) this frontier."""
        return any(element <= time for element in self.elements)

    def __eq__(self, other: object) -> bool:
        if type(other) is Antichain:
            return self.elements == other.elements
        reach = _reach(other)
        return NotImplemented if reach is None else _reach(self) == reach

    def __hash__(self) -> int:
        return hash(self.elements[0] if self.elements else ())

    def __le__(self, other: object) -> bool:
        reach = _reach(other)
        return NotImplemented if reach is None else bool(_reach(self) <= reach)

    def __lt__(self, other: object) -> bool:
        reach = _reach(other)
        return NotImplemented if reach is None else bool(_reach(self) < reach)

    def __ge__(self, other: object) -> bool:
        reach = _reach(other)
        return NotImplemented if reach is None else bool(_reach(self) >= reach)

    def __gt__(self, other: object) -> bool:
        reach = _reach(other)
        return NotImplemented if reach is None else bool(_reach(self) > reach)

    def __reduce__(self) -> "tuple[type[Antichain], tuple[int, ...]]":
        return type(self), self.elements

    def __repr__(self) -> str:
        return f"Antichain({', '.join(map(str, self.elements))})"


def _reach(other: Any) -> Any:
    """Return how far a frontier, or that of an integer, has come, as a number; None for what is neither."""
    if isinstance(other, Antichain):
        return other.elements[0] if other.elements else math.inf
    if isinstance(other, bool):
        return None
    try:
        return operator.index(other)
    except TypeError:
        return None
