"""Rows of one part with requested keys: the row groups that may hold them, and their decoded columns.

- **Search.** The sampled keys of the part's descriptor select row groups roughly, without a request (`KeySamples`). The
  footer's statistics of the first key field select them nearly exactly (`GroupBounds`). All requested keys are compared
  with all bounds at once. Parts without either (nested or very long keys) may hold any key anywhere.
- **Decoding** (`PartRows`). Keys come first, and other columns only of row groups with a requested key. Both are cached
  separately, because snapshots of other columns share the keys. They are cached by row group, or by block of groups if
  a whole block was requested at once. The other columns use the bytes that were fetched for the keys.
- **Tiny parts** are joined and cached as one, because each search takes a tenth of a millisecond. New parts come at the
  end of the history, so all groups but the last one stay the same until a compaction. With 60 parts of 20 rows, `get`
  of one key takes 0.08 ms, and 0.54 ms with a search for each part.
- **Threads.** Several threads of the client decode parts. Additional threads of Arrow would double the CPU time.
- **Dictionaries.** Texts that are dictionaries in the file stay dictionaries until rows are selected: Arrow takes seven
  times as long to decode them.
- **Files.** With a cache folder, large pieces go to mapped files (`SpilledRows`), and only others stay in memory. Rows
  of a file are checked before they are used.
"""

import json
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

from persist.codecs.order.arrays import make_int64_array
from persist.codecs.order.ordering import sort_indices
from persist.codecs.order.search import NO_ROWS, SortedKeys, make_empty_batch
from persist.codecs.part.decoding import Request
from persist.codecs.part.index import PartIndex
from persist.codecs.part.key_range import load_comparable_keys
from persist.codecs.part.part import Part, choose_sample_rows
from persist.codecs.types.arrow_types import decode_scalar, is_text
from persist.codecs.types.schema import CollectionSchema
from persist.engine.read.parts.reader import WHOLE_BYTES_MAX, PartReader

BLOCK_BYTES = 32 << 20  # Consecutive row groups of this decoded size are fetched, cached and searched as one.

Numbers: TypeAlias = npt.NDArray[np.int64]
Blocks: TypeAlias = list[tuple[int, int, list[int]]]


@dataclass(frozen=True, slots=True)
class KeySamples:
    """Some keys of a part in order, including the first and the last, and their rows."""

    keys: SortedKeys
    at: Numbers

    @property
    def nbytes(self) -> int:
        """The approximate size in memory, in bytes."""
        return 1000 + self.keys.nbytes

    @classmethod
    def of(cls, part: Part, schema: CollectionSchema, count: int | None = None) -> "KeySamples | None":
        """Return the samples in the descriptor of a part, or None if it has none. Cost: some 2 µs for each value.

        `count`: how many key columns to return, from the first; None for all.
        """
        if not schema.key_names or load_comparable_keys(part, schema) is None:
            return None
        samples = part.keys or []
        fields = [schema.arrow.field(name) for name in schema.key_names[:count]]
        columns = [_decode_samples([key[at] for key in samples], field.type) for at, field in enumerate(fields)]
        keys = pa.Table.from_arrays(columns, schema=pa.schema(fields))
        return cls(SortedKeys(keys), np.array(choose_sample_rows(part.rows, len(samples)), np.int64))

    def may_hold(self, requested_keys: SortedKeys) -> bool:
        """Return False only if the part has none of the requested keys."""
        bounds = requested_keys.count_bounds(self.keys)
        if bounds is None:
            return True
        less, not_greater = bounds
        # Between two samples, or at one.
        return bool((less < not_greater).any() or (not_greater[:-1] < less[1:]).any())


def _decode_samples(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Decode key values of a descriptor to an Arrow array."""
    if (pat.is_integer(kind) or pat.is_temporal(kind)) and None not in values:
        stored = np.dtype(f"{'u' if pat.is_unsigned_integer(kind) else 'i'}{kind.bit_width // 8}")
        return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.array(values, stored))])
    return pa.array([decode_scalar(value, kind) for value in values], kind)


@dataclass(frozen=True, slots=True)
class GroupBounds:
    """The bounds of the row groups of a part, in rows and in values of the first key field.

    Attributes:
        firsts: the first row of each group, then the number of all rows.
        group_count_max: the most row groups of a block, which are consecutive and read together.
        leasts, greatests: the bounds of the first key field in each group; None if a group has no bounds.
    """

    firsts: Numbers
    group_count_max: int
    leasts: SortedKeys | None
    greatests: SortedKeys | None

    @property
    def nbytes(self) -> int:
        """The approximate size in memory, in bytes."""
        limits = 0 if self.leasts is None or self.greatests is None else self.leasts.nbytes + self.greatests.nbytes
        return 1000 + self.firsts.nbytes + limits

    @classmethod
    def of(
        cls, part: Part, index: PartIndex, schema: CollectionSchema, block_bytes: int = BLOCK_BYTES
    ) -> "GroupBounds":
        """Return the bounds from a footer. Cost: some 10 µs for each row group.

        `block_bytes`: the greatest decoded size of a block, unless a single row group is larger.
        """
        firsts = np.array([*(group.first_row for group in index.groups), part.rows], np.int64)
        count = max(1, block_bytes * len(index.groups) // max(part.memory, 1))
        lifted = part.make_lift(schema)
        stored = schema if lifted is None else lifted.stored
        limits = index.get_first_field_limits(stored.arrow.types[0]) if schema.key_names else None
        if limits is None:
            return cls(firsts, count, None, None)
        kind, (leasts, greatests) = schema.arrow.types[0], limits
        if pat.is_floating(kind) and greatests:
            greatests[-1] = np.nan  # Statistics leave NaN out, which is greater than all other numbers.
        return cls(firsts, count, _make_limits(leasts, kind), _make_limits(greatests, kind))

    def is_exact(self, requested_keys: SortedKeys) -> bool:
        """Return whether the first field is the whole key, so that its bounds are more exact than samples."""
        return self.leasts is not None and requested_keys.batch.num_columns == 1

    def find_groups(self, samples: KeySamples | None, requested_keys: SortedKeys) -> Numbers:
        """Return the numbers of the row groups that may hold requested keys, ascending."""
        is_exact = self.is_exact(requested_keys)
        if is_exact and len(requested_keys) == 1 and self.leasts is not None and self.greatests is not None:
            started, ended = self.leasts.count_bounds(requested_keys), self.greatests.count_less(requested_keys)
            if started is not None and ended is not None:
                return np.arange(ended[0], started[1][0])
        may = np.ones(len(self.firsts) - 1, np.bool_)
        bounds = None if samples is None or is_exact else requested_keys.count_bounds(samples.keys)
        if samples is not None and bounds is not None:
            # The last sample at or before a group's first row, and the first at or after its last one.
            sample_before = samples.at.searchsorted(self.firsts[:-1], "right") - 1
            sample_after = samples.at.searchsorted(self.firsts[1:] - 1)
            may = bounds[0][sample_before] < bounds[1][np.minimum(sample_after, np.int64(len(samples.at) - 1))]
        if self.leasts is not None and self.greatests is not None:
            first = requested_keys.select_first_field()
            least, greatest = first.count_bounds(self.leasts), first.count_bounds(self.greatests)
            if least is not None and greatest is not None:
                may &= least[0] < greatest[1]
        return np.flatnonzero(may)

    def to_blocks(self, groups: Numbers) -> Blocks:
        """Return the blocks of some groups, each as its first group, its end and these groups."""
        blocks: dict[int, list[int]] = {}
        for group in groups.tolist():
            blocks.setdefault(group // self.group_count_max, []).append(group)
        size, total = self.group_count_max, len(self.firsts) - 1
        return [(block * size, min((block + 1) * size, total), inside) for block, inside in blocks.items()]


def _make_limits(values: Sequence[Any], kind: pa.DataType) -> SortedKeys:
    """Return the values of a column as sorted keys, for a search."""
    if pat.is_integer(kind) or pat.is_floating(kind):
        letter = "f" if pat.is_floating(kind) else "u" if pat.is_unsigned_integer(kind) else "i"
        numbers = np.array(values, f"{letter}{kind.bit_width // 8}")
        column = pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(numbers)])
    else:
        column = pa.array(values, pa.large_binary())
    return SortedKeys(pa.table({"k": column}))


Piece: TypeAlias = SortedKeys | pa.RecordBatch
Pieces: TypeAlias = list[tuple[int, Piece]]  # Ascending, each with its first row in the part.
Hits: TypeAlias = tuple[list[pa.Array], Numbers]  # Columns besides the keys, and the rows in them that were found.
Fetched: TypeAlias = list[tuple[list[int], bytes]]  # Numbers of consecutive row groups, and their bytes.
Span: TypeAlias = tuple[int, int]  # A range of row groups.
WHOLE: Span = (0, -1)  # All rows of small parts.


class PartRows:
    """The rows of one part, or of several tiny ones that are joined, for one look-up.

    Args:
        parts: several only if the collection has key columns.
        types: a part of the cache key: the version of a single part, and `CollectionSchema.reading`.
        columns: the requested columns besides the key columns.
        fields: the fields of the key columns, then of the other columns.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        schema: CollectionSchema,
        types: str,
        columns: tuple[str, ...],
        fields: pa.Schema,
        reader: PartReader,
    ) -> None:
        self._parts = parts
        self._part = parts[0]
        self._row_fields = fields
        self._schema = schema
        self._types = types
        self._keys = schema.key_names
        self._columns = columns
        self._reader = reader
        self._is_joined = len(parts) > 1
        self._spilled = None if self._is_joined else reader.spilled
        self._id: Hashable = self._part.rows_id
        if self._is_joined:
            self._id = tuple((part.rows_id, part.schema) for part in parts)
        self._is_small = self._is_joined or bool(self._part.inline) or self._part.bytes <= WHOLE_BYTES_MAX
        self._coded: tuple[str, ...] | None = None  # Columns that come as dictionaries.
        self._known_bounds: GroupBounds | None = None
        self._selected: tuple[SortedKeys | None, Blocks] | None = None  # The last requested keys, and their groups.

    def may_hold(self, requested_keys: SortedKeys | None) -> bool:
        """Return False only if the part has none of the requested keys, by its descriptor."""
        samples = None if requested_keys is None or self._is_joined else self._load_samples()
        return requested_keys is None or samples is None or samples.may_hold(requested_keys)

    def are_in_memory(self, requested_keys: SortedKeys | None) -> bool:
        """Return whether `with_keys` probably needs no request, without a search."""
        if self._is_joined and all(part.inline for part in self._parts):
            return True
        if not self._is_small and self._reader.get_cached_index(self._part) is None:
            return False
        return all(
            self._is_in_memory(columns, span)
            for first, end, groups in self._select_groups(requested_keys)
            for columns in (self._keys, self._columns)
            if columns
            for span in self._list_spans(columns, (first, end), groups)
        )

    def find_hits_in_memory(self, requested_keys: SortedKeys) -> list[Hits] | None:
        """Return the positions of the rows with a requested key; None if this needs a read."""
        if not self._is_small and self._reader.decoded.peek(self._bounds_name) is None:
            return None
        hits: list[Hits] = []
        for first, end, groups in self._select_groups(requested_keys):
            keys = self._get_cached(self._keys, (first, end), groups)
            if keys is None:
                return None
            rows = _find_rows(keys, requested_keys)
            if not len(rows):
                continue
            if not self._columns:
                hits.append(([], rows))
                continue
            values = self._get_cached(self._columns, (first, end), self._select_touched(rows, groups))
            if values is None:
                return None
            for start, piece in values:
                batch = _batch(piece)
                inside = rows if len(values) == 1 else rows[(rows >= start) & (rows < start + batch.num_rows)]
                if len(inside):
                    hits.append((batch.columns, inside - start))
        return hits

    def with_keys(self, requested_keys: SortedKeys | None) -> pa.Table:
        """Return the rows with a requested key, all columns; None requests all rows."""
        columns: list[list[pa.ChunkedArray]] = []
        for first, end, groups in self._select_groups(requested_keys):
            fetched: Fetched = []
            if requested_keys is None:
                values = self._load(self._columns, (first, end), groups, fetched)
                columns.append(pa.Table.from_batches([_batch(piece) for _, piece in values]).columns)
                continue
            keys = self._load(self._keys, (first, end), groups, fetched)
            rows = _find_rows(keys, requested_keys)
            if not len(rows):
                continue
            touched = self._select_touched(rows, groups)
            values = self._load(self._columns, (first, end), touched, fetched, rows) if self._columns else []
            if [(start, len(piece)) for start, piece in keys] == [(start, len(piece)) for start, piece in values[:1]]:
                # Both are mostly one piece. One call for all columns takes half the time of two.
                arrays = [*_batch(keys[0][1]).columns, *_batch(values[0][1]).columns]
                block = pa.RecordBatch.from_arrays(arrays, names=self._row_fields.names)
                columns.append(pa.Table.from_batches([block.take(make_int64_array(rows - keys[0][0]))]).columns)
                continue
            columns.append(_take_rows(keys, rows).columns)
            if values:
                columns[-1] += _take_rows(values, rows).columns
        tables = [decode_dictionaries(table_columns, self._row_fields) for table_columns in columns]
        return tables[0] if len(tables) == 1 else pa.concat_tables([self._row_fields.empty_table(), *tables])

    def find_places(self, requested_keys: SortedKeys) -> Numbers:
        """Return the rows of the part that have a requested key, ascending."""
        blocks = self._select_groups(requested_keys) if self.may_hold(requested_keys) else []
        keys = (self._load(self._keys, (first, end), groups, []) for first, end, groups in blocks)
        return np.concatenate([NO_ROWS, *(_find_rows(pieces, requested_keys) for pieces in keys)])

    def _load_samples(self) -> KeySamples | None:
        """Return the sampled keys of the part, cached."""
        name = (self._id, "samples", self._types)
        samples = self._reader.decoded.get(name)
        if samples is None:
            samples = KeySamples.of(self._part, self._schema)
            if samples is not None:
                self._reader.decoded.put(name, samples)
        assert samples is None or isinstance(samples, KeySamples)
        return samples

    def _load_bounds(self) -> GroupBounds:
        """Return the bounds of the part's row groups; they are cached."""
        if self._known_bounds is None:
            bounds = self._reader.decoded.get(self._bounds_name)
            if bounds is None:
                index = self._reader.index(self._part, self._schema)
                # The cache keeps no piece larger than about a quarter of the budget.
                room = min(BLOCK_BYTES, self._reader.memory_budget // 16)
                bounds = GroupBounds.of(self._part, index, self._schema, room)
                self._reader.decoded.put(self._bounds_name, bounds)
            assert isinstance(bounds, GroupBounds)
            self._known_bounds = bounds
        return self._known_bounds

    def _select_groups(self, requested_keys: SortedKeys | None) -> Blocks:
        """Return the row groups that may hold requested keys, by block; the last result is cached."""
        if self._is_small:
            return [(*WHOLE, [])]
        if self._selected is None or self._selected[0] is not requested_keys:
            bounds = self._load_bounds()
            groups = np.arange(len(bounds.firsts) - 1)
            if requested_keys is not None:
                samples = None if bounds.is_exact(requested_keys) else self._load_samples()
                groups = bounds.find_groups(samples, requested_keys)
            self._selected = requested_keys, bounds.to_blocks(groups)
        return self._selected[1]

    def _select_touched(self, rows: Numbers, groups: Sequence[int]) -> Sequence[int]:
        """Return the row groups, among `groups`, that contain some of the rows."""
        if len(groups) < 2:
            return groups
        touched: list[int] = np.unique(self._load_bounds().firsts.searchsorted(rows, "right") - 1).tolist()
        return touched

    def _list_spans(self, columns: tuple[str, ...], block: Span, groups: Sequence[int]) -> list[Span]:
        """Return the units of the cache: a whole block if all of it is requested, else single row groups."""
        if len(groups) == block[1] - block[0] or block == WHOLE or self._is_in_memory(columns, block):
            return [block]
        return [(group, group + 1) for group in groups]

    def _get_cached(self, columns: tuple[str, ...], block: Span, groups: Sequence[int]) -> Pieces | None:
        """Return columns of row groups of a block from memory; None if some are missing."""
        pieces: Pieces = []
        for span in self._list_spans(columns, block, groups):
            piece = self._reader.decoded.get(self._name(columns, span))
            if piece is None:
                return None
            assert isinstance(piece, (SortedKeys, pa.RecordBatch))
            pieces.append((self._find_start(span), piece))
        return pieces

    def _load(
        self,
        columns: tuple[str, ...],
        block: Span,
        groups: Sequence[int],
        fetched: Fetched,
        touched: Numbers | None = None,
    ) -> Pieces:
        """Return columns of row groups of a block, from the cache or decoded.

        `touched`: the rows of the part that the caller will use, ascending; None for all rows of the groups.
        """
        if self._is_small:
            piece = self._fetch_cached(columns, WHOLE, touched)
            return [(0, self._load_whole(columns) if piece is None else piece)]
        pieces: dict[Span, Piece] = {}
        missing: list[Span] = []
        for span in self._list_spans(columns, block, groups):
            inside = touched
            if touched is not None and self._spilled is not None:  # Only files check rows.
                start, end = self._load_bounds().firsts[[*span]]
                inside = touched[touched.searchsorted(start) : touched.searchsorted(end)] - start
            piece = self._fetch_cached(columns, span, inside)
            if piece is None:
                missing.append(span)
                if span[1] - span[0] > 1:  # A block replaces its row groups.
                    for group in groups:
                        self._reader.decoded.remove(self._name(columns, (group, group + 1)))
            else:
                pieces[span] = piece
        for run in _group_consecutive([group for span in missing for group in range(*span)]):
            table, at = self._read_groups(columns, run, fetched), 0
            for span in missing:
                if run[0] <= span[0] <= run[-1]:
                    rows = self._count_rows(span)
                    pieces[span] = self._cache_piece(columns, span, table.slice(at, rows))
                    at += rows
        return [(self._find_start(span), pieces[span]) for span in sorted(pieces)]

    def _load_whole(self, columns: tuple[str, ...]) -> Piece:
        """Return columns of all rows of small parts, which are sorted by key."""
        names = [*self._keys, *self._columns]
        table = pa.concat_tables([self._reader.table(part, Request(self._schema, names)) for part in self._parts])
        if self._is_joined:  # Sorting is stable, so rows with equal keys stay in the order of their parts.
            table = table.take(sort_indices(table, [*self._keys]))
        kinds = [kind for kind in (self._keys, self._columns) if kind]
        return {kind: self._cache_piece(kind, WHOLE, table.select(kind)) for kind in kinds}[columns]

    def _read_groups(self, columns: tuple[str, ...], run: list[int], fetched: Fetched) -> pa.Table:
        """Return columns of consecutive row groups. Cost: one GET of a range, unless they were fetched."""
        coded = () if columns == self._keys else self._list_dictionary_columns()
        request = Request(self._schema, columns, coded=coded)
        for groups, data in fetched:
            if groups[0] <= run[0] and run[-1] <= groups[-1]:
                return self._reader.decode_groups(self._part, groups, run, data, request, use_threads=False)
        table, data = self._reader.fetch_groups(self._part, run, request, use_threads=False)
        fetched.append((run, data))
        return table

    def _list_dictionary_columns(self) -> tuple[str, ...]:
        """Return the text columns that are decoded as dictionaries, because few of their values are requested."""
        if self._coded is None:
            kinds = ((name, self._schema.arrow.field(name).type) for name in self._columns)
            names = [name for name, kind in kinds if is_text(kind)]
            is_mapped = self._spilled is not None  # Files have texts as they are.
            self._coded = (
                self._reader.index(self._part, self._schema).list_dictionary_columns(names)
                if names and not is_mapped
                else ()
            )
        return self._coded

    def _cache_piece(self, columns: tuple[str, ...], span: Span, table: pa.Table) -> Piece:
        """Cache columns of some rows, in memory or as a mapped file."""
        batches = table.combine_chunks().to_batches()
        batch = batches[0] if batches else make_empty_batch(table.schema)
        if self._spilled is not None and self._spilled.put(self._make_file_name(columns, span), batch):
            # The file replaces the decoded rows.
            mapped = self._fetch_cached(columns, span, None)
            if mapped is not None:
                return mapped
        piece: Piece = SortedKeys(batch) if columns == self._keys else batch
        self._reader.decoded.put(self._name(columns, span), piece)
        return piece

    def _fetch_cached(self, columns: tuple[str, ...], span: Span, touched: Numbers | None) -> Piece | None:
        """Return cached columns of a span; the caller uses the touched rows only."""
        piece = self._reader.decoded.get(self._name(columns, span))
        assert piece is None or isinstance(piece, (SortedKeys, pa.RecordBatch))
        if piece is not None or self._spilled is None:
            return piece
        fields = pa.schema([self._row_fields.field(name) for name in columns])
        name = self._make_file_name(columns, span)
        if columns != self._keys:
            return self._spilled.get(name, fields, self._count_rows(span), touched)
        keys = self._spilled.load_keys(name, fields, self._count_rows(span))
        if keys is not None and keys.packs:  # Packed keys take memory, which the cache bounds.
            self._reader.decoded.put(self._name(columns, span), keys)
        return keys

    def _is_in_memory(self, columns: tuple[str, ...], span: Span) -> bool:
        """Return whether columns of a span are in memory or mapped; a mapped file may still be damaged."""
        if self._reader.decoded.peek(self._name(columns, span)) is not None:
            return True
        return self._spilled is not None and self._spilled.is_mapped(self._make_file_name(columns, span))

    def _find_start(self, span: Span) -> int:
        """Return the first row of a span in the part."""
        return 0 if span == WHOLE else int(self._load_bounds().firsts[span[0]])

    def _count_rows(self, span: Span) -> int:
        """Return the number of rows in a span of row groups."""
        return self._part.rows if span == WHOLE else int(self._load_bounds().firsts[span[1]]) - self._find_start(span)

    @property
    def _bounds_name(self) -> Hashable:
        """The cache key of the bounds of the row groups."""
        return self._id, "bounds", self._types

    def _name(self, columns: tuple[str, ...], span: Span) -> Hashable:
        """Return the cache key of columns of some rows."""
        return self._id, span, columns, self._types

    def _make_file_name(self, columns: tuple[str, ...], span: Span) -> str:
        """Return the name of the file that caches columns of some rows."""
        return json.dumps([self._id, *span, columns, self._types])


def find_places(requested_keys: SortedKeys, part: Part, schema: CollectionSchema, reader: PartReader) -> Numbers:
    """Return the rows of a part that have a requested key, ascending. Cost: a look-up of the keys alone."""
    fields = pa.schema([schema.arrow.field(name) for name in schema.key_names])
    return PartRows([part], schema, f"{part.schema} {schema.reading}", (), fields, reader).find_places(requested_keys)


def decode_dictionaries(columns: Sequence[pa.ChunkedArray], fields: pa.Schema) -> pa.Table:
    """Return columns as a table with these fields, with dictionaries decoded."""
    plain = [
        column.cast(field.type) if pat.is_dictionary(column.type) else column
        for field, column in zip(fields, columns, strict=True)
    ]
    return pa.Table.from_arrays(plain, schema=fields)


def _batch(piece: Piece) -> pa.RecordBatch:
    """Return cached rows as a record batch."""
    return piece.batch if isinstance(piece, SortedKeys) else piece


def _find_rows(keys: Pieces, requested_keys: SortedKeys) -> Numbers:
    """Return the rows of the part that have a requested key, ascending."""
    rows = []
    for start, piece in keys:
        assert isinstance(piece, SortedKeys)
        found = piece.find_rows(requested_keys)
        rows.append(found + start if start else found)
    return rows[0] if len(rows) == 1 else np.concatenate([NO_ROWS, *rows])


def _take_rows(pieces: Pieces, rows: Numbers) -> pa.Table:
    """Return ascending rows of the part from pieces that contain them."""
    cuts = [0, *rows.searchsorted([start for start, _ in pieces[1:]]).tolist(), len(rows)]
    taken = [
        _batch(piece).take(make_int64_array(rows[first:end] - start))
        for (start, piece), (first, end) in zip(pieces, pairwise(cuts), strict=True)
    ]
    return pa.Table.from_batches(taken)


def _group_consecutive(numbers: Sequence[int]) -> list[list[int]]:
    """Group ascending numbers into runs without a gap."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] + 1 == number:
            runs[-1].append(number)
        else:
            runs.append([number])
    return runs
