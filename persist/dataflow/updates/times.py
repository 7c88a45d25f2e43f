"""Times of many updates at once: an array `int64[dimensions, n]`, compared with frontiers (`persist.antichain`)."""

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from persist.antichain import Antichain, Coordinates

Ints: TypeAlias = npt.NDArray[np.int64]
Flags: TypeAlias = npt.NDArray[np.bool_]


def beyond(frontier: Antichain, times: Ints) -> Flags:
    """Return which of times are beyond a frontier."""
    if frontier.time is not None:
        return times[0] >= frontier.time
    is_beyond = np.zeros(times.shape[1], np.bool_)
    for element in np.array(frontier.elements, np.int64):
        is_beyond |= (times >= element[:, None]).all(axis=0)
    return is_beyond


def advanced_times(times: Ints, since: Antichain) -> Ints:
    """Return for each time the least one that compares with all times beyond since as it does, so that a reader from
    since on sees no difference. The empty frontier leaves times as they are. (Differential dataflow, `src/lattice.rs`.)
    """
    if since.is_empty:
        return times
    if since.time is not None:
        return np.maximum(times, since.time)
    first, *others = np.array(since.elements, np.int64)
    # The greatest lower bound of the least upper bounds with each element of since.
    advanced = np.maximum(times, first[:, None])
    for element in others:
        np.minimum(advanced, np.maximum(times, element[:, None]), out=advanced)
    return advanced


def meet_of(frontiers: Iterable[Antichain]) -> Antichain:
    """Return the meet of all; the empty frontier for none."""
    frontiers = list(frontiers)
    if frontiers and all(other.elements == frontiers[0].elements for other in frontiers[1:]):
        return frontiers[0]
    return Antichain(*(element for frontier in frontiers for element in frontier.elements))


def closure(times: Sequence[Coordinates]) -> list[Coordinates]:
    """Return times with the least upper bounds of all their subsets, each before what it is less than."""
    closed: set[Coordinates] = set()
    for time in times:
        closed |= {tuple(map(max, time, other)) for other in closed} | {time}
    return sorted(closed)
