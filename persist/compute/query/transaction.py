"""Several statements as one commit: they read what was there when the first of them came, and their own changes.

The transaction loads a collection into a DuckDB table at its first change, and changes the table. The commit writes the
differences of all tables in one record. It fails with `UpperMismatch` if another client has changed one of the
collections (snapshot isolation). A serializable transaction also fails if a collection has changed that it only read.
Memory: the collections that are changed.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from persist.compute.query.catalog import contents_of
from persist.compute.query.result import Queries, QueryLimits, QueryResult, later, sealed_connection
from persist.compute.query.statement_text import StatementText
from persist.compute.query.statements import (
    check_each_row_once,
    execute,
    fill_table,
    index_key,
    other_tables,
    read_table,
    statement_of,
)
from persist.compute.query.tables import (
    DUCKDB,
    Path,
    TableAt,
    add_functions,
    make_schema,
    path_of,
    quoted,
    register,
    whole_path,
    why_refused,
)
from persist.core.antichain import END, to_antichain
from persist.core.errors import (
    AsOfNotSealed,
    CollectionNotFound,
    InvalidUsage,
    PersistError,
    UpperMismatch,
    with_timeline,
)
from persist.core.rendering import list_some
from persist.core.state_rules.collection_rules import ExpectUpper
from persist.core.state_rules.contents import CollectionState
from persist.core.state_rules.erasures import erasure_number
from persist.core.timeline import Moment
from persist.engine.collection.commit import Commit
from persist.engine.collection.reads import snapshot
from persist.engine.location.collection_handle import CollectionHandle
from persist.engine.location.collection_times import LATEST
from persist.engine.location.engine import Engine
from persist.engine.location.opening import loaded
from persist.engine.read.results.result import required


@dataclass
class _Table:
    """A collection that statements change, and the path of its table in the DuckDB of the transaction."""

    handle: CollectionHandle
    path: Path


class Transaction:
    """Runs statements until it is committed or closed; for one thread at a time.

    Args:
        as_of: the time that queries read; None for the time at which the transaction began.
    """

    def __init__(self, engine: Engine, limits: QueryLimits, as_of: int | Moment | None = None) -> None:
        engine.settle()
        engine.follower.refresh()
        self._engine = engine
        self._limits = limits
        self._as_of = as_of
        self._began: dict[str, CollectionState] = {state.name: state for state in contents_of(engine)}
        self._pins = {name: state.upper - 1 for name, state in self._began.items() if 0 < state.upper < END}
        self._stack = ExitStack()
        self._connection: Any = None
        self._tables: dict[str, _Table] = {}
        self._changed: dict[str, _Table] = {}
        self._read: set[str] = set()

    @property
    def has_changed(self) -> bool:
        """Whether a statement has changed a collection."""
        return bool(self._changed)

    def ask(self, sql: str) -> QueryResult:
        """Return the answer of a query, with the changes of the transaction. Raises as `QueryResult`."""
        changes = {
            name: read_table(self._connection, changed.path, changed.handle) for name, changed in self._changed.items()
        }
        pins = self._pins if self._as_of is None else {}
        result = QueryResult(self._engine, sql, self._as_of, limits=self._limits, pins=pins, changes=changes)
        try:
            for name in result.names:
                began = self._check_there(name)
                if began.upper == 0 and self._as_of is None and name not in self._changed:
                    raise AsOfNotSealed(None, to_antichain(0), 0.0)  # Later times are not those of the beginning.
        except InvalidUsage:
            result.close()
            raise
        self._read |= {*result.names}
        return result

    def execute(self, sql: str) -> int:
        """Run a statement that changes a collection; return how many rows it touched. Raises as `execute`."""
        duckdb = required(DUCKDB)
        names = self._engine.names("")
        sql, statement, handle = statement_of(self._engine, sql, names)
        self._check_there(handle.name)
        read_tables = other_tables(sql, statement.table, handle.name, names)
        connection = self._database()
        failed: list[PersistError] = []
        with ExitStack() as stack:
            stack.callback(later(self._limits.timeout_s, self.interrupt, "time").cancel)
            try:
                changed = self._table(connection, statement, handle, failed)
                for path, table in read_tables.items():
                    self._add(connection, path, table, stack)
                add_functions(connection, sql)
                check_each_row_once(connection, statement, handle)
                connection.execute(sql)
                (count,) = map(int, connection.fetchone())
            except duckdb.Error as error:
                if failed:
                    raise failed[0] from error
                raise InvalidUsage(
                    f"DuckDB refuses the statement: {why_refused(error)}. The collections are {list_some(names)}"
                ) from error
        if count:
            self._changed.setdefault(handle.name, changed)
        return count

    def commit(self, *, is_serializable: bool = False) -> None:
        """Commit all changes at once.

        Args:
            is_serializable: refuse the commit, too, if what was only read has changed meanwhile.

        Raises:
            UpperMismatch: another client has changed a collection meanwhile.
        """
        if not self._changed:
            return
        with Commit(self._engine, action="sql") as commit:
            for name, changed in self._changed.items():
                commit.rewrite(changed.handle, partial(self._rewritten, changed, self._began[name]))
            for name in self._read - self._changed.keys() if is_serializable else ():
                if name in self._began:
                    began = self._began[name]
                    commit.add(loaded(self._engine, name), [ExpectUpper(began.id, began.upper_times)])
        self._changed.clear()

    def interrupt(self, why: str) -> None:
        """End the statement that runs, from any thread."""
        if self._connection is not None:
            self._connection.interrupt()

    def close(self) -> None:
        """Release the snapshots, and drop changes that are not committed. Idempotent."""
        self._stack.close()
        self._connection = None

    def _database(self) -> Any:
        if self._connection is None:
            self._connection = self._stack.enter_context(sealed_connection(self._limits))
        return self._connection

    def _rewritten(self, changed: _Table, began: CollectionState, contents: Iterator[pa.Table]) -> pa.Table:
        """Return the new contents of a collection, if nobody has changed the old contents.

        The commit calls this again after each conflict.
        """
        now = changed.handle.contents()
        if (now.upper, now.id, erasure_number(now)) != (began.upper, began.id, erasure_number(began)):
            raise self._conflict(began, now)
        if changed.handle.keyed is None:
            return read_table(self._connection, changed.path, changed.handle)
        return self._with_events(changed, began, contents)

    def _with_events(self, changed: _Table, began: CollectionState, contents: Iterator[pa.Table]) -> pa.Table:
        """Return the contents of a keyed collection, with pending events and the changes of the transaction."""
        connection, schema = self._connection, changed.handle.schema
        fields = pa.schema([schema.arrow.field(name) for name in schema.names])
        batches = (
            batch for table in contents for batch in pa.Table.from_arrays(table.columns, schema=fields).to_batches()
        )
        connection.register("the present rows", pa.RecordBatchReader.from_batches(fields, batches))
        connection.execute(f"CREATE OR REPLACE TABLE {quoted('the present')} AS FROM {quoted('the present rows')}")
        connection.unregister("the present rows")
        before, after = quoted(_began_name(changed.path)), path_of(changed.path)
        removed = f"(FROM {before} EXCEPT ALL FROM {after})"
        kept = f"(FROM {quoted('the present')} EXCEPT ALL {removed})"
        result = f"{kept} UNION ALL (FROM {after} EXCEPT ALL FROM {before})"
        connection.execute(f"CREATE OR REPLACE TABLE {quoted('the result')} AS {result}")
        keys = ", ".join(map(quoted, schema.key_names))
        repeated = f"FROM {quoted('the result')} SELECT {keys} GROUP BY {keys} HAVING count(*) > 1"
        missing = f"{removed} EXCEPT ALL FROM {quoted('the present')}"
        for query in (repeated, missing):
            if connection.execute(f"SELECT 1 FROM ({query}) LIMIT 1").fetchone():
                raise self._conflict(began, changed.handle.contents())
        return read_table(connection, ("the result",), changed.handle)

    def _conflict(self, began: CollectionState, now: CollectionState) -> UpperMismatch:
        return with_timeline(UpperMismatch(to_antichain(began.upper), to_antichain(now.upper)), began.timeline)

    def _check_there(self, name: str) -> CollectionState:
        """Return a collection as it was when the transaction began. Raises InvalidUsage if it was made later."""
        began, ids = self._began.get(name), self._engine.follower.state.ids
        if began is None or ids.get(name) != began.id:
            raise InvalidUsage(f"{name!r} was made after the transaction began: begin again to use it")
        return began

    def _table(
        self, connection: Any, statement: StatementText, handle: CollectionHandle, failed: list[PersistError]
    ) -> _Table:
        """Return the table of the collection that a statement changes; make it if it is not there.

        Raises:
            InvalidUsage: the statement names the collection otherwise than those before, or by its time.
        """
        path = statement.table
        table = self._tables.get(handle.name)
        if len(path) > 2 or (table is not None and whole_path(path) != whole_path(table.path)):
            raise InvalidUsage(
                f"the transaction changes {path_of(path)}: name {handle.name!r} without a time, and always alike"
            )
        if table is None:
            as_of = self._pins.get(handle.name)
            with ExitStack() as stack:
                contents: Iterator[pa.Table] = iter(())
                if as_of is not None:
                    rows = stack.enter_context(snapshot(handle, as_of, timeout_s=0.0)).to_batches()
                    contents = (pa.Table.from_batches([batch]) for batch in rows)
                fill_table(connection, statement, handle, contents, failed)
                if handle.keyed is not None:
                    began = quoted(_began_name(path))
                    connection.execute(f"CREATE OR REPLACE TABLE {began} AS FROM {path_of(path)}")
            table = self._tables[handle.name] = _Table(handle, path)
        elif statement.is_upsert:
            index_key(connection, path, handle)
        return table

    def _add(self, connection: Any, path: Path, at: TableAt, stack: ExitStack) -> None:
        """Let a statement read a collection that it does not change, by this path, until the stack is left."""
        is_present = at.as_of in (None, LATEST)
        table = self._tables.get(at.name) if is_present else None
        if table is not None:
            if whole_path(table.path) != whole_path(path):
                make_schema(connection, path)
                connection.execute(f"CREATE VIEW {path_of(path)} AS FROM {path_of(table.path)}")
                stack.callback(connection.execute, f"DROP VIEW {path_of(path)}")
            return
        self._read.add(at.name)
        began = self._began.get(at.name)
        if is_present and began is not None and began.upper == 0:
            return  # DuckDB refuses it, if it is a table.
        with suppress(AsOfNotSealed, CollectionNotFound):  # Likewise.
            as_of = self._pins.get(at.name) if is_present else at.as_of
            contents = stack.enter_context(snapshot(loaded(self._engine, at.name), as_of, timeout_s=0.0))
            register(connection, path, contents.dataset())
            name = path_of(path) if len(path) > 1 else path[0]
            stack.callback(connection.unregister, name)
            if len(path) > 1:
                stack.callback(connection.execute, f"DROP VIEW {path_of(path)}")


def _began_name(path: Path) -> str:
    return f"began: {path_of(whole_path(path))}"


class ServedSql(Queries):
    """The queries, statements and transactions of a server of SQL; for any thread.

    Args:
        limits: of each query.
    """

    def execute(self, sql: str, running: Callable[[Callable[[], object]], object]) -> int:
        """Run a statement that changes a collection, as one commit; return how many rows it touched. See `execute`."""
        return execute(self._engine, sql, limits=self._limits, running=running).rows

    def begin(self, as_of: int | Moment | None = None) -> Transaction:
        """Begin a transaction."""
        return Transaction(self._engine, self._limits, as_of)

    def empty_database(self) -> Any:
        """Return a connection to an empty DuckDB that reads no files; the caller closes it."""
        return sealed_connection(QueryLimits(memory_bytes=256 << 20))
