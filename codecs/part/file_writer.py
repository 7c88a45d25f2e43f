"""Writes the Parquet file of a part: encodings and statistics chosen per column, row group by row group.

Encodings for each column, chosen by measurement (`docs/inside/performance.md`, "Encodings"):

- integers and temporal types: DELTA_BINARY_PACKED, but a dictionary if a sample has very few values; float32 and
  float64: BYTE_STREAM_SPLIT;
- decimals of up to 18 digits: as integers, which Arrow reads in a sixth of the time that bytes of fixed length take;
- other flat types, and decimals: a dictionary only if a sample has repeated values; on unique strings it doubles the
  time of writing and reading and enlarges the file. A small sample holds most of a thousand common texts only once or
  twice, so a large one decides. 1M texts of 20 letters in a dictionary take 4 ms to read as numbers and 17 as texts;
  without one, 25. Nested columns: a dictionary for each leaf but strings and binary;
- zstd level 1 for columns whose sample becomes at least a twentieth smaller, none for others;
- one page for each column chunk, up to 1 MiB: the default of 20,000 rows is not faster, and each page costs a check;
- statistics for all leaves, except floats that include NaN or are inside a nested column: Parquet leaves NaN out of
  minimum and maximum, so a reader that prunes by these would lose rows for a filter such as `~(x > 5)`.

Each column has a field id (`make_file_schema`), by which readers of table formats identify columns. In a file without
ids, such a reader finds no column at all, and returns NULL for each.

Parquet has no seconds and no date64: `get_storage_type` maps them to stored types, and `file_reader` casts back. A
value that would be read back differently is refused.

A page index is written for other readers. pyarrow uses neither it nor bloom filters: it finds one of 1M unsorted values
no faster with a bloom filter in each row group.
"""

import io
from collections.abc import Collection, Iterator
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt
import xxhash

from persist.codecs.errors import InvalidUpdate
from persist.codecs.nested import COLUMN, get_column_node
from persist.codecs.order.arrays import get_stored_numbers
from persist.codecs.order.ordering import combine_chunks, make_order_keys
from persist.codecs.part.shredding import VALUES_KEY, encode_entry, encode_values
from persist.codecs.types.arrow_types import is_text, list_inner_fields, replace_inner_types
from persist.codecs.types.schema import DIFF, TIME, CollectionSchema

MAGIC = b"PAR1"
_MILLISECONDS = {pa.date64(): pa.date32(), pa.time32("s"): pa.time32("ms")}
# Below the ids that Iceberg reserves, and beyond those of columns.
_RESERVED_IDS = {TIME: 2_147_000_001, DIFF: 2_147_000_002}
_INNER_IDS, _INNER_MAX = 1_000_000_000, 1 << 15
_TAIL = 8  # The length of the footer, and the magic.
GROUPS_KEY, GROUPS_VERSION = "persist.groups", 1
_SAMPLE_ROWS = 1024
# If a larger share is distinct, a large sample would not change the answer.
_LARGE_SAMPLE_ROWS, _MAY_REPEAT = 8 << 10, 0.97
_FEW = 16
_LONG_DIGITS = 18  # Decimals of so many digits at most are integers in Parquet.
_PROBED_MIN, _PROBE_ROWS = 16 << 10, 8 << 10
_WORTH = 0.95  # Compression must leave less than this of a column.


class FileWriter:
    """Writes a Parquet file by row groups, with checksums in its footer.

    Only the encoded bytes of a group stay in memory.

    Attributes:
        without_statistics: names of flat float columns whose minimum and maximum are not written.
        groups: the row groups so far, each as its length in bytes and its xxh3_64.
    """

    def __init__(
        self, schema: pa.Schema, first: pa.Table, *, sorted_by: int, without_statistics: Collection[str] = ()
    ) -> None:
        """Begin a file.

        Args:
            schema: its columns as Parquet stores them, with distinct names; see `make_file_schema`.
            first: rows from which encodings are chosen: all rows, or the first row group.
            sorted_by: the number of leading columns by which the rows are sorted.
        """
        self.without_statistics = frozenset(without_statistics)
        self.groups: list[tuple[int, str]] = []
        self._schema = schema
        self._value_names: tuple[str, ...] = ()
        self._value_dictionaries: list[str] = []
        self._dictionaries = frozenset(_find_repeating_columns(first))
        self._sorted_by = sorted_by
        self._compression: dict[str, Any] = {"compression": "zstd", "compression_level": 1}
        if len(first) >= _PROBED_MIN:
            self._compression = self._choose_compression(
                convert_to_storage(first.slice((len(first) - _PROBE_ROWS) // 2, _PROBE_ROWS))
            )
        self._open_file()

    def _open_file(self) -> None:
        """Start an empty file with the writer's options."""
        self._sink = io.BytesIO()
        self._file = pa.PythonFile(self._sink, mode="w")
        leading: list[pq.SortingColumn] = []  # Up to the first nested column: Parquet can only name leaves.
        for i in range(self._sorted_by):
            if pt.is_nested(self._schema.field(i).type):
                break
            leading.append(pq.SortingColumn(i, nulls_first=False))
        self._writer = pq.ParquetWriter(
            self._file,
            self._schema,
            write_page_index=True,
            write_page_checksum=True,
            max_rows_per_page=1 << 30,  # They end at 1 MiB, or with the row group.
            store_decimal_as_integer=True,
            **self._compression,
            sorting_columns=leading,
            **_make_column_options(self._schema, self._dictionaries, self.without_statistics),
        )
        self.groups = []
        self._value_files: list[tuple[int, int]] = []
        self._end = len(MAGIC)

    def _choose_compression(self, stored: pa.Table) -> dict[str, Any]:
        """Return the compression of each leaf: none for leaves whose sampled rows hardly shrink."""
        sink = io.BytesIO()
        options = _make_column_options(self._schema, self._dictionaries, ())
        options |= {"write_statistics": False, "store_decimal_as_integer": True}
        pq.write_table(stored, sink, **self._compression, **options)
        group = pq.read_metadata(sink).row_group(0)
        chunks = [group.column(at) for at in range(group.num_columns)]
        # A flat "a.b" and a field b of struct a have one path.
        worth = {c.path_in_schema for c in chunks if c.total_compressed_size < _WORTH * c.total_uncompressed_size}
        return {
            "compression": {c.path_in_schema: "zstd" if c.path_in_schema in worth else "none" for c in chunks},
            "compression_level": dict.fromkeys(worth, 1),
        }

    @property
    def size(self) -> int:
        """The bytes of the file so far."""
        return self._end

    def write(self, group: pa.Table, values: pa.Table | None = None) -> None:
        """Write one row group: at least one row, floats canonical.

        values: the stored values of its documents; for all row groups or for none.

        If floats would make statistics misleading, the file is written again without these, once for a few columns and
        once more for all.
        """
        misled = find_misleading_columns(group) - self.without_statistics
        if misled:
            floats = frozenset(field.name for field in self._schema if pt.is_floating(field.type))
            self._rewrite_file(floats if self.without_statistics else misled)
        if values is not None and not self._value_names:
            self._value_names, self._value_dictionaries = tuple(values.column_names), [*_find_repeating_columns(values)]
        self._write_group(
            convert_to_storage(group), b"" if values is None else encode_values(values, self._value_dictionaries)
        )

    def finish(self) -> bytes:
        """Write the footer; return the bytes of the file."""
        index = msgspec.json.encode({"version": GROUPS_VERSION, "groups": self.groups})
        entries = {GROUPS_KEY: index.decode()}
        if self._value_names:
            entries[VALUES_KEY] = encode_entry(self._value_names, self._value_files).decode()
        self._writer.add_key_value_metadata(entries)
        self._writer.close()
        return self._sink.getvalue()

    def _write_group(self, stored: pa.Table, values: bytes) -> None:
        """Write an encoded row group and its stored JSON values."""
        self._writer.write_table(stored, row_group_size=stored.num_rows)
        self._value_files.append((self._sink.tell(), len(values)))
        self._file.write(values)  # Not to the sink, because Arrow counts what it has written.
        start, self._end = self._end, self._sink.tell()
        with self._sink.getbuffer() as encoded:
            checksum = xxhash.xxh3_64_hexdigest(encoded[start : self._end])
        self.groups.append((self._end - start, checksum))

    def _rewrite_file(self, without_statistics: frozenset[str]) -> None:
        """Rewrite the row groups so far without the statistics of some columns."""
        self.without_statistics |= without_statistics
        if not self.groups:
            self._open_file()
            return
        self._writer.close()
        data, value_files = self._sink.getvalue(), self._value_files
        with pq.ParquetFile(pa.BufferReader(data), arrow_extensions_enabled=False) as file:
            self._open_file()
            for group, (start, size) in enumerate(value_files):
                self._write_group(file.read_row_group(group).cast(self._schema), data[start : start + size])


def find_misleading_columns(group: pa.Table) -> frozenset[str]:
    """Return the flat float columns whose minimum and maximum in Parquet would mislead a reader."""
    return frozenset(
        field.name
        for field, column in zip(group.schema, group.columns, strict=True)
        if pt.is_floating(field.type) and (has_nan(column) or _has_zeros_only(column))
    )


def _make_column_options(
    schema: pa.Schema, repeating: Collection[str], without_statistics: Collection[str]
) -> dict[str, Any]:
    """Return encodings and statistics by leaf path."""
    nested = [path for field in schema for path in _list_nested_leaves(field)]
    nested_paths = {path for path, _ in nested}
    encodings: dict[str, str] = {}
    dictionaries = [path for path, kind in nested if not is_text(kind)]
    statistics = [path for path, kind in nested if not pt.is_floating(kind)]
    for field in schema:
        if pt.is_nested(field.type) or field.name in nested_paths:  # "a.b" may also be field b of struct a.
            continue
        if field.name in repeating:
            dictionaries.append(field.name)
        elif (encoding := _choose_encoding(field.type)) is not None:
            encodings[field.name] = encoding
        if field.name not in without_statistics:
            statistics.append(field.name)
    return {"use_dictionary": dictionaries, "column_encoding": encodings, "write_statistics": statistics}


def _find_repeating_columns(rows: pa.Table) -> Iterator[str]:
    """Yield the flat columns that are smaller as dictionaries."""
    for field, column in zip(rows.schema, rows.columns, strict=True):
        if pt.is_nested(field.type) or pt.is_boolean(field.type) or pt.is_floating(field.type):
            continue
        if _choose_encoding(field.type) is None or pt.is_decimal(field.type):
            distinct, sampled = _count_distinct(column, _SAMPLE_ROWS)
            # A small sample contains most of a thousand common values at most once.
            if sampled / 2 < distinct <= sampled * _MAY_REPEAT and len(rows) >= _PROBED_MIN:
                distinct, sampled = _count_distinct(column, _LARGE_SAMPLE_ROWS)
            if distinct <= sampled / 2:
                yield field.name
        elif len(rows) >= _PROBED_MIN and _count_distinct(column, _SAMPLE_ROWS)[0] <= _FEW:
            yield field.name


def _count_distinct(column: pa.ChunkedArray, rows: int) -> tuple[int, int]:
    """Return the numbers of distinct and of all values in a sample; fewer than 8 values count as distinct."""
    if len(column) < 8:
        return len(column), len(column)
    sample = column.take(pa.array(np.arange(0, len(column), -(-len(column) // rows))))
    return int(pc.count_distinct(sample, mode="all").as_py()), len(sample)


def _choose_encoding(kind: pa.DataType) -> str | None:
    """Return the Parquet encoding for a flat type; None for Parquet's own."""
    if pt.is_integer(kind) or pt.is_temporal(kind) or (pt.is_decimal(kind) and kind.precision <= _LONG_DIGITS):
        return "DELTA_BINARY_PACKED"
    return "BYTE_STREAM_SPLIT" if pt.is_float32(kind) or pt.is_float64(kind) else None


def has_nan(column: pa.ChunkedArray) -> bool:
    """Return whether a column of floats includes NaN."""
    # Values stored for NULL count as well and may be NaN: a quick no for most columns.
    may_have = any(np.isnan(get_stored_numbers(chunk)).any() for chunk in column.chunks)
    return may_have and any(bool(pc.any(pc.is_nan(widen_float16(chunk))).as_py()) for chunk in column.chunks)


def _has_zeros_only(column: pa.ChunkedArray) -> bool:
    """Return whether the floats of a row group are all zero or NULL.

    Parquet stores -0.0 as the minimum and 0.0 as the maximum of zeros; Arrow then treats the column as a constant -0.0,
    which `isin([0.0])` does not match.
    """
    stored = widen_float16(combine_chunks(column)).fill_null(0).to_numpy()
    return not bool(stored[0]) and not bool(stored.any())


def widen_float16(array: pa.Array) -> pa.Array:
    """Widen float16, for which Arrow has few kernels, to float32; return other arrays unchanged."""
    return array.cast(pa.float32()) if pt.is_float16(array.type) else array


def _list_nested_leaves(field: pa.Field, prefix: str = "") -> list[tuple[str, pa.DataType]]:
    """Return the leaves of a nested column by their Parquet path; none for a flat column."""
    path, kind = prefix + field.name, field.type
    if not pt.is_nested(kind):
        return [(path, kind)] if prefix else []
    if pt.is_struct(kind):
        inner, below = list_inner_fields(kind), f"{path}."
    elif pt.is_map(kind):
        inner = [pa.field("key", kind.key_type), pa.field("value", kind.item_type)]
        below = f"{path}.key_value."
    else:
        inner, below = [pa.field("element", kind.value_type)], f"{path}.list."
    return [leaf for child in inner for leaf in _list_nested_leaves(child, below)]


def read_footer_size(data: bytes | memoryview) -> int:
    """Return the size of a Parquet footer, including its length and the magic."""
    return int.from_bytes(data[-_TAIL : -len(MAGIC)], "little") + _TAIL


def make_file_schema(schema: CollectionSchema) -> pa.Schema:
    """Return the columns of a part as Parquet stores them, each with a field id.

    The field id is the column's id + 1, so it stays when the column is renamed. A field inside of a nested column has
    1,000,000,000 + 2¹⁵ · the column's id + its number in the column (`persist.codecs.nested`). A column or field beyond
    these numbers has no field id.
    """
    fields = []
    for field, id_ in zip(schema.arrow, (*schema.ids, None, None), strict=True):
        kind, field_id = get_storage_type(field.type), _RESERVED_IDS.get(field.name)
        if id_ is not None and id_ < _INNER_IDS - 1:
            field_id = id_ + 1
            if id_ < _INNER_MAX:
                first = _INNER_IDS + _INNER_MAX * id_
                numbers = (node.number for node in get_column_node(schema, field.name).walk() if node.number != COLUMN)
                kind = _add_inner_ids(kind, (first + n if n < _INNER_MAX else None for n in numbers))
        fields.append(_add_field_id(field.with_type(kind), field_id))
    return pa.schema(fields)


def _add_inner_ids(kind: pa.DataType, ids: Iterator[int | None]) -> pa.DataType:
    """Return a type whose inner fields have field ids."""
    if not pt.is_nested(kind):
        return kind
    inner: list[pa.Field] = []
    for child in list_inner_fields(kind):
        field = _add_field_id(child, next(ids))
        inner.append(field.with_type(_add_inner_ids(child.type, ids)))
    return replace_inner_types(kind, inner)


def _add_field_id(field: pa.Field, field_id: int | None) -> pa.Field:
    """Return a field with an id for Parquet, or unchanged for None."""
    return field if field_id is None else field.with_metadata({b"PARQUET:field_id": b"%d" % field_id})


def get_storage_type(kind: pa.DataType) -> pa.DataType:
    """Return the Arrow type in which Parquet stores a column of a type."""
    if pt.is_nested(kind):
        return replace_inner_types(kind, [get_storage_type(child.type) for child in list_inner_fields(kind)])
    if pt.is_timestamp(kind) and kind.unit == "s":
        return pa.timestamp("ms", tz=kind.tz)
    return _MILLISECONDS.get(kind, kind)


def convert_to_storage(table: pa.Table) -> pa.Table:
    """Convert columns to the types in which Parquet stores them."""
    for i, field in enumerate(table.schema):
        stored = get_storage_type(field.type)
        if stored != field.type:
            table = table.set_column(i, field.with_type(stored), _cast_exactly(table.column(i), stored, field.name))
    return table


def _cast_exactly(column: pa.ChunkedArray, stored: pa.DataType, name: str) -> pa.ChunkedArray:
    """Cast a column to its storage type, without changing values."""
    try:
        cast = column.cast(stored)
        exact = _are_equal(cast.cast(column.type), column)
    except pa.ArrowInvalid:
        exact = False
    if not exact:
        raise InvalidUpdate(
            f"column {name!r} of type {column.type} holds a value that cannot be stored: Parquet keeps it as "
            f"{stored}, which the value does not fit. Use whole days for date64, times within one day, and "
            "timestamps within 292 million years of 1970, or another type."
        )
    return cast


def _are_equal(left: pa.ChunkedArray, right: pa.ChunkedArray) -> bool:
    """Return whether two columns are equal; NaN inside nested values equals itself."""
    if not pt.is_nested(left.type):
        return bool(left.equals(right))
    joined = pa.table({"both": pa.chunked_array([*left.chunks, *right.chunks], type=left.type)})
    (ranks,) = make_order_keys(joined, ["both"])
    return bool(ranks[: len(left)].equals(ranks[len(left) :]))


def can_be_batch(schema: pa.Schema) -> bool:
    """Return whether rows of a schema may be stored as a batch.

    Types that Parquet stores as another type are excluded: only writing shows whether values fit, and a later merge
    must not fail.
    """
    return _are_stored_alike(tuple(schema.types))


@lru_cache(maxsize=256)
def _are_stored_alike(kinds: tuple[pa.DataType, ...]) -> bool:
    """Return whether Parquet stores all these types as they are."""
    return all(get_storage_type(kind) == kind for kind in kinds)
