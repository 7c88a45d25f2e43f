"""Converts Python values to Arrow columns and back, without silent coercion.

Arrow's own conversion is generous: it stores 1.5 as the integer 1, bytes as text, a datetime as its date, a
misspelt struct key as NULL. This module decides by the Python type, for each family:

    bool                    bool
    integers                int (bool is none); in fields also float or Decimal, if whole
    floats                  float or int, if exact; float32 and float16 round to nearest, but refuse to overflow
    decimals                Decimal or int, if the scale holds it exactly
    strings, binary         str; bytes, bytearray or memoryview; UUID, if it is of 16 bytes
    date, time, duration    date (datetime is none); time without tzinfo; timedelta
    timestamp               datetime: with tzinfo exactly if the type has a zone
    list, struct, map       list, tuple or numpy array; dict (an absent key is NULL); dict or list of pairs

None is NULL everywhere, NaN stays NaN, and a time finer than the column's unit is refused. Numpy's integers,
floats and booleans count as Python's. The check costs one pass over the types of the values, in C.

Back, a timestamp[ns] or duration[ns] becomes a pandas Timestamp or Timedelta where pandas is installed; what
Python cannot hold (year 10000, nanoseconds of a time) is an error.
"""

import datetime as dt
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from functools import lru_cache
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple, NoReturn
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from persist.blob.errors import InvalidUsage
from persist.codecs.errors import InvalidUpdate
from persist.codecs.types.arrow_types import is_flat, is_number, is_text, list_inner_fields, replace_inner_types

REPR_CHARS_MAX = 80
_DIGITS_MAX = 20  # For an integer of 64 bits.

_Values = Sequence[Any]


class _Refused(ValueError):
    """A value does not fit its column's type; the message is the reason."""


class _Rule(NamedTuple):
    """The Python values that one type accepts.

    `exact` lists accepted classes; `kinds` and `not_kinds` decide about their subclasses; `check` tests the values that
    are not None; `wanted` describes what to pass, for messages.
    """

    wanted: str
    kinds: tuple[type, ...]
    not_kinds: tuple[type, ...] = ()
    check: Callable[[_Values], None] | None = None
    exact: frozenset[type] = frozenset()


def to_array(values: _Values, t: pa.DataType, where: str) -> pa.Array:
    """Convert values to a column of type `t`.

    Args:
        values: Python values, None for NULL.
        t: a plain supported type.
        where: the column for messages, such as "field 'amount'".
    """
    try:
        check_values(values, t)
        return pa.array(values, t, from_pandas=False)
    except Exception as error:  # A value's own methods may raise anything.
        _refuse(values, t, where, error)


def to_field(values: _Values, t: pa.DataType, where: str) -> pa.Array:
    """Convert values like `to_array`; accept whole floats and decimals as integers.

    Only frames and JSON have a reason to write 3 as 3.0, so times, diffs and input of codecs are not converted like
    this.
    """
    try:
        return to_array(values, t, where)
    except InvalidUpdate:
        whole = _to_integers(values) if pat.is_integer(t) else None
        if whole is None:
            raise
    return to_array(whole, t, where)


def _to_integers(values: _Values) -> list[Any] | None:
    """Convert whole floats and decimals to integers; None if none are there."""
    fractional = (float, Decimal, np.floating)
    if not any(issubclass(kind, fractional) for kind in {*map(type, values)}):
        return None
    whole = [int(v) if isinstance(v, fractional) and _is_whole(v) else v for v in values]
    return None if {*map(type, whole)} == {*map(type, values)} else whole


def _is_whole(value: Any) -> bool:
    """Return whether a float or decimal is a whole number."""
    if isinstance(value, Decimal):  # One of many digits is beyond any integer type, and would take long to write out.
        return value.is_finite() and value.adjusted() < _DIGITS_MAX and value == value.to_integral_value()
    return bool(value % 1 == 0)


def check_values(values: _Values, t: pa.DataType) -> None:
    """Raise an error if a value's Python type does not fit `t`; Arrow checks ranges."""
    rule = _make_rule(t)
    kinds = set(map(type, values))
    if rule.check is not None or not kinds <= rule.exact:
        _check_kinds(values, rule, kinds)


def to_values(array: pa.Array | pa.ChunkedArray, where: str) -> list[Any]:
    """Return the Python values of a column; raise InvalidUsage if Python has no object for one."""
    t = array.type
    try:
        if _has_fast_list(t) and (array.null_count == 0 or not is_number(t)):
            return array.to_numpy(zero_copy_only=False).tolist()  # type: ignore[no-any-return]
        python = to_python_type(t)
        return (array if python == t else array.cast(python)).to_pylist()  # type: ignore[no-any-return]
    except (pa.ArrowException, ValueError, OverflowError, LookupError) as error:
        raise InvalidUsage(
            f"{where} of type {t} holds a value that Python has no object for: {error}. Read it as Arrow instead."
        ) from error


def shorten(value: object) -> str:
    """Return the repr of a value for a message, at most 80 characters of it."""
    try:
        text = repr(value)
    except Exception:  # A broken __repr__ must not hide the error that is being reported.
        text = f"<{type(value).__name__}>"
    return text if len(text) <= REPR_CHARS_MAX else text[: REPR_CHARS_MAX - 1] + "…"


def _refuse(values: _Values, t: pa.DataType, where: str, error: Exception) -> NoReturn:
    """Raise InvalidUpdate for the first value that is refused on its own."""
    rule = _make_rule(t)
    or_null = "" if where.strip("'").endswith(("_time", "_diff")) else ", or None for NULL"
    for index, value in enumerate(values):
        try:
            _check_kinds([value], rule, {type(value)})
            pa.array([value], t, from_pandas=False)
        except Exception as reason:
            raise InvalidUpdate(
                f"update {index} has {shorten(value)} ({type(value).__name__}) for {where} of type {t}: "
                f"{str(reason).rstrip('.') or type(reason).__name__}. Give {rule.wanted}{or_null}."
            ) from reason
    raise InvalidUpdate(f"the updates cannot be stored in {where} of type {t}: {error}") from error


def _check_kinds(values: _Values, rule: _Rule, kinds: set[type]) -> None:
    """Raise _Refused unless a rule allows the values of these classes."""
    for kind in kinds - rule.exact:
        if not issubclass(kind, rule.kinds) or issubclass(kind, rule.not_kinds):
            raise _Refused(f"{kind.__name__} is not what it takes")
    if rule.check is not None:
        rule.check([v for v in values if v is not None] if type(None) in kinds else values)


def _check_inner_values(values: Iterable[Any], rule: _Rule) -> None:
    """Raise _Refused unless a rule allows values inside lists or structs."""
    inner = list(values)
    _check_kinds(inner, rule, set(map(type, inner)))


@lru_cache(maxsize=1024)
def _make_rule(t: pa.DataType) -> _Rule:
    """Return the rule that says which Python values a type accepts."""
    rule = _make_flat_rule(t) if is_flat(t) else _make_nested_rule(t)
    allowed = [k for k in (*rule.kinds, type(None)) if not issubclass(k, rule.not_kinds)]
    return rule._replace(exact=frozenset(allowed))


def _make_flat_rule(t: pa.DataType) -> _Rule:
    """Return the rule of a flat type."""
    if pat.is_boolean(t):
        return _Rule("a bool", (bool, np.bool_))
    if pat.is_integer(t):
        return _Rule(f"an int that fits {t}", (int, np.integer), (bool, np.timedelta64))
    if pat.is_floating(t):
        check = None if t.bit_width == 64 else _make_overflow_check(t)
        return _Rule("a float", (float, int, np.floating, np.integer), (bool, np.timedelta64), check)
    if pat.is_decimal(t):
        return _Rule("a Decimal or int that fits", (Decimal, int), (bool,))
    if pat.is_string(t) or pat.is_large_string(t):
        return _Rule("a str", (str,))
    if pat.is_date(t):
        return _Rule("a datetime.date", (dt.date,), (dt.datetime,))
    if pat.is_timestamp(t):
        expected = "a datetime without tzinfo" if t.tz is None else "a datetime with tzinfo"
        return _Rule(
            expected,
            (dt.datetime,),
            (),
            _make_unit_check(t, pa.timestamp("us", t.tz), _make_zone_check(t.tz is not None)),
        )
    if pat.is_time(t):
        return _Rule(
            "a datetime.time without tzinfo",
            (dt.time,),
            (),
            _make_unit_check(t, pa.time64("us"), _make_zone_check(False)),
        )
    if pat.is_duration(t):
        return _Rule("a timedelta", (dt.timedelta,), (), _make_unit_check(t, pa.duration("us"), None))
    if t == pa.binary(16):
        return _Rule("16 bytes or a UUID", (bytes, bytearray, memoryview, UUID))
    return _Rule("bytes", (bytes, bytearray, memoryview))


def _make_nested_rule(t: pa.DataType) -> _Rule:
    """Return the rule of a list, struct or map."""
    rules = [_make_rule(f.type) for f in list_inner_fields(t)]
    if pat.is_struct(t):
        names = [f.name for f in list_inner_fields(t)]
        return _Rule(
            f"a dict with the keys {', '.join(map(repr, names))}", (dict,), (), _make_struct_check(names, rules)
        )
    if pat.is_map(t):
        return _Rule("a dict or a list of (key, value) pairs", (dict, list, tuple), (), _make_map_check(*rules))

    def check(values: _Values) -> None:
        _check_inner_values(chain.from_iterable(values), rules[0])

    expected = f"a list of {t.list_size} values" if pat.is_fixed_size_list(t) else "a list"
    return _Rule(expected, (list, tuple, np.ndarray), (), check)


def _make_struct_check(names: list[str], rules: list[_Rule]) -> Callable[[_Values], None]:
    """Return a check of dicts: known fields, with values that fit."""

    def check(values: _Values) -> None:
        if unknown := set(chain.from_iterable(values)).difference(names):
            raise _Refused(f"it has no field {', '.join(map(shorten, unknown))}")
        for name, rule in zip(names, rules, strict=True):
            _check_inner_values((v.get(name) for v in values), rule)

    return check


def _make_map_check(key: _Rule, value: _Rule) -> Callable[[_Values], None]:
    """Return a check of maps: pairs, with keys and values that fit."""

    def check(values: _Values) -> None:
        pairs = list(chain.from_iterable(v.items() if isinstance(v, dict) else v for v in values))
        if not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
            raise _Refused("each entry must be a tuple of key and value")
        _check_inner_values((k for k, _ in pairs), key)
        _check_inner_values((v for _, v in pairs), value)

    return check


def _make_overflow_check(t: pa.DataType) -> Callable[[_Values], None]:
    """Return a check that values fit the range of a type."""

    def check(values: _Values) -> None:
        wide = pa.array(values, pa.float64(), from_pandas=False)
        if pat.is_float16(t):  # For other floats, Arrow refuses integers that are not exact.
            numbers = (int(value) for value in values if isinstance(value, int | np.integer))
            if any(
                abs(number) > 2048 and abs(number) < 65520 and int(np.float16(number)) != number for number in numbers
            ):
                raise _Refused("it is not exact as halffloat")
        infinite = pc.is_inf(wide)
        if not pc.is_inf(wide.cast(t).cast(pa.float64())).equals(infinite):
            raise _Refused("it is out of range")

    return check


def _make_zone_check(needs_zone: bool) -> Callable[[_Values], None]:
    """Return a check that datetimes have a time zone, or have none."""

    def check(values: _Values) -> None:
        zones = set(map(type, map(attrgetter("tzinfo"), values)))
        if needs_zone and type(None) in zones:
            raise _Refused("it has no time zone, so it is not an instant")
        if not needs_zone and zones - {type(None)}:
            raise _Refused("it has a time zone, and the type has none")

    return check


def _make_unit_check(
    t: pa.DataType, microseconds: pa.DataType, before: Callable[[_Values], None] | None
) -> Callable[[_Values], None] | None:
    """Return a check that no value is finer than the unit of `t`."""

    def check(values: _Values) -> None:
        if before is not None:
            before(values)
        if t.unit == "ns":
            return
        # Only pandas' own classes are finer than a microsecond.
        if any(getattr(v, "nanosecond", 0) or getattr(v, "nanoseconds", 0) for v in values if type(v) not in _PYTHON):
            raise _Refused(f"it is finer than the unit {t.unit}")
        if t.unit != "us":
            pa.array(values, microseconds, from_pandas=False).cast(t)

    return check


@lru_cache(maxsize=1024)
def _has_fast_list(t: pa.DataType) -> bool:
    """Return whether numpy converts a type to Python objects faster than Arrow.

    Numbers must have no NULL then, because numpy would turn all of them into floats.
    """
    return is_number(t) or is_text(t)


_PYTHON = frozenset({dt.datetime, dt.timedelta, dt.time})


@lru_cache(maxsize=1024)
def to_python_type(t: pa.DataType) -> pa.DataType:
    """Return `t` with time64[us] in place of time64[ns]: Arrow would truncate nanoseconds, but a cast refuses."""
    if is_flat(t):
        return pa.time64("us") if t == pa.time64("ns") else t
    return replace_inner_types(t, [to_python_type(f.type) for f in list_inner_fields(t)])
