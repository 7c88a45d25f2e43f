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

All of this is parsed here (Thrift, compact protocol), before Arrow sees the file: Arrow shows no page headers, makes
700 bytes of 3 of a footer, and ends the process when pyarrow's metadata objects are asked for a compression that does
not exist.

Cost: 10 µs for each column chunk, 3 to 15 µs for each page.
"""

import re
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.types as pt

from persist.codecs.types import children

_MAGIC = b"PAR1"
_TAIL = 8
# Bytes beyond `memory` that headers, padding and little-filled pages may unpack to, per part and per column chunk.
_SLACK, _CHUNK_SLACK = 64 << 10, 4 << 10
_DEPTH_MAX = 16
_LIST_MAX = 1024  # Of the lists that do not matter here: encodings, histograms of levels, metadata.
_BOOLS, _BYTE, _INTEGERS, _DOUBLE, _BINARY, _LIST, _STRUCT = (1, 2), 3, (4, 5, 6), 7, 8, (9, 10), 12
_DATA_PAGE, _DICTIONARY_PAGE = 0, 2
_COMPRESSIONS = {0, 1, 6}  # None, Snappy, Zstandard.
_ENCODINGS = {0, 2, 3, 5, 8, 9}  # PLAIN, PLAIN_DICTIONARY, RLE, DELTA_BINARY_PACKED, RLE_DICTIONARY, BYTE_STREAM_SPLIT
_NO_LIMIT = 1 << 80
GROUPS_MAX, GROUP_ROWS_MIN = 64, 1024  # That many row groups, and one more for each so many rows.

# Which members of a struct are wanted, by field id: None for an integer, a shape for a struct, [shape] for a list of
# structs, [] for the length of a list, and () for what must not be there. Ids are those of parquet.thrift.
_Shape = dict[int, Any]
_COLUMN: _Shape = {4: None, 5: None, 6: None, 7: None, 9: None, 10: (), 11: None}
_CHUNK: _Shape = {1: (), 3: _COLUMN, 8: (), 9: ()}
_GROUP: _Shape = {1: [_CHUNK], 3: None}
_FOOTER: _Shape = {2: [], 3: None, 4: [_GROUP], 8: (), 9: ()}
_PAGE_INSIDE: _Shape = {1: None, 2: None}
_PAGE: _Shape = {1: None, 2: None, 3: None, 5: _PAGE_INSIDE, 7: _PAGE_INSIDE}
# The header of a data page as Arrow writes it: kind, unpacked, packed, checksum, and of the page itself the values, the
# encoding and those of the levels. Any other goes the long way.
_V = rb"[\x80-\xff]{0,4}[\x00-\x7f]"
_PLAIN_HEADER = re.compile(
    rb"\x15\x00\x15(%b)\x15(%b)(?:\x15%b)?[\x1c\x2c]\x15(%b)\x15(%b)\x15%b\x15%b\x00\x00" % ((_V,) * 7), re.DOTALL
)
_PLAIN_HEADER_MAX = 64
_HEADER_MAX = 64 << 10  # With statistics, which may be long.


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


@dataclass(frozen=True, slots=True)
class Claims:
    """What a file was found to claim.

    Attributes:
        level_bytes: what decoding its nested columns takes beyond the columns: the second term of `memory`.
        group_rows: the rows of each row group.
        dictionaries: names of flat columns whose dictionary could make them longer than memory allows. Whether it
            does takes reading them.
        string_bytes_max: how long these may become.
        list_max: an upper bound of the length of any list in the footer.
    """

    level_bytes: int
    group_rows: tuple[int, ...]
    dictionaries: tuple[str, ...]
    string_bytes_max: int
    list_max: int


@dataclass(frozen=True, slots=True)
class Layout:
    """What a file of some columns must look like, worked out once.

    Attributes:
        names, types: of its columns, as they are stored.
    """

    names: list[str]
    types: list[pa.DataType]
    leaves: tuple[_Leaf, ...]
    elements: int
    row_bits_min: int

    @classmethod
    def of(cls, schema: pa.Schema) -> "Layout":
        """Return the layout of a file with these columns."""
        return cls(
            schema.names,
            schema.types,
            tuple(leaf for field in schema for leaf in _leaves(field.type, field.name, False)),
            1 + sum(_elements(field.type) for field in schema),
            sum(_row_bits_min(kind) for kind in schema.types),
        )


def check_claims(data: memoryview, layout: Layout, rows: int, memory: int | None) -> Claims:
    """Check a Parquet file against how much it may be; see the module's promise.

    Args:
        data: the file.
        rows: how many it must have.
        memory: the descriptor's, or None to find out what it must be.

    Raises:
        ValueError, LookupError: it claims something else, or contradicts itself.
    """
    # An Arrow buffer says that its bytes are signed.
    return _Sums(data.cast("B"), layout, rows, memory).over_footer()


class _Sums:
    """The sums over one file while it is checked."""

    def __init__(self, data: memoryview, layout: Layout, rows: int, memory: int | None) -> None:
        self._data = data
        self._rows = rows
        self._leaves = layout.leaves
        self._elements = layout.elements
        self._groups_max = min(rows, GROUPS_MAX + rows // GROUP_ROWS_MIN)
        self._level_bytes = self._unpacked = self._end = 0
        self._limit = _NO_LIMIT
        self._strings: dict[str, int] = {}
        if memory is not None:
            self._limit = 2 * memory + _SLACK
            least = rows * layout.row_bits_min // 8
            if least > memory:
                raise ValueError(f"{rows} rows take {least} bytes at least, and its descriptor says memory {memory}")

    def over_footer(self) -> Claims:
        data, size = self._data, len(self._data)
        if size < len(_MAGIC) + _TAIL or data[: len(_MAGIC)] != _MAGIC or data[-len(_MAGIC) :] != _MAGIC:
            raise ValueError("it is not a Parquet file")
        length = int.from_bytes(data[-_TAIL : -len(_MAGIC)], "little")
        self._end = size - _TAIL - length
        if self._end < len(_MAGIC):
            raise ValueError(f"its footer claims {length} of its {size} bytes")
        lengths = max(self._groups_max, len(self._leaves))
        footer, _ = _Thrift(bytes(data[self._end : size - _TAIL]), lengths).struct(0, _FOOTER)
        if footer.get(2) != self._elements:
            raise ValueError(f"its schema has {footer.get(2)} elements where {self._elements} belong")
        groups = footer.get(4, [])
        if len(groups) > self._groups_max:
            raise ValueError(f"it has {len(groups)} row groups for {self._rows} rows")
        group_rows = tuple(map(self._over_group, groups))
        if sum(group_rows) != self._rows or footer.get(3) != self._rows:
            raise ValueError(f"it holds {sum(group_rows)} rows, and its descriptor says {self._rows}")
        too_long = [name for name, total in self._strings.items() if total > self._limit]
        list_max = max(self._elements, lengths, _LIST_MAX)
        return Claims(self._level_bytes, group_rows, tuple(too_long), self._limit, list_max)

    def _over_group(self, group: dict[int, Any]) -> int:
        """Check one row group; return how many rows it claims."""
        rows, chunks = group.get(3, 0), group.get(1, [])
        if rows < 1 or len(chunks) != len(self._leaves):
            raise ValueError(f"a row group claims {rows} rows and {len(chunks)} columns")
        for leaf, chunk in zip(self._leaves, chunks, strict=True):
            self._over_chunk(leaf, chunk[3], rows)
        return int(rows)

    def _over_chunk(self, leaf: _Leaf, column: dict[int, int], rows: int) -> None:
        levels = column[5]
        if column[4] not in _COMPRESSIONS:
            raise ValueError(f"a column is compressed by method {column[4]}; only {sorted(_COMPRESSIONS)} are read")
        if levels < rows or (not leaf.is_nested and levels != rows):
            raise ValueError(f"a column claims {levels} values in {rows} rows")
        self._level_bytes += levels * leaf.level_bytes
        if self._level_bytes > self._limit:
            raise ValueError(f"its nested columns take over {self._limit} bytes, more than its descriptor allows")
        self._limit += _CHUNK_SLACK
        values, unpacked, dictionary = self._over_pages(leaf, column)
        if (values, unpacked) != (levels, column[6]):
            raise ValueError(
                f"pages hold {values} values in {unpacked} bytes, and their column claims {levels} in {column[6]}"
            )
        if dictionary and leaf.width is None:
            longest = dictionary * levels
            if leaf.is_nested and longest > self._limit:
                raise ValueError("a nested column has a dictionary that may take more than its descriptor allows")
            self._strings[leaf.field] = self._strings.get(leaf.field, 0) + longest

    def _over_pages(self, leaf: _Leaf, column: dict[int, int]) -> tuple[int, int, int]:
        """Walk the pages of a chunk; return their values, what they unpack to, and what the dictionary does."""
        at, coded = column[9], column.get(11, 0)
        at = coded if 0 < coded < at else at
        end = at + column[7]
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


class _Page(NamedTuple):
    """The claims of one page header."""

    kind: int
    unpacked: int
    packed: int
    values: int
    encoding: int


def _page(data: memoryview, at: int, end: int) -> tuple[_Page, int]:
    """Return what the page header at a position claims, and where it ends."""
    plain = _PLAIN_HEADER.match(data, at, min(end, at + _PLAIN_HEADER_MAX))
    if plain is not None:
        return _Page(_DATA_PAGE, *map(_from_varint, plain.groups())), plain.end()
    header, length = _Thrift(bytes(data[at : min(end, at + _HEADER_MAX)]), 0).struct(0, _PAGE)
    kind = header[1]
    inside = header.get(7 if kind == _DICTIONARY_PAGE else 5, {})
    return _Page(kind, header[2], header[3], inside.get(1, -1), inside.get(2, -1)), at + length


def _from_varint(data: bytes) -> int:
    raw = 0
    for byte in reversed(data):
        raw = raw << 7 | byte & 127
    return (raw >> 1) ^ -(raw & 1)


class _Thrift:
    """Reads Thrift structs, compact protocol; what does not fit raises ValueError, or IndexError at the end of data."""

    __slots__ = ("_data", "_lengths")

    def __init__(self, data: bytes, lengths: int) -> None:
        """lengths is the most structs in one list that is wanted."""
        self._data = data
        self._lengths = lengths

    def struct(self, at: int, shape: _Shape, depth: int = 0) -> tuple[dict[int, Any], int]:
        """Return the wanted members of the struct at a position, and where it ends.

        A member that comes twice is refused, because readers may differ in which of the two they take.
        """
        found: dict[int, Any] = {}
        data, field = self._data, 0
        while head := data[at]:
            at += 1
            kind = head & 15
            if head > 15:
                field += head >> 4
            else:
                field, at = self._integer(at)
            if field not in shape:
                if 4 <= kind <= 6:  # As `_skip`, but most members are integers and short binary.
                    while data[at] > 127:
                        at += 1
                    at += 1
                elif kind == _BINARY and data[at] < 128:
                    at += data[at] + 1
                elif kind > 2:
                    at = self._skip(at, kind, depth)
                continue
            if field in found:
                raise ValueError(f"its metadata has the field {field} twice")
            found[field], at = self._member(at, kind, shape[field], depth)
        return found, at + 1

    def _member(self, at: int, kind: int, wanted: Any, depth: int) -> tuple[Any, int]:
        if wanted is None and kind in _INTEGERS:
            return self._integer(at)
        if isinstance(wanted, dict) and kind == _STRUCT:
            return self.struct(at, wanted, depth + 1)
        if isinstance(wanted, list) and kind in _LIST:
            count, element, start = self._list(at)
            if not wanted:
                return count, self._skip(at, kind, depth, count)
            if element != _STRUCT or count > self._lengths:
                raise ValueError(f"its metadata has {count} elements in a list, more than there can be")
            return self._structs(start, count, wanted[0], depth)
        raise ValueError(f"its metadata has a member of type {kind} that does not belong there: it may be encrypted")

    def _structs(self, at: int, count: int, shape: _Shape, depth: int) -> tuple[list[dict[int, Any]], int]:
        found = []
        for _ in range(count):
            each, at = self.struct(at, shape, depth + 1)
            found.append(each)
        return found, at

    def _skip(self, at: int, kind: int, depth: int, length_max: int = _LIST_MAX) -> int:
        """Return where a value ends."""
        data = self._data
        if kind in _INTEGERS:
            while data[at] > 127:
                at += 1
            return at + 1
        if kind in _BOOLS:
            return at
        if kind == _BINARY:
            length, at = self._varint(at)
            return self._within(at + length)
        if kind in (_BYTE, _DOUBLE):
            return at + (1 if kind == _BYTE else 8)
        if depth == _DEPTH_MAX:
            raise ValueError("its metadata is nested too deep")
        if kind == _STRUCT:
            return self.struct(at, {}, depth + 1)[1]
        if kind not in _LIST:
            raise ValueError(f"its metadata holds a value of the unknown type {kind}")
        count, element, at = self._list(at)
        if count > length_max:
            raise ValueError(f"its metadata holds a list of {count} elements")
        if element in _BOOLS:
            return at + count
        for _ in range(count):
            at = self._skip(at, element, depth + 1)
        return at

    def _list(self, at: int) -> tuple[int, int, int]:
        """Return length, type of elements, and where they begin."""
        head = self._data[at]
        if head >> 4 != 15:
            return head >> 4, head & 15, at + 1
        count, at = self._varint(at + 1)
        return count, head & 15, at

    def _integer(self, at: int) -> tuple[int, int]:
        raw, at = self._varint(at)
        return (raw >> 1) ^ -(raw & 1), at

    def _varint(self, at: int) -> tuple[int, int]:
        data = self._data
        if data[at] < 128:
            return data[at], at + 1
        value, shift = data[at] & 127, 7
        while data[at] > 127:
            at += 1
            value |= (data[at] & 127) << shift
            shift += 7
            if shift > 70:
                raise ValueError("its metadata holds an integer of more than 64 bits")
        return value, at + 1

    def _within(self, at: int) -> int:
        if at > len(self._data):
            raise ValueError("its metadata ends in the middle")
        return at


def _row_bits_min(kind: pa.DataType) -> int:
    """The fewest bits that a row of a column of this type takes in Arrow, however little is in it."""
    if pt.is_struct(kind):
        return sum(_row_bits_min(child.type) for child in children(kind))
    if pt.is_fixed_size_list(kind):
        return int(kind.list_size) * _row_bits_min(kind.value_type)
    if pt.is_large_string(kind) or pt.is_large_binary(kind) or pt.is_large_list(kind):
        return 64
    return 32 if pt.is_nested(kind) or _is_text(kind) else int(kind.bit_width)


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
