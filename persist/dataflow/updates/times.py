"""Times of a dataflow: integers, and integer products under the product partial order; and their frontiers.

A time of one dimension is an integer, a time of several a tuple of integers. `a <= b` holds when it holds in every
dimension, so two times may be neither before nor after each other. Least upper bound (`lub`) and greatest lower bound
(`glb`) are taken dimension by dimension. Inside operators the times of n updates are an array `int64[dimensions, n]`.

A frontier is an `Antichain`: the times beyond it are those greater than or equal to some element. (Timely dataflow,
`src/progress/frontier.rs`; differential dataflow, `src/lattice.rs`.)
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from persist.antichain import as_time
from persist.blob import InvalidUsage
from persist.codecs import TIME_MAX

Time: TypeAlias = int | tuple[int, ...]
Coordinates: TypeAlias = tuple[int, ...]
Ints: TypeAlias = npt.NDArray[np.int64]
Flags: TypeAlias = npt.NDArray[np.bool_]


def coordinates(what: str, time: Any, dimensions: int | None = None) -> Coordinates:
    """Return a time as the tuple of its coordinates.

    Raises:
        InvalidUsage: it is no time, or has another number of dimensions than asked for; what says whose it is.
    """
    found = tuple(time) if isinstance(time, tuple | list) else (time,)
    if not found or (dimensions is not None and len(found) != dimensions):
        wanted = "an integer" if dimensions == 1 else f"a tuple of {dimensions or 'some'} integers"
        raise InvalidUsage(f"{what} {time!r} has {len(found)} dimensions, and here a time is {wanted}")
    return tuple(as_time(what, each, most=TIME_MAX + 1) for each in found)


def as_given(time: Coordinates) -> Time:
    """Return coordinates as users write times: a bare integer when there is one dimension."""
    return time[0] if len(time) == 1 else time


def less_equal(one: Time, other: Time) -> bool:
    """Return whether one is before or equal to other, in every dimension."""
    ones, others = _pair(one, other)
    return all(a <= b for a, b in zip(ones, others, strict=True))


def lub(one: Time, other: Time) -> Time:
    """Return the least time that is not before either."""
    return as_given(tuple(map(max, *_pair(one, other))))


def glb(one: Time, other: Time) -> Time:
    """Return the greatest time that is not after either."""
    return as_given(tuple(map(min, *_pair(one, other))))


def advance_by(time: Time, since: "Antichain") -> Time:
    """Return the least time that compares with all times beyond since as time does: a reader from since on sees no
    difference between the two."""
    found = since.advance(np.array([coordinates("time", time)], np.int64).T)
    return as_given(tuple(int(each) for each in found[:, 0]))


def _pair(one: Time, other: Time) -> tuple[Coordinates, Coordinates]:
    ones = coordinates("time", one)
    return ones, coordinates("time", other, len(ones))


class Antichain:
    """A frontier: times none of which is before another. The empty one means "complete, for ever".

    `a <= b` holds when every element of b is beyond a; a time stands for the frontier that it is the element of.
    Frontiers of one dimension hold one element, or none.
    """

    __slots__ = ("points",)

    def __init__(self, *elements: Time) -> None:
        if len(elements) == 1:
            only = elements[0]
            if type(only) is int and 0 <= only <= TIME_MAX + 1:  # Nearly all of them, in a fraction of the time.
                self.points: tuple[Coordinates, ...] = ((only,),)
            else:
                self.points = (coordinates("frontier time", only),)
            return
        least: list[Coordinates] = []
        for element in elements:
            point = coordinates("frontier time", element, len(least[0]) if least else None)
            if not any(_before(other, point) for other in least):
                least = [other for other in least if not _before(point, other)] + [point]
        self.points = tuple(sorted(least))

    @classmethod
    def least(cls, dimensions: int) -> "Antichain":
        """Return the frontier that every time is beyond."""
        return cls((0,) * dimensions)

    @property
    def elements(self) -> tuple[Time, ...]:
        """The times, as users write them."""
        return tuple(map(as_given, self.points))

    @property
    def is_empty(self) -> bool:
        """Whether no time is beyond it."""
        return not self.points

    def insert(self, time: Time) -> "Antichain":
        """Return the frontier that the times beyond this one are beyond, and time too."""
        return Antichain(*self.points, time)

    def meet(self, other: "Antichain | Time") -> "Antichain":
        """Return the greatest frontier not after either: what is beyond it is beyond one of them."""
        return Antichain(*self.points, *_frontier(other).points)

    def join(self, other: "Antichain | Time") -> "Antichain":
        """Return the least frontier not before either: what is beyond it is beyond both."""
        return Antichain(*(lub(one, two) for one in self.points for two in _frontier(other).points))

    def has_beyond(self, time: Time) -> bool:
        """Return whether time is beyond it."""
        point = coordinates("time", time, len(self.points[0]) if self.points else None)
        return any(_before(element, point) for element in self.points)

    def beyond(self, times: Ints) -> Flags:
        """Return which of times, `int64[dimensions, n]`, are beyond it."""
        if len(self.points) == 1 and len(times) == 1:
            return times[0] >= self.points[0][0]
        found = np.zeros(times.shape[1], np.bool_)
        for element in np.array(self.points, np.int64):
            found |= (times >= element[:, None]).all(axis=0)
        return found

    def advance(self, times: Ints) -> Ints:
        """Return times advanced by it as by `advance_by`; by the empty frontier they are left as they are."""
        if not self.points:
            return times
        if len(times) == 1:
            return np.maximum(times, self.points[0][0])
        first, *others = np.array(self.points, np.int64)
        found = np.maximum(times, first[:, None])
        for element in others:
            np.minimum(found, np.maximum(times, element[:, None]), out=found)
        return found

    def __le__(self, other: "Antichain | Time") -> bool:
        points = other.points if isinstance(other, Antichain) else ()
        if len(points) == len(self.points) == 1 and len(points[0]) == len(self.points[0]):
            return _before(self.points[0], points[0])
        return all(self.has_beyond(element) for element in _frontier(other).points)

    def __lt__(self, other: "Antichain | Time") -> bool:
        return self != _frontier(other) and self <= other

    def __ge__(self, other: "Antichain | Time") -> bool:
        return _frontier(other) <= self

    def __gt__(self, other: "Antichain | Time") -> bool:
        return _frontier(other) < self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Antichain) and self.points == other.points

    def __hash__(self) -> int:
        return hash(self.points)

    def __repr__(self) -> str:
        return f"Antichain({', '.join(map(str, self.elements))})"


def _frontier(given: Antichain | Time) -> Antichain:
    return given if isinstance(given, Antichain) else Antichain(given)


def _before(one: Coordinates, other: Coordinates) -> bool:
    if len(one) == len(other) == 1:
        return one[0] <= other[0]
    return all(a <= b for a, b in zip(one, other, strict=True))


def meet_of(frontiers: Iterable[Antichain]) -> Antichain:
    """Return the meet of all; the empty frontier for none."""
    frontiers = list(frontiers)
    if frontiers:
        first = frontiers[0]
        points = first.points
        for each in frontiers:
            if each is not first and each.points != points:
                break
        else:
            return first
    return Antichain(*(point for frontier in frontiers for point in frontier.points))


class MutableAntichain:
    """A multiset of times with the frontier of those whose count is positive: counted capabilities.

    Whoever may still produce updates from a time on counts one there; the frontier is what all of them allow.
    """

    def __init__(self, times: Iterable[Time] = ()) -> None:
        self._counts: Counter[Coordinates] = Counter()
        self._frontier = Antichain()
        self.update((time, 1) for time in times)

    @property
    def frontier(self) -> Antichain:
        """The least times that are counted."""
        return self._frontier

    def count(self, time: Time) -> int:
        """Return how often a time is counted."""
        return self._counts[coordinates("time", time)]

    def update(self, changes: Iterable[tuple[Time, int]]) -> list[tuple[Time, int]]:
        """Add changes of counts, and return how the frontier's elements changed: +1 came, -1 went.

        Raises:
            InvalidUsage: a count would become negative, or times have different dimensions; nothing was changed.
        """
        counts = self._counts.copy()
        for time, change in changes:
            if isinstance(change, bool) or not isinstance(change, int):
                raise InvalidUsage(f"the count of time {time!r} cannot change by {change!r}: give a whole number")
            counts[coordinates("time", time)] += change
        for point, count in counts.items():
            if count < 0:
                raise InvalidUsage(f"the count of time {as_given(point)} would become {count}: it was never that high")
        counts = +counts
        found = Antichain(*counts)
        self._counts = counts
        before, self._frontier = self._frontier, found
        gone = [(as_given(point), -1) for point in before.points if point not in self._frontier.points]
        return gone + [(as_given(point), 1) for point in self._frontier.points if point not in before.points]


def closure(times: Sequence[Coordinates]) -> list[Coordinates]:
    """Return times with the least upper bounds of all their subsets, each before what it is less than."""
    found: set[Coordinates] = set()
    for time in times:
        found |= {tuple(map(max, time, other)) for other in found} | {time}
    return sorted(found)
