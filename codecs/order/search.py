"""Finds keys in sorted rows: keys are packed, so that numpy compares and searches for many at once.

A key of one integer or time is its number; a float becomes the unsigned integer of the same rank. All other flat keys
become bytes, column after column, most significant first:

    NULL flag   1 byte: 0 for a value, 1 for NULL, whose other bytes are 0
    numbers     big-endian with an inverted sign bit; of negative floats, all bits are inverted
    strings     padded with zeros to the width of the layout, then 1 byte: their length, or width + 1 if they are longer

Bytes of one layout compare as the keys do. A string longer than the width is cut: it sorts at its place, equal to
others with the same cut, and equals no shorter string. Keys of at most 8 bytes are read as one integer.

Nested keys, and keys of more than `WIDTH_MAX` bytes, have no layout. A few long ones are searched for one by one, in
their written form; otherwise one pass over all rows finds them.
"""

import bisect
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from persist.codecs.order.arrays import get_stored_numbers, make_boolean_array, make_int64_array
from persist.codecs.order.digits import compute_dense_ranks, to_ordered_bits
from persist.codecs.order.ordering import make_order_keys, sort_table
from persist.codecs.types.arrow_types import encode_scalar, is_flat, is_number, is_text, make_key_order

Rows: TypeAlias = npt.NDArray[np.int64]
Packed: TypeAlias = npt.NDArray[Any]

NO_ROWS: Rows = np.zeros(0, np.int64)
FEW_KEYS = 64  # Up to here, keys without a layout are searched one by one.
WIDTH_MAX = 96  # More than that costs more memory than it saves time.
_STEP = 8  # Widths are multiples of it, so that the parts of a collection share few layouts.


class Layout(NamedTuple):
    """How keys are packed into bytes; only keys of one layout compare.

    Attributes:
        is_number: whether a key is one number without NULL.
        widths: how many bytes the value of each column takes.
    """

    is_number: bool
    widths: tuple[int, ...]

    @property
    def row_bytes(self) -> int:
        """The greatest size of a packed key in bytes."""
        return self.widths[0] if self.is_number else sum(self.widths) + 2 * len(self.widths)


def choose_layout(columns: Sequence[pa.Array]) -> Layout | None:
    """Return a layout for keys; None if they are nested or long."""
    if not columns or not all(is_flat(column.type) for column in columns):
        return None
    if len(columns) == 1 and columns[0].null_count == 0 and _is_number_or_time(columns[0].type):
        return Layout(True, (columns[0].type.bit_width // 8,))
    layout = Layout(False, tuple(_measure_width(column) for column in columns))
    return layout if layout.row_bytes <= WIDTH_MAX else None


def pack_keys(columns: Sequence[pa.Array], layout: Layout) -> Packed:
    """Return the keys packed as fixed-width bytes: ascending if they are sorted.

    A layout without NULL leaves out NULL keys, which sort last.
    """
    if layout.is_number:
        (column,) = columns
        values = get_stored_numbers(column.slice(0, len(column) - column.null_count))
        return to_ordered_bits(values) if values.dtype.kind == "f" else values
    rows = np.zeros((len(columns[0]), max(layout.row_bytes, 8)), np.uint8)
    at = 0
    for column, width in zip(columns, layout.widths, strict=True):
        at = _fill_column(rows, at, column, width)
    if at <= 8:
        short: Packed = np.ascontiguousarray(rows[:, :8]).view(">u8").ravel().astype(np.uint64)
        return short
    # numpy leaves trailing zeros out of account, which changes nothing between keys of one width.
    long: Packed = np.ascontiguousarray(rows[:, :at]).view(f"S{at}").ravel()
    return long


class SortedKeys:
    """Distinct or repeated keys in order; immutable for callers, and safe to share between threads.

    Attributes:
        batch: the key columns, floats canonical.
        packs: whether a search may use extra memory beyond the batch.
    """

    def __init__(self, keys: pa.Table | pa.RecordBatch) -> None:
        """`keys`: sorted by all of their columns, at least one. A batch is not copied."""
        batches = [keys] if isinstance(keys, pa.RecordBatch) else keys.to_batches()
        if len(batches) > 1:
            batches = keys.combine_chunks().to_batches()
        self.batch: pa.RecordBatch = batches[0] if batches else make_empty_batch(keys.schema)
        self._arrays = self.batch.columns
        self._layout = choose_layout(self._arrays)
        self._packed: dict[Layout, Packed] = {}
        self._first: SortedKeys | None = None
        # Integers and times are packed as they are stored.
        is_stored = self._layout is None or (self._layout.is_number and not pat.is_floating(self._arrays[0].type))
        self.packs = not is_stored

    @classmethod
    def of(cls, rows: pa.Table, names: Sequence[str]) -> "SortedKeys":
        """Return the distinct keys of rows in any order, floats canonical; names are the key columns, one at least."""
        keys = rows.select([*names])
        order, starts = sort_table(keys, names)
        return cls(keys.take(make_int64_array(order[starts])))

    def split(self, table: pa.Table) -> tuple[pa.Table, pa.Table]:
        """Split a sorted table into rows with these distinct keys and other rows.

        `table`: sorted by the columns of these keys, floats canonical; may have more columns.
        """
        rows = self._find_matching_rows(table)
        if not len(rows):
            return table.slice(0, 0), table
        is_other = np.ones(len(table), np.bool_)
        is_other[rows] = False
        return table.take(make_int64_array(rows)), table.filter(make_boolean_array(is_other))

    def select(self, table: pa.Table) -> pa.Table:
        """Return the rows of a table that have one of these keys."""
        return table.take(make_int64_array(self._find_matching_rows(table)))

    def _find_matching_rows(self, table: pa.Table) -> Rows:
        """Return the rows of a sorted table with one of these keys."""
        return SortedKeys(table.select(self.batch.schema.names)).find_rows(self)

    @property
    def nbytes(self) -> int:
        """Bytes of the keys, including packed ones."""
        room = self._layout.row_bytes if self._layout is not None and self.packs else 0
        return int(self.batch.nbytes) + room * len(self)

    def __len__(self) -> int:
        return int(self.batch.num_rows)

    @property
    def is_number(self) -> bool:
        """Whether a key is one number or time, and none is NULL."""
        return self._layout is not None and self._layout.is_number

    def pack(self, layout: Layout) -> Packed:
        """Return these keys packed as a layout requires, from a cache."""
        keys = self._packed.get(layout)
        if keys is None:
            keys = self._packed[layout] = pack_keys(self._arrays, layout)
        return keys

    def select_first_field(self) -> "SortedKeys":
        """Return sorted keys that consist of the first key column only."""
        if len(self._arrays) == 1:
            return self
        if self._first is None:
            self._first = SortedKeys(pa.Table.from_batches([self.batch.select([0])]))
        return self._first

    def count_bounds(self, others: "SortedKeys") -> tuple[Rows, Rows] | None:
        """For each of `others`, count lesser keys, and keys not greater. None if `others` cannot be packed."""
        layout = others._layout
        if layout is None:
            return None
        ours, theirs_packed = self.pack(layout), others.pack(layout)
        return ours.searchsorted(theirs_packed), ours.searchsorted(theirs_packed, "right")

    def count_less(self, others: "SortedKeys") -> Rows | None:
        """For each of `others`, in any order, count lesser keys. None if `others` cannot be packed."""
        layout = others._layout
        return None if layout is None else self.pack(layout).searchsorted(others.pack(layout))

    def find_rows(self, requested: "SortedKeys") -> Rows:
        """Return the rows with one of the requested keys, ascending."""
        if not self.batch.num_rows or not requested.batch.num_rows:
            return NO_ROWS
        if self._layout is not None:
            return _find_packed_rows(self.pack(self._layout), requested.pack(self._layout))
        is_flat_key = all(is_flat(column.type) for column in self._arrays)
        return self._find_few(requested) if is_flat_key and len(requested) <= FEW_KEYS else self._find_many(requested)

    def _find_few(self, requested: "SortedKeys") -> Rows:
        """Return the rows of a few keys by binary search: O(log rows) comparisons of some microseconds each."""
        order = make_key_order(tuple(column.type for column in self._arrays))
        rows = range(len(self))
        spans = []
        for wanted_row in range(len(requested)):
            key = order(requested._encode_row(wanted_row))
            start = bisect.bisect_left(rows, key, key=lambda row: order(self._encode_row(row)))
            end = bisect.bisect_right(rows, key, start, key=lambda row: order(self._encode_row(row)))
            spans.append(np.arange(start, end))
        return np.concatenate(spans)

    def _encode_row(self, row: int) -> list[Any]:
        """Return the key at a row in its JSON form."""
        return [encode_scalar(column[row]) for column in self._arrays]

    def _find_many(self, requested: "SortedKeys") -> Rows:
        """Return the rows of many keys by ranking all keys together: one pass over all rows."""
        names = self.batch.schema.names
        joined = pa.concat_tables([pa.Table.from_batches([keys.batch]) for keys in (self, requested)]).combine_chunks()
        ranks = compute_dense_ranks(make_order_keys(joined, names))
        is_wanted = np.zeros(len(joined), np.bool_)
        is_wanted[ranks[len(self) :]] = True
        rows: Rows = np.flatnonzero(is_wanted[ranks[: len(self)]])
        return rows


def make_empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    """Return a record batch of no rows."""
    columns = [chunked.combine_chunks() for chunked in pa.Table.from_batches([], schema).columns]
    arrays = [column.chunk(0) if isinstance(column, pa.ChunkedArray) else column for column in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _find_packed_rows(keys: Packed, requested_keys: Packed) -> Rows:
    """Return the ascending positions in `keys` of all requested keys; both are sorted."""
    if len(requested_keys) == 1:
        (first,), (end,) = keys.searchsorted(requested_keys), keys.searchsorted(requested_keys, "right")
        return np.arange(first, end)
    # Most of many may be outside of these keys.
    requested_keys = requested_keys[
        requested_keys.searchsorted(keys[0]) : requested_keys.searchsorted(keys[-1], "right")
    ]
    if not len(requested_keys):
        return NO_ROWS
    if len(requested_keys) > len(keys):
        # More is wanted than there is: look each key up among the wanted ones.
        at = requested_keys.searchsorted(keys)
        at[at == len(requested_keys)] = 0  # Greater than all of them: the least is not equal either.
        rows: Rows = np.flatnonzero(requested_keys[at] == keys)
        return rows
    starts, ends = keys.searchsorted(requested_keys), keys.searchsorted(requested_keys, "right")
    # The ranges [start, end) one after the other: a run of consecutive numbers, moved to begin at each start.
    counts = ends - starts
    firsts = np.cumsum(counts) - counts
    return np.repeat(starts - firsts, counts) + np.arange(counts.sum())


def _is_number_or_time(kind: pa.DataType) -> bool:
    """Return whether values of a type are numbers, dates or times."""
    return is_number(kind) or pat.is_temporal(kind)


def _measure_width(column: pa.Array) -> int:
    """Return the packed width in bytes."""
    kind = column.type
    if pat.is_boolean(kind):
        return 1
    if not is_text(kind):
        return int(kind.bit_width // 8)
    longest = int(pc.max(pc.binary_length(column)).as_py() or 0)
    return -(-max(longest, 1) // _STEP) * _STEP


def _fill_column(rows: Packed, at: int, column: pa.Array, width: int) -> int:
    """Write a packed column into `rows` from byte `at`; return its end."""
    is_null = None
    if column.null_count:
        is_null = get_stored_numbers(column.is_null().cast(pa.uint8()))
        rows[:, at] = is_null
    start, end = at + 1, at + 1 + width
    if is_text(column.type):
        padded, lengths = _pad_texts(column, width)
        rows[:, start:end], rows[:, end] = padded, lengths
        end += 1
    elif _is_number_or_time(column.type):
        numbers = to_ordered_bits(get_stored_numbers(column))
        rows[:, start:end] = numbers.astype(numbers.dtype.newbyteorder(">")).view(np.uint8).reshape(-1, width)
    elif pat.is_boolean(column.type):
        rows[:, start] = get_stored_numbers(column.cast(pa.uint8()).fill_null(0))
    else:
        rows[:, start:end] = _encode_fixed_bytes(column, width)
    if is_null is not None:
        rows[is_null.astype(np.bool_), start:end] = 0
    return end


def _pad_texts(column: pa.Array, width: int) -> tuple[Packed, Packed]:
    """Return texts padded with zero bytes to a width, and their lengths, capped."""
    lengths = get_stored_numbers(pc.binary_length(column).fill_null(0))
    if not len(column):
        return np.zeros((0, width), np.uint8), np.zeros(0, np.uint8)
    if lengths.max() > width:
        large = pat.is_large_string(column.type) or pat.is_large_binary(column.type)
        column = pc.binary_slice(column.cast(pa.large_binary() if large else pa.binary()), 0, width)
    large = pat.is_large_string(column.type) or pat.is_large_binary(column.type)
    kind = pa.large_string() if large else pa.string()
    # Arrow pads strings alone, and does not look at what is in them.
    buffers = column.buffers()
    text = pa.Array.from_buffers(kind, len(column), buffers, column.null_count, column.offset).fill_null("")
    padded = pc.ascii_rpad(text, width, "\0")
    assert padded.offset == 0
    stored = np.frombuffer(padded.buffers()[2], np.uint8, len(column) * width).reshape(-1, width)
    return stored, np.minimum(lengths, np.int32(width + 1)).astype(np.uint8)


def _encode_fixed_bytes(column: pa.Array, width: int) -> Packed:
    """Return the bytes of decimals, in the order of their values, or of binary of a fixed size."""
    rows = get_stored_numbers(column, "u1").reshape(-1, width)
    if pat.is_decimal(column.type):
        rows = rows[:, ::-1].copy()
        rows[:, 0] ^= np.uint8(0x80)
    return rows
