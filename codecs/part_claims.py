"""What a Parquet file says about itself, held against what its descriptor allows, before anything is decoded.

A file of a few kilobytes can ask for any amount of memory: a page that unpacks to gigabytes, a count of 2**40 values, a
dictionary of one long string that a million rows repeat. Its checksum may well be right, if whoever wrote it was up
to no good. So its footer and the header of every page are looked at first, with next to nothing allocated for them, and
a file is refused unless

- its columns, row groups, rows and values add up, and the pages of each column chunk fill exactly the bytes it claims;
- there are no more row groups than 64 and one for each 1,024 rows;
- what the pages unpack to and what their values occupy as Arrow columns stay within the descriptor's `memory`;
- only encodings and compressions are used whose output these sizes bound. DELTA_BYTE_ARRAY, in which a few bytes stand
  for long strings, is not among them; of dictionaries of strings that may do so, `Claims.dictionaries` tells.

Arrow's reader then finds no count in the file that was not checked.

    memory = bytes of the columns as Arrow holds them
             + for each leaf of a nested column: levels * (4 + bytes of one value, 0 for strings and binary),
               where levels counts its values, its NULLs, and the empty lists around it

Page headers, and footers too large to be harmless, are parsed here (Thrift, compact protocol): Arrow shows no page
headers, and makes 700 bytes of 3 of a footer. Cost: 2 µs for each column chunk, 5 to 15 µs for each page.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from persist.codecs.types import children

_MAGIC = b"PAR1"
_TAIL = 8
# Bytes beyond `memory` that headers, padding and little-filled pages may unpack to, per part and per column chunk.
_SLACK, _CHUNK_SLACK = 64 << 10, 4 << 10
_DEPTH_MAX = 16
_FIELD_MAX = 1000
_LIST_MAX = 1024  # Of the lists that do not matter here: encodings, histograms of levels, metadata.
_BOOLS, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _STRUCT = (1, 2), 3, 4, 5, 6, 7, 8, 9, 10, 12
_DATA_PAGE, _DICTIONARY_PAGE = 0, 2
_COMPRESSIONS = {"UNCOMPRESSED", "SNAPPY", "ZSTD"}
_ENCODINGS = {0, 2, 3, 5, 8, 9}  # PLAIN, PLAIN_DICTIONARY, RLE, DELTA_BINARY_PACKED, RLE_DICTIONARY, BYTE_STREAM_SPLIT
_NO_LIMIT = 1 << 80
_FOOTER_HARMLESS = 16 << 10
GROUPS_MAX, GROUP_ROWS_MIN = 64, 1024  # That many row groups, and one more for each so many rows.
# The header of a data page as Arrow writes it: kind, unpacked, packed, checksum, and of the page itself the values, the
# encoding and those of the levels. Any other goes the long way.
_V = rb"[\x80-\xff]{0,4}[\x00-\x7f]"
_PLAIN_HEADER = re.compile(
    rb"\x15\x00\x15(%b)\x15(%b)(?:\x15%b)?[\x1c\x2c]\x15(%b)\x15(%b)\x15%b\x15%b\x00\x00" % ((_V,) * 7), re.DOTALL
)
_PLAIN_HEADER_MAX = 64


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A column as Parquet knows it: its top-level field, and the bytes of one value (None for strings and binary)."""

    field: str
    width: int | None
    is_nested: bool

    @property
    def level_bytes(self) -> int:
        """What decoding takes for each level beyond the column itself."""
        return 4 + (self.width or 0) if self.is_nested else 0


class _Fields:
    """Reads Thrift structs, compact protocol, off a buffer. Whatever does not fit raises ValueError or IndexError."""

    __slots__ = ("_data", "_end", "at")

    def __init__(self, data: memoryview, at: int, end: int) -> None:
        self._data = data
        self._end = end
        self.at = at

    def fields(self) -> Iterator[tuple[int, int]]:
        """Yield id and type of each field of a struct; its value must be read in between.

        A field that comes twice is refused, because readers may differ in which of the two they take.
        """
        field = seen = 0
        while head := self._byte():
            delta = head >> 4
            field = field + delta if delta else self.integer()
            if not 0 <= field <= _FIELD_MAX or seen >> field & 1:
                raise ValueError(f"its metadata has the field {field} twice, or where there is none of that number")
            seen |= 1 << field
            yield field, head & 15

    def integer(self) -> int:
        raw = self._varint()
        return (raw >> 1) ^ -(raw & 1)

    def expect(self, kind: int, *expected: int) -> None:
        if kind not in expected:
            raise ValueError(f"its metadata has a field of type {kind} where {expected} belongs")

    def int_field(self, kind: int) -> int:
        self.expect(kind, _I16, _I32, _I64)
        return self.integer()

    def list_head(self, kind: int) -> int:
        """Return the length of a list of structs."""
        self.expect(kind, _LIST)
        head = self._byte()
        count = head >> 4 if head >> 4 != 15 else self._varint()
        if count:
            self.expect(head & 15, _STRUCT)
        if count > self._end - self.at:
            raise ValueError(f"its metadata claims a list of {count} elements in {self._end - self.at} bytes")
        return count

    def skip(self, kind: int, depth: int = 0) -> None:
        """Read past a value."""
        if kind in _BOOLS:
            return
        if kind in (_I16, _I32, _I64):
            self._varint()
        elif kind in (_BYTE, _DOUBLE):
            self._forward(1 if kind == _BYTE else 8)
        elif kind == _BINARY:
            self._forward(self._varint())
        elif depth == _DEPTH_MAX:
            raise ValueError("its metadata is nested too deep")
        elif kind == _STRUCT:
            for _, inner in self.fields():
                self.skip(inner, depth + 1)
        elif kind in (_LIST, _SET):
            self._skip_list(depth)
        else:
            raise ValueError(f"its metadata holds a value of the unknown type {kind}")

    def _skip_list(self, depth: int) -> None:
        head = self._byte()
        count, element = head >> 4 if head >> 4 != 15 else self._varint(), head & 15
        if count > _LIST_MAX:
            raise ValueError(f"its metadata holds a list of {count} elements")
        if element in _BOOLS:
            self._forward(count)
            return
        for _ in range(count):
            self.skip(element, depth + 1)

    def _byte(self) -> int:
        at = self.at
        if at >= self._end:
            raise ValueError("its metadata ends in the middle")
        self.at = at + 1
        return self._data[at]

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
            if shift > 63:
                raise ValueError("its metadata holds an integer of more than 64 bits")

    def _forward(self, count: int) -> None:
        if count > self._end - self.at:
            raise ValueError("its metadata ends in the middle")
        self.at += count


@dataclass(frozen=True, slots=True)
class Claims:
    """What a file was found to claim.

    Attributes:
        level_bytes: what decoding its nested columns takes beyond the columns: the second term of `memory`.
        dictionaries: names of flat columns whose dictionary could make them longer than memory allows. Whether it
            does takes reading them.
        string_bytes_max: how long these may become.
    """

    level_bytes: int
    dictionaries: tuple[str, ...]
    string_bytes_max: int


def check_footer(data: memoryview, schema: pa.Schema, rows: int, memory: int) -> int:
    """Check that the footer of a file may be parsed; return the most elements that any list in it may have.

    Args:
        data: the file; of unsigned bytes.
        schema: its columns, as they are stored.
        rows, memory: the descriptor's.

    Raises:
        ValueError: it is none, or not of this schema, or parsing it would take more memory than that.
    """
    size = len(data)
    if size < len(_MAGIC) + _TAIL or data[: len(_MAGIC)] != _MAGIC or data[-len(_MAGIC) :] != _MAGIC:
        raise ValueError("it is not a Parquet file")
    least = rows * _row_bits_min_of(schema) // 8
    if least > memory:
        raise ValueError(f"{rows} rows take {least} bytes at least, and its descriptor says memory {memory}")
    length = int.from_bytes(data[-_TAIL : -len(_MAGIC)], "little")
    if length > size - _TAIL - len(_MAGIC):
        raise ValueError(f"its footer claims {length} of its {size} bytes")
    leaves = len(_leaves_of(schema))
    groups_max = _groups_max(rows)
    if length > _FOOTER_HARMLESS:
        _walk_footer(_Fields(data, size - _TAIL - length, size - _TAIL), schema, groups_max)
    return max(_elements_of(schema), leaves, groups_max, _LIST_MAX)


def check_claims(
    data: memoryview, metadata: pq.FileMetaData, schema: pa.Schema, rows: int, memory: int | None
) -> Claims:
    """Check a file that passed `check_footer` against how much it may be; see the module's promise.

    Args:
        metadata: its footer as Arrow understands it.
        memory: the descriptor's, or None to find out what it must be.

    Raises:
        ValueError: it claims something else, or contradicts itself.
    """
    return _Sums(data, schema, memory).over(metadata, rows)


def _groups_max(rows: int) -> int:
    return min(rows, GROUPS_MAX + rows // GROUP_ROWS_MIN)


class _Sums:
    """The sums over one file while it is checked."""

    def __init__(self, data: memoryview, schema: pa.Schema, memory: int | None) -> None:
        self._data = data
        self._leaves = _leaves_of(schema)
        self._limit = 2 * memory + _SLACK if memory is not None else _NO_LIMIT
        self._level_bytes = self._unpacked = 0
        self._strings: dict[str, int] = {}

    def over(self, metadata: pq.FileMetaData, rows: int) -> Claims:
        self._end = len(self._data) - _TAIL - metadata.serialized_size
        if metadata.num_columns != len(self._leaves):
            raise ValueError(f"it has {metadata.num_columns} columns where {len(self._leaves)} belong")
        if metadata.num_row_groups > _groups_max(rows):
            raise ValueError(f"it has {metadata.num_row_groups} row groups for {rows} rows")
        found = 0
        for at in range(metadata.num_row_groups):
            group = metadata.row_group(at)
            if group.num_rows < 1:
                raise ValueError(f"a row group claims {group.num_rows} rows")
            found += group.num_rows
            for index, leaf in enumerate(self._leaves):
                self._check_chunk(leaf, group.column(index), group.num_rows)
        if found != rows or metadata.num_rows != rows:
            raise ValueError(f"it holds {found} rows, and its descriptor says {rows}")
        too_long = [name for name, size in self._strings.items() if size > self._limit]
        return Claims(self._level_bytes, tuple(too_long), self._limit)

    def _check_chunk(self, leaf: _Leaf, chunk: pq.ColumnChunkMetaData, rows: int) -> None:
        if chunk.compression not in _COMPRESSIONS or chunk.file_path:
            raise ValueError(f"a column is compressed by {chunk.compression}, or lies in {chunk.file_path!r:.80}")
        levels = chunk.num_values
        if levels < rows or (not leaf.is_nested and levels != rows):
            raise ValueError(f"a column claims {levels} values in {rows} rows")
        self._level_bytes += levels * leaf.level_bytes
        if self._level_bytes > self._limit:
            raise ValueError(f"its nested columns take over {self._limit} bytes, more than its descriptor allows")
        self._limit += _CHUNK_SLACK
        values, unpacked, dictionary = self._pages(leaf, chunk)
        if (values, unpacked) != (levels, chunk.total_uncompressed_size):
            raise ValueError(
                f"pages hold {values} values in {unpacked} bytes, and their column claims {levels} in "
                f"{chunk.total_uncompressed_size}"
            )
        if dictionary and leaf.width is None:
            longest = dictionary * levels
            if leaf.is_nested and longest > self._limit:
                raise ValueError("a nested column has a dictionary that may take more than its descriptor allows")
            self._strings[leaf.field] = self._strings.get(leaf.field, 0) + longest

    def _pages(self, leaf: _Leaf, chunk: pq.ColumnChunkMetaData) -> tuple[int, int, int]:
        """Walk the pages of a chunk; return their values, what they unpack to, and what the dictionary does."""
        at, coded = chunk.data_page_offset, chunk.dictionary_page_offset
        at = coded if coded is not None and 0 < coded < at else at
        end = at + chunk.total_compressed_size
        if not len(_MAGIC) <= at <= end <= self._end:
            raise ValueError(f"a column claims the bytes [{at}, {end}) of {self._end}")
        values = unpacked = dictionary = 0
        first = True
        while at < end:
            page, start = _page(self._data, at, end)
            if not (0 <= page.packed <= end - start and page.unpacked >= 0 and page.values >= 0):
                raise ValueError(f"a page claims {page.packed} bytes, {page.unpacked} unpacked, {page.values} values")
            if page.encoding not in _ENCODINGS:
                raise ValueError(f"a page has the encoding {page.encoding}; only {sorted(_ENCODINGS)} are read")
            unpacked += page.unpacked + start - at
            self._unpacked += page.unpacked
            if self._unpacked > self._limit:
                raise ValueError(f"its pages unpack to over {self._limit} bytes, more than its descriptor allows")
            if page.kind == _DATA_PAGE:
                values += page.values
            elif page.kind == _DICTIONARY_PAGE and first:
                dictionary = page.unpacked
                if page.values * (leaf.width or 4) > page.unpacked:
                    raise ValueError(f"a dictionary claims {page.values} values in {page.unpacked} bytes")
            else:
                raise ValueError(f"a page is of the kind {page.kind}; data pages of version 1 belong there")
            first = False
            at = start + page.packed
        return values, unpacked, dictionary


def _walk_footer(fields: _Fields, schema: pa.Schema, groups_max: int) -> None:
    """Check the lengths of all lists of a footer."""
    for field, kind in fields.fields():
        if field == 2:
            count = fields.list_head(kind)
            if count != _elements_of(schema):
                raise ValueError(f"its schema has {count} elements where {_elements_of(schema)} belong")
            for _ in range(count):
                fields.skip(_STRUCT)
        elif field == 4:
            groups = fields.list_head(kind)
            if groups > groups_max:
                raise ValueError(f"it claims {groups} row groups, and its descriptor allows for {groups_max}")
            for _ in range(groups):
                _walk_row_group(fields, len(_leaves_of(schema)))
        else:
            fields.skip(kind)


def _walk_row_group(fields: _Fields, leaves: int) -> None:
    for field, kind in fields.fields():
        if field == 1:
            count = fields.list_head(kind)
            if count != leaves:
                raise ValueError(f"a row group has {count} columns where {leaves} belong")
            for _ in range(count):
                fields.skip(_STRUCT)
        else:
            fields.skip(kind)


class _Page(NamedTuple):
    """The claims of one page header; -1 for what is not there."""

    kind: int
    unpacked: int
    packed: int
    values: int
    encoding: int


def _page(data: memoryview, at: int, end: int) -> tuple[_Page, int]:
    """Return what the page header at a position claims, and where it ends."""
    plain = _PLAIN_HEADER.match(data, at, min(end, at + _PLAIN_HEADER_MAX))
    if plain is not None:
        page = _Page(_DATA_PAGE, *map(_from_varint, plain.groups()))
        return page, plain.end()
    fields = _Fields(data, at, end)
    kind = unpacked = packed = values = encoding = -1
    for field, found in fields.fields():
        if field == 1:
            kind = fields.int_field(found)
        elif field == 2:
            unpacked = fields.int_field(found)
        elif field == 3:
            packed = fields.int_field(found)
        elif (field, kind) in ((5, _DATA_PAGE), (7, _DICTIONARY_PAGE)):
            fields.expect(found, _STRUCT)
            for inner, inner_found in fields.fields():
                if inner == 1:
                    values = fields.int_field(inner_found)
                elif inner == 2:
                    encoding = fields.int_field(inner_found)
                else:
                    fields.skip(inner_found)
        else:
            fields.skip(found)
    return _Page(kind, unpacked, packed, values, encoding), fields.at


def _from_varint(data: bytes) -> int:
    if len(data) == 1:
        return (data[0] >> 1) ^ -(data[0] & 1)
    raw = 0
    for byte in reversed(data):
        raw = raw << 7 | byte & 127
    return (raw >> 1) ^ -(raw & 1)


def _row_bits_min(kind: pa.DataType) -> int:
    """The fewest bits that a row of a column of this type takes in Arrow, however little is in it."""
    if pt.is_struct(kind):
        return sum(_row_bits_min(child.type) for child in children(kind))
    if pt.is_fixed_size_list(kind):
        return int(kind.list_size) * _row_bits_min(kind.value_type)
    if pt.is_large_string(kind) or pt.is_large_binary(kind) or pt.is_large_list(kind):
        return 64
    return 32 if pt.is_nested(kind) or _is_text(kind) else int(kind.bit_width)


@lru_cache(maxsize=256)
def _row_bits_min_of(schema: pa.Schema) -> int:
    return sum(_row_bits_min(kind) for kind in schema.types)


@lru_cache(maxsize=256)
def _leaves_of(schema: pa.Schema) -> tuple[_Leaf, ...]:
    return tuple(leaf for field in schema for leaf in _leaves(field.type, field.name, False))


@lru_cache(maxsize=256)
def _elements_of(schema: pa.Schema) -> int:
    return 1 + sum(_elements(field.type) for field in schema)


def _leaves(kind: pa.DataType, field: str, is_nested: bool) -> list[_Leaf]:
    if pt.is_nested(kind):
        return [leaf for child in children(kind) for leaf in _leaves(child.type, field, True)]
    width = None if _is_text(kind) else _stored_bytes(kind)
    return [_Leaf(field, width, is_nested)]


def _is_text(kind: pa.DataType) -> bool:
    return bool(pt.is_string(kind) or pt.is_large_string(kind) or pt.is_binary(kind) or pt.is_large_binary(kind))


def _stored_bytes(kind: pa.DataType) -> int:
    """Bytes of one value as Parquet stores it: nothing is shorter than 4 but fixed sizes, decimals and booleans."""
    if pt.is_decimal(kind):
        return int(10**kind.precision).bit_length() // 8 + 1
    if pt.is_fixed_size_binary(kind) or pt.is_float16(kind):
        return int(kind.bit_width) // 8
    return 1 if pt.is_boolean(kind) else max(int(kind.bit_width) // 8, 4)


def _elements(kind: pa.DataType) -> int:
    """How many elements a type has in a Parquet schema: lists and maps have a group within a group."""
    if not pt.is_nested(kind):
        return 1
    return (1 if pt.is_struct(kind) else 2) + sum(_elements(child.type) for child in children(kind))
