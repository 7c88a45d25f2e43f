"""Rows of one part with requested keys: the row groups that may hold them, and their decoded columns.

- **Search.** The sampled keys of the part's descriptor select row groups roughly, without a request (`KeySamples`). The
  footer's statistics of the first key field select them nearly exactly (`GroupBounds`). All requested keys are compared
  with all bounds at once. Parts without either (nested or very long keys) may hold any key anywhere.
- **Decoding** (`PartRows`). Keys come first, and other columns only of row groups with a requested key. Both are cached
  apart, because snapshots of other columns share the keys. They are cached by row group, or as a block of these once
  nearly all of it was requested. The bytes that were fetched for the keys serve the other columns.
- **Threads.** Several threads of the client decode parts. Threads of Arrow besides would double the CPU time.
- **Dictionaries.** Texts that are dictionaries in the file stay so until rows are taken: Arrow takes seven times as
  long to decode them.
- **Files.** With a cache folder, large pieces go to mapped files (`SpilledRows`), and only others stay in memory. Rows
  of a file are checked before they are used.
"""

import json
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress, pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

from persist.codecs.order.arrays import make_int64_array
from persist.codecs.order.search import SortedKeys, make_empty_batch
from persist.codecs.part.index import PartIndex
from persist.codecs.part.key_range import load_comparable_keys
from persist.codecs.part.part import Part, choose_sample_rows
from persist.codecs.types.arrow_types import decode_scalar, is_text
from persist.codecs.types.schema import CollectionSchema
from persist.engine.read.parts.reader import WHOLE_BYTES_MAX, PartReader

BLOCK_BYTES = 32 << 20  # Consecutive row groups of this decoded size are fetched, cached and searched as one.

Numbers: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class KeySamples:
    """Some keys of a part in order, including the first and the last, and their rows."""

    keys: SortedKeys
    at: Numbers

    @property
    def nbytes(self) -> int:
        """About what it takes."""
        return 1000 + self.keys.nbytes

    @classmethod
    def of(cls, part: Part, schema: CollectionSchema, count: int | None = None) -> "KeySamples | None":
        """Return the samples in the descriptor of a part, or None if it has none. Cost: some 2 µs for each value.

        Args:
            count: how many key columns to return, from the first; None for all.
        """
        if not schema.key_names or load_comparable_keys(part, schema) is None:
            return None
        samples = part.keys or []
        fields = [schema.arrow.field(name) for name in schema.key_names[:count]]
        columns = [_to_array([key[at] for key in samples], field.type) for at, field in enumerate(fields)]
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


def _to_array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return an array of values in the form of descriptors."""
    if (pat.is_integer(kind) or pat.is_temporal(kind)) and None not in values:
        stored = np.dtype(f"{'u' if pat.is_unsigned_integer(kind) else 'i'}{kind.bit_width // 8}")
        return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.array(values, stored))])
    return pa.array([decode_scalar(value, kind) for value in values], kind)


@dataclass(frozen=True, slots=True)
class GroupBounds:
    """The bounds of the row groups of a part, in rows and in values of the first key field.

    Attributes:
        firsts: the first row of each group, then the number of all rows.
        group_count_max: of a block.
        leasts, greatests: of the first key field by group, ascending; None if a group has none.
    """

    firsts: Numbers
    group_count_max: int
    leasts: SortedKeys | None
    greatests: SortedKeys | None

    @property
    def nbytes(self) -> int:
        """About what it takes."""
        limits = 0 if self.leasts is None or self.greatests is None else self.leasts.nbytes + self.greatests.nbytes
        return 1000 + self.firsts.nbytes + limits

    @classmethod
    def of(
        cls, part: Part, index: PartIndex, schema: CollectionSchema, block_bytes: int = BLOCK_BYTES
    ) -> "GroupBounds":
        """Return the bounds from a footer. Cost: some 10 µs for each row group.

        Args:
            block_bytes: the greatest decoded size of a block, unless a single row group is larger.
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

    def hit(self, samples: KeySamples | None, requested_keys: SortedKeys) -> Numbers:
        """Return the numbers of the row groups that may hold requested keys, ascending."""
        # If the first field is the whole key, its limits are more exact than samples.
        is_exact = self.leasts is not None and len(requested_keys.batch.schema) == 1
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

    def blocks(self, groups: Numbers) -> list[tuple[int, int, list[int]]]:
        """Return the blocks of some groups, each as `[first, end)` with its groups."""
        group_blocks = []
        for block in sorted({group // self.group_count_max for group in groups.tolist()}):
            first, end = block * self.group_count_max, min((block + 1) * self.group_count_max, len(self.firsts) - 1)
            group_blocks.append((first, end, groups[(groups >= first) & (groups < end)].tolist()))
        return group_blocks


def _make_limits(values: Sequence[Any], kind: pa.DataType) -> SortedKeys:
    if pat.is_integer(kind) or pat.is_floating(kind):
        letter = "f" if pat.is_floating(kind) else "u" if pat.is_unsigned_integer(kind) else "i"
        numbers = np.array(values, f"{letter}{kind.bit_width // 8}")
        column = pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(numbers)])
    else:
        column = pa.array(values, pa.large_binary())
    return SortedKeys(pa.table({"k": column}))


Piece: TypeAlias = SortedKeys | pa.RecordBatch
Hits: TypeAlias = tuple[list[pa.Array], Numbers]  # All rows of the key columns and the others, and which were found.
Fetched: TypeAlias = list[tuple[list[int], bytes]]  # Numbers of consecutive row groups, and their bytes.
Span: TypeAlias = tuple[int, int]  # A range of row groups.
Blocks: TypeAlias = list[tuple[int, int, list[int]]]
REST_SHARE = 0.125  # A block is made once at most this share of its rows was not requested.
WHOLE: Span = (0, -1)  # A part that is fetched whole.


class PartRows:
    """The rows of a part for one look-up.

    Args:
        types: the version of the part, and `CollectionSchema.reading`.
        columns: the requested columns besides the key columns.
        fields: of the key columns, then of the others.
    """

    def __init__(
        self,
        part: Part,
        schema: CollectionSchema,
        types: str,
        columns: tuple[str, ...],
        fields: pa.Schema,
        reader: PartReader,
    ) -> None:
        self._row_fields = fields
        self._part = part
        self._schema = schema
        self._types = types
        self._keys = schema.key_names
        self._columns = columns
        self._reader = reader
        self._is_small = bool(part.inline) or part.bytes <= WHOLE_BYTES_MAX
        self._coded: tuple[str, ...] | None = None  # Columns that come as dictionaries.
        self._known_bounds: GroupBounds | None = None
        self._looked: tuple[SortedKeys | None, Blocks] | None = None  # The last requested keys and their blocks.

    def may_hold(self, requested_keys: SortedKeys | None) -> bool:
        """Return False only if the part has none of the requested keys, by its descriptor."""
        samples = None if requested_keys is None else self._samples()
        return requested_keys is None or samples is None or samples.may_hold(requested_keys)

    def are_in_memory(self, requested_keys: SortedKeys | None) -> bool:
        """Return whether `with_keys` probably needs no request; nothing is searched for that."""
        kinds = [columns for columns in (self._keys, self._columns) if columns]
        if self._is_small:
            return all(self._is_in_memory(columns, WHOLE) for columns in kinds)
        if self._reader.get_cached_index(self._part) is None:
            return False
        bounds = self._bounds()
        return all(
            self._is_in_memory(columns, (first, end))
            or all(self._is_in_memory(columns, (number, number + 1)) for number in groups)
            for first, end, groups in self._blocks(bounds, requested_keys)
            for columns in kinds
        )

    def hits_in_memory(self, requested_keys: SortedKeys) -> list[Hits] | None:
        """Return the positions of the rows with a requested key; None if some columns are not in memory as a block.

        Then `with_keys` finds the rows, and makes a block of row groups if it can.
        """
        if self._is_small:
            spans = [WHOLE]
        elif self._reader.decoded.peek(self._bounds_name) is None:
            return None
        else:
            spans = [(first, end) for first, end, _ in self._blocks(self._bounds(), requested_keys)]
        hits: list[Hits] = []
        for span in spans:
            keys = self._reader.decoded.get(self._name(self._keys, span))
            if keys is None:
                return None
            assert isinstance(keys, SortedKeys)
            rows = keys.find_rows(requested_keys)
            if not len(rows):
                continue
            columns = keys.batch.columns
            if self._columns:
                values = self._reader.decoded.get(self._name(self._columns, span))
                if values is None:
                    return None
                assert isinstance(values, pa.RecordBatch)
                columns += values.columns
            hits.append((columns, rows))
        return hits

    def with_keys(self, requested_keys: SortedKeys | None) -> Iterator[pa.Table]:
        """Yield the rows with a requested key, all columns; None requests all rows."""
        if self._is_small:
            keys = self._load_small_part(self._keys, None)
            if requested_keys is None or keys is None:
                yield from self._tables(self._load_small_values(None))
            else:
                yield from self._matching(requested_keys, 0, keys, self._load_small_values)
            return
        bounds = self._bounds()
        for first, end, groups in self._blocks(bounds, requested_keys):
            fetched: Fetched = []
            span = (first, end)

            if requested_keys is None:
                yield from self._tables(self._load_pieces(self._columns, span, groups, bounds, fetched, None))
                continue

            def values(rows: Numbers, span: Span = span, fetched: Fetched = fetched) -> list[tuple[int, Piece]]:
                return self._load_pieces(self._columns, span, None, bounds, fetched, rows)

            for start, keys in self._load_pieces(self._keys, span, groups, bounds, fetched, None):
                yield from self._matching(requested_keys, start, keys, values)

    def places(self, requested_keys: SortedKeys) -> Numbers:
        """Return the rows of the part that have a requested key, ascending."""
        if not self.may_hold(requested_keys):
            return np.zeros(0, np.int64)
        if self._is_small:
            keys = self._load_small_part(self._keys, None)
            assert isinstance(keys, SortedKeys)
            return keys.find_rows(requested_keys)
        bounds = self._bounds()
        places = [np.zeros(0, np.int64)]
        for first, end, groups in self._blocks(bounds, requested_keys):
            for start, keys in self._load_pieces(self._keys, (first, end), groups, bounds, [], None):
                assert isinstance(keys, SortedKeys)
                places.append(keys.find_rows(requested_keys) + start)
        return np.concatenate(places)

    def _matching(
        self,
        requested_keys: SortedKeys,
        start: int,
        keys: Piece,
        values: Callable[[Numbers], list[tuple[int, Piece]]],
    ) -> Iterator[pa.Table]:
        """Yield the rows with a requested key among some rows of the part, from start on.

        Args:
            keys: of these rows.
            values: returns the other columns of some rows of the part, in pieces with their first rows.
        """
        assert isinstance(keys, SortedKeys)
        rows = keys.find_rows(requested_keys)
        if not len(rows):
            return
        pieces = values(rows + start) if self._columns else []
        if len(pieces) == 1 and len(pieces[0][1]) == len(keys) and pieces[0][0] == start:
            # Both are mostly one block; then one call for all columns takes half the time.
            columns = [*keys.batch.columns, *_batch(pieces[0][1]).columns]
            block = pa.RecordBatch.from_arrays(columns, names=self._row_fields.names)
            yield decode_dictionaries(
                pa.Table.from_batches([block.take(make_int64_array(rows))]).columns, self._row_fields
            )
            return
        tables = [keys.batch.take(make_int64_array(rows))]
        if pieces:
            ends = [*(first - start for first, _ in pieces[1:]), len(keys)]
            cuts = [0, *rows.searchsorted(ends).tolist()]
            parts = [
                _batch(piece).take(make_int64_array(rows[a:b] + (start - first)))
                for (first, piece), (a, b) in zip(pieces, pairwise(cuts), strict=True)
            ]
            tables.append(parts[0] if len(parts) == 1 else pa.Table.from_batches(parts))
        yield decode_dictionaries([column for table in tables for column in table.columns], self._row_fields)

    def _tables(self, pieces: list[tuple[int, Piece]]) -> Iterator[pa.Table]:
        """Yield all rows of some pieces of a collection without keys."""
        return (
            decode_dictionaries(pa.Table.from_batches([_batch(piece)]).columns, self._row_fields) for _, piece in pieces
        )

    def _load_small_values(self, touched: Numbers | None) -> list[tuple[int, Piece]]:
        values = self._load_small_part(self._columns, touched)
        return [] if values is None else [(0, values)]

    def _load_small_part(self, columns: tuple[str, ...], touched: Numbers | None) -> Piece | None:
        """Return columns of all rows of a small part; None for no columns."""
        piece = self._fetch_cached(columns, WHOLE, self._part.rows, touched) if columns else None
        if columns and piece is None:
            table = self._reader.table(self._part, self._schema, [*self._keys, *self._columns])
            for names in filter(None, (self._keys, self._columns)):
                new_piece = self._cache_piece(names, WHOLE, table.select(names))
                piece = new_piece if names == columns else piece
        return piece

    def _samples(self) -> KeySamples | None:
        name = (self._part.rows_id, "samples", self._types)
        samples = self._reader.decoded.get(name)
        if samples is None:
            samples = KeySamples.of(self._part, self._schema)
            if samples is not None:
                self._reader.decoded.put(name, samples)
        assert samples is None or isinstance(samples, KeySamples)
        return samples

    def _bounds(self) -> GroupBounds:
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

    def _blocks(self, bounds: GroupBounds, requested_keys: SortedKeys | None) -> Blocks:
        """Return the blocks to search, each as `[first, end)`, with the row groups that may hold requested keys.

        A look-up calls this twice with the same keys.
        """
        if self._looked is not None and self._looked[0] is requested_keys:
            return self._looked[1]
        total = len(bounds.firsts) - 1
        kinds = [columns for columns in (self._keys, self._columns) if columns]
        blocks: Blocks
        if total <= bounds.group_count_max and all(self._is_in_memory(columns, (0, total)) for columns in kinds):
            # The part is one block in memory, so a search takes no longer than a selection.
            blocks = [(0, total, [*range(total)])]
        else:
            blocks = bounds.blocks(
                np.arange(total) if requested_keys is None else bounds.hit(self._samples(), requested_keys)
            )
        self._looked = requested_keys, blocks
        return blocks

    def _load_pieces(
        self,
        columns: tuple[str, ...],
        span: Span,
        groups: Sequence[int] | None,
        bounds: GroupBounds,
        fetched: Fetched,
        touched: Numbers | None,
    ) -> list[tuple[int, Piece]]:
        """Return columns of some row groups of a block, in order, each piece with its first row in the part.

        Args:
            groups: the row groups; None for the ones with touched rows.
            touched: the rows of the part that the caller will use, ascending; None for all rows of the groups.
        """
        first, end = span
        firsts = bounds.firsts

        def fetch_cached(first: int, end: int) -> Piece | None:
            inside = touched
            if touched is not None and self._reader.spilled is not None:  # Only files check rows.
                cuts = touched.searchsorted([firsts[first], firsts[end]])
                inside = touched[cuts[0] : cuts[1]] - firsts[first]
            return self._fetch_cached(columns, (first, end), int(firsts[end] - firsts[first]), inside)

        block = fetch_cached(first, end)
        if block is not None:
            return [(int(firsts[first]), block)]
        if groups is None:
            assert touched is not None
            groups = np.unique(firsts.searchsorted(touched, "right") - 1).tolist()
        # A block of one row group was requested above.
        pieces = {number: fetch_cached(number, number + 1) if end - first > 1 else None for number in groups}
        missing = [number for number, piece in pieces.items() if piece is None]
        is_wanted = len(pieces) == end - first
        if not missing and not is_wanted:  # Nearly all of the block may be cached by now.
            lengths = np.diff(firsts[first : end + 1]).tolist()
            away = (not self._is_in_memory(columns, (number, number + 1)) for number in range(first, end))
            is_wanted = sum(compress(lengths, away)) <= REST_SHARE * sum(lengths)
        if is_wanted and end - first > 1:
            return [(int(firsts[first]), self._load_block(columns, span, bounds, fetched))]
        for run in _group_consecutive(missing):
            table, at = self._read(columns, run, fetched), 0
            for number in run:
                rows = int(firsts[number + 1] - firsts[number])
                pieces[number] = self._cache_piece(columns, (number, number + 1), table.slice(at, rows))
                at += rows
        return [(int(firsts[number]), piece) for number, piece in pieces.items() if piece is not None]

    def _load_block(self, columns: tuple[str, ...], span: Span, bounds: GroupBounds, fetched: Fetched) -> Piece:
        """Return all row groups of a block as one piece, which replaces theirs in the cache."""
        groups = [*range(*span)]
        lengths = np.diff(bounds.firsts).tolist()
        pieces = [self._peek_cached(columns, (number, number + 1), lengths[number]) for number in groups]
        batches = {number: [_batch(piece)] for number, piece in zip(groups, pieces, strict=True) if piece is not None}
        for run in _group_consecutive([number for number in groups if number not in batches]):
            batches[run[0]] = self._read(columns, run, fetched).to_batches()
        table = pa.Table.from_batches([batch for number in sorted(batches) for batch in batches[number]])
        for number in groups:  # Beforehand, so that their room is the block's.
            self._reader.decoded.remove(self._name(columns, (number, number + 1)))
        block = self._cache_piece(columns, span, table)
        spilled = self._reader.spilled
        if spilled is not None and self._is_in_memory(columns, span):
            for number in groups:
                spilled.drop(self._file_name(columns, (number, number + 1)))
        return block

    def _read(self, columns: tuple[str, ...], run: list[int], fetched: Fetched) -> pa.Table:
        """Return columns of consecutive row groups. Cost: one GET of a range, unless they were fetched."""
        coded = () if columns == self._keys else self._list_dictionary_columns()
        for groups, data in fetched:
            if groups[0] <= run[0] and run[-1] <= groups[-1]:
                return self._reader.decode_groups(
                    self._part, self._schema, groups, run, data, columns, coded=coded, use_threads=False
                )
        table, data = self._reader.fetch_groups(self._part, self._schema, run, columns, coded=coded, use_threads=False)
        fetched.append((run, data))
        return table

    def _list_dictionary_columns(self) -> tuple[str, ...]:
        """Return the text columns that are decoded as dictionaries, because few of their values are requested."""
        if self._coded is None:
            kinds = ((name, self._schema.arrow.field(name).type) for name in self._columns)
            names = [name for name, kind in kinds if is_text(kind)]
            is_mapped = self._reader.spilled is not None  # Files have texts as they are.
            self._coded = (
                self._reader.index(self._part, self._schema).list_dictionary_columns(names)
                if names and not is_mapped
                else ()
            )
        return self._coded

    def _cache_piece(self, columns: tuple[str, ...], span: Span, table: pa.Table) -> Piece:
        batches = table.combine_chunks().to_batches()
        batch = batches[0] if batches else make_empty_batch(table.schema)
        spilled = self._reader.spilled
        if spilled is not None and spilled.put(self._file_name(columns, span), batch):
            # The file replaces the decoded rows.
            mapped = self._fetch_cached(columns, span, len(batch), None)
            if mapped is not None:
                return mapped
        piece: Piece = SortedKeys(batch) if columns == self._keys else batch
        self._reader.decoded.put(self._name(columns, span), piece)
        return piece

    def _fetch_cached(self, columns: tuple[str, ...], span: Span, rows: int, touched: Numbers | None) -> Piece | None:
        """Return cached columns of a number of rows; the caller uses the touched rows only."""
        piece = self._reader.decoded.get(self._name(columns, span))
        assert piece is None or isinstance(piece, (SortedKeys, pa.RecordBatch))
        spilled = self._reader.spilled
        if piece is not None or spilled is None:
            return piece
        fields, name = self._fields(columns), self._file_name(columns, span)
        if columns != self._keys:
            return spilled.get(name, fields, rows, touched)
        keys = spilled.keys(name, fields, rows)
        if keys is not None and keys.packs:  # Packed keys take memory, which the cache bounds.
            self._reader.decoded.put(self._name(columns, span), keys)
        return keys

    def _is_in_memory(self, columns: tuple[str, ...], span: Span) -> bool:
        """Return whether columns of some rows are in memory or mapped; a mapped file may still be damaged."""
        if self._reader.decoded.peek(self._name(columns, span)) is not None:
            return True
        spilled = self._reader.spilled
        return spilled is not None and spilled.is_mapped(self._file_name(columns, span))

    def _peek_cached(self, columns: tuple[str, ...], span: Span, rows: int) -> Piece | None:
        """Return cached columns of a number of rows, without counting the request."""
        piece = self._reader.decoded.peek(self._name(columns, span))
        assert piece is None or isinstance(piece, (SortedKeys, pa.RecordBatch))
        spilled = self._reader.spilled
        if piece is not None or spilled is None:
            return piece
        return spilled.get(self._file_name(columns, span), self._fields(columns), rows, None)

    def _fields(self, columns: tuple[str, ...]) -> pa.Schema:
        return pa.schema([self._schema.arrow.field(name) for name in columns])

    @property
    def _bounds_name(self) -> Hashable:
        return self._part.rows_id, "bounds", self._types

    def _name(self, columns: tuple[str, ...], span: Span) -> Hashable:
        return self._part.rows_id, span, columns, self._types

    def _file_name(self, columns: tuple[str, ...], span: Span) -> str:
        return json.dumps([self._part.rows_id, *span, columns, self._types])


def find_places(requested_keys: SortedKeys, part: Part, schema: CollectionSchema, reader: PartReader) -> Numbers:
    """Return the rows of a part that have a requested key, ascending. Cost: a look-up of the keys alone."""
    fields = pa.schema([schema.arrow.field(name) for name in schema.key_names])
    return PartRows(part, schema, f"{part.schema} {schema.reading}", (), fields, reader).places(requested_keys)


def decode_dictionaries(columns: Sequence[pa.ChunkedArray], fields: pa.Schema) -> pa.Table:
    """Return columns as a table of some fields, with their values in place of dictionaries."""
    plain = [
        column.cast(field.type) if pat.is_dictionary(column.type) else column
        for field, column in zip(fields, columns, strict=True)
    ]
    return pa.Table.from_arrays(plain, schema=fields)


def _batch(piece: Piece) -> pa.RecordBatch:
    return piece.batch if isinstance(piece, SortedKeys) else piece


def _group_consecutive(numbers: Sequence[int]) -> list[list[int]]:
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] + 1 == number:
            runs[-1].append(number)
        else:
            runs.append([number])
    return runs
