"""Point reads: the rows of a snapshot with certain keys, from the few row groups that may hold them.

Where to look is told by what is known already, coarse to fine: the sampled keys in a part's descriptor give intervals
of rows, its footer the row groups of these, statistics of the first key field the one or two that matter, and within a
row group keys are searched for (`persist.codecs.order.search`). Row groups stay decoded in a bounded cache of the
client's (`persist.read.part_caches.DecodedRows`), so a key that is read again costs some searches in memory. Parts
without sampled keys (nested ones, very long ones) are read as a whole.

What does not help: pyarrow writes bloom filters and page indexes, and has no way to look anything up in them; in a file
sorted by key, statistics say nearly as much. Most of a first look-up is decoding one row group of all wanted columns.
"""

import bisect
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from persist.blob import InvalidUsage
from persist.codecs import (
    CollectionSchema,
    InvalidUpdate,
    Part,
    PartIndex,
    SchemaMismatch,
    Side,
    consolidate,
    is_flat,
    scalar_to_json,
    to_updates,
)
from persist.codecs.order.search import SortedRows
from persist.codecs.part.key_range import Orderable, key_order, ordered_keys
from persist.codecs.part.part import bad_filter, sample_rows
from persist.codecs.types.values import cut
from persist.read.part_reader import WHOLE_BYTES_MAX, PartReader
from persist.read.scan import Scan, negated

RUN_BYTES_MAX = 32 << 20  # Of consecutive row groups that are fetched and decoded at a time.
WHOLE = -1  # In place of the number of a row group, for all of a part.

Intervals = list[tuple[int, int, int | None]]  # Of rows, and the wanted key they are for; None for any number of keys.


def keys_alone(schema: CollectionSchema) -> CollectionSchema:
    """Return the schema of the keys of a collection."""
    return CollectionSchema(schema.key, Side(()))


def wanted_keys(keys: Any, schema: CollectionSchema) -> SortedRows:
    """Return keys in whatever form the caller has them, each once, in order.

    Args:
        keys: an iterable of keys as `Collection.write` takes them, or anything Arrow with exactly the key columns.
        schema: from `keys_alone`.

    Raises:
        InvalidUsage: a key has another shape, or a field cannot hold its value; the message names its index.
        SchemaMismatch: the columns are not those of keys.
        CodecMismatch: keys go through a codec that is not known here.
    """
    names = schema.key_names
    given = _arrow(keys, names)
    listed = None if given is not None else _listed(keys)
    try:
        updates = given if listed is None else [((key, None), 0, 1) for key in listed]
        table = to_updates(updates, schema, default_time=0, default_diff=1)
    except InvalidUpdate as error:
        for index, key in enumerate(listed or ()):
            if _has_other_shape(key, schema.key):
                raise InvalidUsage(f"key {index} is {cut(key)}, and {_described(schema.key)}") from error
        raise InvalidUsage(str(error).replace("update", "key", 1)) from error
    return SortedRows(table.drop_columns("_time") if len(table) < 2 else consolidate(table, names), names)


def _arrow(keys: Any, names: tuple[str, ...]) -> pa.Table | None:
    """Return Arrow data as a table of the key columns, and None for what is not Arrow data."""
    if isinstance(keys, (pa.Array, pa.ChunkedArray)) and len(names) == 1:
        keys = pa.table({names[0]: keys})
    elif isinstance(keys, pa.RecordBatch):
        keys = pa.Table.from_batches([keys])
    elif not isinstance(keys, pa.Table):
        if not hasattr(keys, "__arrow_c_stream__"):
            return None
        try:
            keys = pa.RecordBatchReader.from_stream(keys).read_all()
        except (pa.ArrowException, TypeError) as error:
            raise SchemaMismatch(f"{type(keys).__name__} does not give Arrow record batches: {error}") from error
    found = [name for name in keys.column_names if name in names or not name.startswith("__index_level_")]
    if sorted(found) != sorted(names):
        raise SchemaMismatch(f"the keys have the columns {found}: give exactly the key columns, {list(names)}")
    return keys.select(list(names))


def _listed(keys: Any) -> Sequence[Any]:
    if isinstance(keys, (list, tuple)):
        return keys
    if isinstance(keys, Iterable) and not isinstance(keys, (str, bytes, bytearray, Mapping)):
        return list(keys)
    raise InvalidUsage(f"keys={cut(keys)} is not an iterable of keys: for one key give a list of it, [{cut(keys)}]")


def _has_other_shape(key: Any, side: Side) -> bool:
    if side.codec_name is not None:
        return False
    if len(side.fields) > 1:
        return not (isinstance(key, (tuple, list)) and len(key) == len(side.fields))
    return key is not None if not side.fields else isinstance(key, tuple) and is_flat(side.fields[0].type)


def _described(side: Side) -> str:
    fields = ", ".join(f"{field.name}: {field.type}" for field in side.fields)
    if len(side.fields) > 1:
        return f"a key of this collection is a tuple ({fields})"
    return f"a key of this collection is a value by itself, {fields}" if fields else "the only key here is None"


@dataclass(frozen=True, slots=True)
class _Source:
    """A part, and what to read of it.

    Attributes:
        sign: by which the diffs of its updates are multiplied.
        diff: that of all its rows then; None if they have different ones, in a column.
        is_keyframe: whether its records are distinct.
        cuts_time: whether some of its updates may be at other times than those wanted.
        keys, at: sampled keys, and the rows that have them; None if there are none.
    """

    part: Part
    columns: tuple[str, ...]
    sign: int
    diff: int | None
    is_keyframe: bool
    cuts_time: bool
    keys: list[Orderable] | None
    at: list[int]

    def intervals(self, key_at: Callable[[int], Orderable], count: int) -> Intervals:
        """Return intervals of rows that hold all rows with one of count ascending keys; empty ones are left out."""
        keys, at = self.keys, self.at
        if keys is None:
            return [(0, self.part.rows, None)]
        if keys[-1] < key_at(0) or keys[0] > key_at(count - 1):
            return []
        if count > len(keys):
            rows = range(count)
            firsts = [bisect.bisect_left(rows, key, key=key_at) for key in keys]
            ends = [bisect.bisect_right(rows, key, key=key_at) for key in keys]
            pairs = pairwise(range(len(keys))) if len(keys) > 1 else [(0, 0)]
            return [(at[i], at[j] + 1, None) for i, j in pairs if firsts[i] < ends[j]]
        found: Intervals = []
        for row in range(count):
            key = key_at(row)
            first = bisect.bisect_left(keys, key)
            last = bisect.bisect_right(keys, key, first)
            start = at[first - 1] + 1 if first else 0
            end = at[last] if last < len(keys) else self.part.rows
            if start < end and (first < last or 0 < first < len(keys)):
                found.append((start, end, row))
        return found


Found = tuple[_Source, pa.Table]  # Updates of a part, as the scan counts them.


class Lookup:
    """Finds the rows with certain keys in what a scan reads; prepared once, for any number of look-ups."""

    def __init__(self, scan: Scan, *, keeps_time: bool = False) -> None:
        """Prepare to look up in what a scan reads; keeps_time is needed for `updates`."""
        assert scan.keys.is_all, "a slice of the key space would have to be cut out"
        schema = scan.schema
        self._scan = scan
        self._keeps_time = keeps_time
        self._keys = keys_alone(schema)
        # Parts of two collections may be the same bytes, and stand for different types.
        self._types = str(schema.types)
        self._order = key_order(schema) if all(is_flat(field.type) for field in schema.key.fields) else None
        self._sources = [self._source(part, is_keyframe=True) for part in scan.base]
        self._sources += [self._source(part, is_keyframe=False) for part in scan.parts]

    def _source(self, part: Part, *, is_keyframe: bool) -> _Source:
        schema = self._scan.schema
        sign = 1 if is_keyframe else self._scan.sign
        cuts_time = not (is_keyframe or self._scan.is_inside(part))
        # Which columns a filter needs, it does not say.
        names = schema.names if self._scan.filter is not None else self._scan.columns
        columns = dict.fromkeys([*schema.key_names, *names])
        if cuts_time or self._keeps_time:
            columns["_time"] = None
        if not part.is_plain or not columns:
            columns["_diff"] = None
        keys = ordered_keys(part, schema) if self._order is not None and schema.key_names else None
        at = sample_rows(part.rows, len(keys)) if keys is not None else []
        diff = None if "_diff" in columns else sign
        return _Source(part, tuple(columns), sign, diff, is_keyframe, cuts_time, keys, at)

    def wanted(self, keys: Any) -> SortedRows:
        """Return keys as the other methods take them; see `wanted_keys`."""
        return wanted_keys(keys, self._keys)

    def contents(self, wanted: SortedRows, form: str, reader: PartReader) -> pa.Table:
        """Return the scan's columns of the records with a wanted key, and `_diff`, consolidated by these columns.

        In form "rows", it may be left out where it would be 1 throughout, and then records that look alike are not made
        one. They are in the order of keys if all key columns are among the columns.
        """
        scan = self._scan
        columns, keys = list(scan.columns), scan.schema.key_names
        found = [] if not len(wanted) else self._found(wanted, reader)
        if len(found) == 1 and columns:
            ((source, table),) = found
            if source.diff == 1 and form == "rows":
                return table.select(columns)
            if source.diff == 1 and source.is_keyframe and {*columns} == {*scan.schema.names}:
                return _counted(table, 1).select([*columns, "_diff"])
        tables = [_counted(table, source.diff).select([*columns, "_diff"]) for source, table in found]
        by = [*keys, *(name for name in columns if name not in keys)] if {*keys} <= {*columns} else columns
        both = pa.concat_tables([scan.empty([*columns, "_diff"]), *tables])
        return consolidate(both, by).select([*columns, "_diff"])

    def updates(self, wanted: SortedRows, reader: PartReader) -> pa.Table:
        """Return the updates of a scan of changes with a wanted key: its columns, `_time`, `_diff`, consolidated."""
        assert self._keeps_time
        columns = [*self._scan.columns, "_time", "_diff"]
        found = self._found(wanted, reader) if len(wanted) else []
        tables = [_counted(table, source.diff).select(columns) for source, table in found]
        return consolidate(pa.concat_tables([self._scan.empty(columns), *tables]), columns[:-1])

    def _found(self, wanted: SortedRows, reader: PartReader) -> list[Found]:
        """Return the updates with a wanted key, of each part that has some."""
        key_at = self._key_at(wanted)
        found: list[Found] = []
        cold: list[tuple[_Source, Intervals]] = []
        for source in self._sources:
            if intervals := source.intervals(key_at, len(wanted)):
                pieces = self._in_memory(source, intervals, wanted, reader)
                if pieces is None:
                    cold.append((source, intervals))
                else:
                    found += self._matching(source, pieces, wanted)
        read = reader.map(lambda each: list(self._matching(each[0], self._pieces(*each, wanted, reader), wanted)), cold)
        return [*found, *chain.from_iterable(read)]

    def _key_at(self, wanted: SortedRows) -> Callable[[int], Orderable]:
        """Return the function that gives a wanted key as it is compared with sampled ones."""
        columns = [wanted.batch.column(name) for name in self._scan.schema.key_names]

        @cache
        def key_at(row: int) -> Orderable:
            assert self._order is not None
            return self._order([scalar_to_json(column[row]) for column in columns])

        return key_at

    def _matching(self, source: _Source, pieces: Iterable[SortedRows], wanted: SortedRows) -> Iterator[Found]:
        """Yield the updates with a wanted key at the scan's times that pass its filter, as the scan counts them."""
        scan = self._scan
        for piece in pieces:
            rows = piece.find(wanted, 0, len(wanted))
            if not len(rows):
                continue
            table = pa.Table.from_batches([piece.batch.take(pa.array(rows))])
            if source.cuts_time:
                times = table["_time"].to_numpy()
                table = table.filter(pa.array((times >= scan.time_lower) & (times < scan.time_upper)))
            if scan.filter is not None:
                table = self._filtered(table, scan.filter)
            if source.diff is None and source.sign < 0:
                table = negated(table)
            if len(table):
                yield source, table

    def _filtered(self, table: pa.Table, filter: pc.Expression) -> pa.Table:
        try:
            return table.filter(filter)
        except (pa.ArrowException, ValueError) as error:
            raise bad_filter(filter, self._scan.schema.arrow, error) from error

    def _in_memory(
        self, source: _Source, intervals: Intervals, wanted: SortedRows, reader: PartReader
    ) -> list[SortedRows] | None:
        """Return all that holds those rows of a part, or None if some of it is not in memory."""
        numbers = [WHOLE]
        if not _is_small(source.part):
            index = reader.known_index(source.part)
            if index is None:
                return None
            numbers = self._groups(source, index, intervals, wanted, reader)
        pieces = []
        for number in numbers:
            piece = reader.decoded.get(self._name(source, number))
            if piece is None:
                return None
            assert isinstance(piece, SortedRows)
            pieces.append(piece)
        return pieces

    def _groups(
        self, source: _Source, index: PartIndex, intervals: Intervals, wanted: SortedRows, reader: PartReader
    ) -> list[int]:
        """Return the numbers of the row groups that may hold those rows."""
        name = (source.part.checksum, "bounds", self._types)
        bounds = reader.decoded.get(name)
        if bounds is None:
            bounds = GroupBounds.of(index, self._scan.schema)
            reader.decoded.put(name, bounds)
        assert isinstance(bounds, GroupBounds)
        found: set[int] = set()
        for start, end, row in intervals:
            found.update(bounds.within(start, end, None if row is None else wanted.key(row)[0]))
        return sorted(found)

    def _pieces(
        self, source: _Source, intervals: Intervals, wanted: SortedRows, reader: PartReader
    ) -> Iterator[SortedRows]:
        """Yield all that holds those rows of a part; what is not in memory is read, and kept there."""
        part = source.part
        if _is_small(part):
            table = reader.table(part, self._scan.schema, source.columns)
            yield self._keep(source, WHOLE, table, reader)
            return
        index = reader.index(part, self._scan.schema)
        run: list[int] = []
        for number in self._groups(source, index, intervals, wanted, reader):
            piece = reader.decoded.get(self._name(source, number))
            assert piece is None or isinstance(piece, SortedRows)
            rows = index.groups[number].first_row + index.groups[number].rows
            rows -= index.groups[run[0]].first_row if run else 0
            too_much = part.memory * rows // part.rows > RUN_BYTES_MAX
            if run and (piece is not None or number != run[-1] + 1 or too_much):
                yield from self._decoded(source, run, index, reader)
                run = []
            if piece is not None:
                yield piece
            else:
                run.append(number)
        if run:
            yield from self._decoded(source, run, index, reader)

    def _decoded(self, source: _Source, run: list[int], index: PartIndex, reader: PartReader) -> Iterator[SortedRows]:
        """Read consecutive row groups. Cost: one GET of a range."""
        table = reader.groups(source.part, self._scan.schema, run, source.columns)
        start = 0
        for number in run:
            rows = index.groups[number].rows
            yield self._keep(source, number, table.slice(start, rows), reader)
            start += rows

    def _keep(self, source: _Source, number: int, table: pa.Table, reader: PartReader) -> SortedRows:
        piece = SortedRows(table, self._scan.schema.key_names)
        reader.decoded.put(self._name(source, number), piece)
        return piece

    def _name(self, source: _Source, number: int) -> Hashable:
        return source.part.checksum, number, source.columns, self._types


def _is_small(part: Part) -> bool:
    """Whether a part is fetched whole in any case."""
    return bool(part.inline) or part.bytes <= WHOLE_BYTES_MAX


@dataclass(frozen=True, slots=True)
class GroupBounds:
    """Where the row groups of a part begin and end: in rows, and in values of the first key field.

    Attributes:
        firsts: the first row of each.
        leasts, greatests: ascending; as `SortedRows.key` has values. None if they are not known of every group.
    """

    firsts: list[int]
    leasts: list[Any] | None
    greatests: list[Any] | None

    @property
    def nbytes(self) -> int:
        """About what it takes."""
        return 1000 + 300 * len(self.firsts)

    @classmethod
    def of(cls, index: PartIndex, schema: CollectionSchema) -> "GroupBounds":
        """Make it from a footer. Cost: some 10 µs for each row group."""
        firsts = [group.first_row for group in index.groups]
        limits = index.first_field_limits(schema.arrow.types[0]) if schema.key_names else None
        return cls(firsts, *(limits or (None, None)))

    def within(self, start: int, end: int, value: Any) -> range:
        """Return the numbers of the row groups with rows in `[start, end)` that may have that value; None is any."""
        first, last = bisect.bisect_right(self.firsts, start) - 1, bisect.bisect_left(self.firsts, end)
        if value is not None and last - first > 1 and self.leasts is not None and self.greatests is not None:
            first = max(first, bisect.bisect_left(self.greatests, value))
            last = min(last, bisect.bisect_right(self.leasts, value))
        return range(first, last)


def _counted(table: pa.Table, diff: int | None) -> pa.Table:
    """Return a table with `_diff`, which is the same in all of its rows if it has none."""
    if diff is None:
        return table
    field = pa.field("_diff", pa.int64(), nullable=False)
    return table.append_column(field, pa.array(np.full(len(table), diff, np.int64)))
