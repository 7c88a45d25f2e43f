"""Queries of DuckDB over collections, each as of one time, all at one point of the log.

A table of a query is a collection, by its name: `orders`, or `sales.orders` for the collection of that name. With a
catalog before its schema, it is the collection as of a time: `latest.main.orders`, `"@2026-11-23T12:00Z".sales.orders`,
and `"quarter-end".main.orders` for a tag. The schema `main` is that of names without a dot. `orders VERSION AS OF
7` and its like (`persist.compute.query.tables`) mean `"@7".main.orders`.

`Queries` answers the clients of an SQL server, within limits, and lists the collections for them.
"""

import re
import threading
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from contextvars import copy_context
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.compute as pc

from persist.codecs.errors import did_you_mean
from persist.codecs.types.arrow_types import JSON
from persist.compute.index import enable_index_reads
from persist.compute.query.catalog import TableDescription, create_tables, list_tables, load_all_states, reads_catalog
from persist.compute.query.databases import QueryLimits, cannot_change_database, lend_database
from persist.compute.query.document_filters import find_document_filters
from persist.compute.query.parsing import parse_query, walk_parts
from persist.compute.query.statement_text import is_statement
from persist.compute.query.tables import (
    DUCKDB,
    FILES_REMEDY,
    Path,
    TableAt,
    add_functions,
    drop_repeated_tables,
    explain_refusal,
    find_read_frames,
    format_path,
    make_dataset,
    move_times_to_catalogs,
    register_table,
    resolve_table,
)
from persist.compute.query.time_windows import find_windowed_table
from persist.core.errors import InvalidUsage, PersistError, Unavailable
from persist.core.rendering import list_some
from persist.core.timeline import Moment
from persist.engine.collection.reads import open_snapshots
from persist.engine.location.collection_handle import CollectionHandle
from persist.engine.location.collection_times import LATEST
from persist.engine.location.engine import Engine
from persist.engine.location.opening import load_handles
from persist.engine.read.results.result import ArrowResult, require_package
from persist.engine.read.results.snapshot import Snapshot

BATCH_ROWS = 100_000
INTERRUPT_AGAIN_S = 0.05
QUERIES_MAX = 8  # Queries that run at a time.
TURN_S = 10.0

_CHANGING = re.compile(r"(?:\s|--[^\n]*\n|/\*.*?\*/)*(?:ALTER|COMMENT|COPY|CREATE|DROP|REFRESH)\b", re.I | re.S)
_REFUSAL = re.compile(r"([A-Z][\w ]*) Error: ")
_WITHOUT_ARROW = {"UHUGEINT", "BIT", "BIGNUM", "VARINT", "TIME WITH TIME ZONE"}

AsOf = int | Moment | Mapping[str, int | Moment] | None


class _ReadLog:
    """Notes the reads of a query and their errors, of which DuckDB keeps only texts.

    It does not refer to the query's answer, because Python cannot free a cycle of objects through DuckDB.

    Attributes:
        failures: the errors of reads.
        reads: explanations of reads, during `explain`.
    """

    def __init__(self) -> None:
        self.failures: list[PersistError] = []
        self.reads: list[str] | None = None

    def make_dataset(self, path: Path, snapshot: Snapshot, where: pc.Expression | None) -> Any:
        """Return a snapshot as a dataset that notes its reads. `where`: a filter besides DuckDB's."""

        def read(columns: Sequence[str] | None, filter: Any) -> Iterator[pa.RecordBatch]:
            names = snapshot.schema.names if columns is None else columns
            if where is not None:
                filter = where if filter is None else filter & where
            if self.reads is not None:
                self.reads.append(f"{format_path(path)}: {snapshot.explain_narrowed(names, filter)}")
            yield from snapshot.read_narrowed(names, filter)

        return make_dataset(snapshot.schema, read, self.failures)


class QueryResult(ArrowResult):
    """The answer of a query: read it repeatedly, in any form, until it is closed.

    Attributes:
        sql: the query.
        names: the collections that it reads as of the common time, without those that have a time in the query.
        seqno: a point of the log at or before the one that it reads; -1 if the query names a time.
    """

    def __init__(
        self,
        engine: Engine,
        sql: str,
        as_of: AsOf,
        *,
        variables: Mapping[str, Any] | None = None,
        limits: QueryLimits | None = None,
        parameters: Sequence[Any] = (),
        times: Mapping[Path, int] | None = None,
        pins: Mapping[str, int] | None = None,
        changes: Mapping[str, pa.Table] | None = None,
    ) -> None:
        """Bind a query to snapshots of all collections that it reads.

        Args:
            as_of: a time for all collections, or times by their names; "" is the name of all others. The default is the
                latest sealed time.
            variables: the caller's variables; data frames among them are tables. The query can then also read files and
                URLs, and DuckDB loads extensions for these. None allows neither.
            limits: of memory, time and rows; None for no limits.
            parameters: the values of `?` or `$1` in the query.
            times: the `times` of another result, to read the same.
            pins: times by the names of collections, for those without a time in the query.
            changes: rows by the names of collections, which replace their latest contents.

        Raises:
            InvalidUsage: DuckDB is not installed, or refuses the query; or a time is given for a collection that it
                does not read.
            AsOfCompacted, AsOfNotSealed: a collection cannot be read as of its time.
        """
        duckdb = require_package(DUCKDB)
        self.sql = sql
        self.times: dict[Path, int] = {}
        self.seqno = engine.follower.state.seqno
        self._limits = limits
        self._interrupted = ""
        self._busy = threading.Lock()
        self._refusals = (duckdb.Error, pa.ArrowException, OSError)
        self._collections = engine.names("")
        self._notes = _ReadLog()
        self._with_documents: dict[Path, tuple[Any, Sequence[str]]] = {}  # Collections with columns of JSON.
        with ExitStack() as opening:
            lent = opening.enter_context(lend_database(reads_files=variables is not None, limits=limits))
            self._connection = lent.connection
            adds_functions = add_functions(self._connection, sql)
            self._text, timed = move_times_to_catalogs(sql)
            parsed = parse_query(self._text, self._connection)
            tables = _list_tables(parsed)
            collections = {path: resolve_table(path, self._collections) for path in tables}
            read = drop_repeated_tables({path: table for path, table in collections.items() if table is not None})
            self.names = tuple(sorted({table.name for table in read.values() if table.as_of is None}))
            self.seqno = self.seqno if all(table.as_of is None for table in read.values()) else -1
            for path in timed.keys() - {path for path, table in collections.items() if table is not None}:
                raise timed[path].make_refusal(self._collections)
            if pins or changes:  # The latest contents of a transaction are those of its beginning.
                read = {path: TableAt(table.name) if table.as_of == LATEST else table for path, table in read.items()}
            for path, table in [*read.items()]:
                if table.as_of is None and changes is not None and table.name in changes:
                    register_table(self._connection, path, changes[table.name])
                    del read[path]
            known = {path: pins[table.name] for path, table in read.items() if pins and table.name in pins}
            known = {path: time for path, time in known.items() if read[path].as_of is None}
            bound = _resolve_tables(engine, read, as_of, {**known, **(times or {})})
            filters = find_document_filters(parsed, {path: handle.schema.json for path, (handle, _) in bound.items()})
            for path, result in zip(bound, open_snapshots([*bound.values()]), strict=True):
                opening.enter_context(enable_index_reads(bound[path][0], result))
                self.times[path] = result.as_of
                dataset = self._notes.make_dataset(path, result, filters.get(path))
                register_table(self._connection, path, dataset)
                if names := bound[path][0].schema.json:
                    self._with_documents[path] = (dataset, names)
            others = [path for path, table in collections.items() if table is None]
            for name, frame in find_read_frames(others, variables or {}).items():
                register_table(self._connection, (name,), frame)
            if lists_tables := reads_catalog(parsed):
                create_tables(self._connection, list_tables(engine), {table.name for table in read.values()})
            self._bind_parameters(parameters)
            has_catalogs = any(len(path) > 1 for path in tables)
            lent.is_empty = cannot_change_database(sql) and not (adds_functions or lists_tables or has_catalogs)
            self._close = weakref.finalize(self, opening.pop_all().close)
            self._close.atexit = False

    def _bind_parameters(self, parameters: Sequence[Any]) -> None:
        """Bind the query with parameters; later reads use these."""
        self._parameters = [*parameters]
        try:
            # This reads no rows: the first reading of the answer does.
            self._unread = relation = self._bind()
            check_arrow_types(relation)
            types = relation.limit(0).to_arrow_table().schema.types
        except self._refusals as error:
            self._raise_refusal(error)
        self._schema = pa.schema([*zip(relation.columns, types, strict=True)])

    def bind(self, parameters: Sequence[Any]) -> None:
        """Change the parameters; the answer reads the same contents."""
        try:
            with self._busy:
                self._check_open()
                self._bind_parameters(parameters)
        except BaseException:
            self.close()
            raise

    @property
    def schema(self) -> pa.Schema:
        """The columns of the answer."""
        return self._schema

    def get_stored_schema(self) -> pa.Schema:
        """Return the answer's columns as a collection would store them: documents are JSON, not text."""
        for path, (dataset, names) in self._with_documents.items():
            fields = [field.with_type(JSON) if field.name in names else field for field in dataset.schema]
            register_table(self._connection, path, pa.schema(fields).empty_table())
        kinds = self._bind().types
        for path, (dataset, _) in self._with_documents.items():
            register_table(self._connection, path, dataset)
            self._unread = None  # It was bound before.
        columns = zip(self._schema, kinds, strict=True)
        return pa.schema([field.with_type(JSON) if str(kind) == "JSON" else field for field, kind in columns])

    def close(self) -> None:
        """Release the contents that the query reads; idempotent, for any thread. Reading it again is an error."""
        self.interrupt("its answer was closed")
        with self._busy:
            self._close()

    def interrupt(self, why: str) -> None:
        """Make the reader of the answer fail with InvalidUsage and this reason."""
        self._interrupted = self._interrupted or why
        with suppress(self._refusals[0]):  # It may be closed already.
            self._connection.interrupt()
        if self._busy.locked():
            # DuckDB forgets an interruption that comes just before it begins.
            call_later(INTERRUPT_AGAIN_S, self.interrupt, why)

    def explain(self) -> str:
        """Read the answer, and explain how each collection was read for it; `print` the result.

        The text has a part for each read, in the form of `Snapshot.explain`. The query is run, because DuckDB requests
        columns and filters only when it reads.
        """
        reads: list[str] = []
        self._notes.reads = reads
        try:
            rows = len(self)
        finally:
            self._notes.reads = None
        return "\n".join([f"{rows:,} rows of", *sorted(reads)])

    def _bind(self) -> Any:
        """Return the query as a DuckDB relation with its parameters."""
        return self._connection.sql(self._text, params=self._parameters or None)

    def _take_or_bind(self) -> Any:
        """Return the bound query, which can be read once; bind it again if it was read."""
        relation, self._unread = self._unread, None
        return self._bind() if relation is None else relation

    def _tables(self) -> Generator[pa.Table, None, None]:
        """Yield the answer in tables, within the limits of time and rows."""
        with ExitStack() as stack:
            if self._limits is not None:
                timeout_s = self._limits.timeout_s
                stack.callback(call_later(timeout_s, self.interrupt, f"it took longer than {timeout_s:g} s").cancel)
            rows, reader = 0, None

            def read() -> pa.RecordBatch | None:
                nonlocal reader
                # A connection does one thing at a time, and nobody may close it meanwhile.
                with self._busy:
                    self._check_open()
                    try:
                        reader = self._take_or_bind().to_arrow_reader(BATCH_ROWS) if reader is None else reader
                        return next(reader, None)
                    except self._refusals as error:
                        self._raise_refusal(error)

            # The main thread runs handlers of signals, and not before DuckDB returns: so another one waits for it.
            is_main = threading.current_thread() is threading.main_thread()
            thread = stack.enter_context(ThreadPoolExecutor(1, "persist-query")) if is_main else None
            context = copy_context()
            while True:
                batch = read() if thread is None else self._wait_interruptibly(thread.submit(context.run, read))
                if batch is None:
                    return
                rows += batch.num_rows
                if self._limits is not None and rows > self._limits.rows_max:
                    raise InvalidUsage(f"the answer has more than {self._limits.rows_max:,} rows: narrow the query")
                yield pa.Table.from_batches([batch])

    def _wait_interruptibly(self, reading: "Future[pa.RecordBatch | None]") -> pa.RecordBatch | None:
        """Wait for a batch; an interrupt such as Ctrl-C ends the query first."""
        try:
            return reading.result()
        except KeyboardInterrupt:
            self.interrupt("it was interrupted")
            wait([reading])
            raise

    def _check_open(self) -> None:
        """Raise InvalidUsage if the answer was closed or interrupted."""
        if self._interrupted:
            raise InvalidUsage(f"the query was ended: {self._interrupted}")

    def _raise_refusal(self, error: Exception) -> NoReturn:
        """Raise the PersistError that explains an error of DuckDB."""
        if self._interrupted:
            raise InvalidUsage(f"the query was ended: {self._interrupted}") from error
        if self._notes.failures:
            raise self._notes.failures[0] from error
        # Arrow raises DuckDB's errors at later batches as OSError.
        match = _REFUSAL.match(str(error))
        if match is None and not isinstance(error, self._refusals[0]):
            raise error
        kind = match and match[1]
        if kind == "Out of Memory" and self._limits is not None:
            raise InvalidUsage(
                f"the query needs more than {self._limits.memory_bytes:,} bytes of memory: narrow it"
            ) from error
        way = "" if self._limits else FILES_REMEDY
        if kind == "Permission":
            raise InvalidUsage(f"the query reads something that is not a collection: {error}").with_remedy(
                way
            ) from error
        why = f"{explain_refusal(error)}. The collections are {list_some(self._collections)}."
        refused = InvalidUsage(f"DuckDB refuses the query: {why}")
        raise (refused.with_remedy(way) if kind == "Catalog" else refused) from error

    def __repr__(self) -> str:
        return f"<Answer of {self.sql:.100}>"


def call_later(after_s: float, do: Callable[[str], object], argument: str) -> threading.Timer:
    """Call a function after so many seconds, unless the timer is cancelled."""
    timer = threading.Timer(after_s, do, [argument])
    timer.daemon = True
    timer.start()
    return timer


def _resolve_tables(
    engine: Engine, read: Mapping[Path, TableAt], as_of: AsOf, known: Mapping[Path, int]
) -> dict[Path, tuple[CollectionHandle, int | Moment | None]]:
    """Return the collection and the time of each table; None means the latest time."""
    times = as_of if isinstance(as_of, Mapping) else {"": as_of}
    names = [*dict.fromkeys(table.name for table in read.values())]
    for name in times:
        if name and name not in names:
            hint = did_you_mean(name, names) or ","
            raise InvalidUsage(f"as_of={name}=…: the query does not read {name!r}{hint} it reads {names}")
    handles = dict(zip(read, load_handles(engine, [table.name for table in read.values()]), strict=True))
    bound = {}
    for path, handle in handles.items():
        time: int | Moment | None = known.get(path, read[path].as_of)
        bound[path] = (handle, times.get(read[path].name, times.get("")) if time is None else time)
    return bound


def check_arrow_types(relation: Any) -> None:
    """Raise InvalidUsage for a column whose values would change, because Arrow has no type for them."""
    for name, kind in zip(relation.columns, relation.types, strict=True):
        text = str(kind).rstrip("[]")
        if text in _WITHOUT_ARROW or text.startswith("UNION("):
            raise InvalidUsage(f"column {name!r} has the type {kind}, which Arrow does not have: cast it to VARCHAR")


def _list_tables(parsed: Any) -> list[Path]:
    """Return the tables of a parsed query, each once."""
    tables: dict[Path, None] = {}
    for node in walk_parts(parsed):
        if node.get("type") == "BASE_TABLE":
            parts = (node["catalog_name"], node["schema_name"], node["table_name"])
            tables[tuple(part for part in parts if part)] = None
        elif node.get("show_type") == "SHOW":
            tables[tuple(node["qualified_name"]["path"])] = None
        elif windowed := find_windowed_table(node):
            tables[windowed] = None
    return [*tables]


class Queries:
    """Runs queries for the clients of an SQL server; for any thread. `limits`: the limits of each query."""

    def __init__(self, engine: Engine, limits: QueryLimits) -> None:
        require_package(DUCKDB)
        self._engine = engine
        self._limits = limits
        self._turns = threading.BoundedSemaphore(QUERIES_MAX)

    @contextmanager
    def wait_for_turn(self) -> Iterator[None]:
        """Wait for a turn to run a query, so that only a few run at a time.

        Raises Unavailable: all turns were in use for `TURN_S`.
        """
        if not self._turns.acquire(timeout=TURN_S):
            raise Unavailable(f"{QUERIES_MAX} queries have been running for {TURN_S:g} s: try again later")
        try:
            yield
        finally:
            self._turns.release()

    def run(
        self,
        sql: str,
        parameters: Sequence[Any] = (),
        times: Mapping[Path, int] | None = None,
        as_of: int | Moment | None = None,
    ) -> QueryResult:
        """Return the answer of a query; requesting its batches reads it (see `QueryResult`)."""
        check_is_query(sql)
        return QueryResult(self._engine, sql, as_of, limits=self._limits, parameters=parameters, times=times)

    def is_newest(self, answer: QueryResult) -> bool:
        """Return whether no record was committed since an answer was bound. Cost: one refresh of the log."""
        self._engine.settle()
        self._engine.follower.refresh()
        return answer.seqno == self._engine.follower.state.seqno

    def is_erased(self, answer: QueryResult) -> bool:
        """Return whether records were erased since an answer was bound. Cost: one refresh of the log."""
        self._engine.settle()
        return any(seqno > answer.seqno for seqno, _ in self._engine.follower.refresh().control.erasures)

    def count_parameters(self, sql: str) -> int:
        """Return how many parameters a query has."""
        check_is_query(sql)
        duckdb = require_package(DUCKDB)
        with lend_database() as lent:
            lent.is_empty = True
            try:
                statements = lent.connection.extract_statements(move_times_to_catalogs(sql)[0])
            except duckdb.Error as error:
                raise InvalidUsage(f"DuckDB refuses the query: {explain_refusal(error)}") from error
        names = set().union(*(statement.named_parameters for statement in statements))
        if not all(name.isdecimal() for name in names):
            raise InvalidUsage(f"the parameters {sorted(names)} have names: write ? or $1 for each")
        return max(map(int, names), default=0)

    def list_catalogs(self) -> list[str]:
        """Return the catalogs that name times in SQL: the latest, and all tags."""
        tags = {tag for contents in load_all_states(self._engine) for tag in contents.tags}
        return [LATEST, *sorted(tags - {LATEST})]

    def list_tables(self) -> list[TableDescription]:
        """Return all collections, by schema and table."""
        return list_tables(self._engine)


def check_is_query(sql: str, place: str = "this server") -> None:
    """Raise InvalidUsage if a text begins with a change, a definition or a COPY.

    `place`: the name in the message of what runs only queries.
    """
    if is_statement(sql) or _CHANGING.match(sql):
        raise InvalidUsage(
            f"{place} only reads. Change collections with client.sql() or `persist sql`, where the location is"
        )
