"""MySQL and MariaDB, by the server's log: each transaction is a time.

A transaction has the same time on all servers of a group. The initial copy is a consistent snapshot. Transactions
follow, by their GTIDs. Commits that seal store the position in the log as a property of the collection of moments.
Tables with a primary key become keyed collections, and others become collections that count equal rows, because the log
has whole old rows.
"""

import logging
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import date, datetime, timedelta
from typing import Any

import pyarrow as pa

from persist.api.client import Client
from persist.connect.ingest.mysql.binlog import STEP, parse_gtids
from persist.connect.ingest.mysql.server import PADDED, Column, MysqlConfig, Server, to_column, to_text
from persist.connect.ingest.mysql.stream import BinlogPosition, BinlogStream
from persist.connect.ingest.source import Batch, Run, Source, Target
from persist.connect.ingest.table_copy import Copy, Point, drop_unfinished
from persist.core.errors import InvalidUsage, Unavailable

logger = logging.getLogger(__name__)
MEASURE_MAX = 1 << 42


class Mysql(Source):
    """A source of the tables of a database."""

    def __init__(self, config: MysqlConfig) -> None:
        self._server = Server(config)
        self.config = config
        self.name = self._server.name
        self.moments: str = f"{config.prefix}{self._server.schema}.transactions"
        self._tables: dict[str, list[Column]] = {}

    def targets(self, client: Client) -> Sequence[Target]:
        """Return a collection for each table. Collections of copies that cannot continue are dropped."""
        with closing(self._server.open_connection()) as connection:
            self._server.check(connection)
            self._tables = self._server.tables(connection)
        targets = [self._make_target(table, columns) for table, columns in self._tables.items()]
        for target in targets:
            drop_unfinished(self, client, target)
        return targets

    def batches(self, run: Run) -> Generator[Batch]:
        """Yield copied contents, then transactions. A lost connection is opened again."""
        names = [self.config.prefix + table for table in self._tables]
        try:
            if not all(run.uppers[name] for name in names):
                for batch in Copy(MysqlCopy(self._server, self._tables, self.moments), names, run).batches():
                    yield batch
                    if run.stop.is_set():
                        return
            yield from BinlogStream(self._server, self._tables, run, self.moments).batches()
        except (self._server.library.Error, OSError, EOFError, Unavailable) as error:
            raise self._server.make_error(error) from None

    def _make_target(self, table: str, columns: Sequence[Column]) -> Target:
        """Return the collection for a table, with its columns and key."""
        types = {column.name: column.type for column in columns}
        key = {column.name: types.pop(column.name) for column in columns if column.is_key}
        return Target(self.config.prefix + table, key, types, bool(key), None, f"the table {table}")


class MysqlCopy:
    """The queries by which tables of MySQL are copied."""

    def __init__(self, server: Server, tables: dict[str, list[Column]], moments: str) -> None:
        self._server = server
        self._tables = {server.config.prefix + table: (table, columns) for table, columns in tables.items()}
        self._moments = moments

    def find_key(self, table: str) -> Sequence[str]:
        """Return the key columns of a table."""
        return [column.name for column in self._tables[table][1] if column.is_key]

    @contextmanager
    def open_point(self, *, is_new: bool) -> Iterator[Point]:
        """Open a snapshot whose set of transactions is known."""
        from pymysql.cursors import SSCursor

        server = self._server
        with closing(server.open_connection(cursorclass=SSCursor)) as connection:
            cursor = server.library.cursors.Cursor(connection)
            isolation = "tx_isolation" if server.is_mariadb else "transaction_isolation"
            cursor.execute(
                f"SET SESSION time_zone = '+00:00', net_write_timeout = 3600, sql_mode = '', "
                f"{isolation} = 'REPEATABLE-READ'"
            )
            gtids = parse_gtids(self._begin_snapshot(cursor), is_mariadb=server.is_mariadb)
            if gtids.measure > MEASURE_MAX:
                raise InvalidUsage(
                    f"{server.name} has numbered its transactions up to {gtids}: times cannot count so far"
                )
            cursor.execute("SELECT CAST(unix_timestamp(now(6)) * 1000000 AS SIGNED)")
            [now_us] = cursor.fetchone()
            at = {self._moments: BinlogPosition(str(gtids)).to_properties()}
            yield Point(gtids.measure * STEP, now_us - 1_000_000, connection, at)

    def _begin_snapshot(self, cursor: Any) -> str:
        """Begin a consistent snapshot; return its set of transactions."""
        begin = "START TRANSACTION WITH CONSISTENT SNAPSHOT"
        if self._server.is_mariadb:
            cursor.execute(begin)
            cursor.execute("SHOW STATUS LIKE 'binlog_snapshot_%'")
            status = {name.lower(): value for name, value in cursor.fetchall()}
            cursor.execute(
                "SELECT binlog_gtid_pos(%s, %s)",
                (status["binlog_snapshot_file"], int(status["binlog_snapshot_position"])),
            )
            return cursor.fetchone()[0] or ""
        cursor.execute("FLUSH TABLES WITH READ LOCK")  # For as long as it takes to look: it needs RELOAD.
        try:
            cursor.execute(begin)
            cursor.execute("SELECT @@global.gtid_executed")
            return cursor.fetchone()[0] or ""
        finally:
            cursor.execute("UNLOCK TABLES")

    def read_pieces(self, point: Point, table: str, after: list[str] | None) -> Iterator[tuple[pa.Table, list[str]]]:
        """Yield pieces of a table in key order, with the last key of each."""
        name, columns = self._tables[table]
        connection = point.reading
        key = ", ".join(_order_expression(column) for column in columns if column.is_key)
        query = f"SELECT {', '.join(map(_select_expression, columns))} FROM {_quote_name(name)}"
        if after is not None:
            query += f" WHERE ({key}) > ({', '.join(after)})"
        if key:
            query += f" ORDER BY {key}"
        with closing(connection.cursor()) as cursor:
            cursor.execute(query)
            while rows := cursor.fetchmany(self._server.config.copy_rows):
                arrays = {
                    column.name: to_column([*values], column.type, f"{name}.{column.name}")
                    for column, values in zip(columns, zip(*rows, strict=True), strict=True)
                }
                last = dict(zip((column.name for column in columns), rows[-1], strict=True))
                yield (
                    pa.table(arrays),
                    [_quote_literal(connection, last[key_column]) for key_column in self.find_key(table)],
                )


def _quote_name(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _order_expression(column: Column) -> str:
    """Return a key column as an ORDER BY expression. Enums and sets are compared as text."""
    name = _quote_name(column.name)
    return f"CONVERT({name} USING utf8mb4) COLLATE utf8mb4_bin" if column.kind in ("enum", "set") else name


def _select_expression(column: Column) -> str:
    """Return a column as a SELECT expression that loses nothing."""
    name = _quote_name(column.name)
    if column.kind == "float":
        return f"{name} + 0e0"  # As a double, because a float is written with six digits.
    return f"CAST({name} AS BINARY)" if column.kind in PADDED - {"binary"} else name


def _quote_literal(connection: Any, value: Any) -> str:
    """Return a value as an SQL literal."""
    if isinstance(value, bytes):
        return f"X'{value.hex()}'" if value else "''"
    if isinstance(value, (date, datetime, timedelta)):
        return f"'{to_text(value)}'"
    return str(connection.escape(value))
