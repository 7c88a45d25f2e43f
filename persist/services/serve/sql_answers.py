"""Answers to Flight SQL's metadata requests, as tables in the form that its clients expect.

The columns of each are those of Arrow's `FlightSql.proto`. A catalog is a time: `latest`, and each tag. A schema is the
part of the names of collections before the last dot, and `main` for those without one.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pyarrow as pa

from persist import __version__
from persist.compute.query import Queries
from persist.services.serve.messages import read_fields, read_numbers

PREPARED_S = 600.0  # How long an unused prepared statement is kept.
_KINDS = {"": pa.string(), "int": pa.int32(), "byte": pa.uint8(), "bool": pa.bool_(), "binary": pa.binary()}


def _parse_columns(text: str) -> pa.Schema:
    """Return columns that are written as `name`, `name:kind`, or `name:kind!` if no value is NULL."""
    parts = [(name.rstrip("!").partition(":"), not name.endswith("!")) for name in text.split()]
    return pa.schema([pa.field(name, _KINDS[kind], is_nullable) for (name, _, kind), is_nullable in parts])


_CATALOGS = _parse_columns("catalog_name!")
_SCHEMAS = _parse_columns("catalog_name db_schema_name!")
_TABLES = _parse_columns("catalog_name db_schema_name table_name! table_type!")
_WITH_COLUMNS = _parse_columns("catalog_name db_schema_name table_name! table_type! table_schema:binary!")
_TYPES = _parse_columns("table_type!")
_KEYS = _parse_columns("catalog_name db_schema_name table_name! column_name! key_name key_sequence:int!")
_REFERENCES = _parse_columns(
    "pk_catalog_name pk_db_schema_name pk_table_name! pk_column_name! fk_catalog_name fk_db_schema_name fk_table_name! "
    "fk_column_name! key_sequence:int! fk_key_name pk_key_name update_rule:byte! delete_rule:byte!"
)
_XDBC_TYPES = _parse_columns(
    "type_name! data_type:int! column_size:int literal_prefix literal_suffix create_params nullable:int! "
    "case_sensitive:bool! searchable:int! unsigned_attribute:bool fixed_prec_scale:bool! auto_increment:bool "
    "local_type_name minimum_scale:int maximum_scale:int sql_data_type:int! datetime_subcode:int num_prec_radix:int "
    "interval_precision:int"
).set(5, pa.field("create_params", pa.list_(pa.field("item", pa.string(), nullable=False))))
_INFO_VALUE = pa.dense_union(
    [
        pa.field("string_value", pa.string()),
        pa.field("bool_value", pa.bool_()),
        pa.field("bigint_value", pa.int64()),
        pa.field("int32_bitmask", pa.int32()),
        pa.field("string_list", pa.list_(pa.field("string_data", pa.string()))),
        pa.field("int32_to_int32_list_map", pa.map_(pa.int32(), pa.list_(pa.int32()))),
    ]
)
_INFO = pa.schema([pa.field("info_name", pa.uint32(), nullable=False), pa.field("value", _INFO_VALUE)])

# By the numbers of `SqlInfo`. A whole number is an ordinal of the enumeration that belongs to it.
_INFOS: dict[int, str | bool | int] = {
    0: "persist", 1: __version__, 2: pa.__version__,
    3: True, 4: True, 5: False,  # It only reads, and takes SQL and no Substrait.
    8: 0, 9: True, 10: False,  # There are no transactions. Queries can be cancelled.
    100: int(PREPARED_S * 1000), 101: 0, 500: False, 501: False, 502: False,
    503: 1, 504: '"', 505: 1, 506: True,  # Names are the same in any case, with quotes, too.
    507: 3,  # NULLs come last.
    513: "\\", 515: True, 516: True, 518: True, 520: True, 529: "schema", 531: "time", 532: True,
}  # fmt: skip
# Types of DuckDB that columns may have, with their numbers in ODBC, and how many digits or characters they take.
_SQL_TYPES = {
    "BOOLEAN": (-7, 1), "TINYINT": (-6, 3), "SMALLINT": (5, 5), "INTEGER": (4, 10), "BIGINT": (-5, 19),
    "REAL": (7, 24), "DOUBLE": (8, 53), "DECIMAL": (3, 38), "VARCHAR": (12, None), "BLOB": (-3, None),
    "DATE": (91, 10), "TIME": (92, 15), "TIMESTAMP": (93, 26),
}  # fmt: skip


class Asked:
    """A question about the server: its fields by number, as text."""

    def __init__(self, message: bytes) -> None:
        self.message = message
        self.every: dict[int, list[str]] = {}
        self.flags: dict[int, bool] = {}
        for number, value in read_fields(message):
            if isinstance(value, int):
                self.flags[number] = bool(value)
            else:
                self.every.setdefault(number, []).append(value.decode(errors="replace"))
        self.texts = {number: texts[-1] for number, texts in self.every.items()}


def _answer_infos(queries: Queries, request: Asked) -> pa.RecordBatch:
    """Answer a question about the server's properties."""
    requested = read_numbers(request.message, 1) or [*_INFOS]
    supported = [number for number in requested if number in _INFOS]
    children: list[list[Any]] = [[] for _ in _INFO_VALUE]
    kinds, places = [], []
    for number in supported:
        value = _INFOS[number]
        kind = 0 if isinstance(value, str) else 1 if isinstance(value, bool) else 3
        kinds.append(kind)
        places.append(len(children[kind]))
        children[kind].append(value)
    union = pa.UnionArray.from_dense(
        pa.array(kinds, pa.int8()),
        pa.array(places, pa.int32()),
        [pa.array(values, field.type) for values, field in zip(children, _INFO_VALUE, strict=True)],
        [field.name for field in _INFO_VALUE],
    )
    return pa.RecordBatch.from_arrays([pa.array(supported, pa.uint32()), union], schema=_INFO)


def _answer_schemas(queries: Queries, request: Asked) -> pa.RecordBatch:
    """Answer a question about the schemas."""
    fits = _make_matcher(request.texts.get(2))
    schemas = [schema for schema in dict.fromkeys(about.schema for about in queries.list_tables()) if fits(schema)]
    return _make_batch(
        _SCHEMAS, [[catalog, schema] for catalog in _match_catalogs(queries, request) for schema in schemas]
    )


def _answer_tables(queries: Queries, request: Asked) -> pa.RecordBatch:
    """Answer a question about the tables."""
    fits_schema, fits_table, kinds = (
        _make_matcher(request.texts.get(2)),
        _make_matcher(request.texts.get(3)),
        request.every.get(4),
    )
    rows = []
    for about in queries.list_tables():
        kind = "VIEW" if about.is_view else "TABLE"
        if fits_schema(about.schema) and fits_table(about.table) and (kinds is None or kind in kinds):
            rows.append([about.schema, about.table, kind, about.columns.serialize().to_pybytes()])
    with_columns = request.flags.get(5, False)
    schema = _WITH_COLUMNS if with_columns else _TABLES
    every = [[catalog, *row] for catalog in _match_catalogs(queries, request) for row in rows]
    return _make_batch(schema, [row[: len(schema)] for row in every])


def _answer_keys(queries: Queries, request: Asked) -> pa.RecordBatch:
    """Answer a question about primary keys."""
    catalog, schema, table = request.texts.get(1), request.texts.get(2), request.texts.get(3)
    rows = [
        [catalog, about.schema, about.table, column, None, at]
        for about in queries.list_tables()
        if about.table == table and schema in (None, about.schema)
        for at, column in enumerate(about.key, 1)
    ]
    return _make_batch(_KEYS, rows)


def _answer_types(queries: Queries, request: Asked) -> pa.RecordBatch:
    """Answer a question about the types."""
    requested = read_numbers(request.message, 1)
    rows = []
    for name, (number, size) in _SQL_TYPES.items():
        if not requested or number & (2**64 - 1) in requested or number in requested:
            quote = "'" if number in (12, 91, 92, 93) else None
            radix = 10 if number in (-6, 5, 4, -5, 3) else 2 if number in (7, 8) else None
            row = [name, number, size, quote, quote, None, 1, number == 12, 3, None, False, None, name, None, None]
            rows.append([*row, number, None, radix, None])
    return _make_batch(_XDBC_TYPES, rows)


def _match_catalogs(queries: Queries, request: Asked) -> list[str]:
    """Return the requested catalogs: the named one, which may be any time, or all with a name."""
    catalog = request.texts.get(1)
    return (
        queries.list_catalogs()
        if catalog is None
        else [catalog]
        if catalog.startswith("@") or catalog in queries.list_catalogs()
        else []
    )


def _make_matcher(pattern: str | None) -> Callable[[str], bool]:
    """Return a function that matches names with a pattern of SQL. Without a pattern, all names match."""
    if pattern is None:
        return lambda name: True
    pieces = re.findall(r"\\.|.", pattern, re.DOTALL)
    wild = {"%": ".*", "_": "."}
    expression = re.compile("".join(wild.get(piece) or re.escape(piece[-1]) for piece in pieces), re.DOTALL)
    return lambda name: expression.fullmatch(name) is not None


def _make_batch(schema: pa.Schema, rows: Iterable[Sequence[Any]]) -> pa.RecordBatch:
    """Return rows as a batch of some columns."""
    values: list[Sequence[Any]] = [*zip(*rows, strict=True)] or [[] for _ in schema]
    arrays = [pa.array(column, field.type) for column, field in zip(values, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


Answer = Callable[[Queries, Asked], pa.RecordBatch]
# Collections have no foreign keys.
_NO_REFERENCES: tuple[pa.Schema, Answer] = (_REFERENCES, lambda queries, request: _make_batch(_REFERENCES, []))
ANSWERS: dict[str, tuple[pa.Schema, Answer]] = {
    "CommandGetSqlInfo": (_INFO, _answer_infos),
    "CommandGetCatalogs": (
        _CATALOGS,
        lambda queries, _: _make_batch(_CATALOGS, [[name] for name in queries.list_catalogs()]),
    ),
    "CommandGetDbSchemas": (_SCHEMAS, _answer_schemas),
    "CommandGetTables": (_TABLES, _answer_tables),
    "CommandGetTableTypes": (_TYPES, lambda queries, request: _make_batch(_TYPES, [["TABLE"], ["VIEW"]])),
    "CommandGetPrimaryKeys": (_KEYS, _answer_keys),
    "CommandGetExportedKeys": _NO_REFERENCES,
    "CommandGetImportedKeys": _NO_REFERENCES,
    "CommandGetCrossReference": _NO_REFERENCES,
    "CommandGetXdbcTypeInfo": (_XDBC_TYPES, _answer_types),
}


def get_result_schema(name: str, message: bytes) -> pa.Schema:
    """Return the columns of the answer to a question."""
    if name == "CommandGetTables" and Asked(message).flags.get(5, False):
        return _WITH_COLUMNS
    return ANSWERS[name][0]
