"""Requested keys in any form, as sorted and distinct Arrow data."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from persist.blob.errors import InvalidUsage
from persist.codecs.errors import InvalidUpdate, SchemaMismatch
from persist.codecs.order.arrays import make_int64_array
from persist.codecs.order.sums import consolidate
from persist.codecs.types.arrow_types import is_flat
from persist.codecs.types.schema import CollectionSchema, Side
from persist.codecs.types.values import shorten
from persist.codecs.updates.inputs import check_input
from persist.codecs.updates.small import convert_small_keys
from persist.codecs.updates.tuples import copy_if_mutable
from persist.codecs.updates.updates import to_updates


def find_distinct_keys(keys: Any, schema: CollectionSchema) -> pa.Table:
    """Return distinct keys in order: the key columns alone.

    Args:
        keys: an iterable of keys in the form of `Collection.write`, or Arrow data with exactly the key columns.
        schema: the schema of the collection.

    Raises:
        InvalidUsage: a key has another shape, or a field cannot hold its value; the message names its index.
        SchemaMismatch: the columns are not the key columns.
        CodecMismatch: keys need a codec that this process does not have.
    """
    schema = schema.compute_once(make_key_schema)
    arrow = None if type(keys) is list else convert_arrow_keys(keys, schema.key_names)
    listed = None if arrow is not None else _list_keys(keys)
    small = None if listed is None else convert_small_keys(listed, schema)
    if small is not None:
        return _sort_distinct(pa.Table.from_batches([small]), schema)
    try:
        updates = arrow if listed is None else [((key, None), 0, 1) for key in listed]
        table = to_updates(updates, schema, default_time=0, default_diff=1)
    except InvalidUpdate as error:
        for index, key in enumerate(listed or ()):
            if _has_other_shape(key, schema.key):
                raise InvalidUsage(f"key {index} is {shorten(key)}, and {_describe_shape(schema.key)}") from error
        raise InvalidUsage(str(error).replace("update", "key", 1)) from error
    return _sort_distinct(table.select(schema.key_names), schema)


def make_key_schema(schema: CollectionSchema) -> CollectionSchema:
    """Return the schema of the keys of a collection, with no value."""
    return CollectionSchema(schema.key, Side(()))


def _sort_distinct(keys: pa.Table, schema: CollectionSchema) -> pa.Table:
    """Return distinct keys in order."""
    if len(keys) < 2:
        return keys
    diffs = make_int64_array(np.ones(len(keys), np.int64))
    return consolidate(keys.append_column("_diff", diffs), schema.key_names).select(schema.key_names)


def convert_arrow_keys(keys: Any, names: tuple[str, ...]) -> pa.Table | None:
    """Return Arrow data as a table of the key columns; None for anything else."""
    if isinstance(keys, pa.RecordBatch):
        keys = pa.Table.from_batches([keys])
    elif not isinstance(keys, pa.Table):
        check_input(keys)
        try:
            column = _to_column(keys)
        except (pa.ArrowException, TypeError) as error:
            raise SchemaMismatch(f"{type(keys).__name__} does not give Arrow data: {error}") from error
        if column is None:
            return None
        keys = _to_table(column, names, type(keys).__name__)
    column_names = [name for name in keys.column_names if name in names or not name.startswith("__index_level_")]
    if sorted(column_names) != sorted(names):
        raise SchemaMismatch(f"the keys have the columns {column_names}: give exactly the key columns, {list(names)}")
    return keys.select(list(names))


def _to_column(keys: Any) -> pa.ChunkedArray | None:
    """Return Arrow data as one column, of structs if it is a table; None for anything else."""
    if isinstance(keys, pa.ChunkedArray):
        return keys
    if isinstance(keys, pa.Array) or hasattr(keys, "__arrow_c_array__"):
        return pa.chunked_array([keys if isinstance(keys, pa.Array) else pa.array(keys)])
    return pa.chunked_array(keys) if hasattr(keys, "__arrow_c_stream__") else None


def _to_table(column: pa.ChunkedArray, names: tuple[str, ...], what: str) -> pa.Table:
    """Return a column as the only key column, or a column of structs as a table."""
    if not pa.types.is_struct(column.type):
        if len(names) != 1:
            raise SchemaMismatch(f"{what} is a single column of {column.type}: give all key columns, {list(names)}")
        return pa.table({names[0]: column})
    fields = pa.schema([column.type.field(at) for at in range(column.type.num_fields)])
    # The keys may be structs themselves.
    if len(names) == 1 and names[0] not in fields.names and "__index_level_0__" not in fields.names:
        return pa.table({names[0]: column})
    return pa.Table.from_batches([pa.RecordBatch.from_struct_array(chunk) for chunk in column.chunks], fields)


def _list_keys(keys: Any) -> Sequence[Any]:
    """Return keys as a list; raise InvalidUsage for something else."""
    if isinstance(keys, (list, tuple)):
        return keys
    if isinstance(keys, Iterable) and not isinstance(keys, (str, bytes, bytearray, Mapping)):
        return [*map(copy_if_mutable, keys)]
    raise InvalidUsage(
        f"keys={shorten(keys)} is not an iterable of keys: for one key give a list of it, [{shorten(keys)}]"
    )


def _has_other_shape(key: Any, side: Side) -> bool:
    """Return whether a key does not have the shape of the key columns."""
    if side.codec_name is not None:
        return False
    if len(side.fields) > 1:
        return not (isinstance(key, (tuple, list)) and len(key) == len(side.fields))
    return key is not None if not side.fields else isinstance(key, tuple) and is_flat(side.fields[0].type)


def _describe_shape(side: Side) -> str:
    """Return the shape of a key for an error message."""
    fields = ", ".join(f"{field.name}: {field.type}" for field in side.fields)
    if len(side.fields) > 1:
        return f"a key of this collection is a tuple ({fields})"
    return f"a key of this collection is a value by itself, {fields}" if fields else "the only key here is None"
