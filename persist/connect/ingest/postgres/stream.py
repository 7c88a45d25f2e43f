"""The transactions of a publication, from the upper of its collections on."""

import json
import logging
import select
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from persist.api.collection import Collection
from persist.codecs.nested import find_changes_by_path
from persist.connect.ingest.postgres.database import CLOCK_US, Database, PublishedTable, SlotInUse
from persist.connect.ingest.postgres.pgoutput import (
    Column,
    Relation,
    format_lsn,
    parse_begin,
    parse_change,
    parse_lsn,
    parse_relation,
    parse_truncate,
)
from persist.connect.ingest.postgres.types import (
    TEXT,
    Attributes,
    Layouts,
    PgType,
    make_node_before,
    make_node_now,
    parse_texts,
)
from persist.connect.ingest.source import Batch, Run, advise_copy
from persist.connect.ingest.table_rows import TableRows
from persist.connect.ingest.transactions import Transactions
from persist.core.errors import InvalidUsage

logger = logging.getLogger(__name__)
COLUMNS = "ingest.columns"  # The number of each column in its table; it distinguishes a renamed column from a new one.
NUMBERS = (
    "SELECT attname, attnum::int8, attgenerated <> '' FROM pg_attribute WHERE attrelid = %s AND attnum > 0 "
    "AND NOT attisdropped ORDER BY attnum"
)
POLL_S = 0.25
CHANGES = b"IUD"
KEPT_BYTES_MAX = 1 << 30
IDLE_SLOTS = (
    "SELECT slot_name, coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn), 0)::int8 FROM pg_replication_slots "
    "WHERE NOT temporary AND database = current_database() AND plugin = 'pgoutput' "
    "AND (slot_name = %s OR NOT active AND slot_name LIKE 'persist\\_%%' AND slot_name <> %s)"
)


class Stream:
    """Reads the transactions of a publication from a replication slot, as batches."""

    def __init__(self, database: Database, tables: Mapping[str, PublishedTable], slot: str, run: Run) -> None:
        self._database = database
        database.types.slot = slot
        self._tables = tables
        self._slot = slot
        self._run = run
        self._flow = Transactions(
            database.name, run, [*tables], database.config.batch_rows, self._count_bytes_behind, place=_format_time
        )
        self._relations: dict[int, TableRows | None] = {}
        self._kept: dict[int, list[int]] = {}
        self._cursor: Any = None
        self._looking: Any = None
        # By collection: the columns of its table in the log, and their types.
        self._columns: dict[str, list[Column]] = {}
        self._types: dict[str, dict[str, PgType]] = {}
        self._attributes: dict[str, Attributes] = {}
        self._layouts: dict[str, Layouts] = {}
        self._names = {(table.schema, table.name): name for name, table in tables.items()}

    def batches(self) -> Iterator[Batch]:
        """Yield batches of transactions while the server sends them; small transactions share a batch."""
        connection = self._database.open_connection(replication=True)
        try:
            with connection.cursor() as cursor:
                target = self._start_replication(cursor)
                self._cursor = cursor
                yield from self._read_messages(cursor, target)
        finally:
            connection.close()
            if self._looking is not None:
                self._looking.close()

    def _open_query(self) -> Any:
        """Return a cursor, not of the slot's connection, that sees what is committed by now."""
        if self._looking is None:
            self._looking = self._database.open_connection()
            self._looking.autocommit = True
        return self._looking.cursor()

    def _start_replication(self, cursor: Any) -> tuple[int, int]:
        """Check the slot, and start to replicate; return the log's end, and its moment."""
        database, slot = self._database, self._slot
        with self._open_query() as query:
            query.execute(
                "SELECT plugin, active_pid, database = current_database(), to_jsonb(s) ->> 'wal_status' "
                "FROM pg_replication_slots s WHERE slot_name = %s",
                (slot,),
            )
            slot_row = query.fetchone()
            end = _query_log_end(query)
            query.execute(IDLE_SLOTS, (slot, slot))
            self._warn_about_slots(query.fetchall())
        again = f"What came since is lost. {advise_copy(self._run.collections)}"
        if slot_row is None:
            raise InvalidUsage(f"{database.name}: the replication slot {slot!r} is gone. {again}")
        plugin, pid, is_here, status = slot_row
        if plugin != "pgoutput" or not is_here:
            raise InvalidUsage(
                f"{database.name}: the slot {slot!r} is of another database or plugin: choose another slot"
            )
        if status == "lost":
            raise InvalidUsage(f"{database.name}: the server has recycled the log that {slot!r} needs. {again}")
        if pid is not None:
            raise SlotInUse(
                f"{database.name}: the slot {slot!r} is in use by process {pid} of the server: another ingest runs, or "
                "one was just killed, which the server notices soon"
            )
        # The slot may be ahead of upper: psycopg2 confirms what keepalives report once all transactions are confirmed.
        options = {"proto_version": "1", "publication_names": f'"{database.config.publication}"'}
        cursor.start_replication(slot_name=slot, decode=False, start_lsn=format_lsn(self._flow.upper), options=options)
        return end

    def _warn_about_slots(self, slots: Iterable[tuple[str, int]]) -> None:
        """Warn of slots for which the server keeps much of its log."""
        for slot, kept_bytes in slots:
            if slot == self._slot and kept_bytes >= KEPT_BYTES_MAX:
                logger.warning(
                    "%s: the server keeps %.1f MiB of its log that are still to be read",
                    self._database.name,
                    kept_bytes / 2**20,
                )
            elif slot != self._slot:
                logger.warning(
                    "%s: no process reads the slot %r, for which the server keeps %.1f MiB of its log. If it "
                    "was given up: "
                    "SELECT pg_drop_replication_slot('%s')", self._database.name, slot, kept_bytes / 2**20, slot,
                )  # fmt: skip

    def _read_messages(self, cursor: Any, mark: tuple[int, int] | None) -> Iterator[Batch]:
        """Yield batches of the messages that the server sends.

        A mark is a moment, and the position of the server's log at that moment. When all messages up to the position
        are read, all transactions before the moment are known, so the moment is recorded for that position.
        """
        run, flow, clock = self._run, self._flow, self._run.client.engine.clock
        asked_s = clock.monotonic_s()
        while True:
            message = cursor.read_message()
            if message is None:
                if not flow.is_inside:
                    is_reached = mark is not None and cursor.wal_end >= mark[0]
                    if mark is not None and is_reached:
                        flow.note_quiet_until(max(flow.done, mark[0]), mark[1])
                        mark = None
                    is_end = run.stop.is_set() or (run.once and is_reached)
                    if not flow.is_empty or ((is_reached or is_end) and flow.done > flow.upper):
                        yield flow.make_batch(flow.done)
                    if is_reached or is_end:  # It is durable, so the server need not keep its log for this slot.
                        cursor.send_feedback(flush_lsn=flow.upper, force=True)
                    if is_end:
                        return
                    if mark is None and clock.monotonic_s() - asked_s >= self._database.config.heartbeat_s:
                        with self._open_query() as query:
                            mark, asked_s = _query_log_end(query), clock.monotonic_s()
                if mark is not None and cursor.wal_end < mark[0]:
                    cursor.send_feedback(reply=True, force=True)  # It answers with how far it has come.
                select.select([cursor], [], [], POLL_S)
                continue
            previous = flow.upper
            yield from self._process(message.payload, cursor)
            if flow.upper != previous:
                cursor.send_feedback(flush_lsn=flow.upper)

    def _count_bytes_behind(self) -> int:
        """Return the bytes of the log that are not ingested yet."""
        return max(0, int(self._cursor.wal_end) - self._flow.upper)

    def _process(self, data: bytes, cursor: Any) -> Iterator[Batch]:
        """Process a message of the server; yield batches that it completes."""
        if data[0] not in CHANGES:
            yield from self._process_control(data)
            return
        self._process_change(data)
        if self._flow.is_full:
            for piece in self._flow.commit_piece():
                yield piece
                cursor.send_feedback(force=True)

    def _process_control(self, data: bytes) -> Iterator[Batch]:
        """Process a message other than the change of a row; yield batches that it completes."""
        kind, flow = data[0], self._flow
        if kind == 66:  # B
            yield from flow.begin(*parse_begin(data))
        elif kind == 67:  # C
            yield from flow.commit()
        elif kind == 82:  # R
            yield from self._process_relation(parse_relation(data))
        elif kind == 84:  # T
            yield from flow.truncate_tables(
                [rows for id_ in parse_truncate(data) if (rows := self._relations.get(id_)) is not None]
            )

    def _process_change(self, data: bytes) -> None:
        """Add a changed row to its table's uncommitted changes."""
        if self._flow.is_known:
            return
        try:
            id_, old, new, is_key = parse_change(data)
        except UnicodeDecodeError as error:  # A database of SQL_ASCII knows no characters.
            bad = error.object[error.start : error.start + 20]
            raise InvalidUsage(
                f"{_format_time(self._flow.time)}: a row has the bytes {bad!r}, which are not UTF-8. Mend them in the "
                "table, and copy it again, or leave the table out by tables"
            ) from None
        rows = self._relations.get(id_)
        if rows is not None:
            places = self._kept[id_]
            if len(places) != len(new or old or ()):
                old = None if old is None else [old[at] for at in places]
                new = None if new is None else [new[at] for at in places]
            self._flow.take(rows, old, new, is_key=is_key)

    def _process_relation(self, relation: Relation) -> Iterator[Batch]:
        """Note a table's columns; if they changed, commit earlier rows and evolve the collection."""
        name = self._names.get((relation.schema, relation.name))
        if name is None:
            if self._database.config.tables is None:
                logger.warning(
                    "%s: the table %s.%s came to the publication. It is copied when the same command is given again",
                    self._database.name, relation.schema, relation.name,
                )  # fmt: skip
            self._relations[relation.id] = None
            return
        collection, table = self._run.collections[name], self._tables[name].full_name
        columns = self._database.select_columns(table, relation.columns)
        in_order = [column.name for column in relation.columns]
        have, types, stored, attributes = self._load_types(name, columns)
        numbers, now = self._load_column_numbers(collection), self._query_column_numbers(relation)
        new_numbers = {number for name, number in now.items() if name not in in_order}
        is_now = [name for name in now if name in in_order] == in_order  # Else the catalog is ahead.
        is_now = is_now and new_numbers.isdisjoint(numbers.values())
        in_number_order = [name for name in sorted(numbers, key=lambda name: numbers[name] or 0) if name in in_order]
        is_same = have == _get_kinds(types) and stored == attributes
        is_same = is_same and in_number_order == [name for name in in_order if name in numbers]
        if not is_same or (is_now and any(numbers.get(name) not in (None, now[name]) for name in in_order)):
            yield from self._flow.seal_earlier()
            types, attributes = self._follow_schema(name, columns, now, is_now=is_now)
        self._columns[name] = columns
        self._adopt_types(name, types, attributes)
        self._kept[relation.id] = [at for at, column in enumerate(relation.columns) if column in columns]
        _check_identity(name, table, relation, [*collection.schema.key_names] if collection.handle.keyed else None)

        def make_array(texts: list[Any], _: pa.DataType, where: str) -> pa.Array:
            type_ = self._types[name][where.removeprefix(f"{table}.")]
            return parse_texts(pa.array(texts, pa.string()), type_, where, self._layouts[name])

        self._relations[relation.id] = self._flow.open_rows(
            name, table, _get_kinds(types), make_array, lambda: self._refresh_types(name)
        )

    def _load_types(
        self, name: str, columns: list[Column]
    ) -> tuple[dict[str, pa.DataType], dict[str, PgType], Attributes, Attributes]:
        """Return types of a collection and its table, and their stored and present attributes."""
        collection = self._run.collections[name]
        have = {field: collection.schema.arrow.field(field).type for field in collection.schema.names}
        with self._open_query() as query:
            types = self._database.load_types(query, self._tables[name].full_name, columns)
        types = {column: _keep_text(type_, have.get(column)) for column, type_ in types.items()}
        stored = self._attributes.get(name) or Attributes.from_properties(collection) or Attributes()
        return have, types, stored, stored.follow(types.values())

    def _refresh_types(self, name: str) -> None:
        """Evolve a collection if attributes of its composite types have changed in the catalog."""
        if not self._attributes[name].numbers:
            return
        have, types, stored, attributes = self._load_types(name, self._columns[name])
        if attributes != stored:
            pairs = [(column, have[column], types[column]) for column in have if column in types]
            changes = _find_inner_changes(pairs, stored)
            collection, table = self._run.collections[name], self._tables[name].full_name
            self._flow.evolve(collection, table, attributes.to_properties(), changes)
        self._adopt_types(name, types, attributes)

    def _adopt_types(self, name: str, types: dict[str, PgType], attributes: Attributes) -> None:
        """Parse later values of a collection by these types and attributes."""
        self._types[name], self._attributes[name] = types, attributes
        self._layouts[name] = attributes.list_layouts(types.values())
        rows = self._flow.find_rows(name)
        if rows is not None and rows.names == [*types]:
            rows.types = {
                column: types[column].kind if types[column].is_nested and pa.types.is_nested(kind) else kind
                for column, kind in rows.types.items()
            }

    def _follow_schema(
        self, name: str, columns: list[Column], now: Mapping[str, int], *, is_now: bool
    ) -> tuple[dict[str, PgType], Attributes]:
        """Add, drop, rename and widen columns of a collection as its table did; return their types.

        `now` has the numbers of the table's columns in the catalog. If that is ahead of the log, `is_now` is false.
        """
        collection, table = self._run.collections[name], self._tables[name].full_name
        have, types, stored, attributes = self._load_types(name, columns)
        numbers, replaced = self._load_column_numbers(collection), list[str]()
        if is_now:
            names = {number: name for name, number in now.items()}
            renamed = {old: names.get(number, old) if number else old for old, number in numbers.items() if old in have}
            renamed = {old: new for old, new in renamed.items() if old != new and new in types}
            replaced = [
                old for old in have if numbers.get(old) is not None and old not in renamed and numbers[old] not in names
            ]
        else:
            renamed = _find_renames(name, table, numbers, have, types, now)
        types |= {new: _keep_text(types[new], have[old]) for old, new in renamed.items()}
        stays = {old for old in have if old not in renamed and old not in replaced and old in types}
        pairs = [(old, kind, types[renamed.get(old, old)]) for old, kind in have.items() if old in stays | {*renamed}]
        attributes = stored.follow(types.values())
        old_numbers = {renamed.get(name, name): number for name, number in numbers.items()}
        numbers = {name: now[name] if is_now else old_numbers.get(name, now.get(name)) for name in types}
        self._flow.evolve(
            collection,
            table,
            {COLUMNS: json.dumps(numbers), **attributes.to_properties()},
            _find_inner_changes(pairs, stored),
            add={new: type_.kind for new, type_ in types.items() if new not in stays and new not in renamed.values()},
            drop=[old for old in have if old not in stays and old not in renamed],
            rename=renamed,
            widen={
                old: type_.kind
                for old, kind, type_ in pairs
                if type_.kind != kind and not (type_.is_nested and pa.types.is_nested(kind))
            },
        )
        return types, attributes

    def _load_column_numbers(self, collection: Collection) -> dict[str, int | None]:
        """Return the numbers of columns in the catalog, as stored on a collection."""
        numbers: dict[str, int | None] = json.loads(collection.about.properties.get(COLUMNS, "{}"))
        return numbers

    def _query_column_numbers(self, relation: Relation) -> dict[str, int]:
        """Return the numbers of a table's columns in the catalog, by name, in order."""
        sent = {column.name for column in relation.columns}
        with self._open_query() as query:
            query.execute(NUMBERS, (relation.id,))
            rows = query.fetchall()
        table = self._tables[self._names[relation.schema, relation.name]]
        if new := [name for name, _, is_generated in rows if is_generated and name not in (*table.generated, *sent)]:
            logger.warning(
                "%s has got generated columns, which the server does not send, and which are left out: %s",
                table.full_name, ", ".join(new),
            )  # fmt: skip
        return {name: number for name, number, _ in rows}


def _format_time(time: int) -> str:
    """Return a time as a position of Postgres's log."""
    return f"LSN {format_lsn(time)}"


def _query_log_end(cursor: Any) -> tuple[int, int]:
    """Return the server's last log position, and its moment."""
    cursor.execute(f"SELECT {CLOCK_US}")  # First: transactions committed by then are in the log at the next query.
    [now_us] = cursor.fetchone()
    cursor.execute("SELECT pg_current_wal_lsn()")
    [position] = cursor.fetchone()
    return parse_lsn(position), now_us


def _get_kinds(types: Mapping[str, PgType]) -> dict[str, pa.DataType]:
    """Return the Arrow type of each column."""
    return {column: type_.kind for column, type_ in types.items()}


def _keep_text(type_: PgType, kind: pa.DataType | None) -> PgType:
    """Return TEXT in place of a nested type that a collection has as text."""
    return TEXT if type_.is_nested and kind == pa.string() else type_


def _find_inner_changes(columns: Iterable[tuple[str, pa.DataType, PgType]], stored: Attributes) -> dict[str, Any]:
    """Return arguments of `evolve` for the attributes of types that have changed."""
    changes: dict[str, Any] = {"add": {}, "drop": [], "rename": {}, "widen": {}}
    for column, kind, type_ in columns:
        node = make_node_before(column, kind, type_, stored)
        if node.inner and type_.is_nested:
            for what, more in find_changes_by_path(node, make_node_now(column, type_)).items():
                changes[what] = changes[what] + more if what == "drop" else changes[what] | more
    return changes


def _find_renames(
    name: str,
    table: str,
    numbers: Mapping[str, int | None],
    have: Mapping[str, pa.DataType],
    types: Mapping[str, PgType],
    now: Mapping[str, int],
) -> dict[str, str]:
    """Return renamed columns, old to new, by their catalog numbers."""
    names = {number: name for name, number in now.items()}
    again = [old for old in have if old not in types and names.get(numbers.get(old) or 0, old) != old]
    renamed = {old: names[numbers[old] or 0] for old in again if names[numbers[old] or 0] in {*types} - {*have}}
    again = [old for old in again if old not in renamed]
    unknown = [new for new in types if new not in have and new not in now]
    if len(again) == len(unknown) == 1:
        return renamed | {again[0]: unknown[0]}
    in_order = [column for column in sorted(numbers, key=lambda column: numbers[column] or 0) if column in types]
    if again or in_order != [column for column in types if column in numbers]:
        raise InvalidUsage(
            f"columns of the table {table} have got other names more than once meanwhile, so it is not known which one "
            f"{(again or in_order)[0]!r} is. {advise_copy([name])}"
        )
    return renamed


def _check_identity(name: str, table: str, relation: Relation, key: list[str] | None) -> None:
    """Raise InvalidUsage unless logged old rows have the key, or all columns if key is None."""
    sent = {column.name for column in relation.columns if column.is_key}
    if relation.identity == "f" or (key is not None and (relation.identity == "n" or {*key} <= sent)):
        return
    raise InvalidUsage(
        f"the table {table} has another replica identity than it had when it was copied, so old rows come "
        f"without {'all columns' if key is None else ', '.join(key)}. Set it as it was. {advise_copy([name])}"
    )
