"""The updates of a collection in an interval of times: an exact change feed, also as upserts for sinks with keys.

Updates are consolidated per (key, value, time), and ordered by time, then key. The retractions of a key come before its
insertions, so a sink that applies them in this order never has two values of a key. The contents as of `lower - 1` plus
the changes in `[lower, upper)` are exactly the contents as of `upper - 1`.

`Upserts` yields the changes of a keyed collection as `(key, value or None, time)`. At each time, a key has either a new
value (its inserted row) or none, and then its event deletes. Another keyed collection that gets these events has the
same changes. Therefore tombstones are events, too, which delete and carry their watermark. The removal of an unneeded
tombstone is not an event.

`Transitions` pairs retractions with insertions, by key, at each time. A pair is an update with the old and the new
value; an unpaired row is an insert or a delete. Several records of a key are paired in the order of values, so the
result is deterministic.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from persist.codecs.order.arrays import get_boolean_values, get_int64_values, make_boolean_array, make_int64_array
from persist.codecs.order.digits import mark_changes
from persist.codecs.order.ordering import combine_chunks, make_order_keys, sort_table
from persist.codecs.order.sums import consolidate
from persist.codecs.part.part import Part
from persist.codecs.types.schema import CollectionSchema
from persist.codecs.updates.tuples import iterate_rows, iterate_tuples
from persist.core.closing import Closes
from persist.core.errors import InvalidUsage
from persist.core.keyed.events import mark_tombstones
from persist.core.keyed.machine import DELETED
from persist.core.log.fields import KeyedForm
from persist.core.timeline import Timeline, format_time, read_timeline
from persist.engine.read.merging import COPIES_MAX
from persist.engine.read.parts.reader import ClaimedRead, PartReader
from persist.engine.read.planning.scan import Scan, narrow_scan
from persist.engine.read.results.result import ArrowResult


def read_changes(scan: Scan, reader: PartReader, *, retractions_first: bool = False) -> pa.Table:
    """Return the updates of one slice: its columns, `_time`, `_diff`. Memory: its updates.

    They are sorted by time, key and value; with retractions_first, the retractions of a key come first.

    Raises:
        CorruptBlob: a part is missing or damaged.
        DiffOverflow: the diffs of equal updates sum to more than int64 holds.
    """
    if not scan.parts:
        return read_no_changes(scan)
    names = [*scan.columns, "_time", "_diff"]
    keys = [name for name in scan.schema.key_names if name in scan.columns]
    apart = _order_disjoint_parts(scan)
    updates = pa.concat_tables([scan.empty(names), *scan.updates(reader, names, apart)])
    order = None
    if apart is None:
        by = ["_time", *keys, *(name for name in scan.columns if name not in keys)]
        updates = consolidate(updates, by).select(names)
    else:
        order = _order_by_time(get_int64_values(combine_chunks(updates["_time"])))
    if retractions_first:
        order = _order_retractions_first(updates, keys, order)
    return scan.cast_to_result(updates if order is None else updates.take(make_int64_array(order)))


def read_no_changes(scan: Scan) -> pa.Table:
    """Return an empty table with the columns of `read_changes`."""
    return scan.cast_to_result(scan.empty([*scan.columns, "_time", "_diff"]))


def read_all_changes(scan: Scan, reading: ClaimedRead) -> pa.Table:
    """Return all updates of a plan as `read_changes` does. Memory: the result, and a quarter of the budget."""
    reader = reading()
    if scan.memory <= reader.changes_slice_bytes or not {*scan.schema.key_names} <= {*scan.columns}:
        return read_changes(scan, reader)
    return pa.concat_tables(
        [
            read_changes(scan_slice, reading.check(reader))
            for some in slice_by_time(scan, reader.changes_slice_bytes)
            for scan_slice in some
        ]
    )


def slice_by_time(whole: Scan, bytes_max: int) -> Iterator[list[Scan]]:
    """Yield the intervals of time of a plan, each as slices of about `bytes_max` in key order.

    An interval of several times is one slice. The updates of a single large time are cut by keys, because they are in
    key order.
    """
    if whole.memory <= bytes_max:
        yield [whole]
        return
    for scan in whole.time_slices(bytes_max):
        is_one_time = scan.time_upper - scan.time_lower == 1
        yield scan.cut_into_slices(bytes_max) if is_one_time else [scan]


def _order_disjoint_parts(scan: Scan) -> list[Part] | None:
    """Return the parts of a scan in time order, if no two have updates of the same time; else None.

    If all columns are read as stored, the rows of a part are distinct and sorted by key, value and time. So sorting
    them by time suffices, which takes less than half the time of a consolidation.
    """
    if scan.columns != tuple(scan.schema.names) or any(part.make_lift(scan.schema) for part in scan.parts):
        return None
    parts = sorted(scan.parts, key=lambda part: part.time_min)
    return parts if all(earlier.time_max < later.time_min for earlier, later in pairwise(parts)) else None


def _order_by_time(times: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """Return a stable order of updates by time; None if they are sorted."""
    if not len(times) or (times[1:] >= times[:-1]).all():
        return None
    times = times - times.min()
    if times.max() <= 0xFFFF:  # NumPy sorts these by their digits, in a tenth of the time.
        times = times.astype(np.uint16)
    return np.argsort(times, kind="stable")


def _order_retractions_first(
    updates: pa.Table, keys: Sequence[str], order: NDArray[np.int64] | None
) -> NDArray[np.int64] | None:
    """Return an order with the retractions first for each time and key; None if updates already have it.

    `order`: the order of the updates by time, then key; None if they are sorted.
    """
    comes = get_int64_values(combine_chunks(updates["_diff"])) > 0
    if comes.all() or not comes.any():
        return order
    alike = updates.select(["_time", *keys])
    if order is not None:
        comes, alike = comes[order], alike.take(make_int64_array(order))
    starts = np.ones(len(comes), np.bool_)
    starts[1:] = reduce(np.logical_or, map(mark_changes, make_order_keys(alike, alike.column_names)))
    # Neighbours of one time and key: an insertion, then a retraction.
    wrong = np.flatnonzero(comes[:-1] & ~comes[1:] & ~starts[1:])
    if not len(wrong):
        return order
    order = np.arange(len(comes)) if order is None else order
    if (starts[1:-1] | starts[2:]).all():  # There are at most two of each.
        order[wrong], order[wrong + 1] = order[wrong + 1], order[wrong]
        return order
    return order[np.argsort(2 * np.cumsum(starts) + comes, kind="stable")]


def show_moments(updates: pa.Table, moments: Timeline | None) -> pa.Table:
    """Return updates with `_time` as timestamps of a timeline, if there is one."""
    if moments is None:
        return updates
    at = updates.schema.get_field_index("_time")
    field = pa.field("_time", moments.moment_type, nullable=False)
    return updates.set_column(at, field, moments.to_moments(updates["_time"]))


class Changes(ArrowResult):
    """The updates in `[lower, upper)`; see `Collection.changes`. Nothing is read before a method is called."""

    _INTERNAL = frozenset({"moments", "scan", "slices", "transitions"})

    def __init__(
        self,
        scan: Scan,
        reading: ClaimedRead,
        moments: Timeline | None = None,
        transitions: "Transitions | None" = None,
    ) -> None:
        """Plan changes.

        Args:
            moments: the timeline of `_time` as timestamps; None for numbers.
            transitions: converts the updates to transitions; None to return the updates.
        """
        super().__init__(reading)
        self.moments = moments
        self.lower = scan.time_lower
        self.upper = scan.time_upper
        self.scan = scan
        self.transitions = transitions

    @property
    def schema(self) -> pa.Schema:
        """The requested columns, `_time` and `_diff`; or `Transitions.schema`."""
        if self.transitions is not None:
            plain = self.transitions.schema
        else:
            plain = pa.schema([self.scan.result_schema.arrow.field(n) for n in (*self.scan.columns, "_time", "_diff")])
        return plain if self.moments is None else show_moments(plain.empty_table(), self.moments).schema

    def slices(self, count: int) -> list[Scan]:
        """Return at most count plans for `read_changes` that together are these changes."""
        return self.scan.slices(count)

    def updates(self) -> Iterator[tuple[tuple[Any, Any], int, int]]:
        """Yield `((key, value), time, diff)` tuples, whose times are numbers, in either form."""
        with self._reading.explain_missing():
            for table in self._read_scan(self.scan):
                yield from iterate_tuples(table, self.scan.result_schema)

    def _read(self) -> Iterator[pa.Table]:
        for updates in self._read_scan(self.scan):
            table = updates if self.transitions is None else self.transitions.of(updates)
            yield show_moments(table, self.moments)

    def _read_narrowed(self, columns: Sequence[str], filter: pc.Expression | None) -> Iterator[pa.Table]:
        # A transition needs all updates of its key and time, so none may be filtered out.
        scan = narrow_scan(self.scan, filter) if self.transitions is None else None
        if scan is None:
            yield from super()._read_narrowed(columns, filter)
            return
        with self._reading.explain_missing():
            yield from (show_moments(updates, self.moments) for updates in self._read_scan(scan))

    def _read_scan(self, whole: Scan) -> Iterator[pa.Table]:
        """Yield the updates of a plan, slice by slice in time order."""
        reader = self._reading()
        for slices in slice_by_time(whole, reader.changes_slice_bytes):
            for scan_slice in slices:
                yield read_changes(scan_slice, self._reading.check(reader), retractions_first=True)

    def __repr__(self) -> str:
        lower, upper = (format_time(time, read_timeline(self.scan.schema)) for time in (self.lower, self.upper))
        return f"{type(self).__name__}({lower}, {upper}, columns={list(self.scan.columns)})"


class Difference(Changes):
    """The difference of the contents as of two times; see `Collection.diff`. Memory: the updates between them."""

    def __init__(self, scan: Scan, reading: ClaimedRead, transitions: "Transitions", *, is_backwards: bool) -> None:
        super().__init__(scan, reading, None, transitions)
        self._transitions = transitions
        self._is_backwards = is_backwards

    @property
    def schema(self) -> pa.Schema:
        """The columns of `Transitions.schema` without `_time`."""
        names = self._transitions.schema
        return names.remove(names.get_field_index("_time"))

    def _read(self) -> Iterator[pa.Table]:
        names = self._transitions.fields.names[:-1]
        none = pa.schema([self.scan.result_schema.arrow.field(name) for name in (*names, "_diff")]).empty_table()
        pieces = [table.select(none.column_names) for table in self._read_scan(self.scan)]
        table = consolidate(pa.concat_tables([none, *pieces]), names)
        if self._is_backwards:
            table = table.set_column(len(names), "_diff", pc.negate_checked(table["_diff"]))
        times = pa.repeat(pa.scalar(0, pa.int64()), len(table))
        yield self._transitions.of(table.append_column("_time", times)).drop_columns("_time")


CHANGE, OLD = "_change", "_old_"  # The column of the kind of a transition; the prefix of columns of old values.
ChangesForm = Literal["updates", "transitions"]


def check_changes_form(form: object) -> None:
    """Raise InvalidUsage for an unknown form of changes."""
    if form not in get_args(ChangesForm):
        raise InvalidUsage(
            f'form={form!r} is not a form of changes: give "updates" for each update with its `_diff`, or '
            '"transitions" for how keys changed, with old and new values'
        )


@dataclass(frozen=True)
class Transitions:
    """Converts updates to transitions: one row for each insert, update or delete of a key.

    Attributes:
        fields: the columns of the updates: key and value columns, and `_time`.
        keys: the names of the key columns.
    """

    fields: pa.Schema
    keys: tuple[str, ...]

    @classmethod
    def of_columns(cls, schema: CollectionSchema, columns: Sequence[str] | None) -> "Transitions":
        """Return a converter for updates with these columns; None for all."""
        names = [*schema.names] if columns is None else [*columns]
        if missing := [name for name in schema.key_names if name not in names]:
            raise InvalidUsage(
                f"columns={names} leaves out the key column {missing[0]!r}, and transitions are paired by key: "
                f"name all of {[*schema.key_names]}"
            )
        values = [name for name in names if name not in schema.key_names]
        reserved = {CHANGE, *(OLD + name for name in values)}
        if clash := [name for name in names if name in reserved]:
            raise InvalidUsage(
                f"the collection has a column {clash[0]!r}, which means something else among transitions."
            ).with_remedy("Leave it out with {columns:option}, or read with {form:option:updates}.")
        arrow = schema.arrow
        return cls(pa.schema([arrow.field(name) for name in (*names, "_time")]), tuple(schema.key_names))

    @property
    def schema(self) -> pa.Schema:
        """The columns of key and new value, `_time`, `_change`, and an `_old_…` column for each of the value."""
        fields = [field if self._is_equal_in_pair(field.name) else field.with_nullable(True) for field in self.fields]
        old = [field.with_name(OLD + field.name) for field in fields if not self._is_equal_in_pair(field.name)]
        return pa.schema([*fields, pa.field(CHANGE, pa.string(), nullable=False), *old])

    def of(self, updates: pa.Table) -> pa.Table:
        """Return the transitions of updates, by time, then key; all updates of a (time, key) must be included."""
        if not len(updates):
            return self.schema.empty_table()
        updates = updates.combine_chunks()
        groups, order = self._number_groups(updates)
        diffs = get_int64_values(combine_chunks(updates["_diff"]))[order]
        if (count := float(np.abs(diffs.astype(np.float64)).sum())) > len(diffs) + COPIES_MAX:
            raise InvalidUsage(
                f"{count:.0f} transitions are too many rows, because records come or go very often: read "
                'form="updates", which has each once with its _diff'
            )
        old, new = _pair_rows(groups, diffs, is_paired=bool(self.keys))
        of_row = make_int64_array(order[np.where(new < 0, old, new)])
        was, comes = (pa.array(order[rows], pa.int64(), mask=rows < 0) for rows in (old, new))
        kinds = pa.array(["insert", "update", "delete"]).take(pa.array((old >= 0).astype(np.int64) + (new < 0)))
        columns = [updates[name].take(of_row if self._is_equal_in_pair(name) else comes) for name in self.fields.names]
        old_values = [updates[name].take(was) for name in self.fields.names if not self._is_equal_in_pair(name)]
        return pa.Table.from_arrays([*columns, kinds, *old_values], schema=self.schema)

    def _is_equal_in_pair(self, name: str) -> bool:
        """Return whether a column is always equal in the old and the new row of a pair."""
        return name in self.keys or name == "_time"

    def _number_groups(self, updates: pa.Table) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the number of (time, key) of each update, ascending, and the order of updates by these, then value."""
        values = [name for name in self.fields.names if not self._is_equal_in_pair(name)]
        order, _ = sort_table(updates, ["_time", *self.keys, *values])
        alone = updates.select(["_time", *self.keys]).take(make_int64_array(order))
        _, starts = sort_table(alone, alone.column_names)
        return np.cumsum(starts) - 1, order


def _pair_rows(
    groups: NDArray[np.int64], diffs: NDArray[np.int64], *, is_paired: bool
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Pair the retractions and insertions of each group.

    Return the positions of the old and new rows as two int64 arrays, with -1 for none.

    `groups`: int64[updates], ascending, the (time, key) group of each update. Without `is_paired`, nothing is paired.
    """
    updates = np.arange(len(diffs))
    # Each update as often as its diff.
    goes, comes = (np.repeat(updates, signed * (signed > 0)) for signed in (-diffs, diffs))
    count = int(groups[-1]) + 1
    retracted, inserted = (np.bincount(groups[rows], minlength=count) for rows in (goes, comes))
    # The number of transitions of each group, and the first one.
    size = np.maximum(retracted, inserted) if is_paired else retracted + inserted
    begin = np.cumsum(size) - size
    paired = []
    for rows, counts, skipped in ((goes, retracted, 0), (comes, inserted, 0 if is_paired else retracted)):
        # The place of each within its group.
        place = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        at = np.full(int(size.sum()), -1, np.int64)
        at[np.repeat(begin + skipped, counts) + place] = rows
        paired.append(at)
    return paired[0], paired[1]


@dataclass(frozen=True)
class UpsertEvents:
    """Converts changes of a keyed collection to events. `form`: its keyed form, with the schema's column names."""

    columns: CollectionSchema
    form: KeyedForm | None

    @property
    def schema(self) -> pa.Schema:
        """The key and value columns, `_time` and `_deleted`."""
        values = [self.columns.arrow.field(name).with_nullable(True) for name in self.columns.value_names]
        keys = [self.columns.arrow.field(name) for name in self.columns.key_names]
        time, deleted = self.columns.arrow.field("_time"), pa.field(DELETED, pa.bool_(), nullable=False)
        return pa.schema([*keys, *values, time, deleted])

    def of(self, changes: pa.Table) -> pa.Table:
        """Return the events of changes with tombstones; all changes of a (time, key) must be included."""
        if not len(changes):
            return self.schema.empty_table()
        names = ["_time", *self.columns.key_names]
        changes = changes.combine_chunks()
        order, starts = sort_table(changes, names)
        group = np.cumsum(starts) - 1
        comes = get_int64_values(combine_chunks(changes["_diff"]))[order] > 0
        count = np.bincount(group[comes], minlength=int(group[-1]) + 1)
        if (count > 1).any() or (np.abs(get_int64_values(combine_chunks(changes["_diff"]))) > 1).any():
            raise InvalidUsage("a key has more than one value, so its changes are not upserts: read changes() instead")
        # For each key and time, the inserted row, or a retracted one.
        first = np.flatnonzero(starts)
        at = order[first]
        at[group[comes]] = order[comes]
        events, is_gone = changes.take(make_int64_array(at)).drop_columns(["_diff"]), count == 0
        if self.form is None or self.form.tombstone is None:
            return self._with_nulls(events, is_gone, is_gone)
        is_dead = get_boolean_values(combine_chunks(mark_tombstones(events[self.form.tombstone], self.form)))
        events = events.filter(make_boolean_array(~(is_dead & is_gone)))
        is_gone, is_dead = is_gone[~(is_dead & is_gone)], is_dead[~(is_dead & is_gone)]
        return self._with_nulls(events, is_gone, is_gone | is_dead)

    def _with_nulls(self, events: pa.Table, is_gone: NDArray[np.bool_], deleted: NDArray[np.bool_]) -> pa.Table:
        """Return the events with NULL as the values of deleted keys."""
        is_null = pa.chunked_array([make_boolean_array(is_gone)])
        values = [
            pc.if_else(is_null, pa.scalar(None, column.type), column) if name in self.columns.value_names else column
            for name, column in zip(events.column_names, events.columns, strict=True)
        ]
        return pa.Table.from_arrays([*values, pa.chunked_array([make_boolean_array(deleted)])], schema=self.schema)


class Upserts(Closes):
    """The events in `[lower, upper)`, in the order of times; see `Collection.upserts`. Iteration reads them."""

    def __init__(self, changes: Changes, events: UpsertEvents) -> None:
        """Take changes that include tombstones."""
        self._changes = changes
        self._schema = changes.scan.result_schema
        self.events = events

    @property
    def schema(self) -> pa.Schema:
        """The key and value columns, `_time` and `_deleted`."""
        return self.events.schema

    @property
    def scan(self) -> Scan:
        """The plan of the changes."""
        return self._changes.scan

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield batches of events. Memory: as `Changes.to_batches`."""
        for batch in self._changes.to_batches():
            yield from self.events.of(pa.Table.from_batches([batch])).to_batches()

    def to_arrow(self) -> pa.Table:
        """Return all events as one table."""
        return pa.Table.from_batches(self.to_batches(), self.schema)

    def __iter__(self) -> Iterator[tuple[Any, Any, int]]:
        """Yield `(key, value, time)`; value is None for a deletion, and () without value columns."""
        for batch in self.to_batches():
            table = pa.Table.from_batches([batch])
            deleted, times = table[DELETED].to_pylist(), table["_time"].to_pylist()
            keys = _blank_deleted_values(table, self._schema, deleted)
            for (key, value), time, is_gone in zip(keys, times, deleted, strict=True):
                if value is None and not is_gone and self._schema.value_names:
                    raise InvalidUsage(
                        f"the value of key {key!r} at time {time} is NULL, and None in an event deletes the key: read "
                        "the events by to_arrow(), where _deleted tells them apart"
                    )
                yield key, None if is_gone else () if value is None else value, time

    def close(self) -> None:
        """Release the claim; idempotent."""
        self._changes.close()


def _blank_deleted_values(table: pa.Table, schema: CollectionSchema, deleted: list[bool]) -> Iterator[tuple[Any, Any]]:
    """Yield the (key, value) tuples of rows; values of deleting rows have no meaning."""
    if schema.value.codec_name is None or not any(deleted):
        yield from iterate_rows(table, schema)
        return
    alone = CollectionSchema(schema.key, type(schema.key)(()), schema.timeline)
    live = iterate_rows(table.filter(pc.invert(table[DELETED])), schema)
    for (key, _), is_gone in zip(iterate_rows(table, alone), deleted, strict=True):
        yield (key, None) if is_gone else next(live)
