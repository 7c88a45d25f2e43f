"""Many tasks for events of a keyed collection: a task's work on the events of some keys, and the one commit for all.

A task has all events of its keys. It looks up their present rows, computes the updates, and stores them. No data of the
collection is shuffled, and only the row groups that may have one of these keys are read. Events after the seal are
stored as events. The driver then commits everything as one record, which is refused if a relevant seal or update came
first. In that case all events are added unresolved, and the client that seals resolves them
(`persist.engine.collection.keyed_events`).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from persist.codecs.order.arrays import get_int64_values, make_int64_array
from persist.codecs.order.ordering import combine_chunks
from persist.codecs.part.part import Part
from persist.compute.tasks.batch_times import LATE_BYTES_MAX, make_late_step_builder
from persist.compute.tasks.planned_write import Target, add_digests, check_times, log_write, upload
from persist.core.antichain import encode_frontier, to_antichain
from persist.core.errors import Conflict, InvalidUsage, Superseded, UpdateNotBeyondUpper, UploadExpired
from persist.core.keyed.events import list_event_fields, make_event_schema
from persist.core.keyed.form import find_machine
from persist.core.keyed.intake import EventTable
from persist.core.keyed.machine import GIVEN, SEQ, Machine
from persist.core.log import kinds
from persist.core.log.fields import KeyedForm, TokenMark, Watermarks
from persist.core.state_rules.collection_rules import ExpectErasures
from persist.core.state_rules.contents import CollectionState
from persist.core.state_rules.erasures import count_erasures
from persist.core.state_rules.keyed_rules import PlannedPend, list_due_parts, load_form
from persist.engine.collection.keyed_events import AskedEvents, check_event_times, compute_events_digest
from persist.engine.collection.planned_commits import commit_seal
from persist.engine.collection.planned_commits import submit as submit_keyed
from persist.engine.location.collection_handle import CollectionHandle
from persist.engine.location.engine import Engine
from persist.engine.location.opening import read_engine
from persist.engine.location.resolver import split_late
from persist.engine.read.keyed.resolution import require_machine, resolve_events
from persist.engine.write.operations import Step, Write

ToEvents = Callable[[pa.Table], EventTable]


@dataclass(frozen=True)
class KeyedWork:
    """A batch of events for one collection, planned from one state.

    Attributes:
        contents: the state of the collection from which the batch was planned.
        to_events: converts rows to events.
        end: the upper to seal to in the same commit; None not to seal.
        collects: late events are left out and returned; otherwise they refuse the whole batch.
        is_done: the collection has the token, so the batch was committed before.
    """

    target: Target
    contents: CollectionState
    machine: Machine
    to_events: ToEvents
    end: int | None
    token: str | None = None
    collects: bool = False
    is_done: bool = False
    allow_future: bool = False

    @property
    def form(self) -> KeyedForm:
        """How the collection resolves events, as the schema of the target has it."""
        form = load_form(self.contents, replace(self.target.schema, known=self.contents.schema.known))
        assert form is not None, "work is planned for keyed collections"
        return form

    @property
    def can_resolve(self) -> bool:
        """Whether tasks can compute the updates: sealing resolves events, and none are pending."""
        form = self.form
        return self.end is not None and form.resolve == "seal" and not list_due_parts(self.contents, self.end)

    @property
    def needs_order(self) -> bool:
        """Whether the order of arrival may matter, so that a shuffle must keep it."""
        return self.form.ties == "last"

    def store_result(self, rows: pa.Table, *, resolves: bool) -> "Stored":
        """Store the result of rows, which include all events of their keys.

        Args:
            rows: in the order of their arrival; or in any order, with a column `_seq` that has the order of arrival.
            resolves: compute the updates of sealed events; otherwise all are stored as events.
        """
        events, late = self.to_events(_sort_by_arrival(rows)), None
        digest = None if self.token is None else compute_events_digest(events)
        if self.collects:
            events, late = split_late(events, self.contents, self.form)
        due, after = self._split_due(events.table) if resolves else (events.table.slice(0, 0), events.table)
        after = self._complete_partial(after)  # Before anything is uploaded.
        updates = self._resolve_events(due) if len(due) else ()
        parts = upload(self.target, updates) if len(due) else ()
        if self.machine.has_one_value:
            parts = tuple(part.mark_single() for part in parts)
        pended = upload(replace(self.target, schema=events.schema), [after]) if len(after) else ()
        times = pc.min_max(events.table["_time"]).as_py()
        sent = () if late is None else (_encode_late_events(late),)
        return Stored(parts, pended, len(due), events.watermarks, times["min"], digest, sent)

    def _split_due(self, events: pa.Table) -> tuple[pa.Table, pa.Table]:
        """Split events into those that are resolved now and those that stay pending."""
        assert self.end is not None
        mask = pc.less(events["_time"], self.end)
        return events.filter(mask), events.filter(pc.invert(mask))

    def _resolve_events(self, events: pa.Table) -> Iterable[pa.Table]:
        """Return the updates that events result in."""
        assert self.end is not None
        target = self.target
        with read_engine(target.location, target.storage) as engine:
            reader = engine.reader()
            machine = require_machine(find_machine(self.form, self.machine, target.name), self.form, target.name)
            yield from resolve_events(self.contents, target.schema, machine, self.end, reader, events)

    def _complete_partial(self, events: pa.Table) -> pa.Table:
        """Complete partial events, because parts can store only complete ones."""
        if GIVEN not in events.column_names:
            return events
        if events[GIVEN].null_count < len(events):
            raise InvalidUsage(
                f"some events of {self.target.name!r} leave columns as they are, and tasks cannot resolve them now: "
                'upsert them with where="driver" and a seal beyond their times, or in smaller batches'
            )
        return events.drop_columns([GIVEN])


def _sort_by_arrival(rows: pa.Table) -> pa.Table:
    """Return rows in the order in which they arrived."""
    if SEQ not in rows.column_names:
        return rows
    order = np.argsort(get_int64_values(combine_chunks(rows[SEQ])), kind="stable")
    return rows.drop_columns([SEQ]).take(make_int64_array(order))


class Stored(msgspec.Struct, frozen=True, array_like=True):
    """The stored output of one task, or of all of them.

    Attributes:
        parts, pended: parts of updates, and of events.
        resolved: how many events became updates.
        first: the least time of all events; None if there were none.
        digest: the digest of all events, if it is needed.
        late: the events that were left out, as Arrow streams.
    """

    parts: tuple[Part, ...] = ()
    pended: tuple[Part, ...] = ()
    resolved: int = 0
    watermarks: Watermarks | None = None
    first: int | None = None
    digest: int | None = 0
    late: tuple[bytes, ...] = ()

    @classmethod
    def combine(cls, tasks: Sequence["Stored"]) -> "Stored":
        """Return what several tasks have stored."""
        marks = [task.watermarks for task in tasks if task.watermarks is not None]
        firsts = [task.first for task in tasks if task.first is not None]
        return cls(
            tuple(part for task in tasks for part in task.parts),
            tuple(part for task in tasks for part in task.pended),
            sum(task.resolved for task in tasks),
            (min(least for least, _ in marks), max(most for _, most in marks)) if marks else None,
            min(firsts, default=None),
            add_digests(task.digest for task in tasks),
            _check_size_of_late(tuple(stream for task in tasks for stream in task.late)),
        )

    @property
    def late_events(self) -> pa.Table | None:
        """The events that were left out, with `_reason`; None if there are none."""
        tables = [pa.ipc.open_stream(stream).read_all() for stream in self.late]
        return pa.concat_tables(tables, promote_options="default") if tables else None

    @property
    def everything(self) -> tuple[Part, ...]:
        """All stored parts: of updates, and of events."""
        return (*self.parts, *self.pended)


def build_handle(work: KeyedWork, engine: Engine) -> CollectionHandle:
    """Return the handle of the batch's collection, with its machine."""
    return replace(work.target.at(engine), machine=work.machine, allow_future=work.allow_future)


def commit_events(
    engine: Engine, work: KeyedWork, rows: pa.Table, more: tuple[Step, ...] = (), late_to: str | None = None
) -> pa.Table | None:
    """Commit events of this process, further steps and the seal at once.

    Late events go to the collection `late_to`, which is created if missing. Returns the late events that were left out,
    with `_reason`, if they are collected. Raises what `KeyedWork.to_events` and `Collection.upsert` do.
    """
    late = Counter[str]() if work.collects else None
    also = None if late_to is None else make_late_step_builder(engine, work.target.schema, work.form, late_to)
    handle, events = build_handle(work, engine), work.to_events(rows)
    check_event_times(handle, events)
    requested = AskedEvents(events, work.end, work.token, more, late=late, late_steps=also)
    future = submit_keyed(handle, "upsert", requested)
    future.result()
    return future.late


def commit_resolution(
    engine: Engine, work: KeyedWork, stored: Stored, more: tuple[Step, ...] = (), late_to: str | None = None
) -> bool:
    """Commit the updates that tasks resolved, and the seal; return False if the plan is stale.

    Args:
        more, late_to: as in `commit_events`.

    Raises:
        UpdateNotBeyondUpper, FrontierRegression, LateEvents: an event or the seal is late; all is deleted.
        TokenReused: the token names other events.
    """
    assert work.end is not None
    contents, id_, end = work.contents, work.target.id, encode_frontier(work.end)
    steps: list[Step] = [kinds.Seal(id_, end)]
    marks, pending_marks = (stored.watermarks, None) if stored.resolved else (None, stored.watermarks)
    if stored.resolved:
        resolve = kinds.Resolve(id_, encode_frontier(contents.resolved), end, (), stored.parts, watermarks=marks)
        steps = [ExpectErasures(id_, count_erasures(contents)), resolve]
    steps += _make_pend_steps(work, stored, pending_marks)
    return _commit_parts(engine, work, stored, [*more, *steps, *_make_token_steps(work, stored)], late_to)


def commit_pending_events(
    engine: Engine, work: KeyedWork, stored: Stored, more: tuple[Step, ...] = (), late_to: str | None = None
) -> None:
    """Commit events that tasks stored; then seal, which resolves them."""
    steps = [*more, *_make_pend_steps(work, stored, stored.watermarks), *_make_token_steps(work, stored)]
    if steps or (stored.late and late_to is not None):
        committed = _commit_parts(engine, work, stored, steps, late_to)
        assert committed, "nothing comes in between events that are added"
    seal_committed(engine, work)


def seal_committed(engine: Engine, work: KeyedWork) -> None:
    """Seal to the planned end, unless the collection is sealed that far."""
    handle = build_handle(work, engine)
    if work.end is not None and work.end > handle.contents().upper:
        commit_seal(handle, work.end).result()


def _make_pend_steps(work: KeyedWork, stored: Stored, watermarks: Watermarks | None) -> list[Step]:
    """Return the step that adds the stored events, if there are any."""
    parts = stored.pended
    if not parts:
        return []
    first, last = min(part.time_min for part in parts), max(part.time_max for part in parts)
    uploaded: Future[tuple[Part, ...]] = Future()
    uploaded.set_result(parts)
    schema = make_event_schema(work.target.schema, list_event_fields(work.target.schema, work.form))
    planned = PlannedPend(work.target.id, first, last, watermarks, schema.version)
    return [Write(work.target.id, schema, first, 0, uploaded, is_kept=True, events=planned)]


def _make_token_steps(work: KeyedWork, stored: Stored) -> list[Step]:
    """Return the step that records the token."""
    if work.token is None:
        return []
    digest = stored.digest or 0
    return [kinds.Tokens(work.target.id, (TokenMark(work.token, stored.first or 0, f"{digest:016x}"),))]


def _commit_parts(engine: Engine, work: KeyedWork, stored: Stored, steps: list[Any], late_to: str | None) -> bool:
    """Commit the stored parts; return False if the plan is stale and must be made again."""
    names = {work.target.id: work.target.name}
    try:
        first = stored.first
        if first is not None and first < work.contents.upper:
            raise UpdateNotBeyondUpper(first, to_antichain(work.contents.upper))
        check_times(build_handle(work, engine), stored.everything, allow_future=work.allow_future)
        if late_to is not None and (late := stored.late_events) is not None:
            more, named = make_late_step_builder(engine, work.target.schema, work.form, late_to)(late)
            steps, names = [*steps, *more], {**names, **named}
        engine.submit("upsert", steps, names).result()
    except (Superseded, UploadExpired) as error:
        _discard(work.target, stored)
        if isinstance(error, UploadExpired):
            raise
        return False
    except (InvalidUsage, Conflict):
        _discard(work.target, stored)
        raise
    log_write(work.target, stored.everything)
    return True


def _discard(target: Target, stored: Stored) -> None:
    """Delete the parts that tasks have stored."""
    with target.open_writer() as writer:
        writer.discard(stored.everything)


def _encode_late_events(late: pa.Table) -> bytes:
    """Return late events as an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, late.schema) as stream:
        stream.write_table(late)
    (sent,) = _check_size_of_late((bytes(sink.getvalue()),))
    return sent


def _check_size_of_late(streams: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """Return late events unchanged. Raises InvalidUsage if they are too large for the driver."""
    size = sum(map(len, streams))
    if size > LATE_BYTES_MAX:
        raise InvalidUsage(
            f"{size:,} bytes of events of one batch are late, and {LATE_BYTES_MAX:,} are collected at most: leave out "
            "events at sealed times before, or write smaller batches."
        )
    return streams
