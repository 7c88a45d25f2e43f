"""What a Parquet file says about itself, held against what its descriptor allows, before anything is decoded.

A file of a few kilobytes can ask for any amount of memory: a page that unpacks to gigabytes, a count of 2**40 values, a
dictionary of one long string that a million rows repeat. Its checksum may well be right, if whoever wrote it was up
to no good. So its footer and the header of every page are looked at first, with next to nothing allocated for them, and
a file is refused unless

- its columns, row groups, rows and values add up, and the pages of each column chunk fill exactly the bytes it claims;
- there are no more row groups than 64 and one for each 1,024 rows;
- what the pages unpack to and what their values occupy as Arrow columns stay within the descriptor's `memory`;
- only encodings and compressions are used whose output these sizes bound. DELTA_BYTE_ARRAY, in which a few bytes stand
  for long strings, is not among them; of dictionaries of strings that may do so, `check_pages` tells.

Arrow's reader then finds no count in what it reads that was not checked: the footer, and the pages of the columns and
row groups that are decoded. The rest is not looked at, so that a part can be read in pieces.

    memory = bytes of the columns as Arrow holds them
             + for each leaf of a nested column: levels * (4 + bytes of one value, 0 for strings and binary),
               where levels counts its values, its NULLs, and the empty lists around it

All of this is parsed by `persist.codecs.part.thrift`, before Arrow sees the file: Arrow shows no page headers, makes
700 bytes of 3 of a footer, and ends the process when pyarrow's metadata objects are asked for a compression that does
not exist.

Cost: 5 to 10 µs for each column chunk, 3 to 15 µs for each page.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from persist.codecs.part.layout import FileLayout, Leaf
from persist.codecs.part.thrift import (
    DATA_PAGE,
    DICTIONARY_PAGE,
    LIST_MAX,
    Limits,
    read_footer_struct,
    read_page_header,
)

MAGIC = b"PAR1"
_TAIL = 8
# Bytes beyond `memory` that headers, padding and little-filled pages may unpack to, per part and per column chunk.
_SLACK, _CHUNK_SLACK = 64 << 10, 4 << 10
_COMPRESSIONS = {0, 1, 6}  # None, Snappy, Zstandard.
_ENCODINGS = {0, 2, 3, 5, 8, 9}  # PLAIN, PLAIN_DICTIONARY, RLE, DELTA_BINARY_PACKED, RLE_DICTIONARY, BYTE_STREAM_SPLIT
_NO_LIMIT = 1 << 80
GROUPS_MAX, GROUP_ROWS_MIN = 64, 1024  # That many row groups, and one more for each so many rows.


class Chunk(NamedTuple):
    """What the footer claims of one column in one row group.

    Attributes:
        start, end: the bytes `[start, end)` of the file that its pages fill.
        levels: its values, NULLs and empty lists.
        unpacked: bytes of its pages before compression, with their headers.
    """

    start: int
    end: int
    levels: int
    unpacked: int


@dataclass(frozen=True, slots=True)
class Claims:
    """What a footer was found to claim.

    Attributes:
        level_bytes: what decoding its nested columns takes beyond the columns: the second term of `memory`.
        group_rows: the rows of each row group.
        chunks: for each row group, its chunks: one for each leaf of the layout.
        bytes_max: what the pages may unpack to, and the strings of dictionaries become.
        list_max: an upper bound of the length of any list in the footer.
    """

    level_bytes: int
    group_rows: tuple[int, ...]
    chunks: tuple[tuple[Chunk, ...], ...]
    bytes_max: int
    list_max: int


def footer_bytes(data: bytes | memoryview) -> int:
    """How many bytes at the end of a Parquet file are its footer, with its length and the magic after it."""
    return int.from_bytes(data[-_TAIL : -len(MAGIC)], "little") + _TAIL


def check_footer(tail: memoryview, size: int, layout: FileLayout, rows: int, memory: int | None) -> Claims:
    """Check what the footer of a Parquet file claims against how much it may be; see the module's promise.

    Args:
        tail: the end of the file, the footer in it.
        size: bytes of the file.
        rows: how many it must have.
        memory: the descriptor's, or None to find out what it must be.

    Raises:
        ValueError, LookupError: it claims something else, or contradicts itself.
    """
    tail = tail.cast("B")  # An Arrow buffer says that its bytes are signed.
    if len(tail) < _TAIL or tail[-len(MAGIC) :] != MAGIC:
        raise ValueError("it is not a Parquet file")
    length = footer_bytes(tail)
    if not length <= min(len(tail), size - len(MAGIC)):
        raise ValueError(f"its footer claims {length} of its {size} bytes")
    if memory is not None and (least := rows * layout.row_bits_min // 8) > memory:
        raise ValueError(f"{rows} rows take {least} bytes at least, and its descriptor says memory {memory}")
    groups_max = min(rows, GROUPS_MAX + rows // GROUP_ROWS_MIN)
    limits = Limits(groups_max, len(layout.leaves), max(layout.elements, LIST_MAX))
    footer = read_footer_struct(bytes(tail[-length:-_TAIL]), limits)
    if footer.get(2) != layout.elements:
        raise ValueError(f"its schema has {footer.get(2)} elements where {layout.elements} belong")
    groups = footer.get(4, [])
    group_rows = tuple(_rows_of(group, layout) for group in groups)
    if sum(group_rows) != rows or footer.get(3) != rows:
        raise ValueError(f"it holds {sum(group_rows)} rows, and its descriptor says {rows}")
    bytes_max = _NO_LIMIT
    if memory is not None:
        bytes_max = 2 * memory + _SLACK + _CHUNK_SLACK * len(groups) * len(layout.leaves)
    chunks = tuple(
        tuple(_chunk(leaf, chunk[3], of, size - length) for leaf, chunk in zip(layout.leaves, group[1], strict=True))
        for group, of in zip(groups, group_rows, strict=True)
    )
    nested = [(at, leaf.level_bytes) for at, leaf in enumerate(layout.leaves) if leaf.level_bytes]
    level_bytes = sum(group[at].levels * each for group in chunks for at, each in nested)
    if level_bytes > bytes_max:
        raise ValueError(f"its nested columns take over {bytes_max} bytes, more than its descriptor allows")
    return Claims(level_bytes, group_rows, chunks, bytes_max, max(limits))


def check_pages(
    claims: Claims, layout: FileLayout, pieces: Iterable[tuple[int, memoryview, int]], columns: Collection[str]
) -> dict[str, int]:
    """Check the header of every page of some columns in some row groups; see the module's promise.

    Args:
        pieces: row groups, each as its number, bytes of the file that hold it, and where in the file these begin.
        columns: names of top-level columns; no others may be decoded thereafter.

    Returns:
        Flat columns whose dictionaries could make them longer than memory allows, each with the bytes that it would
        have if it held the whole dictionary in every row. Whether they do takes reading them.

    Raises:
        ValueError, LookupError: as `check_footer`.
    """
    leaves = [(at, leaf) for at, leaf in enumerate(layout.leaves) if leaf.field in columns]
    strings: dict[str, int] = {}
    left = claims.bytes_max
    for group, data, start in pieces:
        data = data.cast("B")
        for at, leaf in leaves:
            chunk = claims.chunks[group][at]
            values, unpacked, dictionary, left = _over_pages(data, start, chunk, leaf, left, claims.bytes_max)
            if (values, unpacked) != (chunk.levels, chunk.unpacked):
                raise ValueError(
                    f"pages hold {values} values in {unpacked} bytes, and their column claims {chunk.levels} in "
                    f"{chunk.unpacked}"
                )
            if dictionary and leaf.width is None:
                longest = dictionary * chunk.levels
                if leaf.is_nested and longest > claims.bytes_max:
                    raise ValueError("a nested column has a dictionary that may take more than its descriptor allows")
                strings[leaf.field] = strings.get(leaf.field, 0) + longest
    return {name: total for name, total in strings.items() if total > claims.bytes_max}


def _rows_of(group: dict[int, Any], layout: FileLayout) -> int:
    rows, chunks = group.get(3, 0), group.get(1, [])
    if rows < 1 or len(chunks) != len(layout.leaves):
        raise ValueError(f"a row group claims {rows} rows and {len(chunks)} columns")
    return int(rows)


def _chunk(leaf: Leaf, column: dict[int, int], rows: int, end_max: int) -> Chunk:
    levels = column[5]
    if column[4] not in _COMPRESSIONS:
        raise ValueError(f"a column is compressed by method {column[4]}; only {sorted(_COMPRESSIONS)} are read")
    if levels < rows or (not leaf.is_nested and levels != rows):
        raise ValueError(f"a column claims {levels} values in {rows} rows")
    at, coded = column[9], column.get(11, 0)
    at = coded if 0 < coded < at else at
    end = at + column[7]
    if not len(MAGIC) <= at <= end <= end_max:
        raise ValueError(f"a column claims the bytes [{at}, {end}) of {end_max}")
    return Chunk(at, end, levels, column[6])


def _over_pages(
    data: memoryview, offset: int, chunk: Chunk, leaf: Leaf, left: int, bytes_max: int
) -> tuple[int, int, int, int]:
    """Walk the pages of a chunk: their values, what they unpack to, what the dictionary does, what is left of left."""
    at, end = chunk.start - offset, chunk.end - offset
    if not 0 <= at <= end <= len(data):
        raise ValueError(f"a column claims bytes up to {chunk.end}, outside of its row group")
    values = unpacked = dictionary = 0
    first = True
    while at < end:
        page, start = read_page_header(data, at, end)
        if not (0 <= page.packed <= end - start and page.unpacked >= 0 and page.values >= 0):
            raise ValueError(f"a page claims {page.packed} bytes, {page.unpacked} unpacked, {page.values} values")
        if page.encoding not in _ENCODINGS:
            raise ValueError(f"a page has the encoding {page.encoding}; only {sorted(_ENCODINGS)} are read")
        unpacked += page.unpacked + start - at
        left -= page.unpacked
        if left < 0:
            raise ValueError(f"its pages unpack to over {bytes_max} bytes, more than its descriptor allows")
        if page.kind == DATA_PAGE:
            values += page.values
        elif page.kind == DICTIONARY_PAGE and first:
            dictionary = page.unpacked
            if page.values * (leaf.width or 4) > page.unpacked:
                raise ValueError(f"a dictionary claims {page.values} values in {page.unpacked} bytes")
        else:
            raise ValueError(f"a page is of the kind {page.kind}; data pages of version 1 belong there")
        first = False
        at = start + page.packed
    return values, unpacked, dictionary, left
