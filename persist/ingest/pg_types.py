"""Types of Postgres as Arrow's, and its texts as values. What has no counterpart stays text.

The texts are those of a session with `SESSION`: moments in UTC, dates as ISO writes them, bytes as hex, and floats with
all their digits.
"""

import pyarrow as pa
import pyarrow.compute as pc

from persist.errors import InvalidUsage

SESSION = "-c timezone=UTC -c datestyle=ISO -c bytea_output=hex -c extra_float_digits=1 -c intervalstyle=iso_8601"
NUMERIC, TIMESTAMPTZ, BYTEA, BOOL = 1700, 1184, 17, 16
_TYPES = {
    BOOL: pa.bool_(), BYTEA: pa.binary(), 20: pa.int64(), 21: pa.int16(), 23: pa.int32(), 26: pa.int64(),
    700: pa.float32(), 701: pa.float64(), 1082: pa.date32(), 1083: pa.time64("us"), 1114: pa.timestamp("us"),
    TIMESTAMPTZ: pa.timestamp("us", "UTC"),
}  # fmt: skip
_TEXTS = {18, 19, 25, 114, 1042, 1043, 2950, 3802}  # char, name, text, json, bpchar, varchar, uuid, jsonb
_DIGITS_MAX = 38


def arrow_type_of(type_: int, modifier: int) -> pa.DataType:
    """Return the Arrow type of a column, given the number of its base type and its modifier."""
    if type_ == NUMERIC and modifier >= 4:
        precision, scale = (modifier - 4) >> 16 & 0xFFFF, (modifier - 4) & 0x7FF
        if precision <= _DIGITS_MAX and 0 <= scale <= precision:
            return pa.decimal128(precision, scale)
    return _TYPES.get(type_, pa.string())


def has_counterpart(type_: int, modifier: int) -> bool:
    """Return whether a type is not only kept as text."""
    return type_ in _TEXTS or arrow_type_of(type_, modifier) != pa.string()


def typed(texts: pa.Array, kind: pa.DataType, where: str) -> pa.Array:
    """Return texts of Postgres as values of the type that their column has.

    Raises:
        InvalidUsage: a value is none of that type, such as a moment "infinity".
    """
    try:
        if pa.types.is_string(kind):
            return texts
        if pa.types.is_boolean(kind):
            return pc.equal(texts, "t")
        if pa.types.is_binary(kind):
            return _bytes(texts)
        if pa.types.is_timestamp(kind) and kind.tz is not None:
            texts = pc.replace_substring_regex(texts, r"[+]00(:00)?$", "Z")
        if pa.types.is_time(kind):
            day = pa.scalar("1970-01-01", pa.string())
            return pc.binary_join_element_wise(day, texts, " ").cast(pa.timestamp("us")).cast(kind)
        return texts.cast(kind)
    except (pa.ArrowException, ValueError) as error:
        raise InvalidUsage(
            f"a value of {where} is no {kind}: {' '.join(str(error).split())}. Take the column as text, by as_text = "
            f'["{where}"], or leave it out, by exclude = ["{where}"]; drop a collection that is there first'
        ) from None


def _bytes(texts: pa.Array) -> pa.Array:
    return pa.array([None if text is None else bytes.fromhex(text[2:]) for text in texts.to_pylist()], pa.binary())
