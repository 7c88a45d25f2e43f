"""Collects the uncommitted changes of one table as rows; a commit turns them into columns."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from persist.api.collection import Collection
from persist.codecs.order.arrays import get_boolean_values, make_boolean_array, make_int64_array
from persist.codecs.types.schema import TIME_MAX
from persist.connect.ingest.source import UNSENT, StoredProperty, advise_copy
from persist.core.errors import InvalidUsage
from persist.core.keyed.events import list_event_fields, make_event_schema
from persist.core.keyed.machine import DELETED, SEQ
from persist.engine.read.planning.scan import Scan
from persist.engine.read.planning.snapshot_plan import plan_snapshot
from persist.engine.read.results.snapshot import Snapshot

SLICE_ROWS = 100_000
Key = tuple[Any, ...]
Typed = Callable[[list[Any], pa.DataType, str], pa.Array]  # Values as they came, the type of the column, and its name.


class Piece(StoredProperty, frozen=True):
    """How many changes and truncates of a large transaction are committed, before its end."""

    NAME = "ingest.piece"

    time: int
    changes: int = 0
    truncates: int = 0


@dataclass(eq=False)
class TableRows:
    """The uncommitted changes of one table, in order: events if it has a key, or else updates.

    Attributes:
        table: its name, for errors.
        types: the Arrow type of each column, in the order of the values of a row.
        key: the columns that identify a row; empty without a key.
        begin: changes up to this time are in the copy of the table.
        reached: the last time of the copy. A row that was changed before it may be missing in the copy.
        typed: the function that makes an array of a type from values.
        piece: how many changes of an unsealed transaction the collection has; these are skipped.
        place: returns the server's name for the transaction of a time, for errors.
        refresh: is called before rows become columns; it may set other `types`.
    """

    table: str
    types: dict[str, pa.DataType]
    key: list[str]
    begin: int
    reached: int
    typed: Typed
    piece: Piece
    place: Callable[[int], str]
    refresh: Callable[[], None] | None = None
    _rows: list[list[Any]] = field(default_factory=list)
    _times: list[int] = field(default_factory=list)
    _signs: list[bool] = field(default_factory=list)  # Whether the row is gone.
    # Rows with values that were not sent, and the key of the row that has them.
    _partial: dict[int, Key] = field(default_factory=dict)
    _seen: Piece = field(default_factory=lambda: Piece(-1))  # The part of the current transaction that has arrived.

    def __post_init__(self) -> None:
        self.names = [*self.types]
        self._key_at = [self.names.index(name) for name in self.key]

    def __len__(self) -> int:
        return len(self._rows)

    def has_part_of_transaction(self, time: int) -> bool:
        """Return whether a part of the transaction of a time is committed already."""
        return self.piece.time == time and self.piece != Piece(time)

    def take(self, old: list[Any] | None, new: list[Any] | None, time: int, is_key: bool) -> None:
        """Add a change, unless it is in the committed part of its transaction.

        An insert, or an update with the same key, has no old row. A delete has no new row.
        """
        piece = self._seen if self._seen.time == time else Piece(time)
        self._seen = Piece(time, piece.changes + 1, piece.truncates)
        if self.piece.time == time and self._seen.changes <= self.piece.changes:
            return
        if new is not None and old is not None and UNSENT in new:
            sent = {*self._key_at} if is_key else range(len(old))
            new = [old[at] if value is UNSENT and at in sent else value for at, value in enumerate(new)]
        if new is not None and UNSENT in new:
            self._partial[len(self._rows)] = self._get_key(new if old is None else old)
        if not self.key and old is not None:
            self._add_change(old, time, True)
        if new is not None:
            self._add_change(new, time, False)
        # A row takes long values with it to another key, so its old key is gone after that. As the keys differ, the
        # collection does not mind the order.
        if self.key and old is not None and (new is None or self._get_key(old) != self._get_key(new)):
            old_key: list[Any] = [None] * len(old)
            for at in self._key_at:
                old_key[at] = old[at]
            self._add_change(old_key, time, True)

    def truncate(self, time: int) -> bool:
        """Drop the changes of a time; return False if an earlier process committed this truncate."""
        piece = self._seen if self._seen.time == time else Piece(time)
        self._seen = Piece(time, piece.changes, piece.truncates + 1)
        self._keep_first(bisect_left(self._times, time))
        return self.piece.time != time or self._seen.truncates > self.piece.truncates

    def mark_piece_committed(self) -> Piece:
        """Count the changes of the current transaction as committed; return the counts."""
        self.piece = self._seen
        return self.piece

    def make_removals(self, collection: Collection, upper: int, time: int) -> Iterator[pa.Table]:
        """Yield rows that remove all rows of a collection, also unsealed ones. Memory: a slice."""
        tables: list[pa.Table] = []
        for rows in self._read_removed_rows(collection, upper, time):
            tables.append(rows)
            if sum(map(len, tables)) >= SLICE_ROWS:
                yield pa.concat_tables(tables)
                tables = []
        if tables:
            yield pa.concat_tables(tables)

    def _read_removed_rows(self, collection: Collection, upper: int, time: int) -> Iterator[pa.Table]:
        """Yield the rows that remove each batch of sealed and unsealed rows."""
        columns = self.key or self.names
        with open_snapshot(collection, upper, self.reached, columns=columns) as snapshot:
            for batch in snapshot.to_batches():
                yield self._make_removal(pa.Table.from_batches([batch]), time, -1)
        if self.has_part_of_transaction(time):
            for rows in read_unsealed(collection, [*columns, *([DELETED] if self.key else [])], upper):
                if self.key:  # After an interrupted removal, a removed row may be there more than once.
                    yield self._make_removal(rows.filter(pc.invert(rows[DELETED])), time, None)
                else:
                    yield self._make_removal(rows, time, pc.negate(rows["_diff"]))

    def _make_removal(self, rows: pa.Table, time: int, diff: Any) -> pa.Table:
        """Return rows as deletions of their keys, or as updates with a diff."""
        names = {*rows.column_names}
        columns = {
            name: rows[name].cast(self.types[name]) if name in names else pa.nulls(len(rows), self.types[name])
            for name in self.names
        }
        columns["_time"] = make_int64_array(np.full(len(rows), time, np.int64))
        if self.key:
            columns[DELETED] = make_boolean_array(np.ones(len(rows), np.bool_))
        else:
            columns["_diff"] = make_int64_array(np.full(len(rows), diff, np.int64)) if isinstance(diff, int) else diff
        return pa.table(columns)

    def take_before(self, collection: Collection, upper: int, until: int) -> pa.Table | None:
        """Remove and return the changes before time `until`; None without changes.

        `upper`: the collection has all changes before it.
        """
        count = bisect_left(self._times, until)
        if not count:
            return None
        later = self._rows[count:], self._times[count:], self._signs[count:]
        partial = {at - count: key for at, key in self._partial.items() if at >= count}
        self._keep_first(count)
        if self.refresh is not None:
            self.refresh()
        table = self._make_table(collection, upper)
        self._rows, self._times, self._signs = later
        self._partial = partial
        return table

    def _keep_first(self, count: int) -> None:
        """Keep only the first `count` changes."""
        del self._rows[count:], self._times[count:], self._signs[count:]
        self._partial = {at: key for at, key in self._partial.items() if at < count}

    def _make_table(self, collection: Collection, upper: int) -> pa.Table:
        """Return all changes as a table; values that the server did not send are looked up."""
        absent = self._fill_unsent() if self._partial else {}
        columns: dict[str, Any] = {}
        for name, values in zip(self.names, zip(*self._rows, strict=True), strict=True):
            sent = [None if value is UNSENT else value for value in values] if absent else [*values]
            columns[name] = self._make_column(name, sent)
        unknown = self._look_up_unsent(collection, upper, absent, columns) if absent else []
        columns["_time"] = make_int64_array(np.array(self._times, np.int64))
        if self.key:
            columns[DELETED] = make_boolean_array(np.array(self._signs, np.bool_))
        else:
            columns["_diff"] = make_int64_array(1 - 2 * np.array(self._signs, np.int64))
        table = pa.table(columns)
        return table.take(make_int64_array(np.setdiff1d(np.arange(len(table)), unknown))) if unknown else table

    def _make_column(self, name: str, values: list[Any]) -> pa.Array:
        """Return values of a column as an array."""
        where = f"{self.table}.{name}"
        try:
            return self.typed(values, self.types[name], where)
        except InvalidUsage:
            for value, time in zip(values, self._times, strict=True):
                try:
                    self.typed([value], self.types[name], where)
                except InvalidUsage as error:
                    raise InvalidUsage(f"{self.place(time)}: {error}") from None
            raise

    def _add_change(self, row: list[Any], time: int, is_gone: bool) -> None:
        """Add a row, or its deletion if `is_gone`, at a time."""
        self._rows.append(row)
        self._times.append(time)
        self._signs.append(is_gone)

    def _get_key(self, row: list[Any]) -> tuple[Any, ...]:
        """Return the values of a row's key columns."""
        return tuple([row[at] for at in self._key_at])

    def _fill_unsent(self) -> dict[int, Key]:
        """Copy values that the server did not send from earlier changes of the same row.

        Returns the rows that still lack values, each with the key that it had before all of these changes.
        """
        last, absent = dict[Key, int](), dict[int, Key]()
        for at, row in enumerate(self._rows):
            origin = self._partial.get(at)
            if origin is not None:
                earlier = last.get(origin)
                if earlier is not None:
                    row = [
                        old if value is UNSENT else value for value, old in zip(row, self._rows[earlier], strict=True)
                    ]
                    self._rows[at] = row
                if UNSENT in row:
                    absent[at] = origin if earlier is None else absent[earlier]
            last[self._get_key(row)] = at
        return absent

    def _look_up_unsent(
        self, collection: Collection, upper: int, absent: Mapping[int, Key], columns: dict[str, Any]
    ) -> list[int]:
        """Fill values that the server did not send from the collection; return rows to leave out.

        A change up to `reached` is left out if the collection lacks its row: that was deleted, or copied later.
        """
        values = zip(self.key, zip(*absent.values(), strict=True), strict=True)
        keys = pa.table(
            {name: self.typed([*texts], self.types[name], f"{self.table}.{name}") for name, texts in values}
        )
        with open_snapshot(collection, upper, self.reached) as snapshot:
            rows = [snapshot.get(keys.group_by(self.key).aggregate([])).select(self.names)]
        is_gone = [np.zeros(len(rows[0]), np.bool_)]
        if self.has_part_of_transaction(self._times[-1]):
            for events in read_unsealed(collection, [*self.names, DELETED, SEQ], upper):
                events = events.filter(pc.is_valid(_find_last_rows(events, keys, self.key))).sort_by(SEQ)
                rows.append(events.select(self.names))
                is_gone.append(events[DELETED].to_numpy())
        stored = pa.concat_tables(rows)
        places = _find_last_rows(keys, stored, self.key)
        is_known = get_boolean_values(
            pc.invert(make_boolean_array(np.concatenate(is_gone)).take(places)).fill_null(False)
        )
        unknown = [row for row, is_stored in zip(absent, is_known, strict=True) if not is_stored]
        for row in unknown:
            self._check_unknown(collection, row, absent[row])
        for at, name in enumerate(self.names):
            lacks = np.array([self._rows[row][at] is UNSENT for row in absent], np.bool_) & is_known
            if lacks.any():
                order = np.arange(len(self._rows))
                order[np.fromiter(absent, np.int64)[lacks]] = len(self._rows) + np.arange(lacks.sum())
                stored_values = stored[name].take(places.filter(make_boolean_array(lacks))).cast(self.types[name])
                columns[name] = pa.chunked_array([columns[name], *stored_values.chunks]).take(make_int64_array(order))
        return unknown

    def _check_unknown(self, collection: Collection, row: int, origin: Key) -> None:
        """Raise InvalidUsage if a row is unknown that the copy should have."""
        if self._times[row] <= self.reached and self._get_key(self._rows[row]) == origin:
            return
        long = ", ".join(name for name, value in zip(self.names, self._rows[row], strict=True) if value is UNSENT)
        key = ", ".join(f"{name} = {value}" for name, value in zip(self.key, origin, strict=True))
        raise InvalidUsage(
            f"{self.place(self._times[row])}: the row of {self.table} with {key} was changed, and {collection.name!r} "
            f"does not have it. So its long values ({long}), which the server did not send, are not known. "
            f"{advise_copy([collection.name])}"
        )


def _find_last_rows(rows: pa.Table, others: pa.Table, key: list[str]) -> pa.Array:
    """Return int64[rows]: for each row, the last row of `others` with its key, or NULL."""
    names = [f"{at}" for at in range(len(key))]
    numbered = rows.select(key).rename_columns(names).append_column("row", make_int64_array(np.arange(len(rows))))
    right = others.select(key).rename_columns(names).append_column("at", make_int64_array(np.arange(len(others))))
    last = right.group_by(names).aggregate([("at", "max")])
    return numbered.join(last, names, join_type="left outer").sort_by("row")["at_max"].combine_chunks()


def read_unsealed(collection: Collection, columns: list[str], upper: int) -> Iterator[pa.Table]:
    """Yield unsealed updates, or pending events in order of their commits."""
    handle = collection.handle.newest()
    contents, reading = handle.claim(max(0, upper - 1), end=None)
    with closing(reading):
        if contents.keyed is None:
            scan = Scan(handle.schema, contents.history_parts, upper, TIME_MAX + 1, tuple(columns)).prune()
            yield from scan.updates(reading(), [*columns, "_diff"])
            return
        schema = make_event_schema(handle.schema, list_event_fields(handle.schema, contents.keyed))
        for part in contents.pending.values():
            yield from Scan(schema, (part,), 0, TIME_MAX + 1, tuple(columns)).updates(reading(), columns)


def open_snapshot(collection: Collection, upper: int, reached: int, *, columns: list[str] | None = None) -> Snapshot:
    """Open a snapshot of a collection just before `upper`, or at `reached` while it is copied."""
    if upper > reached:
        return collection.snapshot(upper - 1, columns=columns)
    handle = collection.handle.newest()
    contents, reading = handle.claim(reached, end=upper)
    scan = plan_snapshot(contents, handle.schema, reached, columns, None)
    return Snapshot(scan, "rows", reading, contents, handle.engine.reader().slice_bytes)
