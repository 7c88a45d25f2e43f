"""Statements of SQL by the call of the same meaning.

| statement | here |
|---|---|
| UPDATE, DELETE, INSERT, MERGE | one commit of the changes |
| CREATE TABLE t (…) | create_or_load; PRIMARY KEY makes it a keyed collection |
| CREATE TABLE t AS query | write, to a new collection without a key |
| CREATE VIEW v AS query | create_view and refresh; OR REPLACE is redefine |
| REFRESH VIEW v | refresh |
| DROP, ALTER, COMMENT | drop, evolve and rename, describe |
| COPY … TO 'file' | rows of a query into a file |
"""

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any, Protocol

import pyarrow as pa

from persist.api.collection import Collection
from persist.api.view import View
from persist.codecs.types.schema import CollectionSchema
from persist.codecs.updates.inputs import select_sides_like
from persist.compute.query import (
    Definition,
    QueryLimits,
    QueryResult,
    classify_statement,
    copy_rows,
    execute,
)
from persist.core.errors import CollectionExists, InvalidUsage, PersistError
from persist.core.keyed.form import Keyed, build_form
from persist.core.log import kinds
from persist.core.progress import limit_work
from persist.core.timeline import Moment
from persist.engine.location.collection_handle import CollectionHandle
from persist.engine.location.engine import Engine
from persist.engine.write.commit_future import CommitFuture
from persist.engine.write.write_options import WriteMode

Running = Callable[[Callable[[], object]], object]


class Definer(Protocol):
    """The part of a client that statements need."""

    engine: Engine

    def load(self, name: str) -> Collection:
        """Return the collection of a name."""

    def write(self, name: str, rows: Any, *, key: Any, mode: WriteMode | None) -> CommitFuture:
        """Write rows to a collection; create it if necessary."""


@dataclass(frozen=True, slots=True)
class DefinitionResult:
    """The effect of a statement that defines a collection.

    Attributes:
        statement: its first words, such as "CREATE TABLE".
        collection: the name of the collection.
        rows: the number of rows that the statement wrote to a new collection.
        seqno: a state of the location that has the effect.
    """

    statement: str
    collection: str
    rows: int
    seqno: int


def run_statement(
    client: Definer, sql: str, time: int | Moment | None = None, *, variables: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Run any statement; return counts and names of its effect.

    It takes the arguments of `execute`, `define` and `copy_rows`, and raises their errors.
    """
    kind = classify_statement(sql)
    if kind == "change":
        return asdict(execute(client.engine, sql, time, variables=variables))
    if time is not None:
        raise InvalidUsage("time= is only for UPDATE, DELETE, INSERT and MERGE: leave it out")
    if kind == "definition":
        return asdict(define_collection(client, sql, variables=variables))
    file, rows = copy_rows(client.engine, sql, variables)
    return {"file": file, "rows": rows}


def define_collection(
    client: Definer,
    sql: str,
    *,
    variables: Mapping[str, Any] | None = None,
    limits: QueryLimits | None = None,
    running: Running = lambda interrupt: None,
) -> DefinitionResult:
    """Create, change or drop a collection by an SQL statement, as one commit.

    A new view is refreshed after the commit.

    Args:
        variables: the values of the statement's parameters, by name.
        limits: the limits of time and memory, also for the refresh.
        running: called first, with a function that another thread may call to end the work.

    Raises:
        InvalidUsage: DuckDB refuses the statement, or collections do not support it.
        CollectionNotFound, CollectionExists: the statement needs a missing collection, or the name is taken.
        Other errors: as the call of the same meaning.
    """
    client.engine.writer("sql")
    statement = Definition.parse(sql)
    name, is_there = statement.find_table(client.engine.names(""))
    rows = 0
    with limit_work(*((None, None) if limits is None else (limits.timeout_s, limits.memory_bytes))) as work:
        running(work.cancel)
        if statement.verb == "CREATE":
            rows = _create(client, statement, name, is_there, variables, limits, running)
        elif is_there or not statement.condition:
            _alter_collection(client.load(name), statement)
    return DefinitionResult(statement.words, name, rows, client.engine.follower.state.seqno)


def define_for_postgres(client: Definer, limits: QueryLimits, sql: str, running: Running) -> str:
    """Run a defining statement of a Postgres client; return its command tag."""
    done = define_collection(client, sql, limits=limits, running=running)
    return f"SELECT {done.rows}" if done.rows else done.statement.partition(" ON ")[0]


def _create(
    client: Definer,
    statement: Definition,
    name: str,
    is_there: bool,
    variables: Mapping[str, Any] | None,
    limits: QueryLimits | None,
    running: Running,
) -> int:
    """Create a collection, or redefine a view; return its number of rows."""
    query = statement.query
    if is_there and (statement.condition or not statement.is_replacing):
        if statement.condition:
            return 0
        raise CollectionExists(name)
    if statement.kind == "VIEW":
        if query is None:
            raise InvalidUsage("CREATE VIEW needs a query: CREATE VIEW name AS SELECT …")
        _define_view(client, name, query, exists=is_there)
    elif is_there:
        raise InvalidUsage(
            f"CREATE OR REPLACE TABLE would drop the history of {name!r}: client.write({name!r}, rows, "
            'mode="overwrite") replaces its rows and keeps that; or DROP TABLE first'
        )
    elif query is None:
        _create_table(client, name, statement)
    else:
        answer = QueryResult(client.engine, query, None, variables=variables, limits=limits)
        with closing(answer):
            running(lambda: answer.interrupt("canceled"))
            return _create_filled_table(client, name, answer)
    return 0


def _create_table(client: Definer, name: str, statement: Definition) -> None:
    """Create a collection with a table's columns, sealed so that it is readable."""
    columns, key = statement.read_new_columns(name)
    schema = CollectionSchema.of(*select_sides_like(columns, key), "ms")
    form = build_form(Keyed(), schema) if key else None
    id_ = uuid.uuid4().hex
    create = kinds.Create(id_, name, schema.to_json(), form)
    handle = CollectionHandle(client.engine, id_, name, schema, form, create=create)
    handle.submit("sql", [handle.commit_time_step()]).result()


def _create_filled_table(client: Definer, name: str, result: QueryResult) -> int:
    """Create a collection without a key from a query's rows; return their number."""
    count, schema = 0, result.get_stored_schema()

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal count
        for batch in result.to_batches():
            count += batch.num_rows
            if batch.num_rows:
                yield batch.cast(schema)

    following = batches()
    first = next(following, None)
    stream = () if first is None else chain([first], following)
    rows = pa.RecordBatchReader.from_batches(schema, stream) if stream else schema.empty_table()
    client.write(name, rows, key=[], mode="error").result()
    return count


def _define_view(client: Definer, name: str, query: str, *, exists: bool) -> None:
    """Create a view, or redefine an existing one."""
    from persist.compute.sql import (  # Here: the dataflow takes long to load.
        collect_options,
        load_or_create_view,
        load_view_by_name,
    )

    options = collect_options(None, None)
    with client.engine.follower.looks.share_look():
        if exists:
            view = View(load_view_by_name(client.engine, name, options))
            view.redefine(query)
            view.refresh()
            return
        view = View(load_or_create_view(client.engine, name, query, None, None, options, is_new=True))
        try:
            view.refresh()
        except BaseException:  # A statement that fails leaves nothing.
            with suppress(PersistError):
                view.drop().result()
            raise


def _alter_collection(collection: Collection, statement: Definition) -> None:
    """Change a collection as a statement changes its table."""
    if statement.verb == "REFRESH":
        from persist.compute.sql import collect_options, load_view_by_name  # As above.

        if statement.rest.strip(" \n\t;"):
            raise InvalidUsage(f"REFRESH VIEW … {statement.rest:.40}: write REFRESH VIEW and the name alone")
        View(load_view_by_name(collection.handle.engine, collection.name, collect_options(None, None))).refresh()
        return
    change = statement.plan_change(collection.handle.contents())
    if change.name is not None:
        collection.rename(change.name).result()
    elif change.evolution:
        collection.evolve(**change.evolution)
    elif "" in change.comments:
        collection.describe(change.comments[""]).result()
    elif change.comments:
        collection.describe(columns=change.comments).result()
    elif statement.verb == "DROP":
        collection.drop().result()
