"""Requests to keyed collections, and to plain ones in the same commit: events, seals and changes, checked.

`persist.engine.collection.planned_commits` plans and commits them.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from persist.codecs.order.digest import DIGEST_MODULUS, compute_digest
from persist.codecs.order.sums import consolidate
from persist.codecs.part.filters import add_both_zeros, list_referenced_columns, select_matching_ranges
from persist.codecs.types.schema import TIME, CollectionSchema
from persist.codecs.updates.inputs import open_stream, to_table
from persist.codecs.updates.updates import Stamp, add_times, set_time, to_updates
from persist.core.errors import (
    InvalidUsage,
    NotKeyed,
)
from persist.core.keyed.form import describe_machine, find_machine
from persist.core.keyed.intake import EventTable, to_events
from persist.core.keyed.machine import DELETED, GIVEN, NAME, NUMBER, SEQ
from persist.core.keyed.partial import Missing, to_partial_events
from persist.core.log import kinds
from persist.core.log.fields import KeyedForm
from persist.core.state_rules.contents import CollectionState
from persist.engine.location.collection_handle import CollectionHandle
from persist.engine.read.keyed.key_replacement import KeyReplacement
from persist.engine.read.keyed.resolution import require_machine, resolve_events
from persist.engine.read.lookups.lookup import Lookup, Wanted, drop_diffs
from persist.engine.read.lookups.requested_keys import find_distinct_keys
from persist.engine.read.merging import NewRows, compute_differences, read_snapshot
from persist.engine.read.parts.reader import PartReader
from persist.engine.read.planning.scan import Scan
from persist.engine.read.planning.snapshot_plan import plan_snapshot
from persist.engine.write.operations import Step

SLICE_BYTES = 4 << 20  # Decoded; a filter by the key reads slices of about this size.

# Reads all rows of contents, the rows that pass a filter, or the rows with some keys.
ReadRows: TypeAlias = Callable[[pc.Expression | pa.Table | None], Iterator[pa.Table]]


@dataclass(frozen=True, slots=True)
class Replacement:
    """Rows to remove, and rows that replace them.

    Attributes:
        before: the removed rows; None for all rows.
        after: the new rows.
    """

    before: pa.Table | None
    after: pa.Table

    def updates(self, schema: CollectionSchema, time: int) -> pa.Table:
        """Return the updates that replace `before`, which is not None, by `after`, consolidated."""
        sides = [(self.after, 1), (self.before, -1)]
        tables = [to_updates(add_times(rows, schema, Stamp(time, diff)), schema) for rows, diff in sides]
        return consolidate(pa.concat_tables(tables), [*schema.names, TIME]).select(schema.arrow.names)


ReplaceRows: TypeAlias = Callable[[ReadRows], Replacement | None]  # None leaves the contents unchanged.


class Unchanged(InvalidUsage):
    """Raised inside the engine if contents stay unchanged, so there is nothing to commit."""


def read_rows(scan: Scan, reader: PartReader) -> Iterator[pa.Table]:
    """Yield the rows of a snapshot, slice by slice."""
    for scan_slice in scan.cut_into_slices(reader.slice_bytes):
        yield from read_snapshot(scan_slice, "rows", reader)


def make_row_reader(scan: Callable[[pc.Expression | None], Scan], reader: PartReader) -> ReadRows:
    """Return a function that reads contents, given the scan of the rows that pass a filter."""

    def read(by: pc.Expression | pa.Table | None) -> Iterator[pa.Table]:
        if not isinstance(by, pa.Table):
            for part in _select_matching_slices(scan(by)):
                yield from read_rows(part, reader)
            return
        whole = scan(None)
        keys = Wanted.of(find_distinct_keys(by, whole.schema), whole.schema)
        yield drop_diffs(Lookup(whole).read_contents(keys, "rows", reader), whole)

    return read


def _select_matching_slices(scan: Scan) -> list[Scan]:
    """Return the slices that may have matching rows, or the whole scan if these are not a small part of it."""
    keys = scan.schema.key_names
    if scan.filter is None or not {*keys[:1]} & {*list_referenced_columns(scan.filter, scan.schema.arrow)}:
        return [scan]
    slices = scan.cut_into_slices(SLICE_BYTES)
    bounds = [(piece.keys.lower, piece.keys.upper) for piece in slices]
    places = select_matching_ranges(bounds, scan.filter, scan.schema, keys)
    return [slices[place] for place in places] if 2 * len(places) <= len(slices) else [scan]


@dataclass(frozen=True, slots=True)
class KeyedChange:
    """Replaces the contents of a keyed collection, or a part of them, after all events up to its time.

    Attributes:
        new: the new rows, in a form of `compute_differences`; or a function that computes them from the contents.
        time: the time of the change; None for the time of the commit.
        where: only rows for which this is true are replaced; None for all.
        digest: the digest of the complete request.
    """

    new: NewRows | ReplaceRows
    time: int | None
    where: pc.Expression | None
    digest: int

    def updates(self, handle: CollectionHandle, after: CollectionState) -> Iterator[pa.Table]:
        """Yield the updates of the change, computed from the contents after all events before it.

        Raises: as `KeyReplacement`; SchemaMismatch, if the collection has another schema by now; Unchanged.
        """
        schema, time, form = handle.get_current_schema(after), self.time, get_keyed_form(handle)
        assert time is not None, "when it is made, its time has been chosen"
        reader, new = handle.engine.reader(), self.new
        if callable(new):
            rewrite = new(make_row_reader(partial(plan_snapshot, after, schema, time, None), reader))
            if rewrite is None:
                raise Unchanged("nothing of it changes")
            new = to_updates(add_times(rewrite.after, schema, Stamp(time, 1)), schema)
            if rewrite.before is not None:
                yield set_time(self._replace_rows(handle, after, rewrite.before, new), time, schema)
                return
        where = None if self.where is None else add_both_zeros(self.where)
        # Only a deletion can leave out what the condition is not true for: a new row takes the place of any other one.
        is_delete = not len(new)
        scan = plan_snapshot(after, schema, time, None, where if is_delete else None, raw=not is_delete)
        of_keys = KeyReplacement(handle.name, schema, form, None if is_delete else where)
        for updates in compute_differences(scan, new, reader, of_keys.check, of_keys.replace_keys):
            yield set_time(updates, time, schema)

    def _replace_rows(
        self, handle: CollectionHandle, after: CollectionState, before: pa.Table, new: pa.Table
    ) -> pa.Table:
        """Return the updates that replace rows by new ones; raise DuplicateKeys if a new key has another row."""
        schema, time = handle.get_current_schema(after), self.time or 0
        old = to_updates(add_times(before, schema, Stamp(time, 1)), schema)
        of_keys = KeyReplacement(handle.name, schema, get_keyed_form(handle), None)
        of_keys.check(new)
        keys = find_distinct_keys(pa.concat_tables([old, new]).select(schema.key_names), schema)
        scan = plan_snapshot(after, schema, time, None, raw=True)
        present = Lookup(scan).read_contents(Wanted.of(keys, schema), "diff", handle.engine.reader())
        of_keys.check_absent(new, old, present)
        return of_keys.replace_keys(new, present)


def convert_partial_events(handle: CollectionHandle, data: Any, stamp: Stamp | None, missing: Missing) -> EventTable:
    """Return rows that may lack columns as events of a keyed collection, checked; see `persist.core.keyed.partial`."""
    check_upserts(handle, "update")
    events = to_partial_events(data, handle.schema, get_keyed_form(handle), stamp, handle.clocked_timeline, missing)
    check_event_times(handle, events)
    return events


class PlainChange(msgspec.Struct, frozen=True):
    """A change of a plain collection, whose updates are computed at the commit.

    Attributes:
        steps: computes the updates from the newest contents.
        at_commit: whether the updates get the time of the commit.
    """

    steps: Callable[[], list[Step]]
    at_commit: bool


class AskedEvents(msgspec.Struct, frozen=True):
    """The part of a commit for one collection: its events and seal, or a change.

    Attributes:
        marks: the steps that store the token; the digest includes late events.
        also: other steps of the same commit: conditions on upper, and notes.
        late: counts late events by reason, and leaves them out; None refuses everything if an event is late.
        late_steps: makes further steps of the commit from the late events; also returns the names of their collections.
        is_least: whether the seal is done if the upper is already at or beyond `end`.
        change: a change of the contents after all events before end are resolved; then there are no own events.
        plain: the change of a plain collection; the other fields are empty then.
    """

    events: EventTable | None
    end: int | None = None
    token: str | None = None
    also: tuple[Step, ...] = ()
    late: Counter[str] | None = None
    late_steps: Callable[[pa.Table], tuple[list[Step], dict[str, str]]] | None = None
    marks: tuple[kinds.Tokens, ...] = ()
    is_least: bool = False
    change: KeyedChange | None = None
    plain: PlainChange | None = None

    @property
    def at_commit(self) -> bool:
        """Whether its events or its change get the time of the commit, which then seals after them."""
        if self.plain is not None:
            return self.plain.at_commit
        if self.change is not None:
            return self.change.time is None
        return self.events is not None and self.events.at_commit

    def at(self, time: int) -> "AskedEvents":
        """Return the request with its events or change at a time, which it seals."""
        events = None if self.events is None else self.events.set_time(time)
        change = None if self.change is None else replace(self.change, time=time)
        return msgspec.structs.replace(self, events=events, change=change, end=time + 1)

    def bind_to(self, contents: CollectionState) -> "AskedEvents":
        """Return the request with its seal moved up to the present upper, if it allows that."""
        return (
            msgspec.structs.replace(self, end=max(self.end, contents.upper))
            if self.is_least and self.end is not None
            else self
        )


Asks: TypeAlias = Sequence[tuple[CollectionHandle, AskedEvents]]  # Each collection once.


def get_keyed_form(handle: CollectionHandle) -> KeyedForm:
    """Return the keyed form of a collection; raise NotKeyed without one."""
    if handle.keyed is None and handle.as_keyed().keyed is not None:
        raise InvalidUsage(f"the collection {handle.name!r} has become keyed since it was loaded: load it again")
    if handle.keyed is None:
        raise NotKeyed(handle.name)
    return handle.keyed


def convert_events(handle: CollectionHandle, data: Any, stamp: Stamp | None, *, may_delete: bool = True) -> EventTable:
    """Return a user's rows as checked events; `persist.core.keyed.intake` lists their forms."""
    form, timeline = get_keyed_form(handle), handle.clocked_timeline
    events = to_events(data, handle.schema, form, stamp, timeline, handle.machine, may_delete=may_delete)
    check_event_times(handle, events)
    return events


def find_refused_events(handle: CollectionHandle, events: EventTable) -> set[int]:
    """Return the numbers of partial events whose keys hold no row now."""
    contents, form, refused = handle.contents(), get_keyed_form(handle), list[pa.Table]()
    machine = require_machine(find_machine(form, handle.machine, handle.name), form, handle.name)
    numbered = events.table.append_column(NUMBER, events.table[SEQ])
    end = pc.max(events.table[TIME]).as_py() + 1
    for _ in resolve_events(
        contents, handle.schema, machine, end, handle.engine.reader(), numbered, on_refused=refused.append
    ):
        pass
    return {number for table in refused for number in table[NUMBER].to_pylist()}


def check_event_times(handle: CollectionHandle, events: EventTable) -> None:
    """Refuse events whose first or last time is implausible; see `CollectionHandle.check_times`."""
    if not events.at_commit and len(events.table):
        handle.check_times(pc.min_max(events.table[TIME]).as_py().values(), allow_future=handle.allow_future)


def compute_events_digest(events: EventTable) -> int:
    """Return the digest of events for a token: the sum of the digests of any batches of them."""
    columns = [*(name for name in events.schema.names if name != SEQ), "_time"]
    if not events.is_partial:
        return compute_digest(events.table, columns) % DIGEST_MODULUS
    is_whole = pc.is_null(events.table[GIVEN])
    whole, partial_events = events.table.filter(is_whole), events.table.filter(pc.invert(is_whole))
    return (compute_digest(whole, columns) + compute_digest(partial_events, [*columns, GIVEN])) % DIGEST_MODULUS


def make_deletion_events(handle: CollectionHandle, what: Any, stamp: Stamp | None) -> EventTable:
    """Return events that delete keys of a keyed collection.

    The keys have any form that `Snapshot.get` takes, or are rows that also have the ordering columns.
    """
    form = get_keyed_form(handle)
    rows = to_table(open_stream(what), handle.schema)
    if rows is None or {*rows.column_names} <= {*handle.schema.key_names}:
        rows = find_distinct_keys(what, handle.schema)
    rows = rows.append_column(DELETED, pa.array(np.ones(len(rows), np.bool_)))
    events = to_events(rows, handle.schema, form, stamp, handle.clocked_timeline, handle.machine)
    check_event_times(handle, events)
    return events


def check_upserts(handle: CollectionHandle, action: str = "upsert") -> None:
    """Raise InvalidUsage if the events of a collection belong to a machine other than `upsert`."""
    if handle.keyed is not None and handle.keyed.machine.name != NAME:
        raise InvalidUsage(
            f"the collection {handle.name!r} has the machine {describe_machine(handle.keyed.machine)}, which alone "
            f"determines the values of its keys, so {action} is refused."
        ).with_remedy("Use {transition:call}.")
