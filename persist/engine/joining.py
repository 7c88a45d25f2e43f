"""As-of joins: a frame with what a collection held at the time of each of its rows."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from persist.codecs import (
    InvalidUpdate,
    TableStream,
    as_table,
    cast_column,
    decoded_column,
    did_you_mean,
    opened,
    stored_type,
)
from persist.engine.collection_handle import CollectionHandle
from persist.errors import InvalidUsage, SchemaMismatch
from persist.read import Lookup, changes_scan, joined, snapshot_scan
from persist.state import check_readable


def as_of_join(
    handle: CollectionHandle,
    frame: Any,
    time: str,
    on: Sequence[str] | None,
    columns: Sequence[str] | None,
    timeout_s: float | None,
) -> pa.Table:
    """Return a frame with what its keys held at its rows' times; see `Collection.as_of_join`."""
    schema = handle.schema
    table = _frame(frame)
    wanted = schema.value_names if columns is None else schema.distinct("columns", columns)
    keys, times = _keys(table, on, time, handle), _times(table, time, handle)
    if clashing := [name for name in wanted if name in table.column_names]:
        raise SchemaMismatch(
            f"the frame has a column {clashing[0]!r}, as the collection has: rename it in the frame, or leave it "
            "out of columns"
        )
    ends = pc.min_max(times).as_py()
    if ends["min"] is None:  # No row has a time, so none has a record.
        return joined(table, keys, times, schema.arrow.empty_table(), schema, wanted)
    handle.sealed(ends["max"], timeout_s)
    contents, reading = handle.claim(ends["min"])
    try:
        check_readable(contents, ends["min"])
        with reading.explained():
            before = Lookup(snapshot_scan(contents, schema, ends["min"], None))
            found = before.contents(before.wanted(keys), "diff", reading())
            first = found.append_column(schema.arrow.field("_time"), pa.array(np.full(len(found), ends["min"])))
            changes = changes_scan(contents, schema, ends["min"] + 1, ends["max"] + 1, None)
            after = Lookup(changes, keeps_time=True)
            later = after.updates(after.wanted(keys), reading())
    finally:
        reading.close()
    updates = pa.concat_tables([first.select(schema.arrow.names), later])
    return joined(table, keys, times, updates, schema, wanted)


def _frame(frame: Any) -> pa.Table:
    data = opened(frame)
    if isinstance(data, TableStream):
        tables = [*data.tables(None)]
        try:
            table = pa.concat_tables(tables, promote_options="default") if tables else pa.table({})
        except pa.ArrowException as error:
            raise SchemaMismatch(
                f"the pieces of the frame differ in their columns: {error}. Make them alike."
            ) from error
    else:
        table = as_table(data, None)  # The frame's own columns are no columns of the collection.
    if table is None:
        raise InvalidUsage(
            f"{frame!r:.80} is no frame: give anything Arrow, a frame, a dict of columns or rows as dicts"
        )
    for at, field in enumerate(table.schema):
        if "_view" in str(field.type) and not pat.is_dictionary(field.type):  # Arrow takes no rows of views.
            table = table.set_column(at, field.name, decoded_column(table.column(at)))
    return table


def _keys(table: pa.Table, on: Sequence[str] | None, time: str, handle: CollectionHandle) -> pa.Table:
    """Return the columns of a frame that stand for the key fields, in their order and types."""
    fields = handle.schema.key.fields
    if not (on is None or isinstance(on, str | Sequence)) or not isinstance(time, str):
        raise InvalidUsage(
            f"on={on!r:.80} and time={time!r:.80} name columns of the frame: give a list of texts, and a text"
        )
    names = list(handle.schema.key_names) if on is None else [on] if isinstance(on, str) else [*on]
    if len(names) != len(fields):
        raise InvalidUsage(
            f"on={names} names {len(names)} columns, and a key of {handle.name!r} has {len(fields)}: name one column "
            f"of the frame for each of {list(handle.schema.key_names)}, in that order"
        )
    cast = [cast_column(_column(table, name), f.type, name) for name, f in zip(names, fields, strict=True)]
    return pa.Table.from_arrays(cast, schema=pa.schema(list(fields)))


def _times(table: pa.Table, name: str, handle: CollectionHandle) -> pa.ChunkedArray:
    """Return the time of each row, int64: of a moment, the last time that is not after it."""
    column = _column(table, name)
    if (plain := stored_type(column.type)) != column.type:
        column = cast_column(column, plain, name)
    if handle.timeline is not None and (pat.is_string(column.type) or pat.is_large_string(column.type)):
        times = handle.timeline.column_of_last_times(column)
    elif pat.is_integer(column.type) or pat.is_floating(column.type):  # pandas makes floats of integers with gaps.
        try:
            times = cast_column(column, pa.int64(), name)
        except InvalidUpdate as error:
            if pat.is_integer(column.type):
                raise
            raise SchemaMismatch(f"the time of a row is a whole number: {error}") from error
    elif handle.timeline is not None and (pat.is_timestamp(column.type) or pat.is_date(column.type)):
        unit = {"s": "second", "ms": "millisecond", "us": "microsecond", "ns": "nanosecond"}[handle.timeline.unit]
        if pat.is_timestamp(column.type):
            if column.type.tz is not None:  # Rounding is of local time, which there is twice when clocks are set back.
                column = column.cast(pa.timestamp(column.type.unit, "UTC"))
            column = pc.floor_temporal(column, unit=unit)
        times = handle.timeline.column_of_times(column, name)
    else:
        what = "a whole number" if handle.timeline is None else "a whole number, a timestamp with a zone, or ISO text"
        raise SchemaMismatch(f"column {name!r} has type {column.type}, and the time of a row is {what}")
    if (least := pc.min(times).as_py()) is not None and least < 0:
        raise InvalidUsage(f"column {name!r} holds {least}: times are not negative")
    return times


def _column(table: pa.Table, name: str) -> pa.ChunkedArray:
    if name not in table.column_names:
        hint = did_you_mean(name, table.column_names) or ","
        raise SchemaMismatch(f"the frame has no column {name!r}{hint} it has {table.column_names}")
    return table.column(name)
