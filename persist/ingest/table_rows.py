"""What has come for one table of a database and is not committed yet: rows, which become columns all together."""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from persist.codecs import TIME_MAX, boolean_array, int64_array
from persist.collection import Collection
from persist.errors import InvalidUsage
from persist.ingest.pgoutput import UNSENT
from persist.read import Scan, Snapshot, snapshot_scan
from persist.upsert import DELETED, SEQ, event_fields, events_schema

SLICE_ROWS = 100_000
PIECE = "ingest.piece"  # A property: how much of a transaction that is not sealed yet the collection has.
Typed = Callable[[list[Any], pa.DataType, str], pa.Array]  # Values as they came, the type of the column, and its name.


class Piece(msgspec.Struct, frozen=True):
    """How much of a transaction a collection has before it is sealed: so many changes, after so many truncates."""

    time: int
    changes: int = 0
    truncates: int = 0

    @classmethod
    def of(cls, collection: Collection) -> "Piece":
        """Return what a collection says of it."""
        text = collection.about.properties.get(PIECE)
        return cls(-1) if text is None else msgspec.json.decode(text, type=cls)

    def said(self) -> dict[str, str]:
        """Return what the collection is to say."""
        return {PIECE: msgspec.json.encode(self).decode()}


class TableRows:
    """The changes of one table, in their order.

    A table with a key gives events: its new row, or its key and that it is deleted. Any other gives updates.

    Attributes:
        types: what each column becomes, in the order of rows.
        key: the columns by which a row is told from others; none if the table has no key.
        begin: changes up to that time are in the copy of the table.
        reached: before it, contents are not known, and a row that changes may be one that was deleted later.
        piece: what the collection has of a transaction that is not sealed yet; so many changes of it are passed over.
    """

    def __init__(
        self,
        table: str,
        types: dict[str, pa.DataType],
        key: list[str],
        begin: int,
        reached: int,
        typed: Typed,
        piece: Piece,
    ) -> None:
        self.begin = begin
        self.reached = reached
        self.table = table
        self.names = [*types]
        self.types = types
        self.key = key
        self.piece = piece
        self._typed = typed
        self._key_at = [self.names.index(name) for name in key]
        self._rows: list[list[Any]] = []
        self._times: list[int] = []
        self._signs: list[bool] = []  # Whether the row is gone.
        self._partial: list[int] = []  # Rows with values that were not sent.
        self._seen = Piece(-1)  # What has come of the transaction that comes.

    def __len__(self) -> int:
        return len(self._rows)

    def is_there(self, time: int) -> bool:
        """Return whether the collection has a part already of what a transaction is."""
        return self.piece.time == time and self.piece != Piece(time)

    def take(self, old: list[Any] | None, new: list[Any] | None, time: int, is_key: bool) -> None:
        """Take a change: an insert has no old row, or an update whose key stays; a delete has no new one."""
        seen = self._seen if self._seen.time == time else Piece(time)
        self._seen = Piece(time, seen.changes + 1, seen.truncates)
        if self.piece.time == time and self._seen.changes <= self.piece.changes:
            return
        if new is not None and old is not None and not is_key and UNSENT in new:
            new = [before if value is UNSENT else value for value, before in zip(new, old, strict=True)]
        if self.key:
            if old is not None and (new is None or self._key_of(old) != self._key_of(new)):
                gone: list[Any] = [None] * len(old)
                for at in self._key_at:
                    gone[at] = old[at]
                self._add(gone, time, True)
                if new is not None and UNSENT in new:
                    raise InvalidUsage(
                        f"a row of {self.table} got another key, and a long value of it was not sent. Say ALTER TABLE "
                        f"{self.table} REPLICA IDENTITY FULL, and copy the table again"
                    )
        elif old is not None:
            self._add(old, time, True)
        if new is not None:
            if UNSENT in new:
                self._partial.append(len(self._rows))
            self._add(new, time, False)

    def truncated(self, time: int) -> bool:
        """Forget the changes of a time, which are the last ones: the table is emptied. Return whether that is new."""
        seen = self._seen if self._seen.time == time else Piece(time)
        self._seen = Piece(time, seen.changes, seen.truncates + 1)
        self._cut(bisect_left(self._times, time))
        return self.piece.time != time or self._seen.truncates > self.piece.truncates

    def pieced(self) -> Piece:
        """Take it that what has come of a transaction is in the collection; return how much that is."""
        self.piece = self._seen
        return self.piece

    def removals(self, collection: Collection, upper: int, time: int) -> Iterator[pa.Table]:
        """Yield rows that remove all that a collection holds, and has of a time not sealed yet. Memory: a slice."""
        tables: list[pa.Table] = []
        for rows in self._removals(collection, upper, time):
            tables.append(rows)
            if sum(map(len, tables)) >= SLICE_ROWS:
                yield pa.concat_tables(tables)
                tables = []
        if tables:
            yield pa.concat_tables(tables)

    def _removals(self, collection: Collection, upper: int, time: int) -> Iterator[pa.Table]:
        columns = self.key or self.names
        with held(collection, upper, self.reached, columns=columns) as snapshot:
            for batch in snapshot.to_batches():
                yield self._removal(pa.Table.from_batches([batch]), time, -1)
        if self.is_there(time):
            for rows in waiting(collection, [*columns, *([DELETED] if self.key else [])], upper):
                if self.key:  # What is removed already may be there more than once, if the removal was cut off before.
                    yield self._removal(rows.filter(pc.invert(rows[DELETED])), time, None)
                else:
                    yield self._removal(rows, time, pc.negate(rows["_diff"]))

    def _removal(self, rows: pa.Table, time: int, diff: Any) -> pa.Table:
        there = {*rows.column_names}
        columns = {
            name: rows[name].cast(self.types[name]) if name in there else pa.nulls(len(rows), self.types[name])
            for name in self.names
        }
        columns["_time"] = int64_array(np.full(len(rows), time, np.int64))
        if self.key:
            columns[DELETED] = boolean_array(np.ones(len(rows), np.bool_))
        else:
            columns["_diff"] = int64_array(np.full(len(rows), diff, np.int64)) if isinstance(diff, int) else diff
        return pa.table(columns)

    def taken(self, collection: Collection, upper: int, until: int) -> pa.Table | None:
        """Return what has come before a time, as events or updates, and forget it; None if that is nothing.

        Args:
            upper: up to it, the collection has what came before.
        """
        count = bisect_left(self._times, until)
        if not count:
            return None
        later = (self._rows[count:], self._times[count:], self._signs[count:], [a - count for a in self._partial])
        self._cut(count)
        taken = self._columns(collection, upper)
        self._rows, self._times, self._signs = later[:3]
        self._partial = [at for at in later[3] if at >= 0]
        return taken

    def _cut(self, count: int) -> None:
        """Keep only so many changes."""
        del self._rows[count:], self._times[count:], self._signs[count:]
        self._partial = [at for at in self._partial if at < count]

    def _columns(self, collection: Collection, upper: int) -> pa.Table:
        absent = [] if not self._partial else self._filled()
        columns: dict[str, Any] = {}
        for name, values in zip(self.names, zip(*self._rows, strict=True), strict=True):
            sent = [None if value is UNSENT else value for value in values] if absent else [*values]
            columns[name] = self._typed(sent, self.types[name], f"{self.table}.{name}")
        unknown = self._look_up(collection, upper, absent, columns) if absent else []
        columns["_time"] = int64_array(np.array(self._times, np.int64))
        if self.key:
            columns[DELETED] = boolean_array(np.array(self._signs, np.bool_))
        else:
            columns["_diff"] = int64_array(1 - 2 * np.array(self._signs, np.int64))
        table = pa.table(columns)
        return table.take(int64_array(np.setdiff1d(np.arange(len(table)), unknown))) if unknown else table

    def _add(self, row: list[Any], time: int, is_gone: bool) -> None:
        self._rows.append(row)
        self._times.append(time)
        self._signs.append(is_gone)

    def _key_of(self, row: list[Any]) -> tuple[Any, ...]:
        return tuple([row[at] for at in self._key_at])

    def _filled(self) -> list[int]:
        """Give rows what an earlier row of the same key has; return those for which there is none."""
        partial, last, absent = set(self._partial), dict[tuple[Any, ...], int](), []
        for at, row in enumerate(self._rows):
            key = self._key_of(row)
            if at in partial:
                if key in last:
                    before = self._rows[last[key]]
                    row = [old if value is UNSENT else value for value, old in zip(row, before, strict=True)]
                    self._rows[at] = row
                if UNSENT in row:
                    absent.append(at)
            last[key] = at
        return absent

    def _look_up(self, collection: Collection, upper: int, absent: list[int], columns: dict[str, Any]) -> list[int]:
        """Take what was not sent from what the collection holds; return rows that are to be left out.

        These changed a row that is not there. Before `reached`, that is one that was deleted, or copied again, later.
        """
        keys = pa.table({name: columns[name].take(absent) for name in self.key})
        with held(collection, upper, self.reached) as snapshot:
            there = snapshot.get(keys.group_by(self.key).aggregate([]))
        rows = {tuple(row[name] for name in self.key): row for row in there.to_pylist()}
        if self.is_there(self._times[-1]):
            rows |= self._waiting(collection, keys, upper)
        wanted = [rows.get(tuple(row[name] for name in self.key)) for row in keys.to_pylist()]
        unknown = [row for row, held_row in zip(absent, wanted, strict=True) if held_row is None]
        if unknown and self._times[unknown[-1]] > self.reached:
            raise InvalidUsage(
                f"a row of {self.table} was changed that {collection.name!r} does not have, so a long value of it that "
                "was not sent is not known. Drop the collection, and copy the table again"
            )
        for at, name in enumerate(self.names):
            places = [
                (row, held_row)
                for row, held_row in zip(absent, wanted, strict=True)
                if held_row is not None and self._rows[row][at] is UNSENT
            ]
            if places:
                order = np.arange(len(self._rows))
                order[[row for row, _ in places]] = len(self._rows) + np.arange(len(places))
                values = pa.array([row[name] for _, row in places], self.types[name])
                columns[name] = pa.concat_arrays([columns[name], values]).take(pa.array(order))
        return unknown

    def _waiting(self, collection: Collection, keys: pa.Table, upper: int) -> dict[tuple[Any, ...], dict[str, Any]]:
        """Return the last rows of keys among the events that the collection has of the transaction that comes."""
        last_rows: dict[tuple[Any, ...], dict[str, Any]] = {}
        for events in waiting(collection, [*self.names, DELETED, SEQ], upper):
            events = events.sort_by(SEQ).append_column("_at", int64_array(np.arange(len(events))))
            for row in events.join(keys, self.key, join_type="left semi").sort_by("_at").to_pylist():
                last_rows[tuple(row[name] for name in self.key)] = row
        return {key: row for key, row in last_rows.items() if not row[DELETED]}


def waiting(collection: Collection, columns: list[str], upper: int) -> Iterator[pa.Table]:
    """Yield what a collection has beyond its upper: events, in the order of their commits, or updates."""
    handle = collection.handle.newest()
    contents, reading = handle.claim(max(0, upper - 1), end=None)
    with closing(reading):
        if contents.keyed is None:
            scan = Scan(handle.schema, contents.history_parts, upper, TIME_MAX + 1, tuple(columns)).pruned()
            yield from scan.updates(reading(), [*columns, "_diff"])
            return
        schema = events_schema(handle.schema, event_fields(handle.schema, contents.keyed))
        for part in contents.pending.values():
            yield from Scan(schema, (part,), 0, TIME_MAX + 1, tuple(columns)).updates(reading(), columns)


def held(collection: Collection, upper: int, reached: int, *, columns: list[str] | None = None) -> Snapshot:
    """Return what a collection has by now, which is readable for others from `reached` on."""
    if upper > reached:
        return collection.snapshot(upper - 1, columns=columns)
    handle = collection.handle.newest()
    contents, reading = handle.claim(reached, end=upper)
    scan = snapshot_scan(contents, handle.schema, reached, columns, None)
    return Snapshot(scan, "rows", reading, contents, handle.engine.reader().slice_bytes)
