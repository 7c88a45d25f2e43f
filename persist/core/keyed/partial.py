"""Events that change a part of a row: partial events, and the groups of columns with an order of their own.

A partial event has some value columns, and does not change the others:

    key columns, _seq, _deleted, value columns, _time, _diff, and a column without a name

The last column is NULL for a whole event. For a partial event it has the policy for a key without a row, a space, and
"1" or "0" for each value column: whether the event has it. Columns that an event lacks are NULL in the table.

The value columns of a collection form units. Each declared group is one, with its ordering columns. All other columns
are the first unit, which `order_by` orders. An event has a group whole or not at all.

`complete_events` turns events into whole rows, given the present rows of the keys. It processes the events of each key
in the order of `persist.core.keyed.events.prepare_events`. Invariants, for each key:

- A unit of a row has the columns of the last event that set it, and whose order was not less than all before it. NULL
  is the least order. So units do not depend on each other, and a late event changes just the units in which it is not
  late.
- A missing column has the value of the row before the event. An event without the ordering columns of a unit keeps the
  order of its row, and always counts there.
- The first unit has the tombstone, so it determines whether the key has a row. An event with groups alone never
  restores a deleted key. A partial deletion of a key without a row and without a tombstone obeys the policy.
- A deletion removes the values of the first unit. A group loses its values, too, unless the deletion has a lower order
  for the group than the group itself. The order of each group stays in the tombstone, so older events of the group stay
  late. While a key is deleted, later events of a group are kept in the tombstone.
- The result has one row for each event that changes something, so the steps of resolution compose.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from persist.codecs.errors import SchemaMismatch
from persist.codecs.evolution import read_default
from persist.codecs.order.arrays import get_boolean_values, get_int64_values, make_boolean_array, make_int64_array
from persist.codecs.order.ordering import combine_chunks
from persist.codecs.types.objects import to_dicts
from persist.codecs.types.schema import CollectionSchema
from persist.codecs.updates.inputs import iterate_tables_by_columns
from persist.codecs.updates.updates import Stamp
from persist.core.errors import InvalidUsage
from persist.core.keyed.events import Prepared, has_column, mark_tombstones, number_by_arrival, number_groups
from persist.core.keyed.intake import EventTable, concat_events, to_events
from persist.core.keyed.machine import DELETED, GIVEN, GROUP, merge_present_first, rank_watermarks
from persist.core.log.fields import KeyedForm
from persist.core.state_rules.keyed_rules import UNCHANGED
from persist.core.timeline import Timeline

Missing = Literal["error", "insert", "ignore"]
_KEYS_MAX = 10
Flags = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]


def to_partial_events(
    data: Any,
    schema: CollectionSchema,
    form: KeyedForm,
    stamp: Stamp | None,
    timeline: Timeline | None,
    missing: Missing,
) -> EventTable:
    """Return rows that may lack value columns as events.

    Args:
        data: dicts, which may have different columns; tables, frames and streams of these.
        missing: the policy for a row whose key has no stored row.
    """
    if missing not in get_args(Missing):
        raise InvalidUsage(f'missing={missing!r} is not a policy for missing keys: use "error", "insert" or "ignore"')
    pieces, numbers = list[EventTable](), list[Sequence[int]]()
    for table, rows in iterate_tables_by_columns(data, schema):
        columns = [name for name in schema.value_names if name in table.column_names]
        _check_columns(table, columns, schema, form, missing)
        for name in schema.value_names:
            if name not in columns:
                table = table.append_column(name, pa.nulls(len(table), schema.arrow.field(name).type))
        events = to_events(table, schema, form, stamp, timeline, may_delete=False, columns=columns)
        bits = "".join("01"[name in columns] for name in schema.value_names)
        texts = pa.chunked_array([pa.repeat(pa.scalar(f"{missing} {bits}"), len(table))])
        marks = events.watermarks if {*form.order_by} <= {*columns} else None
        pieces.append(msgspec.structs.replace(events, table=events.table.append_column(GIVEN, texts), watermarks=marks))
        numbers.append(rows)
    if not pieces:
        nothing = schema.arrow.empty_table().drop_columns(["_diff", "_time"])
        return to_events(nothing, schema, form, stamp, timeline)
    if len({piece.at_commit for piece in pieces}) > 1:
        raise SchemaMismatch("some rows have a '_time', and others do not: give a time to all of them or to none")
    joined = concat_events(pieces)
    if len(pieces) == 1:
        return joined
    order = np.argsort(np.concatenate([np.asarray(rows, np.int64) for rows in numbers]))
    return msgspec.structs.replace(joined, table=number_by_arrival(joined.table.take(make_int64_array(order))))


def _check_columns(
    table: pa.Table, columns: Sequence[str], schema: CollectionSchema, form: KeyedForm, missing: Missing
) -> None:
    """Raise SchemaMismatch unless partial rows have the required columns."""
    if DELETED in table.column_names:
        raise SchemaMismatch(
            f"the rows of an update have a column {DELETED!r}, and an update deletes nothing. Drop it."
        )
    if UNCHANGED in table.column_names and UNCHANGED not in schema.names:
        raise SchemaMismatch(
            f"the rows of an update have a column {UNCHANGED!r}, and an update leaves the columns as they are that its "
            "rows lack: leave such columns out, or give the events by upsert()"
        )
    if lacking := [name for name in schema.key_names if name not in table.column_names]:
        raise SchemaMismatch(
            f"a row lacks the key column {lacking[0]!r}: an update finds rows by {[*schema.key_names]}"
        )
    if 0 < len({*form.order_by} & {*columns}) < len(form.order_by):
        raise SchemaMismatch(f"a row has some of the columns {[*form.order_by]} of order_by: give all or none of them")
    for group in form.groups:
        if 0 < len({*group.names} & {*columns}) < len(group.names):
            raise SchemaMismatch(f"a row has some of the columns {[*group.names]} of a group: give all or none of them")
    defaults = {id_ for id_, _ in schema.defaults}
    for name, id_ in zip(schema.names, schema.ids, strict=True):
        is_needed = name in schema.required and name not in (*columns, *schema.key_names) and id_ not in defaults
        if missing == "insert" and is_needed:
            raise SchemaMismatch(
                f'a row lacks {name!r}, which is not null by the schema (nullable=False), so missing="insert" '
                "cannot insert it: give the column, or use another policy"
            )


@dataclass(frozen=True, slots=True)
class _Sequence:
    """Present rows and events, sorted by key; rows come before events.

    Attributes:
        rows: the present rows, then the events, which begin at row `start`.
        order: the row at each place of the order.
        group: the number of the key at each place; first: the first place of that key.
        codes: at each place, the index of the event's text in `texts`; -1 for whole rows.
        texts: the distinct texts of `GIVEN`, which say what columns an event sets.
        deletes: whether the key has no row after the place.
    """

    rows: pa.Table
    start: int
    order: Ints
    group: Ints
    first: Ints
    codes: Ints
    texts: list[str]
    deletes: Flags

    @classmethod
    def of(cls, ready: Prepared, present: pa.Table, groups: Ints, form: KeyedForm) -> "_Sequence":
        """Merge present rows and events by key; events' missing columns get defaults."""
        schema, events = ready.schema, ready.events
        texts, codes = list[str](), np.full(len(events), -1)
        if GIVEN in events.column_names:
            encoded = combine_chunks(events[GIVEN]).dictionary_encode()
            texts = encoded.dictionary.to_pylist()
            codes = get_int64_values(encoded.indices.cast(pa.int64()).fill_null(-1))
        columns = dict(zip(schema.names, events.select(schema.names).columns, strict=True))
        for at, name in enumerate(schema.value_names):
            default = read_default(schema, name)
            if default.is_valid:
                lacks = np.array([*(not has_column(text, at) for text in texts), False])[codes]
                columns[name] = pc.if_else(make_boolean_array(lacks), default, columns[name])
        for name in [name for group in form.groups for name in group.columns]:
            columns[name] = pc.if_else(events[DELETED], pa.scalar(None, columns[name].type), columns[name])
        whole = pa.Table.from_arrays([*columns.values()], names=[*columns])
        rows = pa.concat_tables([present.select(schema.names), whole]).combine_chunks()
        dead = np.zeros(len(present), np.bool_)
        if form.tombstone is not None:
            dead = get_boolean_values(combine_chunks(mark_tombstones(present[form.tombstone], form)))
        order, group = merge_present_first(groups, get_int64_values(combine_chunks(events[GROUP])))
        first = np.maximum.accumulate(np.where(np.append(True, group[1:] != group[:-1]), np.arange(len(group)), 0))
        deletes = np.concatenate([dead, get_boolean_values(combine_chunks(events[DELETED]))])[order]
        codes = np.concatenate([np.full(len(present), -1), codes])[order]
        return cls(rows, len(present), order, group, first, codes, texts, deletes)

    def expand_by_text(self, flags: list[bool]) -> Flags:
        """Return at each place its text's flag; True for whole rows."""
        return np.array([*flags, True])[self.codes]

    def mark_having(self, name: str, schema: CollectionSchema) -> Flags:
        """Return at which places the event has this value column."""
        at = schema.value_names.index(name)
        return self.expand_by_text([has_column(text, at) for text in self.texts])

    def find_last(self, flags: Flags) -> Ints:
        """Return for each place the last flagged place of its key up to it; -1 without one."""
        places = np.maximum.accumulate(np.where(flags, np.arange(len(flags)), -1))
        return np.where(places >= self.first, places, -1)

    def find_last_before(self, flags: Flags) -> Ints:
        """Return for each place the last flagged place of its key before it; -1 without one."""
        places = np.append(-1, self.find_last(flags)[:-1])
        return np.where(places >= self.first, places, -1)

    def mark_greatest_so_far(self, order_by: Sequence[str], is_set: Flags) -> Flags:
        """Return at which places no earlier event of the key ranks higher."""
        if not order_by or not len(self.order):
            return np.ones(len(self.order), np.bool_)
        ranks = np.where(is_set, rank_watermarks(self.rows, order_by)[self.order] + 1, 0)
        placed = self.group * (int(ranks.max()) + 1) + ranks
        stands: Flags = (np.maximum.accumulate(placed) == placed) | ~is_set
        return stands


@dataclass(frozen=True, slots=True)
class _Units:
    """Which events change which independently ordered groups of columns (units).

    Attributes:
        counts: whether the event changes the first unit: the columns outside of groups.
        begins: whether it does so for a key without a row.
        is_first: whether it does so for a key without a row and without a tombstone that counts.
        grouped: for each column of a group, whether the event sets it.
        earlier: the last earlier place that may have made a row of its key; -1 without one.
        refused: whether the key has no row, and its policy is "error".
    """

    counts: Flags
    begins: Flags
    is_first: Flags
    grouped: dict[str, Flags]
    earlier: Ints
    refused: Flags

    @classmethod
    def of(cls, rows: _Sequence, form: KeyedForm, schema: CollectionSchema, floor: pa.Scalar | None) -> "_Units":
        """Compute for each event which groups of columns it changes."""
        is_partial = rows.codes >= 0
        makes = rows.expand_by_text([text.startswith("insert") for text in rows.texts])
        earlier = rows.find_last_before(makes)
        is_known = makes | (earlier >= 0)  # Other events are left out, whatever their orders are.
        grouped = {name for group in form.groups for name in group.names}
        touches = earlier < 0
        for name in schema.value_names:
            if name not in grouped:
                touches |= rows.mark_having(name, schema)
        touches |= rows.expand_by_text(["1" not in text for text in rows.texts])
        has_order = is_known & rows.mark_having(form.order_by[0], schema) if form.order_by else np.zeros_like(is_known)
        is_recent = np.ones_like(is_known)
        if floor is not None:
            marks = pc.fill_null(pc.greater_equal(combine_chunks(rows.rows[form.order_by[0]]), floor), False)
            is_recent = get_boolean_values(marks)[rows.order]
        while True:
            stands = touches & rows.mark_greatest_so_far(form.order_by, has_order)
            # Whole rows, deletions, and rows that may be inserted decide whether a key holds a row.
            previous = rows.find_last_before(stands & (makes | rows.deletes))
            is_there = (previous >= 0) & ~rows.deletes[previous]
            # A deletion may also change a tombstone that is not below the floor.
            is_forgotten = ~is_there & (
                (earlier < 0) if floor is None else (rows.find_last_before(has_order & is_recent) < 0)
            )
            is_missing = is_partial & stands & np.where(rows.deletes, is_forgotten, ~is_there)
            # The watermark of an event that is left out does not count. The first one of each key is certain.
            ignored = is_missing & ~makes & has_order
            if not ignored.any():
                break
            has_order &= ~(ignored & (rows.find_last_before(ignored) < 0))
        counts = stands & (~is_missing | makes)
        refused = is_missing & rows.expand_by_text([text.startswith("error") for text in rows.texts])
        setters = _group_setters(rows, is_known, counts, form, schema)
        begins = is_missing & makes
        return cls(counts, begins, begins & is_forgotten, setters, earlier, refused)


def _group_setters(
    rows: _Sequence, is_known: Flags, counts: Flags, form: KeyedForm, schema: CollectionSchema
) -> dict[str, Flags]:
    """Return for each column in a group which events set it.

    `is_known`: whether the key may have a row; `counts`: whether the event changes the first unit.
    """
    setters = dict[str, Flags]()
    for group in form.groups:
        has_order = rows.mark_having(group.order_by[0], schema)
        has = is_known & has_order
        has_value = np.logical_or.reduce(
            [get_boolean_values(combine_chunks(pc.is_valid(rows.rows[name])))[rows.order] for name in group.order_by]
        )
        sets = has & rows.mark_greatest_so_far(group.order_by, has)
        ends = counts & rows.deletes & ~(has & has_value)
        keeps_order = is_known & ~has_order & ~rows.deletes
        setters |= dict.fromkeys(group.order_by, sets)
        for name in group.columns:
            is_there = rows.mark_having(name, schema)
            setters[name] = (sets & (is_there | rows.deletes)) | (keeps_order & is_there) | ends
    return setters


def complete_events(
    ready: Prepared,
    present: pa.Table,
    form: KeyedForm,
    name: str,
    on_refused: Callable[[pa.Table], object] | None = None,
    find_floor: Callable[[], pa.Scalar | None] = lambda: None,
) -> tuple[Prepared, pa.Table]:
    """Fill the missing columns of partial events; return events and present rows.

    Events that change nothing, and keys without remaining events, are left out. All other events count, whatever their
    order.

    Args:
        present: the present rows of the keys, including tombstones; perhaps with `_diff`.
        name: of the collection, for errors.
        find_floor: returns the least order that a tombstone must have to count; called if it may matter.
        on_refused: called with the events that a policy refuses, which are then left out.
    """
    is_partial = GIVEN in ready.events.column_names
    if not (is_partial or form.groups) or not len(ready.events):
        return ready, present
    groups = number_groups(present, ready.keys)
    rows = _Sequence.of(ready, present, groups, form)
    _check_one_row(ready, present, groups, rows.group[rows.codes >= 0], name)
    floor = find_floor() if _depends_on_floor(rows, form, ready.schema) else None
    units = _Units.of(rows, form, ready.schema, floor)
    if units.refused.any() and on_refused is not None:
        on_refused(ready.events.take(make_int64_array(rows.order[units.refused] - rows.start)))
    elif units.refused.any():
        raise _make_missing_keys_error(ready.keys.take(make_int64_array(np.unique(rows.group[units.refused]))), name)
    changes = np.logical_or.reduce([units.counts, *units.grouped.values()])
    chosen = np.flatnonzero((rows.order >= rows.start) & changes)
    columns = dict(
        zip(
            ready.events.column_names,
            ready.events.take(make_int64_array(rows.order[chosen] - rows.start)).columns,
            strict=True,
        )
    )
    fallback = np.where(units.counts, np.arange(len(rows.order)), units.earlier)[chosen]
    for column, sets in _find_setters(rows, units, form, ready.schema).items():
        source = rows.find_last(sets)[chosen]
        columns[column] = rows.rows[column].take(make_int64_array(rows.order[np.where(source < 0, fallback, source)]))
    columns.pop(GIVEN, None)
    some, numbers = np.unique(rows.group[chosen], return_inverse=True)
    columns[GROUP] = make_int64_array(numbers.astype(np.int64))
    schema = pa.schema([ready.events.schema.field(column) for column in columns])
    events = pa.Table.from_arrays([*columns.values()], schema=schema)
    if len(some) == len(ready.keys):
        return replace(ready, events=events), present
    keys = ready.keys.take(make_int64_array(some))
    return replace(ready, keys=keys, events=events), present.filter(make_boolean_array(np.isin(groups, some)))


def _depends_on_floor(rows: _Sequence, form: KeyedForm, schema: CollectionSchema) -> bool:
    """Return whether `complete_events` must know which tombstones still count."""
    if not form.order_by:
        return False
    asks = (rows.codes >= 0) & (rows.deletes | ~rows.mark_having(form.order_by[0], schema))
    return bool((asks & (rows.find_last_before(rows.deletes) >= 0)).any())


def _find_setters(rows: _Sequence, units: _Units, form: KeyedForm, schema: CollectionSchema) -> dict[str, Flags]:
    """Return for each value column which events set it."""
    setters = dict(units.grouped)
    for name in schema.value_names:
        if name not in setters:
            begins = units.begins if name not in form.order_by else units.is_first
            setters[name] = units.counts & (rows.mark_having(name, schema) | begins)
    return setters


def _check_one_row(ready: Prepared, present: pa.Table, groups: Ints, partial: Ints, name: str) -> None:
    """Raise InvalidUsage if a key with a partial event has several rows."""
    diffs = (
        get_int64_values(combine_chunks(present["_diff"])) if "_diff" in present.column_names else np.ones(len(present))
    )
    counts = np.bincount(groups, weights=np.abs(diffs), minlength=len(ready.keys))
    if not (counts > 1).any():
        return
    several = np.intersect1d(np.flatnonzero(counts > 1), partial)
    if len(several):
        raise InvalidUsage(
            f"{name!r} has several rows for {_describe_keys(ready.keys.take(make_int64_array(several)))}, and an "
            "update changes one row for each key: use an UPDATE statement, or upsert whole rows"
        )


def _make_missing_keys_error(keys: pa.Table, name: str) -> InvalidUsage:
    """Return the error for partial events whose keys have no row."""
    return InvalidUsage(
        f"{name!r} has no row to update for {_describe_keys(keys)}; nothing was written. "
        'missing="insert" inserts such rows, with NULL or the default in columns that they lack; missing="ignore" '
        "leaves them out"
    )


def _describe_keys(keys: pa.Table) -> str:
    """Return a few keys as text for messages."""
    some = to_dicts(keys.slice(0, _KEYS_MAX))
    texts = [", ".join(f"{name}={value!r:.80}" for name, value in key.items()) for key in some]
    more = [f"{len(keys) - len(some):,} more keys"] if len(keys) > len(some) else []
    return " and ".join(["; ".join(texts), *more])
