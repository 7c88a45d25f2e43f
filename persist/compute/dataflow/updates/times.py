"""Times of many updates at once, and updates that wait until their time is complete.

Times are an array `int64[dimensions, n]`, and are compared with frontiers (`persist.core.antichain`). A stash keeps
waiting updates in chunks, which are sorted by one coordinate of their times and have geometric sizes. So an update of
the far future (the end of a window, a later iteration) costs nothing until it is near, and a look at all chunks costs
O(log n).
"""

from collections.abc import Callable, Iterable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from persist.core.antichain import Antichain

Ints: TypeAlias = npt.NDArray[np.int64]
Flags: TypeAlias = npt.NDArray[np.bool_]


def find_beyond(frontier: Antichain, times: Ints) -> Flags:
    """Return which times are beyond a frontier."""
    if (least := frontier.time) is not None:
        return times[0] >= least
    is_beyond = np.zeros(times.shape[1], np.bool_)
    for element in np.array(frontier.elements, np.int64):
        is_beyond |= (times >= element[:, None]).all(axis=0)
    return is_beyond


def advance_times(times: Ints, since: Antichain) -> Ints:
    """Return for each time the greatest one that compares equally with all times beyond since.

    The empty frontier leaves times as they are. (Differential dataflow, `src/lattice.rs`.)
    """
    if since.is_empty:
        return times
    if (least := since.time) is not None:
        return np.maximum(times, least)
    first, *elements = np.array(since.elements, np.int64)
    # The greatest lower bound of the least upper bounds with each element of since.
    advanced = np.maximum(times, first[:, None])
    for element in elements:
        np.minimum(advanced, np.maximum(times, element[:, None]), out=advanced)
    return advanced


def meet_all(frontiers: Iterable[Antichain]) -> Antichain:
    """Return the meet (greatest lower bound) of frontiers; the empty frontier for none."""
    frontiers = list(frontiers)
    first = frontiers[0] if frontiers else None
    for another in frontiers:
        if another is not first and another != first:
            break
    else:
        return Antichain() if first is None else first  # Nearly always: all inputs have come equally far.
    return Antichain(*(element for frontier in frontiers for element in frontier.elements))


Ready = Callable[[Ints], Flags]
Times = Callable[[Ints], Ints]


class Stash:
    """Updates that wait until their times are ready, as columns of a matrix.

    Args:
        axis: the row that each chunk is sorted by.
        times: which rows are the times.
    """

    def __init__(self, axis: int, times: slice) -> None:
        self._axis = axis
        self._times = times
        self._is_line = times.stop - times.start == 1
        self._chunks: list[Ints] = []

    @property
    def is_empty(self) -> bool:
        return not self._chunks

    @property
    def rows(self) -> int:
        """How many updates wait."""
        return sum(chunk.shape[1] for chunk in self._chunks)

    def add(self, waiting: Ints) -> None:
        if not waiting.shape[1]:
            return
        self._chunks.append(self._sort_columns(waiting))
        while len(self._chunks) > 1 and self._chunks[-2].shape[1] < 2 * self._chunks[-1].shape[1]:
            last = self._chunks.pop()
            self._chunks[-1] = self._sort_columns(np.concatenate((self._chunks[-1], last), axis=1))

    def take(self, ready: Ready, bound: int | None) -> list[Ints]:
        """Remove and return the updates that are ready.

        Args:
            ready: returns which of some times, `int64[dimensions, n]`, are ready.
            bound: updates whose coordinate `axis` is at or beyond this value are not ready; None if unknown. In one
                dimension, all other updates are ready.
        """
        due: list[Ints] = []
        chunks: list[Ints] = []
        is_told = self._is_line and bound is not None
        for chunk in self._chunks:
            end = chunk.shape[1]
            if bound is not None and chunk[self._axis, -1] >= bound:
                end = int(chunk[self._axis].searchsorted(bound))
            if is_told and end == chunk.shape[1]:
                due.append(chunk)
                continue
            near, far = chunk[:, :end], chunk[:, end:]
            if is_told and end:
                due.append(near)
            elif end:
                flags = ready(near[self._times])
                if flags.all():
                    due.append(near)
                elif flags.any():
                    due.append(near[:, flags])
                    far = np.concatenate((near[:, ~flags], far), axis=1)
                else:
                    far = chunk
            if far.shape[1]:
                chunks.append(far)
        self._chunks = chunks
        return due

    def find_least(self, ready: Ready, row: int) -> int | None:
        """Return the least value in a row of the ready columns; None if none is ready."""
        least = None
        for chunk in self._chunks:
            if row == self._axis and ready(chunk[self._times, :1])[0]:
                first = int(chunk[row, 0])
            else:
                flags = ready(chunk[self._times])
                if not flags.any():
                    continue
                first = int(chunk[row, flags].min())
            least = first if least is None else min(least, first)
        return least

    def list_chunks(self) -> list[Ints]:
        """Return all waiting updates, in sorted chunks."""
        return list(self._chunks)

    def _sort_columns(self, columns: Ints) -> Ints:
        """Return updates sorted by one coordinate of their times."""
        if columns.shape[1] == 1:
            return columns
        row = columns[self._axis]
        if (row[1:] < row[:-1]).any():
            return columns.take(row.argsort(kind="stable"), axis=1)
        return columns
