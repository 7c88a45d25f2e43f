"""The Parquet side of a part: one sorted table to a file's bytes and back. See `part` for what the file
promises.

What is written per column, measured in FINDINGS and here (1M rows, two thirds of the CPU time of pyarrow's
defaults):

- integers and temporal types: DELTA_BINARY_PACKED; float32 and float64: BYTE_STREAM_SPLIT; all under zstd
  level 1;
- other flat types: a dictionary only if a sample shows values repeat, because on unique strings it doubles
  the time of writing and reading and makes the file larger; nested columns: a dictionary for each leaf but
  strings and binary, where a reader could not tell how long the values become (see `part_claims`);
- statistics for all leaves except floating ones that hold NaN or lie inside a nested column: Parquet leaves
  NaN out of minimum and maximum, so a reader that prunes by them would lose rows for a filter such as `~(x >
  5)`.

Parquet has no seconds and no date64: `storage_type` says what they are written as, and reading casts them
back.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt

from persist.codecs.errors import InvalidUpdate
from persist.codecs.ordering import combined, order_keys
from persist.codecs.part_claims import Claims, Layout, check_claims
from persist.codecs.types import children, with_children

_SAMPLE_ROWS = 1024
_NAN = re.compile(r"(?<!\w)nan(?!\w)", re.IGNORECASE)
_FUNCTION = re.compile(r"(\w+)\(")
_PLAIN_FUNCTIONS = {"invert", "is_null", "is_valid", "is_nan", "is_in"}
_PLAIN_FUNCTIONS |= {"starts_with", "ends_with", "match_substring"}
_MILLISECONDS = {pa.date64(): pa.date32(), pa.time32("s"): pa.time32("ms")}


def storage_type(kind: pa.DataType) -> pa.DataType:
    """The type Parquet gives back for a column of this type."""
    if pt.is_nested(kind):
        return with_children(kind, [storage_type(child.type) for child in children(kind)])
    if pt.is_timestamp(kind) and kind.unit == "s":
        return pa.timestamp("ms", tz=kind.tz)
    return _MILLISECONDS.get(kind, kind)


def to_parquet(table: pa.Table, *, sorted_by: int, row_group_rows: int) -> bytes:
    """The bytes of one Parquet file.

    Args:
        table: at least one row, floats canonical, no two columns of one name.
        sorted_by: how many leading columns the rows are sorted by.
        row_group_rows: the most rows in a row group.

    Raises:
        InvalidUpdate: a value is outside what its type can be stored as (a timestamp[s] beyond the range of
            milliseconds, a date64 that is not a whole day, a time32[s] of more than a day).
    """
    table = _to_storage(table)
    sink = pa.BufferOutputStream()
    pq.write_table(
        table,
        sink,
        row_group_size=row_group_rows,
        compression="zstd",
        compression_level=1,
        write_page_index=True,
        write_page_checksum=True,
        sorting_columns=_sorting_columns(table.schema, sorted_by),
        **_column_options(table, row_group_rows),
    )
    return bytes(sink.getvalue())


def memory_of(data: bytes | memoryview, table: pa.Table) -> int:
    """What a descriptor must say of the memory that decoding takes; see `part_claims`. data is table as a file."""
    levels = 0
    if any(pt.is_nested(kind) for kind in table.schema.types):
        levels = check_claims(memoryview(data), _layout(table.schema)[0], len(table), None).level_bytes
    return int(table.nbytes) + levels


def from_parquet(
    data: pa.Buffer,
    schema: pa.Schema,
    *,
    columns: Sequence[str],
    rows: int,
    memory: int,
    use_threads: bool,
    within: tuple[int, int] | None = None,
) -> pa.Table:
    """Read columns of a file that must hold exactly schema and that many rows, and take no more memory than that.

    Args:
        within: an interval `[start, end)` of rows; the row groups that hold some of them are read whole, others not.

    Raises:
        ValueError: the file says otherwise about itself.
        pa.ArrowException, OSError: it cannot be decoded.
    """
    with _opened(data, schema, rows, memory) as (file, claims):
        groups: Sequence[int] | None = None
        if within is not None:
            groups, rows = _row_groups(claims.group_rows, within)
        coded = _with_long_values(data, file.metadata, claims, columns)
        if coded:
            with _coded(data, file.metadata, coded) as coded_file:
                table = _decoded(_read(coded_file, columns, groups, use_threads), coded, claims.string_bytes_max)
        else:
            table = _read(file, columns, groups, use_threads)
    if table.num_rows != rows:
        raise ValueError(f"it holds {table.num_rows} rows, and its descriptor says {rows}")
    return _from_storage(table, schema, columns)


def scan_parquet(
    data: pa.Buffer,
    schema: pa.Schema,
    *,
    columns: Sequence[str],
    filter: pc.Expression,
    rows: int,
    memory: int,
    use_threads: bool,
) -> pa.Table:
    """Read the rows of a file that filter keeps, skipping row groups whose statistics exclude it.

    A filter that may compare with NaN is not held against statistics: Arrow takes such comparisons for more than they
    say. Raises what `from_parquet` raises, or what the filter does.
    """
    with _opened(data, schema, rows, memory) as (file, claims):
        coded = _with_long_values(data, file.metadata, claims, schema.names)
    if coded or may_compare_with_nan(filter):
        whole = from_parquet(data, schema, columns=schema.names, rows=rows, memory=memory, use_threads=use_threads)
        return whole.filter(filter).select(list(columns))
    # Here, because importing it imports pandas where there is one, which every worker process would wait for.
    from pyarrow.dataset import ParquetFileFormat

    fragment = ParquetFileFormat().make_fragment(data)
    projection = {name: pc.field(name) for name in columns}
    table = fragment.to_table(
        schema=fragment.physical_schema, columns=projection, filter=filter, use_threads=use_threads
    )
    return _from_storage(table, schema, columns)


def may_compare_with_nan(filter: pc.Expression) -> bool:
    """Whether a filter has NaN among its literals or may compute it: it computes something, or is cut when printed."""
    text = str(filter)
    return bool(_NAN.search(text)) or "..." in text or not _PLAIN_FUNCTIONS.issuperset(_FUNCTION.findall(text))


def _to_storage(table: pa.Table) -> pa.Table:
    for i, field in enumerate(table.schema):
        stored = storage_type(field.type)
        if stored != field.type:
            table = table.set_column(i, field.with_type(stored), _cast_exactly(table.column(i), stored, field.name))
    return table


def _cast_exactly(column: pa.ChunkedArray, stored: pa.DataType, name: str) -> pa.ChunkedArray:
    try:
        cast = column.cast(stored)
        exact = _all_same(cast.cast(column.type), column)
    except pa.ArrowInvalid:
        exact = False
    if not exact:
        raise InvalidUpdate(
            f"column {name!r} of type {column.type} holds a value that cannot be stored: Parquet keeps it as "
            f"{stored}, which the value does not fit. Use whole days for date64, times within one day, and "
            "timestamps within 292 million years of 1970, or another type."
        )
    return cast


def _all_same(left: pa.ChunkedArray, right: pa.ChunkedArray) -> bool:
    """Whether two columns are equal, NaN inside nested values being equal to itself."""
    if not pt.is_nested(left.type):
        return bool(left.equals(right))
    both = pa.table({"both": pa.chunked_array([*left.chunks, *right.chunks], type=left.type)})
    (ranks,) = order_keys(both, ["both"])
    return bool(ranks[: len(left)].equals(ranks[len(left) :]))


def _from_storage(table: pa.Table, schema: pa.Schema, columns: Sequence[str]) -> pa.Table:
    wanted = pa.schema([schema.field(name) for name in columns])
    table = table.select(list(columns))
    for name in _layout(schema)[1].intersection(columns):
        for chunk in table.column(name).chunks:
            _check_values(chunk)
    return table if table.schema.equals(wanted, check_metadata=True) else table.cast(wanted)


def _check_values(array: pa.Array) -> None:
    """Raise ArrowInvalid for what Arrow's reader lets through: text that is not UTF-8, decimals that are too long."""
    if pt.is_string(array.type) or pt.is_large_string(array.type):
        text = array.buffers()[2]
        if text is None or _is_ascii(text):
            return  # Many times faster to see than UTF-8 is to check.
    array.validate(full=True)


def _is_ascii(text: pa.Buffer) -> bool:
    whole = text.size // 8
    words, rest = np.frombuffer(text, np.uint64, whole), np.frombuffer(text, np.uint8, offset=8 * whole)
    return not (int(np.bitwise_or.reduce(words)) & 0x8080808080808080 or int(np.bitwise_or.reduce(rest)) & 0x80)


def _has_checked(kind: pa.DataType) -> bool:
    """Whether a type holds values that `_check_values` looks at."""
    if pt.is_nested(kind):
        return any(_has_checked(child.type) for child in children(kind))
    return bool(pt.is_string(kind) or pt.is_large_string(kind) or pt.is_decimal(kind))


@lru_cache(maxsize=256)
def _layout(schema: pa.Schema) -> tuple[Layout, frozenset[str]]:
    """Return what a file of these columns looks like, and the names of those that `_check_values` looks at."""
    stored = pa.schema([field.with_type(storage_type(field.type)) for field in schema])
    return Layout.of(stored), frozenset(field.name for field in schema if _has_checked(field.type))


@contextmanager
def _opened(data: pa.Buffer, schema: pa.Schema, rows: int, memory: int) -> Iterator[tuple[pq.ParquetFile, Claims]]:
    """Open a file once nothing about it gives reason not to."""
    layout, _ = _layout(schema)
    claims = check_claims(memoryview(data), layout, rows, memory)
    with pq.ParquetFile(
        pa.BufferReader(data),
        thrift_string_size_limit=data.size,
        thrift_container_size_limit=claims.list_max,
        arrow_extensions_enabled=False,
    ) as file:
        found = file.schema_arrow
        if found.names != layout.names or found.types != layout.types:
            raise ValueError(f"it holds the columns {_listed(found)} where {_listed(schema)} belong")
        yield file, claims


def _read(file: pq.ParquetFile, columns: Sequence[str], groups: Sequence[int] | None, use_threads: bool) -> pa.Table:
    if groups is None:
        return file.read(columns=list(columns), use_threads=use_threads)
    return file.read_row_groups(groups, columns=list(columns), use_threads=use_threads)


def _coded(data: pa.Buffer, metadata: pq.FileMetaData, columns: list[str]) -> pq.ParquetFile:
    """Return the file, to be read with these columns in the form of dictionaries and positions in them."""
    return pq.ParquetFile(pa.BufferReader(data), metadata=metadata, read_dictionary=columns)


def _with_long_values(data: pa.Buffer, metadata: pq.FileMetaData, claims: Claims, columns: Sequence[str]) -> list[str]:
    """Return which columns could be too long even if they held the longest value of each dictionary throughout.

    Cost: the first page of each row group.
    """
    long: list[str] = []
    for name in claims.dictionaries:
        if name in columns:
            with _coded(data, metadata, [name]) as file:
                longest = sum(rows * _longest(file, at, name) for at, rows in enumerate(claims.group_rows))
            if longest > claims.string_bytes_max:
                long.append(name)
    return long


def _longest(file: pq.ParquetFile, group: int, column: str) -> int:
    """Return the most bytes that a value has in the dictionary of a column in one row group."""
    first = next(file.iter_batches(batch_size=1, row_groups=[group], columns=[column], use_threads=False))
    return int(pc.max(pc.binary_length(first.column(0).dictionary), min_count=0).as_py() or 0)


def _decoded(table: pa.Table, coded: list[str], bytes_max: int) -> pa.Table:
    """Return the table with dictionary-encoded columns decoded, unless they come to more than bytes_max."""
    left = bytes_max
    for name in coded:
        at, column = table.schema.get_field_index(name), table.column(name)
        for chunk in column.chunks:
            lengths = pc.binary_length(chunk.dictionary).take(chunk.indices)
            left -= pc.sum(lengths, min_count=0).as_py()
            if left < 0:
                raise ValueError(f"the dictionary of column {name!r} makes it longer than its descriptor allows")
        plain = pa.chunked_array([chunk.dictionary_decode() for chunk in column.chunks], column.type.value_type)
        table = table.set_column(at, name, plain)
    return table


def _row_groups(group_rows: Sequence[int], within: tuple[int, int]) -> tuple[list[int], int]:
    """Return the row groups that hold any of the rows within, and how many rows these groups hold."""
    groups: list[int] = []
    start = rows = 0
    for group, count in enumerate(group_rows):
        if start < within[1] and start + count > within[0]:
            groups.append(group)
            rows += count
        start += count
    return groups, rows


def _listed(schema: pa.Schema) -> str:
    return "[" + ", ".join(f"{field.name}: {field.type}" for field in schema) + "]"


def _sorting_columns(schema: pa.Schema, sorted_by: int) -> list[pq.SortingColumn]:
    """The sorted columns up to the first nested one: Parquet can only name leaves."""
    leading: list[pq.SortingColumn] = []
    for i in range(sorted_by):
        if pt.is_nested(schema.field(i).type):
            break
        leading.append(pq.SortingColumn(i, nulls_first=False))
    return leading


def _column_options(table: pa.Table, row_group_rows: int) -> dict[str, Any]:
    """Encodings and statistics, by leaf path."""
    nested = [path for field in table.schema for path in _nested_leaves(field)]
    nested_paths = {path for path, _ in nested}
    encodings: dict[str, str] = {}
    dictionaries = [path for path, kind in nested if not _is_text(kind)]
    statistics = [path for path, kind in nested if not pt.is_floating(kind)]
    for field, column in zip(table.schema, table.columns, strict=True):
        if pt.is_nested(field.type) or field.name in nested_paths:  # "a.b" may also be field b of struct a.
            continue
        if (encoding := _encoding(field.type)) is not None:
            encodings[field.name] = encoding
        elif _repeats(column):
            dictionaries.append(field.name)
        if not (pt.is_floating(field.type) and (has_nan(column) or _has_zeros_only(column, row_group_rows))):
            statistics.append(field.name)
    return {"use_dictionary": dictionaries, "column_encoding": encodings, "write_statistics": statistics}


def _is_text(kind: pa.DataType) -> bool:
    return bool(pt.is_string(kind) or pt.is_large_string(kind) or pt.is_binary(kind) or pt.is_large_binary(kind))


def _encoding(kind: pa.DataType) -> str | None:
    if pt.is_integer(kind) or pt.is_temporal(kind):
        return "DELTA_BINARY_PACKED"
    return "BYTE_STREAM_SPLIT" if pt.is_float32(kind) or pt.is_float64(kind) else None


def _repeats(column: pa.ChunkedArray) -> bool:
    """Whether at least half of some evenly spaced values are the same as others of them."""
    if len(column) < 8 or pt.is_boolean(column.type) or pt.is_float16(column.type):
        return False
    sample = column.take(pa.array(np.arange(0, len(column), -(-len(column) // _SAMPLE_ROWS))))
    return 2 * int(pc.count_distinct(sample, mode="all").as_py()) <= len(sample)


def has_nan(column: pa.ChunkedArray) -> bool:
    """Whether a column of floats holds NaN."""
    return any(_has_nan_bits(chunk) and bool(pc.any(pc.is_nan(widened(chunk))).as_py()) for chunk in column.chunks)


def _has_zeros_only(column: pa.ChunkedArray, row_group_rows: int) -> bool:
    """Whether the floats of some row group are all zero or NULL.

    Parquet gives zero as the minimum -0.0 and the maximum 0.0; Arrow then takes the column for a constant -0.0, which
    `isin([0.0])` does not match.
    """
    stored = widened(combined(column)).fill_null(0).to_numpy()
    starts = np.arange(0, len(stored), row_group_rows)
    return bool((np.add.reduceat(stored != 0, starts, dtype=np.int64) == 0).any())


def _has_nan_bits(chunk: pa.Array) -> bool:
    """Whether there is NaN in what is stored, NULL rows included: a quick no."""
    stored = np.frombuffer(chunk.buffers()[1], dtype=f"f{chunk.type.bit_width // 8}")
    return bool(np.isnan(stored[chunk.offset : chunk.offset + len(chunk)]).any())


def widened(array: pa.Array) -> pa.Array:
    """float16, for which Arrow has few kernels, as float32; anything else as it is."""
    return array.cast(pa.float32()) if pt.is_float16(array.type) else array


def _nested_leaves(field: pa.Field, prefix: str = "") -> list[tuple[str, pa.DataType]]:
    """The leaves of a nested column by their Parquet path; none for a flat column."""
    path, kind = prefix + field.name, field.type
    if not pt.is_nested(kind):
        return [(path, kind)] if prefix else []
    if pt.is_struct(kind):
        inner, below = children(kind), f"{path}."
    elif pt.is_map(kind):
        inner = [pa.field("key", kind.key_type), pa.field("value", kind.item_type)]
        below = f"{path}.key_value."
    else:
        inner, below = [pa.field("element", kind.value_type)], f"{path}.list."
    return [leaf for child in inner for leaf in _nested_leaves(child, below)]
