"""Finding keys in rows that are sorted by them, by binary search.

All wanted keys are searched for at once, packed (see `persist.codecs.order.packed_keys`). While few keys that are no
numbers have been wanted of some rows, packing these does not pay, and each key is searched for by itself, column after
column: rows with equal values in the first columns are neighbours, and among them the next column ascends, NULL last
and NaN before it (see `persist.codecs.order.ordering`). Nested keys and very long ones have no packed form: when there
are many, one pass over all rows finds them.
"""

import bisect
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

from persist.codecs.order.arrays import int64_array
from persist.codecs.order.packed_keys import Layout, Packed, layout_of, packed
from persist.codecs.order.touching import Touching
from persist.codecs.types.arrow_types import is_flat

Rows: TypeAlias = npt.NDArray[np.int64]
NO_ROWS: Rows = np.zeros(0, np.int64)
FEW_KEYS = 64  # Up to here, keys that are no numbers are searched one by one, and
ROWS_PER_SEARCH = 1000  # until packing all rows costs no more than these searches did.
SPANS_MAX = 16  # Up to here, the rows of each key are put down by themselves.


class SortedKeys:
    """Distinct or repeated keys in order; immutable as others see it, and safe to share between threads.

    Attributes:
        batch: the key columns, floats canonical.
        packs: whether a search may take memory besides that of the batch.
    """

    def __init__(self, keys: pa.Table | pa.RecordBatch) -> None:
        """keys are sorted by all of their columns, of which there is at least one. A batch is not copied."""
        found = [keys] if isinstance(keys, pa.RecordBatch) else keys.to_batches()
        if len(found) > 1:
            found = keys.combine_chunks().to_batches()
        self.batch: pa.RecordBatch = found[0] if found else empty_batch(keys.schema)
        self._arrays = self.batch.columns
        self._layout = layout_of(self._arrays)
        self._packed: dict[Layout, Packed] = {}
        self._columns: list[_Column] | None = None
        self._first: SortedKeys | None = None
        self._searched = 0
        # Integers and times are packed as they are stored.
        is_stored = self._layout is None or (self._layout.is_number and not pat.is_floating(self._arrays[0].type))
        self.packs = not is_stored

    @property
    def nbytes(self) -> int:
        """What the keys take, packed ones included."""
        room = self._layout.row_bytes if self._layout is not None and self.packs else 0
        return int(self.batch.nbytes) + room * len(self)

    def __len__(self) -> int:
        return int(self.batch.num_rows)

    @property
    def is_number(self) -> bool:
        """Whether a key is one number or time, and none is NULL."""
        return self._layout is not None and self._layout.is_number

    def packed(self, layout: Layout) -> Packed:
        """Return the keys as `packed_keys` has them; made once for each layout."""
        found = self._packed.get(layout)
        if found is None:
            found = self._packed[layout] = packed(self._arrays, layout)
        return found

    def first_field(self) -> "SortedKeys":
        """Return the first column of the keys by itself."""
        if len(self._arrays) == 1:
            return self
        if self._first is None:
            self._first = SortedKeys(pa.Table.from_batches([self.batch.select([0])]))
        return self._first

    def bounds_of(self, others: "SortedKeys") -> tuple[Rows, Rows] | None:
        """Return, for each of some keys, how many of these are less, and how many are not greater; None if unknown."""
        layout = others._layout
        if layout is None:
            return None
        here, there = self.packed(layout), others.packed(layout)
        return here.searchsorted(there), here.searchsorted(there, "right")

    def less_than(self, others: "SortedKeys") -> Rows | None:
        """Return, for each of some keys in whatever order, how many of these are less; None if unknown."""
        layout = others._layout
        return None if layout is None else self.packed(layout).searchsorted(others.packed(layout))

    @property
    def can_place(self) -> bool:
        """Whether `places` knows an answer: flat keys of at most `WIDTH_MAX` bytes."""
        return self._layout is not None

    def places(self, others: "SortedKeys") -> Rows | None:
        """Return the first place of each of some keys among these, -1 for those that are not here; None if unknown."""
        if self._layout is None:
            return None
        keys, wanted = self.packed(self._layout), others.packed(self._layout)
        if not len(keys):
            return np.full(len(wanted), -1, np.int64)
        places: Rows = keys.searchsorted(wanted)
        places[places == len(keys)] = 0  # Greater than all of them: the least is not equal either.
        places[keys[places] != wanted] = -1
        return places

    def some(self, rows: Rows) -> "SortedKeys":
        """Return the keys of some rows, which ascend, packed as these are."""
        some = SortedKeys(self.batch.take(int64_array(rows)))
        some._layout = self._layout  # Wide enough for all of them.
        some._packed = {layout: keys[rows] for layout, keys in self._packed.items()}
        return some

    def find(self, wanted: "SortedKeys") -> Rows:
        """Return, ascending, the rows with one of the wanted keys, which are distinct."""
        if not len(self) or not len(wanted):
            return NO_ROWS
        if not self.is_number and len(wanted) <= FEW_KEYS and all(is_flat(a.type) for a in self._arrays):
            self._searched += len(wanted)
            if self._layout is None or self._searched * ROWS_PER_SEARCH < len(self):
                return self._find_few(wanted)
        if self._layout is None:
            return self._find_many(wanted)
        return _found(self.packed(self._layout), wanted.packed(self._layout))

    def _find_few(self, wanted: "SortedKeys") -> Rows:
        found = [self._bounds(wanted._key(row)) for row in range(len(wanted))]
        rows = [np.arange(start, end) for start, end in found if start < end]
        return NO_ROWS if not rows else rows[0] if len(rows) == 1 else np.concatenate(rows)

    def _find_many(self, wanted: "SortedKeys") -> Rows:
        keys, names = pa.Table.from_batches([self.batch]), self.batch.schema.names
        touching = Touching(pa.Table.from_batches([wanted.batch]), names)
        rows = np.flatnonzero(touching.mask(keys))
        # Of these, some may only begin like a wanted key.
        found: Rows = rows[touching.exact(keys.take(int64_array(rows)))]
        return found

    def _key(self, row: int) -> list[Any]:
        return [column.value(row) for column in self._searchable()]

    def _bounds(self, key: Sequence[Any]) -> tuple[int, int]:
        """Return the interval of rows with that key; if it is empty, it is where they would be."""
        start, end = 0, len(self)
        for column, value in zip(self._searchable(), key, strict=True):
            start, end = column.bounds(value, start, end)
            if start == end:
                break
        return start, end

    def _searchable(self) -> "list[_Column]":
        if self._columns is None:
            self._columns = [_column(array) for array in self._arrays]
        return self._columns


def empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    """Return a record batch of no rows."""
    columns = [chunked.combine_chunks() for chunked in pa.Table.from_batches([], schema).columns]
    arrays = [each.chunk(0) if isinstance(each, pa.ChunkedArray) else each for each in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _found(keys: Packed, wanted: Packed) -> Rows:
    """Return, ascending, the positions in keys, which ascend, of all that are in wanted, which ascends, too."""
    if not len(keys):
        return NO_ROWS
    if len(wanted) == 1:  # Of a key that is not here, one search says so.
        start = keys.searchsorted(wanted).item()
        if start == len(keys) or keys[start] != wanted[0]:
            return NO_ROWS
        end = start + 1
        if end < len(keys) and keys[end] == wanted[0]:
            end = keys.searchsorted(wanted, "right").item()
        return np.arange(start, end)
    if len(wanted) <= SPANS_MAX:  # A third of what follows costs.
        starts, ends = keys.searchsorted(wanted).tolist(), keys.searchsorted(wanted, "right").tolist()
        spans = [np.arange(start, end) for start, end in zip(starts, ends, strict=True) if start < end]
        return NO_ROWS if not spans else spans[0] if len(spans) == 1 else np.concatenate(spans)
    wanted = wanted[wanted.searchsorted(keys[0]) : wanted.searchsorted(keys[-1], "right")]
    if not len(wanted):
        return NO_ROWS
    if len(wanted) > len(keys):
        at = wanted.searchsorted(keys)
        at[at == len(wanted)] = 0  # Greater than all of them: the least is not equal either.
        rows: Rows = np.flatnonzero(wanted[at] == keys)
        return rows
    starts = keys.searchsorted(wanted)
    is_there = keys[starts] == wanted
    starts, wanted = starts[is_there], wanted[is_there]
    # Mostly a key has one row, and no second search is needed.
    again = starts + 1 < len(keys)
    again[again] = keys[starts[again] + 1] == wanted[again]
    if not again.any():
        found: Rows = starts
        return found
    ends = starts + 1
    ends[again] = keys.searchsorted(wanted[again], "right")
    counts = ends - starts
    firsts = np.cumsum(counts) - counts
    rows = np.repeat(starts - firsts, counts) + np.arange(counts.sum())
    return rows


class _Column:
    """A column whose valid values ascend within each interval that is searched, NULLs after them."""

    def __init__(self, array: pa.Array) -> None:
        self._array = array
        self._has_nulls = array.null_count > 0
        self._rows = range(len(array))

    def value(self, row: int) -> Any:
        """Return a value as `bounds` takes it; None for NULL."""
        return None if self._has_nulls and self._is_null(row) else self._value(row)

    def bounds(self, value: Any, start: int, end: int) -> tuple[int, int]:
        """Return the interval of rows with that value in `[start, end)`."""
        if self._has_nulls:
            nulls = bisect.bisect_left(self._rows, True, start, end, key=self._is_null)
            if value is None:
                return nulls, end
            end = nulls
        elif value is None:
            return end, end
        return self._search(value, start, end)

    def _is_null(self, row: int) -> bool:
        return not self._array[row].is_valid

    def _value(self, row: int) -> Any:
        return self._array[row].as_py()

    def _search(self, value: Any, start: int, end: int) -> tuple[int, int]:
        start = bisect.bisect_left(self._rows, value, start, end, key=self._value)
        return start, bisect.bisect_right(self._rows, value, start, end, key=self._value)


class _FixedWidth(_Column):
    """Integers, floats and temporal values. numpy, too, sorts NaN after all numbers, and finds it there."""

    def __init__(self, array: pa.Array) -> None:
        super().__init__(array)
        width = array.type.bit_width // 8
        kind = "f" if pat.is_floating(array.type) else "u" if pat.is_unsigned_integer(array.type) else "i"
        stored = array.buffers()[1]
        self._values = np.zeros(0, f"{kind}{width}")
        if len(array):
            self._values = np.frombuffer(stored, f"{kind}{width}", len(array), array.offset * width)

    def _value(self, row: int) -> Any:
        return self._values[row]

    def _search(self, value: Any, start: int, end: int) -> tuple[int, int]:
        values = self._values[start:end]
        return start + int(values.searchsorted(value)), start + int(values.searchsorted(value, "right"))


class _Bytes(_Column):
    """Strings and binary, ordered by their bytes."""

    def __init__(self, array: pa.Array) -> None:
        super().__init__(array)
        buffers, kind, offset = array.buffers(), array.type, array.offset
        self._data = memoryview(buffers[-1] or b"")
        if pat.is_fixed_size_binary(kind):
            self._offsets = np.arange(offset, offset + len(array) + 1) * kind.byte_width
        else:
            dtype = np.dtype("i8" if pat.is_large_string(kind) or pat.is_large_binary(kind) else "i4")
            self._offsets = np.zeros(1, dtype)
            if len(array):
                self._offsets = np.frombuffer(buffers[1], dtype, len(array) + 1, offset * dtype.itemsize)

    def _value(self, row: int) -> bytes:
        return bytes(self._data[self._offsets[row] : self._offsets[row + 1]])


def _column(array: pa.Array) -> _Column:
    kind = array.type
    if pat.is_integer(kind) or pat.is_floating(kind) or pat.is_temporal(kind):
        return _FixedWidth(array)
    is_text = pat.is_string(kind) or pat.is_large_string(kind)
    is_binary = pat.is_binary(kind) or pat.is_large_binary(kind) or pat.is_fixed_size_binary(kind)
    return _Bytes(array) if (is_text or is_binary) and not pat.is_decimal(kind) else _Column(array)
