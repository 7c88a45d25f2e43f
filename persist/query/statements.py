"""Statements that change a collection: UPDATE, DELETE, INSERT and MERGE INTO, each done as one commit.

DuckDB carries a statement out on a table that holds the contents of its collection. What the table holds then becomes
the contents, by the difference, so records that it left alone are not written. Other collections of the statement are
read as of their last sealed times. If somebody else changes the collection meanwhile, the statement is carried out
again on what is there then; with a time given, it is refused if the collection is not keyed. If it is, events that wait
at times up to that of the commit are resolved first. Cost: reading the whole collection. Memory: as much.
"""

import re
from collections.abc import Generator, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from persist.codecs import did_you_mean
from persist.engine import CollectionHandle, Engine, loaded, rewrite, snapshot
from persist.errors import AsOfNotSealed, CollectionNotFound, InvalidUsage, PersistError
from persist.query.tables import (
    DUCKDB,
    SEALED_OFF,
    add_functions,
    collection_of,
    path_of,
    quoted,
    register,
    why_refused,
)
from persist.read import ArrowResult, required
from persist.shown import some_of
from persist.timeline import Moment

_STATEMENT = re.compile(
    r"(?:\s|--[^\n]*(?:\n|$)|/\*.*?\*/)*"
    r"(?:UPDATE|DELETE\s+FROM|INSERT\s+INTO|MERGE\s+INTO)\s+"
    r'((?:"(?:[^"]|"")+"|[^\W\d][\w$-]*)(?:\s*\.\s*(?:"(?:[^"]|"")+"|[^\W\d][\w$-]*))*)',
    re.IGNORECASE | re.DOTALL,
)
_PART = re.compile(r'"((?:[^"]|"")+)"|([^\s."]+)')


@dataclass(frozen=True, slots=True)
class Changed:
    """What a statement has done.

    Attributes:
        collection: the name of the collection that it changed.
        rows: how many rows it touched, as DuckDB counts them.
        seqno: of its commit; of the state that it left as it was if it touched none.
        time: at which its changes are; None if it touched no row, or the time was given.
    """

    collection: str
    rows: int
    seqno: int
    time: int | None


class Outcome(ArrowResult):
    """What a statement has done, as one row."""

    def __init__(self, changed: Changed) -> None:
        types = {"collection": pa.string(), "rows": pa.int64(), "seqno": pa.int64(), "time": pa.int64()}
        self._table = pa.table({name: pa.array([getattr(changed, name)], kind) for name, kind in types.items()})

    @property
    def schema(self) -> pa.Schema:
        """Columns `collection`, `rows`, `seqno` and `time`, as of `Changed`."""
        return self._table.schema

    def close(self) -> None:
        """Do nothing: it holds nothing that is to be let go of."""

    def explain(self) -> str:
        """Return that there is nothing to explain."""
        return "one row, of a statement that is done"

    def _tables(self) -> Generator[pa.Table, None, None]:
        yield self._table


def is_statement(sql: str) -> bool:
    """Return whether a text begins like a statement that changes a collection."""
    return isinstance(sql, str) and _STATEMENT.match(sql) is not None


def execute(engine: Engine, sql: str, time: int | Moment | None = None) -> Changed:
    """Carry a statement out, durably.

    Args:
        time: of its changes, which is sealed with them; that of the commit if it is left out.

    Raises:
        InvalidUsage: it is none, names what is not there, or DuckDB refuses it; or its collection is a view, or has a
            column that does not come back from DuckDB as it was.
        DuplicateKeys: it would give a key of a keyed collection several rows.
        UpdatesBeyondUpper: the collection is not keyed, and somebody has written to it what is not sealed.
    """
    duckdb = required(DUCKDB)
    engine.writer("sql")
    match = _STATEMENT.match(sql) if isinstance(sql, str) else None
    if match is None:
        raise InvalidUsage(
            f"{sql!r:.100} is no statement that changes a collection: begin with UPDATE, DELETE FROM, INSERT INTO or "
            "MERGE INTO, and the name of the collection"
        )
    parts = tuple((part[1] or "").replace('""', '"') or part[2] for part in _PART.finditer(match[1]))
    names = engine.names("")
    handle = loaded(engine, _named(parts, names))
    if handle.contents().view is not None:
        raise InvalidUsage(
            f"{handle.name!r} is a view: it holds what its query gives, and no statement changes it. Change the "
            "collections that it reads, then refresh it"
        )
    if handle.contents().upper.is_empty:
        raise InvalidUsage(f"{handle.name!r} is complete for ever: nothing can change it any more")
    count = 0

    def rewritten(contents: Iterator[pa.Table]) -> pa.Table | None:
        nonlocal count
        failed: list[PersistError] = []
        with ExitStack() as stack, duckdb.connect(config=SEALED_OFF) as connection:
            try:
                _fill(connection, parts, handle, contents, failed)
                for name in names:
                    if name != handle.name and re.search(rf"(?<!\w){re.escape(name)}(?!\w)", sql, re.IGNORECASE):
                        with suppress(AsOfNotSealed, CollectionNotFound):  # DuckDB refuses it then, if it is a table.
                            others = stack.enter_context(snapshot(loaded(engine, name), timeout_s=0.0))
                            register(connection, name.split(".") if name.count(".") == 1 else [name], others.dataset())
                add_functions(connection, sql)
                count = _carried_out(connection, sql)
                return _contents_of(connection, parts, handle) if count else None
            except duckdb.Error as error:
                if failed:
                    raise failed[0] from error
                raise InvalidUsage(
                    f"DuckDB refuses the statement: {why_refused(error)}. The collections are {some_of(names)}"
                ) from error

    committed = rewrite(handle, rewritten, time).committed()
    return Changed(handle.name, count, committed.seqno, committed.times.get(handle.id))


def _named(parts: tuple[str, ...], names: list[str]) -> str:
    name = collection_of(parts, names)
    if name is None or len(parts) > 2:
        wanted = ".".join(parts)
        hint = did_you_mean(wanted, names) or ":"
        raise InvalidUsage(f"the statement changes {wanted!r}, which is no collection here{hint} there are {names}")
    return name


def _fill(
    connection: Any,
    parts: tuple[str, ...],
    handle: CollectionHandle,
    contents: Iterator[pa.Table],
    failed: list[PersistError],
) -> None:
    """Make the table that the statement changes, of contents; note why reading them failed, if it did."""
    schema = pa.schema([handle.schema.arrow.field(name) for name in handle.schema.names])

    def batches() -> Iterator[pa.RecordBatch]:
        try:
            for table in contents:
                yield from pa.Table.from_arrays(table.columns, schema=schema).to_batches()
        except PersistError as error:  # DuckDB tells of it by a text of its own only.
            failed.append(error)
            raise

    dataset = pa.RecordBatchReader.from_batches(schema, batches())
    if len(parts) > 1:
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted(parts[0])}")
    connection.register("the contents", dataset)
    connection.execute(f'CREATE TABLE {path_of(parts)} AS FROM "the contents"')
    connection.unregister("the contents")
    kept = connection.sql(f"FROM {path_of(parts)} LIMIT 0").to_arrow_table().schema
    for field, back in zip(schema, kept, strict=True):
        if not _is_same(field.type, back.type):
            raise InvalidUsage(
                f"column {field.name!r} of type {field.type} comes back from DuckDB as {back.type}, so no statement "
                f"can change {handle.name!r}: use overwrite() or delete()"
            )


def _is_same(kind: pa.DataType, back: pa.DataType) -> bool:
    """Return whether a type of DuckDB holds all values of a column; texts and time zones may be called otherwise."""
    if pat.is_timestamp(kind) and pat.is_timestamp(back):
        return kind.unit == back.unit and (kind.tz is None) == (back.tz is None)
    for same in ((pat.is_large_string, pat.is_string, pat.is_string_view), (pat.is_large_binary, pat.is_binary)):
        if any(is_kind(kind) for is_kind in same) and any(is_kind(back) for is_kind in same):
            return True
    return bool(kind == back)


def _carried_out(connection: Any, sql: str) -> int:
    """Run the statement; return how many rows it touched."""
    statements = connection.extract_statements(sql)
    if len(statements) != 1:
        raise InvalidUsage(f"there are {len(statements)} statements: give one, which is one commit")
    connection.execute(statements[0])
    if [column[0] for column in connection.description] != ["Count"]:
        raise InvalidUsage("the statement has RETURNING: leave it out, and read the changes of its time instead")
    (count,) = connection.fetchone()
    return int(count)


def _contents_of(connection: Any, parts: tuple[str, ...], handle: CollectionHandle) -> pa.Table:
    schema = pa.schema([handle.schema.arrow.field(name) for name in handle.schema.names])
    table = connection.sql(f"FROM {path_of(parts)}").to_arrow_table()
    return table.cast(pa.schema([field.with_nullable(True) for field in schema]))
