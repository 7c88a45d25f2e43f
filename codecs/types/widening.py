"""Wider types, which have every value of another type, and conversions to them.

Integers become wider integers, floats and decimals; floats, decimals, strings and binary become wider ones of their
kind; times get finer units. A document of JSON is a string.
"""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from persist.codecs.types.arrow_types import JSON
from persist.codecs.types.schema import TIME_UNITS

_FLOAT_BITS = {16: 11, 32: 24, 64: 53}  # How wide an integer may be that a float of so many bits holds exactly.


def widen_column(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Return a column in another type; raises pa.ArrowInvalid if a value would change."""
    if pt.is_floating(column.type) and pt.is_floating(kind) and kind.bit_width < column.type.bit_width:
        narrow = column.cast(kind, safe=False)
        same = pc.or_kleene(pc.equal(narrow.cast(column.type), column), pc.is_nan(column))
        if not pc.all(same, skip_nulls=True, min_count=0).as_py():
            raise pa.ArrowInvalid("a float would be rounded")
        return narrow
    if pt.is_float16(column.type) and not pt.is_float32(kind):
        return column.cast(pa.float32()).cast(kind)
    return column.cast(kind)


def is_wider(narrow: pa.DataType, wide: pa.DataType) -> bool:
    """Return whether a type has every value of another type, so that a column can be widened.

    Times in finer units must lie within some centuries of 1970: `may_overflow`.
    """
    if JSON in (narrow, wide):
        return narrow == JSON and bool(pt.is_string(wide))
    if pt.is_integer(narrow) and pt.is_integer(wide):
        is_signed = pt.is_signed_integer(wide)
        if pt.is_signed_integer(narrow) and not is_signed:
            return False
        same = pt.is_signed_integer(narrow) == is_signed
        return bool(wide.bit_width > narrow.bit_width or (same and wide.bit_width == narrow.bit_width))
    if pt.is_integer(narrow) and pt.is_floating(wide):
        return bool(narrow.bit_width - pt.is_signed_integer(narrow) <= _FLOAT_BITS[wide.bit_width])
    if pt.is_floating(narrow) and pt.is_floating(wide):
        return bool(wide.bit_width >= narrow.bit_width)
    if pt.is_decimal(narrow) and pt.is_decimal(wide):
        digits = wide.precision - wide.scale >= narrow.precision - narrow.scale
        return bool(digits and wide.scale >= narrow.scale and wide.bit_width >= narrow.bit_width)
    if pt.is_integer(narrow) and pt.is_decimal(wide):
        return bool(wide.precision - wide.scale >= len(str(2 ** (narrow.bit_width - pt.is_signed_integer(narrow)))))
    if (pt.is_string(narrow) and pt.is_large_string(wide)) or (pt.is_binary(narrow) and pt.is_large_binary(wide)):
        return True
    return may_overflow(narrow, wide) or (pt.is_time(narrow) and pt.is_time(wide) and _is_finer(narrow, wide))


def may_overflow(narrow: pa.DataType, wide: pa.DataType) -> bool:
    """Return whether widening may overflow, because the unit becomes finer."""
    if pt.is_timestamp(narrow) and pt.is_timestamp(wide):
        return narrow.tz == wide.tz and _is_finer(narrow, wide)
    return bool(pt.is_duration(narrow) and pt.is_duration(wide) and _is_finer(narrow, wide))


def _is_finer(narrow: Any, wide: Any) -> bool:
    """Return whether the wide type has a finer unit of time."""
    return TIME_UNITS.index(wide.unit) > TIME_UNITS.index(narrow.unit)


def is_written_alike(narrow: pa.DataType, wide: pa.DataType) -> bool:
    """Return whether values have the same JSON form in both types."""
    if narrow == wide or (pt.is_integer(narrow) and pt.is_integer(wide)):
        return True
    return not (pt.is_integer(narrow) or pt.is_floating(narrow) or pt.is_decimal(narrow) or pt.is_temporal(narrow))
