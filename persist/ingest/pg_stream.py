"""The transactions of a publication, from the upper of its collections on, as the server sends them."""

import json
import logging
import select
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from persist.collection import Collection
from persist.errors import InvalidUsage
from persist.ingest.pg_copy import Copied, SlotInUse
from persist.ingest.pg_database import CLOCK_US, Database, Published
from persist.ingest.pg_rows import TableRows, held
from persist.ingest.pg_spool import Spools
from persist.ingest.pgoutput import Relation, begin, change, lsn_of, lsn_text, relation, truncated
from persist.ingest.source import Batch, Change, Run

logger = logging.getLogger(__name__)
COLUMNS = "ingest.columns"  # The number of each column in its table, by which a new name is told from a new column.
POLL_S = 0.25
CHANGES = b"IUD"
STREAMS_FROM = 140000  # The version of the server that sends transactions before they are committed.
ALIVE_EVERY = 20_000  # Messages of a transaction, before the server hears that we are there.
KEPT_BYTES_MAX = 1 << 30
IDLE_SLOTS = (
    "SELECT slot_name, coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn), 0)::int8 FROM pg_replication_slots "
    "WHERE NOT temporary AND database = current_database() AND plugin = 'pgoutput' "
    "AND (slot_name = %s OR NOT active AND slot_name LIKE 'persist\\_%%' AND slot_name <> %s)"
)


class Stream:
    """The transactions of a publication, from the upper of its collections on."""

    def __init__(self, database: Database, tables: Mapping[str, Published], slot: str, run: Run) -> None:
        self._database = database
        self._tables = tables
        self._slot = slot
        self._run = run
        self._upper = min(run.uppers.values())
        if self._upper != max(run.uppers.values()):
            late = min(run.uppers, key=lambda name: run.uppers[name])
            raise InvalidUsage(
                f"the collection {late!r} is sealed to {run.uppers[late]}, and others of {database.name} to "
                f"{max(run.uppers.values())}: somebody else sealed it. Drop it, and it is copied again"
            )
        self._rows: dict[str, TableRows] = {}
        self._moments: list[tuple[int, int]] = []  # Of the transactions that are not committed here yet.
        self._ahead_us = 0  # The server's clock minus ours, since 1970 on one side and any moment on the other.
        self._relations: dict[int, TableRows | None] = {}
        self._kept: dict[int, list[int]] = {}
        self._time = self._moment_us = 0  # Of the transaction whose messages come.
        self._is_known, self._is_inside, self._done = True, False, self._upper
        self._spools = Spools()
        self._copied = {name: Copied.of(run.collections[name]) or Copied([0], 0) for name in tables}
        self._names = {(table.schema, table.name): name for name, table in tables.items()}

    @property
    def _count(self) -> int:
        return sum(map(len, self._rows.values()))

    def batches(self) -> Iterator[Batch]:
        """Yield transactions as they come, some of them together."""
        connection = self._database.connected(replication=True)
        try:
            with connection.cursor() as cursor:
                target = self._begun(connection, cursor)
                yield from self._read(cursor, target)
        finally:
            self._spools.close()
            connection.close()

    def _begun(self, connection: Any, cursor: Any) -> int:
        """Begin to replicate; return how far the server's log goes by now."""
        database, slot = self._database, self._slot
        looking = database.connected()
        try:
            with looking.cursor() as asked:
                asked.execute(
                    "SELECT plugin, active_pid, database = current_database(), to_jsonb(s) ->> 'wal_status' "
                    "FROM pg_replication_slots s WHERE slot_name = %s",
                    (slot,),
                )
                found = asked.fetchone()
                asked.execute(f"SELECT pg_current_wal_lsn(), {CLOCK_US}")
                position, now_us = asked.fetchone()
                end, self._ahead_us = lsn_of(position), now_us - self._monotonic_us()
                asked.execute(IDLE_SLOTS, (slot, slot))
                self._warn_of(asked.fetchall())
        finally:
            looking.close()
        drops = "; ".join(f"persist drop LOCATION {name}" for name in self._run.collections)
        again = f"What came since is lost. To copy the tables again: {drops}; and give the same command again"
        if found is None:
            raise InvalidUsage(f"{database.name}: the replication slot {slot!r} is gone. {again}")
        plugin, pid, is_here, status = found
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
        options = {"proto_version": "1", "publication_names": f'"{database.config.publication}"'}
        if connection.server_version >= STREAMS_FROM:
            options |= {"proto_version": "2", "streaming": "on"}
        cursor.start_replication(slot_name=slot, decode=False, start_lsn=lsn_text(self._upper), options=options)
        return end

    def _warn_of(self, slots: Iterable[tuple[str, int]]) -> None:
        """Say which slots keep much of the server's log: that of this source, and those that look forgotten."""
        for slot, kept in slots:
            if slot == self._slot and kept >= KEPT_BYTES_MAX:
                logger.warning(
                    "%s: the server keeps %.1f MiB of its log that are still to be read",
                    self._database.name,
                    kept / 2**20,
                )
            elif slot != self._slot:
                logger.warning(
                    "%s: nobody reads the slot %r, for which the server keeps %.1f MiB of its log. If it was given up: "
                    "SELECT pg_drop_replication_slot('%s')", self._database.name, slot, kept / 2**20, slot,
                )  # fmt: skip

    def _read(self, cursor: Any, target: int) -> Iterator[Batch]:
        run, clock = self._run, self._run.client.engine.clock
        told_s = clock.monotonic_s()
        while True:
            message = cursor.read_message()
            if message is None:
                if not self._is_inside:
                    is_end = run.stop.is_set() or (run.once and cursor.wal_end >= target)
                    is_due = is_end or clock.monotonic_s() - told_s >= self._database.config.heartbeat_s
                    if self._count or (is_due and max(self._done, cursor.wal_end) > self._upper):
                        if is_due:  # All that the server has sent is here, so times up to there are complete.
                            self._done = self._reached(max(self._done, cursor.wal_end))
                        yield self._batch(self._done)
                    if is_due:  # And durable, so it need not keep its log for this slot.
                        cursor.send_feedback(flush_lsn=self._upper, force=True)
                        told_s = clock.monotonic_s()
                    if is_end:
                        return
                if run.once and cursor.wal_end < target:
                    cursor.send_feedback(reply=True, force=True)  # It answers with how far it has come.
                select.select([cursor], [], [], POLL_S)
                continue
            data = message.payload
            if self._spools.is_inside:
                if data[0] == 69:  # E
                    self._spools.stop()
                else:
                    self._spools.keep(data)
            elif data[0] in CHANGES:
                self._change(data)
            else:
                before = self._upper
                yield from self._control(data, cursor)
                if self._upper != before:
                    cursor.send_feedback(flush_lsn=self._upper)

    def _control(self, data: bytes, cursor: Any) -> Iterator[Batch]:
        """Take a message that is no change of a row."""
        kind = data[0]
        if kind == 66:  # B
            time, moment_us, _ = begin(data)
            yield from self._transaction(time, moment_us)
        elif kind == 67:  # C
            yield from self._committed()
        elif kind == 82:  # R
            yield from self._relation(relation(data))
        elif kind == 84 and not self._is_known:  # T
            yield from self._emptied(truncated(data))
        elif kind == 83:  # S
            self._spools.start(data)
        elif kind == 65:  # A
            self._spools.undo(data)
        elif kind == 99:  # c
            xid, time, moment_us = self._spools.committed(data)
            yield from self._transaction(time, moment_us)
            for count, kept in enumerate(self._spools.messages(xid)):
                if kept[0] in CHANGES:
                    self._change(kept)
                else:
                    yield from self._control(kept, cursor)
                if count % ALIVE_EVERY == 0:
                    cursor.send_feedback(flush_lsn=self._upper, force=True)
            yield from self._committed()

    def _transaction(self, time: int, moment_us: int) -> Iterator[Batch]:
        """Begin with the transaction that was committed at a time."""
        while (reached := self._reached_by(time)) is not None:
            # Rows that were copied again at that time count from there on, so it is sealed first.
            self._done = reached + 1
            if not self._moments or self._moments[-1][0] < reached:
                self._moments.append((reached, moment_us))
            yield self._batch(self._done)
        self._time, self._moment_us = time, moment_us
        self._is_known, self._is_inside = time < self._upper, True

    def _committed(self) -> Iterator[Batch]:
        """End the transaction; what came becomes a commit if it is enough."""
        self._is_inside = False
        if not self._is_known:
            self._done = self._time + 1
            self._moments.append((self._time, self._moment_us))
        count = max(self._count, len(self._moments))
        if count >= self._database.config.batch_rows or (count and self._run.stop.is_set()):
            yield self._batch(self._done)

    def _batch(self, upper: int) -> Batch:
        """Return what has come as a batch. When the loop goes on after it, it is durable."""
        before = self._upper
        taken = {
            name: table.taken(self._run.collections[name], before, upper)
            for name, table in self._rows.items()
            if len(table)
        }
        changes = [Change(name, rows) for name, rows in taken.items() if rows is not None]
        self._upper = upper
        moments, self._moments = self._moments, []
        return Batch(changes, upper, sum(len(change.rows) for change in changes), moments)

    def _reached_by(self, time: int) -> int | None:
        """Return the first time of a copy's run that is not sealed yet and before a time; None if there is none."""
        times = [at for each in self._copied.values() for at in each.times if self._upper <= at < time]
        return min(times, default=None)

    def _reached(self, position: int) -> int:
        """Take it that the server has no transaction before a position that was not sent; return the position."""
        if position > self._upper and (not self._moments or self._moments[-1][0] < position - 1):
            self._moments.append((position - 1, self._monotonic_us() + self._ahead_us))
        return position

    def _monotonic_us(self) -> int:
        return int(self._run.client.engine.clock.monotonic_s() * 1e6)

    def _change(self, data: bytes) -> None:
        if self._is_known:
            return
        id_, old, new, is_key = change(data)
        rows = self._relations.get(id_)
        if rows is not None and self._time > rows.begin:
            kept = self._kept[id_]
            if len(kept) != len(new or old or ()):
                old = None if old is None else [old[at] for at in kept]
                new = None if new is None else [new[at] for at in kept]
            rows.take(old, new, self._time, is_key)

    def _relation(self, found: Relation) -> Iterator[Batch]:
        """Take a table as it is from here on; its collection follows, once all before is durable."""
        name = self._names.get((found.schema, found.name))
        if name is None:
            if self._database.config.tables is None:
                logger.warning(
                    "%s: the table %s.%s came to the publication. It is copied when the same command is given again",
                    self._database.name, found.schema, found.name,
                )  # fmt: skip
            self._relations[found.id] = None
            return
        database, collection = self._database, self._run.collections[name]
        table = self._tables[name].full_name
        columns, types = database.kept(table, found.columns), database.types(table, found.columns)
        have = {field: collection.schema.arrow.field(field).type for field in collection.schema.names}
        if have != types:
            if self._done > self._upper:
                yield self._batch(self._done)
            self._follow_schema(collection, table, have, types)
        self._kept[found.id] = [at for at, column in enumerate(found.columns) if column in columns]
        names, key = [column.name for column in columns], [*collection.schema.key_names]
        _check_identity(table, found, key if collection.handle.keyed else None)
        rows = self._rows.get(name)
        if rows is None or rows.names != names or rows.types != types:
            if rows is not None and len(rows):
                raise InvalidUsage(
                    f"the table {table} changed its columns within a transaction that had changed its rows: that "
                    "cannot be followed. Drop the collection, and copy the table again"
                )
            key = key if collection.handle.keyed else []
            copied = self._copied[name]
            rows = self._rows[name] = TableRows(table, names, types, key, copied.begin, copied.reached)
        self._relations[found.id] = rows

    def _follow_schema(
        self, collection: Collection, table: str, have: Mapping[str, pa.DataType], types: Mapping[str, pa.DataType]
    ) -> None:
        """Add, drop, rename and widen columns of a collection as its table did."""
        numbers = json.loads(collection.about.properties.get(COLUMNS, "{}"))
        now = self._numbers(table)
        renamed = {
            old: new
            for old in have
            for new in types
            if old not in types and new not in have and numbers.get(old) is not None and numbers[old] == now.get(new)
        }
        names = {number: name for name, number in now.items()}
        # The catalog may be ahead, so that a new name is gone already. It is told by there being no other one.
        again = [
            old for old in have if old not in types and old not in renamed and names.get(numbers.get(old), old) != old
        ]
        unknown = [new for new in types if new not in have and new not in now]
        if len(again) == len(unknown) == 1:
            renamed[again[0]] = unknown[0]
        elif again:
            raise InvalidUsage(
                f"the column {again[0]!r} of the table {table} has got another name more than once, so it is not known "
                f"which one it had first. Drop the collection {collection.name!r}, and copy the table again"
            )
        added = {name: kind for name, kind in types.items() if name not in have and name not in renamed.values()}
        dropped = [name for name in have if name not in types and name not in renamed]
        wider = {name: types[renamed.get(name, name)] for name in have if name not in dropped}
        wider = {name: kind for name, kind in wider.items() if kind != have[name]}
        try:
            collection.evolve(add=added, drop=dropped, rename=renamed, widen=wider)
        except InvalidUsage as error:
            raise InvalidUsage(
                f"the table {table} changed its columns in a way that {collection.name!r} cannot follow: {error}. Drop "
                "the collection, and copy the table again"
            ) from error
        known = {renamed.get(name, name): number for name, number in numbers.items()}
        numbers = {name: known.get(name, now.get(name)) for name in types}
        collection.describe(properties={COLUMNS: json.dumps(numbers)}).result()
        logger.warning(
            "%s has other columns from here on: added %s, dropped %s, renamed %s, wider %s",
            table, [*added], dropped, renamed, [*wider],
        )  # fmt: skip

    def _numbers(self, table: str) -> dict[str, int]:
        """Return the numbers of a table's columns, as the catalog has them now."""
        connection = self._database.connected()
        try:
            published = self._database.published(connection)
        finally:
            connection.close()
        return next((dict(each.numbers) for each in published if each.full_name == table), {})

    def _emptied(self, ids: list[int]) -> Iterator[Batch]:
        """Remove all rows of tables that were truncated, those that the transaction had added before, too."""
        tables = [rows for id_ in ids if (rows := self._relations.get(id_)) is not None and self._time > rows.begin]
        for rows in tables:
            rows.forget(self._time)
        if self._done > self._upper:
            yield self._batch(self._done)
        names = {id(rows): name for name, rows in self._rows.items()}
        for rows in tables:
            collection = self._run.collections[names[id(rows)]]
            with held(collection, self._upper, rows.reached) as snapshot:
                rows.empty(snapshot.to_arrow(), self._time)


def _check_identity(table: str, found: Relation, key: list[str] | None) -> None:
    """Check that the server still sends of old rows what tells them apart: their key, or all of them if key is None.

    Raises:
        InvalidUsage: it does not.
    """
    sent = {column.name for column in found.columns if column.is_key}
    if found.identity == "f" or (key is not None and (found.identity == "n" or {*key} <= sent)):
        return
    raise InvalidUsage(
        f"the table {table} has another replica identity than it had when it was copied, so old rows come "
        f"without {'all columns' if key is None else ', '.join(key)}. Set it as it was, drop the collection, and copy "
        "the table again"
    )
