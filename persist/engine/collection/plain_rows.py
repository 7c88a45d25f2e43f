"""Overwriting, deleting and restoring plain rows: the difference to the contents, as updates of one commit.

History is never rewritten. The present contents are the last sealed ones. Records with the right multiplicity stay;
others are retracted or inserted at the new time. The commit must be alone: it is rejected if another client has sealed
or added anything since, even unsealed, because the difference would be wrong. It seals the new time, so that the next
difference builds on this one.

New rows that fit in memory are compared directly. Larger input is stored as parts that no record names, so a stream may
be larger than memory. They are deleted when the difference is known; after a crash, garbage collection deletes them.
The difference is made slice by slice of the key space. Memory: the client's budget. Cost: reading the contents, and
writing the difference; new rows that do not fit are also written and read once.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from persist.codecs.order.arrays import copy_table, make_int64_array
from persist.codecs.order.digest import compute_digest
from persist.codecs.order.ordering import sort_table
from persist.codecs.order.search import SortedKeys
from persist.codecs.order.sums import consolidate
from persist.codecs.part.filters import add_both_zeros
from persist.codecs.part.part import Part
from persist.codecs.types.schema import TIME, TIME_MAX, CollectionSchema
from persist.codecs.updates.inputs import open_stream
from persist.codecs.updates.tuples import is_named_tuple
from persist.codecs.updates.updates import Stamp, set_time
from persist.core.antichain import END, Antichain, encode_frontier, to_antichain
from persist.core.errors import (
    DuplicateKeys,
    InvalidUsage,
    SchemaMismatch,
    UpdateNotBeyondUpper,
    UpdatesBeyondUpper,
    attach_timeline,
)
from persist.core.keyed.events import prepare_events, replace_by_event
from persist.core.keyed.form import Keyed, build_form
from persist.core.keyed.intake import EventTable, check_keys, to_events
from persist.core.keyed.machine import SEQ
from persist.core.keyed.partial import Missing, complete_events, to_partial_events
from persist.core.log import kinds
from persist.core.log.fields import KeyedForm
from persist.core.state_rules.collection_rules import Condition, ExpectErasures, ExpectNothingBeyondUpper, ExpectUpper
from persist.core.state_rules.contents import CollectionState, summarize_unsealed
from persist.core.state_rules.erasures import count_erasures
from persist.core.state_rules.keyed_rules import RESERVED
from persist.core.timeline import Moment
from persist.engine.collection.keyed_events import (
    KeyedChange,
    ReplaceRows,
    check_event_times,
    check_upserts,
    make_row_reader,
)
from persist.engine.collection.reads import changes
from persist.engine.location.collection_handle import CollectionHandle
from persist.engine.read.keyed.key_replacement import (
    check_kept_rows,
    check_one_row_per_key,
    find_repeated_keys,
    make_kept_filter,
)
from persist.engine.read.lookups.lookup import Lookup, Wanted
from persist.engine.read.lookups.requested_keys import find_distinct_keys
from persist.engine.read.merging import NewRows, Replaced, compute_differences
from persist.engine.read.planning.scan import Scan, negate_diffs
from persist.engine.read.planning.snapshot_plan import plan_snapshot
from persist.engine.write.operations import Asked, Step, Write
from persist.engine.write.part_writer import PartWriter, open_run
from persist.engine.write.write_options import compute_delete_digest, compute_overwrite_digest, format_filter


def make_restore_steps(handle: CollectionHandle, then: int, time: int | Moment | None, token: str | None) -> list[Step]:
    """Return the steps that revert all changes since a sealed time. Cost: reading these changes.

    Raises: the errors of `make_overwrite_steps`; AsOfCompacted, if the old contents are compacted.
    """
    contents, at = _read_after_requests(handle), None if time is None else handle.to_exact_time("time", time)
    request = Asked(handle.id, compute_overwrite_digest(then, at, "what was there"))
    if handle.remembers_token(contents, token):
        return [request, *_list_stamp_steps(handle, at)]
    _check_beginning(handle, contents, at)
    writer = handle.engine.writer("restore").part_writer()
    with ExitStack() as stack:
        later = stack.enter_context(changes(handle, then + 1, contents.upper))
        back = (set_time(negate_diffs(pa.Table.from_batches([rows])), at or 0, handle.schema) for rows in later)
        new, _ = _hold_or_store_rows(handle, back, None, (), writer, stack)
        nothing = Scan(handle.schema, (), 0, 0, handle.schema.names)
        return [
            request,
            *_make_difference_steps(handle, contents, at, _store_difference(handle, nothing, new, at or 0, writer)),
        ]


def make_rewrite_steps(handle: CollectionHandle, replace_rows: ReplaceRows, time: int | Moment | None) -> list[Step]:
    """Return the steps that replace rows that a function selects; none if it selects nothing.

    Args:
        replace_rows: gets a reader of the contents, and returns the removed and the new rows.
        time: the time of the difference; None for the time of the commit.
    """
    contents = _read_after_requests(handle)
    with ExitStack() as stack:
        rewrite = replace_rows(make_row_reader(_make_scan_planner(handle, contents, stack), handle.engine.reader()))
        if rewrite is None:
            return []
        settled = ExpectUpper(handle.id, contents.upper_times), ExpectErasures(handle.id, count_erasures(contents))
        if rewrite.before is None:
            return [*settled, *make_overwrite_steps(handle, rewrite.after, time, None, multiset=True)]
        at = None if time is None else handle.to_exact_time("time", time)
        _check_beginning(handle, contents, at)
        step = handle.engine.writer("sql").write_step(handle.id, handle.schema, rewrite.updates(handle.schema, at or 0))
        return [*settled, *_make_difference_steps(handle, contents, at, [] if step is None else [step])]


def make_overwrite_steps(
    handle: CollectionHandle,
    rows: Any,
    time: int | Moment | None,
    where: pc.Expression | None,
    token: str | None = None,
    *,
    multiset: bool = False,
) -> list[Step]:
    """Return the steps that replace the contents, or the rows for which where is true, by rows.

    With a used token, the steps have no updates, only the digest by which the commit recognises the repetition.

    Args:
        time: the time of the difference; None for the time of the commit.
        multiset: whether keys may have several rows.

    Raises:
        DuplicateKeys: rows repeat a key, or have the key of a remaining row, without multiset.
        InvalidUsage: where is not true for some of the rows, or time is not a time.
        UpdateNotBeyondUpper: the time is sealed.
        UpdatesBeyondUpper: another client has written unsealed updates.
        SchemaMismatch, InvalidUpdate: the rows do not fit.
    """
    handle.check_plain("overwrite")
    with NewContents(handle, rows, time, token, multiset=multiset) as new:
        return new.steps(where)


class NewContents:
    """The new rows of an overwrite, read once for any number of attempts."""

    def __init__(
        self,
        handle: CollectionHandle,
        rows: Any,
        time: int | Moment | None,
        token: str | None,
        *,
        multiset: bool = False,
        by_key: bool = False,
    ) -> None:
        """Begin with rows that are not read yet.

        Args:
            multiset: whether keys may have several rows.
            by_key: the rows are an upsert into an empty collection: equal rows may repeat, and keys must not be NULL.
        """
        if handle.keyed is not None and multiset:
            raise InvalidUsage(f"multiset=True: the keyed collection {handle.name!r} holds one value for each key")
        check_upserts(handle, "overwrite")
        self._handle = handle
        self._given = rows
        self._multiset = multiset
        self._by_key = by_key
        self._at = None if time is None else handle.to_exact_time("time", time)
        self._token = token
        self._writer = handle.engine.writer("overwrite").part_writer()
        self._stack = ExitStack()
        self._held: tuple[NewRows, int] | None = None

    def __enter__(self) -> "NewContents":
        return self

    def __exit__(self, *raised: object) -> None:
        self._stack.close()

    def steps(self, where: pc.Expression | None) -> list[Step]:
        """Return the steps that turn the present contents into the new rows."""
        handle, contents = self._handle, _read_after_requests(self._handle)
        text = format_filter(where, self._token)
        if handle.remembers_token(contents, self._token):
            return [
                Asked(handle.id, compute_overwrite_digest(self._get_new_rows()[1], self._at, text)),
                *_list_stamp_steps(handle, self._at),
            ]
        _check_beginning(handle, contents, self._at)
        with ExitStack() as stack:
            plan = _make_scan_planner(handle, contents, stack)
            present = plan(where)
            new, rows_digest = self._get_new_rows()
            request = Asked(handle.id, compute_overwrite_digest(rows_digest, self._at, text))
            kept_filter = None if self._multiset else make_kept_filter(where, handle.schema)
            kept_lookup, reader = None if kept_filter is None else Lookup(plan(kept_filter)), handle.engine.reader()

            def check(rows: pa.Table) -> None:
                if not isinstance(new, pa.Table):
                    self._check_rows(rows)
                if kept_lookup is not None:
                    check_kept_rows(kept_lookup, rows, handle.name, reader)

            replaced = self._drop_repeated_rows if self._by_key else None
            writes = _store_difference(handle, present, new, self._at or 0, self._writer, check, replaced)
            is_single = where is None and not self._multiset and bool(handle.schema.key_names)
            return [request, *_make_difference_steps(handle, contents, self._at, writes, is_single=is_single)]

    def read(self) -> None:
        """Read the rows now, because the caller may reuse their buffers before the difference is computed."""
        new, digest = self._get_new_rows()
        if isinstance(new, pa.Table):
            self._held = copy_table(new), digest

    def make_keyed_change(self, where: pc.Expression | None) -> KeyedChange:
        """Return the change to the new rows in a keyed collection; close this only after its commit."""
        self.read()
        new, digest = self._get_new_rows()
        digest = compute_overwrite_digest(digest, self._at, format_filter(where, self._token))
        return KeyedChange(new, self._at, where, digest)

    def _check_rows(self, rows: pa.Table) -> None:
        """Check that each key has one new row, unless multisets are allowed."""
        if self._multiset:
            return
        action = "overwrite" if self._handle.keyed is None else "keyed"
        if self._by_key:
            check_keys(rows, self._handle.schema)
            action, rows = "upsert", self._drop_repeated_rows(rows)
        check_one_row_per_key(rows, self._handle.schema, self._handle.name, action)

    def _drop_repeated_rows(self, rows: pa.Table, present: pa.Table | None = None) -> pa.Table:
        """Return new rows, each distinct row once; `present` is not used."""
        once = consolidate(rows, [*self._handle.schema.names])
        at = once.schema.get_field_index("_diff")
        return once.set_column(at, once.schema.field(at), make_int64_array(np.ones(len(once), np.int64)))

    def _get_new_rows(self) -> tuple[NewRows, int]:
        """Return the new rows, in memory or stored, and their digest."""
        if self._held is None:
            by = () if self._token is None else self._handle.schema.names
            stamp = Stamp(self._at, 1)
            self._held = _hold_or_store_rows(self._handle, self._given, stamp, by, self._writer, self._stack)
            self._given = None
            if isinstance(self._held[0], pa.Table):  # Others are looked at key by key when they are compared.
                self._check_rows(self._held[0])
        return self._held


def make_delete_steps(
    handle: CollectionHandle,
    wanted: Any,
    where: pc.Expression | None,
    time: int | Moment | None,
    token: str | None = None,
) -> list[Step]:
    """Return the steps that retract the records with some keys, or those for which where is true.

    They are retracted at a time, or at the time of the commit.

    Raises: the errors of `make_overwrite_steps`; InvalidUsage, if the keys do not fit the collection, or both keys and
    where are passed, or neither.
    """
    handle.check_plain("a plain delete")
    check_one_selection(wanted, where)
    at, contents = None if time is None else handle.to_exact_time("time", time), _read_after_requests(handle)
    writer = handle.engine.writer("delete")
    keys = find_distinct_keys(wanted, handle.schema) if where is None else None
    digest = 0
    if keys is not None and token is not None:  # How often each was named does not matter.
        once = keys.append_column("_diff", make_int64_array(np.ones(len(keys), np.int64)))
        digest = compute_digest(once, handle.schema.key_names)
    request = Asked(handle.id, compute_delete_digest(digest, at, format_filter(where, token)))
    if handle.remembers_token(contents, token):
        return [request, *_list_stamp_steps(handle, at)]
    _check_beginning(handle, contents, at)
    with ExitStack() as stack:
        present = _make_scan_planner(handle, contents, stack)(where)
        if keys is None:
            writes = _store_difference(handle, present, (), at or 0, writer.part_writer())
            return [request, *_make_difference_steps(handle, contents, at, writes)]
        records = Lookup(present).read_contents(Wanted.of(keys, handle.schema), "diff", handle.engine.reader())
        step = writer.write_step(handle.id, handle.schema, set_time(negate_diffs(records), at or 0, handle.schema))
        return [request, *_make_difference_steps(handle, contents, at, [] if step is None else [step], is_single=True)]


def make_keyed_deletion(
    handle: CollectionHandle, where: pc.Expression, time: int | Moment | None, token: str | None
) -> KeyedChange:
    """Return the change that deletes the rows of a keyed collection that meet a condition, at a time."""
    check_upserts(handle, "delete(where=…)")
    at = None if time is None else handle.to_exact_time("time", time)
    return KeyedChange((), at, where, compute_delete_digest(0, at, format_filter(where, token)))


def convert_plain_events(
    handle: CollectionHandle, data: Any, stamp: Stamp | None, *, may_delete: bool = True
) -> EventTable:
    """Return rows for keys of a plain collection, checked, in any form that `Collection.upsert` takes.

    `may_delete`: see `to_events`.

    Raises:
        DuplicateKeys: a key has several rows at one time.
        InvalidUsage: the collection has no key; or it has no value columns, and rows are tuples.
        SchemaMismatch, InvalidUpdate: the rows do not fit, or the collection has a column `_deleted` or `_seq`.
    """
    schema = handle.schema
    if may_delete and not schema.value_names:
        data = open_stream(data)
        first = data[0] if isinstance(data, (list, tuple)) and data else data
        if isinstance(first, (list, tuple, Iterator)) and not is_named_tuple(first):
            raise InvalidUsage(
                f"the collection {handle.name!r} has no value columns, so None in a tuple may mean an insertion "
                "or a deletion: give keys as a table or as dicts, and use delete() for deletions"
            )
    _check_upsertable(handle)
    form = schema.compute_once(_upsert_form)
    events = to_events(data, schema, form, stamp, handle.clocked_timeline, may_delete=may_delete)
    return _check_events(handle, events, "upsert")


def _check_upsertable(handle: CollectionHandle) -> None:
    """Raise an error unless a collection has a key and no reserved column names."""
    schema = handle.schema
    if not schema.key_names:
        raise InvalidUsage(f"the collection {handle.name!r} has no key, by which rows could be replaced.").with_remedy(
            "Add rows with {write:call}, or replace all of them with {overwrite:call}."
        )
    if reserved := [name for name in schema.names if name in RESERVED]:
        raise SchemaMismatch(
            f"the collection {handle.name!r} has a column {reserved[0]!r}, so rows cannot replace those of their keys: "
            "a column of that name controls how rows replace others."
        ).with_remedy("Add rows with {write:call}, replace all of them with {overwrite:call}, or rename the column.")


def convert_plain_updates(handle: CollectionHandle, data: Any, stamp: Stamp | None, missing: Missing) -> EventTable:
    """Return rows of a plain collection that may lack columns, checked; see `Collection.update`.

    Raises: as `convert_plain_events`.
    """
    _check_upsertable(handle)
    form = handle.schema.compute_once(_upsert_form)
    events = to_partial_events(data, handle.schema, form, stamp, handle.clocked_timeline, missing)
    return _check_events(handle, events, "update")


def _check_events(handle: CollectionHandle, events: EventTable, action: str) -> EventTable:
    """Return events ready to resolve; raise an error for repeated keys."""
    schema = handle.schema
    check_event_times(handle, events)
    ready = prepare_events(schema, schema.compute_once(_upsert_form), events.table)
    if len(ready.keys) == len(events.table):
        return msgspec.structs.replace(events, ready=ready)
    names = [name for name in events.table.column_names if name not in (SEQ, "_diff")]
    once = consolidate(events.table.select([*names, "_diff"]), names)  # The same row may occur twice.
    order, starts = sort_table(once, [*schema.key_names, TIME])
    if not starts.all():
        raise DuplicateKeys(handle.name, find_repeated_keys(once, schema.key_names, order[~starts]), action)
    return events


def _upsert_form(schema: CollectionSchema) -> KeyedForm:
    """Return the rules by which events upsert rows of a plain collection."""
    return build_form(Keyed(), schema)


def make_upsert_steps(handle: CollectionHandle, events: EventTable, token: str | None = None) -> list[Step]:
    """Return the steps that replace the rows of keys of a plain collection, or delete them.

    Raises: as `make_overwrite_steps`, for the first time of the events.
    """
    contents, schema = _read_after_requests(handle), handle.schema
    form = schema.compute_once(_upsert_form)
    handle.check_plain("a plain upsert")
    columns = [name for name in events.table.column_names if name not in (SEQ, "_diff")]
    request = Asked(handle.id, None if token is None else compute_digest(events.table, columns))
    first = last = None
    if not events.at_commit:
        first, last = pc.min_max(events.table[TIME]).as_py().values()
    if handle.remembers_token(contents, token):
        return [request, *([handle.commit_time_step()] if events.at_commit else [])]
    _check_beginning(handle, contents, first)
    if not len(events.table):
        return [*_list_creation_steps(handle), request]
    with ExitStack() as stack:
        lookup, reader = Lookup(_make_scan_planner(handle, contents, stack)(None)), handle.engine.reader()
        ready, writer = events.ready or prepare_events(schema, form, events.table), handle.engine.writer("upsert")
        keys_to_replace = Wanted(len(ready.keys), SortedKeys(ready.keys))
        if events.is_partial:
            ready, rows = complete_events(
                ready, lookup.read_contents(keys_to_replace, "diff", reader), form, handle.name
            )
            step = writer.write_step(handle.id, schema, replace_by_event(ready, rows))
        else:
            step = writer.make_checked_step(
                handle.id, schema, replace_by_event(ready, lookup.read_terms(keys_to_replace, reader))
            )
        return [
            request,
            *_make_difference_steps(handle, contents, last, [] if step is None else [step], is_single=True),
        ]


def check_one_selection(keys: Any, where: pc.Expression | None) -> None:
    """Raise InvalidUsage unless exactly one of keys and where is passed."""
    if (keys is None) == (where is None) or isinstance(keys, pc.Expression):
        raise InvalidUsage(
            "delete() takes keys, or where= with a condition, and not both: delete([1, 2]), or "
            'delete(where="amount > 5")'
        )


def _read_after_requests(handle: CollectionHandle) -> CollectionState:
    """Return the newest state, after all earlier requests of this client."""
    handle.engine.settle()
    return handle.contents()


def _check_beginning(handle: CollectionHandle, contents: CollectionState, at: int | None) -> None:
    """Refuse a sealed time, unsealed updates, and another schema than the newest."""
    handle.get_current_schema(contents)
    if contents.upper == END:  # Complete: no time is left, and nothing may be taken for done.
        raise attach_timeline(UpdateNotBeyondUpper(TIME_MAX if at is None else at, Antichain()), contents.timeline)
    if at is not None and at < contents.upper:
        raise attach_timeline(UpdateNotBeyondUpper(at, to_antichain(contents.upper)), contents.timeline)
    refused = find_refusal(contents)
    if refused is not None:
        raise refused


def find_refusal(contents: CollectionState) -> UpdatesBeyondUpper | None:
    """Return an error if unsealed updates forbid a difference; None otherwise."""
    hidden = summarize_unsealed(contents)
    if hidden is None:
        return None
    first = hidden.first if hidden.is_exact else None
    error = UpdatesBeyondUpper(to_antichain(contents.upper), hidden.last, first=first, updates=hidden.updates)
    return attach_timeline(error, contents.timeline)


def expect_unchanged(contents: CollectionState) -> tuple[Condition, ...]:
    """Return the conditions that nothing was added to contents or erased from them."""
    return (
        ExpectNothingBeyondUpper(contents.id, contents.upper_times),
        ExpectErasures(contents.id, count_erasures(contents)),
    )


def _make_difference_steps(
    handle: CollectionHandle,
    contents: CollectionState,
    at: int | None,
    writes: Sequence[Write],
    *,
    is_single: bool = False,
) -> list[Step]:
    """Return the steps that commit the updates in `writes`.

    `is_single`: the updates leave one row for each changed key.
    """
    return [
        *_list_creation_steps(handle),
        *expect_unchanged(contents),
        *[msgspec.structs.replace(write, at_commit=at is None, is_single=is_single) for write in writes],
        *(_list_stamp_steps(handle, at) or [kinds.Seal(contents.id, encode_frontier((at or 0) + 1))]),
    ]


def _list_creation_steps(handle: CollectionHandle) -> list[Step]:
    """Return the step that creates the collection, if the commit must create it."""
    return [] if handle.create is None else [handle.create]


def _list_stamp_steps(handle: CollectionHandle, at: int | None) -> list[Step]:
    """Return the step that assigns the time of the commit, if there is no time."""
    return [handle.commit_time_step()] if at is None else []


def _make_scan_planner(
    handle: CollectionHandle, contents: CollectionState, stack: ExitStack
) -> Callable[[pc.Expression | None], Scan]:
    """Return a function that plans filtered reads of the contents; the plans are valid until the stack is left."""
    schema = handle.schema
    if contents.upper == 0:
        none = Scan(schema, (), 0, 0, schema.names)
        return lambda filter: none if filter is None else replace(none, filter=add_both_zeros(filter))
    as_of = contents.upper - 1
    # A later state will do as well: what is sealed stays as it is.
    newest, reading = handle.claim(as_of)
    stack.callback(reading.close)
    return partial(plan_snapshot, newest, schema, as_of, None)


def _hold_or_store_rows(
    handle: CollectionHandle,
    rows: Any,
    stamp: Stamp | None,
    by: Sequence[str],
    writer: PartWriter,
    stack: ExitStack,
) -> tuple[NewRows, int]:
    """Return rows or updates, in memory or as stored parts, and their digest.

    The digest covers the columns in `by`. The stored parts are deleted when the stack is left.
    """
    committer = handle.engine.writer("overwrite").committer
    new, digest = committer.write_steps.hold_or_store_updates(handle.id, handle.schema, rows, stamp, by=by)
    if isinstance(new, tuple):
        stack.callback(writer.discard, new)
    return new, digest


def _store_difference(
    handle: CollectionHandle,
    present: Scan,
    new: NewRows,
    at: int,
    writer: PartWriter,
    check: Callable[[pa.Table], object] = lambda rows: None,
    replaced: Replaced | None = None,
) -> list[Write]:
    """Store the updates from the present to the new rows; return the writes that add them to a commit."""
    reader = handle.engine.reader()
    stream = open_run(reader.memory_budget, handle.schema)
    stored: list[Part] = []
    try:
        for rows in compute_differences(present, new, reader, check, replaced):
            stored += (
                writer.put(handle.id, data, part) for data, part in stream.add(set_time(rows, at, handle.schema))
            )
        stored += (writer.put(handle.id, data, part) for data, part in stream.finish())
    except BaseException:
        writer.discard(stored)
        raise
    return handle.make_part_steps(stored)
