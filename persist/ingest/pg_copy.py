"""The first contents of tables, in pieces. A copy that was cut off goes on where it was.

A run of a copy reads the server exactly as of one point of its log, that of a replication slot. The very first run
makes the slot from which changes are read later. Any other run makes a slot that ends with it. Rows get the position
before that point as their time, because a transaction may be at the point itself. A table with a key is read in the
order of its key. The commit of a piece says in a property of the collection which key came last, so the next run goes
on behind it, at a later point. A table without a key is copied in one run; if that is cut off, its collection is
dropped, and copied anew.

Why that is exact from `reached` on, the time of the last run: a row is set to what it was at the point of its run, and
the changes after that point take it from there. What earlier changes made of it is overwritten then. At times before
`reached`, contents would be a mixture of points, so `since` is moved there if there were several. Changes before
`begin`, the time of the first run, are in the copy, and passed over.
"""

import os
import secrets
import threading
from collections.abc import Generator, Iterator, Mapping
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from persist.codecs import int64_array
from persist.collection import Collection
from persist.errors import InvalidUsage, Unavailable
from persist.ingest.pg_address import one_line
from persist.ingest.pg_database import CLOCK_US, Database, Published
from persist.ingest.pg_types import typed
from persist.ingest.pgoutput import lsn_of
from persist.ingest.source import Batch, Change, Run

PROPERTY = "ingest.copy"
SLOT_CHARS_MAX = 63


class SlotInUse(Unavailable):
    """Somebody else reads from the replication slot."""


class Copied(msgspec.Struct, frozen=True):
    """How far the copy of a table has come.

    Attributes:
        times: of the rows of each of its runs.
        begin_us: the moment of its first run, in µs since 1970.
        after: the last key that was copied, as Postgres writes it; None for none.
        is_done: whether all rows were copied.
    """

    times: list[int]
    begin_us: int
    after: list[str] | None = None
    is_done: bool = False

    @property
    def begin(self) -> int:
        """The time of its first run."""
        return self.times[0]

    @property
    def reached(self) -> int:
        """The time of its last run."""
        return self.times[-1]

    @classmethod
    def of(cls, collection: Collection) -> "Copied | None":
        """Return what a collection says of its copy; None if that did not begin."""
        text = collection.about.properties.get(PROPERTY)
        return None if text is None else msgspec.json.decode(text, type=cls)

    def said(self) -> dict[str, str]:
        """Return what the collection is to say."""
        return {PROPERTY: msgspec.json.encode(self).decode()}


class Copy:
    """Copies the tables whose collections are not sealed yet, and seals those to where the others are."""

    def __init__(self, database: Database, tables: Mapping[str, Published], slot: str, run: Run) -> None:
        self._database = database
        self._tables = tables
        self._slot = slot
        self._run = run
        self._wanted = [name for name in tables if not run.uppers[name]]
        self._copied = {name: Copied.of(run.collections[name]) for name in self._wanted}
        self._is_first = len(self._wanted) == len(tables)

    def batches(self) -> Generator[Batch]:
        """Yield the rows of all tables that are to be copied; the last batch seals their collections."""
        if not all(known is not None and known.is_done for known in self._copied.values()):
            yield from self._rows()
        copies = [known for known in self._copied.values() if known is not None]
        if self._is_first:
            first = min(copies, key=lambda known: known.begin)
            upper, moments = first.begin + 1, [(first.begin, first.begin_us)]
        else:
            upper, moments = max(self._run.uppers.values()), []
        since = {name: known.reached for name, known in self._copied.items() if known and known.reached >= upper}
        yield Batch((), upper, 0, moments, since=since)

    def _rows(self) -> Iterator[Batch]:
        replication = self._database.connected(replication=True)
        try:
            time, snapshot = self._slot_made(replication)
            connection = self._database.connected()
            try:
                connection.set_session(isolation_level="REPEATABLE READ", readonly=True)
                with connection.cursor() as cursor:
                    cursor.execute("SET TRANSACTION SNAPSHOT %s", (snapshot,))
                    cursor.execute(f"SELECT {CLOCK_US}")
                    [now_us] = cursor.fetchone()
                for name in self._wanted:
                    yield from self._table(connection, name, time, now_us)
            finally:
                connection.close()
        finally:
            replication.close()

    def _table(self, connection: Any, name: str, time: int, now_us: int) -> Iterator[Batch]:
        """Yield the rows of a table that were not copied yet."""
        table, known = self._tables[name], self._copied[name]
        if known is not None and known.is_done:
            return
        if known is not None and not table.key:
            raise Unavailable(
                f"the copy of {table.full_name} was cut off. It has no key by which it could go on, so it begins "
                "anew when the same command is given again"
            )
        known = known or Copied([], now_us)
        known = msgspec.structs.replace(known, times=[*known.times, time])
        for rows, last in self._pieces(connection, table, known.after):
            known = msgspec.structs.replace(known, after=last if table.key else None)
            self._copied[name] = known
            changes = [Change(name, _stamped(rows, time, table.key))]
            yield Batch(changes, None, rows.num_rows, properties={name: known.said()})
        known = msgspec.structs.replace(known, is_done=True)
        self._copied[name] = known
        yield Batch((), None, properties={name: known.said()})

    def _slot_made(self, replication: Any) -> tuple[int, str]:
        """Make the slot of this run; return the time of its rows, and the name of the snapshot of the server."""
        library, is_new = self._database.library, self._is_first and not any(self._copied.values())
        name = self._slot if is_new else f"{self._slot[: SLOT_CHARS_MAX - 9]}_{secrets.token_hex(4)}"
        with replication.cursor() as cursor:
            if is_new and self._database.config.slot is None:  # It is of this location alone: what was killed left it.
                with suppress(library.ProgrammingError):
                    try:
                        cursor.drop_replication_slot(name)
                    except library.errors.ObjectInUse as error:
                        raise SlotInUse(f"{self._database.name}: {one_line(error)}") from None
            try:
                cursor.execute(f'CREATE_REPLICATION_SLOT "{name}" {"" if is_new else "TEMPORARY"} LOGICAL pgoutput')
            except library.Error as error:
                raise InvalidUsage(
                    f"{self._database.name}: the slot {name!r} cannot be made: {one_line(error)}. The server needs "
                    "wal_level = logical, a free slot (max_replication_slots), and a user with REPLICATION; a slot "
                    f"that nobody needs is dropped by SELECT pg_drop_replication_slot('{name}')"
                ) from None
            _, point, snapshot, _ = cursor.fetchone()
        return lsn_of(point) - 1, snapshot

    def _pieces(
        self, connection: Any, table: Published, after: list[str] | None
    ) -> Iterator[tuple[pa.Table, list[str]]]:
        """Yield the rows of a table in pieces, in the order of its key, and the last key of each."""
        from psycopg2 import sql

        columns = self._database.kept(table.full_name, table.columns)
        names = sql.SQL(", ").join(sql.Identifier(column.name) for column in columns)
        query = sql.SQL("SELECT {} FROM {}").format(names, sql.Identifier(table.schema, table.name))
        key = sql.SQL(", ").join(map(sql.Identifier, table.key))
        conditions = [] if table.filter is None else [sql.SQL(f"({table.filter})")]
        if after is not None:
            values = sql.SQL(", ").join(map(sql.Literal, after))
            conditions.append(sql.SQL("ROW({}) > ROW({})").format(key, values))
        if conditions:
            query += sql.SQL(" WHERE ") + sql.SQL(" AND ").join(conditions)
        if table.key:
            query += sql.SQL(" ORDER BY ") + key
        copy = (sql.SQL("COPY (") + query + sql.SQL(") TO STDOUT (FORMAT csv)")).as_string(connection)
        read_end, write_end = os.pipe()
        problems: list[BaseException] = []

        def send() -> None:
            try:
                with os.fdopen(write_end, "wb") as out, connection.cursor() as cursor:
                    cursor.copy_expert(copy, out)
            except BaseException as error:  # It is raised where the rows are read.
                problems.append(error)

        sender = threading.Thread(target=send, name="persist-copy", daemon=True)
        sender.start()
        try:
            with os.fdopen(read_end, "rb") as source:
                yield from self._typed_blocks(table, source, [column.name for column in columns])
        finally:
            sender.join()
        if problems:
            raise problems[0]

    def _typed_blocks(self, table: Published, source: Any, names: list[str]) -> Iterator[tuple[pa.Table, list[str]]]:
        import pyarrow.csv as pa_csv

        types = self._database.types(table.full_name, table.columns)
        options = (
            pa_csv.ReadOptions(use_threads=False, block_size=self._database.config.copy_bytes, column_names=names),
            pa_csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),  # Such a line is a row of one NULL.
            pa_csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()),
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
        if not source.peek(1):
            return
        try:
            for batch in pa_csv.open_csv(source, *options):
                if len(batch):
                    last = [batch[name][len(batch) - 1].as_py() for name in table.key]
                    columns = {name: typed(batch[name], types[name], f"{table.full_name}.{name}") for name in names}
                    yield pa.table(columns), last
        except pa.ArrowInvalid as error:
            raise InvalidUsage(
                f"the copy of the table {table.full_name} cannot be read: {one_line(error)}. A row of it may be larger "
                f"than copy_bytes = {options[0].block_size}: say a larger one"
            ) from None


def _stamped(rows: pa.Table, time: int, key: list[str]) -> pa.Table:
    """Return rows as events or updates at a time."""
    stamped = rows.append_column("_time", int64_array(np.full(len(rows), time, np.int64)))
    return stamped if key else stamped.append_column("_diff", int64_array(np.ones(len(rows), np.int64)))
