"""Finding keys in rows that are sorted by them: by binary search, column after column.

Rows with equal values in the first columns are neighbours, and among them the next column ascends, NULL last and NaN
before it (see `persist.codecs.order.ordering`); so each column narrows the interval of rows that the ones before it
left. Fixed-width columns are searched as numpy sees their buffer, strings and binary by the bytes in theirs: nothing is
converted. Many keys at once are found by one pass over all rows.
"""

import bisect
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

from persist.codecs.order.touching import Touching
from persist.codecs.types.arrow_types import is_flat

Rows: TypeAlias = npt.NDArray[np.int64]
NO_ROWS: Rows = np.zeros(0, np.int64)
FEW_KEYS = 64  # Up to here, keys are searched one by one.


class SortedRows:
    """Rows sorted by their key columns; immutable, and safe to share between threads.

    Attributes:
        batch: the rows, floats canonical.
    """

    def __init__(self, table: pa.Table, key_names: Sequence[str]) -> None:
        """table is sorted by the columns key_names, which come first in it."""
        (self.batch,) = table.combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], schema=table.schema)]
        self._nbytes = int(self.batch.nbytes)
        self._names = list(key_names)
        self._columns: list[_Column] | None = None
        if all(is_flat(self.batch.column(name).type) for name in key_names):
            self._columns = [_column(self.batch.column(name)) for name in key_names]

    @property
    def nbytes(self) -> int:
        """What the rows take."""
        return self._nbytes

    def __len__(self) -> int:
        return int(self.batch.num_rows)

    def key(self, row: int) -> list[Any]:
        """Return the key of a row as `bounds` takes it. The columns are flat."""
        assert self._columns is not None
        return [column.value(row) for column in self._columns]

    def bounds(self, key: Sequence[Any]) -> tuple[int, int]:
        """Return the interval of rows with that key; if it is empty, it is where they would be."""
        assert self._columns is not None
        start, end = 0, len(self)
        for column, value in zip(self._columns, key, strict=True):
            start, end = column.bounds(value, start, end)
            if start == end:
                break
        return start, end

    def find(self, wanted: "SortedRows", first: int, last: int) -> Rows:
        """Return, ascending, the rows with the key of one of the rows `[first, last)` of wanted, which are distinct."""
        if not self._names:
            return np.arange(len(self), dtype=np.int64)
        if self._columns is None:
            return self._find_many(wanted, first, last)
        if last - first > FEW_KEYS and len(self):
            first = max(first, wanted.bounds(self.key(0))[0])
            last = min(last, wanted.bounds(self.key(len(self) - 1))[1])
        if last - first > FEW_KEYS:
            return self._find_many(wanted, first, last)
        found = [self.bounds(wanted.key(row)) for row in range(first, last)]
        rows = [np.arange(start, end) for start, end in found if start < end]
        return NO_ROWS if not rows else rows[0] if len(rows) == 1 else np.concatenate(rows)

    def _find_many(self, wanted: "SortedRows", first: int, last: int) -> Rows:
        if not len(self) or first >= last:
            return NO_ROWS
        keys = pa.Table.from_batches([self.batch.select(self._names)])
        others = pa.Table.from_batches([wanted.batch.select(self._names).slice(first, last - first)])
        touching = Touching(others, self._names)
        rows = np.flatnonzero(touching.mask(keys))
        # Of these, some may only begin like a wanted key.
        found: Rows = rows[touching.exact(keys.take(pa.array(rows)))]
        return found


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
