"""Parses text into values of a type: exactly, or with an error.

bool                    true and false in any case, 1 and 0
integers, decimals      digits that the type holds without rounding
floats                  the nearest float of a fraction; a whole number must be exact; neither infinity nor zero
                        stands for another number
date, time, timestamp   ISO 8601, no finer than the type except for zeros; with an offset only if the type has a zone;
                        without an offset it is in UTC then
duration                a whole number of the type's unit; or ISO 8601 with days to seconds, no finer than the type
string                  itself, if it is UTF-8
"""

import re
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from persist.codecs.types.arrow_types import is_bytes, is_flat

_DURATION = re.compile(
    r"(?P<sign>-?)P(?:(?P<days>\d+)D)?"
    r"(?:T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+)(?:\.(?P<fraction>\d{1,9}))?S)?)?",
    re.ASCII,
)
_ZEROS = r"(:\d\d)(?:(\.\d*[1-9])|\.)0+((?:Z|z|[+-]\d\d:?(?:\d\d)?)?)$"  # Of a fraction, before an offset.
_EXACT_BITS = {16: 11, 32: 24, 64: 53}


def parse_column(texts: pa.ChunkedArray, target: pa.DataType) -> pa.ChunkedArray:
    """Return text, as string or as UTF-8 bytes, in type `target`.

    Raises:
        ArrowInvalid: a text is not a value of the type, or would change in it.
        ArrowNotImplementedError: the type is not read from text, such as bytes and nested types.
    """
    texts = texts.cast(pa.string())
    if pat.is_string(target) or pat.is_large_string(target):
        return texts.cast(target)
    if not is_flat(target) or is_bytes(target):
        raise pa.ArrowNotImplementedError(f"{target} is not read from text")
    texts = pc.utf8_trim_whitespace(texts)
    try:
        return _choose_parser(target)(texts, target)
    except pa.ArrowInvalid:
        if not pat.is_time(target) and not pat.is_timestamp(target):
            raise
        return _choose_parser(target)(pc.replace_substring_regex(texts, _ZEROS, r"\1\2\3"), target)


def _choose_parser(target: pa.DataType) -> Callable[[pa.ChunkedArray, pa.DataType], pa.ChunkedArray]:
    """Return the function that parses texts to a type."""
    if pat.is_floating(target):
        return _parse_floats
    if pat.is_integer(target):
        return _parse_integers
    if pat.is_time(target):
        return _parse_times
    if pat.is_timestamp(target) and target.tz is not None:
        return _parse_instants
    if pat.is_duration(target):
        return _parse_durations
    if pat.is_date64(target):
        return lambda texts, kind: texts.cast(pa.date32()).cast(kind)
    return lambda texts, kind: texts.cast(kind)


def is_exact_float(text: str, bits: int = 64) -> bool:
    """Return whether a text, as a float, keeps its integer part."""
    number = text.lstrip("+-").lower()
    with np.errstate(over="ignore"):
        rounded = float(np.array(float(text)).astype(f"f{bits // 8}"))
    if abs(rounded) == float("inf"):
        return number in ("inf", "infinity")
    whole, _, fraction = number.partition(".")
    is_large = abs(rounded) >= 2.0 ** _EXACT_BITS[bits]
    if whole.isdigit() and (not fraction or (is_large and fraction.isdigit())):
        return abs(int(rounded)) == int(whole)
    return rounded != 0 or not any(digit in "123456789" for digit in number.partition("e")[0])


def _parse_floats(texts: pa.ChunkedArray, target: pa.DataType) -> pa.ChunkedArray:
    """Return texts as floats; raises an Arrow error if a value would change."""
    bits = target.bit_width
    if bits == 16:
        wide = texts.cast(pa.float64())
        with np.errstate(over="ignore"):
            halves = pa.array(wide.to_numpy().astype(np.float16), mask=wide.is_null().to_numpy())
        floats = pa.chunked_array([halves], target)
    else:
        floats = wide = texts.cast(target)
    # Only these may have become another number.
    doubtful = pc.or_(pc.greater_equal(pc.abs(wide), 2.0 ** _EXACT_BITS[bits]), pc.equal(wide, 0.0))
    if bits == 16:
        doubtful = pc.or_(doubtful, pc.less(pc.abs(wide), 1e-4))
    for text in texts.filter(doubtful).unique().to_pylist():
        if not is_exact_float(text, bits):
            raise pa.ArrowInvalid(f"{text} would be rounded to another number as {target}")
    return floats


def _parse_integers(texts: pa.ChunkedArray, target: pa.DataType) -> pa.ChunkedArray:
    """Parse texts to integers; hexadecimal is refused."""
    # Arrow reads 0x as bits, so 0xFF would be -1 as int8.
    odd = texts.filter(pc.match_substring(texts, "x", ignore_case=True))
    if len(odd):
        raise pa.ArrowInvalid(f"Failed to parse string: '{odd[0]}' as a scalar of type {target}")
    return texts.cast(target)


def _parse_times(texts: pa.ChunkedArray, target: pa.DataType) -> pa.ChunkedArray:
    """Parse texts to times of day."""
    day = pa.scalar("1970-01-01")
    return pc.binary_join_element_wise(day, texts, "T").cast(pa.timestamp(target.unit)).cast(target)


def _parse_durations(texts: pa.ChunkedArray, target: pa.DataType) -> pa.ChunkedArray:
    """Parse texts to durations: ISO 8601, or numbers of the type's unit."""
    if not pc.any(pc.match_substring(texts, "P")).as_py():
        return _parse_integers(texts, pa.int64()).cast(target)
    units = [None if text is None else _count_units(text, target) for text in texts.to_pylist()]
    try:
        return pa.chunked_array([pa.array(units, pa.int64())]).cast(target)
    except OverflowError as error:
        raise pa.ArrowInvalid(f"a duration is out of the range of {target}") from error


def _count_units(text: str, target: pa.DataType) -> int:
    """Return a duration's text as a number of the type's units."""
    parts = _DURATION.fullmatch(text)
    if parts is None or text[-1] in "PT":
        return int(_parse_integers(pa.chunked_array([[text]]), pa.int64())[0].as_py())
    days, hours, minutes, seconds = (int(parts[name] or 0) for name in ("days", "hours", "minutes", "seconds"))
    nanoseconds = (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 10**9
    nanoseconds += int((parts["fraction"] or "").ljust(9, "0"))
    count, finer = divmod(nanoseconds, {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}[target.unit])
    if finer:
        raise pa.ArrowInvalid(f"{text} would be rounded as {target}")
    return -count if parts["sign"] else count


def _parse_instants(texts: pa.ChunkedArray, target: pa.DataType) -> pa.ChunkedArray:
    """Parse texts to moments; without an offset, in UTC."""
    try:
        return texts.cast(target)
    except pa.ArrowInvalid:
        has_offset = pc.match_substring_regex(texts, r"(Z|z|[+-]\d\d:?(\d\d)?)$")
        is_day = pc.match_substring_regex(texts, r"^\d{4}-\d\d(-\d\d)?$")
        is_local = pc.or_(pc.invert(has_offset), is_day)
        local = pc.if_else(is_local, texts, pa.scalar(None, pa.string())).cast(pa.timestamp(target.unit))
        instants = pc.if_else(is_local, pa.scalar(None, pa.string()), texts).cast(target)
        return pc.coalesce(instants, pc.assume_timezone(local, "UTC").cast(target))
