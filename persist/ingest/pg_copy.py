"""The first contents of tables of Postgres, each run as of the consistent point of a replication slot.

The very first run makes the slot from which changes are read later. Any other run makes a slot that ends with it. Rows
get the position before that point as their time, because a transaction may be at the point itself.
"""

import os
import secrets
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any

import pyarrow as pa

from persist.errors import InvalidUsage, Unavailable
from persist.ingest.copied import Point
from persist.ingest.pg_address import one_line
from persist.ingest.pg_database import CLOCK_US, Database, Published
from persist.ingest.pg_types import typed
from persist.ingest.pgoutput import lsn_of

SLOT_CHARS_MAX = 63


class SlotInUse(Unavailable):
    """Somebody else reads from the replication slot."""


class PgCopy:
    """What a copy asks of a database."""

    def __init__(self, database: Database, tables: Mapping[str, Published], slot: str) -> None:
        self._database = database
        self._tables = tables
        self._slot = slot

    def key(self, table: str) -> Sequence[str]:
        """Return the columns that are the key of a table."""
        return self._tables[table].key

    @contextmanager
    def point(self, *, is_new: bool) -> Iterator[Point]:
        """Hold the point of a slot, and read as of it."""
        with closing(self._database.connected(replication=True)) as replication:
            time, snapshot = self._slot_made(replication, is_new=is_new)
            with closing(self._database.connected()) as connection:
                connection.set_session(isolation_level="REPEATABLE READ", readonly=True)
                with connection.cursor() as cursor:
                    cursor.execute("SET TRANSACTION SNAPSHOT %s", (snapshot,))
                    cursor.execute(f"SELECT {CLOCK_US}")
                    [now_us] = cursor.fetchone()
                yield Point(time, now_us, connection)

    def pieces(self, point: Point, table: str, after: list[str] | None) -> Iterator[tuple[pa.Table, list[str]]]:
        """Yield the rows of a table in pieces, in the order of its key, and the last key of each."""
        yield from self._pieces(point.reading, self._tables[table], after)

    def _slot_made(self, replication: Any, *, is_new: bool) -> tuple[int, str]:
        """Make the slot of this run; return the time of its rows, and the name of the snapshot of the server."""
        library = self._database.library
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
