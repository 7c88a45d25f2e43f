"""Statements that change a collection: UPDATE, DELETE, INSERT and MERGE INTO, each done as one commit.

DuckDB runs a statement on a table with the rows of the collection that it may touch
(`persist.compute.query.touched_rows`). The commit is the difference between the table before and after. Other
collections of the statement are read as of their last sealed times. If another client changes the collection meanwhile,
the statement is run again on the new contents. If its time is fixed and the collection is not keyed, it is refused. In
a keyed collection, pending events at times up to that of the commit are resolved first. Cost and memory: the touched
rows; or the whole collection, if these cannot be determined.

A statement that would change one row for several rows of its source is refused, unless these rows are equal. So is an
INSERT … ON CONFLICT of several rows of one key.
"""

import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from persist.codecs.errors import did_you_mean
from persist.codecs.evolution import decode_defaults
from persist.codecs.types.arrow_types import JSON
from persist.codecs.types.sql_names import check_sql_names, fold_case
from persist.compute.query.databases import QueryLimits, cannot_change_database, lend_database
from persist.compute.query.result import call_later
from persist.compute.query.statement_text import StatementText, parse_statement_text
from persist.compute.query.tables import (
    DUCKDB,
    FILES_REMEDY,
    MAIN,
    Path,
    TableAt,
    add_functions,
    drop_repeated_tables,
    explain_refusal,
    find_read_frames,
    format_path,
    iterate_paths,
    list_paths,
    make_dataset,
    make_schema,
    match_collection,
    move_times_to_catalogs,
    normalise_path,
    quote_name,
    register_table,
    resolve_table,
    to_sql_schema,
)
from persist.compute.query.touched_rows import read_touched
from persist.core.antichain import END
from persist.core.errors import AsOfNotSealed, CollectionNotFound, InvalidUsage, PersistError
from persist.core.rendering import list_some
from persist.core.timeline import Moment
from persist.engine.collection.commit import rewrite
from persist.engine.collection.keyed_events import ReadRows, Replacement
from persist.engine.collection.reads import snapshot
from persist.engine.location.collection_handle import CollectionHandle
from persist.engine.location.collection_times import LATEST
from persist.engine.location.engine import Engine
from persist.engine.location.opening import load_handle
from persist.engine.read.results.result import ArrowResult, require_package

BEFORE_SHARE = 4  # The touched rows take at most this fraction of the memory budget; otherwise all rows are read.
_CONTENTS, _NEW_ROWS = "\tcontents", "\tnew rows"  # No collection has a control character in its name.


@dataclass(frozen=True, slots=True)
class StatementResult:
    """The result of a statement that changes a collection.

    Attributes:
        collection: the name of the collection that it changed.
        rows: how many rows it touched, as DuckDB counts them.
        seqno: the seqno of its commit; if it touched no row, of the state that it read.
        time: the time of its changes; None if it touched no row, or if the caller set the time.
    """

    collection: str
    rows: int
    seqno: int
    time: int | None


class Outcome(ArrowResult):
    """The result of a statement, as a table of one row."""

    def __init__(self, facts: Mapping[str, str | int | None]) -> None:
        kinds = {name: pa.string() if isinstance(fact, str) else pa.int64() for name, fact in facts.items()}
        self._table = pa.table({name: pa.array([fact], kinds[name]) for name, fact in facts.items()})

    def __repr__(self) -> str:
        row = self._table.to_pylist()[0]
        return f"Outcome({', '.join(f'{name}={value!r}' for name, value in row.items())})"

    @property
    def schema(self) -> pa.Schema:
        """Columns such as `collection`, `rows`, `seqno` and `time`, as of `StatementResult`."""
        return self._table.schema

    def close(self) -> None:
        """Do nothing, because nothing is held."""

    def explain(self) -> str:
        """Return a text that says that there is nothing to explain."""
        return "one row, of a statement that is done"

    def _tables(self) -> Generator[pa.Table, None, None]:
        """Yield the table of the one row."""
        yield self._table


def execute(
    engine: Engine,
    sql: str,
    time: int | Moment | None = None,
    *,
    variables: Mapping[str, Any] | None = None,
    limits: QueryLimits | None = None,
    running: Callable[[Callable[[], object]], object] = lambda interrupt: None,
) -> StatementResult:
    """Run a statement that changes a collection, as one commit.

    Args:
        time: the time of the changes, which the commit seals; by default the time of the commit.
        variables: as for `QueryResult`.
        limits: of memory and time; None for no limits.
        running: is called with a function that interrupts the statement.

    Raises:
        InvalidUsage: it is not a statement, names what does not exist, or DuckDB refuses it; or its collection is a
            view, or has a column whose values DuckDB would change.
        DuplicateKeys: a key of a keyed collection would get several rows.
        UpdatesBeyondUpper: the collection is not keyed, and has updates that are not sealed.
    """
    duckdb = require_package(DUCKDB)
    names = engine.names("")
    sql, statement, handle = parse_statement_parts(engine, sql, names)
    others = list_other_tables(sql, statement.table, handle.name, names)
    frames = find_read_frames(
        [path for path in list_paths(sql) if match_collection(path, names) is None], variables or {}
    )
    count = 0

    def replace_rows(read: ReadRows) -> Replacement | None:
        nonlocal count
        failed: list[PersistError] = []
        with ExitStack() as stack, lend_database(reads_files=variables is not None, limits=limits) as lent:
            connection = lent.connection
            running(connection.interrupt)
            if limits is not None:
                stack.callback(call_later(limits.timeout_s, lambda why: connection.interrupt(), "time").cancel)
            try:
                create_target_table(connection, statement.table, handle)
                for path, table in others.items():
                    create_read_table(connection, path, table, statement.table, handle, stack)
                for name, frame in frames.items():
                    register_table(connection, (name,), frame)
                adds_functions = add_functions(connection, sql)
                connection.extract_statements(sql)  # Which is SQL, before its parts are looked at.
                reads_itself = reads_own_table(sql, statement.table) or TableAt(handle.name) in others.values()
                before = load_rows(connection, sql, statement, handle, collect_failures(read, failed), reads_itself)
                check_each_row_once(connection, statement, handle)
                connection.execute(sql)
                (count,) = map(int, connection.fetchone())
                changed = Replacement(before, read_table(connection, statement.table, handle)) if count else None
                has_catalogs = any(len(path) > 1 for path in (statement.table, *others))
                if cannot_change_database(sql) and not (adds_functions or has_catalogs):
                    for name in (statement.table[0], _NEW_ROWS):
                        connection.execute(f"DROP TABLE IF EXISTS {quote_name(name)}")
                    lent.is_empty = True
                return changed
            except duckdb.Error as error:
                if failed:
                    raise failed[0] from error
                why = f"{explain_refusal(error)}. The collections are {list_some(names)}."
                refused = InvalidUsage(f"DuckDB refuses the statement: {why}")
                is_missing = type(error).__name__ in ("CatalogException", "PermissionException")
                raise (refused.with_remedy(FILES_REMEDY) if is_missing else refused) from error

    committed = rewrite(handle, replace_rows, time).get_commit()
    return StatementResult(handle.name, count, committed.seqno, committed.times.get(handle.id))


def parse_statement_parts(engine: Engine, sql: str, names: list[str]) -> tuple[str, StatementText, CollectionHandle]:
    """Return a statement with times written as catalogs, its parts, and the collection it changes.

    `names`: the names of all collections.
    """
    engine.writer("sql")
    sql, _ = move_times_to_catalogs(sql)
    statement = parse_statement_text(sql)
    if statement is None:
        raise InvalidUsage(
            f"{sql!r:.100} is not a statement that changes a collection: begin with UPDATE, DELETE FROM, INSERT "
            f"INTO or "
            "MERGE INTO, and the name of the collection"
        )
    handle = load_handle(engine, _match_table(statement.table, names))
    if handle.contents().view is not None:
        raise InvalidUsage(
            f"{handle.name!r} is a view: its query determines its contents, and no statement changes it. Change the "
            "collections that it reads, then refresh it"
        )
    if handle.contents().upper == END:
        raise InvalidUsage(f"{handle.name!r} is complete for ever: nothing can change it any more")
    if statement.is_upsert and handle.keyed is None:
        raise InvalidUsage(
            f"{handle.name!r} is not keyed, so it may hold several rows of a key, and none conflicts with another: "
            "leave ON CONFLICT and OR REPLACE out, or use MERGE INTO, or make it with keyed=persist.Keyed()"
        )
    return sql, statement, handle


def _match_table(path: Path, names: list[str]) -> str:
    """Return the collection that a path names. Raises InvalidUsage: there is none, or the path has a time."""
    table = resolve_table(path, names)
    if table is None:
        wanted = ".".join(path)
        hint = did_you_mean(wanted, names) or ":"
        raise InvalidUsage(f"the statement changes {wanted!r}, which is not a collection here{hint} there are {names}")
    if table.as_of not in (None, LATEST):
        raise InvalidUsage(f"{format_path(path)} is {table.name!r} as of a time: a statement changes what is there now")
    return table.name


def list_other_tables(sql: str, target: Path, name: str, names: list[str]) -> dict[Path, TableAt]:
    """Return the other tables that a statement may read. `name`: the collection that it changes."""
    tables = {target: TableAt(name)}
    for path in list_paths(sql):
        # A path of two parts may be a column of a table: so it is not a tag, and its table.
        is_table = len(path) != 2 or path[0].startswith("@") or fold_case(path[0]) in (MAIN, LATEST)
        is_table = is_table or match_collection(path, names) is not None
        table = resolve_table(path, names) if is_table else None
        if table is not None:
            tables[path] = table
    tables = drop_repeated_tables(tables)
    return {path: table for path, table in tables.items() if normalise_path(path) != normalise_path(target)}


def create_read_table(
    connection: Any, path: Path, table: TableAt, target: Path, handle: CollectionHandle, stack: ExitStack
) -> None:
    """Create the table of a collection that a statement reads."""
    if table == TableAt(handle.name):
        make_schema(connection, path)
        connection.execute(f"CREATE VIEW {format_path(path)} AS FROM {format_path(target)}")
        return
    with suppress(AsOfNotSealed, CollectionNotFound):  # DuckDB refuses it then, if it is a table.
        other = snapshot(load_handle(handle.engine, table.name), table.as_of, timeout_s=0.0)
        register_table(connection, path, make_dataset(other.schema, stack.enter_context(other).read_narrowed))


def check_each_row_once(connection: Any, statement: StatementText, handle: CollectionHandle) -> None:
    """Raise InvalidUsage if a statement changes a row twice, or inserts a key twice."""
    columns = handle.schema.names
    key = handle.schema.key_names or columns
    if statement.is_upsert:
        connection.execute(
            f"CREATE OR REPLACE TABLE {quote_name(_NEW_ROWS)} AS FROM {format_path(statement.table)} LIMIT 0"
        )
        connection.execute(statement.make_plain_insert(_NEW_ROWS))
        names = ", ".join(map(quote_name, key))
        query: str | None = f"SELECT {names} FROM {quote_name(_NEW_ROWS)} GROUP BY {names} HAVING count(*) > 1 LIMIT 1"
    else:
        query = statement.make_repeat_query(key, columns)
    repeated = [] if query is None else connection.execute(query).fetchall()
    if repeated and not statement.is_upsert:  # Equal rows of the source agree.
        repeated = connection.execute(statement.make_repeat_query(key, columns, differ=True)).fetchall()
    if repeated:
        shown = ", ".join(f"{name}={value!r:.80}" for name, value in zip(key, repeated[0], strict=True))
        raise InvalidUsage(
            f"the statement has several rows for the one with {shown} of {handle.name!r}, and any of them might count: "
            "let its source have one row for each, by GROUP BY, DISTINCT or QUALIFY row_number() OVER (…) = 1"
        )


def load_rows(
    connection: Any, sql: str, statement: StatementText, handle: CollectionHandle, read: ReadRows, reads_itself: bool
) -> pa.Table | None:
    """Load the rows that a statement may touch; return them, or None for all.

    `reads_itself`: whether the statement also reads the table that it changes.
    """
    rows = None if reads_itself else read_touched(connection, sql, statement, handle.schema, read)
    insert_rows(connection, statement.table, handle, read(None) if rows is None else rows)
    before = None if rows is None else read_table(connection, statement.table, handle)
    if before is not None and before.nbytes > handle.engine.reader().memory_budget // BEFORE_SHARE:
        # The difference to all contents is made slice by slice, so the old rows are not kept in memory.
        connection.execute(f"TRUNCATE {format_path(statement.table)}").fetchall()
        insert_rows(connection, statement.table, handle, read(None))
        before = None
    if statement.is_upsert:
        create_key_index(connection, statement.table, handle)
    return before


def reads_own_table(sql: str, table: Path) -> bool:
    """Return whether a statement also reads the table that it changes."""
    paths = [*iterate_paths(sql)]
    return sum(normalise_path(path) == normalise_path(table) for path in paths) > 1 or has_unparsed_mention(
        sql, table[-1], paths
    )


def has_unparsed_mention(sql: str, name: str, paths: Iterable[Path]) -> bool:
    """Return whether SQL may name a table where parsing does not find it."""
    name, seen = fold_case(name), sum(fold_case(part) == fold_case(name) for path in paths for part in path)
    return len(re.findall(rf"(?<!\w){re.escape(name)}(?!\w)", fold_case(sql))) > seen


def collect_failures(read: ReadRows, failed: list[PersistError]) -> ReadRows:
    """Return a reader that also appends its errors to `failed`; DuckDB keeps only their texts."""

    def noting(by: pc.Expression | pa.Table | None) -> Iterator[pa.Table]:
        try:
            yield from read(by)
        except PersistError as error:
            failed.append(error)
            raise

    return noting


def create_target_table(connection: Any, path: Path, handle: CollectionHandle) -> None:
    """Create a table for a collection; raise InvalidUsage if a type would lose values."""
    schema = pa.schema([handle.schema.arrow.field(name) for name in handle.schema.names])
    check_sql_names(handle.name, schema)
    make_schema(connection, path)
    documents = handle.schema.json
    fields = (field.with_type(JSON) if field.name in documents else field for field in to_sql_schema(schema))
    connection.register(_CONTENTS, pa.schema(fields).empty_table())
    connection.execute(f"CREATE TABLE {format_path(path)} AS FROM {quote_name(_CONTENTS)}")
    connection.unregister(_CONTENTS)
    for name, value in handle.schema.compute_once(decode_defaults).items():
        column = quote_name(name)
        (field,) = to_sql_schema(pa.schema([(name, value.type)]))
        connection.register(_CONTENTS, pa.table({name: pa.repeat(value, 1).cast(field.type)}))
        query = f"SELECT {column}::VARCHAR, typeof({column}) FROM {quote_name(_CONTENTS)}"
        ((text, kind),) = connection.execute(query).fetchall()
        connection.unregister(_CONTENTS)
        literal = "CAST('{}' AS {})".format(text.replace("'", "''"), kind)
        connection.execute(f"ALTER TABLE {format_path(path)} ALTER COLUMN {column} SET DEFAULT {literal}")
    back_types = connection.sql(f"FROM {format_path(path)} LIMIT 0").to_arrow_table().schema
    for field, back in zip(schema, back_types, strict=True):
        if not _is_lossless(field.type, back.type):
            raise InvalidUsage(
                f"column {field.name!r} of type {field.type} comes back from DuckDB as {back.type}, so no statement "
                f"can change {handle.name!r}: use overwrite() or delete()"
            )


def insert_rows(connection: Any, path: Path, handle: CollectionHandle, contents: Iterator[pa.Table]) -> None:
    """Add rows of a collection to its table."""
    schema = pa.schema([handle.schema.arrow.field(name) for name in handle.schema.names])
    batches = (batch for table in contents for batch in pa.Table.from_arrays(table.columns, schema=schema).to_batches())
    connection.register(_CONTENTS, pa.RecordBatchReader.from_batches(schema, batches))
    connection.execute(f"INSERT INTO {format_path(path)} FROM {quote_name(_CONTENTS)}")
    connection.unregister(_CONTENTS)


def create_key_index(connection: Any, path: Path, handle: CollectionHandle) -> None:
    """Make the key of a table unique, as ON CONFLICT and OR REPLACE need."""
    keys = ", ".join(map(quote_name, handle.schema.key_names))
    index = quote_name(f"key of {format_path(path)}")
    connection.execute(f"CREATE UNIQUE INDEX IF NOT EXISTS {index} ON {format_path(path)} ({keys})")


def _is_lossless(kind: pa.DataType, back: pa.DataType) -> bool:
    """Return whether `back`, the type that DuckDB returns, has all values of a column."""
    if pat.is_timestamp(kind) and pat.is_timestamp(back):
        return kind.unit == back.unit and (kind.tz is None) == (back.tz is None)
    for same in ((pat.is_large_string, pat.is_string, pat.is_string_view), (pat.is_large_binary, pat.is_binary)):
        if any(is_kind(kind) for is_kind in same) and any(is_kind(back) for is_kind in same):
            return True
    return bool(kind == back)


def read_table(connection: Any, path: Path, handle: CollectionHandle) -> pa.Table:
    """Return the rows of a collection's table, with the collection's columns."""
    schema = pa.schema([handle.schema.arrow.field(name) for name in handle.schema.names])
    table = connection.sql(f"FROM {format_path(path)}").to_arrow_table()
    return table.cast(pa.schema([field.with_nullable(True) for field in schema]))
