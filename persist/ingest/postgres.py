"""Postgres, by logical replication: each transaction is a time, the position of its commit in the server's log.

The first contents are those at the point at which the replication slot was made. Then come transactions. `upper` is
where to go on, and the server is told only what is durable. Tables with a key become keyed collections. Tables without
one, which send their old rows (REPLICA IDENTITY FULL), become collections that count equal rows.
"""

import json
import logging
import os
import re
import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa

from persist.blob import Backoff
from persist.client import Client
from persist.codecs import int64_array
from persist.errors import InvalidUsage
from persist.ingest.pg_address import one_line
from persist.ingest.pg_database import Database, PostgresConfig, Published
from persist.ingest.pg_stream import CLOCK_US, COLUMNS, SlotInUse, Stream
from persist.ingest.pg_types import typed
from persist.ingest.pgoutput import lsn_of
from persist.ingest.source import SOURCE, Batch, Change, Run, Target

logger = logging.getLogger(__name__)
RETRY_S = 600.0
COPY_BYTES = 8 << 20
SLOT_CHARS_MAX = 63


class Postgres:
    """A source of a publication's tables."""

    def __init__(self, config: PostgresConfig) -> None:
        self._database = Database(config)
        self.config = config
        self.name = self._database.name
        self._tables: dict[str, Published] = {}
        self._slot = config.slot or ""
        self.moments = f"{config.prefix}{config.slot or config.publication}.transactions"

    def targets(self, client: Client) -> Sequence[Target]:
        """Return a collection for each table. What a copy that did not come to its end has left is dropped."""
        connection = self._database.connected()
        try:
            self._tables = {self._collection_of(table): table for table in self._database.published(connection)}
        finally:
            connection.close()
        for name in self._tables:
            if name in client and client.load(name).upper.time == 0:
                collection = client.load(name)
                if collection.about.properties.get(SOURCE) == self.name:
                    collection.drop().result()
        return [self._target(name, table) for name, table in self._tables.items()]

    def batches(self, run: Run) -> Generator[Batch]:
        """Yield the first contents if nothing is there, and then transactions. A lost connection is made anew."""
        self._slot = self._slot or self._slot_of(run)
        tries: Backoff | None = None
        while not run.stop.is_set():
            try:
                if not any(run.uppers.values()):
                    yield from self._copied(run)
                for batch in Stream(self._database, self._tables, self._slot, run).batches():
                    yield batch
                    tries = None
                return
            except (self._database.library.OperationalError, self._database.library.InterfaceError, SlotInUse) as error:
                problem = error if isinstance(error, SlotInUse) else self._database.unavailable(error)
                if not any(run.uppers.values()) or (run.once and problem is not error):
                    raise problem from None
                tries = tries or Backoff(run.client.engine.clock, RETRY_S, first_s=0.2, bound_max_s=5.0)
                if not tries.wait():
                    raise problem from None
                logger.warning("%s; it is tried again", problem)
            except self._database.library.Error as error:
                raise InvalidUsage(f"{self.name} refuses: {one_line(error)}") from None

    def close(self) -> None:
        """Do nothing: connections are closed where they are made."""

    def _collection_of(self, table: Published) -> str:
        return self.config.prefix + table.full_name

    def _target(self, name: str, table: Published) -> Target:
        types = self._database.types(table.full_name, table.columns)
        key = {column: types.pop(column) for column in table.key}
        properties = {SOURCE: self.name, COLUMNS: json.dumps(dict(table.numbers))}
        return Target(name, key, types, bool(key), None, f"the table {table.full_name}", properties)

    def _slot_of(self, run: Run) -> str:
        location = run.client.engine.follower.state.location
        assert location is not None, "its collections are there"
        name = f"persist_{location[:12]}_{self.config.publication}".lower()
        return re.sub(r"[^a-z0-9_]", "_", name)[:SLOT_CHARS_MAX]

    def _copied(self, run: Run) -> Iterator[Batch]:
        """Make the slot, and yield the contents of all tables at its point; the last batch seals them."""
        replication = self._database.connected(replication=True)
        try:
            with replication.cursor() as cursor:
                if self.config.slot is None:  # It is of this location alone: a copy that was killed has left it.
                    with suppress(self._database.library.ProgrammingError):
                        cursor.drop_replication_slot(self._slot)
                try:
                    cursor.execute(f'CREATE_REPLICATION_SLOT "{self._slot}" LOGICAL pgoutput')
                except self._database.library.Error as error:
                    raise InvalidUsage(
                        f"{self.name}: the slot {self._slot!r} cannot be made: {one_line(error)}. The server needs "
                        "wal_level = logical, a free slot (max_replication_slots), and a user with REPLICATION; a slot "
                        "of that name that nobody needs is dropped by SELECT pg_drop_replication_slot(…)"
                    ) from None
                _, point, snapshot, _ = cursor.fetchone()
            at = lsn_of(point)
            connection = self._database.connected()
            try:
                connection.set_session(isolation_level="REPEATABLE READ", readonly=True)
                with connection.cursor() as cursor:
                    cursor.execute("SET TRANSACTION SNAPSHOT %s", (snapshot,))
                    cursor.execute(f"SELECT {CLOCK_US}")
                    [now_us] = cursor.fetchone()
                for name, table in self._tables.items():
                    for rows in self._rows_of(connection, table):
                        yield Batch([Change(name, _stamped(rows, at, table.key), None)], None, rows.num_rows)
            finally:
                connection.close()
        finally:
            replication.close()
        yield Batch((), at + 1, 0, [(at, now_us)])

    def _rows_of(self, connection: Any, table: Published) -> Iterator[pa.Table]:
        """Yield the rows of a table in pieces, as COPY gives them."""
        import pyarrow.csv as pa_csv
        from psycopg2 import sql

        columns, types = (
            self._database.kept(table.full_name, table.columns),
            self._database.types(table.full_name, table.columns),
        )
        names = sql.SQL(", ").join(sql.Identifier(column.name) for column in columns)
        query = sql.SQL("SELECT {} FROM {}").format(names, sql.Identifier(table.schema, table.name))
        if table.filter is not None:
            query += sql.SQL(f" WHERE {table.filter}")
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
                yield from self._typed_blocks(table, source, [column.name for column in columns], types, pa_csv)
        finally:
            sender.join()
        if problems:
            raise problems[0]

    def _typed_blocks(
        self, table: Published, source: Any, names: list[str], types: Mapping[str, pa.DataType], pa_csv: Any
    ) -> Iterator[pa.Table]:
        options = (
            pa_csv.ReadOptions(use_threads=False, block_size=COPY_BYTES, column_names=names),
            pa_csv.ParseOptions(newlines_in_values=True),
            pa_csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()),
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
        first = source.peek(1)
        if first:
            for batch in pa_csv.open_csv(source, *options):
                yield pa.table({name: typed(batch[name], types[name], f"{table.full_name}.{name}") for name in names})


def _stamped(rows: pa.Table, time: int, key: list[str]) -> pa.Table:
    """Return rows as events or updates at a time."""
    stamped = rows.append_column("_time", int64_array(np.full(len(rows), time, np.int64)))
    return stamped if key else stamped.append_column("_diff", int64_array(np.ones(len(rows), np.int64)))
