"""What has come for one table of Postgres and is not committed yet: rows as text, which become columns all together."""

from bisect import bisect_left
from typing import Any

import numpy as np
import pyarrow as pa

from persist.codecs import int64_array
from persist.collection import Collection
from persist.errors import InvalidUsage
from persist.ingest.pg_types import flags, typed
from persist.ingest.pgoutput import UNSENT
from persist.read import Snapshot, snapshot_scan

DELETED = "_deleted"


class TableRows:
    """The changes of one table, in their order.

    A table with a key gives events: its new row, or its key and that it is deleted. Any other gives updates.

    Attributes:
        names: of the columns, in the order of rows.
        types: what each becomes.
        key: the columns by which a row is told from others; none if the table has no key.
        begin: changes up to that time are in the copy of the table.
        reached: before it, contents are not known, and a row that changes may be one that was deleted later.
    """

    def __init__(
        self, table: str, names: list[str], types: dict[str, pa.DataType], key: list[str], begin: int, reached: int
    ) -> None:
        self.begin = begin
        self.reached = reached
        self.table = table
        self.names = names
        self.types = types
        self.key = key
        self._key_at = [names.index(name) for name in key]
        self._rows: list[list[Any]] = []
        self._times: list[int] = []
        self._signs: list[bool] = []  # Whether the row is gone.
        self._partial: list[int] = []  # Rows with values that were not sent.
        self._removals: list[pa.Table] = []  # What a truncate has removed, before all these rows.
        self._removed_at = -1

    def __len__(self) -> int:
        return len(self._rows) + sum(map(len, self._removals))

    def take(self, old: list[Any] | None, new: list[Any] | None, time: int, is_key: bool) -> None:
        """Take a change: an insert has no old row, or an update whose key stays; a delete has no new one."""
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

    def forget(self, time: int) -> None:
        """Forget the changes of a time, which are the last ones: the table was emptied after them."""
        self._cut(bisect_left(self._times, time))

    def empty(self, rows: pa.Table, time: int) -> None:
        """Take that all rows that there are were removed; nothing else has come that is not committed."""
        if self._removed_at == time:
            return  # The transaction has removed them already.
        assert not self._rows, "what came before is committed, and what the transaction did is forgotten"
        columns = {name: rows[name] if name in self.key or not self.key else pa.nulls(len(rows)) for name in self.names}
        columns = {name: column.cast(self.types[name]) for name, column in columns.items()}
        columns["_time"] = int64_array(np.full(len(rows), time, np.int64))
        if self.key:
            columns[DELETED] = flags([True] * len(rows))
        else:
            columns["_diff"] = int64_array(np.full(len(rows), -1, np.int64))
        self._removals.append(pa.table(columns))
        self._removed_at = time

    def taken(self, collection: Collection, upper: int, until: int) -> pa.Table | None:
        """Return what has come before a time, as events or updates, and forget it; None if that is nothing.

        Args:
            upper: up to it, the collection has what came before.
        """
        count = bisect_left(self._times, until)
        removals = self._removals if self._removed_at < until else []
        if not count and not removals:
            return None
        later = (self._rows[count:], self._times[count:], self._signs[count:], [a - count for a in self._partial])
        self._cut(count)
        taken = pa.concat_tables([*removals, self._columns(collection, upper)]) if count else pa.concat_tables(removals)
        self._rows, self._times, self._signs = later[:3]
        self._partial = [at for at in later[3] if at >= 0]
        if removals:
            self._removals = []
        return taken

    def _cut(self, count: int) -> None:
        """Keep only so many changes."""
        del self._rows[count:], self._times[count:], self._signs[count:]
        self._partial = [at for at in self._partial if at < count]

    def _columns(self, collection: Collection, upper: int) -> pa.Table:
        absent = [] if not self._partial else self._filled()
        columns: dict[str, Any] = {}
        for name, values in zip(self.names, zip(*self._rows, strict=True), strict=True):
            texts = pa.array(
                [None if value is UNSENT else value for value in values] if absent else values, pa.string()
            )
            columns[name] = typed(texts, self.types[name], f"{self.table}.{name}")
        unknown = self._look_up(collection, upper, absent, columns) if absent else []
        columns["_time"] = int64_array(np.array(self._times, np.int64))
        if self.key:
            columns[DELETED] = flags(self._signs)
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
        wanted = [rows.get(tuple(row[name] for name in self.key)) for row in keys.to_pylist()]
        unknown = [row for row, found in zip(absent, wanted, strict=True) if found is None]
        if unknown and self._times[unknown[-1]] > self.reached:
            raise InvalidUsage(
                f"a row of {self.table} was changed that {collection.name!r} does not have, so a long value of it that "
                "was not sent is not known. Drop the collection, and copy the table again"
            )
        for at, name in enumerate(self.names):
            places = [
                (row, found)
                for row, found in zip(absent, wanted, strict=True)
                if found is not None and self._rows[row][at] is UNSENT
            ]
            if places:
                order = np.arange(len(self._rows))
                order[[row for row, _ in places]] = len(self._rows) + np.arange(len(places))
                found = pa.array([row[name] for _, row in places], self.types[name])
                columns[name] = pa.concat_arrays([columns[name], found]).take(pa.array(order))
        return unknown


def held(collection: Collection, upper: int, reached: int) -> Snapshot:
    """Return what a collection has by now, which is readable for others from `reached` on."""
    if upper > reached:
        return collection.snapshot(upper - 1)
    handle = collection.handle.newest()
    contents, reading = handle.claim(reached, end=upper)
    scan = snapshot_scan(contents, handle.schema, reached, None, None)
    return Snapshot(scan, "rows", reading, contents, handle.engine.reader().slice_bytes)
