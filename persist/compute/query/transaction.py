"""Several statements as one commit: they read the contents as of the first statement, and their own changes.

The transaction has a DuckDB table of each collection that it changes. Before each statement it loads the rows that the
statement may touch, as they were at the beginning, and all rows before a query of a changed collection. A second table
keeps what was loaded. The commit writes the differences of all tables in one record. It fails with `UpperMismatch` if
another client has changed one of the collections (snapshot isolation). A serializable transaction also fails if a
collection has changed that it only read. Memory: the touched rows.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from persist.compute.query.catalog import load_all_states
from persist.compute.query.databases import QueryLimits, lend_database, open_database
from persist.compute.query.result import Queries, QueryResult, call_later
from persist.compute.query.statement_text import StatementText
from persist.compute.query.statements import (
    check_each_row_once,
    collect_failures,
    create_key_index,
    create_target_table,
    execute,
    has_unparsed_mention,
    insert_rows,
    list_other_tables,
    parse_statement_parts,
    read_table,
    reads_own_table,
)
from persist.compute.query.tables import (
    DUCKDB,
    Path,
    TableAt,
    add_functions,
    explain_refusal,
    format_path,
    make_dataset,
    make_schema,
    normalise_path,
    quote_name,
    register_table,
)
from persist.compute.query.touched_rows import read_touched
from persist.core.antichain import END, to_antichain
from persist.core.errors import (
    AsOfNotSealed,
    CollectionNotFound,
    InvalidUsage,
    PersistError,
    UpperMismatch,
    attach_timeline,
)
from persist.core.rendering import list_some
from persist.core.state_rules.collection_rules import ExpectUpper
from persist.core.state_rules.contents import CollectionState
from persist.core.state_rules.erasures import count_erasures
from persist.core.timeline import Moment
from persist.engine.collection.commit import Commit
from persist.engine.collection.keyed_events import ReadRows, Replacement
from persist.engine.collection.reads import snapshot
from persist.engine.location.collection_handle import CollectionHandle
from persist.engine.location.collection_times import LATEST
from persist.engine.location.engine import Engine
from persist.engine.location.opening import load_handle
from persist.engine.read.results.result import require_package
from persist.engine.read.results.snapshot import Snapshot

Running = Callable[[Callable[[], object]], object]  # Takes a function that ends a statement.


@dataclass
class _ChangedTable:
    """A collection that the transaction changes, and its tables in DuckDB.

    Attributes:
        path: the path of the table that statements change.
        read: reads the contents at the beginning.
        is_whole: whether all rows are loaded.
    """

    handle: CollectionHandle
    path: Path
    read: ReadRows
    is_whole: bool = False

    @property
    def old_path(self) -> Path:
        """The path of the table that keeps the rows as they were loaded."""
        return (f"began: {format_path(normalise_path(self.path))}",)

    def load_rows(self, connection: Any, rows: Iterator[pa.Table] | None) -> None:
        """Load some rows of the collection that are not loaded yet; None loads all."""
        if self.is_whole:
            return
        new, began = ("the rows to load",), format_path(self.old_path)
        connection.execute(f"CREATE OR REPLACE TABLE {format_path(new)} AS FROM {began} LIMIT 0")
        insert_rows(connection, new, self.handle, self.read(None) if rows is None else rows)
        # A row is loaded in all its copies, or not at all.
        connection.execute(f"CREATE OR REPLACE TEMP TABLE missing AS FROM {format_path(new)} EXCEPT ALL FROM {began}")
        connection.execute("BEGIN")  # A block may go on after an error, from a savepoint.
        try:
            for path in (began, format_path(self.path)):
                connection.execute(f"INSERT INTO {path} FROM missing")
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")
        self.is_whole = rows is None


class Transaction:
    """Runs statements until it is committed or closed; for one thread at a time.

    `as_of`: the time that queries read; None for the time at which the transaction began.
    """

    def __init__(self, engine: Engine, limits: QueryLimits, as_of: int | Moment | None = None) -> None:
        engine.settle()
        engine.follower.refresh()
        self._engine = engine
        self._limits = limits
        self._as_of = as_of
        self._began: dict[str, CollectionState] = {state.name: state for state in load_all_states(engine)}
        self._pins = {name: state.upper - 1 for name, state in self._began.items() if 0 < state.upper < END}
        self._stack = ExitStack()
        self._connection: Any = None
        self._tables: dict[str, _ChangedTable] = {}
        self._changed: dict[str, _ChangedTable] = {}
        self._read: set[str] = set()

    @property
    def has_changed(self) -> bool:
        """Whether a statement has changed a collection."""
        return bool(self._changed)

    def query(self, sql: str) -> QueryResult:
        """Return the answer of a query, with the changes of the transaction. Raises as `QueryResult`."""
        timer = call_later(self._limits.timeout_s, self.interrupt, "time")
        try:
            for changed in self._changed.values():
                changed.load_rows(self._connection, None)
        except require_package(DUCKDB).Error as error:
            raise InvalidUsage(f"DuckDB cannot load the changes of the block: {explain_refusal(error)}") from error
        finally:
            timer.cancel()
        changes = {
            name: read_table(self._connection, changed.path, changed.handle) for name, changed in self._changed.items()
        }
        pins = self._pins if self._as_of is None else {}
        result = QueryResult(self._engine, sql, self._as_of, limits=self._limits, pins=pins, changes=changes)
        try:
            for name in result.names:
                began = self._require_collection(name)
                if began.upper == 0 and self._as_of is None and name not in self._changed:
                    raise AsOfNotSealed(None, to_antichain(0), 0.0)  # Later times are not those of the beginning.
        except InvalidUsage:
            result.close()
            raise
        self._read |= {*result.names}
        return result

    def execute(self, sql: str) -> int:
        """Run a statement that changes a collection; return how many rows it touched. Raises as `execute`."""
        duckdb = require_package(DUCKDB)
        names = self._engine.names("")
        sql, statement, handle = parse_statement_parts(self._engine, sql, names)
        self._require_collection(handle.name)
        read_tables = list_other_tables(sql, statement.table, handle.name, names)
        connection = self._get_database()
        failed: list[PersistError] = []
        with ExitStack() as stack:
            stack.callback(call_later(self._limits.timeout_s, self.interrupt, "time").cancel)
            try:
                changed = self._open_table(connection, statement, handle, failed)
                reads_itself = reads_own_table(sql, statement.table) or TableAt(handle.name) in read_tables.values()
                if reads_itself:
                    changed.load_rows(connection, None)
                for other in self._tables.values():
                    if other is not changed and has_unparsed_mention(sql, other.path[-1], ()):
                        other.load_rows(connection, None)
                for path, table in read_tables.items():
                    self._add_read_table(connection, path, table, stack)
                add_functions(connection, sql)
                if not changed.is_whole:
                    rows = read_touched(connection, sql, statement, handle.schema, changed.read)
                    changed.load_rows(connection, rows)
                if statement.is_upsert:
                    create_key_index(connection, statement.table, handle)
                check_each_row_once(connection, statement, handle)
                connection.execute(sql)
                (count,) = map(int, connection.fetchone())
            except duckdb.Error as error:
                if failed:
                    raise failed[0] from error
                raise InvalidUsage(
                    f"DuckDB refuses the statement: {explain_refusal(error)}. The collections are {list_some(names)}"
                ) from error
        self._read.add(handle.name)  # The rows that it did not find count, too.
        if count:
            self._changed.setdefault(handle.name, changed)
        return count

    def commit(self, *, is_serializable: bool = False) -> None:
        """Commit all changes at once.

        `is_serializable`: also refuse the commit if a collection that was only read has changed meanwhile.

        Raises UpperMismatch: another client has changed a collection meanwhile.
        """
        if not self._changed:
            return
        with Commit(self._engine, action="sql") as commit:
            for name, changed in self._changed.items():
                commit.rewrite(changed.handle, partial(self._make_replacement, changed, self._began[name]))
            for name in self._read - self._changed.keys() if is_serializable else ():
                if name in self._began:
                    began = self._began[name]
                    commit.add(load_handle(self._engine, name), [ExpectUpper(began.id, began.upper_times)])
        self._changed.clear()

    def interrupt(self, why: str) -> None:
        """End the statement that runs, from any thread."""
        if self._connection is not None:
            self._connection.interrupt()

    def close(self) -> None:
        """Release the snapshots, and drop changes that are not committed. Idempotent."""
        self._stack.close()
        self._connection = None

    def _get_database(self) -> Any:
        """Return the transaction's connection of DuckDB; open it at the first call."""
        if self._connection is None:
            self._connection = self._stack.enter_context(lend_database(limits=self._limits)).connection
        return self._connection

    def _make_replacement(self, changed: _ChangedTable, began: CollectionState, read: ReadRows) -> Replacement:
        """Return the removed and the new rows of a changed collection, for the commit.

        Raises UpperMismatch if another client has changed the collection. The commit calls this again after each
        conflict.
        """
        now = changed.handle.contents()
        if (now.upper, now.id, count_erasures(now)) != (began.upper, began.id, count_erasures(began)):
            raise self._make_conflict(began, now)
        if changed.handle.keyed is not None:
            return self._make_event_replacement(changed, began, read)
        before, after = (
            read_table(self._connection, path, changed.handle) for path in (changed.old_path, changed.path)
        )
        return Replacement(before, after)

    def _make_event_replacement(self, changed: _ChangedTable, began: CollectionState, read: ReadRows) -> Replacement:
        """Return the removed and new rows of a keyed collection, with pending events."""
        connection, handle = self._connection, changed.handle
        before, after = format_path(changed.old_path), format_path(changed.path)
        keys = ", ".join(map(quote_name, handle.schema.key_names))
        removed, added = f"(FROM {before} EXCEPT ALL FROM {after})", f"(FROM {after} EXCEPT ALL FROM {before})"
        named = connection.sql(f"SELECT DISTINCT {keys} FROM ({removed} UNION ALL {added})").to_arrow_table()
        present = ("the present",)
        connection.execute(f"CREATE OR REPLACE TABLE {format_path(present)} AS FROM {before} LIMIT 0")
        insert_rows(connection, present, handle, read(named))
        result = f"(FROM {format_path(present)} EXCEPT ALL {removed}) UNION ALL {added}"
        connection.execute(f"CREATE OR REPLACE TABLE {quote_name('the result')} AS {result}")
        repeated = f"FROM {quote_name('the result')} SELECT {keys} GROUP BY {keys} HAVING count(*) > 1"
        missing = f"{removed} EXCEPT ALL FROM {format_path(present)}"
        for query in (repeated, missing):
            if connection.execute(f"SELECT 1 FROM ({query}) LIMIT 1").fetchone():
                raise self._make_conflict(began, handle.contents())
        return Replacement(*(read_table(connection, path, handle) for path in (present, ("the result",))))

    def _make_conflict(self, began: CollectionState, now: CollectionState) -> UpperMismatch:
        """Return the error for a collection that another client has changed meanwhile."""
        return attach_timeline(UpperMismatch(to_antichain(began.upper), to_antichain(now.upper)), began.timeline)

    def _require_collection(self, name: str) -> CollectionState:
        """Return a collection's state as of the begin. Raises InvalidUsage if it was created later."""
        began, ids = self._began.get(name), self._engine.follower.state.ids
        if began is None or ids.get(name) != began.id:
            raise InvalidUsage(f"{name!r} was made after the transaction began: begin again to use it")
        return began

    def _open_table(
        self, connection: Any, statement: StatementText, handle: CollectionHandle, failed: list[PersistError]
    ) -> _ChangedTable:
        """Return the table of a changed collection; create it if missing."""
        path = statement.table
        table = self._tables.get(handle.name)
        if len(path) > 2 or (table is not None and normalise_path(path) != normalise_path(table.path)):
            raise InvalidUsage(
                f"the transaction changes {handle.name!r}: name it without a time, and in all statements the same way, "
                f"not {format_path(path)}"
            )
        if table is None:
            read: ReadRows = lambda by: iter(())  # noqa: E731
            if (as_of := self._pins.get(handle.name)) is not None:
                read = make_snapshot_reader(self._stack.enter_context(snapshot(handle, as_of, timeout_s=0.0)))
            table = _ChangedTable(handle, path, collect_failures(read, failed))
            for each in (path, table.old_path):
                create_target_table(connection, each, handle)
            self._tables[handle.name] = table
        return table

    def _add_read_table(self, connection: Any, path: Path, at: TableAt, stack: ExitStack) -> None:
        """Create the table of a collection that a statement only reads."""
        is_present = at.as_of in (None, LATEST)
        table = self._tables.get(at.name) if is_present else None
        if table is not None:
            if normalise_path(table.path) != normalise_path(path):
                make_schema(connection, path)
                connection.execute(f"CREATE VIEW {format_path(path)} AS FROM {format_path(table.path)}")
                stack.callback(connection.execute, f"DROP VIEW {format_path(path)}")
            return
        self._read.add(at.name)
        began = self._began.get(at.name)
        if is_present and began is not None and began.upper == 0:
            return  # DuckDB refuses it, if it is a table.
        with suppress(AsOfNotSealed, CollectionNotFound):  # Likewise.
            as_of = self._pins.get(at.name) if is_present else at.as_of
            contents = stack.enter_context(snapshot(load_handle(self._engine, at.name), as_of, timeout_s=0.0))
            register_table(connection, path, make_dataset(contents.schema, contents.read_narrowed))
            name = format_path(path) if len(path) > 1 else path[0]
            stack.callback(connection.unregister, name)
            if len(path) > 1:
                stack.callback(connection.execute, f"DROP VIEW {format_path(path)}")


def make_snapshot_reader(contents: Snapshot) -> ReadRows:
    """Return a function that reads the rows of a snapshot that pass a filter, or have keys."""

    def read(by: pc.Expression | pa.Table | None) -> Iterator[pa.Table]:
        if isinstance(by, pa.Table):
            yield contents.get(by)
            return
        names = contents.schema.names
        yield from (pa.Table.from_batches([batch]) for batch in contents.read_narrowed(names, by))

    return read


class ServedSql(Queries):
    """The queries, statements and transactions of a server of SQL; for any thread.

    Args:
        limits: the limits of each query.
        define: runs a statement that defines a collection, and returns its command tag.
    """

    def __init__(self, engine: Engine, limits: QueryLimits, define: Callable[[str, Running], str]) -> None:
        super().__init__(engine, limits)
        self.define = define

    def execute(self, sql: str, running: Callable[[Callable[[], object]], object]) -> int:
        """Run a statement that changes a collection, as one commit; return how many rows it touched. See `execute`."""
        return execute(self._engine, sql, limits=self._limits, running=running).rows

    def begin(self, as_of: int | Moment | None = None) -> Transaction:
        """Begin a transaction."""
        return Transaction(self._engine, self._limits, as_of)

    def empty_database(self) -> Any:
        """Return a connection to an empty DuckDB that reads no files; the caller closes it."""
        return open_database(QueryLimits(memory_bytes=256 << 20))
