"""Turns transactions of a database, of any size, into batches for collections.

Each transaction has a time. Small ones are committed together, and sealed. A transaction larger than a batch is
committed in pieces. The last piece seals its time, so readers never see half of it, and memory holds one piece. A
property of a collection counts the committed changes of such a transaction (`Piece`). So after a process was killed,
the next one skips just these changes when it reads the same transaction again.

`Moments` makes the rows of the map of moments. A source provides the moment of each time. Moments grow with times here,
and later commits have later ones, so a read as of a moment never changes its answer
(`persist.engine.location.moments`). If a source's clock runs back, a time gets the moment of the one before it, with
a warning.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from persist.api.collection import Collection
from persist.codecs.nested import quote_name
from persist.codecs.order.arrays import make_int64_array
from persist.connect.ingest.source import Batch, Change, Run, Target, advise_copy
from persist.connect.ingest.table_copy import CopyProgress
from persist.connect.ingest.table_rows import Piece, TableRows, Typed
from persist.core.errors import InvalidUsage
from persist.core.timeline import Timeline
from persist.engine.location.moments import MOMENT, MOMENT_TYPE, TIME

logger = logging.getLogger(__name__)
Position = Callable[[], Mapping[str, Mapping[str, str]]]


class Transactions:
    """Collects the transactions of a server into batches; one transaction is open at a time.

    Attributes:
        upper: all transactions before this time are committed.
        done: all transactions before this time have been read.
        time, moment_us: of the current transaction, which is being read.
        is_known: whether the current transaction was committed before.
        is_inside: whether the end of the current transaction was not read yet.
        place: returns the server's name for the transaction of a time, for errors.

    Args:
        behind: returns how many bytes of the log are still to be read.
        position: returns the source's position, for the commits that seal.
    """

    def __init__(
        self,
        name: str,
        run: Run,
        tables: Sequence[str],
        batch_rows: int,
        behind: Callable[[], int | None],
        position: Position = dict,
        place: Callable[[int], str] = str,
    ) -> None:
        self.place = place
        self._run = run
        self._batch_rows = batch_rows
        self._behind = behind
        self._position = position
        self.upper = self.done = min(run.uppers.values())
        if self.upper != max(run.uppers.values()):
            late = min(run.uppers, key=lambda name: run.uppers[name])
            raise InvalidUsage(
                f"the collection {late!r} is sealed to {run.uppers[late]}, and others of {name} to "
                f"{max(run.uppers.values())}: another writer sealed it. {advise_copy([late])}"
            )
        self.time = self.moment_us = 0
        self.is_known, self.is_inside = True, False
        self._rows: dict[str, TableRows] = {}
        self._count = 0  # Uncommitted changes, approximately.
        self._moments: list[tuple[int, int]] = []  # Moments of transactions that are not committed here yet.
        self._copied = {
            table: CopyProgress.from_properties(run.collections[table]) or CopyProgress([0], 0) for table in tables
        }

    @property
    def is_full(self) -> bool:
        """Whether the current transaction has enough changes for a commit."""
        return self._count >= self._batch_rows

    @property
    def is_empty(self) -> bool:
        """Whether no change waits to be committed."""
        return not self._count

    def open_rows(
        self,
        name: str,
        table: str,
        types: dict[str, pa.DataType],
        typed: Typed,
        refresh: Callable[[], None] | None = None,
    ) -> TableRows:
        """Return the object that collects changes of a table; make it again for new columns."""
        rows = self._rows.get(name)
        if rows is not None and [*rows.types.items()] == [*types.items()]:
            return rows
        if rows is not None and (len(rows) or rows.has_part_of_transaction(self.time)):
            raise InvalidUsage(
                f"{self.place(self.time)}: the table {table} changed its columns within a transaction that had "
                f"changed its rows: that cannot be followed. {advise_copy([name])}"
            )
        collection, copied = self._run.collections[name], self._copied[name]
        key = [*collection.schema.key_names] if collection.handle.keyed else []
        piece = (Piece.from_properties(collection) or Piece(-1)) if rows is None else rows.piece
        rows = self._rows[name] = TableRows(
            table, types, key, copied.begin, copied.reached, typed, piece, self.place, refresh
        )
        return rows

    def evolve(
        self,
        collection: Collection,
        table: str,
        properties: Mapping[str, str],
        inner: Mapping[str, Any] | None = None,
        **changes: Any,
    ) -> None:
        """Change the columns of a collection as its table did, and set properties.

        `inner` has changes of fields inside of columns, by their paths.
        """
        for what in changes.keys() & {"add", "defaults"}:
            changes[what] = {quote_name(name): value for name, value in changes[what].items()}
        if "rename" in changes:
            changes["rename"] = {old: quote_name(new) for old, new in changes["rename"].items()}
        for what, more in (inner or {}).items():
            changes[what] = [*changes.get(what, ()), *more] if what == "drop" else {**changes.get(what, {}), **more}
        changes = {what: names for what, names in changes.items() if names}
        if not changes:
            collection.describe(properties=properties).result()
            return
        try:  # In one commit, so that a crash cannot separate properties and columns.
            collection.evolve(**changes, properties=properties)
        except InvalidUsage as error:
            raise InvalidUsage(
                f"{self.place(self.time)}: the table {table} changed its columns in a way that {collection.name!r} "
                f"cannot follow: {error}. {advise_copy([collection.name])}"
            ) from error
        logger.warning("%s has other columns from here on: %s", table, changes)

    def find_rows(self, name: str) -> TableRows | None:
        """Return the object that collects changes of a collection, or None."""
        return self._rows.get(name)

    def begin(self, time: int, moment_us: int) -> Iterator[Batch]:
        """Begin the transaction of a time; first yield batches that seal earlier times of a copy."""
        while (reached := self._find_first_unsealed(time)) is not None:
            # Rows that were copied again at that time count from there on, so it is sealed first.
            self.done = reached + 1
            if not self._moments or self._moments[-1][0] < reached:
                self._moments.append((reached, moment_us))
            yield self.make_batch(self.done)
        self.time, self.moment_us = time, moment_us
        self.is_known, self.is_inside = time < self.upper, True

    def take(self, rows: TableRows, old: list[object] | None, new: list[object] | None, *, is_key: bool) -> None:
        """Add a change to its table, unless the copy or a commit has it already."""
        if not self.is_known and self.time > rows.begin:
            rows.take(old, new, self.time, is_key)
            self._count += 1

    def commit(self) -> Iterator[Batch]:
        """End the open transaction; yield a batch if enough changes wait."""
        self.is_inside = False
        if not self.is_known:
            self.done = self.time + 1
            self._moments.append((self.time, self.moment_us))
        count = max(self._count, len(self._moments))
        if count >= self._batch_rows or (count and self._run.stop.is_set()):
            yield self.make_batch(self.done)

    def seal_earlier(self) -> Iterator[Batch]:
        """Yield a batch of all transactions before the open one, which seals their times."""
        if self.done > self.upper:
            yield self.make_batch(self.done)

    def commit_piece(self) -> Iterator[Batch]:
        """Yield a batch of a part of the open transaction, without a seal, if the part is large."""
        yield from self.seal_earlier()
        if self.is_full:
            tables = self._take_tables(self.time + 1)
            properties = {name: self._rows[name].mark_piece_committed().to_properties() for name in tables}
            self._count = 0
            if tables:
                yield self._make_batch(tables, None, (), properties)

    def truncate_tables(self, tables: Sequence[TableRows]) -> Iterator[Batch]:
        """Remove all rows of truncated tables, also rows that the transaction has added."""
        tables = [rows for rows in tables if not self.is_known and self.time > rows.begin]
        yield from self.seal_earlier()
        names = {id(rows): name for name, rows in self._rows.items()}
        for rows in tables:
            if rows.truncate(self.time):
                yield from self._remove_all_rows(names[id(rows)], rows)
        self._count = sum(map(len, self._rows.values()))

    def _remove_all_rows(self, name: str, rows: TableRows) -> Iterator[Batch]:
        """Yield batches that remove all rows of a table."""
        collection, batch = self._run.collections[name], Batch((), None)
        removals = rows.make_removals(collection, self.upper, self.time)

        def changes() -> Iterator[Change]:
            for table in removals:
                batch.rows += len(table)
                yield Change(name, table)

        if rows.key:  # To remove a key once more changes nothing, so each slice is a commit.
            for table in removals:
                yield Batch([Change(name, table)], None, len(table))
            yield Batch((), None, properties={name: rows.mark_piece_committed().to_properties()})
        else:
            batch.changes, batch.properties = changes(), {name: rows.mark_piece_committed().to_properties()}
            yield batch

    def make_batch(self, upper: int) -> Batch:
        """Return all changes before `upper` as a batch, which seals to it."""
        tables = self._take_tables(upper)
        self.upper = upper
        moments, self._moments = self._moments, []
        self._count = sum(map(len, self._rows.values()))
        return self._make_batch(tables, upper, moments, self._position())

    def note_quiet_until(self, time: int, moment_us: int) -> None:
        """Note that no transaction before `time` is still to come, as known at a moment."""
        if time > self.upper and (not self._moments or self._moments[-1][0] < time - 1):
            self._moments.append((time - 1, moment_us))
        self.done = max(self.done, time)

    def _take_tables(self, upper: int) -> dict[str, pa.Table]:
        """Remove and return the rows of each collection before a time."""
        tables = {
            name: rows.take_before(self._run.collections[name], self.upper, upper)
            for name, rows in self._rows.items()
            if len(rows)
        }
        return {name: table for name, table in tables.items() if table is not None}

    def _make_batch(
        self,
        taken: Mapping[str, pa.Table],
        upper: int | None,
        moments: Sequence[tuple[int, int]],
        properties: Mapping[str, Mapping[str, str]],
    ) -> Batch:
        """Return a batch of these rows."""
        changes = [Change(name, rows) for name, rows in taken.items()]
        rows = sum(map(len, taken.values()))
        return Batch(changes, upper, rows, moments, properties=properties, behind=self._behind())

    def _find_first_unsealed(self, time: int) -> int | None:
        """Return the least unsealed time of a copy that is before a time, or None."""
        times = [at for copied in self._copied.values() for at in copied.times if self.upper <= at < time]
        return min(times, default=None)


BACK_US_MIN = 1_000_000  # Clocks of several processors and processes differ by less.


def make_moments_target(name: str, source: str) -> Target:
    """Return the collection that maps moments to times of a source."""
    comment = f"at which moment each time of {source} was"
    return Target(name, {MOMENT: MOMENT_TYPE, TIME: pa.int64()}, {}, False, None, comment)


class Moments:
    """Makes the rows that map moments to times, so that moments never decrease."""

    def __init__(self, collection: Collection) -> None:
        self._name = collection.name
        self._last_us = -1
        if collection.upper.time:
            with collection.snapshot(columns=[MOMENT], where=pc.field(TIME) >= collection.upper.time - 1) as snapshot:
                self._last_us = max(snapshot.to_arrow()[MOMENT].cast(pa.int64()).to_pylist(), default=-1)

    def change(self, moments: Sequence[tuple[int, int]]) -> Change:
        """Return the rows for ascending pairs of time and moment in µs since 1970."""
        times, source_us = np.array(moments, np.int64).T
        moments_us = np.maximum.accumulate(source_us.clip(min=self._last_us + 1))
        back_us = int((moments_us - source_us).max())
        if back_us >= BACK_US_MIN:
            at = int((moments_us - source_us).argmax())
            to_text = Timeline("us").to_text
            logger.warning(
                "%s: the clock of the source ran back by %.1f s: time %d is of %s, and counts as of %s",
                self._name, back_us / 1e6, times[at], to_text(int(source_us[at])), to_text(int(moments_us[at])),
            )  # fmt: skip
        self._last_us = int(moments_us[-1])
        rows = {MOMENT: make_int64_array(moments_us).cast(MOMENT_TYPE), TIME: make_int64_array(times)}
        rows["_time"] = rows[TIME]
        rows["_diff"] = make_int64_array(np.ones(len(times), np.int64))
        return Change(self._name, pa.table(rows))
