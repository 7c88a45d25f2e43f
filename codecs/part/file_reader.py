"""Reads the Parquet file of a part: the footer is checked first, then the pages that are wanted, then their values.

Nothing is decoded before what the file says about itself was held against what its descriptor allows; see `claims`.
"""

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt

from persist.blob.lru import ByteBoundedLru
from persist.codecs.part.claims import MAGIC, Claims, check_footer, check_pages
from persist.codecs.part.layout import FileLayout
from persist.codecs.part.storage_types import from_storage, has_checked, storage_type

TRIED_BYTES_MAX = 4 << 20  # What dictionaries could come to is decoded, and then measured, up to here.
# Of fewer, Arrow's threads take longer to begin than one does to decode them. With more decoded by our own threads, the
# allocator keeps 90 MiB more of what they freed.
THREADED_VALUES = 1 << 14
FOOTER_BYTES_MAX = 16 << 20
# What Arrow's and our own form of a footer take at most, for each byte of it: 4 to 8 were measured.
PARSED_BYTES = 8
_NAN = re.compile(r"(?<!\w)nan(?!\w)", re.IGNORECASE)
_FUNCTION = re.compile(r"(\w+)\(")
_PLAIN_FUNCTIONS = {"invert", "is_null", "is_valid", "is_nan", "is_in"}
_PLAIN_FUNCTIONS |= {"starts_with", "ends_with", "match_substring"}


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


class CheckedFooters:
    """Footers that were checked lately, for whoever reads the same files again; for any number of threads.

    Only what a footer says is taken from here: pages are always held against it anew, in the very bytes that are read.
    """

    def __init__(self, bytes_max: int = FOOTER_BYTES_MAX) -> None:
        self._kept: ByteBoundedLru[Hashable, CheckedFooter] = ByteBoundedLru(
            bytes_max, lambda footer: PARSED_BYTES * int(footer.metadata.serialized_size)
        )

    def read(self, data: pa.Buffer, checksum: str, schema: pa.Schema, rows: int, memory: int) -> CheckedFooter:
        """Return the footer of a file that has this checksum, which was verified; as `from_parquet` reads it."""
        name = checksum, data.size, schema, rows, memory
        footer = self._kept.get(name)
        if footer is None:
            footer = _whole_footer(data, schema, rows, memory)
            self._kept.put(name, footer)
        return footer


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
    rows = sum(claims.group_rows[group] for group in groups)
    use_threads = use_threads and rows * len(columns) >= THREADED_VALUES
    with _open(source, claims, metadata, long) as file:
        table = file.read_row_groups(groups, columns=list(columns), use_threads=use_threads)
    if long:
        table = _decoded(table, long, claims.bytes_max)
    _check_lengths(table, dictionaries, claims.bytes_max)
    if table.num_rows != rows:
        raise ValueError(f"it holds {table.num_rows} rows where its footer says {rows}")
    return from_storage(table, schema, checked, columns)


def from_parquet(
    data: pa.Buffer,
    schema: pa.Schema,
    *,
    columns: Sequence[str],
    rows: int,
    memory: int,
    use_threads: bool,
    within: tuple[int, int] | None = None,
    footer: CheckedFooter | None = None,
) -> pa.Table:
    """Read columns of a file that must hold exactly schema and that many rows, and take no more memory than that.

    Args:
        within: an interval `[start, end)` of rows; the row groups that hold some of them are read whole, others not.
        footer: that of this file, from `CheckedFooters`; None to read it.

    Raises:
        ValueError: the file says otherwise about itself.
        pa.ArrowException, OSError: it cannot be decoded.
    """
    footer = _whole_footer(data, schema, rows, memory) if footer is None else footer
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
    _check_lengths(table, dictionaries, footer.claims.bytes_max)
    return from_storage(table, schema, checked, columns)


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


@lru_cache(maxsize=256)
def _layout(schema: pa.Schema) -> tuple[FileLayout, frozenset[str]]:
    """Return what a file of these columns looks like, and the names of those that `_check_values` looks at."""
    stored = pa.schema([field.with_type(storage_type(field.type)) for field in schema])
    return FileLayout.of(stored), frozenset(field.name for field in schema if has_checked(field.type))


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
    source: pa.NativeFile, footer: CheckedFooter, dictionaries: Mapping[str, int], groups: list[int]
) -> list[str]:
    """Return which columns could be too long even if they held the longest value of each dictionary throughout.

    None, if what `check_pages` says of them is little enough to be tried. Cost: else the first page of each row group.
    """
    if sum(dictionaries.values()) <= TRIED_BYTES_MAX:
        return []
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


def _check_lengths(table: pa.Table, dictionaries: Iterable[str], bytes_max: int) -> None:
    """Raise ValueError if a dictionary has made a column longer than that."""
    for name in dictionaries:
        if name in table.column_names and table.column(name).nbytes > bytes_max:
            raise _too_long(name)


def _too_long(name: str) -> ValueError:
    return ValueError(f"the dictionary of column {name!r} makes it longer than its descriptor allows")


def _decoded(table: pa.Table, coded: list[str], bytes_max: int) -> pa.Table:
    """Return the table with dictionary-encoded columns decoded, unless they come to more than bytes_max."""
    left = bytes_max
    for name in coded:
        at, column = table.schema.get_field_index(name), table.column(name)
        for chunk in column.chunks:
            lengths = pc.binary_length(chunk.dictionary).take(chunk.indices)
            left -= pc.sum(lengths, min_count=0).as_py()
            if left < 0:
                raise _too_long(name)
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
