"""The Parquet side of a part: one sorted table to a file's bytes and back. See `part` for what the file
promises.

What is written per column, by measurement (1M rows, CPU milliseconds of one thread, row groups of 64k rows):

    column                           encoding, compression         MB     write   read
    random timestamps                DELTA_BINARY_PACKED, none     6.06     19     2.6
                                     the same, zstd-1              6.06     33     3.6
                                     PLAIN, zstd-1                 7.07     23    11.5
    sorted sparse int64 keys         DELTA_BINARY_PACKED, none     2.89     15     2.5
                                     the same, zstd-1              2.89     23     3.3
    one value throughout             dictionary, none              0.01      7     1.4
                                     DELTA_BINARY_PACKED, zstd-1   0.01      8     2.4
    -1 and 1                         dictionary, none              0.14     16     2.2
                                     DELTA_BINARY_PACKED, zstd-1   0.25     12     3.6
    a million values                 dictionary, zstd-1            5.31    100    18
                                     DELTA_BINARY_PACKED, none     2.67     12     2.4
    random doubles                   BYTE_STREAM_SPLIT, zstd-1     6.92     20     4.0
                                     the same, none                8.01     11     2.1
    random strings of 20 letters     PLAIN, zstd-1                13.2     115    39
                                     the same, zstd-3             13.2     279    42
                                     the same, lz4                22.8      83    21
                                     the same, none               24.0      38    17

So:

- integers and temporal types: DELTA_BINARY_PACKED, but a dictionary where a sample has very few values; float32 and
  float64: BYTE_STREAM_SPLIT;
- other flat types: a dictionary only if a sample shows values repeat, because on unique strings it doubles
  the time of writing and reading and makes the file larger; nested columns: a dictionary for each leaf but
  strings and binary, where a reader could not tell how long the values become (see `part.claims`);
- zstd level 1 on columns of which a sample becomes at least a twentieth smaller, none on others;
- one page a column chunk, up to 1 MiB: the default of 20,000 rows a page is no faster, and each page costs a check;
- statistics for all leaves except floating ones that hold NaN or lie inside a nested column: Parquet leaves
  NaN out of minimum and maximum, so a reader that prunes by them would lose rows for a filter such as `~(x >
  5)`.

A page index is written for other readers: pyarrow uses neither it nor bloom filters, and finds one value of 1M unsorted
ones no faster with a bloom filter for each row group than without.

Parquet has no seconds and no date64: `storage_type` says what they are written as, and reading casts them
back.
"""

import io
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
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
from persist.codecs.order.ordering import combined, order_keys
from persist.codecs.part.claims import MAGIC, Claims, check_footer, check_pages
from persist.codecs.part.layout import FileLayout
from persist.codecs.types.arrow_types import children, is_text, with_children

GROUPS_KEY, GROUPS_VERSION = "persist.groups", 1
_SAMPLE_ROWS = 1024
_FEW = 16
_PROBED_MIN, _PROBE_ROWS = 16 << 10, 8 << 10
_WORTH = 0.95  # Compression must leave less than this of a column.
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


class FileWriter:
    """Writes one Parquet file row group by row group, and into its footer where the groups lie and their checksums.

    Nothing of a group is kept but its encoded bytes.

    Attributes:
        without_statistics: names of flat float columns whose minimum and maximum are not written.
        groups: the row groups so far, each as its length in bytes and its xxh3_64.
    """

    def __init__(
        self, schema: pa.Schema, first: pa.Table, *, sorted_by: int, without_statistics: Collection[str] = ()
    ) -> None:
        """Begin a file.

        Args:
            schema: its columns, no two of one name.
            first: rows by which encodings are chosen: all, or the first row group.
            sorted_by: how many leading columns the rows are sorted by.
        """
        self.without_statistics = frozenset(without_statistics)
        self.groups: list[tuple[int, str]] = []
        self._schema = pa.schema([field.with_type(storage_type(field.type)) for field in schema])
        self._dictionaries = frozenset(_repeating(first))
        self._sorted_by = sorted_by
        self._compression: dict[str, Any] = {"compression": "zstd", "compression_level": 1}
        if len(first) >= _PROBED_MIN:
            self._compression = self._probed(_to_storage(first.slice((len(first) - _PROBE_ROWS) // 2, _PROBE_ROWS)))
        self._begin()

    def _begin(self) -> None:
        self._sink = io.BytesIO()
        self._writer = pq.ParquetWriter(
            self._sink,
            self._schema,
            write_page_index=True,
            write_page_checksum=True,
            max_rows_per_page=1 << 30,  # They end at 1 MiB, or with the row group.
            **self._compression,
            sorting_columns=_sorting_columns(self._schema, self._sorted_by),
            **_column_options(self._schema, self._dictionaries, self.without_statistics),
        )
        self.groups = []
        self._end = len(MAGIC)

    def _probed(self, stored: pa.Table) -> dict[str, Any]:
        """Return the compression of each leaf: none for those that it hardly makes smaller, judged by some rows."""
        sink = io.BytesIO()
        options = _column_options(self._schema, self._dictionaries, ())
        pq.write_table(stored, sink, **self._compression, **options | {"write_statistics": False})
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
        """Length of what is encoded so far."""
        return self._end

    def write(self, group: pa.Table) -> None:
        """Write one row group: at least one row, floats canonical.

        Floats for which statistics would mislead make the file be written again without these, once for a few columns
        and once more for all.

        Raises:
            InvalidUpdate: a value is outside what its type can be stored as (a timestamp[s] beyond the range of
                milliseconds, a date64 that is not a whole day, a time32[s] of more than a day).
        """
        misled = misled_columns(group) - self.without_statistics
        if misled:
            floats = frozenset(field.name for field in self._schema if pt.is_floating(field.type))
            self._write_again(floats if self.without_statistics else misled)
        self._write(_to_storage(group))

    def finish(self) -> bytes:
        """Return the bytes of the file."""
        index = msgspec.json.encode({"version": GROUPS_VERSION, "groups": self.groups})
        self._writer.add_key_value_metadata({GROUPS_KEY: index.decode()})
        self._writer.close()
        return self._sink.getvalue()

    def _write(self, stored: pa.Table) -> None:
        self._writer.write_table(stored, row_group_size=stored.num_rows)
        start, self._end = self._end, self._sink.tell()
        with self._sink.getbuffer() as encoded:
            checksum = xxhash.xxh3_64_hexdigest(encoded[start : self._end])
        self.groups.append((self._end - start, checksum))

    def _write_again(self, without_statistics: frozenset[str]) -> None:
        self.without_statistics |= without_statistics
        if not self.groups:
            self._begin()
            return
        self._writer.close()
        with pq.ParquetFile(pa.BufferReader(self._sink.getvalue()), arrow_extensions_enabled=False) as file:
            self._begin()
            for group in range(file.num_row_groups):
                self._write(file.read_row_group(group).cast(self._schema))


def misled_columns(group: pa.Table) -> frozenset[str]:
    """Names of flat float columns whose minimum and maximum in Parquet would mislead a reader of a row group."""
    return frozenset(
        field.name
        for field, column in zip(group.schema, group.columns, strict=True)
        if pt.is_floating(field.type) and (has_nan(column) or _has_zeros_only(column))
    )


def level_bytes(data: bytes | memoryview, schema: pa.Schema, rows: int) -> int:
    """What decoding a file takes beyond its columns: the second term of `memory`; see `part.claims`."""
    if not any(pt.is_nested(kind) for kind in schema.types):
        return 0
    return check_footer(memoryview(data), len(data), _layout(schema)[0], rows, None).level_bytes


@dataclass(frozen=True, slots=True)
class CheckedFooter:
    """A footer that was checked, to be shared between reads."""

    claims: Claims
    metadata: pq.FileMetaData


def read_footer(tail: pa.Buffer, size: int, schema: pa.Schema, *, rows: int, memory: int) -> CheckedFooter:
    """Read the end of a file, of size bytes in all, that must hold exactly schema and that many rows.

    Raises:
        ValueError: it says otherwise about itself.
        pa.ArrowException, OSError: it cannot be decoded.
    """
    layout, _ = _layout(schema)
    claims = check_footer(memoryview(tail), size, layout, rows, memory)
    # Arrow looks for a footer at the end of what it is given, wherever that begins.
    with _open(pa.BufferReader(tail), claims) as file:
        _check_schema(file, layout, schema)
        return CheckedFooter(claims, file.metadata)


def check_headers(footer: CheckedFooter, schema: pa.Schema, pieces: Sequence[tuple[int, memoryview, int]]) -> None:
    """Check the headers of all pages of some row groups, given as for `check_pages`, which says what it raises."""
    check_pages(footer.claims, _layout(schema)[0], pieces, frozenset(schema.names))


def read_groups(
    source: pa.NativeFile,
    footer: CheckedFooter,
    schema: pa.Schema,
    pieces: Sequence[tuple[int, memoryview, int]],
    *,
    columns: Sequence[str],
    use_threads: bool,
) -> pa.Table:
    """Read columns of some row groups.

    Args:
        source: the file, or what has these groups where the file has them.
        pieces: the groups, as for `check_pages`.

    Raises:
        ValueError, pa.ArrowException, OSError: as `read_footer`.
    """
    layout, checked = _layout(schema)
    claims, metadata = footer.claims, footer.metadata
    dictionaries = check_pages(claims, layout, pieces, frozenset(columns))
    groups = [group for group, _, _ in pieces]
    long = _with_long_values(source, footer, dictionaries, groups)
    with _open(source, claims, metadata, long) as file:
        table = file.read_row_groups(groups, columns=list(columns), use_threads=use_threads)
    if long:
        table = _decoded(table, long, claims.bytes_max)
    rows = sum(claims.group_rows[group] for group in groups)
    if table.num_rows != rows:
        raise ValueError(f"it holds {table.num_rows} rows where its footer says {rows}")
    return _from_storage(table, schema, checked, columns)


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
    footer = _whole_footer(data, schema, rows, memory)
    groups = list(range(len(footer.claims.group_rows)))
    if within is not None:
        groups = groups_within(footer.claims.group_rows, within)
    view = memoryview(data)
    pieces = [(group, view, 0) for group in groups]
    return read_groups(pa.BufferReader(data), footer, schema, pieces, columns=columns, use_threads=use_threads)


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
    layout, checked = _layout(schema)
    footer = _whole_footer(data, schema, rows, memory)
    view = memoryview(data)
    groups = list(range(len(footer.claims.group_rows)))
    pieces = [(group, view, 0) for group in groups]
    read = [*columns, *columns_of(filter, schema, columns)]
    dictionaries = check_pages(footer.claims, layout, pieces, frozenset(read))
    if _with_long_values(pa.BufferReader(data), footer, dictionaries, groups) or may_compare_with_nan(filter):
        whole = read_groups(pa.BufferReader(data), footer, schema, pieces, columns=read, use_threads=use_threads)
        return whole.filter(filter).select(list(columns))
    # Here, because importing it imports pandas where there is one, which every worker process would wait for.
    from pyarrow.dataset import ParquetFileFormat

    fragment = ParquetFileFormat().make_fragment(data)
    projection = {name: pc.field(name) for name in columns}
    table = fragment.to_table(
        schema=fragment.physical_schema, columns=projection, filter=filter, use_threads=use_threads
    )
    return _from_storage(table, schema, checked, columns)


def columns_of(filter: pc.Expression, schema: pa.Schema, besides: Sequence[str] = ()) -> list[str]:
    """Names of the columns, besides some, over which filter can be computed; more than these if that is hard to say."""
    text = str(filter)
    others = [name for name in schema.names if name not in besides]
    named = others if "..." in text else [name for name in others if name in text]
    try:
        schema.empty_table().select([*besides, *named]).filter(filter)
    except (pa.ArrowException, TypeError, ValueError):
        return others
    return named


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


def _from_storage(table: pa.Table, schema: pa.Schema, checked: frozenset[str], columns: Sequence[str]) -> pa.Table:
    wanted = pa.schema([schema.field(name) for name in columns])
    table = table.select(list(columns))
    if not columns:
        return table  # A cast would lose the number of rows.
    for name in checked.intersection(columns):
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
def _layout(schema: pa.Schema) -> tuple[FileLayout, frozenset[str]]:
    """Return what a file of these columns looks like, and the names of those that `_check_values` looks at."""
    stored = pa.schema([field.with_type(storage_type(field.type)) for field in schema])
    return FileLayout.of(stored), frozenset(field.name for field in schema if _has_checked(field.type))


def _whole_footer(data: pa.Buffer, schema: pa.Schema, rows: int, memory: int) -> CheckedFooter:
    if memoryview(data)[: len(MAGIC)].tobytes() != MAGIC:
        raise ValueError("it is not a Parquet file")
    return read_footer(data, data.size, schema, rows=rows, memory=memory)


def _check_schema(file: pq.ParquetFile, layout: FileLayout, schema: pa.Schema) -> None:
    found = file.schema_arrow
    if found.names != layout.names or found.types != layout.types:
        raise ValueError(f"it holds the columns {_listed(found)} where {_listed(schema)} belong")


def _open(
    source: pa.NativeFile, claims: Claims, metadata: pq.FileMetaData | None = None, coded: Sequence[str] = ()
) -> pq.ParquetFile:
    """Open a file once nothing about it gives reason not to.

    Args:
        coded: columns to be read in the form of dictionaries and positions in them.
    """
    return pq.ParquetFile(
        source,
        metadata=metadata,
        read_dictionary=list(coded) or None,
        thrift_string_size_limit=source.size(),
        thrift_container_size_limit=claims.list_max,
        pre_buffer=False,  # It is all in memory.
        arrow_extensions_enabled=False,
    )


def _with_long_values(
    source: pa.NativeFile, footer: CheckedFooter, dictionaries: Sequence[str], groups: list[int]
) -> list[str]:
    """Return which columns could be too long even if they held the longest value of each dictionary throughout.

    Cost: the first page of each row group.
    """
    long: list[str] = []
    for name in dictionaries:
        with _open(source, footer.claims, footer.metadata, [name]) as file:
            longest = sum(footer.claims.group_rows[group] * _longest(file, group, name) for group in groups)
        if longest > footer.claims.bytes_max:
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


def groups_within(group_rows: Sequence[int], within: tuple[int, int]) -> list[int]:
    """Return the row groups that hold any of the rows within."""
    groups: list[int] = []
    start = 0
    for group, count in enumerate(group_rows):
        if start < within[1] and start + count > within[0]:
            groups.append(group)
        start += count
    return groups


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


def _column_options(
    schema: pa.Schema, repeating: Collection[str], without_statistics: Collection[str]
) -> dict[str, Any]:
    """Encodings and statistics, by leaf path."""
    nested = [path for field in schema for path in _nested_leaves(field)]
    nested_paths = {path for path, _ in nested}
    encodings: dict[str, str] = {}
    dictionaries = [path for path, kind in nested if not is_text(kind)]
    statistics = [path for path, kind in nested if not pt.is_floating(kind)]
    for field in schema:
        if pt.is_nested(field.type) or field.name in nested_paths:  # "a.b" may also be field b of struct a.
            continue
        if field.name in repeating:
            dictionaries.append(field.name)
        elif (encoding := _encoding(field.type)) is not None:
            encodings[field.name] = encoding
        if field.name not in without_statistics:
            statistics.append(field.name)
    return {"use_dictionary": dictionaries, "column_encoding": encodings, "write_statistics": statistics}


def _repeating(rows: pa.Table) -> Iterator[str]:
    """Names of the flat columns that are worth a dictionary."""
    for field, column in zip(rows.schema, rows.columns, strict=True):
        if pt.is_nested(field.type) or pt.is_boolean(field.type) or pt.is_floating(field.type):
            continue
        if _encoding(field.type) is None:
            if _distinct(column) <= min(len(column), _SAMPLE_ROWS) // 2:
                yield field.name
        elif len(rows) >= _PROBED_MIN and _distinct(column) <= _FEW:
            yield field.name


def _distinct(column: pa.ChunkedArray) -> int:
    """How many values there are among some evenly spaced ones; all of a few are taken for distinct."""
    if len(column) < 8:
        return len(column)
    sample = column.take(pa.array(np.arange(0, len(column), -(-len(column) // _SAMPLE_ROWS))))
    return int(pc.count_distinct(sample, mode="all").as_py())


def _encoding(kind: pa.DataType) -> str | None:
    if pt.is_integer(kind) or pt.is_temporal(kind):
        return "DELTA_BINARY_PACKED"
    return "BYTE_STREAM_SPLIT" if pt.is_float32(kind) or pt.is_float64(kind) else None


def has_nan(column: pa.ChunkedArray) -> bool:
    """Whether a column of floats holds NaN."""
    return any(_has_nan_bits(chunk) and bool(pc.any(pc.is_nan(widened(chunk))).as_py()) for chunk in column.chunks)


def _has_zeros_only(column: pa.ChunkedArray) -> bool:
    """Whether the floats of a row group are all zero or NULL.

    Parquet gives zero as the minimum -0.0 and the maximum 0.0; Arrow then takes the column for a constant -0.0, which
    `isin([0.0])` does not match.
    """
    stored = widened(combined(column)).fill_null(0).to_numpy()
    return not bool(stored[0]) and not bool(stored.any())


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
