"""Casts Arrow columns to the type of a field without losing information.

A conversion stays within a family, and every value must survive it exactly:

    integers to integers or floats; floats to floats; decimals to decimals
    floats and decimals that are whole numbers to integers; integers to decimals
    string, large_string, string_view; binary, large_binary, binary_view, fixed_size_binary
    date32, date64; time32, time64; durations; timestamps both with or both without a zone (the instant stays)
    list, large_list, fixed_size_list of what fits; structs with the same field names; maps of what fits
    list views, as lists; dictionary-encoded and run-end encoded columns, as their values
    columns of type null, as NULLs; UUIDs as bytes, Arrow's JSON as text

A wrong family is a SchemaMismatch, a value that does not survive an InvalidUpdate that names its row. Inside lists,
structs and maps there is no conversion to a narrower float, because Arrow does not report rounding. List views are
copied by hand, because Arrow 26 empties them when it casts them.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from persist.codecs.errors import InvalidUpdate, SchemaMismatch
from persist.codecs.types.arrow_types import (
    is_bytes,
    is_flat,
    is_number,
    iterate_leaf_arrays,
    list_inner_arrays,
    list_inner_fields,
    list_leaf_types,
    rebuild_nested,
)
from persist.codecs.types.python_types import get_stored_type
from persist.codecs.types.values import shorten

_TICKS_PER_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}


def cast_column(column: pa.ChunkedArray, target: pa.DataType, name: str) -> pa.ChunkedArray:
    """Return the column in type `target`; itself, without a copy, when it has that type already."""
    if isinstance(column.type, pa.BaseExtensionType) and get_stored_type(column.type) != column.type:
        column = pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)
    source = column.type
    if source.equals(target, check_metadata=True):
        return _check_values(column, name)
    if not _is_castable(source, target, True):
        raise SchemaMismatch(
            f"column {name!r} has type {source}, and the collection stores {target}: only conversions within a family "
            f"that lose nothing are made (int32 to int64, string to large_string …). Cast it to {target} first; "
            "evolve(widen=…) makes a type wider, and evolve(add=…) adds fields."
        )
    try:
        return _check_values(_cast(column, target), name)
    except pa.ArrowException as error:
        row = find_first_failing(column, lambda part: _cast(part, target))
        raise InvalidUpdate(
            f"update {row} has {_format_value(column, row)} in column {name!r} of type {source}, and the collection "
            f"stores {target}, which cannot hold it: {error}. Change the value, or use a collection with a wider type."
        ) from error


def find_first_failing(column: pa.ChunkedArray, attempt: Callable[[pa.ChunkedArray], object]) -> int:
    """Return the first row for which `attempt` raises an Arrow error; the whole column is expected to raise."""
    low, high = 0, len(column)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            attempt(column.slice(low, middle - low))
            low = middle
        except pa.ArrowException:
            high = middle
    return low


def _format_value(column: pa.ChunkedArray, row: int) -> str:
    """Return a value of a column for an error message."""
    try:
        return shorten(column[row].as_py())
    except (ValueError, OverflowError):
        return " ".join(column.slice(row, 1).to_string().split())


def _cast(column: pa.ChunkedArray, target: pa.DataType) -> pa.ChunkedArray:
    """Cast a column to a type, at all depths."""
    if is_flat(target):
        return _cast_flat(column, target)
    if get_stored_type(column.type) != column.type:
        column = decode_column(column)
    try:
        return column.cast(target)
    except pa.ArrowInvalid:
        # Arrow also casts the values outside of a slice and under NULLs; these do not count.
        return column.take(np.arange(len(column))).cast(target)


def _cast_flat(column: pa.ChunkedArray, target: pa.DataType) -> pa.ChunkedArray:
    """Cast a column to a flat type, without changing values."""
    source = column.type
    if pat.is_run_end_encoded(source):
        return _cast(decode_column(column), target)
    if pat.is_dictionary(source):
        plain = get_stored_type(source)  # Arrow decodes no dictionary of views.
        chunks = [chunk.dictionary.cast(plain).take(chunk.indices) for chunk in column.chunks]
        return _cast(pa.chunked_array(chunks, plain), target)
    if pat.is_large_binary(source) and pat.is_fixed_size_binary(target):
        column = column.cast(pa.binary())
    if pat.is_floating(source) and pat.is_integer(target):  # Beyond the integers, each processor casts differently.
        bits = target.bit_width
        low, high = (-(2.0 ** (bits - 1)), 2.0 ** (bits - 1)) if pat.is_signed_integer(target) else (0.0, 2.0**bits)
        ends = pc.min_max(column.cast(pa.float64())).as_py()
        if ends["min"] is not None and not low <= ends["min"] <= ends["max"] < high:
            raise pa.ArrowInvalid(f"a value is out of the range of {target}")
    if pat.is_integer(source) and pat.is_decimal(target):  # Arrow looks at the type of integers, and not at them.
        column = column.cast(pa.decimal128(INTEGER_DIGITS))
    result = column.cast(target)
    if _may_round(source, target):
        wide = column.cast(pa.float64())
        is_exact = pc.or_kleene(pc.equal(result.cast(pa.float64()), wide), pc.is_nan(wide))
        if not pc.all(is_exact, min_count=0).as_py():
            raise pa.ArrowInvalid(f"not every value is exact as {target}")
    return result


def decode_column(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column in its `get_stored_type`, without encodings."""
    return pa.chunked_array([_undo_encodings(chunk) for chunk in column.chunks], get_stored_type(column.type))


def _undo_encodings(array: pa.Array) -> pa.Array:
    """Undo encodings at all depths, so that an array has its `get_stored_type`."""
    kind = array.type
    plain = get_stored_type(kind)
    if plain == kind:
        return array
    if isinstance(kind, pa.BaseExtensionType):
        return _undo_encodings(array.storage)
    if pat.is_dictionary(kind):
        return _undo_encodings(array.dictionary).take(array.indices)
    if pat.is_run_end_encoded(kind):
        return _undo_encodings(pc.run_end_decode(array))
    if pat.is_list_view(kind) or pat.is_large_list_view(kind):
        offsets = np.zeros(len(array) + 1, np.int64)
        np.cumsum(pc.list_value_length(array).fill_null(0), out=offsets[1:])
        places = pa.array(offsets, pa.int64() if pat.is_large_list(plain) else pa.int32())
        lists = pa.LargeListArray if pat.is_large_list(plain) else pa.ListArray
        return lists.from_arrays(places, _undo_encodings(array.flatten()), plain, mask=array.is_null())
    if is_flat(plain):
        return array.cast(plain)
    return rebuild_nested(array, plain, [_undo_encodings(inner) for inner in list_inner_arrays(array)])


def _may_round(source: pa.DataType, target: pa.DataType) -> bool:
    """Return whether Arrow's cast between two number types may silently change values."""
    if pat.is_integer(source):
        return bool(pat.is_float16(target))
    return bool(pat.is_floating(source) and source.bit_width > target.bit_width)


INTEGER_DIGITS = 20  # The digits of the greatest uint64: a decimal with so many before its point holds every integer.


def _is_castable(source: pa.DataType, target: pa.DataType, top: bool) -> bool:
    """Return whether a cast keeps the meaning of values; `top`: not nested."""
    if (plain := get_stored_type(source)) != source:
        return _is_castable(plain, target, top)
    if source == target or pat.is_null(source):
        return True
    if not is_flat(target):
        return not is_flat(source) and _is_nested_castable(source, target)
    if pat.is_integer(target) and (pat.is_floating(source) or pat.is_decimal(source)):
        return top
    if pat.is_integer(source) and pat.is_decimal(target):
        return top or bool(target.precision - target.scale >= INTEGER_DIGITS)
    if is_number(source) and pat.is_floating(target):
        return top or not _may_round(source, target)
    if pat.is_timestamp(source) and pat.is_timestamp(target):
        return (source.tz is None) == (target.tz is None)
    return any(family(source) and family(target) for family in _FAMILIES)


def _is_nested_castable(source: pa.DataType, target: pa.DataType) -> bool:
    """Return whether a cast between two nested types keeps the meaning of values."""
    if pat.is_struct(source) and pat.is_struct(target):
        ours = {f.name: f.type for f in list_inner_fields(source)}
        target_types = {f.name: f.type for f in list_inner_fields(target)}
        same_names = ours.keys() == target_types.keys() and source.num_fields == len(ours)
        return same_names and all(_is_castable(ours[n], target_types[n], False) for n in target_types)
    alike = (pat.is_map(source) and pat.is_map(target)) or (_is_list(source) and _is_list(target))
    pairs = zip(list_inner_fields(source), list_inner_fields(target), strict=True) if alike else ()
    return alike and all(_is_castable(s.type, t.type, False) for s, t in pairs)


def _is_string(t: pa.DataType) -> bool:
    """Return whether a type is text, of any layout."""
    return bool(pat.is_string(t) or pat.is_large_string(t) or pat.is_string_view(t))


def _is_list(t: pa.DataType) -> bool:
    """Return whether a type is a list, of any layout."""
    return bool(pat.is_list(t) or pat.is_large_list(t) or pat.is_fixed_size_list(t))


_FAMILIES: tuple[Callable[[Any], bool], ...] = (
    pat.is_integer,
    pat.is_decimal,
    _is_string,
    is_bytes,
    pat.is_date,
    pat.is_time,
    pat.is_duration,
)


def _check_values(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    """Return the column; raise InvalidUpdate for a value outside its type, or that Parquet would change."""
    if _may_hold_invalid(column.type):
        try:
            _check_leaves(column)
        except pa.ArrowException as error:
            row = find_first_failing(column, _check_leaves)
            raise InvalidUpdate(
                f"update {row} has {_format_value(column, row)} in column {name!r} of type {column.type}, which "
                f"cannot be stored: {error}. Change the value."
            ) from error
    return column


@lru_cache(maxsize=1024)
def _may_hold_invalid(t: pa.DataType) -> bool:
    """Return whether a type's arrays may hold values that `_check_leaf` refuses."""
    return any(
        pat.is_date64(leaf)
        or pat.is_time(leaf)
        or pat.is_decimal(leaf)
        or (pat.is_timestamp(leaf) and leaf.unit == "s")
        for leaf in list_leaf_types(t)
    )


def _check_leaves(column: pa.ChunkedArray) -> None:
    """Call `_check_leaf` for all flat arrays in a column."""
    for chunk in column.chunks:
        for leaf in iterate_leaf_arrays(chunk):
            _check_leaf(leaf)


def _check_leaf(leaf: pa.Array) -> None:
    """Raise an Arrow error if a value is outside the type's range."""
    t = leaf.type
    if pat.is_date64(t):
        leaf.cast(pa.date32())
    elif pat.is_time(t):
        ends = pc.min_max(leaf.view(pa.int32() if t.bit_width == 32 else pa.int64())).as_py()
        if ends["min"] is not None and not 0 <= ends["min"] <= ends["max"] < _TICKS_PER_DAY[t.unit]:
            raise pa.ArrowInvalid("it is not a time of a day")
    elif pat.is_decimal(t):
        leaf.validate(full=True)  # DuckDB returns a HUGEINT of 39 digits as a decimal of 38.
    elif pat.is_timestamp(t) and t.unit == "s":
        leaf.cast(pa.timestamp("ms", t.tz))
