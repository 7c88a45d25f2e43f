"""Reads only the rows of a collection that a statement may touch, if these can be determined.

A statement that joins its table with a source by equal columns touches rows with the source's values. If these columns
are the key, the rows are looked up; otherwise a filter by the values reads the parts whose statistics allow them.
DuckDB evaluates any other condition, and hands comparisons to the scan of the collection. An INSERT touches no row.
Every row is read if a statement reads its own table again, has a random part, or has a condition that DuckDB does not
accept alone.

DuckDB compares integers, texts and times of one type as the look-up does. Other types are left to DuckDB.
"""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from persist.codecs.types.schema import CollectionSchema
from persist.codecs.types.sql_names import fold_case
from persist.compute.query.document_filters import iterate_conjuncts
from persist.compute.query.statement_text import StatementText, TouchedRows
from persist.compute.query.tables import DUCKDB, Path, format_path, quote_name, register_table
from persist.engine.collection.keyed_events import ReadRows
from persist.engine.read.results.result import require_package

VALUES_MAX = 100_000  # A filter by values takes so many.
KEYS_MAX = 10_000_000
_ROWS = "the stored rows"
_CHANGING = {
    *("random", "uuid", "gen_random_uuid", "uuidv4", "uuidv7", "nextval", "currval", "setseed"),
    *("limit", "fetch", "sample", "tablesample", "collate"),  # A collation finds more rows equal than a look-up.
}
_COMPARABLE = {
    *("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT"),
    *("VARCHAR", "DATE", "TIMESTAMP", "TIMESTAMP_NS", "TIMESTAMP WITH TIME ZONE"),
}


def read_touched(
    connection: Any, sql: str, statement: StatementText, schema: CollectionSchema, read: ReadRows
) -> Iterator[pa.Table] | None:
    """Return the rows that a statement may touch; None if these may be all.

    Args:
        connection: has all tables of the statement. The table that it changes may lack rows.
        schema: the schema of the collection.
    """
    if {*re.findall(r"\w+", fold_case(sql))} & _CHANGING:  # Also in texts, which may be SQL for query().
        return None
    duckdb = require_package(DUCKDB)
    try:
        if statement.is_upsert:
            keys = ", ".join(map(quote_name, schema.key_names))
            new = quote_name("the new keys")
            connection.execute(f"CREATE OR REPLACE TEMP TABLE {new} AS FROM {format_path(statement.table)} LIMIT 0")
            connection.execute(statement.make_plain_insert("the new keys"))
            return read(_read_keys(connection, f"SELECT DISTINCT {keys} FROM {new}", schema, schema.key_names))
        touched = statement.find_touched_rows()
        if touched is None:
            return None
        if touched.condition == "false":
            return iter(())
        columns = () if touched.source is None else connection.sql(f"SELECT * FROM {touched.source}\nLIMIT 0").columns
        names = [*map(fold_case, columns)]
        pairs = _find_equal_columns(connection, touched, statement.table, schema, names)
        if touched.source is not None and pairs:
            by = _read_source_keys(connection, touched.source, pairs, schema)
            if by is not None:
                return read(by)
        return None if touched.condition is None else _read_by_condition(connection, touched, schema, read)
    except duckdb.InterruptException:
        raise
    except duckdb.Error:
        return None  # The statement itself is refused then, or DuckDB needs its whole text.


def _find_equal_columns(
    connection: Any, touched: TouchedRows, table: Path, schema: CollectionSchema, source: Sequence[str]
) -> list[tuple[str, str]]:
    """Return pairs of columns that must be equal: the collection's, and the source's in SQL."""
    stored = {fold_case(name): name for name in schema.names}
    if touched.condition is None:
        return [(stored[fold_case(name)], quote_name(name)) for name in touched.equal if fold_case(name) in stored]
    if touched.source is None:
        return []
    query = f"SELECT 1 WHERE ({touched.condition}\n)"
    parsed = json.loads(connection.execute("SELECT json_serialize_sql($1)", [query]).fetchall()[0][0])
    pairs = list[tuple[str, str]]()
    for node in iterate_conjuncts(parsed["statements"][0]["node"]["where_clause"]) if not parsed["error"] else ():
        if node["type"] != "COMPARE_EQUAL":
            continue
        sides = [_parse_column(node[side], (touched.alias, *table), stored, source) for side in ("left", "right")]
        for left, right in (sides, sides[::-1]):
            if left is not None and right is not None and left[0] and not right[0]:
                pairs.append((stored[fold_case(left[1])], right[2]))
    return pairs


def _parse_column(
    node: dict[str, Any], names: Path, stored: dict[str, str], source: Sequence[str]
) -> tuple[bool, str, str] | None:
    """Return whether a column is the collection's, its name and its SQL; or None.

    Args:
        names: the alias of the table, then its path.
        stored, source: the columns of the collection and of the source, as SQL compares names.
    """
    path = node.get("column_names")
    if node["type"] != "COLUMN_REF" or not path:
        return None
    name = fold_case(path[-1])
    is_own = name not in source
    if len(path) > 1:
        is_own = [*map(fold_case, path[:-1])] in ([fold_case(names[0])], [*map(fold_case, names[1:])])
    if is_own and name not in stored:
        return None
    return is_own, path[-1], format_path(path)


def _read_source_keys(
    connection: Any, source: str, pairs: Sequence[tuple[str, str]], schema: CollectionSchema
) -> pc.Expression | pa.Table | None:
    """Return the source's keys or their filter; None if DuckDB must compare."""
    types = connection.sql(f"SELECT {', '.join(text for _, text in pairs)} FROM {source}\nLIMIT 0").types
    empty = pa.schema([schema.arrow.field(name) for name, _ in pairs]).empty_table()
    stored = connection.from_arrow(empty).types
    usable = {
        name: text
        for (name, text), kind, target in zip(pairs, types, stored, strict=True)
        if kind == target and str(kind) in _COMPARABLE
    }
    keys = schema.key_names
    if keys and {*keys} <= usable.keys():
        columns = ", ".join(f"{usable[name]} AS {quote_name(name)}" for name in keys)
        given = " AND ".join(f"{usable[name]} IS NOT NULL" for name in keys)  # NULL equals no key.
        query = f"SELECT DISTINCT {columns} FROM {source}\nWHERE {given} LIMIT {KEYS_MAX + 1}"
        table = _read_keys(connection, query, schema, keys)
        return table if len(table) <= KEYS_MAX else None
    for name, text in usable.items():
        query = f"SELECT DISTINCT {text} AS {quote_name(name)} FROM {source}\nWHERE {text} IS NOT NULL"
        query = f"{query} LIMIT {VALUES_MAX + 1}"
        values = _read_keys(connection, query, schema, [name])
        if len(values) <= VALUES_MAX:
            return pc.field(name).isin(values[name].drop_null().combine_chunks())
    return None


def _read_keys(connection: Any, query: str, schema: CollectionSchema, names: Sequence[str]) -> pa.Table:
    """Return the answer of a query for keys, with the collection's types."""
    fields = pa.schema([schema.arrow.field(name) for name in names])
    return connection.sql(query).to_arrow_table().cast(fields)


def _read_by_condition(
    connection: Any, touched: TouchedRows, schema: CollectionSchema, read: ReadRows
) -> Iterator[pa.Table]:
    """Return the rows that meet a statement's condition, which DuckDB evaluates."""
    from persist.engine.read.results.dataset import ResultDataset

    fields = pa.schema([schema.arrow.field(name) for name in schema.names])

    def narrowed(columns: Sequence[str] | None, filter: pc.Expression | None) -> Iterator[pa.RecordBatch]:
        for table in read(filter):
            yield from table.select([*(schema.names if columns is None else columns)]).to_batches()

    condition = f"({touched.condition}\n)"
    if touched.source is not None:
        condition = f"EXISTS (SELECT 1 FROM {touched.source} WHERE {condition})"
    register_table(connection, (_ROWS,), ResultDataset(fields, narrowed))
    try:
        alias = quote_name(touched.alias)
        documents = ", ".join(f"{quote_name(name)}::JSON AS {quote_name(name)}" for name in schema.json)
        rows = f"(SELECT * REPLACE ({documents}) FROM {quote_name(_ROWS)})" if documents else quote_name(_ROWS)
        query = f"SELECT {alias}.* FROM {rows} AS {alias} WHERE {condition}"
        return iter([connection.sql(query).to_arrow_table().cast(fields)])
    finally:
        connection.unregister(_ROWS)
