"""Frontiers: antichains of times, the bounds of sets of times.

A time is an integer. In dataflows of several dimensions it is a tuple of integers under the product order: `a <= b`
holds if it holds in every dimension, so two times may be unordered. A time is *beyond* a frontier if it is greater than
or equal to one of its elements. The empty frontier has none beyond it. Frontiers are ordered by progress:
`Antichain(3) <= Antichain(5) <= Antichain()`. (Timely dataflow, `src/progress/frontier.rs`.)

The times of a collection are totally ordered, so its frontier has one time or none. The library uses that time as an
integer, and `END` for the empty frontier, of a collection that is complete for ever. So `time < upper` and `upper - 1`
need no special case at the end. The public API takes and returns an `Antichain`. The log stores `[11]`, and `[]` for
`END`; `[2**63 - 1]` also means `END`.
"""

import math
import operator
from dataclasses import dataclass
from typing import Any, TypeAlias

from persist.blob.errors import InvalidUsage
from persist.codecs.types.schema import TIME_MAX
from persist.core.log.fields import Frontier

Time: TypeAlias = int | tuple[int, ...]
Coordinates: TypeAlias = tuple[int, ...]

END = TIME_MAX + 1


def to_time_integer(what: str, value: Any, *, most: int = TIME_MAX) -> int:
    """Return a time as a Python integer; `what` names it in errors."""
    try:
        time = operator.index(value)
    except TypeError:
        time = -1
    if isinstance(value, bool) or not 0 <= time <= most:
        raise InvalidUsage(f"{what} {value!r} is not an integer in [0, {most}]: give a whole number from there")
    return time


def to_coordinates(what: str, time: Any, dimensions: int | None = None) -> Coordinates:
    """Return a time as its tuple of coordinates; `what`: for errors."""
    point = tuple(time) if isinstance(time, tuple | list) else (time,)
    if not point or (dimensions is not None and len(point) != dimensions):
        allowed = "an integer" if dimensions == 1 else f"a tuple of {dimensions or 'some'} integers"
        raise InvalidUsage(f"{what} {time!r} has {len(point)} dimensions, and here a time is {allowed}")
    return tuple(to_time_integer(what, coordinate, most=END) for coordinate in point)


def to_user_time(point: Coordinates) -> Time:
    """Return coordinates as users see them: an integer in one dimension."""
    return point[0] if len(point) == 1 else point


@dataclass(frozen=True, slots=True, init=False, eq=False)
class Antichain:
    """A frontier: `Antichain(11)`, `Antichain((0, 2), (1, 1))`, or the empty one, `Antichain()`.

    `a <= b` holds when every element of b is beyond a. A time is equal to the frontier with that one element:
    `Antichain(11) == 11`. The empty frontier comes after every other.

    Attributes:
        elements: the least times beyond it, in order, each coordinate in `[0, 2**63 - 1]`. In one dimension they are
            integers, and there is at most one of them; the frontier of a collection is always of that kind.
    """

    elements: tuple[Any, ...]

    def __init__(self, *elements: Time) -> None:
        # One more than the greatest time of an update, so that a seal can cover all of them.
        if len(elements) == 1 and type(elements[0]) is int and 0 <= elements[0] <= END:
            object.__setattr__(self, "elements", elements)  # Nearly all of them, in a fraction of the time.
            return
        least: list[Coordinates] = []
        for element in elements:
            point = to_coordinates("frontier time", element, len(least[0]) if least else None)
            if not any(_is_before(earlier_element, point) for earlier_element in least):
                least = [earlier_element for earlier_element in least if not _is_before(point, earlier_element)] + [
                    point
                ]
        object.__setattr__(self, "elements", tuple(map(to_user_time, sorted(least))))

    @property
    def is_empty(self) -> bool:
        """Whether no time is beyond this frontier: no update can follow."""
        return not self.elements

    @property
    def time(self) -> int | None:
        """The least time beyond this frontier; None when it is empty, or has several dimensions."""
        for least in self.elements:
            return least if type(least) is int else None
        return None

    def has_beyond(self, time: Time) -> bool:
        """Return whether time is beyond (greater than or equal to) this frontier."""
        if not self.elements:
            return False
        least = self.elements[0]
        if type(least) is int and not isinstance(time, tuple):
            return bool(least <= time)
        point = to_coordinates("time", time, 1 if type(least) is int else len(least))
        return any(_is_before(element, point) for element in _to_points(self.elements))

    def meet(self, other: "Antichain | Time") -> "Antichain":
        """Return the greatest frontier at or before both frontiers."""
        frontier = other if isinstance(other, Antichain) else Antichain(other)
        elements = *self.elements, *frontier.elements
        if len(elements) == 2 and type(elements[0]) is type(elements[1]) is int:
            return self if elements[0] <= elements[1] else frontier  # Without an antichain to make.
        return Antichain(*elements)

    def join(self, other: "Antichain | Time") -> "Antichain":
        """Return the least frontier at or after both frontiers."""
        other_points = _to_points((other if isinstance(other, Antichain) else Antichain(other)).elements)
        return Antichain(
            *(
                _compute_least_upper_bound(left_point, two)
                for left_point in _to_points(self.elements)
                for two in other_points
            )
        )

    def __eq__(self, other: object) -> bool:
        if type(other) is Antichain:
            return self.elements == other.elements
        reach = _get_reach(other)
        return NotImplemented if reach is None else bool(_get_reach(self) == reach)

    def __hash__(self) -> int:
        return hash(self.elements[0] if len(self.elements) == 1 else self.elements)

    def __le__(self, other: object) -> bool:
        reach = _get_reach(other)
        return NotImplemented if reach is None else _is_at_or_before(_get_reach(self), reach)

    def __lt__(self, other: object) -> bool:
        reach = _get_reach(other)
        return NotImplemented if reach is None else self != other and _is_at_or_before(_get_reach(self), reach)

    def __ge__(self, other: object) -> bool:
        reach = _get_reach(other)
        return NotImplemented if reach is None else _is_at_or_before(reach, _get_reach(self))

    def __gt__(self, other: object) -> bool:
        reach = _get_reach(other)
        return NotImplemented if reach is None else self != other and _is_at_or_before(reach, _get_reach(self))

    def __reduce__(self) -> "tuple[type[Antichain], tuple[Any, ...]]":
        return type(self), self.elements

    def __repr__(self) -> str:
        return f"Antichain({', '.join(map(str, self.elements))})"


def to_antichain(frontier: int) -> Antichain:
    """Return an integer frontier as an `Antichain`; empty for `END`."""
    return Antichain() if frontier == END else Antichain(frontier)


def to_time(frontier: int) -> int | None:
    """Return a frontier of a collection for tables and JSON: None for `END`."""
    return None if frontier == END else frontier


def to_frontier(value: int | Antichain) -> int:
    """Return a frontier of a collection from the public API as an integer."""
    if type(value) is int and 0 <= value <= END:
        return value
    antichain = value if isinstance(value, Antichain) else Antichain(value)
    if antichain.is_empty:
        return END
    if antichain.time is None:
        raise InvalidUsage(f"{antichain} has several dimensions: times of collections are integers, so give one")
    return antichain.time


def decode_frontier(times: Frontier) -> int:
    """Return a stored frontier as an integer."""
    return times[0] if times else END


def encode_frontier(frontier: int) -> Frontier:
    """Return a frontier as the log stores it."""
    return () if frontier == END else (frontier,)


def _get_reach(other: Any) -> Any:
    """Return a frontier or time as a comparable value; None otherwise.

    The value is a number in one dimension, infinity for the empty frontier, and a tuple of points in several ones.
    """
    if isinstance(other, tuple):
        other = Antichain(other)
    if isinstance(other, Antichain):
        if not other.elements:
            return math.inf
        return other.elements[0] if type(other.elements[0]) is int else other.elements
    if isinstance(other, bool):
        return None
    try:
        return operator.index(other)
    except TypeError:
        return None


def _is_at_or_before(one: Any, other: Any) -> bool:
    """Return whether one value of `_get_reach` is at or before another."""
    if type(one) is not tuple and type(other) is not tuple:
        return bool(one <= other)
    left_points, right_points = (
        reach if type(reach) is tuple else _to_points(() if reach == math.inf else (reach,)) for reach in (one, other)
    )
    return all(any(_is_before(a, b) for a in left_points) for b in right_points)


def _to_points(elements: tuple[Any, ...]) -> tuple[Coordinates, ...]:
    """Return each time as a tuple of its coordinates."""
    return tuple(element if type(element) is tuple else (element,) for element in elements)


def _is_before(one: Coordinates, other: Coordinates) -> bool:
    """Return whether each coordinate is less than or equal to the other's."""
    return _compute_least_upper_bound(one, other) == other


def _compute_least_upper_bound(one: Coordinates, other: Coordinates) -> Coordinates:
    """Return the least time at or after both times."""
    if len(one) != len(other):
        raise InvalidUsage(f"times {one} and {other} have different numbers of dimensions, so they cannot be compared")
    return tuple(map(max, one, other))
