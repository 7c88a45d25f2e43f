"""Reads a part in pieces: first its footer, then the requested row groups, each verified by itself.

    Part.footer_range    the bytes of the blob to fetch first
    read_index           verifies them by the descriptor; its result can be cached
    Group.start, .end    the bytes of a row group in the blob
    decode_groups        verifies row groups by the index, and decodes them

So a checksum verifies every used byte: the descriptor's for the footer, the footer's for the groups.
The bytes between the last row group and the footer (Parquet's page index) are not used.

The index is the entry `persist.groups` of the footer's key-value metadata: `docs/inside/format.md` ("Parts").
"""

import bisect
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Annotated, Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
import xxhash

from persist.blob.errors import CorruptBlob, Corruption, IncompatibleVersion
from persist.codecs.errors import InvalidUpdate
from persist.codecs.part.decoding import (
    OpenFile,
    Request,
    decode_checked,
    decode_part,
    read_adapted,
)
from persist.codecs.part.file_reader import (
    PARSED_BYTES,
    CheckedFooter,
    list_groups_within,
    read_footer,
)
from persist.codecs.part.file_writer import GROUPS_KEY, GROUPS_VERSION, MAGIC
from persist.codecs.part.lending import make_lent_buffer, note_lent
from persist.codecs.part.part import Part, compute_checksum
from persist.codecs.types.arrow_types import is_text
from persist.codecs.types.schema import CollectionSchema

_Length = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]


class _Index(msgspec.Struct, forbid_unknown_fields=True):
    """The row groups' lengths and checksums, as the footer stores them."""

    version: int
    groups: list[tuple[_Length, str]]


_decoder = msgspec.json.Decoder(_Index)
_descriptor = msgspec.json.Decoder(Part)


class Group(NamedTuple):
    """A row group: rows `[first_row, first_row + rows)` of the part, in bytes `[start, end)` of its blob."""

    first_row: int
    rows: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class PartIndex:
    """The verified footer of a part; immutable, and may be used by several threads at once.

    Attributes:
        groups: its row groups, in the order of rows and of bytes.
        nbytes: its approximate size in memory.
    """

    groups: tuple[Group, ...]
    nbytes: int
    _checksums: tuple[str, ...]
    _footer: CheckedFooter

    def list_groups_within(self, start_row: int, end_row: int) -> list[int]:
        """Return the numbers of the row groups with any of the rows `[start_row, end_row)`."""
        return list_groups_within(self._footer.group_rows, (start_row, end_row))

    def list_matching_groups(self, filter: pc.Expression) -> list[int]:
        """Return the row groups that may have a matching row, by their statistics.

        All of them if the file does not have a column of the filter.
        """
        try:
            return self._footer.list_matching_groups(filter)
        except pa.ArrowException:
            return [*range(len(self.groups))]

    def get_first_field_limits(self, kind: pa.DataType) -> tuple[list[Any], list[Any]] | None:
        """Return the first key field's least and greatest value in each row group; None if unknown.

        The limits are known only for types that Parquet stores and orders as Arrow does. The first key field is the
        file's first column.
        """
        if not (is_text(kind) or pt.is_integer(kind) or pt.is_float32(kind) or pt.is_float64(kind)):
            return None
        limits_by_group: tuple[list[Any], list[Any]] = ([], [])
        metadata = self._footer.metadata
        for number in range(len(self.groups)):
            statistics = metadata.row_group(number).column(0).statistics
            if statistics is None or not statistics.has_min_max or statistics.null_count != 0:
                return None
            for limits, value in zip(limits_by_group, (statistics.min_raw, statistics.max_raw), strict=True):
                # Parquet has unsigned integers as signed ones of the same bits.
                limits.append(value % 2 ** max(kind.bit_width, 32) if pt.is_unsigned_integer(kind) else value)
        return limits_by_group

    def list_dictionary_columns(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the columns that the first row group stores as dictionaries."""
        group = self._footer.metadata.row_group(0)
        chunks = (group.column(at) for at in range(group.num_columns))
        coded = {chunk.path_in_schema for chunk in chunks if chunk.has_dictionary_page}
        return tuple(name for name in names if name in coded)


def read_index(footer: bytes | memoryview, part: Part, schema: CollectionSchema) -> PartIndex:
    """Verify a part's footer; return its index of row groups.

    Cost: 0.2 ms, and 10 to 15 µs for each column of each row group; 4 ms for 64 MiB of six columns.

    Args:
        footer: the bytes of `Part.footer_range`.
        part: its descriptor.
        schema: the collection's.

    Raises:
        CorruptBlob: the footer disagrees with the descriptor, or belongs to another collection's part.
        IncompatibleVersion: the index has a form that this version does not support.
    """
    start, _ = part.footer_range
    assert part.footer is not None, "a footer that is not known has no range"
    lifted = part.make_lift(schema)
    schema = schema if lifted is None else lifted.stored
    if len(footer) != part.footer.bytes:
        raise CorruptBlob(part.name, f"its footer has {len(footer)} bytes, and its descriptor says {part.footer.bytes}")
    if (checksum := compute_checksum(footer)) != part.footer.checksum:
        raise CorruptBlob(
            part.name, f"the checksum of its footer is {checksum}, and its descriptor says {part.footer.checksum}"
        )
    tail = pa.py_buffer(footer)
    read = decode_checked(part, read_footer, tail, part, schema.arrow)
    lengths, checksums = _build_index(read, part)
    ends = list(accumulate(lengths, initial=len(MAGIC)))
    if ends[-1] > start:
        raise CorruptBlob(
            part.name, f"its index says that row groups end at byte {ends[-1]}, and its footer at {start}"
        )
    rows = read.group_rows
    firsts = accumulate(rows, initial=0)
    groups = tuple(Group(*fields) for fields in zip(firsts, rows, ends, ends[1:], strict=False))
    return PartIndex(groups, PARSED_BYTES * len(footer), checksums, read)


def _build_index(footer: CheckedFooter, part: Part) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Return the lengths and checksums of the row groups from a footer."""
    written = (footer.metadata.metadata or {}).get(GROUPS_KEY.encode())
    if written is None:
        raise CorruptBlob(part.name, f"its footer has no {GROUPS_KEY}, so it can only be read as a whole")
    try:
        index = _decoder.decode(written)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptBlob(part.name, f"{GROUPS_KEY} in its footer is malformed: {error}") from error
    if index.version != GROUPS_VERSION:
        raise IncompatibleVersion(part.name, index.version, GROUPS_VERSION)
    if len(index.groups) != len(footer.group_rows):
        raise CorruptBlob(
            part.name,
            f"{GROUPS_KEY} in its footer has {len(index.groups)} of {len(footer.group_rows)} row groups",
        )
    lengths, checksums = zip(*index.groups, strict=True)
    return lengths, checksums


def decode_groups(
    pieces: Sequence[tuple[int, bytes | memoryview]],
    index: PartIndex,
    part: Part,
    request: Request,
    *,
    use_threads: bool = True,
) -> pa.Table:
    """Verify row groups of a part; return the rows that are requested.

    Args:
        pieces: the number of each row group, ascending, and its bytes `[Group.start, Group.end)`.
        index: the part's.

    Cost, beyond what Arrow takes to decode them: 0.2 ms, and the checksum, 0.1 ms a MB. It uses no statistics.

    Raises:
        CorruptBlob: pieces disagree with the index, or belong to another collection.
        InvalidUsage: an unknown column, or a filter that does not fit the schema.
        ValueError: the numbers of pieces do not ascend, or are out of range.
    """
    numbers = [number for number, _ in pieces]
    if numbers != sorted({*numbers}) or not all(0 <= number < len(index.groups) for number in numbers):
        raise ValueError(f"row groups {numbers} of {len(index.groups)}: name some of these, in order and each once")

    def read(part: Part, request: Request) -> pa.Table:
        """Verify and read the row groups of a part whose file has the columns of the request's schema."""
        if not pieces:
            return pa.schema([request.schema.arrow.field(name) for name in request.columns]).empty_table()
        file = open_groups(pieces, index, part, request.schema, request.coded if request.filter is None else ())
        return file.decode(numbers, request, use_threads=use_threads)

    return read_adapted(part, request, read)


def open_groups(
    pieces: Sequence[tuple[int, bytes | memoryview]],
    index: PartIndex,
    part: Part,
    schema: CollectionSchema,
    coded: Sequence[str] = (),
) -> OpenFile:
    """Verify row groups of a part; return a file that decodes pieces.

    Args:
        pieces, index, coded: as for `decode_groups`.
        part: of this schema version, and not stamped.

    Raises CorruptBlob: pieces disagree with the index.
    """
    for number, data in pieces:
        _verify_group(data, number, index, part)
    views = [(index.groups[number].start, memoryview(data)) for number, data in pieces]
    present = _Pieces(views, part.bytes)
    source = pa.PythonFile(present, mode="r")
    return decode_checked(part, OpenFile, part, schema, index._footer, source, present.read_range, coded)


def _verify_group(data: bytes | memoryview, number: int, index: PartIndex, part: Part) -> None:
    """Raise CorruptBlob unless a row group has its length and checksum."""
    group = index.groups[number]
    if len(data) != group.end - group.start:
        raise CorruptBlob(
            part.name, f"its row group {number} has {len(data)} bytes, and its index says {group.end - group.start}"
        )
    if (checksum := xxhash.xxh3_64_hexdigest(data)) != index._checksums[number]:
        raise CorruptBlob(
            part.name,
            f"the checksum of its row group {number} is {checksum}, and its index says {index._checksums[number]}",
        )


def check_index(data: bytes | memoryview, part: Part, schema: CollectionSchema) -> None:
    """Verify the footer and the row groups of a part, without decoding.

    Reads of row groups make the same checks.
    data: the whole blob, already verified by its descriptor. Cost: the checksums, 0.2 ms, and 10 to 15 µs for each
    column of each row group.
    """
    start, end = part.footer_range
    view = memoryview(data)
    index = read_index(view[start:end], part, schema)
    for number, group in enumerate(index.groups):
        _verify_group(view[group.start : group.end], number, index, part)


def check_readable(data: bytes, part: Part, schema: CollectionSchema) -> None:
    """Check that readers accept a newly encoded part, before a record names it (rule 16).

    The readers' code checks it: the descriptor is written and read back, the footer is compared with the descriptor,
    and row groups with the index. Only a batch is also decoded.
    """
    try:
        if _descriptor.decode(msgspec.json.encode(part)) != part:
            raise ValueError("its descriptor differs when it is read back")
        _ = part.keys, part.stats
        if part.footer is None:
            decode_part(data, part, schema)
        else:
            check_index(data, part, schema)
    except (Corruption, ValueError, msgspec.MsgspecError) as error:
        reason = getattr(error, "reason", error)
        raise InvalidUpdate(
            f"{part.rows} updates were encoded as a part of {part.bytes} bytes that no reader would accept: {reason}. "
            "Nothing of it was written. This is a fault of persist: please report it with the schema. Until it is "
            "mended, fewer updates in one write, or fewer columns, may pass."
        ) from error


class _Pieces:
    """A file object for Arrow with only some ranges of a file.

    Rejected: copying them into a buffer of the file's size, whose page faults cost half as much as decoding.

    Arrow seeks and reads in one go, but Python may switch threads in between, so each thread has its own position.
    """

    closed = False

    def __init__(self, pieces: Sequence[tuple[int, memoryview]], size: int) -> None:
        self._starts = [start for start, _ in pieces]
        self._buffers = [make_lent_buffer(data) for _, data in pieces]
        note_lent(self)
        self._size = size
        self._local = threading.local()

    def seek(self, position: int, whence: int = 0) -> None:
        """Move this thread's position."""
        self._local.at = position if whence == 0 else self._size

    def tell(self) -> int:
        """Return this thread's position."""
        return int(getattr(self._local, "at", 0))

    def read_buffer(self, size: int) -> pa.Buffer:
        """Return the next bytes; Arrow prefers this method to `read`."""
        at = self.tell()
        self._local.at = at + size
        return self.read_range(at, at + size)

    def read_range(self, at: int, end: int) -> pa.Buffer:
        """Return the bytes from one position to another."""
        size = end - at
        piece = bisect.bisect_right(self._starts, at) - 1
        start = at - self._starts[piece]
        if piece < 0 or start + size > self._buffers[piece].size:
            raise ValueError(f"its metadata refers to the bytes [{at}, {at + size}), outside of the row groups read")
        return self._buffers[piece].slice(start, size)

    def close(self) -> None:
        """Do nothing: Arrow calls it."""
