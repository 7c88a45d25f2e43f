"""A few updates as Python values, checked but not yet Arrow: what a tiny write costs least as.

Turning one update into Arrow costs more than all else that a tiny write does, and costs hardly more for a hundred. So a
writer collects them as Python columns and converts those of many writes at once. This requires values that are certain
to convert: `small_updates` accepts a value by its exact Python type and range, and leaves everything else to
`to_updates`. It never raises and never refuses an update by itself.

It duplicates `to_updates`, and stays for its speed: 50 writes of one update each take 2.6 ms of CPU time with it, and
9.2 ms without.
"""

# Generators take several times as long as loops for one value, of which there is one most of the time.
# ruff: noqa: SIM110

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from itertools import chain
from typing import Any

import pyarrow as pa

from persist.codecs.order.arrays import plain_array
from persist.codecs.order.ordering import canonical
from persist.codecs.types.schema import TIME_MAX, CollectionSchema

ROWS_MAX = 32
TEXT_BYTES_MAX = 16 << 10
_NONE = type(None)
_TUPLE = {tuple}
_TEXTS = frozenset({str, bytes})
_UPDATE_BYTES = 500  # Roughly what an update of Python values occupies, texts aside.

Column = list[Any]
Check = Callable[[Column], bool]


@dataclass(frozen=True, slots=True)
class SmallUpdates:
    """Updates in columns as in `CollectionSchema.arrow`; every value is certain to convert, and no diff is 0.

    Attributes:
        bytes: roughly what they occupy.
    """

    columns: list[Column]
    bytes: int

    def __len__(self) -> int:
        return len(self.columns[-1])

    @property
    def time_min(self) -> int:
        return int(min(self.columns[-2]))

    @property
    def time_max(self) -> int:
        return int(max(self.columns[-2]))

    @property
    def diff_abs_sum(self) -> int:
        return sum(map(abs, self.columns[-1]))


def small_updates(data: Any, schema: CollectionSchema) -> SmallUpdates | None:
    """Return data as columns, or None if it is not a short list of well-formed tuples of plain values."""
    if type(data) is not list or not 0 < len(data) <= ROWS_MAX:
        return None
    checks = schema.derived(_checks)
    if checks is None:
        return None
    try:
        if {*map(type, data)} != _TUPLE:
            return None
        pairs, times, diffs = zip(*data, strict=True)
        if {*map(type, pairs)} != _TUPLE:
            return None
        keys, values = zip(*pairs, strict=True)
        columns = [*_side(keys, len(schema.key.fields)), *_side(values, len(schema.value.fields))]
        columns += [list(times), list(diffs)]
    except (TypeError, ValueError):
        return None
    if not _pass(checks, columns):
        return None
    text = 0
    for column in columns:
        for v in column:
            if type(v) in _TEXTS:
                text += len(v)
    return SmallUpdates(columns, len(times) * _UPDATE_BYTES + text) if text <= TEXT_BYTES_MAX else None


def small_keys(keys: Sequence[Any], schema: CollectionSchema) -> pa.RecordBatch | None:
    """Return a few plain keys as a batch of the key columns, or None if they are not certain to be keys."""
    checks = schema.derived(_checks)
    if checks is None or not 0 < len(keys) <= ROWS_MAX:
        return None
    try:
        columns = _side(tuple(keys), len(schema.key.fields))
    except ValueError:
        return None
    fields = schema.derived(_key_fields)
    if not columns or not _pass(checks[: len(fields)], columns):
        return None
    if sum(len(value) for column in columns for value in column if type(value) in _TEXTS) > TEXT_BYTES_MAX:
        return None
    if any(value == 0 or value != value for column in columns for value in column if type(value) is float):
        return None  # Zeros and NaN of floats would have to be made canonical.
    arrays = [plain_array(column, kind) for column, kind in zip(columns, fields.types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=fields)


def gathered(batches: Sequence[SmallUpdates], schema: CollectionSchema) -> pa.Table:
    """Return all updates of some batches as one table of `schema.arrow`, in order."""
    columns = zip(*(batch.columns for batch in batches), strict=True)
    arrays = [
        plain_array([*chain.from_iterable(column)], field.type)
        for column, field in zip(columns, schema.arrow, strict=True)
    ]
    return canonical(pa.Table.from_arrays(arrays, schema=schema.arrow))


def _side(values: tuple[Any, ...], fields: int) -> list[Column]:
    if fields == 1:
        return [list(values)]
    if fields == 0:
        if any(value is not None for value in values):
            raise ValueError
        return []
    for value in values:
        if not (type(value) is tuple and len(value) == fields):
            raise ValueError
    return [list(column) for column in zip(*values, strict=True)]


def _pass(checks: Sequence[Check], columns: Sequence[Column]) -> bool:
    if len(checks) != len(columns):
        return False
    for check, column in zip(checks, columns, strict=True):
        if not check(column):
            return False
    return True


def _checks(schema: CollectionSchema) -> tuple[Check, ...] | None:
    """Return the checks of each column, or None if there are columns of other types than these."""
    fields = (*schema.key.fields, *schema.value.fields)
    codecs = (schema.key.codec_name, schema.value.codec_name)
    if codecs != (None, None) or not all(field.type in _CHECKS for field in fields):
        return None
    return (*map(_check, fields), _are_times, _are_diffs)


def _key_fields(schema: CollectionSchema) -> pa.Schema:
    return pa.schema([schema.arrow.field(name) for name in schema.key_names])


def _check(field: pa.Field) -> Check:
    check = _CHECKS[field.type]
    return check if field.nullable else lambda column: None not in column and check(column)


def _of_types(*kinds: type) -> Check:
    allowed = frozenset((*kinds, _NONE))
    return lambda column: allowed.issuperset(map(type, column))


def _are_ints(column: Column) -> bool:
    for v in column:
        if not (v is None or (type(v) is int and -(2**63) <= v < 2**63)):
            return False
    return True


def _are_texts(column: Column) -> bool:
    # Text that is not ASCII may hold a lone surrogate, which has no UTF-8.
    for v in column:
        if not (v is None or (type(v) is str and v.isascii())):
            return False
    return True


def _are_naive(column: Column) -> bool:
    return all(v is None or (type(v) is datetime and v.tzinfo is None) for v in column)


def _are_times(column: Column) -> bool:
    for v in column:
        if not (type(v) is int and 0 <= v <= TIME_MAX):
            return False
    return True


def _are_diffs(column: Column) -> bool:
    for v in column:
        if not (type(v) is int and v and -(2**63) <= v < 2**63):
            return False
    return True


_CHECKS: dict[pa.DataType, Check] = {
    pa.bool_(): _of_types(bool),
    pa.int64(): _are_ints,
    pa.float64(): _of_types(float),
    pa.string(): _are_texts,
    pa.large_string(): _are_texts,
    pa.binary(): _of_types(bytes),
    pa.large_binary(): _of_types(bytes),
    pa.date32(): _of_types(date),
    pa.timestamp("us"): _are_naive,
}
