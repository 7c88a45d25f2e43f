"""Partial events: rows that have some value columns, and leave the others as they are.

    key columns, _seq, _deleted, value columns, _time, _diff, and a column without a name

The last column is NULL for a whole row. For a partial row it has the policy for a key that holds nothing, a space, and
"1" or "0" for each value column: whether the row has it. Columns that a row lacks are NULL in the table.

`complete_events` adds the missing columns, once the rows that the keys hold are known. It takes the events of each key
in the order of `persist.core.keyed.events.prepared`. A missing column has the value of the row before the event. With
`order_by`, an event changes nothing if an earlier row has a greater watermark. An event without the columns of the
watermark keeps the watermark of its row. A deletion leaves no values for later events.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from persist.codecs.errors import SchemaMismatch
from persist.codecs.evolution import read_default
from persist.codecs.order.arrays import boolean_array, boolean_values, int64_array, int64_values
from persist.codecs.order.ordering import combined
from persist.codecs.types.objects import to_dicts
from persist.codecs.types.schema import CollectionSchema
from persist.codecs.updates.inputs import tables_by_columns
from persist.codecs.updates.updates import Stamp
from persist.core.errors import InvalidUsage
from persist.core.keyed.events import Prepared, in_order_of_arrival, is_tombstone, number_groups
from persist.core.keyed.intake import EventTable, joined_events, to_events
from persist.core.keyed.machine import DELETED, GROUP, watermark_ranks, with_present_first
from persist.core.log.fields import KeyedForm
from persist.core.timeline import Timeline

GIVEN = ""  # No column of a collection has an empty name.
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
        missing: what becomes of a row if its key holds nothing.

    Raises:
        SchemaMismatch, InvalidUpdate: as `to_events`; or a row lacks a key column.
        InvalidUsage: missing is not one of the policies.
    """
    if missing not in get_args(Missing):
        raise InvalidUsage(f'missing={missing!r} is not a policy for missing keys: use "error", "insert" or "ignore"')
    pieces, numbers = list[EventTable](), list[Sequence[int]]()
    for table, rows in tables_by_columns(data, schema):
        columns = [name for name in schema.value_names if name in table.column_names]
        _check_columns(table, columns, schema, form, missing)
        for name in schema.value_names:
            if name not in columns:
                table = table.append_column(name, pa.nulls(len(table), schema.arrow.field(name).type))
        events = to_events(table, schema, form, stamp, timeline, may_delete=False, columns=columns)
        bits = "".join("01"[name in columns] for name in schema.value_names)
        texts = pa.chunked_array([pa.repeat(pa.scalar(f"{missing} {bits}"), len(table))])
        marks = events.watermarks if {*form.order_by} <= {*columns} else None
        pieces.append(replace(events, table=events.table.append_column(GIVEN, texts), watermarks=marks))
        numbers.append(rows)
    if not pieces:
        nothing = schema.arrow.empty_table().drop_columns(["_diff", "_time"])
        return to_events(nothing, schema, form, stamp, timeline)
    if len({piece.at_commit for piece in pieces}) > 1:
        raise SchemaMismatch("some rows have a '_time', and others do not: give a time to all of them or to none")
    joined = joined_events(pieces)
    if len(pieces) == 1:
        return joined
    order = np.argsort(np.concatenate([np.asarray(rows, np.int64) for rows in numbers]))
    return replace(joined, table=in_order_of_arrival(joined.table.take(int64_array(order))))


def _check_columns(
    table: pa.Table, columns: Sequence[str], schema: CollectionSchema, form: KeyedForm, missing: Missing
) -> None:
    if DELETED in table.column_names:
        raise SchemaMismatch(
            f"the rows of an update have a column {DELETED!r}, and an update deletes nothing. Drop it."
        )
    if lacking := [name for name in schema.key_names if name not in table.column_names]:
        raise SchemaMismatch(
            f"a row lacks the key column {lacking[0]!r}: an update finds rows by {[*schema.key_names]}"
        )
    if 0 < len({*form.order_by} & {*columns}) < len(form.order_by):
        raise SchemaMismatch(f"a row has some of the columns {[*form.order_by]} of order_by: give all or none of them")
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
    """The rows that keys hold and their events, in the order of keys, then of events.

    Attributes:
        rows: of both tables.
        order: the row at each place; rows of events begin at start.
        group: the number of the key at each place; first: the first place of that key.
        codes: the number of the text of `GIVEN` at each place; -1 for whole rows.
        texts: by that number.
        deletes: whether the key holds nothing after the place.
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
        """Return the rows of both in their order; columns that events lack have their defaults."""
        schema, events = ready.schema, ready.events
        encoded = combined(events[GIVEN]).dictionary_encode()
        texts = encoded.dictionary.to_pylist()
        codes = int64_values(encoded.indices.cast(pa.int64()).fill_null(-1))
        columns = dict(zip(schema.names, events.select(schema.names).columns, strict=True))
        for at, name in enumerate(schema.value_names):
            default = read_default(schema, name)
            if default.is_valid:
                lacks = np.array([*(not _has(text, at) for text in texts), False])[codes]
                columns[name] = pc.if_else(boolean_array(lacks), default, columns[name])
        whole = pa.Table.from_arrays([*columns.values()], names=[*columns])
        rows = pa.concat_tables([present.select(schema.names), whole]).combine_chunks()
        dead = np.zeros(len(present), np.bool_)
        if form.tombstone is not None:
            dead = boolean_values(combined(is_tombstone(present[form.tombstone], form)))
        order, group = with_present_first(groups, int64_values(combined(events[GROUP])))
        first = np.maximum.accumulate(np.where(np.append(True, group[1:] != group[:-1]), np.arange(len(group)), 0))
        deletes = np.concatenate([dead, boolean_values(combined(events[DELETED]))])[order]
        codes = np.concatenate([np.full(len(present), -1), codes])[order]
        return cls(rows, len(present), order, group, first, codes, texts, deletes)

    def by_text(self, value: list[bool]) -> Flags:
        """Return a value at each place, from a value for each text; True for whole rows."""
        return np.array([*value, True])[self.codes]

    def last(self, flags: Flags) -> Ints:
        """Return the last place up to each one, of the same key, at which a flag is set; -1 without one."""
        places = np.maximum.accumulate(np.where(flags, np.arange(len(flags)), -1))
        return np.where(places >= self.first, places, -1)


def complete_events(ready: Prepared, present: pa.Table, form: KeyedForm, name: str) -> tuple[Prepared, pa.Table]:
    """Return events with the columns that they lack, and the rows that their keys hold.

    Events that change nothing are left out, and keys without events.

    Args:
        present: the rows that the keys hold, tombstones among them; perhaps with `_diff`.
        name: of the collection, for errors.

    Raises:
        InvalidUsage: a key holds several rows; or it holds none, and the policy for that is "error".
    """
    if GIVEN not in ready.events.column_names or not len(ready.events):
        return ready, present
    groups = number_groups(present, ready.keys)
    rows = _Sequence.of(ready, present, groups, form)
    places, is_partial, is_event = np.arange(len(rows.order)), rows.codes >= 0, rows.order >= rows.start
    _check_one_row(ready, present, groups, rows.group[is_partial], name)
    stands = _stands(rows, form, ready.schema)
    # Whole rows, deletions, and rows that may be inserted decide whether a key holds a row.
    decides = stands & (~is_partial | rows.deletes | rows.by_text([text.startswith("insert") for text in rows.texts]))
    previous = np.append(-1, rows.last(decides)[:-1])
    is_there = (previous >= rows.first) & ~rows.deletes[previous]
    is_missing = is_partial & stands & ~is_there & ~rows.deletes
    refused = is_missing & rows.by_text([text.startswith("error") for text in rows.texts])
    if refused.any():
        raise _missing_keys(ready.keys.take(int64_array(np.unique(rows.group[refused]))), name)
    counts = stands & (~is_missing | decides)
    chosen = places[is_event & counts]
    columns = dict(
        zip(
            ready.events.column_names,
            ready.events.take(int64_array(rows.order[chosen] - rows.start)).columns,
            strict=True,
        )
    )
    for at, column in enumerate(ready.schema.value_names):
        gives = counts & rows.by_text([_has(text, at) for text in rows.texts])
        if column not in form.order_by:  # A tombstone leaves its watermark to what follows.
            gives |= is_missing & decides
        source = rows.last(gives)[chosen]
        source = np.where(source < 0, chosen, source)
        columns[column] = rows.rows[column].take(int64_array(rows.order[source]))
    del columns[GIVEN]
    some, numbers = np.unique(rows.group[chosen], return_inverse=True)
    columns[GROUP] = int64_array(numbers.astype(np.int64))
    schema = pa.schema([ready.events.schema.field(column) for column in columns])
    events = pa.Table.from_arrays([*columns.values()], schema=schema)
    if len(some) == len(ready.keys):
        return replace(ready, events=events), present
    keys = ready.keys.take(int64_array(some))
    return replace(ready, keys=keys, events=events), present.filter(boolean_array(np.isin(groups, some)))


def _has(text: str, at: int) -> bool:
    """Return whether a row has the value column at a place, from its text."""
    return text.split(" ")[1][at] == "1"


def _stands(rows: _Sequence, form: KeyedForm, schema: CollectionSchema) -> Flags:
    """Return whether rows count: no row before has a greater watermark, or they keep that watermark."""
    if not form.order_by or not len(rows.order):
        return np.ones(len(rows.order), np.bool_)
    at = schema.value_names.index(form.order_by[0])
    has_mark = rows.by_text([_has(text, at) for text in rows.texts])
    ranks = np.where(has_mark, watermark_ranks(rows.rows, form.order_by)[rows.order] + 1, 0)
    placed = rows.group * (int(ranks.max()) + 1) + ranks
    stands: Flags = (np.maximum.accumulate(placed) == placed) | ~has_mark
    return stands


def _check_one_row(ready: Prepared, present: pa.Table, groups: Ints, partial: Ints, name: str) -> None:
    """Raise InvalidUsage if a key with a partial event holds several rows."""
    diffs = int64_values(combined(present["_diff"])) if "_diff" in present.column_names else np.ones(len(present))
    counts = np.bincount(groups, weights=np.abs(diffs), minlength=len(ready.keys))
    if not (counts > 1).any():
        return
    several = np.intersect1d(np.flatnonzero(counts > 1), partial)
    if len(several):
        raise InvalidUsage(
            f"{name!r} has several rows for {_describe_keys(ready.keys.take(int64_array(several)))}, and an update "
            "changes one row for each key: use an UPDATE statement, or upsert whole rows"
        )


def _missing_keys(keys: pa.Table, name: str) -> InvalidUsage:
    return InvalidUsage(
        f"{name!r} has no row to update for {_describe_keys(keys)}; nothing was written. "
        'missing="insert" inserts such rows, with NULL or the default in columns that they lack; missing="ignore" '
        "leaves them out"
    )


def _describe_keys(keys: pa.Table) -> str:
    some = to_dicts(keys.slice(0, _KEYS_MAX))
    texts = [", ".join(f"{name}={value!r:.80}" for name, value in key.items()) for key in some]
    more = [f"{len(keys) - len(some):,} more keys"] if len(keys) > len(some) else []
    return " and ".join(["; ".join(texts), *more])
