"""Keys of fixed width, which numpy compares in the order of rows, and finds by binary search without taking them apart.

A key of one integer or time is its number, and a float the unsigned integer of the same place in the order. All other
flat keys become bytes, column after column, most significant first:

    NULL flag   1 byte: 0 for a value, 1 for NULL, whose other bytes are 0
    numbers     big-endian, the sign bit turned over; negative floats turned over altogether
    strings     padded with zeros to the width of the layout, then 1 byte: their length, or width + 1 if they are longer

Bytes of one layout compare as the keys do. A string that is longer than the width is cut, so it sorts where it
belongs, beside others that are cut like it, and equals none that is not. Keys of at most 8 bytes are read as one
integer. Nested keys, and those of more than `WIDTH_MAX` bytes, have no layout.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from persist.codecs.types.arrow_types import is_flat, is_text

Packed: TypeAlias = npt.NDArray[Any]

WIDTH_MAX = 96  # More than that costs more memory than it saves time.
_STEP = 8  # Widths are multiples of it, so that the parts of a collection share few layouts.
_TEXT_MAX = 240


class Layout(NamedTuple):
    """How keys are packed; keys of different layouts cannot be compared.

    Attributes:
        is_number: whether a key is one number without NULL.
        widths: how many bytes the value of each column takes.
    """

    is_number: bool
    widths: tuple[int, ...]

    @property
    def row_bytes(self) -> int:
        """At most how many bytes a packed key takes."""
        return self.widths[0] if self.is_number else sum(self.widths) + 2 * len(self.widths)


def layout_of(columns: Sequence[pa.Array]) -> Layout | None:
    """Return the layout in which all keys of those columns are told apart, or None if there is none."""
    if not columns or not all(is_flat(column.type) for column in columns):
        return None
    if len(columns) == 1 and columns[0].null_count == 0 and _is_number(columns[0].type):
        return Layout(True, (columns[0].type.bit_width // 8,))
    layout = Layout(False, tuple(_width(column) for column in columns))
    return layout if layout.row_bytes <= WIDTH_MAX else None


def packed(columns: Sequence[pa.Array], layout: Layout) -> Packed:
    """Return the keys packed: ascending if they are sorted. Floats are canonical.

    Where the layout knows no NULL, keys that are NULL are left out: they are the last ones.
    """
    if layout.is_number:
        (column,) = columns
        return _numbers(column.slice(0, len(column) - column.null_count))
    rows = np.zeros((len(columns[0]), max(layout.row_bytes, 8)), np.uint8)
    at = 0
    for column, width in zip(columns, layout.widths, strict=True):
        at = _fill(rows, at, column, width)
    if at <= 8:
        short: Packed = np.ascontiguousarray(rows[:, :8]).view(">u8").ravel().astype(np.uint64)
        return short
    # numpy leaves trailing zeros out of account, which changes nothing between keys of one width.
    long: Packed = np.ascontiguousarray(rows[:, :at]).view(f"S{at}").ravel()
    return long


def _is_number(kind: pa.DataType) -> bool:
    return bool(pat.is_integer(kind) or pat.is_floating(kind) or pat.is_temporal(kind))


def _width(column: pa.Array) -> int:
    kind = column.type
    if pat.is_boolean(kind):
        return 1
    if not is_text(kind):
        return int(kind.bit_width // 8)
    longest = int(pc.max(pc.binary_length(column)).as_py() or 0)
    return -(-max(longest, 1) // _STEP) * _STEP if longest <= _TEXT_MAX else WIDTH_MAX + 1


def _fill(rows: Packed, at: int, column: pa.Array, width: int) -> int:
    """Write a column into the bytes of rows from at on; return where it ends."""
    is_null = None
    if column.null_count:
        is_null = _stored(column.is_null().cast(pa.uint8()))
        rows[:, at] = is_null
    start, end = at + 1, at + 1 + width
    if is_text(column.type):
        padded, lengths = _padded(column, width)
        rows[:, start:end], rows[:, end] = padded, lengths
        end += 1
    elif _is_number(column.type):
        numbers = _ordered_bits(_stored(column))
        rows[:, start:end] = numbers.astype(numbers.dtype.newbyteorder(">")).view(np.uint8).reshape(-1, width)
    elif pat.is_boolean(column.type):
        rows[:, start] = _stored(column.cast(pa.uint8()).fill_null(0))
    else:
        rows[:, start:end] = _fixed_bytes(column, width)
    if is_null is not None:
        rows[is_null.astype(np.bool_), start:end] = 0
    return end


def _padded(column: pa.Array, width: int) -> tuple[Packed, Packed]:
    lengths = _stored(pc.binary_length(column).fill_null(0))
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


def _fixed_bytes(column: pa.Array, width: int) -> Packed:
    """Return the bytes of decimals, in the order of their values, or of binary of a fixed size."""
    if not len(column):
        return np.zeros((0, width), np.uint8)
    stored = np.frombuffer(column.buffers()[1], np.uint8, len(column) * width, column.offset * width)
    rows = stored.reshape(-1, width)
    if pat.is_decimal(column.type):
        rows = rows[:, ::-1].copy()
        rows[:, 0] ^= np.uint8(0x80)
    return rows


def _stored(column: pa.Array) -> Packed:
    """Return numbers as they are stored; what is there for NULL may be anything."""
    kind = column.type
    width = kind.bit_width // 8
    letter = "f" if pat.is_floating(kind) else "u" if pat.is_unsigned_integer(kind) else "i"
    if not len(column):
        return np.zeros(0, f"{letter}{width}")
    return np.frombuffer(column.buffers()[1], f"{letter}{width}", len(column), column.offset * width)


def _numbers(column: pa.Array) -> Packed:
    values = _stored(column)
    return _ordered_bits(values) if values.dtype.kind == "f" else values


def _ordered_bits(values: Packed) -> Packed:
    """Return unsigned integers of the same width and order."""
    width = values.dtype.itemsize
    bits: npt.NDArray[np.unsignedinteger[Any]] = values.view(f"u{width}")
    top = bits.dtype.type(1 << (8 * width - 1))
    if values.dtype.kind == "u":
        return bits
    ordered: Packed = bits ^ top if values.dtype.kind == "i" else np.where(bits & top, ~bits, bits | top)
    return ordered
