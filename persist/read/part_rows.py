"""Rows of one part with wanted keys, of which as little is decoded as can be, and kept for the next time.

Keys are decoded first; other columns, of those row groups that have a wanted key. Each is kept by itself (snapshots
with other columns have the keys in common): by row group, or as a block of them once all of it was wanted. Bytes that
were fetched for the keys serve for the other columns.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from persist.codecs import CollectionSchema, Part
from persist.codecs.order.arrays import int64_array
from persist.codecs.order.search import SortedKeys, empty_batch
from persist.read.group_bounds import BLOCK_BYTES, GroupBounds, KeySamples, Numbers
from persist.read.part_reader import WHOLE_BYTES_MAX, PartReader

Piece: TypeAlias = SortedKeys | pa.RecordBatch
Fetched: TypeAlias = list[tuple[list[int], bytes]]  # Numbers of consecutive row groups, and their bytes.
Span: TypeAlias = tuple[int, int]  # Of row groups.
WHOLE: Span = (0, -1)  # Of a part that is fetched whole.


class PartRows:
    """The rows of a part for one look-up.

    Args:
        types: of the schema, as text.
        columns: those wanted besides the key columns.
    """

    def __init__(
        self, part: Part, schema: CollectionSchema, types: str, columns: tuple[str, ...], reader: PartReader
    ) -> None:
        self._part = part
        self._schema = schema
        self._types = types
        self._keys = schema.key_names
        self._columns = columns
        self._reader = reader
        self._is_small = bool(part.inline) or part.bytes <= WHOLE_BYTES_MAX

    def may_hold(self, wanted: SortedKeys | None) -> bool:
        """Return False only if the part has none of the wanted keys, as its descriptor says."""
        samples = None if wanted is None else self._samples()
        return wanted is None or samples is None or samples.may_hold(wanted)

    def are_in_memory(self, wanted: SortedKeys | None) -> bool:
        """Return whether `with_keys` has to read nothing, as far as that is known without a search."""
        kinds = [columns for columns in (self._keys, self._columns) if columns]
        if self._is_small:
            return all(self._peeked(columns, WHOLE) is not None for columns in kinds)
        if self._reader.known_index(self._part) is None:
            return False
        bounds = self._bounds()
        return all(
            self._peeked(columns, (first, end)) is not None
            or all(self._peeked(columns, (number, number + 1)) is not None for number in groups)
            for first, end, groups in bounds.blocks(self._hit(bounds, wanted))
            for columns in kinds
        )

    def with_keys(self, wanted: SortedKeys | None) -> Iterator[pa.Table]:
        """Yield the rows with a wanted key: the key columns and the others; None wants all rows."""
        if self._is_small:
            keys, values = self._whole(self._keys), self._whole(self._columns)
            if wanted is None or keys is None:
                yield from self._tables([] if values is None else [(0, values)])
            else:
                yield from self._matching(wanted, 0, keys, lambda _: [] if values is None else [(0, values)])
            return
        bounds = self._bounds()
        for first, end, groups in bounds.blocks(self._hit(bounds, wanted)):
            fetched: Fetched = []
            span = (first, end)

            if wanted is None:
                yield from self._tables(self._pieces(self._columns, span, groups, bounds, fetched))
                continue

            def values(rows: Numbers, span: Span = span, fetched: Fetched = fetched) -> list[tuple[int, Piece]]:
                groups = np.unique(bounds.firsts.searchsorted(rows, "right") - 1).tolist()
                return self._pieces(self._columns, span, groups, bounds, fetched)

            for start, keys in self._pieces(self._keys, span, groups, bounds, fetched):
                yield from self._matching(wanted, start, keys, values)

    def _matching(
        self,
        wanted: SortedKeys,
        start: int,
        keys: Piece,
        values: Callable[[Numbers], list[tuple[int, Piece]]],
    ) -> Iterator[pa.Table]:
        """Yield the rows with a wanted key among some rows of the part, from start on.

        Args:
            keys: of these rows.
            values: returns the other columns of some rows of the part, in pieces, each with its first row.
        """
        assert isinstance(keys, SortedKeys)
        rows = keys.find(wanted)
        if not len(rows):
            return
        taken = [keys.batch.take(int64_array(rows))]
        if self._columns:
            pieces = values(rows + start)
            ends = [*(first - start for first, _ in pieces[1:]), len(keys)]
            cuts = [0, *rows.searchsorted(ends).tolist()]
            parts = [
                _batch(piece).take(int64_array(rows[a:b] + (start - first)))
                for (first, piece), (a, b) in zip(pieces, pairwise(cuts), strict=True)
            ]
            taken.append(parts[0] if len(parts) == 1 else pa.Table.from_batches(parts))
        fields = [field for each in taken for field in each.schema]
        yield pa.Table.from_arrays([column for each in taken for column in each.columns], schema=pa.schema(fields))

    def _tables(self, pieces: list[tuple[int, Piece]]) -> Iterator[pa.Table]:
        """Yield all rows of some pieces of a collection without keys."""
        return (pa.Table.from_batches([_batch(piece)]) for _, piece in pieces)

    def _whole(self, columns: tuple[str, ...]) -> Piece | None:
        """Return columns of all rows of a small part; None if there are no such columns."""
        found = self._kept(columns, WHOLE) if columns else None
        if columns and found is None:
            table = self._reader.table(self._part, self._schema, [*self._keys, *self._columns])
            for each in filter(None, (self._keys, self._columns)):
                kept = self._keep(each, WHOLE, table.select(each))
                found = kept if each == columns else found
        return found

    def _samples(self) -> KeySamples | None:
        name = (self._part.checksum, "samples", self._types)
        found = self._reader.decoded.get(name)
        if found is None:
            found = KeySamples.of(self._part, self._schema)
            if found is not None:
                self._reader.decoded.put(name, found)
        assert found is None or isinstance(found, KeySamples)
        return found

    def _bounds(self) -> GroupBounds:
        name = (self._part.checksum, "bounds", self._types)
        found = self._reader.decoded.get(name)
        if found is None:
            index = self._reader.index(self._part, self._schema)
            # The cache keeps no piece that is larger than about a quarter of the budget.
            room = min(BLOCK_BYTES, self._reader.memory_budget // 16)
            found = GroupBounds.of(self._part, index, self._schema, room)
            self._reader.decoded.put(name, found)
        assert isinstance(found, GroupBounds)
        return found

    def _hit(self, bounds: GroupBounds, wanted: SortedKeys | None) -> Numbers:
        if wanted is None:
            return np.arange(len(bounds.firsts) - 1)
        return bounds.hit(self._samples(), wanted)

    def _pieces(
        self, columns: tuple[str, ...], span: Span, groups: Sequence[int], bounds: GroupBounds, fetched: Fetched
    ) -> list[tuple[int, Piece]]:
        """Return columns of some row groups of a block, in order, each piece with its first row in the part."""
        first, end = span
        block = self._kept(columns, span)
        if block is not None:
            return [(int(bounds.firsts[first]), block)]
        look = self._peeked if end - first == 1 else self._kept  # A block of one row group was asked for above.
        kept = {number: look(columns, (number, number + 1)) for number in groups}
        missing = [number for number, piece in kept.items() if piece is None]
        if not missing and len(kept) < end - first:  # Perhaps it is all there by now.
            others = {number: self._peeked(columns, (number, number + 1)) for number in range(first, end)}
            kept = kept if None in others.values() else others
        if len(kept) == end - first and len(kept) > 1:
            return [(int(bounds.firsts[first]), self._as_block(columns, span, kept, fetched))]
        for run in _consecutive(missing):
            table, at = self._read(columns, run, fetched), 0
            for number in run:
                rows = int(bounds.firsts[number + 1] - bounds.firsts[number])
                kept[number] = self._keep(columns, (number, number + 1), table.slice(at, rows))
                at += rows
        return [(int(bounds.firsts[number]), piece) for number, piece in kept.items() if piece is not None]

    def _as_block(self, columns: tuple[str, ...], span: Span, kept: dict[int, Piece | None], fetched: Fetched) -> Piece:
        """Make one piece of all row groups of a block, and keep it in place of theirs."""
        pieces = [_batch(piece) for piece in kept.values() if piece is not None]
        table = pa.Table.from_batches(pieces) if len(pieces) == len(kept) else self._read(columns, [*kept], fetched)
        for number in kept:
            self._reader.decoded.take(self._name(columns, (number, number + 1)))
        return self._keep(columns, span, table)

    def _read(self, columns: tuple[str, ...], run: list[int], fetched: Fetched) -> pa.Table:
        """Return columns of consecutive row groups. Cost: one GET of a range, unless they are among those fetched."""
        for groups, data in fetched:
            if groups[0] <= run[0] and run[-1] <= groups[-1]:
                return self._reader.decoded_groups(self._part, self._schema, groups, run, data, columns)
        table, data = self._reader.fetched_groups(self._part, self._schema, run, columns)
        fetched.append((run, data))
        return table

    def _keep(self, columns: tuple[str, ...], span: Span, table: pa.Table) -> Piece:
        piece: Piece
        if columns == self._keys:
            piece = SortedKeys(table)
        else:
            batches = table.combine_chunks().to_batches()
            piece = batches[0] if batches else empty_batch(table.schema)
        self._reader.decoded.put(self._name(columns, span), piece)
        return piece

    def _kept(self, columns: tuple[str, ...], span: Span) -> Piece | None:
        found = self._reader.decoded.get(self._name(columns, span))
        assert found is None or isinstance(found, (SortedKeys, pa.RecordBatch))
        return found

    def _peeked(self, columns: tuple[str, ...], span: Span) -> Piece | None:
        found = self._reader.decoded.peek(self._name(columns, span))
        assert found is None or isinstance(found, (SortedKeys, pa.RecordBatch))
        return found

    def _name(self, columns: tuple[str, ...], span: Span) -> Hashable:
        return self._part.checksum, span, columns, self._types


def _batch(piece: Piece) -> pa.RecordBatch:
    return piece.batch if isinstance(piece, SortedKeys) else piece


def _consecutive(numbers: Sequence[int]) -> list[list[int]]:
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] + 1 == number:
            runs[-1].append(number)
        else:
            runs.append([number])
    return runs
