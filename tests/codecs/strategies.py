"""Hypothesis strategies over every supported Arrow type, with the values that break things.

Strategies are kept and used again: making and validating one takes longer than drawing from it.

`python_values(t)` are in the form that reading gives back (maps as lists of pairs, bytes as bytes, every
struct key present), and within what Python's own classes can hold. `arrays(t)` go further: temporal columns
over all that can be stored.
"""

import datetime as dt
import math
from collections.abc import Callable
from decimal import Decimal
from functools import cache, lru_cache
from typing import Any, TypeVar

import hypothesis.strategies as st
import pyarrow as pa
import pyarrow.types as pat

from persist.codecs.types.arrow_types import is_flat, list_inner_fields, replace_inner_types
from persist.codecs.types.schema import CollectionSchema

T = TypeVar("T", bound=Callable[..., Any])
_ZONES = ("UTC", "+01:30", "Europe/Berlin")
_UNITS = ("s", "ms", "us", "ns")
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_INT64 = 2**63
_PYTHON_TIME_S = (-62_100_000_000, 253_300_000_000)  # years 2 to 9996, so that every zone fits
_EPOCH = dt.datetime(1970, 1, 1)


def kept(make: T) -> T:
    """Return make with a memory of what it made for the same arguments."""
    return lru_cache(maxsize=1024)(make)  # type: ignore[return-value]


@kept
def flat_types() -> st.SearchStrategy[pa.DataType]:
    """Every supported type that is not nested."""
    decimals = st.one_of(
        st.integers(1, 38).flatmap(lambda p: st.integers(0, p).map(lambda s: pa.decimal128(p, s))),
        st.integers(1, 76).flatmap(lambda p: st.integers(0, p).map(lambda s: pa.decimal256(p, s))),
    )
    plain = [pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32()]
    plain += [pa.uint64(), pa.float16(), pa.float32(), pa.float64(), pa.string(), pa.large_string(), pa.binary()]
    plain += [pa.large_binary(), pa.date32(), pa.date64(), pa.time32("s"), pa.time32("ms"), pa.time64("us")]
    plain += [pa.time64("ns"), *(pa.duration(u) for u in _UNITS), *(pa.timestamp(u) for u in _UNITS)]
    zoned = [pa.timestamp(u, tz=z) for u in _UNITS for z in _ZONES]
    return st.one_of(
        st.sampled_from(plain), st.sampled_from(zoned), decimals, st.integers(1, 20).map(lambda n: pa.binary(n))
    )


@kept
def arrow_types(nested: bool = True) -> st.SearchStrategy[pa.DataType]:
    """Every supported type; with nested=False the flat ones only."""
    return st.one_of(flat_types(), st.recursive(flat_types(), _nest, max_leaves=4)) if nested else flat_types()


@kept
def python_values(t: pa.DataType, nulls: bool = True) -> st.SearchStrategy[Any]:
    """Values of type `t` as Python objects, None among them unless nulls=False."""
    values = _flat(t) if is_flat(t) else _nested(t, python_values)
    return st.one_of(st.none(), values) if nulls else values


@kept
def arrays(t: pa.DataType, *, min_size: int = 0, max_size: int = 20, nulls: bool = True) -> st.SearchStrategy[pa.Array]:
    """Columns of type `t` with 0 to 20 elements."""
    storage = _storage_type(t)
    return st.lists(_stored(t, nulls), min_size=min_size, max_size=max_size).map(
        lambda values: pa.array(values, storage, from_pandas=False).cast(t)
    )


@kept
def schemas(nested: bool = True, max_fields: int = 3) -> st.SearchStrategy[CollectionSchema]:
    """Structured schemas: key k0, k1 …, value v0, v1 …; either may be unit."""

    def side(letter: str) -> st.SearchStrategy[dict[str, pa.DataType] | None]:
        types = st.lists(arrow_types(nested), max_size=max_fields)
        return types.map(lambda ts: {f"{letter}{i}": t for i, t in enumerate(ts)} or None)

    return st.builds(CollectionSchema.of, side("k"), side("v"))


@st.composite
def updates(draw: st.DrawFn, schema: CollectionSchema, max_size: int = 12) -> list[tuple[Any, int, int]]:
    """Lists of `((key, value), time, diff)` for a structured schema, no diff zero."""
    times = st.one_of(st.integers(0, 3), st.sampled_from([2**63 - 2, 2**62]))
    diffs = st.one_of(st.sampled_from([-1, 1, 2]), st.sampled_from([2**63 - 1, -(2**63)]))
    pair = st.tuples(_side(schema.key.fields), _side(schema.value.fields))
    return draw(st.lists(st.tuples(pair, times, diffs), max_size=max_size))


def same(a: Any, b: Any) -> bool:
    """Return whether two Python values are equal with NaN equal to itself; 0.0 and -0.0 are equal."""
    if isinstance(a, float) and isinstance(b, float):
        return a == b or (math.isnan(a) and math.isnan(b))
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    return bool(a == b)


@kept
def _side(fields: tuple[pa.Field, ...]) -> st.SearchStrategy[Any]:
    if not fields:
        return st.none()
    values = [python_values(f.type) for f in fields]
    return values[0] if len(values) == 1 else st.tuples(*values)


def _nest(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    names = st.lists(st.sampled_from(["a", "b", "ü c"]), min_size=1, max_size=3, unique=True)
    structs = names.flatmap(
        lambda ns: st.tuples(*[inner] * len(ns)).map(lambda ts: pa.struct(zip(ns, ts, strict=True)))
    )
    return st.one_of(
        inner.map(pa.list_),
        inner.map(pa.large_list),
        st.builds(lambda t, n: pa.list_(t, n), inner, st.integers(1, 3)),
        structs,
        st.builds(pa.map_, inner, inner),
    )


@cache
def _flat(t: pa.DataType) -> st.SearchStrategy[Any]:
    if pat.is_boolean(t):
        return st.booleans()
    if pat.is_integer(t):
        signed = pat.is_signed_integer(t)
        low, high = (-(2 ** (t.bit_width - 1)), 2 ** (t.bit_width - 1) - 1) if signed else (0, 2**t.bit_width - 1)
        return st.one_of(st.sampled_from([low, low + 1, 0, 1, high]), st.integers(low, high))
    if pat.is_floating(t):
        odd = st.sampled_from([math.nan, -0.0, 0.0, math.inf, -math.inf])
        return st.one_of(odd, st.floats(width=t.bit_width))
    if pat.is_decimal(t):
        largest = 10**t.precision - 1
        return st.one_of(st.sampled_from([-largest, 0, largest]), st.integers(-largest, largest)).map(
            lambda n: Decimal((int(n < 0), tuple(map(int, str(abs(n)))), -t.scale))
        )
    if pat.is_string(t) or pat.is_large_string(t):
        return st.one_of(st.sampled_from(["", "\0", "a", "é", "\U0010ffff"]), st.text(max_size=8))
    if pat.is_fixed_size_binary(t):
        return st.binary(min_size=t.byte_width, max_size=t.byte_width)
    if pat.is_binary(t) or pat.is_large_binary(t):
        return st.one_of(st.sampled_from([b"", b"\0", b"\xff"]), st.binary(max_size=8))
    return _temporal(t)


def _temporal(t: pa.DataType) -> st.SearchStrategy[Any]:
    if pat.is_date(t):
        return st.one_of(st.sampled_from([dt.date.min, dt.date.max]), st.dates())
    if pat.is_time(t):
        ticks = st.integers(0, 86_400 * min(_PER_SECOND[t.unit], 10**6) - 1)
        return ticks.map(lambda n: (_EPOCH + _delta(n, t.unit)).time())
    per_second = min(_PER_SECOND[t.unit], 10**6)
    low_s, high_s = (-9_000_000_000, 9_000_000_000) if t.unit == "ns" else _PYTHON_TIME_S
    ticks = st.one_of(st.sampled_from([0, -1, 1]), st.integers(low_s * per_second, high_s * per_second))
    if pat.is_duration(t):
        return ticks.map(lambda n: _delta(n, t.unit))
    if t.tz is None:
        return ticks.map(lambda n: _EPOCH + _delta(n, t.unit))
    zone = pa.lib.string_to_tzinfo(t.tz)
    return ticks.map(lambda n: (_EPOCH.replace(tzinfo=dt.UTC) + _delta(n, t.unit)).astimezone(zone))


def _delta(ticks: int, unit: str) -> dt.timedelta:
    """Ticks of the unit, or of microseconds for ns, which Python cannot hold."""
    return dt.timedelta(microseconds=ticks * (10**6 // min(_PER_SECOND[unit], 10**6)))


def _nested(t: pa.DataType, inner: Any) -> st.SearchStrategy[Any]:
    if pat.is_struct(t):
        return st.fixed_dictionaries({f.name: inner(f.type) for f in list_inner_fields(t)})
    if pat.is_map(t):
        return st.lists(st.tuples(inner(t.key_type, False), inner(t.item_type)), max_size=3)
    sizes = (t.list_size, t.list_size) if pat.is_fixed_size_list(t) else (0, 3)
    return st.lists(inner(t.value_type), min_size=sizes[0], max_size=sizes[1])


@kept
def _stored(t: pa.DataType, nulls: bool = True) -> st.SearchStrategy[Any]:
    """Like python_values, with temporal values as the integers Arrow stores."""
    if pat.is_temporal(t):
        values: st.SearchStrategy[Any] = _ticks(t)
    else:
        values = _flat(t) if is_flat(t) else _nested(t, _stored)
    return st.one_of(st.none(), values) if nulls else values


@cache
def _ticks(t: pa.DataType) -> st.SearchStrategy[int]:
    if pat.is_time(t):
        low, high = 0, 86_400 * _PER_SECOND[t.unit] - 1
    elif pat.is_date(t):
        low, high = -(2**31), 2**31 - 1
    elif pat.is_timestamp(t) and t.unit == "s":  # Parquet stores milliseconds.
        low, high = -((_INT64 - 1) // 1000), (_INT64 - 1) // 1000
    else:
        low, high = -_INT64, _INT64 - 1
    ticks = st.one_of(st.sampled_from([low, 0, 1, high]), st.integers(low, high))
    return ticks.map(lambda n: n * 86_400_000) if pat.is_date64(t) else ticks


def _storage_type(t: pa.DataType) -> pa.DataType:
    if pat.is_temporal(t):
        return pa.int32() if t.bit_width == 32 else pa.int64()
    return t if is_flat(t) else replace_inner_types(t, [_storage_type(f.type) for f in list_inner_fields(t)])
