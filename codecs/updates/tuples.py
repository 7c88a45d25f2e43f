"""Converts updates between Python tuples and Arrow.

    update = ((key, value), time, diff)
    key, value = the value itself for one field or a codec, a tuple for several fields, None for unit;
                 or a dict of the fields, unless the one field is itself a struct or a map; or, for several fields, a
                 named tuple or a dataclass, which is read by name

A named tuple or a dataclass names its fields, so it is read by name and never by position. A tuple `(key, value)` or
`((key, value), time, diff)` may also be a named tuple, if its names are not columns. An iterator may reuse one dict for
all rows, so mutable rows are copied before the next one is fetched (`copy_if_mutable`).

Tuples are transposed and converted column by column; only if that fails are they checked one by one, to name the first
wrong one.
"""

import copy
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date
from itertools import chain, repeat
from operator import attrgetter, itemgetter
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from persist.codecs.errors import CodecMismatch, InvalidUpdate, SchemaMismatch, did_you_mean
from persist.codecs.order.ordering import make_canonical
from persist.codecs.types.arrow_types import is_flat
from persist.codecs.types.python_types import get_stored_type
from persist.codecs.types.schema import DIFF, TIME, CollectionSchema, Side
from persist.codecs.types.values import shorten, to_array, to_field, to_values

_INT64 = pa.int64()
_ROWS_PER_BATCH = 64 * 1024
_TUPLE = frozenset({tuple})
_NONE = frozenset({type(None)})
_INT = frozenset({int})
_PLAIN = frozenset({int, float, str, bool, bytes, tuple, type(None)})  # Of values that do not name their fields.


_UPDATE, _PAIR = ("", "time", "diff"), ("key", "value")  # The field names that named tuples may use at these positions.


class _Malformed(ValueError):
    """A tuple does not have the shape of the schema."""


def convert_tuples(
    data: Iterable[Any], schema: CollectionSchema, to_times: Callable[[list[Any]], list[Any]] | None = None
) -> tuple[pa.Table, list[int], list[int]]:
    """Return `(table, times, diffs)`: the updates as a canonical table of schema.arrow, times and diffs.

    NULL times and diffs are refused; the range of times is not checked. `to_times`, if set, first converts times that
    are not numbers.
    """
    rows = data if isinstance(data, (list, tuple)) else list(data)
    if not rows:
        return schema.arrow.empty_table(), [], []
    try:
        pairs, times, diffs = _transpose(rows, 3)
        keys, values = _transpose(pairs, 2)
        if find_misordered(rows, _UPDATE) or find_misordered(pairs, _PAIR):
            raise _Malformed
        columns = [*_transpose_side(keys, schema.key), *_transpose_side(values, schema.value), times, diffs]
        if to_times is not None and {*map(type, columns[-2])} != _INT:
            columns[-2] = to_times(columns[-2])
        split = len(schema.key.fields)
        arrays = _convert_side(columns[:split], schema.key, "key")
        arrays += _convert_side(columns[split:-2], schema.value, "value")
        arrays += [_convert_integers(columns[-2], TIME), _convert_integers(columns[-1], DIFF)]
        return make_canonical(pa.Table.from_arrays(arrays, schema=schema.arrow)), columns[-2], columns[-1]
    except (_Malformed, InvalidUpdate) as error:
        for index, row in enumerate(rows):
            if problem := _describe_shape_problem(row, schema):
                raise InvalidUpdate(
                    f"update {index} is {shorten(row)}: {problem}. A row of this collection looks like "
                    f"{_make_example(schema)}, and an update like ({_make_example(schema)}, time, diff)."
                ) from error
        raise


def iterate_rows(table: pa.Table, schema: CollectionSchema) -> Iterator[tuple[Any, Any]]:
    """Yield `(key, value)` per row of the table; times and diffs are ignored.

    Raises:
        CodecMismatch: a side has a codec that this process does not have.
        SchemaMismatch: the table lacks a column.
        InvalidUsage: Python has no object for a value.
    """
    _check_readable(table, schema)
    batches = table.to_batches(max_chunksize=_ROWS_PER_BATCH)
    return chain.from_iterable(_iterate_pairs(batch, schema) for batch in batches)


def iterate_tuples(table: pa.Table, schema: CollectionSchema) -> Iterator[tuple[Any, ...]]:
    """Yield `((key, value), time, diff)` per row, or `((key, value), diff)` if the table has no `_time`.

    Raises: as `iterate_rows`.
    """
    _check_readable(table, schema)
    ends = [TIME, DIFF] if TIME in table.column_names else [DIFF]
    if DIFF not in table.column_names:
        raise SchemaMismatch(f"column {DIFF!r} is missing: read with all columns to get tuples")
    return chain.from_iterable(
        zip(_iterate_pairs(batch, schema), *(to_values(batch.column(name), name) for name in ends), strict=True)
        for batch in table.to_batches(max_chunksize=_ROWS_PER_BATCH)
    )


def _transpose_side(values: list[Any], side: Side) -> list[list[Any]]:
    """Return the keys or values of tuples by column; raise _Malformed otherwise."""
    if side.codec_name is None and _are_dicts(values, side):
        return _transpose_dicts(values, side)
    if len(side.fields) == 1:
        return [values]
    if side.fields:
        named = reorder_named_tuples(values, side.names)
        if named is None:
            raise _Malformed
        return _transpose(named, len(side.fields))
    if {*map(type, values)} != _NONE:
        raise _Malformed
    return []


def _are_dicts(values: list[Any], side: Side) -> bool:
    """Return whether values name their fields; a dict may be one field's value."""
    if not values or not side.fields or type(values[0]) in _PLAIN:
        return False
    if not isinstance(values[0], Mapping) and not is_dataclass_instance(values[0]):
        return False
    t = side.fields[0].type
    return len(side.fields) > 1 or not (pat.is_struct(t) or pat.is_map(t))


def _transpose_dicts(values: list[Any], side: Side) -> list[list[Any]]:
    """Return the values of dicts by column; all fields must be there."""
    if not all(issubclass(kind, Mapping) for kind in {*map(type, values)}):
        if not all(isinstance(value, Mapping) or is_dataclass_instance(value) for value in values):
            raise _Malformed
        values = [*map(to_dict, values)]
    if not set(side.names).issuperset(chain.from_iterable(values)) or {*map(len, values)} != {len(side.names)}:
        raise _Malformed
    return [[value[name] for value in values] for name in side.names]


def _transpose(rows: Sequence[Any], width: int) -> list[list[Any]]:
    """Return tuples of this width by column; raise _Malformed otherwise."""
    kinds = {*map(type, rows)}
    if kinds != _TUPLE and not all(issubclass(k, (tuple, list)) for k in kinds):
        raise _Malformed
    if {*map(len, rows)} != {width}:
        raise _Malformed
    # Not zip(*rows): its million iterators set off the garbage collector again and again.
    return [[*map(itemgetter(i), rows)] for i in range(width)]


def _convert_side(columns: list[list[Any]], side: Side, name: str) -> list[pa.Array]:
    """Convert the columns of a key or value to Arrow."""
    if side.codec_name is not None:
        return [_encode_values(columns[0], side, name)]
    return [
        to_field(values, get_stored_type(f.type), f"{name} field {f.name!r}")
        for values, f in zip(columns, side.fields, strict=True)
    ]


def _encode_values(values: list[Any], side: Side, name: str) -> pa.Array:
    """Encode values by the codec of their side."""
    column = _get_codec(side, name).encode_all(values)
    if len(column) != len(values) or column.type != side.fields[0].type:
        raise CodecMismatch(
            f"codec {side.codec_name!r} made {len(column)} elements of type {column.type} from {len(values)} {name}s, "
            f"and {len(values)} of type {side.fields[0].type} are needed. Correct its encode_all."
        )
    return column


def _get_codec(side: Side, name: str) -> Any:
    """Return a side's codec; raise CodecMismatch if this process lacks it."""
    if side.codec is None:
        raise CodecMismatch(
            f"the {name} is stored through codec {side.codec_name!r} version {side.codec_version}, which is not known "
            "here: pass that codec to create_or_load, or use Arrow, where it is a column of type "
            f"{side.fields[0].type}."
        )
    return side.codec


def _convert_integers(values: Sequence[Any], name: str) -> pa.Array:
    """Convert times or diffs to an array without NULL."""
    try:
        column = to_array(values, _INT64, name)
    except InvalidUpdate as error:
        if any(isinstance(value, date) for value in values):
            remedy = "Give an int, or create the collection with a timeline, such as {timeline:option:us}, for moments."
            raise InvalidUpdate(str(error)).with_remedy(remedy) from error
        raise
    if column.null_count:
        row = values.index(None)
        raise InvalidUpdate(f"update {row} has None for {name}: every update needs a time and a diff. Give an int.")
    return column


def _describe_shape_problem(row: Any, schema: CollectionSchema) -> str | None:
    """Return what is wrong with a tuple's shape, or None."""
    if not isinstance(row, (tuple, list)) or len(row) != 3:
        return "it is not a tuple of three, ((key, value), time, diff)"
    pair = row[0]
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        return f"{shorten(pair)} is not a tuple of two, (key, value)"
    if find_misordered([row], _UPDATE) or find_misordered([pair], _PAIR):
        return "its fields have other places than in ((key, value), time, diff)"
    for side, value, name in ((schema.key, pair[0], "key"), (schema.value, pair[1], "value")):
        count = len(side.fields)
        if side.codec_name is not None:
            continue
        if _are_dicts([value], side):
            if unknown := [name_given for name_given in to_dict(value) if name_given not in side.names]:
                hint = did_you_mean(unknown[0], side.names)
                return (
                    f"{shorten(unknown[0])} is not a field of the {name}{hint or ','} which has {', '.join(side.names)}"
                )
            if lacking := [field for field in side.names if field not in to_dict(value)]:
                return f"the {name} {shorten(value)} {describe_lacking_columns(lacking)}"
            continue
        if count == 0 and value is not None:
            return f"the {name} {shorten(value)} is not None, and this collection has no {name} fields"
        if count > 1 and not (isinstance(value, (tuple, list)) and len(value) == count):
            return f"the {name} {shorten(value)} is not a tuple of the {count} fields {', '.join(side.names)}"
        if count > 1 and reorder_named_tuples([value], side.names) is None:
            return f"the {name} {shorten(value)} names other fields than those of the {name}, {', '.join(side.names)}"
        if count == 1 and isinstance(value, tuple) and is_flat(side.fields[0].type):
            return f"the {name} {shorten(value)} is a tuple, and field {side.names[0]!r} takes the value itself"
    return None


def _make_example(schema: CollectionSchema) -> str:
    """Return a tuple of this schema as text, for errors."""
    return f"({_describe_fields(schema.key)}, {_describe_fields(schema.value)})"


def _describe_fields(side: Side) -> str:
    """Return the names of a side's fields as a tuple's text."""
    if side.codec_name is not None:
        return f"a value of codec {side.codec_name!r}"
    if len(side.names) < 2:
        return "".join(side.names) or "None"
    return f"({', '.join(side.names)})"


def _check_readable(table: pa.Table, schema: CollectionSchema) -> None:
    """Raise SchemaMismatch unless a table has all columns and known codecs."""
    names = table.column_names
    missing = [name for name in schema.names if name not in names]
    if missing:
        raise SchemaMismatch(
            f"column {', '.join(map(repr, missing))} is missing: read with all columns to get Python values"
        )
    for side, name in ((schema.key, "key"), (schema.value, "value")):
        if side.codec_name is not None:
            _get_codec(side, name)


def _iterate_pairs(batch: pa.RecordBatch, schema: CollectionSchema) -> Iterator[tuple[Any, Any]]:
    """Yield the rows of a batch as (key, value)."""
    return zip(_decode_side(batch, schema.key), _decode_side(batch, schema.value), strict=True)


def _decode_side(batch: pa.RecordBatch, side: Side) -> Iterable[Any]:
    """Return the Python keys or values of a batch."""
    if not side.fields:
        return repeat(None, batch.num_rows)
    if side.codec is not None:
        return side.codec.decode_all(batch.column(side.names[0]))
    columns = [to_values(batch.column(f.name), f"column {f.name!r}") for f in side.fields]
    return columns[0] if len(columns) == 1 else zip(*columns, strict=True)


def copy_if_mutable(value: Any) -> Any:
    """Return a value itself if it is hashable, and therefore immutable; a copy otherwise.

    Cost: a hash. Hashable values that change nevertheless cannot be written.
    """
    try:
        hash(value)
    except Exception:  # A value's own methods may raise anything.
        if is_named_tuple(value):
            return type(value)._make(map(copy_if_mutable, value))
        if type(value) in (tuple, list):
            return type(value)(map(copy_if_mutable, value))
        if type(value) is dict:
            return {name: copy_if_mutable(inner) for name, inner in value.items()}
        try:
            return copy.deepcopy(value)
        except Exception:  # As above. It is taken as it is, then.
            return value
    return value


def is_named_tuple(value: Any) -> bool:
    """Return whether a value is a named tuple."""
    return isinstance(value, tuple) and hasattr(value, "_fields")


def is_dataclass_instance(value: Any) -> bool:
    """Return whether a value is a dataclass with its fields."""
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def is_record(value: Any, schema: CollectionSchema | None) -> bool:
    """Return whether a row names its columns: a dict, a dataclass, or a named tuple with columns of a collection.

    Without a schema, any named tuple is one. But a named tuple `(record, time, diff)` whose record is a pair is an
    update.
    """
    if type(value) is tuple:
        return False
    if isinstance(value, Mapping) or is_dataclass_instance(value):
        return True
    if not is_named_tuple(value):
        return False
    if schema is None:
        return True
    if schema.key.codec_name is not None or schema.value.codec_name is not None:
        return False
    names = {*schema.names}
    if names.issuperset(value._fields):
        return True
    is_update = len(value) == 3 and isinstance(value[0], tuple | list) and len(value[0]) == 2
    return not is_update and not names.isdisjoint(value._fields)


def to_dict(record: Any) -> Mapping[Any, Any]:
    """Return a row that names its columns (see `is_record`) as a dict."""
    if isinstance(record, Mapping):
        return record
    if is_named_tuple(record):
        return dict(zip(record._fields, record, strict=True))
    return {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}


def describe_lacking_columns(names: Iterable[str], null: str = "None") -> str:
    """Return how an error about a row that lacks columns goes on.

    `null`: how the row's source writes NULL.
    """
    first, *more = names
    them = f"the columns {', '.join(map(repr, [first, *more]))}" if more else f"the column {first!r}"
    return f"lacks {them}, which would be NULL: give {first!r} as {null} if that is meant"


def find_misordered(values: Sequence[Any], places: tuple[str, ...]) -> Any:
    """Return the first named tuple with fields in another order, or None."""
    for kind in {*map(type, values)}:
        fields = getattr(kind, "_fields", ()) if issubclass(kind, tuple) else ()
        if fields and any(name in fields and fields.index(name) != at for at, name in enumerate(places)):
            return next(value for value in values if type(value) is kind)
    return None


def reorder_named_tuples(values: list[Any], names: tuple[str, ...]) -> list[Any] | None:
    """Put the fields of named tuples in the order of names; None if fields differ."""
    kinds = {kind for kind in {*map(type, values)} if issubclass(kind, tuple) and hasattr(kind, "_fields")}
    if all(kind._fields == names for kind in kinds):
        return values
    if any(sorted(kind._fields) != sorted(names) for kind in kinds):
        return None
    ordered = attrgetter(*names)
    return [ordered(value) if type(value) in kinds else value for value in values]
