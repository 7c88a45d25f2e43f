"""Events of keyed collections that wait: what they amount to, and which tombstones nothing needs after that.

Pending events are read, grouped, and held against what their keys hold. A client that resolves for good, and one
that reads what is not resolved yet, both do it here, so both get the same. The key space is cut so that each slice is
resolved within the budget; the events of one key are in one slice.

A tombstone is kept so that a late row does not bring its key back. Once its watermark is below the late bound, every
row that could is refused. Rows that are pending came before, and may be below the bound as it is now. So what counts is
a *floor*, below which no event is that is still to be resolved. Nobody sees that a tombstone is retracted, because
every read leaves tombstones out, at every time. To find those that are not needed is a scan of two columns, of the
parts that may hold tombstones. It is made when the updates that were resolved since the last one are a quarter of all
rows, so it costs a fraction of what resolving them did.
"""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from persist.blob.lru import Cache, Kind
from persist.codecs.order.arrays import boolean_array, int64_array
from persist.codecs.order.digits import RowSorter
from persist.codecs.order.ordering import order_keys
from persist.codecs.order.search import SortedKeys
from persist.codecs.part.part import Part
from persist.codecs.part.stream import encode_parts
from persist.codecs.types.arrow_types import scalar_from_json
from persist.codecs.types.schema import CollectionSchema
from persist.core.antichain import END
from persist.core.errors import SchemaMismatch
from persist.core.keyed.events import Prepared, dead_filter, event_fields, events_schema, prepared, resolved
from persist.core.keyed.form import described
from persist.core.keyed.machine import NAME, Machine
from persist.core.log.fields import KeyedForm
from persist.core.state_rules.contents import CollectionState, appended
from persist.core.state_rules.keyed_rules import due, form_in, pending_after
from persist.core.state_rules.schemas import among_versions
from persist.engine.read.lookups.lookup import Lookup, Wanted, without_diffs
from persist.engine.read.merging import read_snapshot, snapshot_slices
from persist.engine.read.parts.reader import PartReader
from persist.engine.read.planning.scan import Scan
from persist.engine.read.planning.snapshot_plan import snapshot_scan

SLICE_SHARE = 16  # One slice of events takes this fraction of the memory budget: what they touch is read, too.
LEFTOVER_SHARE = 2  # And this one what has been decoded of waiting parts for the slices that come after it.
# Own events up to this fraction are resolved at once, which takes seven times their memory. More are cut as pending
# ones are, of parts in memory. This takes a third of that, and half as much time again; with the least budget, four
# times as much, because slices are small then.
OWN_SHARE = 2
OWN_PART_SHARE = 1  # Each of these parts is made of this fraction of the budget.


def resolved_updates(
    contents: CollectionState,
    schema: CollectionSchema,
    machine: Machine,
    end: int,
    reader: PartReader,
    own: pa.Table | None = None,
    on_keys: Callable[[pa.Table], object] = lambda keys: None,
) -> Iterator[pa.Table]:
    """Yield the updates at times before end that events at times beyond `contents.resolved` amount to.

    Args:
        own: events that are not pending yet, in their order: they arrived after those that are.
        on_keys: is told the keys that have events, each once.

    Returns:
        tables of the columns of the schema, not consolidated; no key is in two of them. Memory: a slice, and own.

    Raises:
        CorruptBlob: a part is missing or damaged.
        PersistError: the machine does not accept an event.
    """
    schema = among_versions(schema, contents)
    form = form_in(contents, schema)
    assert form is not None
    lower = contents.resolved
    if lower >= end:
        return
    events = events_schema(schema, event_fields(schema, form))
    parts = [contents.pending[number] for number in due(contents, end)]
    bytes_max = reader.memory_budget // SLICE_SHARE
    waiting_bytes = sum(part.memory for part in parts)
    if own is not None and len(own) and (waiting_bytes > bytes_max or OWN_SHARE * own.nbytes > reader.memory_budget):
        parts += _as_parts(own, events, reader.memory_budget // OWN_PART_SHARE)
        own = None
    scan = Scan(events, tuple(parts), lower, end, events.names).pruned()
    scan_before = snapshot_scan(contents, schema, lower - 1, None, raw=True) if lower else None
    lookup = None if scan_before is None else Lookup(scan_before)
    slices = scan.slices_within(bytes_max) if scan.parts else [scan]
    waiting = reader.keeping_leftovers(reader.memory_budget // LEFTOVER_SHARE)
    assert own is None or len(slices) == 1, "events that are not cut would be in each slice"
    for scan_slice in slices:
        arrived = _arrived(scan_slice, events, waiting, own)
        if len(arrived):
            ready = prepared(schema, form, arrived)
            on_keys(ready.keys)
            yield _resolved(ready, schema, machine, lookup, reader)


class Folds:
    """What was folded lately, so that many reads of one state fold once; safe to use from many threads.

    Args:
        cache: keeps the parts.
    """

    def __init__(self, cache: Cache) -> None:
        self._kept: Kind[_Unresolved, tuple[Part, ...]] = cache.kind(
            lambda parts: sum(len(part.inline) for part in parts)
        )

    def applied(
        self,
        contents: CollectionState,
        machine: Callable[[], Machine],
        reader: Callable[[], PartReader],
        end: int | None = None,
    ) -> CollectionState:
        """Return contents as they are once all sealed events are resolved: to read, and never to commit.

        Their updates are in parts that are stored nowhere. Cost: reading the events and what their keys hold, the first
        time. Memory: all of their updates.

        Args:
            machine, reader: asked only if something has to be folded.
            end: only times before it are read; None for all. A machine that fails on later events fails nobody then.
        """
        parts: tuple[Part, ...] | None = ()
        if due(contents, contents.upper):
            parts = self._kept.get(_unresolved(contents))
        if parts is None:
            try:
                parts = _folded(contents, machine(), contents.upper, reader())
                self._kept.put(_unresolved(contents), parts)
            except Exception:  # Whatever the function of a user raises.
                if end is None or contents.upper <= end:
                    raise
                parts = _folded(contents, machine(), end, reader())
        waiting = pending_after(contents, contents.upper)
        after = appended(contents, parts)
        return msgspec.structs.replace(after, resolved_times=contents.upper_times, pending=waiting)


def _folded(contents: CollectionState, machine: Machine, end: int, reader: PartReader) -> tuple[Part, ...]:
    """Return the updates before end that are not resolved yet, as parts that hold their own bytes."""
    tables = resolved_updates(contents, contents.schema, machine, end, reader)
    encoded = (data_and_part for table in tables for data_and_part in encode_parts(table, contents.schema))
    return tuple(msgspec.structs.replace(part, inline=data) for data, part in encoded)


_Unresolved = tuple[str, int, int, int, tuple[int, ...]]


def _unresolved(contents: CollectionState) -> _Unresolved:
    """Return what decides which updates sealed events make: what is sealed and resolved stays as it is."""
    waiting = due(contents, contents.upper)
    return contents.id, len(contents.earlier), contents.resolved, contents.upper, waiting


def machine_needed(machine: Machine | None, form: KeyedForm, collection: str) -> Machine:
    """Return the machine of a collection; raise SchemaMismatch if it is not known here."""
    if machine is None:
        raise SchemaMismatch(
            f"the collection {collection!r} has the machine {described(form.machine)}, which is not known here, and "
            "events are to be resolved: open it with create_or_load(..., keyed=Keyed(machine=...))"
        )
    return machine


def _as_parts(own: pa.Table, events: CollectionSchema, bytes_max: int) -> list[Part]:
    """Return events, in their order, as parts that hold their own bytes. Memory: these, and a copy of one."""
    rows_max = max(1, bytes_max * len(own) // own.nbytes)
    pieces = (own.slice(at, rows_max) for at in range(0, len(own), rows_max))
    encoded = (data_and_part for piece in pieces for data_and_part in encode_parts(piece, events))
    return [msgspec.structs.replace(part, inline=data) for data, part in encoded]


def _arrived(scan: Scan, events: CollectionSchema, reader: PartReader, own: pa.Table | None) -> pa.Table:
    """Return the events of a slice in the order in which those of each key arrived."""
    columns = events.arrow.names
    tables = [scan.empty(columns), *scan.updates(reader, columns)] if scan.parts else [scan.empty(columns)]
    if own is not None:
        tables.append(own.select(columns))
    return pa.concat_tables(tables)


def _resolved(
    ready: Prepared, schema: CollectionSchema, machine: Machine, lookup: Lookup | None, reader: PartReader
) -> pa.Table:
    present = schema.arrow.empty_table()
    if lookup is not None:
        wanted = Wanted(len(ready.keys), SortedKeys(ready.keys))
        present = without_diffs(lookup.contents(wanted, "rows", reader), lookup.scan)
    return resolved(ready, machine, present)


SHARE = 4  # This fraction of the rows must have been resolved since tombstones were looked for.
SEEN_MAX = 1000  # Bounds that are remembered; with fewer, tombstones are kept longer.


class Purged:
    """Tombstones to be retracted, while what they are is worked out.

    Args:
        rows: the columns of key and value.
        time: when they are retracted.
    """

    def __init__(self, rows: pa.Table, time: int) -> None:
        self._rows = rows
        self._time = time

    def touched(self, keys: pa.Table) -> None:
        """Leave out the tombstones of some distinct keys, because events decide what becomes of these."""
        if not len(self._rows):
            return
        names = keys.column_names
        both = pa.concat_tables([keys, self._rows.select(names)]).combine_chunks()
        order, starts = RowSorter(order_keys(both, names)).sort()
        ranks = np.empty(len(order), np.int64)
        ranks[order] = np.cumsum(starts) - 1
        is_touched = np.zeros(int(ranks.max()) + 1, np.bool_)
        is_touched[ranks[: len(keys)]] = True
        self._rows = self._rows.filter(boolean_array(~is_touched[ranks[len(keys) :]]))

    def updates(self, schema: CollectionSchema) -> pa.Table:
        """Return the retractions."""
        times = int64_array(np.full(len(self._rows), self._time, np.int64))
        diffs = int64_array(np.full(len(self._rows), -1, np.int64))
        columns = [*self._rows.select([*schema.names]).columns, times, diffs]
        return pa.Table.from_arrays(columns, schema=schema.arrow)


@dataclass(slots=True)
class _Known:
    """What is known of a collection: rows resolved since the last look, and next part number and late bound then."""

    resolved: int = 0
    seen: list[tuple[int, int]] = field(default_factory=list)


class Purging:
    """Decides when to look for tombstones that are not needed, and below what; safe to use from many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, _Known] = {}

    def resolved(self, collection: str, rows: int) -> None:
        """Account for updates that were resolved."""
        with self._lock:
            self._known.setdefault(collection, _Known()).resolved += rows

    def purged(
        self, contents: CollectionState, schema: CollectionSchema, end: int, reader: PartReader
    ) -> Purged | None:
        """Return the tombstones to retract with a resolution up to end, if it is time to look for them.

        Memory: a slice of the snapshot, and a sixteenth of the budget for what is found; more is left for later.
        """
        schema = among_versions(schema, contents)
        form, lower = form_in(contents, schema), contents.resolved
        if form is None or form.tombstone is None or form.machine.name != NAME or contents.late_bound is None:
            return None
        if lower in (0, END):
            return None
        floor = self._floor(contents, end)
        if floor is None or not self._is_due(contents):
            return None
        mark = pc.field(form.order_by[0])
        try:
            bound = scalar_from_json(floor, schema.arrow.field(form.order_by[0]).type)
        except (pa.ArrowException, OverflowError, ValueError):
            return None  # Below all watermarks that there can be.
        dead = dead_filter(schema, form) & ((mark < bound) | mark.is_null())
        scan = snapshot_scan(contents, schema, lower - 1, None, dead, raw=True)
        tables = [scan.empty(schema.names)]
        left = reader.memory_budget // 16
        for scan_slice in snapshot_slices(scan, "rows", reader.slice_bytes):
            for table in read_snapshot(scan_slice, "rows", reader):
                tables.append(table)
                left -= table.nbytes
            if left <= 0:
                break
        return Purged(pa.concat_tables(tables), end - 1)

    def _floor(self, contents: CollectionState, end: int) -> int | None:
        """Return a watermark below which no event is that is not resolved by end; None if none is known."""
        assert contents.late_bound is not None
        waiting = pending_after(contents, end)
        with self._lock:
            seen = self._known.setdefault(contents.id, _Known()).seen
            if not seen or seen[-1] != (contents.next_number, contents.late_bound):
                seen.append((contents.next_number, contents.late_bound))
                del seen[:-SEEN_MAX]
            if not waiting:
                return contents.late_bound
            first = min(waiting)
            return max((bound for number, bound in seen if number <= first), default=None)

    def _is_due(self, contents: CollectionState) -> bool:
        rows = sum(part.rows for part in contents.parts)
        with self._lock:
            known = self._known.setdefault(contents.id, _Known())
            if known.resolved * SHARE < rows:
                return False
            known.resolved = 0
            return True
