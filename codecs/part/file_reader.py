"""Reads the Parquet file of a part: compares the footer with the descriptor, then decodes values.

The checksum in the log covers the bytes, so this module does not defend against malicious files: a client that may
write the log can do anything. Its checks detect accidents, such as a file of another collection under the key. Columns
and rows must match the descriptor; row groups and unpacked size must not exceed what it allows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt

from persist.blob.errors import CorruptBlob
from persist.codecs.order.arrays import make_int64_array
from persist.codecs.part.file_writer import MAGIC, get_storage_type
from persist.codecs.part.filters import may_compare_with_nan
from persist.codecs.part.part import Part, compute_max_groups
from persist.codecs.part.shredding import VALUES_KEY, StoredValues, decode_values, read_entry, rewrite_filter
from persist.codecs.types.arrow_types import list_leaf_types
from persist.codecs.types.schema import CollectionSchema

# For fewer values, starting Arrow's threads takes longer than decoding in one. With more decoded by our own threads,
# the allocator keeps 90 MiB more of what they freed.
THREADED_VALUES = 1 << 14
# The most that Arrow's and our own form of a footer take, for each byte of it: 4 to 10.2 were measured.
PARSED_BYTES = 11
# Bytes beyond `memory` that levels, headers and padding of pages may unpack to, per part and per column chunk.
_SLACK, _CHUNK_SLACK = 64 << 10, 4 << 10
_PHYSICAL_BYTES = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8, "BYTE_ARRAY": 0}


def measure_level_bytes(data: bytes | memoryview, schema: pa.Schema) -> int:
    """Return the extra bytes that decoding a file's nested columns takes."""
    is_nested = [pt.is_nested(field.type) for field in schema for _ in list_leaf_types(field.type)]
    if not any(is_nested):
        return 0
    metadata = pq.read_metadata(pa.BufferReader(data))
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    return sum(
        (4 + _get_value_width(metadata.schema.column(at))) * group.column(at).num_values
        for at, counts in enumerate(is_nested)
        if counts
        for group in groups
    )


def _get_value_width(column: pq.ColumnSchema) -> int:
    """Return the bytes of one value as Parquet stores it, 0 for strings and binary."""
    return int(_PHYSICAL_BYTES.get(column.physical_type, column.length))


@dataclass(frozen=True, slots=True)
class CheckedFooter:
    """A Parquet footer that agrees with its descriptor. `group_rows`: rows per row group."""

    metadata: pq.FileMetaData
    group_rows: tuple[int, ...]

    def list_matching_groups(self, filter: pc.Expression) -> list[int]:
        """Return the row groups that may have a matching row, by their statistics.

        All of them if the filter may compare with NaN, for which Arrow would exclude too many. Cost: 0.2 ms.
        """
        if may_compare_with_nan(filter):
            return [*range(len(self.group_rows))]
        # Here, because importing it imports pandas where there is one, which every worker process would wait for.
        from pyarrow.dataset import ParquetFileFormat

        alone = pa.BufferOutputStream()
        self.metadata.write_metadata_file(alone)
        fragment = ParquetFileFormat().make_fragment(alone.getvalue())
        return [group.id for group in fragment.subset(filter, schema=fragment.physical_schema).row_groups]


def read_footer(tail: pa.Buffer, part: Part, schema: pa.Schema) -> CheckedFooter:
    """Read the footer of a file, and check its schema, row count and unpacked size.

    Raises:
        ValueError: the footer disagrees with the schema or the descriptor.
        pa.ArrowException, OSError: the footer cannot be decoded.
    """
    (stored, _), rows = to_stored_schema(schema), part.rows
    # Arrow finds the footer from the end of its input, wherever that begins.
    with open_parquet(pa.BufferReader(tail)) as file:
        schema_found, metadata = file.schema_arrow, file.metadata
    if schema_found.names != stored.names or schema_found.types != stored.types:
        raise ValueError(f"it holds the columns {_join_names(schema_found)} where {_join_names(schema)} belong")
    if metadata.num_rows != rows:
        raise ValueError(f"it holds {metadata.num_rows} rows, and its descriptor says {rows}")
    if metadata.num_row_groups > (most := compute_max_groups(rows)):
        raise ValueError(f"it has {metadata.num_row_groups} row groups, and {rows} rows have {most} at most")
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    unpacked = sum(group.total_byte_size for group in groups)
    if unpacked > 2 * part.memory + _SLACK + _CHUNK_SLACK * metadata.num_columns * len(groups):
        raise ValueError(f"its pages unpack to {unpacked} bytes, and its descriptor says memory {part.memory}")
    return CheckedFooter(metadata, tuple(group.num_rows for group in groups))


def may_be_dictionary(field: pa.Field) -> bool:
    """Return whether Arrow can read a column as dictionaries: texts or bytes."""
    # Arrow returns dictionaries of short texts for long ones, and also matches "a.b" with a field of a struct.
    return (pt.is_string(field.type) or pt.is_binary(field.type)) and "." not in field.name


@dataclass(frozen=True, slots=True)
class ValueFilter:
    """A filter on a part's stored JSON values (`shredding`), not its documents.

    Attributes:
        filter: over the columns of the part and the fields of the values.
        fields: of the values that it reads.
    """

    filter: pc.Expression
    fields: pa.Schema
    _entry: StoredValues
    _group_rows: Sequence[int]
    _part: str

    @classmethod
    def find(
        cls, filter: pc.Expression, footer: CheckedFooter, part: Part, schema: CollectionSchema
    ) -> "ValueFilter | None":
        """Rewrite a filter to a part's stored JSON values; None if impossible.

        Raises CorruptBlob: the entry of its footer is malformed.
        """
        if not schema.json:
            return None
        try:
            entry = read_entry(footer.metadata.metadata or {}, len(footer.group_rows))
        except (ValueError, LookupError, TypeError) as error:
            raise CorruptBlob(part.name, f"{VALUES_KEY} in its footer is malformed: {error}") from error
        rewritten = None if entry is None else rewrite_filter(filter, schema, entry.names)
        if entry is None or rewritten is None:
            return None
        return cls(*rewritten, entry, footer.group_rows, part.name)

    def read(self, groups: Sequence[int], fetch: Callable[[int, int], pa.Buffer]) -> pa.Table:
        """Return the stored values that the filter reads, of some row groups.

        `fetch`: returns the bytes of the part from one position to another.

        Raises CorruptBlob: the values are malformed.
        """
        tables = []
        for group in groups:
            start, size = self._entry.files[group]
            try:
                tables.append(decode_values(fetch(start, start + size), self.fields.names, self._group_rows[group]))
            except (pa.ArrowException, OSError, ValueError, LookupError) as error:
                raise CorruptBlob(self._part, f"the values of its row group {group} are unreadable: {error}") from error
        if len(self.fields) == 1 and all(pt.is_dictionary(kind) for table in tables for kind in table.schema.types):
            return pa.concat_tables(tables) if tables else self.fields.empty_table()
        return pa.concat_tables([self.fields.empty_table(), *(table.cast(self.fields) for table in tables)])


def find_passing_rows(table: pa.Table, filter: pc.Expression) -> npt.NDArray[np.int64]:
    """Return the rows for which a filter is true, ascending."""
    name = "row" + "_" * max(map(len, table.column_names), default=0)
    numbered = table.append_column(name, make_int64_array(np.arange(len(table))))
    rows: npt.NDArray[np.int64] = numbered.filter(filter)[name].to_numpy()
    return rows


def find_passing_codes(table: pa.Table, filter: pc.Expression) -> npt.NDArray[np.int64]:
    """Return the rows of a dictionary column that pass a filter, ascending; each distinct value is tested once."""
    rows, start = [np.empty(0, np.int64)], 0
    for chunk in table.column(0).chunks:
        count = len(chunk.dictionary)
        texts = pa.concat_arrays([chunk.dictionary.cast(pa.string()), pa.nulls(1, pa.string())])
        passes = np.zeros(count + 1, np.bool_)
        passes[find_passing_rows(pa.table([texts], names=table.column_names), filter)] = True
        rows.append(start + np.flatnonzero(passes[chunk.indices.fill_null(count).to_numpy()]))
        start += len(chunk)
    return np.concatenate(rows)


@lru_cache(maxsize=256)
def to_stored_schema(schema: pa.Schema) -> tuple[pa.Schema, frozenset[str]]:
    """Return a file's schema, and the columns whose values must be checked."""
    stored = pa.schema([field.with_type(get_storage_type(field.type)) for field in schema])
    return stored, frozenset(field.name for field in schema if any(map(_is_checked, list_leaf_types(field.type))))


def _is_checked(kind: pa.DataType) -> bool:
    """Return whether Arrow's reader accepts invalid values of a type."""
    return bool(pt.is_string(kind) or pt.is_large_string(kind) or pt.is_decimal(kind))


def read_whole_footer(data: pa.Buffer, part: Part, schema: pa.Schema) -> CheckedFooter:
    """Read and check the footer of a whole file; raises as `read_footer`."""
    if memoryview(data)[: len(MAGIC)].tobytes() != MAGIC:
        raise ValueError("it is not a Parquet file")
    return read_footer(data, part, schema)


def open_parquet(
    source: pa.NativeFile, metadata: pq.FileMetaData | None = None, coded: Sequence[str] = ()
) -> pq.ParquetFile:
    """Open a file of Parquet; `coded`: the columns that are read as dictionaries."""
    # It is all in memory, so there is nothing to fetch beforehand.
    return pq.ParquetFile(
        source, metadata=metadata, pre_buffer=False, arrow_extensions_enabled=False, read_dictionary=[*coded]
    )


def list_groups_within(group_rows: Sequence[int], within: tuple[int, int]) -> list[int]:
    """Return the row groups that have any of the rows `within`."""
    groups: list[int] = []
    start = 0
    for group, count in enumerate(group_rows):
        if start < within[1] and start + count > within[0]:
            groups.append(group)
        start += count
    return groups


def _join_names(schema: pa.Schema) -> str:
    """Return names and types of columns as text, for messages."""
    return "[" + ", ".join(f"{field.name}: {field.type}" for field in schema) + "]"


def restore_types(
    table: pa.Table, schema: pa.Schema, checked: frozenset[str], columns: Sequence[str], coded: Sequence[str] = ()
) -> pa.Table:
    """Convert columns from their types in Parquet to a schema's; check values."""
    selected = pa.schema([schema.field(name) for name in columns])
    for at, field in enumerate(selected):
        if field.name in coded:
            selected = selected.set(at, field.with_type(pa.dictionary(pa.int32(), field.type)))
    table = table.select(list(columns))
    if not columns:
        return table  # A cast would lose the number of rows.
    for name in checked.intersection(columns):
        for chunk in table.column(name).chunks:
            _check_values(chunk.dictionary if pt.is_dictionary(chunk.type) else chunk)
    if any(pt.is_nested(kind) for kind in selected.types) or table.schema.types != selected.types:
        return table if table.schema.equals(selected, check_metadata=True) else table.cast(selected)
    for field, column in zip(selected, table.columns, strict=True):
        if not field.nullable and column.null_count:
            raise ValueError(f"its column {field.name!r} is not null by the schema, and has {column.null_count} NULLs")
    return pa.Table.from_arrays(table.columns, schema=selected)  # A cast takes several times as long.


def _check_values(array: pa.Array) -> None:
    """Raise ArrowInvalid for invalid values that Arrow's reader accepts: text that is not UTF-8, too long decimals."""
    if pt.is_string(array.type) or pt.is_large_string(array.type):
        text = array.buffers()[2]
        if text is None or _is_ascii(text):
            return  # Many times faster to see than UTF-8 is to check.
    array.validate(full=True)


def _is_ascii(text: pa.Buffer) -> bool:
    """Return whether a buffer has only bytes below 128."""
    whole = text.size // 8
    words, tail = np.frombuffer(text, np.uint64, whole), np.frombuffer(text, np.uint8, offset=8 * whole)
    return not (int(np.bitwise_or.reduce(words)) & 0x8080808080808080 or int(np.bitwise_or.reduce(tail)) & 0x80)
