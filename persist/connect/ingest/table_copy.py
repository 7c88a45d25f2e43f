"""Copies the tables of a database, in pieces, before their changes are followed. An interrupted copy continues.

One run of the process copies as of one point of the server's log. The first run fixes the position from which changes
are followed later. Each other run, after an interruption, has a later point. Rows get the time of their run's point. A
table with a key is read in the order of its key. The commit of a piece stores its last key in a property of the
collection, and the next run continues after that key. A table without a key is copied in one run; if that is
interrupted, the next run drops the collection and begins again.

Contents are exact from `reached` on, the time of the last run. A row was set to its value at the point of its run, and
changes after that point are applied to it. Effects of earlier changes are overwritten. At times before `reached`,
contents would be a mixture of points, so `since` is moved there if there were several. Changes before `begin`, the time
of the first run, are in the copy, and are skipped.
"""

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec
import numpy as np
import pyarrow as pa

from persist.api.client import Client
from persist.codecs.order.arrays import make_int64_array
from persist.connect.ingest.source import SOURCE, Batch, Change, Run, Source, StoredProperty, Target
from persist.core.errors import Unavailable


class CopyProgress(StoredProperty, frozen=True):
    """How far a table was copied, as stored on its collection.

    Attributes:
        times: of its runs; the rows that a run copies have its time.
        begin_us: the moment of its first run, in µs since 1970.
        after: the last key that was copied, as texts of the server; None if no key was.
        is_done: whether all rows were copied.
    """

    NAME = "ingest.copy"

    times: list[int]
    begin_us: int
    after: list[str] | None = None
    is_done: bool = False

    @property
    def begin(self) -> int:
        """The time of the first run of the copy."""
        return self.times[0]

    @property
    def reached(self) -> int:
        """The time of the last run of the copy."""
        return self.times[-1]


@dataclass(frozen=True, slots=True)
class Point:
    """A position in the server's log, and a connection that reads tables as of it.

    `properties`: by collection, what the first run stores; `open_point(is_new=True)` begins the first run.
    """

    time: int
    now_us: int
    reading: Any
    properties: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


class Server(Protocol):
    """The queries that a copy sends to a server. `table` is the name of a collection."""

    def open_point(self, *, is_new: bool) -> AbstractContextManager[Point]:
        """Open a snapshot of the server at a position of its log."""

    def read_pieces(self, point: Point, table: str, after: list[str] | None) -> Iterator[tuple[pa.Table, list[str]]]:
        """Yield rows with keys after `after`, in key order, with the last key of each piece."""

    def find_key(self, table: str) -> Sequence[str]:
        """Return the key columns of a table; [] without a key."""


def drop_unfinished(source: Source, client: Client, target: Target) -> None:
    """Drop a collection whose interrupted copy cannot be continued: no key, or other columns."""
    if target.name not in client or (collection := client.load(target.name)).upper.time:
        return
    properties = collection.about.properties
    if properties.get(SOURCE) == source.name:
        copied = CopyProgress.from_properties(collection)
        have = {name: collection.schema.arrow.field(name).type for name in collection.schema.names}
        is_same = have == {**target.key, **target.value} and target.properties.items() <= properties.items()
        if copied is None or not is_same or not (target.key or copied.is_done):
            collection.drop().result()


class Copy:
    """Copies tables into new collections, and then seals these to the upper of the other collections."""

    def __init__(self, server: Server, tables: Sequence[str], run: Run) -> None:
        self._server = server
        self._run = run
        self._wanted = [name for name in tables if not run.uppers[name]]
        self._copied = {name: CopyProgress.from_properties(run.collections[name]) for name in self._wanted}
        self._is_first = len(self._wanted) == len(tables)

    def batches(self) -> Generator[Batch]:
        """Yield the rows of all tables to copy; the last batch seals their collections."""
        if not all(copied is not None and copied.is_done for copied in self._copied.values()):
            yield from self._copy_tables()
        copies = [copied for copied in self._copied.values() if copied is not None]
        if self._is_first:
            first = min(copies, key=lambda known: known.begin)
            upper, moments = first.begin + 1, [(first.begin, first.begin_us)]
        else:
            upper, moments = max(self._run.uppers.values()), []
        since = {name: copied.reached for name, copied in self._copied.items() if copied and copied.reached >= upper}
        yield Batch((), upper, 0, moments, since=since)

    def _copy_tables(self) -> Iterator[Batch]:
        """Yield the rows of all tables that are not copied yet, as of one snapshot."""
        is_new = self._is_first and not any(self._copied.values())
        with self._server.open_point(is_new=is_new) as point:
            if is_new and point.properties:
                yield Batch((), None, properties=point.properties)
            for name in self._wanted:
                yield from self._copy_table(point, name)

    def _copy_table(self, point: Point, name: str) -> Iterator[Batch]:
        """Yield the rows of a table after the last copied key."""
        copied, key = self._copied[name], self._server.find_key(name)
        if copied is not None and copied.is_done:
            return
        if copied is not None and not key:
            raise Unavailable(
                f"the copy into {name!r} was cut off. Its table has no key by which it could go on, so it begins anew "
                "when the same command is given again"
            )
        copied = copied or CopyProgress([], point.now_us)
        copied = msgspec.structs.replace(copied, times=[*copied.times, point.time])
        for rows, last in self._server.read_pieces(point, name, copied.after):
            copied = msgspec.structs.replace(copied, after=last if key else None)
            self._copied[name] = copied
            stamped = rows.append_column("_time", make_int64_array(np.full(len(rows), point.time, np.int64)))
            if not key:
                stamped = stamped.append_column("_diff", make_int64_array(np.ones(len(rows), np.int64)))
            yield Batch([Change(name, stamped)], None, rows.num_rows, properties={name: copied.to_properties()})
        copied = msgspec.structs.replace(copied, is_done=True)
        self._copied[name] = copied
        yield Batch((), None, properties={name: copied.to_properties()})
