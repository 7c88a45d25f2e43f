"""Converts callers' data to Arrow tables: frames, tables, columns, rows as dicts, and streams of these.

    a table at once    pa.Table, pa.RecordBatch, frames of pandas and Polars, a dict of columns, a list of dicts, of
                       dataclasses or of named tuples
    a stream           pa.RecordBatchReader, a Dataset or Scanner of PyArrow, a Polars LazyFrame, a relation of DuckDB,
                       whatever else has `__arrow_c_stream__`; and iterables of tables, batches, frames or dicts

A stream is read piece by piece, so it may be larger than memory. Python values in columns and dicts are converted to
the collection's types by the rules of `persist.codecs.types.values`; `casts` converts Arrow data later. A frame that
Arrow does not accept as a whole is converted column by column, so that errors can name the column and the row. This
module imports neither pandas nor Polars: it recognises objects by their methods.
"""

import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import PurePath
from types import GeneratorType
from typing import Any

import numpy as np
import pyarrow as pa

from persist.blob.errors import InvalidUsage, PersistError
from persist.codecs.errors import InvalidUpdate, SchemaMismatch, did_you_mean
from persist.codecs.evolution import decode_defaults
from persist.codecs.types.python_types import get_stored_type, parse_fields
from persist.codecs.types.schema import DIFF, TIME, CollectionSchema
from persist.codecs.types.values import check_values, shorten, to_array, to_field
from persist.codecs.updates.tuples import (
    copy_if_mutable,
    describe_lacking_columns,
    is_dataclass_instance,
    is_named_tuple,
    is_record,
    to_dict,
)

DELETED = "_deleted"  # For events by key: a row without it is not a deletion, and a deletion needs only its key.
_DICTS_PER_TABLE = 64 * 1024
# Readers that were read: they would look like empty tables, in whose favour an overwrite retracts everything.
_READ: "weakref.WeakSet[pa.RecordBatchReader]" = weakref.WeakSet()
_IN_MEMORY = ("nbytes", "memory_usage", "estimated_size")  # The methods by which tables and frames report their size.


@dataclass(frozen=True, slots=True)
class TableStream:
    """A stream of tables, which can be read once.

    `tables`: a function that takes the schema of their columns, or None for any types, and yields the tables.
    """

    tables: Callable[[CollectionSchema | None], Iterator[pa.Table]]


def open_stream(data: Any) -> Any:
    """Open data that is a stream as a `TableStream`; return other data unchanged.

    The first element of an iterator is read to determine this, and then put back.
    """
    if isinstance(data, (list, tuple)):
        return _to_stream(data) if data and _is_table(data[0]) else data
    _refuse_path(data)
    if isinstance(data, (TableStream, pa.Table, pa.RecordBatch, Mapping, bytes)):
        return data
    if _is_arrow(data):
        return data if _is_in_memory(data) else TableStream(lambda schema: _read_batches(data, schema))
    # The first is of a Dataset or Scanner of PyArrow; the second of a LazyFrame of Polars.
    for method in ("to_batches", "collect_batches"):
        if hasattr(data, method):
            return _to_stream(getattr(data, method)())
    if not isinstance(data, Iterable):
        return data
    if isinstance(data, GeneratorType) and data.gi_frame is None:
        raise InvalidUsage(
            f"{shorten(data)} was read to its end before, and yields nothing more. Call its function again."
        )
    values = iter(data)
    first = [*itertools.islice(values, 1)]
    values = itertools.chain(first, values)
    if first and _is_table(first[0]):
        return _to_stream(values)
    values = map(copy_if_mutable, values)
    if first and (isinstance(first[0], Mapping) or is_dataclass_instance(first[0])):
        return TableStream(lambda schema: _read_dicts(values, schema))
    return [*values] if first and is_named_tuple(first[0]) else values


def to_table(data: Any, schema: CollectionSchema | None) -> pa.Table | None:
    """Return data as one table; None for streams and tuples.

    Python values get the types of the schema; without a schema, those that Arrow infers.
    """
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if isinstance(data, Mapping):
        return _convert_columns(data, schema)
    if isinstance(data, (list, tuple)):
        return _convert_dicts(data, schema) if data and is_record(data[0], schema) else None
    return _convert_frame(data, schema) if _is_arrow(data) else None


def iterate_tables_by_columns(data: Any, schema: CollectionSchema) -> Iterator[tuple[pa.Table, Sequence[int]]]:
    """Group rows by their columns; yield each group as a table, with the numbers of its rows."""
    if not isinstance(data, (list, tuple, Mapping, str, bytes)) and not _is_arrow(data) and isinstance(data, Iterable):
        data = data if hasattr(data, "to_batches") or hasattr(data, "collect_batches") else [*data]
    if isinstance(data, (list, tuple)) and (not data or not _is_table(data[0])):
        if odd := [row for row in data if not is_record(row, schema)]:
            raise InvalidUpdate(
                f"{shorten(odd[0])} does not name its columns: give rows that lack columns as dicts, a table or a frame"
            )
        numbers: dict[frozenset[Any], list[int]] = {}
        records = [*map(to_dict, data)]
        for number, record in enumerate(records):
            numbers.setdefault(frozenset(record), []).append(number)
        for rows in numbers.values():
            yield _convert_dicts([records[number] for number in rows], schema), rows
        return
    stream, start = open_stream(data), 0
    tables = stream.tables(schema) if isinstance(stream, TableStream) else [to_table(stream, schema)]
    for table in tables:
        if table is None:
            raise InvalidUpdate(f"{shorten(data)} does not name its columns: give dicts, a table or a frame")
        yield table, range(start, start + len(table))
        start += len(table)


def _is_arrow(data: Any) -> bool:
    """Return whether data exports itself through Arrow's C interface."""
    return hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__")


def _is_table(data: Any) -> bool:
    """Return whether data is a table or frame, not an array."""
    return isinstance(data, (pa.Table, pa.RecordBatch)) or (_is_arrow(data) and not isinstance(data, pa.Array))


def _is_in_memory(data: Any) -> bool:
    """Return whether data can be read again: it is no stream."""
    return hasattr(data, "__arrow_c_array__") or any(hasattr(data, name) for name in _IN_MEMORY)


def is_repeatable(data: Any) -> bool:
    """Return whether reading data again certainly returns the same rows."""
    return isinstance(data, (list, tuple, Mapping)) or (_is_arrow(data) and _is_in_memory(data))


def _to_stream(values: Iterable[Any]) -> TableStream:
    """Return an iterator of tables as a `TableStream`."""

    def tables(schema: CollectionSchema | None) -> Iterator[pa.Table]:
        for value in values:
            table = to_table(value, schema) if _is_table(value) else None
            if table is None:
                raise SchemaMismatch(
                    f"a stream of tables holds {shorten(value)} ({type(value).__name__}): all of it must be record "
                    "batches, tables or frames"
                )
            yield table

    return TableStream(tables)


def _read_dicts(values: Iterator[Any], schema: CollectionSchema | None) -> Iterator[pa.Table]:
    """Yield tables of some dicts each from an iterator."""
    while rows := [*itertools.islice(values, _DICTS_PER_TABLE)]:
        yield _convert_dicts(rows, schema)


def _read_batches(data: Any, schema: CollectionSchema | None) -> Iterator[pa.Table]:
    """Yield a table for each batch of a reader."""
    if isinstance(data, pa.RecordBatchReader):
        _mark_read(data)
    _check_columns(data)
    try:
        for batch in pa.RecordBatchReader.from_stream(data):
            yield pa.Table.from_batches([batch])
    except (pa.ArrowException, TypeError) as error:
        raise _make_no_table_error(data, error) from error


def _convert_frame(frame: Any, schema: CollectionSchema | None) -> pa.Table:
    """Convert a frame of pandas, Polars or another library to a table."""
    _check_columns(frame)
    columns = hasattr(frame, "columns") and hasattr(frame, "__getitem__")
    frame = _add_index_column(frame)
    try:
        if not hasattr(frame, "__arrow_c_stream__"):
            return pa.Table.from_batches([pa.record_batch(frame)])
        table = pa.RecordBatchReader.from_stream(frame).read_all()
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        if not columns:
            raise _make_no_table_error(frame, error) from error
        return _convert_columns({name: frame[name] for name in frame.columns}, schema)
    kinds = zip(getattr(frame, "columns", ()), getattr(frame, "dtypes", ()), strict=False)
    for name in [name for name, kind in kinds if str(kind) == "object"]:  # They hold Python values of any types.
        at = table.schema.get_field_index(str(name))
        if at >= 0 and not _fits_inferred_type(_list_values(frame[name]), table.schema.field(at).type):
            table = table.set_column(at, str(name), _convert_column(str(name), frame[name], schema))
    return table


def select_sides_like(
    data: Any, key: Any, value: Any = None
) -> tuple[dict[str, pa.Field] | None, dict[str, pa.Field] | None]:
    """Return key and value columns like `data`, without `_time` and `_diff`.

    `key`: the names of the key columns; [] for none.
    """
    if value is not None:
        raise InvalidUsage(
            f"value={shorten(value)} does not go with like=, whose columns other than key= are the value"
        )
    fields = {name: field for name, field in select_columns_like(data).items() if name not in (TIME, DIFF)}
    if not isinstance(key, (list, tuple)) or not all(isinstance(name, str) for name in key):
        raise InvalidUsage(
            f"key={'[...]' if key is ... else shorten(key)}: give the list of the columns that are the key, such as "
            f"key=[{next(iter(fields), 'id')!r}], or key=[] for none. The columns are {[*fields]}"
        )
    for name in key:
        if name not in fields:
            raise InvalidUsage(
                f"key={[*key]} names no column {name!r}{did_you_mean(name, fields) or ','} it is {[*fields]}"
            )
    if len({*key}) < len(key):
        raise InvalidUsage(f"key={[*key]} names a column twice: name each once")
    return {name: fields[name] for name in key} or None, {n: f for n, f in fields.items() if n not in key} or None


def select_columns_like(data: Any) -> dict[str, pa.Field]:
    """Return the columns of data or a schema, in the stored types."""
    _refuse_path(data)
    if isinstance(data, (list, tuple)) or (isinstance(data, Mapping) and any(map(_is_column, data.values()))):
        table = to_table(data, None)
        data = data if table is None else table
    elif hasattr(data, "collect_schema"):  # A LazyFrame of Polars, which is not computed for that.
        data = data.collect_schema()
    else:
        _check_columns(data)
        data = _add_index_column(data)
    try:
        described = parse_fields(data, "schema")
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        if isinstance(error, PersistError):
            raise
        if isinstance(data, Mapping):  # A schema of Polars.
            data = dict(data)
        elif hasattr(data, "columns") and hasattr(data, "dtypes"):
            data = _convert_columns({name: data[name] for name in data.columns}, None)
        else:
            raise _make_no_table_error(data, error) from error
        described = parse_fields(data, "schema")  # Column by column, so that an error names one.
    for name, kind, _ in described:
        if kind == pa.null() and getattr(data, "shape", (1,))[0] == 0:  # Text, for which NULL is taken, would stay.
            raise SchemaMismatch(f"column {name!r} has no rows, and no type: give it one, such as int64, or a row")
    return {name: pa.field(name, _choose_stored_type(kind), nullable) for name, kind, nullable in described}


def peek_columns(data: Any) -> tuple[Any, Any]:
    """Return a table or frame with data's columns, and data to use instead.

    A stream is read up to its first rows, which are the table; for a stream without rows, the table is empty.
    """
    if isinstance(data, pa.RecordBatchReader):
        _mark_read(data)
        batches, first = iter(data), data.schema.empty_table().to_batches()
        while not sum(map(len, first)) and (batch := next(batches, None)) is not None:
            first = [batch]
        columns = pa.Table.from_batches(first, data.schema)
        return columns, pa.RecordBatchReader.from_batches(data.schema, itertools.chain(first, batches))
    if not isinstance(data, Iterator) or _is_arrow(data):
        return data, data
    elements: list[Any] = []
    for element in data:
        elements.append(element)
        if not _is_table(element) or getattr(element, "shape", (1,))[0]:
            break
    columns = elements[-1] if elements and _is_table(elements[-1]) else elements
    return columns, itertools.chain(elements, data)


def _refuse_path(data: Any) -> None:
    """Raise InvalidUpdate if data is a path or a file's text."""
    if isinstance(data, (str, PurePath)):
        raise InvalidUpdate(
            f"the rows are {shorten(str(data))}, a {'path' if isinstance(data, PurePath) else 'text'}. Read a file "
            "first, "
            "such as by pandas.read_csv() or pyarrow.parquet.read_table(), and give what that returns; or use the "
            "command persist write, which takes files."
        )


def _mark_read(reader: pa.RecordBatchReader) -> None:
    """Note that a reader is read; raise InvalidUsage the second time."""
    if reader in _READ:
        raise InvalidUsage(f"{shorten(reader)} was read before, and can be read once only. Make a new reader.")
    _READ.add(reader)


def _choose_stored_type(kind: pa.DataType) -> pa.DataType:
    """Return the type in which a column is stored; one for text."""
    if kind in (pa.null(), pa.large_string()):
        return pa.string()
    return pa.binary() if kind == pa.large_binary() else kind


def _is_column(values: Any) -> bool:
    """Return whether an object is a list or array of values."""
    return isinstance(values, (list, tuple, np.ndarray, pa.Array, pa.ChunkedArray)) or hasattr(values, "to_list")


def check_input(data: Any) -> None:
    """Refuse a frame or a column whose values Arrow would misread."""
    _check_columns(data)
    _check_column_type(getattr(data, "name", "of values"), getattr(data, "dtype", None))


def _check_columns(frame: Any) -> None:
    """Refuse a frame with a repeated column, or with memory addresses as values."""
    is_frame = hasattr(frame, "columns") and hasattr(frame, "dtypes")  # A pandas Series has the one, and not the other.
    schema = getattr(frame, "schema", None)
    names = [*frame.columns] if is_frame else schema.names if isinstance(schema, pa.Schema) else []
    if len({*names}) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise SchemaMismatch(
            f"column {twice!r} is there {names.count(twice)} times: give each column a name of its own, or drop all "
            "but one"
        )
    for name, kind in zip(names, frame.dtypes if is_frame else [], strict=is_frame):
        _check_column_type(name, kind)


def _check_column_type(name: Any, kind: Any) -> None:
    """Raise SchemaMismatch for a type that Arrow would misread."""
    if str(kind) == "Object":  # Polars exports the addresses of such values, as bytes.
        raise SchemaMismatch(
            f"column {name!r} is of Polars' type Object, whose values Arrow cannot see: cast it to another type, or "
            f"give frame[{name!r}].to_list() in a dict of columns"
        )
    if str(kind) in ("BIT", "TIME WITH TIME ZONE"):  # DuckDB exports its own bytes, and a time without its zone.
        raise SchemaMismatch(f"column {name!r} is of DuckDB's type {kind}, which Arrow lacks: cast it, as to VARCHAR")
    if (
        isinstance(kind, np.dtype)
        and kind.kind in "mM"
        and np.datetime_data(kind)[0] not in ("D", "s", "ms", "us", "ns")
    ):
        raise SchemaMismatch(
            f"column {name!r} is of numpy's type {kind}, whose unit Arrow lacks: cast it to another unit, such as ns"
        )


def _fits_inferred_type(values: list[Any], t: pa.DataType) -> bool:
    """Return whether the type that Arrow inferred fits all values."""
    if {*map(type, values)} - {type(None)} in ({np.datetime64}, {np.timedelta64}):
        return len({value.dtype for value in values if value is not None}) == 1
    try:
        check_values(values, get_stored_type(t))
    except Exception:  # A value's own methods may raise anything.
        return False
    return True


def _make_no_table_error(data: Any, error: Exception) -> SchemaMismatch:
    """Return the error for data that Arrow cannot read as a table."""
    return SchemaMismatch(
        f"{type(data).__name__} gives no Arrow record batches ({error}): give a table, a frame, or a dict of columns"
    )


def _add_index_column(data: Any) -> Any:
    """Add the named index of a pandas frame to its columns; return other data unchanged.

    pandas streams an index as a column itself, unless its values happen to be a range.
    """
    names = getattr(getattr(data, "index", None), "names", ()) if hasattr(data, "columns") else ()
    return data.reset_index() if any(n is not None and n not in data.columns for n in names) else data


def _convert_dicts(rows: Any, schema: CollectionSchema | None) -> pa.Table:
    """Return rows that are dicts as a table."""
    if not all(issubclass(kind, Mapping) for kind in {*map(type, rows)}):
        for row, record in enumerate(rows):
            if not is_record(record, schema):
                raise InvalidUpdate(
                    f"update {row} is {shorten(record)} ({type(record).__name__}), and the updates before it are "
                    "dicts, or named: give all of them as dicts of columns, or all as tuples"
                )
        rows = [*map(to_dict, rows)]
    names = dict.fromkeys(itertools.chain.from_iterable(rows))
    defaults = dict[str, pa.Scalar]()
    if any(len(row) < len(names) for row in rows) and (schema is None or names.keys() <= {*schema.arrow.names}):
        defaults = {} if schema is None else schema.compute_once(decode_defaults)
        for number, row in enumerate(rows):
            needed = names if schema is None or not row.get(DELETED) else schema.key.names
            if lacking := [name for name in needed if name not in row and name != DELETED and name not in defaults]:
                raise InvalidUpdate(f"row {number} is {shorten(row)} and {describe_lacking_columns(lacking)}")
    table = _convert_columns({name: [row.get(name) for row in rows] for name in names}, schema)
    for name in defaults.keys() & names.keys():
        default = pa.repeat(defaults[name], 1)
        places = [at if name in row or row.get(DELETED) else len(rows) for at, row in enumerate(rows)]
        column = pa.chunked_array([*table[name].cast(default.type).chunks, default]).take(pa.array(places))
        table = table.set_column(table.column_names.index(name), name, column)
    return table


def _convert_columns(columns: Mapping[Any, Any], schema: CollectionSchema | None) -> pa.Table:
    """Convert a dict of columns to a table."""
    arrays = {name: _convert_column(name, values, schema) for name, values in columns.items()}
    lengths = {len(column) for column in arrays.values()}
    if len(lengths) > 1:
        listed = ", ".join(f"{name!r} {len(column)}" for name, column in arrays.items())
        raise SchemaMismatch(
            f"the columns are not of one length: {listed:.500}. Give each column a value for each row."
        )
    return pa.Table.from_arrays([*arrays.values()], names=[*arrays])


def _convert_column(name: Any, values: Any, schema: CollectionSchema | None) -> pa.ChunkedArray:
    """Convert values in any container to an Arrow column."""
    if not isinstance(name, str):
        raise SchemaMismatch(f"{shorten(name)} is not the name of a column: names are text")
    if isinstance(values, pa.ChunkedArray):
        return values
    _check_column_type(name, getattr(values, "dtype", None))
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
        raise SchemaMismatch(
            f"column {name!r} is {shorten(values)} ({type(values).__name__}): a dict of columns has a list or an "
            "array for each name. Give a single row as [{…}]."
        )
    if isinstance(values, pa.Array) or _is_arrow(values) or isinstance(values, np.ndarray):
        try:
            array = pa.array(values) if isinstance(values, (pa.Array, np.ndarray)) else pa.chunked_array(values)
            if str(getattr(values, "dtype", None)) != "object" or _fits_inferred_type(_list_values(values), array.type):
                return array if isinstance(array, pa.ChunkedArray) else pa.chunked_array([array])
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            pass  # One by one, then, by the type that is wanted.
    return pa.chunked_array([_convert_values(name, _list_values(values), schema)])


def _list_values(values: Any) -> list[Any]:
    """Return Python values, with None for values that pandas treats as missing."""
    if hasattr(values, "isna"):
        missing = values.isna().tolist()
        return [None if is_missing else value for value, is_missing in zip(values.tolist(), missing, strict=True)]
    return [*(values.tolist() if hasattr(values, "tolist") else values)]


def _convert_values(name: str, values: list[Any], schema: CollectionSchema | None) -> pa.Array:
    """Convert Python values to the column's type, or an inferred type."""
    timeline = None if schema is None else schema.timeline
    if name == TIME and timeline is not None:
        return _convert_times(values, timeline, name)
    if schema is not None and name in schema.arrow.names:
        convert = to_array if name in (TIME, DIFF) else to_field
        return convert(values, schema.arrow.field(name).type, f"column {name!r}")
    # No column of the collection: the times come from it, or it is refused where all names are known, or kept.
    if timeline is not None:
        try:
            return _convert_times(values, timeline, name)
        except InvalidUpdate:
            if any(isinstance(value, datetime) for value in values):
                raise
    try:
        array = pa.array(values)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InvalidUpdate(
            f"column {name!r} has values that Arrow has no one type for: {error}. Give all its values one type."
        ) from error
    if _fits_inferred_type(values, array.type):
        return array
    return to_array(values, get_stored_type(array.type), f"column {name!r}")  # Raises, and names the row.


def _convert_times(values: list[Any], unit: str, name: str) -> pa.Array:
    """Convert times to an array: integers, moments, dates or text."""
    first = next((value for value in values if value is not None), None)
    kind = pa.int64()
    if isinstance(first, datetime):
        kind = pa.timestamp(unit, "UTC")
    elif isinstance(first, (date, str)):
        kind = pa.string() if isinstance(first, str) else pa.date32()
    return to_array(values, kind, f"column {name!r}")
