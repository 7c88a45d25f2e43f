"""Collections as tables of a query: their names, how DuckDB reads them, and tables with a time of their own.

    FROM orders FOR SYSTEM_TIME AS OF '2026-11-21'      SQL of 2011; SYSTEM_VERSION and VERSION mean the same
    FROM orders VERSION AS OF 7                         Spark and Delta
    FROM orders TIMESTAMP AS OF TIMESTAMP '2026-11-21'

DuckDB and Spark's views lack this syntax. So each such table gets another name in the text, and its old name as an
alias.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from persist.codecs.errors import did_you_mean
from persist.codecs.types.arrow_types import list_inner_arrays, list_inner_fields, replace_inner_types
from persist.codecs.types.sql_names import check_sql_names, fold_case
from persist.codecs.updates.inputs import TableStream, open_stream, to_table
from persist.compute.query.time_windows import add_time_windows
from persist.core.errors import InvalidUsage, PersistError
from persist.core.expression.python_functions import list_python_functions
from persist.engine.location.collection_times import LATEST

# What is run may be somebody else's text: it may read the collections, and nothing else that its user may read.
SEALED_OFF = {
    "enable_external_access": "false",
    "autoload_known_extensions": "false",
    "autoinstall_known_extensions": "false",
    "python_enable_replacements": "false",
}
WITH_FILES = {"python_enable_replacements": "false"}
DUCKDB = "duckdb>=2.0,<2.1"
FILES_REMEDY = "{files:option:True} lets it read files, URLs and your frames with your rights."
MAIN = "main"  # The schema of names without a dot.

Path = tuple[str, ...]  # Of a table in a query: its catalog and its schema, as far as they are there, and its name.
Narrowed = Callable[[Sequence[str] | None, Any], Iterator[pa.RecordBatch]]


def quote_name(name: str) -> str:
    """Return a name as a quoted SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def quote_text(text: str) -> str:
    """Return a text as a literal of SQL."""
    return "'" + text.replace("'", "''") + "'"


def format_path(parts: Sequence[str]) -> str:
    """Return the qualified name of a table in SQL."""
    return ".".join(map(quote_name, parts))


def match_collection(parts: Sequence[str], names: Sequence[str]) -> str | None:
    """Return the collection of a table name, or None. Case counts only between equal names."""
    wanted = ".".join(parts)
    alike = [wanted] if wanted in names else [name for name in names if fold_case(name) == fold_case(wanted)]
    if len(alike) > 1:
        raise InvalidUsage(f"table {wanted!r} may be any of the collections {alike}: write one of them, in any quotes")
    return alike[0] if alike else None


@dataclass(frozen=True, slots=True)
class TableAt:
    """A table of a query: its collection, and the time that its catalog names."""

    name: str
    as_of: int | str | None = None


def resolve_table(path: Path, names: Sequence[str]) -> TableAt | None:
    """Return the collection of a table, with its time; None without one."""
    *qualifiers, table = path
    name = match_collection(path, names)
    if name is not None or not qualifiers:
        return None if name is None else TableAt(name)
    catalog, *schemas = qualifiers
    schema = schemas[0] if schemas else MAIN
    name = match_collection([table] if fold_case(schema) == MAIN else [schema, table], names)
    if name is None:
        return None
    if not schemas and fold_case(catalog) == MAIN:
        return TableAt(name)
    if not catalog.startswith("@"):
        return TableAt(name, LATEST if fold_case(catalog) == LATEST else catalog)  # Or else it is a tag.
    return TableAt(name, catalog.removeprefix("@"))


def drop_repeated_tables(tables: Mapping[Path, TableAt]) -> dict[Path, TableAt]:
    """Return tables by path, with one of the paths that differ by case only."""
    read: dict[Path, Path] = {}
    for path, table in tables.items():
        other = read.setdefault(normalise_path(path), path)
        if tables[other] != table:
            raise InvalidUsage(
                f"the query reads {format_path(other)} and {format_path(path)}, which differ by case only, and SQL "
                f"takes them for one: write {format_path((LATEST, MAIN, table.name))} for one of them, or a view of it"
            )
    every: dict[Path, Path] = {}
    for path in tables:
        every.setdefault(tuple(map(fold_case, path)), path)
    return {path: tables[path] for path in every.values()}


def normalise_path(path: Path) -> Path:
    """Return a table's path with its schema, in lower case."""
    return tuple(map(fold_case, (MAIN, *path) if len(path) == 1 else path))


def register_table(connection: Any, parts: Sequence[str], dataset: Any) -> None:
    """Register a dataset as a table, with the catalog and schema of its path."""
    check_sql_names(".".join(parts), dataset.schema)
    if isinstance(dataset, pa.Table):
        for _ in _adapt_batches(dataset.to_batches(), dataset.schema):
            pass
    name = format_path(parts) if len(parts) > 1 else parts[0]
    try:
        connection.register(name, dataset)
    except Exception as error:  # DuckDB need not be there for this module to be imported.
        raise InvalidUsage(
            f"SQL cannot read {'.'.join(parts)!r}, because a column is of a type that DuckDB does not have: {error}. "
            f"The columns are {', '.join(f'{field.name} {field.type}' for field in dataset.schema)}. Read it with "
            "snapshot(), or give the column another type by a dataflow"
        ) from error
    make_schema(connection, parts)
    if len(parts) > 1:
        connection.execute(f"CREATE OR REPLACE VIEW {format_path(parts)} AS FROM {quote_name(name)}")


def make_dataset(schema: pa.Schema, read: Narrowed, failures: list[PersistError] | None = None) -> Any:
    """Return a dataset for DuckDB, whose values come back as they are or raise InvalidUsage.

    A type that DuckDB lacks is replaced by another type. DuckDB's filters have this type, so they apply to the replaced
    values.

    Args:
        read: yields batches of some columns (None: all) that pass a filter, if there is one.
        failures: the list to which errors of reads are appended; DuckDB keeps only their texts.
    """
    from persist.engine.read.results.dataset import ResultDataset

    sql_schema = to_sql_schema(schema)

    def read_adapted(columns: Sequence[str] | None, filter: Any) -> Iterator[pa.RecordBatch]:
        is_here = filter is not None and sql_schema != schema
        try:
            for batch in _adapt_batches(read(None, None) if is_here else read(columns, filter), sql_schema):
                yield from _select(batch, columns or sql_schema.names, filter) if is_here else [batch]
        except PersistError as error:
            if failures is not None:
                failures.append(error)
            raise

    return ResultDataset(sql_schema, read_adapted)


def _select(batch: pa.RecordBatch, columns: Sequence[str], filter: Any) -> list[pa.RecordBatch]:
    """Return the rows of a batch that pass a filter, with some columns."""
    return pa.Table.from_batches([batch]).filter(filter).select(columns).to_batches()  # type: ignore[no-any-return]


def to_sql_schema(schema: pa.Schema) -> pa.Schema:
    """Return a schema with types that DuckDB has."""
    return pa.schema([field.with_type(_to_sql_type(field.type)) for field in schema])


def _to_sql_type(kind: pa.DataType) -> pa.DataType:
    """Return the type in which DuckDB holds a type's values, often the type itself."""
    if pt.is_float16(kind):
        return pa.float32()
    if pt.is_decimal256(kind) and 0 <= kind.scale <= 38:
        return pa.decimal128(38, kind.scale)
    if not pt.is_nested(kind) or pt.is_dictionary(kind):
        return kind
    inner = [field.type for field in list_inner_fields(kind)]
    sql_types = [*map(_to_sql_type, inner)]
    return kind if sql_types == inner else replace_inner_types(kind, sql_types)


def _adapt_batches(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield batches in DuckDB's types. Raises InvalidUsage for a value that would change."""
    for batch in batches:
        columns = []
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            try:
                _check_intervals(column)
                kind = schema.field(name).type
                columns.append(column if column.type == kind else column.cast(kind))
            except pa.ArrowInvalid as error:
                raise InvalidUsage(
                    f"column {name!r} has a value that SQL would change: {error}. SQL has decimals of 38 digits, and "
                    "durations in microseconds of up to 292 years. Read it with snapshot()"
                ) from error
        yield pa.RecordBatch.from_arrays(columns, batch.schema.names) if columns else batch


def _check_intervals(column: pa.Array) -> None:
    """Raise ArrowInvalid if a duration does not fit microseconds exactly, in nested types as well."""
    if pt.is_duration(column.type):
        column.cast(pa.duration("us")).cast(pa.duration("ns"))
    elif pt.is_nested(column.type):
        for inner in list_inner_arrays(column):
            _check_intervals(inner)


def find_read_frames(paths: Iterable[Path], variables: Mapping[str, Any]) -> dict[str, pa.Table]:
    """Return those of the caller's data frames that a query reads, by variable name."""
    frames: dict[str, tuple[str, Any]] = {}
    for name in {path[0]: None for path in paths if len(path) == 1}:
        frame = variables.get(name)
        if hasattr(frame, "__arrow_c_stream__") or hasattr(frame, "collect_schema"):  # Of a LazyFrame of Polars.
            other, first = frames.setdefault(fold_case(name), (name, frame))
            if first is not frame:
                both = " and ".join(map(repr, sorted((other, name))))
                raise InvalidUsage(f"SQL takes the frames {both} for one table: rename one of them")
    tables = {}
    for name, frame in frames.values():
        data = open_stream(frame)
        tables[name] = pa.concat_tables(data.tables(None)) if isinstance(data, TableStream) else to_table(data, None)
    return tables


def make_schema(connection: Any, parts: Sequence[str]) -> None:
    """Make the catalog and the schema that a table's name has."""
    if len(parts) > 2:
        connection.execute(f"ATTACH IF NOT EXISTS ':memory:' AS {quote_name(parts[0])}")
    if len(parts) > 1:
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {format_path(parts[:-1])}")


def add_functions(connection: Any, sql: str, late_by: str | None = None) -> bool:
    """Let a query call the functions of Python, and the windows of time, that it names.

    Windows vanish with the connection; functions stay in the database.

    `late_by`: as for `add_time_windows`.

    Returns:
        whether there are functions.
    """
    add_time_windows(connection, map(fold_case, list_words(sql)), late_by)
    called = [
        function
        for function in list_python_functions()
        if re.search(rf"(?<!\w){function.name}(?!\w)", sql, re.IGNORECASE)
    ]
    for function in called:
        kinds = [*function.arguments, function.returns]
        try:
            none = pa.schema([(f"x{at}", kind) for at, kind in enumerate(kinds)]).empty_table()
            *arguments, returns = connection.from_arrow(none).types
            how = {"type": "arrow", "null_handling": "special"}
            connection.create_function(function.name, function.make_fixed_arity(), arguments, returns, **how)
        except Exception as error:  # DuckDB has errors of several kinds for types that it does not have.
            raise InvalidUsage(f"DuckDB cannot call {function}: {explain_refusal(error)}") from error
    return bool(called)


def explain_refusal(error: Exception) -> str:
    """Return DuckDB's reason, without the excerpt of the query that follows it.

    DuckDB's proposals for an unknown name are left out, because they are DuckDB's own tables.
    """
    return re.sub(r'!?\s*Did you mean "[^"]*"\?', "", str(error).partition("\n\nLINE ")[0]).rstrip(" .!\n")


# What is text, a name or a comment is passed over as a whole: what it says is not SQL.
_NAME = r'(?:"(?:[^"]|"")+"|`(?:[^`]|``)+`|[^\W\d][\w$-]*)'
_SKIPPED = r"(?P<skipped>'(?:[^']|'')*+(?:'|\Z)|\$\$.*?(?:\$\$|\Z)|--[^\n]*|/\*.*?(?:\*/|\Z))"
_TOKEN = re.compile(
    rf"{_SKIPPED}"
    rf"|(?P<table>{_NAME}(?:\s*\.\s*{_NAME})*)"
    r"(?P<asked>\s+(?P<for>FOR\s+)?(?:SYSTEM_TIME|SYSTEM_VERSION|TIMESTAMP|VERSION)\s+AS\s+OF\b\s*)"
    r"(?P<time>(?:TIMESTAMP\s*|DATE\s*)?'(?:[^']|'')*'|\d+\b)?"
    rf"|{_NAME}",
    re.IGNORECASE | re.DOTALL,
)
_PATH = re.compile(rf"{_SKIPPED}|{_NAME}(?:\s*\.\s*{_NAME})*", re.DOTALL)
_PART = re.compile(r'"((?:[^"]|"")+)"|`((?:[^`]|``)+)`|([^\s."`]+)')


@dataclass(frozen=True)
class TimedTable:
    """A table with a time of its own: the parts of its name, and its time or tag."""

    parts: tuple[str, ...]
    as_of: int | str

    def make_refusal(self, names: Sequence[str]) -> InvalidUsage:
        """Return the error for a table that is not a collection."""
        wanted = ".".join(self.parts)
        hint = did_you_mean(wanted, names) or ":"
        return InvalidUsage(f"{wanted!r} is not a collection, so it has no times{hint} the collections are {[*names]}")


def rename_timed_tables(sql: str, named: Callable[[TimedTable], str]) -> str:
    """Rename the tables that have a time in a query.

    `named`: returns the new name of such a table, in quotes; it ends with the table's own name.
    """

    def renamed(match: re.Match[str]) -> str:
        if match["asked"] is None:
            return match[0]
        if match["time"] is None:
            rest = sql[match.end() :].split("\n")[0][:40].strip()
            if match["for"] is None and (not rest or rest[0] in ",);"):
                return match[0]  # A column with the name version, here called "of".
            raise InvalidUsage(
                f"{match['table']} is to be read as of {rest!r}: a time is a whole number, or a moment or the name of "
                "a tag in quotes, such as VERSION AS OF 7, TIMESTAMP AS OF '2026-11-21T12:00:00Z' or VERSION AS OF "
                "'quarter-end'"
            )
        return named(TimedTable(split_name(match["table"]), _unquote(match["time"])))

    return _TOKEN.sub(renamed, sql) if isinstance(sql, str) else sql


def move_times_to_catalogs(sql: str) -> tuple[str, dict[Path, TimedTable]]:
    """Return a query with tables' times as catalogs, and the tables that have one."""
    timed: dict[Path, TimedTable] = {}

    def format_timed_path(table: TimedTable) -> str:
        path = (f"@{table.as_of}", *(table.parts if len(table.parts) > 1 else (MAIN, *table.parts)))
        timed[path] = table
        return format_path(path)

    return rename_timed_tables(sql, format_timed_path), timed


def split_name(name: str) -> tuple[str, ...]:
    """Split the qualified name of a table."""
    matches = _PART.finditer(name)
    return tuple((m[1] or "").replace('""', '"') or (m[2] or "").replace("``", "`") or m[3] for m in matches)


def list_words(sql: str) -> Iterable[str]:
    """Return the names, keywords and other words of a query, as written."""
    for match in _TOKEN.finditer(sql):
        if match["skipped"] is None:
            yield from split_name(match[0])


def iterate_paths(sql: str) -> Iterator[Path]:
    """Yield each qualified name of a statement, and its other words."""
    return (split_name(match[0]) for match in _PATH.finditer(sql) if match["skipped"] is None)


def list_paths(sql: str) -> Iterable[Path]:
    """Return the distinct results of `iterate_paths`."""
    return dict.fromkeys(iterate_paths(sql))


def _unquote(text: str) -> int | str:
    """Return the number, or the text in quotes, of a time in SQL."""
    return int(text) if text.isdecimal() else text[text.index("'") + 1 : -1].replace("''", "'")
