"""Converts events in any form to one checked table of `persist.core.keyed.events`.

    (key, value or None, time) tuples, or (key, value or None) with time=; None deletes, () is the value of no columns
    tables, frames, dicts of columns, lists of dicts: the columns of key and event, `_time` unless time= is given, and
    perhaps `_deleted`; where every row deletes, the event's columns may be left out
    a column `_unchanged` of lists may name value columns that a row does not change: the row becomes a partial event
    (`persist.core.keyed.partial`), whose key must have a row

Afterwards, deletions are marked in `_deleted`, and in the tombstone column if there is one.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import compress
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from persist.codecs.errors import InvalidUpdate, SchemaMismatch
from persist.codecs.evolution import decode_defaults
from persist.codecs.order.arrays import (
    copy_table,
    get_boolean_values,
    get_int64_values,
    make_boolean_array,
    make_int64_array,
)
from persist.codecs.order.ordering import combine_chunks
from persist.codecs.types.arrow_types import is_text
from persist.codecs.types.schema import TIME, CollectionSchema, Side
from persist.codecs.types.values import shorten
from persist.codecs.updates.inputs import TableStream, open_stream, to_table
from persist.codecs.updates.tuples import find_misordered, is_named_tuple
from persist.codecs.updates.updates import Stamp, add_times, to_updates
from persist.core.keyed.events import Prepared, list_event_fields, make_event_schema, mark_deletions, mark_tombstones
from persist.core.keyed.form import describe_orders, find_machine, is_integer_watermark
from persist.core.keyed.machine import DELETED, GIVEN, NAME, SEQ, Machine
from persist.core.log.fields import KeyedForm, Watermarks
from persist.core.state_rules.keyed_rules import UNCHANGED, WATERMARK_OF_NULL
from persist.core.timeline import Timeline

_BETWEEN = "\t"  # No column of a collection has a control character in its name.
_SHAPE = "an event looks like (key, value, time), where None as the value deletes the key"


class EventTable(msgspec.Struct, frozen=True):
    """Events of one collection, in the order in which they arrived.

    Attributes:
        schema: the schema of the table, and of its parts.
        table: columns as in `persist.core.keyed.events`, copied, so that the caller cannot change them; `_seq` counts
            from 0. If some events are partial, it also has the column `GIVEN`, whose name is empty.
        watermarks: the least and the greatest value of the first ordering column, if these are integers.
        at_commit: the events get the time of their commit; until then it is 0.
        ready: the events prepared for a machine, if they were needed before.
    """

    schema: CollectionSchema
    table: pa.Table
    watermarks: Watermarks | None
    at_commit: bool = False
    ready: Prepared | None = None

    def __len__(self) -> int:
        return len(self.table)

    @property
    def is_partial(self) -> bool:
        """Whether some events are partial, so that the commit that adds them must resolve them."""
        return GIVEN in self.table.column_names

    def set_time(self, time: int) -> "EventTable":
        """Return the same events at a time."""
        column = self.table.schema.get_field_index(TIME)
        times = make_int64_array(np.full(len(self.table), time, np.int64))
        table = self.table.set_column(column, self.table.schema.field(column), times)
        return msgspec.structs.replace(self, table=table, at_commit=False, ready=None)


def to_events(
    data: Any,
    schema: CollectionSchema,
    form: KeyedForm,
    stamp: Stamp | None,
    timeline: Timeline | None,
    machine: Machine | None = None,
    *,
    may_delete: bool = True,
    columns: Sequence[str] | None = None,
) -> EventTable:
    """Return events as one table.

    Args:
        schema: of the collection.
        stamp: the time for events without one. Without it, they get the time of the commit.
        machine: of the collection, if it is not a built-in one.
        may_delete: None in a tuple deletes the key; otherwise it is the value NULL.
        columns: the value columns to check for NULLs that the schema forbids; None for all.
    """
    fields = list_event_fields(schema, form)
    if form.fields is None:
        taken_schema = schema.compute_once(_make_values_nullable)  # The columns of a deletion are NULL.
    else:
        taken_schema = CollectionSchema(schema.key, Side(fields), schema.timeline)
    needed = _Needed.of(schema, form, machine, may_delete=may_delete)
    if columns is not None:
        needed = replace(needed, live=tuple(name for name in needed.live if name in columns))
    data = open_stream(data)
    first = data[0] if isinstance(data, (list, tuple)) and data else None
    are_tuples = isinstance(first, (list, tuple)) and not is_named_tuple(first)
    if isinstance(data, TableStream):
        pieces: list[EventTable] = []
        for piece in data.tables(taken_schema):
            stamp = stamp or _make_default_stamp(TIME not in piece.column_names)
            pieces.append(_convert_table(piece, taken_schema, schema, form, stamp, timeline, needed))
        none = taken_schema.arrow.empty_table().drop_columns(["_diff"])
        events = concat_events(pieces or [_convert_table(none, taken_schema, schema, form, None, timeline, needed)])
    elif not are_tuples and (table := to_table(data, _add_deleted(taken_schema))) is not None:
        stamp = stamp or _make_default_stamp(TIME not in table.column_names)
        events = _convert_table(table, taken_schema, schema, form, stamp, timeline, needed)
    else:
        listed = _list_rows(data, stamp)
        stamp = stamp or _make_default_stamp(
            bool(listed) and isinstance(listed[0], (tuple, list)) and len(listed[0]) == 2
        )
        rows, deleted = _convert_tuples(listed, taken_schema, stamp, timeline, may_delete=may_delete)
        events = _finish_table(rows, deleted, schema, form, fields, needed)
    return msgspec.structs.replace(events, at_commit=stamp is not None and stamp.time is None)


def _make_default_stamp(is_timeless: bool) -> Stamp | None:
    """Return the stamp for events without a time: the time of the commit."""
    return Stamp(None) if is_timeless else None


def bound_watermarks(column: pa.ChunkedArray) -> Watermarks | None:
    """Return the least and the greatest watermark; None if they are not integers, or there are none."""
    if not is_integer_watermark(column.type) or not len(column):
        return None
    if pa.types.is_temporal(column.type):
        column = column.cast(pa.int32() if column.type.bit_width == 32 else pa.int64())
    ends = pc.min_max(column).as_py()
    if ends["min"] is None:
        return WATERMARK_OF_NULL, WATERMARK_OF_NULL
    return (WATERMARK_OF_NULL if column.null_count else ends["min"]), ends["max"]


def mark_below(column: pa.ChunkedArray, bound: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return which events have a watermark below a late bound; NULL is below every bound."""
    if pa.types.is_temporal(column.type):
        column = column.cast(pa.int32() if column.type.bit_width == 32 else pa.int64())
    limits = np.iinfo(column.type.to_pandas_dtype())
    if bound > limits.max:
        return np.ones(len(column), np.bool_)
    # A bound may be below all that the type can hold: it is a distance behind what was seen.
    below = pc.less(column, pa.scalar(max(bound, int(limits.min)), column.type))
    return get_boolean_values(combine_chunks(pc.fill_null(below, bound > WATERMARK_OF_NULL)))


@dataclass(frozen=True, slots=True)
class _Needed:
    """The columns in which the schema or machine requires values of events.

    Attributes:
        live: of events that do not delete.
        stored: of all events, because a deletion is stored as the row of its key.
        may_delete: whether rows may have the column `_deleted`.
    """

    live: tuple[str, ...]
    stored: bool
    may_delete: bool

    @classmethod
    def of(cls, schema: CollectionSchema, form: KeyedForm, machine: Machine | None, *, may_delete: bool) -> "_Needed":
        """Return the required columns for a schema, a declaration and a machine."""
        known_machine = find_machine(form, machine, "")
        value_fields = schema.value.fields if form.fields is None else ()
        fields = value_fields if known_machine is None else known_machine.event_fields(schema)
        live = tuple(field.name for field in fields if not field.nullable)
        return cls(live, form.tombstone is not None and form.machine.name == NAME, may_delete)

    def check_required(self, rows: pa.Table, deleted: pa.ChunkedArray, unchanged: "Mapping[str, pa.Array]") -> None:
        """Raise InvalidUpdate for the first event that lacks a required value.

        `unchanged`: by column, which events do not change it.
        """
        for name in self.live:
            if not rows[name].null_count:
                continue
            missing = pc.is_null(rows[name])
            if name in unchanged:
                missing = pc.and_not(missing, unchanged[name])
            if (at := pc.index(pc.and_not(missing, deleted), True).as_py()) >= 0:
                raise InvalidUpdate(
                    f"event {at} has NULL in {name!r}, where an event that does not delete must have a value "
                    "(nullable=False): give it one, or leave the event out"
                )
            if self.stored:
                raise InvalidUpdate(
                    f"event {pc.index(missing, True).as_py()} deletes its key and has NULL in {name!r}, which is not "
                    "null by the collection's schema (nullable=False). A deletion is stored as the row of its key: "
                    "give a row with the tombstone and a value in that column"
                )


def _list_rows(data: Any, stamp: Stamp | None) -> Sequence[Any]:
    """Return events as a list, if they are not a table."""
    if stamp is not None and isinstance(stamp.time, str):
        raise SchemaMismatch(f"time={stamp.time!r} names a column, and these events are not a table: {_SHAPE}")
    if isinstance(data, (str, bytes, bytearray)) or not isinstance(data, Iterable):
        raise InvalidUpdate(
            f"the events are {shorten(data)} ({type(data).__name__}): give tuples, dicts, a table or a frame"
        )
    return [*data]


def _add_deleted(taken: CollectionSchema) -> CollectionSchema:
    """Return the schema with `_deleted`, for the conversion of lists of dicts."""
    value = Side((*taken.value.fields, pa.field(DELETED, pa.bool_())))
    return CollectionSchema(
        taken.key, value, taken.timeline, ids=(*taken.ids, max(taken.ids) + 1), defaults=taken.defaults
    )


def _convert_tuples(
    rows: Sequence[Any], taken: CollectionSchema, stamp: Stamp | None, timeline: Timeline | None, *, may_delete: bool
) -> tuple[pa.Table, np.ndarray[Any, np.dtype[np.bool_]]]:
    """Return tuples as updates with diff 1, and which of them delete; deletions have NULL in value columns."""
    size = 3 if stamp is None else 2
    for at, row in enumerate(rows):
        if not isinstance(row, (tuple, list)) or len(row) != size:
            shape = _SHAPE if stamp is None else "with time=, an event looks like (key, value)"
            raise InvalidUpdate(f"event {at} is {shorten(row)}: {shape}")
    if (odd := find_misordered(rows, ("key", "value", "time"))) is not None:
        raise InvalidUpdate(f"{shorten(odd)} has its fields at other places: {_SHAPE}")
    deleted = np.array([may_delete and row[1] is None for row in rows], np.bool_)
    times = [row[2] for row in rows] if stamp is None else [stamp.time or 0] * len(rows)
    is_unit = not taken.value.fields
    if is_unit and (wrong := next((at for at, row in enumerate(rows) if row[1] not in (None, ())), None)) is not None:
        raise InvalidUpdate(f"event {wrong} is {shorten(rows[wrong])}: without value columns, a value is () or None")
    values = [None if is_unit else row[1] for row in rows]
    updates = [((row[0], value), time, 1) for row, value, time in zip(rows, values, times, strict=True)]
    if not deleted.any():
        return to_updates(updates, taken, moments=timeline), deleted
    comes = [*compress(updates, ~deleted)]
    goes = [((key, None), time, 1) for (key, _), time, _ in compress(updates, deleted)]
    live = to_updates(comes, taken, moments=timeline) if comes else taken.arrow.empty_table()
    keys_only = CollectionSchema(taken.key, Side(()), taken.timeline)
    deleted_rows = to_updates(goes, keys_only, moments=timeline)
    live_and_deleted = pa.concat_tables([live, _fill_with_nulls(deleted_rows, taken)]).combine_chunks()
    order = np.argsort(np.concatenate([np.flatnonzero(~deleted), np.flatnonzero(deleted)]), kind="stable")
    return live_and_deleted.take(make_int64_array(order)), deleted


def _fill_with_nulls(keys: pa.Table, taken: CollectionSchema) -> pa.Table:
    """Return a table of keys and times with NULL in all value columns."""
    columns = [
        keys[field.name] if field.name in keys.column_names else pa.chunked_array([pa.nulls(len(keys), field.type)])
        for field in taken.arrow
    ]
    return pa.Table.from_arrays(columns, schema=taken.arrow)


def _convert_table(
    table: pa.Table,
    taken: CollectionSchema,
    schema: CollectionSchema,
    form: KeyedForm,
    stamp: Stamp | None,
    timeline: Timeline | None,
    needed: _Needed,
) -> EventTable:
    """Convert a table with the columns of events."""
    if "_diff" in table.column_names:
        raise SchemaMismatch("events have no '_diff': each of them says what its key is from its time on. Drop it.")
    deleted = None
    if DELETED in table.column_names:
        if not needed.may_delete:
            raise make_deletion_error()
        deleted = _read_flags(table[DELETED])
        table = table.drop_columns([DELETED])
        defaults, lives = taken.compute_once(decode_defaults), make_int64_array((~deleted).astype(np.int64))
        for name in [name for name in taken.value_names if name not in table.column_names]:
            if name in defaults or bool(deleted.all()):
                null = pa.nulls(1, taken.arrow.field(name).type)
                ends = pa.concat_arrays([null, pa.repeat(defaults[name], 1) if name in defaults else null])
                table = table.append_column(name, ends.take(lives))
    texts, unchanged = None, dict[str, pa.Array]()
    if UNCHANGED in table.column_names and UNCHANGED not in taken.names:
        if form.machine.name != NAME:
            raise SchemaMismatch(
                f"the column {UNCHANGED!r} says that events leave columns as they are, and the machine "
                f'{form.machine.name!r} needs whole events: read the messages with unchanged="refuse", or drop it'
            )
        texts, unchanged = _encode_unchanged(table[UNCHANGED], deleted, schema, form)
        table = table.drop_columns([UNCHANGED])
    if stamp is not None:
        table = add_times(table, taken, stamp)
    rows = to_updates(table, taken, default_diff=1, moments=timeline)
    events = _finish_table(rows, deleted, schema, form, taken.value.fields, needed, unchanged)
    return events if texts is None else msgspec.structs.replace(events, table=events.table.append_column(GIVEN, texts))


def _encode_unchanged(
    column: pa.ChunkedArray,
    deleted: "np.ndarray[Any, np.dtype[np.bool_]] | None",
    schema: CollectionSchema,
    form: KeyedForm,
) -> tuple[pa.Array | None, dict[str, pa.Array]]:
    """Return the changed columns of each event as text, and by column the rows that leave it unchanged.

    The text is NULL for whole events; None is returned in its place if no event is partial.
    """
    kind = column.type
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if not (pa.types.is_null(kind) or (is_list and (is_text(kind.value_type) or pa.types.is_null(kind.value_type)))):
        raise SchemaMismatch(
            f"column {UNCHANGED!r} has type {kind}: it has lists of names of the columns that a row leaves as they are"
        )
    # Few lists are distinct, so only these become objects of Python.
    lists = combine_chunks(column).cast(pa.list_(pa.string()))
    if pc.any(pc.fill_null(pc.equal(pc.binary_length(lists.flatten()), 0), True)).as_py():
        raise SchemaMismatch(f"a list in {UNCHANGED!r} has NULL, or an empty text, in the place of a name.")
    coded = pc.binary_join(lists, _BETWEEN).dictionary_encode()
    codes = get_int64_values(coded.indices.cast(pa.int64()).fill_null(-1))
    if deleted is not None:
        codes = np.where(deleted, -1, codes)
    texts: list[str | None] = [None] * (len(coded.dictionary) + 1)  # The last one is that of whole events, code -1.
    stays = np.zeros((len(schema.value_names), len(texts)), np.bool_)
    for code in np.unique(codes[codes >= 0]).tolist():
        if names := [name for name in coded.dictionary[code].as_py().split(_BETWEEN) if name]:
            _check_unchanged(names, int(np.argmax(codes == code)), schema, form)
            stays[:, code] = np.isin(schema.value_names, names)
            texts[code] = f"error {''.join('01'[not is_left] for is_left in stays[:, code])}"
    masks = {
        name: make_boolean_array(is_left[codes])
        for name, is_left in zip(schema.value_names, stays, strict=True)
        if is_left.any()
    }
    return (pa.array(texts, pa.string()).take(make_int64_array(codes % len(texts))) if masks else None), masks


def _check_unchanged(names: Sequence[str], row: int, schema: CollectionSchema, form: KeyedForm) -> None:
    """Raise SchemaMismatch unless a row can leave these columns as they are."""
    if wrong := [name for name in names if name not in schema.value_names]:
        raise SchemaMismatch(f"{UNCHANGED!r} of row {row} names {wrong[0]!r}, which is not a value column.")
    for order in (form.order_by, *(group.order_by for group in form.groups)):
        if 0 < len({*order} & {*names}) < len(order):
            raise SchemaMismatch(
                f"{UNCHANGED!r} of row {row} names some of the columns {[*order]}, which are one order: "
                "name all or none of them"
            )


def make_deletion_error() -> SchemaMismatch:
    """Return the error for a column `_deleted` in a call whose rows cannot delete."""
    return SchemaMismatch(
        f"these rows are events, as debezium() and other readers of change data return them: their column {DELETED!r} "
        "says which of them delete their key. A write of rows deletes nothing."
    ).with_remedy("Create a keyed collection and give it the events by {upsert:call}, or drop the column.")


def _read_flags(column: pa.ChunkedArray) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return the column `_deleted` as booleans; NULL is false."""
    if not (pa.types.is_boolean(column.type) or pa.types.is_null(column.type)):
        raise SchemaMismatch(
            f"column {DELETED!r} has type {column.type}: it is true where the key is deleted, else false"
        )
    return get_boolean_values(combine_chunks(pc.fill_null(column.cast(pa.bool_()), False)))


def _finish_table(
    rows: pa.Table,
    deleted: "np.ndarray[Any, np.dtype[np.bool_]] | None",
    schema: CollectionSchema,
    form: KeyedForm,
    fields: tuple[pa.Field, ...],
    needed: _Needed,
    unchanged: "Mapping[str, pa.Array] | None" = None,
) -> EventTable:
    """Check an event table's required columns; add the columns of events."""
    check_keys(rows, schema)
    flags = pa.chunked_array([make_boolean_array(np.zeros(len(rows), np.bool_) if deleted is None else deleted)])
    if deleted is not None and deleted.any():
        rows = _order_deletions(rows, deleted, flags, form)
    if form.tombstone is not None and form.tombstone in rows.column_names:
        flags = pc.or_(flags, mark_tombstones(rows[form.tombstone], form))
    needed.check_required(rows, flags, unchanged or {})
    event_schema = make_event_schema(schema, fields)
    numbers = make_int64_array(np.arange(len(rows), dtype=np.int64))
    columns = {**dict(zip(rows.column_names, rows.columns, strict=True)), SEQ: numbers, DELETED: flags}
    # A copy, because they wait for others, and the caller may use the buffers again.
    table = copy_table(
        pa.Table.from_arrays([columns[field.name] for field in event_schema.arrow], schema=event_schema.arrow)
    )
    watermarks = None
    if form.order_by:
        first = form.order_by[0]
        lacks = (unchanged or {}).get(first)
        watermarks = bound_watermarks(rows[first] if lacks is None else rows[first].filter(pc.invert(lacks)))
    return EventTable(event_schema, table, watermarks)


def check_keys(rows: pa.Table | pa.RecordBatch, schema: CollectionSchema) -> None:
    """Raise InvalidUpdate if the key of a row is NULL."""
    names = schema.key_names
    if not all(rows[name].null_count for name in names):
        return
    nulls = [pc.is_null(rows[name]) for name in names]
    if (at := pc.index(reduce(pc.and_, nulls), True).as_py()) < 0:
        return
    where = f"the key column {names[0]!r}" if len(names) == 1 else f"all key columns, {[*names]}"
    raise InvalidUpdate(
        f"event {at} has NULL in {where}: an event is about one key, and NULL is none. Leave the event out, or fill "
        "the key in."
    )


def _order_deletions(
    rows: pa.Table, deleted: "np.ndarray[Any, np.dtype[np.bool_]]", flags: pa.ChunkedArray, form: KeyedForm
) -> pa.Table:
    """Mark deletions as tombstones; raise InvalidUpdate if they have no order."""
    first = int(np.flatnonzero(deleted)[0])
    if form.is_ordered and form.tombstone is None:
        raise InvalidUpdate(
            f"event {first} deletes its key, and a late event could bring it back: this collection orders events by "
            f"{describe_orders(form)} and has no tombstone column to keep what was deleted."
        ).with_remedy("Create one with {tombstone:option}.")
    says = mark_tombstones(rows[form.tombstone], form) if form.tombstone in rows.column_names else pa.scalar(False)
    # A row that is a tombstone by itself may have any watermark, as a row that is none may.
    lacking = pc.and_not(flags, says)
    if form.order_by and (lacking := pc.and_(lacking, pc.is_null(rows[form.order_by[0]]))).to_numpy().any():
        lacks = pc.index(lacking, True).as_py()
        raise InvalidUpdate(
            f"event {lacks} deletes its key and has no value in {form.order_by[0]!r}, by which events are ordered: it "
            f"would change nothing. Give rows with {', '.join(form.order_by)} and the tombstone, or _deleted."
        )
    if form.tombstone is None or form.tombstone not in rows.column_names:
        return rows
    column = mark_deletions(rows, form, flags)
    if column is None:
        raise InvalidUpdate(
            f"event {first} deletes its key, and its tombstone column {form.tombstone!r} is NULL, which says that it "
            f"does not: give rows in which it is not NULL."
        )
    return rows.set_column(rows.schema.get_field_index(form.tombstone), rows.schema.field(form.tombstone), column)


def _make_values_nullable(schema: CollectionSchema) -> CollectionSchema:
    """Return the schema with nullable value columns, as deletions need them."""
    fields = tuple(field.with_nullable(True) for field in schema.value.fields)
    return replace(schema, value=replace(schema.value, fields=fields))


def concat_events(tables: Sequence[EventTable]) -> EventTable:
    """Join the tables of events into one."""
    first, *later_tables = tables
    if not later_tables:
        return first
    table = pa.concat_tables([events.table for events in tables], promote_options="default")
    at = table.schema.get_field_index(SEQ)
    table = table.set_column(at, table.schema.field(at), make_int64_array(np.arange(len(table), dtype=np.int64)))
    known_watermarks = [events.watermarks for events in tables if events.watermarks is not None]
    marks = (
        (min(least for least, _ in known_watermarks), max(most for _, most in known_watermarks))
        if known_watermarks
        else None
    )
    return msgspec.structs.replace(first, table=table, watermarks=marks, ready=None)
