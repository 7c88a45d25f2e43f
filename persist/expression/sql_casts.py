"""Casts as SQL (DuckDB's) means them: they round where digits are lost, and raise where a value does not fit.

Texts are read as values of other types in every way of writing them that DuckDB knows. What is written plainly is read
by Arrow, all at once. Other ways of writing (`1e2`, `2020-1-2`, an offset) are read one by one, each different text
once. They differ from DuckDB in this: names of time zones other than UTC, `infinity` and the time 24:00:00 are not
read, and a decimal with an exponent is rounded from all its digits.
"""

import re
from collections.abc import Callable
from datetime import date
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from persist.expression import sql_numbers as numbers

Array = Any

TEXT_PLACES_MAX = 6
CAST_TO_TEXT_AS = f"cast them to a decimal of at most {TEXT_PLACES_MAX} places first"


def ordered(value: Array) -> Array:
    """Return values that compare as SQL says: of floats, numbers in their order, with NaN last and equal to itself."""
    if pat.is_boolean(value.type):
        return pc.cast(value, pa.int8())
    if not pat.is_floating(value.type):
        return value
    values = numbers.floats(value) + 0.0
    bits = np.where(np.isnan(values), np.nan, values).view(np.int64)
    words: Any = bits ^ ((bits >> 63) & np.int64(2**63 - 1))
    return numbers.of_floats(words, value)


def cast(value: Array, kind: pa.DataType) -> Array:
    """Return values as another type.

    Raises:
        ValueError: one does not fit.
    """
    if value.type == kind:
        return value
    if value.null_count == len(value):
        return pa.nulls(len(value), kind)
    if pat.is_string(value.type):
        return of_text(value, kind)
    if pat.is_string(kind):
        return _to_text(value)
    if pat.is_decimal(kind):
        return _to_decimal(value, kind)
    if pat.is_boolean(kind):
        return pc.not_equal(
            value,
            pa.scalar(0, pa.int8()).cast(value.type)
            if not pat.is_decimal(value.type)
            else pa.scalar(Decimal(0), value.type),
        )
    if pat.is_floating(kind):
        return _to_float(value, kind)
    if pat.is_integer(kind):
        return _to_integer(value, kind)
    return _to_moment(value, kind)


def why_not_cast(given: pa.DataType, kind: pa.DataType) -> str | None:
    """Return why values of one type are not cast to another; None if they are."""
    if given == kind:
        return None
    if pat.is_interval(given) or pat.is_interval(kind):
        return "an interval is made of constants (INTERVAL 1 DAY) or of numbers (to_days(n))"
    if pat.is_string(given):
        return None
    if pat.is_string(kind):
        return None if _is_cast_to_text(given) else CAST_TO_TEXT_AS
    families = [_family(arrow_type) for arrow_type in (given, kind)]
    is_known = families[0] == families[1] != "other" or tuple(families) in _MOMENTS
    is_ns_to_s = pat.is_timestamp(given) and pat.is_timestamp(kind) and (given.unit, kind.unit) == ("ns", "s")
    if is_known and not is_ns_to_s and not (pat.is_time(kind) and getattr(given, "tz", None)):
        return None
    return "DuckDB has no such cast"


_MOMENTS = (("date", "timestamp"), ("timestamp", "date"), ("timestamp", "time"))


def _family(kind: pa.DataType) -> str:
    if pat.is_boolean(kind) or pat.is_integer(kind) or pat.is_floating(kind) or pat.is_decimal(kind):
        return "number"
    tests = (("date", pat.is_date), ("timestamp", pat.is_timestamp), ("time", pat.is_time))
    return next((name for name, test in tests if test(kind)), "other")


def _to_moment(value: Array, kind: pa.DataType) -> Array:
    if not pat.is_timestamp(kind):
        micros = _to_moment(value, pa.timestamp("us"))
        return pc.floor_temporal(micros, unit="day").cast(kind) if pat.is_date(kind) else pc.cast(micros, kind)
    if pat.is_timestamp(value.type) and value.type.tz != kind.tz:  # Both are in UTC.
        value = value.cast(pa.timestamp(value.type.unit, kind.tz))
    if not pat.is_timestamp(value.type) or _PER_SECOND[value.type.unit] <= _PER_SECOND[kind.unit]:
        return pc.cast(value, kind)
    size = _PER_SECOND[value.type.unit] // _PER_SECOND[kind.unit]
    counts = pc.cast(value, pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    mask = value.is_null().to_numpy(zero_copy_only=False) if value.null_count else None
    return pa.array(rounded(counts, size), mask=mask).cast(kind)


def _to_decimal(value: Array, kind: pa.DataType) -> Array:
    if pat.is_decimal(value.type):
        return numbers.as_decimal(value, kind)
    if pat.is_boolean(value.type):
        value = pc.cast(value, pa.int8())
    if pat.is_integer(value.type):
        return numbers.as_decimal(pc.cast(value, pa.decimal128(20, 0)), kind)
    with np.errstate(over="ignore"):
        scaled = numbers.round_half_away(numbers.floats(value) * 10.0**kind.scale)
    mask = value.is_null().to_numpy(zero_copy_only=False) if value.null_count else None
    if not (np.abs(scaled if mask is None else scaled[~mask]) < 10.0**kind.precision).all():
        raise ValueError(f"a number does not fit {kind}")
    if kind.precision <= 15:
        return numbers.of_unscaled(scaled.astype(np.int64), kind, mask)
    whole = pa.array(scaled, mask=mask).cast(pa.decimal128(38, 0))
    return pa.Array.from_buffers(kind, len(whole), whole.buffers(), offset=whole.offset)


def _to_float(value: Array, kind: pa.DataType) -> Array:
    floats = numbers.to_double(value) if not pat.is_floating(value.type) else value
    if not pat.is_float32(kind):
        return pc.cast(floats, kind)
    if pat.is_integer(value.type):
        return pc.cast(value, kind, safe=False)
    narrow = pc.cast(floats, kind)
    if pc.any(pc.and_(pc.is_inf(narrow), pc.is_finite(floats))).as_py():
        raise ValueError("a number does not fit a float of 32 bits")
    return narrow


def _to_integer(value: Array, kind: pa.DataType) -> Array:
    if pat.is_decimal(value.type):
        return pc.cast(numbers.as_decimal(value, pa.decimal128(38, 0)), kind)
    if pat.is_floating(value.type):
        return pc.cast(pc.round(value, round_mode="half_to_even"), kind)
    return pc.cast(value, kind)


def _is_cast_to_text(kind: pa.DataType) -> bool:
    """Return whether Arrow writes values of a type as DuckDB does."""
    return not pat.is_floating(kind) and not (pat.is_decimal(kind) and kind.scale > TEXT_PLACES_MAX)


def _to_text(value: Array) -> Array:
    kind = value.type
    if not _is_cast_to_text(kind):
        raise ValueError(f"values of {kind} are not cast to text in a view: {CAST_TO_TEXT_AS}")
    if pat.is_binary(kind):
        return text_of_blob(value)
    if pat.is_timestamp(kind):
        text = pc.strftime(value.cast(pa.timestamp(kind.unit)), format="%Y-%m-%d %H:%M:%S")
        text = _without_zeros(text)
        return pc.binary_join_element_wise(text, "+00", "") if kind.tz else text
    if pat.is_time(kind):
        return _without_zeros(pc.cast(value, pa.string()))
    return pc.cast(value, pa.string())


def _without_zeros(text: Array) -> Array:
    return pc.replace_substring_regex(pc.replace_substring_regex(text, r"(\.\d*?)0+$", r"\1"), r"\.$", "")


def try_cast(value: Array, kind: pa.DataType) -> Array:
    """Return values as another type, and NULL for what does not fit."""
    if pat.is_string(value.type) and value.type != kind:
        return of_text(value, kind, tries=True)
    try:
        return cast(value, kind)
    except (pa.ArrowException, ValueError):
        if len(value) == 1:
            return pa.nulls(1, kind)
    half = len(value) // 2
    return pa.concat_arrays([try_cast(value[:half], kind), try_cast(value[half:], kind)])


_PER_SECOND = {"s": 1, "ms": 1000, "us": 1_000_000, "ns": 1_000_000_000}


_SPACE = " \t\n\v\f\r"
_CONTEXT = Context(prec=100)
_NUMBER = re.compile(r"[+-]?(\d+(_\d+)*\.?|(\d+(_\d+)*)?\.\d+(_\d+)*)([eE][+-]?\d+(_\d+)*)?", re.ASCII)
_BITS = re.compile(r"0[xX][0-9a-fA-F]+(_[0-9a-fA-F]+)*|0[bB][01]+(_[01]+)*", re.ASCII)
_DATE = re.compile(r"\s*(-?\d{1,6})([-/\\ ])(\d{1,2})\2(\d{1,2})( \(BC\))?", re.ASCII)
_TIME = re.compile(r"(\d{1,2}):(?:(\d{1,2})(?::(?:(\d{1,2})(?:\.(\d*))?)?)?)?", re.ASCII)
_TIME_FULL = re.compile(r"(\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:\.(\d*))?)?", re.ASCII)
_OFFSET = re.compile(r"(?:(Z| *UTC)|([+-])(\d\d)(?::?(\d\d)(?::?(\d\d))?)?)?\s*", re.ASCII | re.IGNORECASE)
_REST = re.compile(r"(?:\s.*|Z\s*|[+-]\d\d(?::?\d\d(?::?\d\d)?)?\s*)?", re.ASCII | re.DOTALL)
_ESCAPED = re.compile(rb"\\x([0-9a-fA-F]{2})")
_TRUE, _FALSE = ("true", "t", "1", "yes", "y"), ("false", "f", "0", "no", "n")


def of_text(text: Array, kind: pa.DataType, *, tries: bool = False) -> Array:
    """Return texts as values of another type.

    Args:
        tries: return NULL for a text that is none.

    Raises:
        ValueError: a text is none.
    """
    plain, read = _reader(kind)
    if pat.is_integer(kind) or pat.is_decimal(kind) or pat.is_floating(kind):
        text = pc.utf8_trim(text, characters=_SPACE)
    is_plain = pc.fill_null(pc.match_substring_regex(text, plain), True)
    converted = pa.nulls(len(text), kind)
    if pc.any(pc.and_(is_plain, pc.is_valid(text))).as_py():
        try:
            converted = pc.cast(pc.if_else(is_plain, text, pa.scalar(None, pa.string())), kind)
        except pa.ArrowInvalid:  # One is out of range, so all are read one by one.
            is_plain = pc.is_null(text)
    is_odd = pc.invert(is_plain)
    codes = text.filter(is_odd).dictionary_encode()
    if not len(codes):
        return converted
    values = [_read(distinct_text, read, kind, tries=tries) for distinct_text in codes.dictionary.to_pylist()]
    return pc.replace_with_mask(converted, is_odd, pa.array(values, _storage(kind)).cast(kind).take(codes.indices))


def _read(text: str, read: Callable[[str], Any], kind: pa.DataType, *, tries: bool) -> Any:
    try:
        return read(text)
    except (ValueError, ArithmeticError) as error:
        if tries:
            return None
        why = str(error) if isinstance(error, ValueError) and str(error) else "it is not written as one"
        raise ValueError(f"{text[:100]!r} is no {kind}: {why}") from error


def _storage(kind: pa.DataType) -> pa.DataType:
    """Return the type that values which were read one by one have at first: moments are whole numbers."""
    if pat.is_date32(kind):
        return pa.int32()
    return pa.int64() if pat.is_timestamp(kind) or pat.is_time(kind) else kind


def _reader(kind: pa.DataType) -> tuple[str, Callable[[str], Any]]:
    """Return a pattern of what Arrow reads as DuckDB does, and a function that reads one text of any."""
    if pat.is_boolean(kind):
        return "^(true|false)$", _boolean
    if pat.is_integer(kind):
        return ("^[0-9]+$" if pat.is_unsigned_integer(kind) else "^-?[0-9]+$"), lambda text: _whole(text, kind)
    if pat.is_decimal(kind):
        fraction = f"([.][0-9]{{1,{kind.scale}}})?" if kind.scale else ""
        return f"^-?[0-9]+{fraction}$", lambda text: _decimal(text, kind)
    if pat.is_floating(kind):
        return "^[^_]*$", _float
    if pat.is_binary(kind):
        return r"^[\x00-\x5b\x5d-\x7f]*$", _blob
    if pat.is_date(kind):
        return "^[0-9]{4}-[0-9]{2}-[0-9]{2}$", _date
    if pat.is_time(kind):
        return "x^", _time  # Arrow reads none.
    if pat.is_timestamp(kind):
        digits = {"s": "", "ms": "([.][0-9]{1,3})?", "us": "([.][0-9]{1,6})?", "ns": "([.][0-9]{1,9})?"}[kind.unit]
        plain = rf"^[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}[ T][0-9]{{2}}:[0-9]{{2}}:[0-9]{{2}}{digits}"
        return plain + ("Z$" if kind.tz else "$"), lambda text: _timestamp(text, kind)
    raise TypeError(f"texts are not cast to {kind} in a view")


def _boolean(text: str) -> bool:
    if text.lower() not in _TRUE + _FALSE:
        raise ValueError(f"write one of {', '.join(_TRUE + _FALSE)}")
    return text.lower() in _TRUE


def _exact(text: str) -> Decimal:
    if not _NUMBER.fullmatch(text):
        raise ValueError("it is no number")
    return _CONTEXT.create_decimal(text.replace("_", ""))


def _whole(text: str, kind: pa.DataType) -> int:
    if _BITS.fullmatch(text):
        number = int(text.replace("_", ""), 0)
    else:
        exact = _exact(text)
        if exact and exact.adjusted() > 40:
            raise ValueError("it does not fit")
        number = int(exact.to_integral_value(ROUND_HALF_UP, _CONTEXT))
    is_unsigned = pat.is_unsigned_integer(kind)
    low, high = (
        (0, 2**kind.bit_width - 1) if is_unsigned else (-(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1)
    )
    if not low <= number <= high:
        raise ValueError(f"it is not between {low} and {high}")
    return number


def _decimal(text: str, kind: pa.DataType) -> Decimal:
    if kind.scale == 0 and kind.precision == 38 and _BITS.fullmatch(text):
        return Decimal(int(text.replace("_", ""), 0))
    exact = _exact(text)
    if exact and exact.adjusted() >= kind.precision - kind.scale:
        raise ValueError(f"it has more than {kind.precision - kind.scale} digits before the point")
    quantized = exact.quantize(Decimal(1).scaleb(-kind.scale), ROUND_HALF_UP, _CONTEXT)
    if quantized and quantized.adjusted() >= kind.precision - kind.scale:
        raise ValueError(f"it has more than {kind.precision - kind.scale} digits before the point")
    return quantized


def _float(text: str) -> float:
    if _NUMBER.fullmatch(text):
        return float(text.replace("_", ""))
    value: float = pc.cast(pa.scalar(text), pa.float64()).as_py()
    return value


def _blob(text: str) -> bytes:
    if not text.isascii():
        raise ValueError("bytes beyond ASCII are written as \\xFF")
    decoded = _ESCAPED.sub(lambda match: bytes([int(match[1], 16)]), text.encode())
    if b"\\" in _ESCAPED.sub(b"", text.encode()):
        raise ValueError("a backslash is followed by x and two hexadecimal digits")
    return decoded


def _date_at(text: str) -> tuple[int, int]:
    """Return the days since 1970 of the date that a text begins with, and where it ends."""
    if text.strip(_SPACE).lower() == "epoch":
        return 0, len(text)
    match = _DATE.match(text)
    if match is None:
        raise ValueError("a date is written as 2020-12-31")
    year, month, day = int(match[1]), int(match[3]), int(match[4])
    year = 1 - year if match[5] else year
    # The calendar has the same days every 400 years.
    cycles, within = divmod(year - 1, 400)
    return date(within + 1, month, day).toordinal() - date(1970, 1, 1).toordinal() + cycles * 146_097, match.end()


def _date(text: str) -> int:
    days, end = _date_at(text)
    if text[end:].strip(_SPACE):
        _nanos_at(text, end)
    return days


def _nanos_at(text: str, at: int, zone: re.Pattern[str] = _REST) -> tuple[int, re.Match[str]]:
    """Return the time of day, in nanoseconds, that stands behind a date, and what is behind it."""
    begun = re.compile(r"[ T]\s*").match(text, at)
    match = _TIME_FULL.match(text, begun.end()) if begun else None
    if match is None:
        raise ValueError("behind a date stands a time of day, as in 2020-12-31 23:59:59")
    rest = zone.fullmatch(text, match.end())
    if rest is None:
        raise ValueError("behind a time of day stands an offset, such as +02 or Z")
    return _nanos(match), rest


def _nanos(match: re.Match[str]) -> int:
    hour, minute, second = (int(match[at] or 0) for at in (1, 2, 3))
    fraction = int(((match[4] or "") + "0" * 9)[:9])
    is_end = hour == 24 and not (minute or second or fraction)
    if not is_end and (hour > 23 or minute > 59 or second > 59):
        raise ValueError("there is no such time of day")
    return ((hour * 60 + minute) * 60 + second) * 1_000_000_000 + fraction


def _time(text: str) -> int:
    match = _TIME.match(text.lstrip(_SPACE))
    if match is None or _REST.fullmatch(text.lstrip(_SPACE), match.end()) is None:
        _, end = _date_at(text)
        if end == len(text):
            return 0
        return _nanos_at(text, end)[0] // 1000 % 86_400_000_000
    if int(match[1]) == 24:
        raise ValueError("the end of a day is no time of day here: the last is 23:59:59.999999")
    return _nanos(match) // 1000


def _timestamp(text: str, kind: pa.DataType) -> int:
    days, end = _date_at(text)
    nanos = days * 86_400_000_000_000
    if end < len(text):
        of_day, zone = _nanos_at(text, end, _OFFSET if kind.tz else _REST)
        nanos += of_day
        if kind.tz and zone[2]:
            offset = int(zone[3]) * 3600 + int(zone[4] or 0) * 60 + int(zone[5] or 0)
            nanos -= (1 if zone[2] == "+" else -1) * offset * 1_000_000_000
    size = 1_000_000 // _PER_SECOND[kind.unit]
    ticks = nanos if kind.unit == "ns" else int(rounded(nanos // 1000, size))
    if abs(ticks) > np.iinfo(np.int64).max:
        raise ValueError("it is beyond what a timestamp can be")
    return ticks


def rounded(count: Any, size: int) -> Any:
    """Return whole numbers over another, rounded half away from zero."""
    return (abs(count) + size // 2) // size * np.sign(count)


def text_of_blob(value: Array) -> Array:
    """Return bytes as texts: those that are no printable letters of ASCII, quotes and backslashes as \\xFF."""
    try:
        text = pc.cast(value, pa.string())
        if not pc.any(pc.match_substring_regex(text, r"[^\x20\x21\x23-\x26\x28-\x5b\x5d-\x7e]")).as_py():
            return text
    except pa.ArrowInvalid:  # It is not UTF-8.
        pass
    codes = value.dictionary_encode()
    made = [None if content is None else "".join(map(_shown, content)) for content in codes.dictionary.to_pylist()]
    return pa.array(made, pa.string()).take(codes.indices)


def _shown(byte: int) -> str:
    return chr(byte) if 32 <= byte < 127 and byte not in b"\"'\\" else f"\\x{byte:02X}"
