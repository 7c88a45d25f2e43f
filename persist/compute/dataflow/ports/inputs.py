"""Inputs of a running program: inserted updates, and how far they are complete."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from persist.blob.errors import InvalidUsage
from persist.codecs.errors import InvalidUpdate
from persist.codecs.types.schema import TIME_MAX, CollectionSchema
from persist.codecs.updates.updates import to_updates
from persist.compute.dataflow.operators.operators import EntryOperator, make_first_frontier
from persist.compute.dataflow.updates.batch import Layout, to_batch
from persist.compute.dataflow.updates.times import Ints, Stash, find_beyond
from persist.compute.dataflow.updates.words import Domain
from persist.core.antichain import Antichain, Time, to_coordinates, to_user_time
from persist.core.errors import InputClosed


class Gate:
    """Holds updates back until they are complete, and lets them into the dataflow.

    An early gate lets updates in at once: operators without state process them, and operators with state keep them
    until they are complete.

    Attributes:
        frontier: all later updates come at times beyond it.
        consolidates: whether updates that cancel out are dropped.
    """

    def __init__(self, entry: EntryOperator, words: int, dimensions: int, *, is_early: bool = False) -> None:
        self.frontier = make_first_frontier(dimensions)
        self.consolidates = False
        self._entry = entry
        self._words = words
        self._is_early = is_early
        self._stash = Stash(words, slice(words, words + dimensions))
        self._early = Stash(0, slice(0, dimensions))  # The times of what was let in before it was complete.

    def add(self, updates: Ints) -> None:
        """Take updates, which may come at times beyond the frontier only."""
        self._stash.add(updates)

    def open(self, limit: int | None) -> int:
        """Let updates in: complete ones before the limit, and all of an early gate; return how many."""
        frontier = self.frontier if limit is None else self.frontier.meet(limit)
        self._entry.frontier = frontier
        bound = frontier.time
        if not self._early.is_empty:
            self._early.take(lambda times: ~find_beyond(frontier, times), bound)
        if self._stash.is_empty:
            self._entry.out = None
            return 0
        chunks = self._stash.take(lambda times: ~find_beyond(frontier, times), bound)
        if self._is_early:
            early = self._stash.take(lambda times: find_beyond(self.frontier, times), None)
            for chunk in early:
                self._early.add(chunk[self._words : -1])
            chunks += early
        self._entry.out = (np.concatenate(chunks, axis=1) if len(chunks) > 1 else chunks[0]) if chunks else None
        if self.consolidates and self._entry.out is not None:
            dimensions = self._entry.out.shape[0] - self._words - 1
            self._entry.out = to_batch(self._entry.out, Layout(self._words, 0, dimensions))[1:]
        return 0 if self._entry.out is None else self._entry.out.shape[1]

    def drop_all(self) -> None:
        """Drop all waiting updates."""
        self._stash.take(lambda times: np.ones(times.shape[1], np.bool_), None)

    def find_complete_times(self) -> Ints:
        """Return the times of complete updates that wait or came in early."""
        chunks = [chunk[self._words] for chunk in self._stash.list_chunks()]
        chunks += [chunk[0] for chunk in self._early.list_chunks()]
        times = np.concatenate(chunks) if chunks else np.empty(0, np.int64)
        return times[~find_beyond(self.frontier, times[None])]

    def list_words(self) -> list[Ints]:
        """Return the words of the waiting updates."""
        return [chunk[: self._words] for chunk in self._stash.list_chunks()]


class InputHandle:
    """An input of a running program, `running[name]`: inserts updates, and advances the frontier."""

    def __init__(self, name: str, schema: CollectionSchema, gate: Gate, domain: Domain, dimensions: int) -> None:
        self.name = name
        self._schema = schema
        self._gate = gate
        self._domain = domain
        self._dimensions = dimensions
        self._is_stopped = False

    @property
    def frontier(self) -> Antichain:
        """How far the input was advanced."""
        return self._gate.frontier

    def insert(self, updates: Any) -> None:
        """Insert updates: `((key, value), time, diff)` tuples, or Arrow data with the columns, the time and `_diff`.

        The time is `_time`, or in programs of several dimensions `_time_0`, `_time_1` … of a table.

        Raises:
            InputClosed: an update is at a time that was declared complete; none was taken.
            InvalidUsage: the program was closed.
            SchemaMismatch, InvalidUpdate: the updates do not fit the input's columns.
        """
        self._check_running()
        table, times = self._to_table_and_times(updates)
        self._check_open(times)
        rows = [self._domain.encode(table[name]) for name in self._schema.names]
        words = np.concatenate((np.array(rows, np.int64).reshape(len(rows), -1), times, [table["_diff"].to_numpy()]))
        if words.shape[1]:
            self._gate.add(words)

    def _check_open(self, times: Ints) -> None:
        """Raise InputClosed if one of the times is not beyond the frontier."""
        closed = ~find_beyond(self.frontier, times)
        if closed.any():
            time = tuple(int(coordinate) for coordinate in times[:, int(closed.argmax())])
            raise InputClosed(self.name, to_user_time(time), self.frontier)

    def advance_to(self, frontier: Time | Antichain) -> None:
        """Promise that all later updates come at times beyond frontier; `Antichain()` completes the input for ever.

        Raises:
            InvalidUsage: the frontier is before the present one, or has another number of dimensions; or the program
                was closed.
        """
        self._check_running()
        new_frontier = frontier if isinstance(frontier, Antichain) else Antichain(frontier)
        for element in new_frontier.elements:
            to_coordinates(f"input {self.name!r}: frontier", element, self._dimensions)  # Raises.
        if not self.frontier <= new_frontier:
            raise InvalidUsage(
                f"input {self.name!r} would go back from {self.frontier} to {new_frontier}: a frontier only advances"
            )
        self._gate.frontier = new_frontier

    def close(self) -> None:
        """Complete the input for ever."""
        self.advance_to(Antichain())

    def stop(self) -> None:
        """Refuse updates from now on, because the program was closed."""
        self._is_stopped = True

    def _check_running(self) -> None:
        """Raise InvalidUsage if the program of this input was closed."""
        if self._is_stopped:
            raise InvalidUsage(f"input {self.name!r}: its program was closed; open it again with program.open(…)")

    def _to_table_and_times(self, updates: Any) -> tuple[pa.Table, Ints]:
        """Return updates as a table, and the coordinates of their times."""
        if self._dimensions == 1:
            table = to_updates(updates, self._schema)
            return table, table["_time"].to_numpy()[None]
        if hasattr(updates, "__arrow_c_stream__"):
            return self._split_time_columns(pa.table(updates))
        return self._split_time_tuples(updates)

    def _split_time_columns(self, table: pa.Table) -> tuple[pa.Table, Ints]:
        """Return the updates of a table, and the coordinates of their times."""
        names = [f"_time_{number}" for number in range(self._dimensions)]
        missing = [name for name in names if name not in table.column_names]
        if missing:
            raise InvalidUpdate(f"input {self.name!r}: the updates lack the column {missing[0]!r} of their times")
        times = np.array([self._to_coordinate(name, table[name]) for name in names], np.int64)
        table = table.drop_columns(names)
        if "_diff" in table.column_names:
            keep = table["_diff"].to_numpy() != 0
            table, times = table.filter(pa.array(keep)), times[:, keep]
        updates = to_updates(table.append_column("_time", pa.array(np.zeros(len(table), np.int64))), self._schema)
        return updates, times

    def _to_coordinate(self, name: str, column: pa.ChunkedArray) -> Ints:
        """Return a column of coordinates of times.

        Raises InvalidUpdate: the column is not of whole numbers from 0 to `TIME_MAX`.
        """
        if not pat.is_integer(column.type):
            raise InvalidUpdate(f"input {self.name!r}: the column {name!r} is of type {column.type}; give int64")
        if column.null_count:
            raise InvalidUpdate(f"input {self.name!r}: the column {name!r} holds NULL: every update needs a time")
        bounds = pc.min_max(column).as_py()
        for bound in bounds.values() if len(column) else ():
            if not 0 <= bound <= TIME_MAX:
                raise InvalidUpdate(
                    f"input {self.name!r}: a time has {name}={bound}, which is not a whole number from 0 to {TIME_MAX}"
                )
        times: Ints = column.cast(pa.int64()).to_numpy()
        return times

    def _split_time_tuples(self, updates: Iterable[Any]) -> tuple[pa.Table, Ints]:
        """Return the updates of tuples, and the coordinates of their times."""
        timeless, times = [], []
        if not isinstance(updates, Iterable):
            raise InvalidUpdate(
                f"input {self.name!r}: the updates are {updates!r:.100}; give ((key, value), time, diff) tuples, or "
                "anything Arrow"
            )
        for update in updates:
            if not isinstance(update, tuple) or len(update) != 3:
                raise InvalidUpdate(f"input {self.name!r}: {update!r:.100} is not a tuple ((key, value), time, diff)")
            data, time, diff = update
            if diff != 0:
                timeless.append((data, 0, diff))
                times.append(to_coordinates(f"input {self.name!r}: time", time, self._dimensions))
        return to_updates(timeless, self._schema), np.array(times, np.int64).reshape(-1, self._dimensions).T
