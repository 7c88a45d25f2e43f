"""A source that reads Postgres by logical replication: the time of a transaction is its commit's position in the log.

Collections begin with a copy of the tables, as of the point at which the replication slot was made. Then come
transactions. `upper` is the position to continue at; the server learns it once the rows before it are durable. Tables
with a key become keyed collections. Tables without one, which send their old rows (REPLICA IDENTITY FULL), become
collections that count equal rows.

Copies are as of the consistent point of a slot. The very first run makes the slot from which changes are read later.
Any other run makes a temporary slot. Rows get the position before that point as their time, because a
transaction may be at the point itself.
"""

import json
import logging
import os
import re
import secrets
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from persist.api.client import Client
from persist.connect.ingest.postgres.database import (
    CLOCK_US,
    Database,
    PostgresConfig,
    PublishedTable,
    SlotInUse,
    to_line,
)
from persist.connect.ingest.postgres.pgoutput import parse_lsn
from persist.connect.ingest.postgres.stream import COLUMNS, Stream
from persist.connect.ingest.postgres.types import Attributes, parse_texts
from persist.connect.ingest.source import SOURCE, Batch, Run, Source, Target, advise_copy
from persist.connect.ingest.table_copy import Copy, Point, drop_unfinished
from persist.core.errors import InvalidUsage, Unavailable

logger = logging.getLogger(__name__)
UNDEFINED = "42704"  # A code of the server.


class Postgres(Source):
    """A source of a publication's tables."""

    def __init__(self, config: PostgresConfig) -> None:
        self._database = Database(config)
        self.config = config
        self.name = self._database.name
        self._tables: dict[str, PublishedTable] = {}
        self._slot = config.slot or ""
        self.moments: str = f"{config.prefix}{config.slot or config.publication}.transactions"

    def targets(self, client: Client) -> Sequence[Target]:
        """Return a collection for each table. Collections of copies that cannot continue are dropped."""
        connection = self._database.open_connection()
        try:
            self._tables = {
                self.config.prefix + table.full_name: table for table in self._database.load_published(connection)
            }
        finally:
            connection.close()
        targets = [self._make_target(name, table) for name, table in self._tables.items()]
        for target in targets:
            drop_unfinished(self, client, target)
        return targets

    def batches(self, run: Run) -> Generator[Batch]:
        """Yield batches of the copied tables, then of transactions. A lost connection is opened again."""
        self._slot = self._slot or self._make_slot_name(run)
        try:
            if not all(run.uppers[name] for name in self._tables):
                server = PostgresCopy(self._database, self._tables, self._slot, lambda: self._claim_slot(run))
                for batch in Copy(server, [*self._tables], run).batches():
                    yield batch
                    if run.stop.is_set():
                        return
            yield from Stream(self._database, self._tables, self._slot, run).batches()
        except (self._database.library.Error, Unavailable) as error:
            if getattr(error, "pgcode", None) == UNDEFINED and "publication" in str(error):
                raise InvalidUsage(
                    f"{self.name}: the publication was made anew, and changes of before that cannot be read: "
                    f"{to_line(error)}. {advise_copy(run.collections)}"
                ) from None
            if not self._database.is_lost(error):
                raise InvalidUsage(f"{self.name} refuses: {to_line(error)}") from None
            raise (error if isinstance(error, Unavailable) else self._database.make_unavailable(error)) from None

    def _make_target(self, name: str, table: PublishedTable) -> Target:
        """Return the collection for a table, with its columns and key."""
        pg_types = self._database.find_types(table.full_name, table.columns, table.key)
        types = {column: type_.kind for column, type_ in pg_types.items()}
        key = {column: types.pop(column) for column in table.key}
        attributes = Attributes().follow(pg_types.values(), is_copy=True)
        properties = {COLUMNS: json.dumps(dict(table.numbers)), **attributes.to_properties()}
        return Target(name, key, types, bool(key), None, f"the table {table.full_name}", properties)

    def _make_slot_name(self, run: Run) -> str:
        """Return the slot's default name, from the location and the publication."""
        location = run.client.engine.follower.state.location
        assert location is not None, "its collections are there"
        name = f"persist_{location[:12]}_{self.config.publication}".lower()
        return re.sub(r"[^a-z0-9_]", "_", name)[:SLOT_CHARS_MAX]

    def _claim_slot(self, run: Run) -> None:
        """Store on a collection that this location owns the slot, before creating it.

        If the process is killed after that, a later process knows that it may drop the slot.
        """
        if self.config.slot is None:  # Its name has the location in it.
            return
        for name in run.client.collections():
            properties = run.client.load(name).about.properties
            if (properties.get(SOURCE), properties.get(SLOT)) == (self.name, self._slot):
                return
        with closing(self._database.open_connection()) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT 1 FROM pg_replication_slots WHERE slot_name = %s", (self._slot,))
            if cursor.fetchone() is not None:
                raise InvalidUsage(
                    f"{self.name}: the slot {self._slot!r} is there, and this location has not made it. Choose another "
                    "slot, or, if you do not need the changes that it keeps, say "
                    f"SELECT pg_drop_replication_slot('{self._slot}')"
                )
        run.collections[self.moments].describe(properties={SLOT: self._slot}).result()


SLOT_CHARS_MAX = 63
SLOT = "ingest.slot"  # A property of the collection of moments: the slot that the location has made, if it has a name.


@dataclass(frozen=True, slots=True)
class PostgresCopy:
    """The queries by which tables of Postgres are copied."""

    database: Database
    tables: Mapping[str, PublishedTable]
    slot: str
    claim: Callable[[], None]

    def find_key(self, table: str) -> Sequence[str]:
        """Return the key columns of a table."""
        return self.tables[table].key

    @contextmanager
    def open_point(self, *, is_new: bool) -> Iterator[Point]:
        """Open a snapshot at the position of a replication slot."""
        with closing(self.database.open_connection(replication=True)) as replication:
            time, snapshot = self._create_slot(replication, is_new=is_new)
            with closing(self.database.open_connection()) as connection:
                connection.set_session(isolation_level="REPEATABLE READ", readonly=True)
                with connection.cursor() as cursor:
                    cursor.execute("SET TRANSACTION SNAPSHOT %s", (snapshot,))
                    cursor.execute(f"SELECT {CLOCK_US}")
                    [now_us] = cursor.fetchone()
                yield Point(time, now_us, connection)

    def read_pieces(self, point: Point, table: str, after: list[str] | None) -> Iterator[tuple[pa.Table, list[str]]]:
        """Yield pieces of a table in key order, with the last key of each."""
        from psycopg2 import sql

        published = self.tables[table]
        columns = self.database.select_columns(published.full_name, published.columns)
        names = sql.SQL(", ").join(sql.Identifier(column.name) for column in columns)
        query = sql.SQL("SELECT {} FROM {}").format(names, sql.Identifier(published.schema, published.name))
        key = sql.SQL(", ").join(map(sql.Identifier, published.key))
        conditions = [] if published.filter is None else [sql.SQL(f"({published.filter})")]
        if after is not None:
            types = [self.database.types.make_type(c.type, c.modifier) for c in published.columns if c.is_key]
            names_by_type = self.database.types.names
            values = sql.SQL(", ").join(
                sql.Literal(text) + sql.SQL("::" + names_by_type[type_.oid] if type_.attributes else "")
                for text, type_ in zip(after, types, strict=True)
            )
            conditions.append(sql.SQL("ROW({}) > ROW({})").format(key, values))
        if conditions:
            query += sql.SQL(" WHERE ") + sql.SQL(" AND ").join(conditions)
        if published.key:
            query += sql.SQL(" ORDER BY ") + key
        copy = (sql.SQL("COPY (") + query + sql.SQL(") TO STDOUT (FORMAT csv)")).as_string(point.reading)
        read_end, write_end = os.pipe()
        problems: list[BaseException] = []

        def send() -> None:
            try:
                with os.fdopen(write_end, "wb") as out, point.reading.cursor() as cursor:
                    cursor.copy_expert(copy, out)
            except BaseException as error:  # It is raised where the rows are read.
                problems.append(error)

        sender = threading.Thread(target=send, name="persist-copy", daemon=True)
        sender.start()
        try:
            with os.fdopen(read_end, "rb") as source:
                yield from self._parse_copy(published, source, [column.name for column in columns])
        finally:
            sender.join()
        if problems:
            raise problems[0]

    def _create_slot(self, replication: Any, *, is_new: bool) -> tuple[int, str]:
        """Create a slot; return the last time before it, and the name of the server's snapshot."""
        library = self.database.library
        name = self.slot if is_new else f"{self.slot[: SLOT_CHARS_MAX - 9]}_{secrets.token_hex(4)}"
        if is_new:
            self.claim()
        with replication.cursor() as cursor:
            if is_new:  # The slot is of this location alone: what was killed has left it.
                with suppress(library.ProgrammingError):
                    try:
                        cursor.drop_replication_slot(name)
                    except library.errors.ObjectInUse as error:
                        raise SlotInUse(f"{self.database.name}: {to_line(error)}") from None
            try:
                cursor.execute(f'CREATE_REPLICATION_SLOT "{name}" {"" if is_new else "TEMPORARY"} LOGICAL pgoutput')
            except library.Error as error:
                raise InvalidUsage(
                    f"{self.database.name}: the slot {name!r} cannot be made: {to_line(error)}. The server needs "
                    "wal_level = logical, a free slot (max_replication_slots), and a user with REPLICATION"
                ) from None
            _, point, snapshot, _ = cursor.fetchone()
        return parse_lsn(point) - 1, snapshot

    def _parse_copy(self, table: PublishedTable, source: Any, names: list[str]) -> Iterator[tuple[pa.Table, list[str]]]:
        """Yield the output of COPY as tables, with the last key of each."""
        import pyarrow.csv as pa_csv

        types = self.database.find_types(table.full_name, table.columns, table.key)
        attributes = Attributes().follow(types.values(), is_copy=True)
        layouts = {oid: [(*numbers.values(),)] for oid, numbers in attributes.numbers.items()}
        options = (
            pa_csv.ReadOptions(use_threads=False, block_size=self.database.config.copy_bytes, column_names=names),
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
                    if layouts and attributes.added != self._load_attributes(table).added:
                        raise InvalidUsage(
                            f"types of the table {table.full_name} got other attributes while it was copied: give the "
                            "same command again, and it is copied anew"
                        )
                    columns = {
                        name: parse_texts(batch[name], types[name], f"{table.full_name}.{name}", layouts)
                        for name in names
                    }
                    yield pa.table(columns), last
        except pa.ArrowInvalid as error:
            raise InvalidUsage(
                f"the copy of the table {table.full_name} cannot be read: {to_line(error)}. A row of it may be larger "
                f"than copy_bytes = {options[0].block_size}: say a larger one"
            ) from None

    def _load_attributes(self, table: PublishedTable) -> Attributes:
        """Return the attributes of composite types that values of the copy have."""
        with closing(self.database.open_connection()) as connection, connection.cursor() as cursor:
            types = self.database.load_types(cursor, table.full_name, table.columns, table.key)
        return Attributes().follow(types.values(), is_copy=True)
