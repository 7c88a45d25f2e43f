"""Parameters of statements as constants of SQL, from the texts and the binary values that drivers send.

Source: PostgreSQL 15's `src/backend/utils/adt`, the functions `*_recv` and `*_in`.
"""

import binascii
import re
import struct
from datetime import timedelta
from decimal import Decimal, localcontext

from persist.compute.query import quote_text
from persist.services.serve.postgres.values import (
    ARRAYS,
    BOOL,
    BYTEA,
    DATE,
    DAYS_MAX,
    EPOCH_S,
    FLOAT4,
    FLOAT8,
    INT2,
    INT4,
    INT8,
    INTERVAL,
    JSON,
    NUMERIC,
    TEXT,
    TIME,
    TIMESTAMPTZ,
    TYPES,
    US_MAX,
    UUID,
)
from persist.services.serve.postgres.wire import Failure

_TEXTS = (0, 18, 19, 25, 705, 1042, 1043, 3802)
_PACKED = {INT2: "!h", INT4: "!i", INT8: "!q", FLOAT4: "!f", FLOAT8: "!d", 26: "!I"}


def format_literal(value: bytes | None, oid: int, form: int) -> str:
    """Return a parameter as SQL.

    A parameter without a type is a text in quotes, which DuckDB converts to the type of what it is compared with, as
    Postgres does.

    Args:
        form: 0 for text, 1 for binary.
    """
    item = ARRAYS.get(oid)
    kind = f"{TYPES[item][1]}[]" if item is not None else TYPES[oid][1] if oid in TYPES else "bigint" * (oid == 26)
    if value is None:
        return f"CAST(NULL AS {kind})" if kind and oid not in _TEXTS else "NULL"
    if not kind and oid not in _TEXTS:
        raise Failure("0A000", f"parameters of the type with oid {oid} are not read: send it as text, and cast it")
    try:
        if item is not None:
            items = _decode_array(value, item) if form else _parse_array(value.decode())
            constants = ", ".join(_format_literal(part, item, form) for part in items)
            return f"[{constants}]" if item == NUMERIC and items else f"CAST([{constants}] AS {kind})"
        return _format_literal(value, oid, form)
    except (ValueError, struct.error, IndexError, OverflowError) as bad:
        raise Failure("22P03", f"a parameter is not of its type {TYPES.get(oid, (str(oid),))[0]}: {bad}") from bad


def _format_literal(value: bytes | None, oid: int, form: int) -> str:
    """Return a parameter as SQL, by its type and format."""
    if value is None:
        return "NULL"
    kind = TYPES[oid][1] if oid in TYPES else "bigint"
    if oid in _TEXTS or not form:
        if oid == 3802 and form:  # Binary values of jsonb begin with a version.
            value = value[1:]
        value_text = value.decode()
        if "\0" in value_text:
            raise ValueError("text cannot have a zero byte")
        if oid == BYTEA:
            if not value_text.startswith("\\x"):
                raise ValueError("bytes are written as \\x and their hexadecimal digits")
            return _parse_blob(binascii.unhexlify(value_text[2:]))
        if oid == NUMERIC:
            return make_exact_numeric(value_text)
        return quote_text(value_text) if oid in _TEXTS else f"CAST({quote_text(value_text)} AS {kind})"
    if oid in _PACKED:
        (number,) = struct.unpack(_PACKED[oid], value)
        return f"CAST({quote_text(repr(number))} AS {kind})"
    if oid == BOOL:
        return "true" if value != b"\0" else "false"
    if oid == BYTEA:
        return _parse_blob(value)
    if oid == JSON:
        return f"CAST({quote_text(value.decode())} AS JSON)"
    if oid == UUID:
        if len(value) != 16:
            raise ValueError(f"a uuid has 16 bytes, and this has {len(value)}")
        return f"CAST({quote_text(value.hex())} AS UUID)"
    if oid == NUMERIC:
        return _format_numeric(value)
    return _format_moment(value, oid, kind)


def make_exact_numeric(constant: str) -> str:
    """Return a constant as a number with all its digits, which DuckDB takes for a DECIMAL."""
    text = constant[1:-1] if constant.startswith("'") else constant
    if text == "NULL" or text.startswith("CAST("):
        return constant
    try:
        number = Decimal(text)
    except ArithmeticError as error:
        raise Failure("22P02", f'"{text[:100]}" is not a number') from error
    if not number.is_finite() or len(number.as_tuple().digits) > 38 or abs(number.adjusted()) > 38:
        raise Failure("22003", f'"{text[:100]}" has more digits than a numeric here: 38 at most')
    digits = f"{number:f}"
    if len(digits.strip("-").replace(".", "").lstrip("0")) > 38 or len(digits.partition(".")[2]) > 38:
        raise Failure("22003", f'"{text[:100]}" has more digits than a numeric here: 38 at most')
    return digits


def _parse_blob(value: bytes) -> str:
    """Return bytes as a constant of SQL."""
    return f"from_hex('{value.hex()}')"


def _format_moment(value: bytes, oid: int, kind: str) -> str:
    """Return a binary date or timestamp as SQL."""
    if oid == INTERVAL:
        us, days, months = struct.unpack("!qii", value)
        return f"(to_months({months}) + to_days({days}) + to_microseconds({us}))"
    (number,) = struct.unpack("!i" if oid == DATE else "!q", value)
    end = DAYS_MAX if oid == DATE else US_MAX
    if oid != TIME and (number == end or number == -end - 1):
        return f"CAST('{'-' * (number < 0)}infinity' AS {kind})"
    if oid == DATE:
        return f"(DATE '2000-01-01' + CAST({number} AS INTEGER))"
    if oid == TIME:
        if not 0 <= number <= 86_400_000_000:
            raise ValueError(f"{number} microseconds are longer than a day, or negative")
        return f"CAST('{timedelta(microseconds=number)}' AS TIME)"
    moment = f"make_timestamp(CAST({number + EPOCH_S * 1_000_000} AS BIGINT))"
    return f"({moment} AT TIME ZONE 'UTC')" if oid == TIMESTAMPTZ else moment


def _format_numeric(value: bytes) -> str:
    """Return a binary numeric as SQL."""
    count, weight, sign, scale = struct.unpack("!hhHH", value[:8])
    if sign == 0xC000:
        raise ValueError("NaN is not a number of a fixed scale")
    if sign not in (0, 0x4000) or len(value) != 8 + 2 * count or scale > 16383:
        raise ValueError("its bytes are not a binary numeric")
    groups = struct.unpack(f"!{count}H", value[8:])
    with localcontext() as exact:
        exact.prec = 20_000
        number = sum(Decimal(group).scaleb(4 * (weight - at)) for at, group in enumerate(groups))
        digits = f"{Decimal(number):.{scale}f}"
    return make_exact_numeric(f"{'-' * (sign == 0x4000)}{digits}")


def _decode_array(value: bytes, item: int) -> list[bytes | None]:
    """Return the items of a binary array."""
    dimensions, _, oid = struct.unpack("!iiI", value[:12])
    if dimensions == 0:
        return []
    if dimensions != 1:
        raise ValueError("lists of lists are not read")
    if oid != item and (item != TEXT or oid not in _TEXTS):
        raise ValueError(f"its items have the type with oid {oid}, not {item}")
    (count,) = struct.unpack("!i", value[12:16])
    at, items = 20, list[bytes | None]()
    for _ in range(count):
        (length,) = struct.unpack("!i", value[at : at + 4])
        at += 4
        items.append(None if length == -1 else value[at : at + length])
        at += max(length, 0)
    if at != len(value):
        raise ValueError("its bytes are not a binary array")
    return items


_ITEM = re.compile(r'\s*(?:"((?:[^"\\]|\\.)*+)"|((?:[^"\\,{}\s]|\\.)(?:(?:[^"\\,{}]|\\.)*))?)\s*([,}])', re.DOTALL)


def _parse_array(text: str) -> list[bytes | None]:
    """Return the items of a list as Postgres writes it: `{1,NULL,"a b"}`."""
    if re.fullmatch(r"\s*\{\s*\}\s*", text):
        return []
    items, at, end = list[bytes | None](), text.find("{") + 1, ","
    while at > 0 and end == ",":
        match = _ITEM.match(text, at)
        if match is None or (match[1] is None and match[2] is None):
            break
        quoted, bare, end, at = match[1], (match[2] or "").rstrip(), match[3], match.end()
        value = re.sub(r"\\(.)", r"\1", bare if quoted is None else quoted, flags=re.DOTALL)
        items.append(None if quoted is None and bare.upper() == "NULL" else value.encode())
    if end != "}" or text[at:].strip() or text[: text.find("{")].strip():
        raise ValueError("a list is written as {a,b}, and lists of lists are not read")
    return items
