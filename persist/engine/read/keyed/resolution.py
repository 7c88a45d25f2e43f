"""Resolves pending events of keyed collections into updates, and finds tombstones that are no longer needed.

Pending events are read, grouped, and compared with the values of their keys. Clients that commit a resolution and
clients that only read unresolved events both use this module, so their results are equal. Each slice of the key space
is resolved within the budget; the events of one key are in one slice.

A tombstone keeps a late row from restoring its key. Once its watermark is below the late bound, every such row is
refused. Pending rows arrived earlier, and may be below the present bound. So the limit is a *floor*: no unresolved
event is below it. Reads never show tombstones, so no reader sees the retraction of one. Partial events treat a
tombstone below the floor as absent, so their result is the same before and after the retraction. The search for
unneeded tombstones scans two columns of the parts that may have tombstones. It runs when a quarter of all rows was
resolved since the last search, so it costs a fraction of the resolution.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from persist.blob.lru import Cache, Kind
from persist.codecs.order.arrays import make_boolean_array, make_int64_array
from persist.codecs.order.ordering import sort_table
from persist.codecs.order.search import SortedKeys
from persist.codecs.part.part import Part
from persist.codecs.part.stream import encode_parts
from persist.codecs.types.schema import CollectionSchema
from persist.core.antichain import END
from persist.core.errors import SchemaMismatch
from persist.core.keyed.events import (
    Prepared,
    list_event_fields,
    make_event_schema,
    make_tombstone_filter,
    prepare_events,
    resolve_to_updates,
)
from persist.core.keyed.form import describe_machine
from persist.core.keyed.machine import GIVEN, NAME, NUMBER, Machine, Replacing
from persist.core.keyed.partial import complete_events
from persist.core.log.fields import KeyedForm
from persist.core.state_rules.contents import CollectionState, append_parts
from persist.core.state_rules.keyed_rules import (
    WATERMARK_OF_NULL,
    list_due_parts,
    list_still_pending,
    load_form,
)
from persist.core.state_rules.schemas import attach_versions
from persist.engine.read.keyed.key_replacement import match_keys
from persist.engine.read.lookups.lookup import Lookup, Wanted, drop_diffs
from persist.engine.read.merging import read_snapshot, slice_snapshot
from persist.engine.read.parts.reader import PartReader
from persist.engine.read.planning.scan import Scan
from persist.engine.read.planning.snapshot_plan import plan_snapshot

SLICE_SHARE = 16  # A slice of events takes this fraction of the memory budget: the rows of their keys are also read.
LEFTOVER_SHARE = 2  # Decoded rows of pending parts for later slices take this fraction.
# Own events up to this fraction are resolved at once, which takes seven times their memory. More are cut like pending
# ones, out of parts in memory. This takes a third of that memory, and half as much time again; with the least budget,
# four times as much, because slices are small.
OWN_SHARE = 2
OWN_PART_SHARE = 1  # Each of these parts holds this fraction of the budget.


def resolve_events(
    contents: CollectionState,
    schema: CollectionSchema,
    machine: Machine,
    end: int,
    reader: PartReader,
    own_events: pa.Table | None = None,
    on_keys: Callable[[pa.Table], object] = lambda keys: None,
    on_refused: Callable[[pa.Table], object] | None = None,
) -> Iterator[pa.Table]:
    """Yield the updates at times before end that result from events at times beyond `contents.resolved`.

    Args:
        own_events: events that are not pending yet, in order; they count as later than all pending ones. They may be
            partial.
        on_keys: called with the keys that have events, each once.
        on_refused: called with refused partial events, in place of the error. They have the column `NUMBER` if
            own_events have it.

    Returns:
        Tables of the columns of the schema, not consolidated; no key is in two tables. Memory: a slice, and own_events.

    Raises:
        CorruptBlob: a part is missing or damaged.
        PersistError: the machine does not accept an event.
        InvalidUsage: the key of a partial event has no row, and its policy refuses that.
    """
    schema = attach_versions(schema, contents)
    form = load_form(contents, schema)
    assert form is not None
    lower = contents.resolved
    if lower >= end:
        return
    events = make_event_schema(schema, list_event_fields(schema, form))
    parts = [contents.pending[number] for number in list_due_parts(contents, end)]
    bytes_max = reader.memory_budget // SLICE_SHARE
    waiting_bytes = sum(part.memory for part in parts)
    is_partial = own_events is not None and GIVEN in own_events.column_names
    if is_partial and own_events is not None:  # Parts cannot hold these, so slices take them by their keys.
        own_events = own_events.take(make_int64_array(sort_table(own_events, schema.key_names)[0]))
    elif (
        own_events is not None
        and len(own_events)
        and (waiting_bytes > bytes_max or OWN_SHARE * own_events.nbytes > reader.memory_budget)
    ):
        parts += _to_parts(own_events, events, reader.memory_budget // OWN_PART_SHARE)
        own_events = None
    scan = Scan(events, tuple(parts), lower, end, events.names).prune()
    scan_before = plan_snapshot(contents, schema, lower - 1, None, raw=True) if lower else None
    lookup = None if scan_before is None else Lookup(scan_before)
    if is_partial or form.groups:  # What `complete_events` leaves counts, whatever its order.
        machine = Replacing(has_tombstone=form.tombstone is not None)

    # Events before upper count before those to come, and may be resolved by anybody.
    find_floor = cache(lambda: _find_floor(contents, schema, form, contents.upper, reader))
    slices = scan.cut_into_slices(bytes_max) if scan.parts else [scan]
    waiting = reader.with_leftovers(reader.memory_budget // LEFTOVER_SHARE)
    assert own_events is None or is_partial or len(slices) == 1, "events that are not cut would be in each slice"
    for scan_slice in slices:
        own_slice = own_events
        if own_slice is not None and len(slices) > 1:
            start, stop = scan_slice.keys.find_rows(own_slice, schema)
            own_slice = own_slice.slice(start, stop - start)
        arrived = _read_events(scan_slice, events, waiting, own_slice)
        if len(arrived):
            ready = prepare_events(schema, form, arrived)
            on_keys(ready.keys)
            present = _read_present_rows(ready, schema, lookup, reader)
            ready, present = complete_events(ready, present, form, contents.name, on_refused, find_floor)
            yield resolve_to_updates(ready, machine, present)


class Folds:
    """A cache of resolved events for reads, so that many reads of one state resolve once. Safe for many threads."""

    def __init__(self, cache: Cache) -> None:
        self._kept: Kind[_Unresolved, tuple[Part, ...]] = cache.add_kind(
            lambda parts: sum(len(part.inline) for part in parts)
        )

    def fold(
        self,
        contents: CollectionState,
        machine: Callable[[], Machine],
        reader: Callable[[], PartReader],
        end: int | None = None,
    ) -> CollectionState:
        """Return contents with all sealed events resolved, for reads only.

        The updates are in parts in memory. Cost: the first time, reading the events and the values of their keys.
        Memory: all updates.

        Args:
            machine, reader: called only if something must be resolved.
            end: resolve only events before this time; a machine that fails on later events then does no harm. None for
                all.
        """
        parts: tuple[Part, ...] | None = ()
        if list_due_parts(contents, contents.upper):
            parts = self._kept.get(_make_cache_key(contents))
        if parts is None:
            try:
                parts = _resolve_to_parts(contents, machine(), contents.upper, reader())
                self._kept.put(_make_cache_key(contents), parts)
            except Exception:  # A function of a user may raise anything.
                if end is None or contents.upper <= end:
                    raise
                parts = _resolve_to_parts(contents, machine(), end, reader())
        waiting = list_still_pending(contents, contents.upper)
        after = append_parts(contents, parts)
        return msgspec.structs.replace(after, resolved_times=contents.upper_times, pending=waiting)


def _resolve_to_parts(contents: CollectionState, machine: Machine, end: int, reader: PartReader) -> tuple[Part, ...]:
    """Resolve the pending events before `end`; return the updates as parts in memory."""
    tables = resolve_events(contents, contents.schema, machine, end, reader)
    encoded = (data_and_part for table in tables for data_and_part in encode_parts(table, contents.schema))
    return tuple(msgspec.structs.replace(part, inline=data) for data, part in encoded)


_Unresolved = tuple[str, int, int, int, tuple[int, ...]]


def _make_cache_key(contents: CollectionState) -> _Unresolved:
    """Return a key for the updates of sealed events; equal keys mean equal updates."""
    waiting = list_due_parts(contents, contents.upper)
    return contents.id, len(contents.earlier), contents.resolved, contents.upper, waiting


def require_machine(machine: Machine | None, form: KeyedForm, collection: str) -> Machine:
    """Return the machine of a collection; raise SchemaMismatch if this client does not have it."""
    if machine is None:
        raise SchemaMismatch(
            f"the collection {collection!r} has the machine {describe_machine(form.machine)}, which this process "
            "lacks, and events must be resolved: open it with create_or_load(..., keyed=Keyed(machine=...))"
        )
    return machine


def _to_parts(own_events: pa.Table, events: CollectionSchema, bytes_max: int) -> list[Part]:
    """Return events, in order, as parts in memory. Memory: the parts, and a copy of one."""
    rows_max = max(1, bytes_max * len(own_events) // own_events.nbytes)
    pieces = (own_events.slice(at, rows_max) for at in range(0, len(own_events), rows_max))
    encoded = (data_and_part for piece in pieces for data_and_part in encode_parts(piece, events))
    return [msgspec.structs.replace(part, inline=data) for data, part in encoded]


def _read_events(scan: Scan, events: CollectionSchema, reader: PartReader, own_events: pa.Table | None) -> pa.Table:
    """Return the events of a slice; for each key, in the order of arrival."""
    columns = events.arrow.names
    tables = [scan.empty(columns), *scan.updates(reader, columns)] if scan.parts else [scan.empty(columns)]
    if own_events is not None:
        tables.append(
            own_events.select([*columns, *(name for name in (GIVEN, NUMBER) if name in own_events.column_names)])
        )
    return pa.concat_tables(tables, promote_options="default")


def _read_present_rows(
    ready: Prepared, schema: CollectionSchema, lookup: Lookup | None, reader: PartReader
) -> pa.Table:
    """Return the present rows of the events' keys."""
    if lookup is None:
        return schema.arrow.empty_table()
    requested = Wanted(len(ready.keys), SortedKeys(ready.keys))
    return drop_diffs(lookup.read_contents(requested, "rows", reader), lookup.scan)


SHARE = 4  # This fraction of the rows must be resolved between two searches for tombstones.


def _find_floor(
    contents: CollectionState, schema: CollectionSchema, form: KeyedForm, start: int, reader: PartReader
) -> pa.Scalar | None:
    """Return a value of the ordering column that no later or pending event is below.

    Only events from `start` on count. Return None without a late bound, or if an event may have NULL in that column.
    Cost: reading the ordering column of pending parts with such times.
    """
    if contents.late_bound in (None, WATERMARK_OF_NULL) or form.groups:
        return None  # Tombstones keep the orders of groups, which the late bound does not limit.
    name = form.order_by[0]
    kind, events = schema.arrow.field(name).type, make_event_schema(schema, list_event_fields(schema, form))
    stored = kind if pa.types.is_integer(kind) else pa.int32() if kind.bit_width == 32 else pa.int64()
    limits = np.iinfo(stored.to_pandas_dtype())
    floor = pa.array([min(max(contents.late_bound, int(limits.min)), int(limits.max))], stored).view(kind)[0]
    scan = Scan(events, tuple(list_still_pending(contents, start).values()), start, END, events.names)
    for table in scan.updates(reader, [name]):
        if table[name].null_count:
            return None
        floor = pc.min_element_wise(floor, pc.min(table[name]))
    return floor


class Purged:
    """Unneeded tombstones that a resolution retracts at a time."""

    def __init__(self, rows: pa.Table, time: int) -> None:
        self._rows = rows
        self._time = time

    def keep_tombstones(self, keys: pa.Table) -> None:
        """Do not retract the tombstones of keys that have events."""
        if not len(self._rows):
            return
        self._rows = self._rows.filter(make_boolean_array(~match_keys(self._rows, keys, keys.column_names)))

    def updates(self, schema: CollectionSchema) -> pa.Table:
        """Return the updates that retract the tombstones."""
        times = make_int64_array(np.full(len(self._rows), self._time, np.int64))
        diffs = make_int64_array(np.full(len(self._rows), -1, np.int64))
        columns = [*self._rows.select([*schema.names]).columns, times, diffs]
        return pa.Table.from_arrays(columns, schema=schema.arrow)


class Purging:
    """Decides when to search for unneeded tombstones, and finds them; safe for many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._resolved: Counter[str] = Counter()

    def count_resolved(self, collection: str, rows: int) -> None:
        """Count the updates that resolutions of a collection made."""
        with self._lock:
            self._resolved[collection] += rows

    def find_purged(
        self, contents: CollectionState, schema: CollectionSchema, end: int, reader: PartReader
    ) -> Purged | None:
        """Return the tombstones to retract with a resolution up to end, if a search is due.

        Memory: a slice of the snapshot, and a sixteenth of the budget for tombstones; a later search finds the others.
        """
        schema = attach_versions(schema, contents)
        form, lower = load_form(contents, schema), contents.resolved
        if form is None or form.tombstone is None or form.machine.name != NAME or contents.late_bound is None:
            return None
        if form.groups or lower in (0, END):
            return None
        if not self._is_due(contents):
            return None
        mark, floor = pc.field(form.order_by[0]), _find_floor(contents, schema, form, end, reader)
        if floor is None:
            return None
        dead = make_tombstone_filter(schema, form) & ((mark < floor) | mark.is_null())
        scan = plan_snapshot(contents, schema, lower - 1, None, dead, raw=True)
        tables = [scan.empty(schema.names)]
        bytes_left = reader.memory_budget // 16
        for scan_slice in slice_snapshot(scan, "rows", reader.slice_bytes):
            for table in read_snapshot(scan_slice, "rows", reader):
                tables.append(table)
                bytes_left -= table.nbytes
            if bytes_left <= 0:
                break
        return Purged(pa.concat_tables(tables), end - 1)

    def _is_due(self, contents: CollectionState) -> bool:
        """Return whether a purge is worth its cost; if so, count anew."""
        rows = sum(part.rows for part in contents.parts)
        with self._lock:
            if self._resolved[contents.id] * SHARE < rows:
                return False
            self._resolved[contents.id] = 0
            return True
