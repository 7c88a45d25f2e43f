"""Reads the transactions in the log of MySQL or MariaDB, from the collections' position on.

A thread reads and decodes the log, some events ahead, so that a commit follows at once when there are no more events.
The server sends a heartbeat each second, which shows that all earlier times are complete.
"""

import logging
import queue
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from typing import Any

import pyarrow as pa

from persist.api.collection import Collection
from persist.connect.ingest.mysql.binlog import STEP, Effect, parse_effect, parse_gtids
from persist.connect.ingest.mysql.server import Column, Server, decode_logged_values, get_logged_type, to_column
from persist.connect.ingest.source import Batch, Run, StoredProperty, advise_copy
from persist.connect.ingest.table_rows import TableRows
from persist.connect.ingest.transactions import Transactions
from persist.core.errors import InvalidUsage

logger = logging.getLogger(__name__)
STATEMENT = "ingest.statement"  # A property of a collection: the time of the last statement that changed its columns.
AHEAD = 64  # Events of the log, each at most 8 KiB or a row.
SILENT_S = 30.0
WAITED_US = 100_000  # An event after so long a wait has just been sent; heartbeats come every second.
PREPARED, ALONE = 64, 1  # Flags of a transaction of MariaDB.


class BinlogPosition(StoredProperty, frozen=True):
    """The ingested transactions, and the file and offset of the last one in the server's log."""

    NAME = "ingest.position"  # Of the collection of moments.

    gtids: str
    file: str = ""
    offset: int = 0


class BinlogStream:
    """Reads the transactions of some tables from the server's log, and turns them into batches."""

    def __init__(self, server: Server, tables: Mapping[str, Sequence[Column]], run: Run, moments: str) -> None:
        self._server = server
        self._run = run
        self._names = {(server.schema, table): f"{server.config.prefix}{table}" for table in tables}
        at = BinlogPosition.from_properties(run.collections[moments])
        if at is None:
            raise InvalidUsage(f"{moments!r} does not say how far {server.name} was read: {self._advise_copy()}")
        self._flow = Transactions(
            server.name,
            run,
            [*self._names.values()],
            server.config.batch_rows,
            self._count_bytes_behind,
            lambda: {moments: self._at.to_properties()},
            place=lambda time: f"transaction {self._gtid_of.get(time, time // STEP)}",
        )
        self._gtid_of: dict[int, str] = {}  # By times that are not committed here yet.
        self._at = at
        self._gtids = parse_gtids(at.gtids, is_mariadb=server.is_mariadb)
        if (self._flow.upper - 1) // STEP != self._gtids.measure:
            raise InvalidUsage(
                f"the collections of {server.name} are sealed to {self._flow.upper}, and it was read up to "
                f"{at.gtids!r}: another writer sealed them. {self._advise_copy()}"
            )
        self._relations: dict[int, tuple[Any, TableRows | None]] = {}
        self._logs: list[tuple[str, int]] = []  # Files of the log and their bytes, as of the beginning.
        self._links: list[Any] = []  # The library's connections.
        self._ahead_us = self._began_us = 0
        self._is_prepared = self._is_begun = self._is_touched = False  # State of the current transaction.

    def batches(self) -> Iterator[Batch]:
        """Yield transactions as they come; small ones share a batch."""
        with closing(self._server.open_connection()) as looking:
            target = self._check_position(looking)
        events: queue.Queue[Any] = queue.Queue(AHEAD)
        stream = self._open_binlog()
        ended = threading.Event()
        reader = threading.Thread(
            target=_read_events, args=(stream, events, ended, self._monotonic_us), name="persist-binlog", daemon=True
        )
        reader.start()
        try:
            yield from self._read_batches(events, target)
        finally:
            ended.set()
            while reader.is_alive():
                for link in self._links:
                    link.cut()
                reader.join(0.05)
            for link in self._links:
                link.forget()

    def _check_position(self, connection: Any) -> int:
        """Raise InvalidUsage if the next transaction is not in the log; return the server's measure."""
        server = self._server
        executed = server.load_executed(connection)
        if not executed.has(str(self._gtids)):
            raise InvalidUsage(
                f"{server.name} has {executed}, and {self._gtids} was taken in: it lost transactions, or is another "
                f"server that is behind. Wait until it has them, or read the server that has. {self._advise_copy()}"
            )
        with connection.cursor() as cursor:
            if not server.is_mariadb:
                cursor.execute("SELECT @@global.gtid_purged")
                if not self._gtids.has(cursor.fetchone()[0] or ""):
                    raise InvalidUsage(f"{server.name} has purged the log that comes next. {self._advise_copy()}")
            cursor.execute("SHOW BINARY LOGS")
            self._logs = [(row[0], row[1]) for row in cursor.fetchall()]
            cursor.execute("SELECT CAST(unix_timestamp(now(6)) * 1000000 AS SIGNED)")
            [self._began_us] = cursor.fetchone()
            self._ahead_us = self._began_us - self._monotonic_us()
        return executed.measure

    def _open_binlog(self) -> Any:
        """Return the library's reader of the log, from the next transaction on."""
        from pymysqlreplication import BinLogStreamReader

        return BinLogStreamReader(
            {**self._server.settings, "read_timeout": SILENT_S},
            server_id=random.SystemRandom().randrange(1 << 31, 1 << 32),
            auto_position=str(self._gtids),
            is_mariadb=self._server.is_mariadb,
            blocking=True,
            slave_heartbeat=1.0,
            filter_non_implemented_events=False,
            enable_logging=False,
            pymysql_wrapper=self._connect_for_library,
        )

    def _connect_for_library(self, *, db: str | None = None, **settings: Any) -> Any:
        """Connect for the library, which uses an older name for `database`.

        The library must not reconnect by itself, because it would begin again at its first position.
        """
        link = self._server.connect(database=db, **settings)
        self._links.append(link)
        return link

    def _read_batches(self, events: "queue.Queue[Any]", target: int) -> Iterator[Batch]:
        """Yield batches of logged events; with `once`, up to a measure of transactions."""
        run, flow, clock = self._run, self._flow, self._run.client.engine.clock
        last_s = clock.monotonic_s()
        while True:
            if not flow.is_inside:
                is_end = run.stop.is_set() or (run.once and self._gtids.measure >= target)
                if is_end:  # If it ends so early, nothing is known of what came since this began.
                    yield from self._seal_quiet_time(self._began_us if run.once else None)
                    return
                if events.empty() and not flow.is_empty:
                    yield flow.make_batch(flow.done)
            try:
                event = events.get(timeout=0.25)
            except queue.Empty:
                continue
            if isinstance(event, BaseException):
                if not isinstance(event, (self._server.library.Error, OSError, EOFError)):
                    raise event
                problem = self._server.make_error(event)
                raise InvalidUsage(f"{problem}. {self._advise_copy()}") if "taken in" in str(problem) else problem
            yield from self._process_event(event)
            is_due = clock.monotonic_s() - last_s >= self._server.config.heartbeat_s
            sent_us = event[4]
            if type(event[0]).__name__ == "HeartbeatLogEvent" and sent_us and is_due and not flow.is_inside:
                last_s = clock.monotonic_s()
                yield from self._seal_quiet_time(sent_us + self._ahead_us)

    def _seal_quiet_time(self, by_us: int | None) -> Iterator[Batch]:
        """Seal up to a second, the log's unit, before a quiet moment."""
        flow, self._logs = self._flow, []
        if by_us is not None and flow.done < (self._gtids.measure + 1) * STEP:
            flow.note_quiet_until(flow.done + 1, by_us - 1_000_000)
        if flow.done > flow.upper:
            yield flow.make_batch(flow.done)

    def _count_bytes_behind(self) -> int:
        """Return how many bytes of the log, as long as it was at the start, are unread."""
        later_sizes = [size for file, size in self._logs if file > self._at.file]
        return sum(later_sizes) + sum(
            max(0, size - self._at.offset) for file, size in self._logs if file == self._at.file
        )

    def _process_event(self, event: Any) -> Iterator[Batch]:
        """Process an event of the log; yield batches that it completes."""
        event, rows, file, offset, _ = event
        kind, flow = type(event).__name__, self._flow
        if kind in ("MariadbGtidEvent", "GtidEvent"):
            self._gtid = event.gtid
            after = parse_gtids(str(self._gtids), is_mariadb=self._server.is_mariadb)
            after.add(event.gtid)
            self._after = after
            self._is_touched = False
            self._is_prepared = bool(getattr(event, "flags", 0) & PREPARED)
            self._is_begun = self._server.is_mariadb and not event.flags & ALONE
            if flow.is_empty:
                self._gtid_of.clear()
            self._gtid_of[after.measure * STEP] = event.gtid
            yield from flow.begin(after.measure * STEP, event.timestamp * 1_000_000)
        elif kind == "TableMapEvent":
            yield from self._process_table_map(event)
        elif kind in ("WriteRowsEvent", "UpdateRowsEvent", "DeleteRowsEvent", "PartialUpdateRowsEvent"):
            yield from self._process_rows(event, rows)
        elif kind == "XidEvent":
            yield from self._commit_transaction(event, file, offset)
        elif kind in ("QueryEvent", "ExecuteLoadQueryEvent"):
            yield from self._process_query(event, file, offset)
        elif kind == "XAPrepareEvent":
            yield from self._commit_transaction(event, file, offset)
        elif kind == "NotImplementedEvent" and event.event_type in UNKNOWN:
            raise InvalidUsage(
                f"{self._server.name} has an event of type {event.event_type} in its log, which is not known: set "
                f"log_bin_compress or binlog_transaction_compression to OFF, and gtid_mode to ON. {self._advise_copy()}"
            )

    def _process_query(self, event: Any, file: str, offset: int) -> Iterator[Batch]:
        """Process a logged statement: DDL, BEGIN or COMMIT."""
        statement, schema = _as_text(event.query), _as_text(event.schema)
        self._is_begun, is_end = follow_transaction(statement, self._is_begun)
        effect = parse_effect(statement, schema, [*self._names])
        if effect.refused or (effect.is_gone and self._is_touched):
            raise InvalidUsage(
                f"{self._server.name}: a statement cannot be followed, because "
                f"{effect.refused or 'it undoes changes that are in the log'}: {statement[:100]!r}. "
                f"{self._advise_copy()}"
            )
        yield from self._apply_effect(effect)
        if is_end:
            yield from self._commit_transaction(event, file, offset)

    def _apply_effect(self, effect: Effect) -> Iterator[Batch]:
        """Truncate tables, or rename and drop columns, as a statement did."""
        flow = self._flow
        if flow.is_known:
            return
        if effect.emptied:
            yield from flow.truncate_tables(
                [self._get_table_rows(self._names[table], table[1]) for table in effect.emptied]
            )
        if effect.table is not None and (effect.renamed or effect.dropped):
            yield from flow.seal_earlier()
            collection = self._run.collections[self._names[effect.table]]
            if int(collection.about.properties.get(STATEMENT, -1)) < flow.time:
                names = {*collection.schema.names}
                renamed = {old: new for old, new in effect.renamed.items() if old in names}
                dropped = [name for name in effect.dropped if name in names]
                self._flow.evolve(collection, effect.table[1], self._mark(), rename=renamed, drop=dropped)

    def _mark(self) -> dict[str, str]:
        """Return the property that marks the effect of the current statement as applied."""
        return {STATEMENT: str(self._flow.time)}

    def _process_table_map(self, event: Any) -> Iterator[Batch]:
        """Note a table's columns; if they changed, commit earlier rows and evolve the collection."""
        name = self._names.get((event.schema, event.table))
        relation = self._relations.get(event.table_id)
        if name is None or self._flow.is_known or (relation is not None and relation[0] == _get_table_signature(event)):
            if name is None:
                self._relations[event.table_id] = (None, None)
            return
        exclude = {
            excluded.partition(".")[2]
            for excluded in self._server.config.exclude
            if excluded.startswith(f"{event.table}.")
        }
        if not event.optional_metadata.column_name_list:
            raise InvalidUsage(
                f"{self._server.name} has logged rows of {event.table} without the names of its columns, because "
                f"binlog_row_metadata was not FULL then. {self._advise_copy()}"
            )
        collection = self._run.collections[name]
        types: dict[str, pa.DataType] = {}
        for column in event.columns:
            if column.name not in exclude and (column.type == 247 and "" in column.enum_values[1:]):
                raise InvalidUsage(
                    f"the values of the ENUM {event.table}.{column.name} are not in UTF-8: exclude it, or convert it"
                )
            types[column.name] = get_logged_type(column)
        for excluded in (*exclude, *self._list_generated(event.table, types, collection)):
            types.pop(excluded, None)
        have = {field: collection.schema.arrow.field(field).type for field in collection.schema.names}
        if have != types:
            yield from self._flow.seal_earlier()
            self._follow_table(collection, event.table, have, types)
        key = [event.columns[at].name for at in event.optional_metadata.simple_primary_key_list]
        key += [event.columns[at].name for at in event.optional_metadata.primary_keys_with_prefix]
        if {*key} != {*(collection.schema.key_names if collection.handle.keyed else ())}:
            raise InvalidUsage(
                f"the table {event.table} has another primary key than it had when it was copied. {self._advise_copy()}"
            )
        self._relations[event.table_id] = (
            _get_table_signature(event),
            self._flow.open_rows(name, event.table, types, to_column),
        )

    def _list_generated(self, table: str, types: Mapping[str, Any], collection: Collection) -> list[str]:
        """Return the generated ones among columns that a collection does not have."""
        unknown = {name for name in types if name not in collection.schema.names}
        if not unknown:
            return []
        with closing(self._server.open_connection()) as connection, connection.cursor() as cursor:
            cursor.execute(
                "SELECT column_name FROM information_schema.columns WHERE table_schema = %s AND table_name = %s AND "
                "extra LIKE '%%GENERATED' AND extra <> 'DEFAULT_GENERATED'",
                (self._server.schema, table),
            )
            return [name for (name,) in cursor.fetchall() if name in unknown]

    def _follow_table(
        self, collection: Collection, table: str, have: Mapping[str, pa.DataType], types: Mapping[str, pa.DataType]
    ) -> None:
        """Add, drop and widen columns of a collection as its table did."""
        added = {name: kind for name, kind in types.items() if name not in have}
        defaults = {}
        if added:
            with closing(self._server.open_connection()) as connection:
                catalog_columns = {column.name: column for column in self._server.tables(connection).get(table, [])}
                with connection.cursor() as cursor:
                    for name, kind in added.items():
                        default = catalog_columns[name].default if name in catalog_columns else None
                        if default == "":
                            raise InvalidUsage(
                                f"the table {table} has the new column {name!r}, whose values in older rows are not "
                                f"in the log. {self._advise_copy()}"
                            )
                        if default is not None:
                            cursor.execute(f"SELECT {default}")
                            defaults[name] = _cast(cursor.fetchone()[0], kind, f"{table}.{name}")
        self._flow.evolve(
            collection,
            table,
            self._mark(),
            add=added,
            defaults=defaults,
            drop=[name for name in have if name not in types],
            widen={name: types[name] for name in have if name in types and types[name] != have[name]},
        )

    def _get_table_rows(self, name: str, table: str) -> TableRows:
        """Return the object that collects the changes of a table; make it at the first call."""
        schema = self._run.collections[name].schema
        types = {field: schema.arrow.field(field).type for field in schema.names}
        rows = self._flow.find_rows(name)
        return rows or self._flow.open_rows(name, table, types, to_column)

    def _process_rows(self, event: Any, decoded: list[tuple[list[Any] | None, list[Any] | None]]) -> Iterator[Batch]:
        """Add the rows of an event; yield batches that it completes."""
        _, rows = self._relations.get(event.table_id, (None, None))
        flow = self._flow
        if rows is None or flow.is_known:
            return
        if self._is_prepared:
            raise InvalidUsage(
                f"{self._server.name}: a transaction of XA changed {rows.table}. Its rows are logged before it is "
                f"known whether it is committed, so it cannot be followed. {self._advise_copy()}"
            )
        self._is_touched = True
        at = {column.name: place for place, column in enumerate(event.columns)}
        places = [at[name] for name in rows.names]
        if not _logs_all_columns(event, places):
            raise InvalidUsage(
                f"{self._server.name} has logged rows of {rows.table} without some of their columns, because "
                f"binlog_row_image of a session is not FULL. {self._advise_copy()}"
            )
        for old, new in decoded:
            flow.take(
                rows,
                None if old is None else [old[place] for place in places],
                None if new is None else [new[place] for place in places],
                is_key=False,
            )
            if flow.is_full:
                yield from flow.commit_piece()

    def _commit_transaction(self, event: Any, file: str, offset: int) -> Iterator[Batch]:
        """End the current transaction, and note its position in the log."""
        if self._flow.is_inside:
            self._flow.moment_us = event.timestamp * 1_000_000
            self._gtids = self._after
            self._at = BinlogPosition(str(self._gtids), file, offset)
            yield from self._flow.commit()

    def _monotonic_us(self) -> int:
        return int(self._run.client.engine.clock.monotonic_s() * 1e6)

    def _advise_copy(self) -> str:
        """Return the advice to copy all collections again."""
        return advise_copy(self._run.collections)


UNKNOWN = {34, 40, 41, *range(165, 172)}  # Without a GTID, compressed, or rows of older versions of the log.


def follow_transaction(statement: str, is_begun: bool) -> tuple[bool, bool]:
    """Return whether a transaction is open after a statement, and whether one ended."""
    words = [word.rstrip(";") for word in statement.upper().split()] or [""]
    if words[0] == "XA":
        is_end = words[1] in ("COMMIT", "ROLLBACK")  # After XA PREPARE: all of a transaction.
        return not is_end, is_end
    if words[0] == "BEGIN" or words[-2:] == ["START", "TRANSACTION"]:
        return True, False
    is_end = not is_begun or words[0] == "COMMIT" or (words[0] == "ROLLBACK" and "TO" not in words)
    return not is_end, is_end


def _read_events(
    stream: Any, events: "queue.Queue[Any]", ended: threading.Event, monotonic_us: Callable[[], int]
) -> None:
    """Decode the log into a queue of (event, rows, file, offset, sent_us), or an error.

    `sent_us` is None unless this thread waited for the event: otherwise it may have been sent long before.
    """
    try:
        while not ended.is_set():
            asked_us = monotonic_us()
            event = stream.fetchone()
            came_us = monotonic_us()
            if event is None:
                raise EOFError("the server ended the stream")
            rows = _decode_rows(event) if hasattr(event, "columns_present_bitmap") else None
            if type(event).__name__ == "ExecuteLoadQueryEvent":  # The library skips the statement of LOAD DATA.
                event.packet.advance(event.status_vars_length)
                event.schema = event.packet.read(event.schema_length)
                event.packet.advance(1)
                event.query = event.packet.read(event.event_size - 27 - event.status_vars_length - event.schema_length)
            sent_us = came_us if came_us - asked_us >= WAITED_US else None
            item = (event, rows, stream.log_file, stream.log_pos, sent_us)
            while not ended.is_set():
                with suppress(queue.Full):
                    events.put(item, timeout=0.25)
                    break
    except BaseException as error:  # It is raised where the events are taken.
        while not ended.is_set():
            with suppress(queue.Full):
                events.put(error, timeout=0.25)
                break


def _decode_rows(event: Any) -> list[tuple[list[Any] | None, list[Any] | None]]:
    """Return the (old, new) rows of a row event."""
    columns, kind = event.columns, type(event).__name__
    if columns and columns[0].name is None:
        return []
    if kind == "WriteRowsEvent":
        return [(None, decode_logged_values(columns, row["values"], row["none_sources"])) for row in event.rows]
    if kind == "DeleteRowsEvent":
        return [(decode_logged_values(columns, row["values"], row["none_sources"]), None) for row in event.rows]
    return [
        (
            decode_logged_values(columns, row["before_values"], row["before_none_sources"]),
            decode_logged_values(columns, row["after_values"], row["after_none_sources"]),
        )
        for row in event.rows
    ]


def _logs_all_columns(event: Any, places: Sequence[int]) -> bool:
    """Return whether an event has the columns at `places`, old and new: sessions may log fewer."""
    bitmaps = [event.columns_present_bitmap, getattr(event, "columns_present_bitmap2", None)]
    return all(bits[at // 8] >> at % 8 & 1 for bits in bitmaps if bits is not None for at in places)


def _get_table_signature(event: Any) -> Any:
    """Return a value that changes when columns of a table change."""
    return event.schema, event.table, [(c.name, c.type, c.character_set_name) for c in event.columns]


def _cast(value: Any, kind: pa.DataType, where: str) -> Any:
    """Return a default of the server as a value of a type."""
    value = str(value) if pa.types.is_string(kind) else value
    try:
        return pa.array([value]).cast(kind)[0].as_py()
    except pa.ArrowException:
        return to_column([value], kind, where)[0].as_py()


def _as_text(value: Any) -> str:
    """Return bytes or a text as text."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
