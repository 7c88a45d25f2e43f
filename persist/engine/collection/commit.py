"""Several steps, events and seals, of one or more collections, as one commit.

The block keeps, in call order, the steps of collections that take updates, and for each keyed collection a `_Draft`:
its events in the order of their arrival, and the upper to seal to. When the block ends, the drafts are planned from the
newest contents (`persist.engine.collection.planned_commits.submit_all`), and one record commits everything.

- Before the block ends nothing reaches the log, and no event is stored. If it raises, the uploads of `write` are
  deleted.
- A seal of a keyed collection resolves the events that were pending before the block, together with the block's.
- Steps on a keyed collection are checked in their order: an event before a seal of the block is refused, and so is a
  seal to an earlier time. The last seal counts. A condition, such as an expected upper, is tested on the contents
  before the block.
- If another client changes one of the collections first, everything is validated again, and changed collections are
  resolved again. An upsert of a plain collection, and an overwrite or a delete without a time, is the difference to the
  contents when the block ends, and is computed again after a conflict. With a time, it is the difference to the
  contents when the block called it, so a change in between refuses the commit.
- Each collection stores a token with the digest of its part of the commit, so that a repetition does nothing.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

import msgspec
import pyarrow.compute as pc

from persist.codecs.part.part import Part
from persist.core.antichain import encode_frontier, to_antichain
from persist.core.errors import FrontierRegression, InvalidUsage, SchemaMismatch, UpdateNotBeyondUpper, attach_timeline
from persist.core.keyed.intake import EventTable, concat_events
from persist.core.keyed.partial import Missing
from persist.core.log import kinds
from persist.core.timeline import Moment
from persist.engine.collection.keyed_events import (
    AskedEvents,
    KeyedChange,
    PlainChange,
    ReplaceRows,
    Unchanged,
    check_upserts,
    convert_partial_events,
    get_keyed_form,
    make_deletion_events,
)
from persist.engine.collection.plain_rows import (
    NewContents,
    check_one_selection,
    convert_plain_updates,
    make_delete_steps,
    make_keyed_deletion,
    make_restore_steps,
    make_rewrite_steps,
    make_upsert_steps,
)
from persist.engine.collection.planned_commits import submit_all
from persist.engine.collection.reads import snapshot
from persist.engine.location.collection_handle import CollectionHandle
from persist.engine.location.engine import Engine
from persist.engine.read.lookups.requested_keys import find_distinct_keys
from persist.engine.write.commit_future import CommitFuture, Committed
from persist.engine.write.operations import Asked, Step, Write
from persist.engine.write.write_options import WriteOptions, add_token


def _describe_time_conflict(what: str, handle: CollectionHandle) -> str:
    """Return the error text for rows of which only some have a time."""
    name = handle.name
    return f"some {what} of {name!r} in this block have no time, and others do: give a time to all of them or to none"


@dataclass(slots=True)
class _Draft:
    """The steps of a block on one keyed collection, until they are planned.

    Attributes:
        end: the upper to seal to; None not to seal.
        change: an overwrite or a conditional deletion of the collection, in place of events.
    """

    handle: CollectionHandle
    events: list[EventTable] = field(default_factory=list)
    end: int | None = None
    change: KeyedChange | None = None

    def add(self, events: EventTable) -> None:
        """Add events after the earlier ones.

        Raises:
            UpdateNotBeyondUpper: the block has sealed their time.
            SchemaMismatch: earlier events have another version of the schema.
            InvalidUsage: only some of the events have a time.
        """
        if self.change is not None:
            raise InvalidUsage(
                f"this block overwrites {self.handle.name!r}, or deletes by a condition, and can do nothing else "
                "with it: put its events into another block"
            )
        if not len(events.table):
            return
        if self.events and self.events[0].at_commit != events.at_commit:
            raise InvalidUsage(_describe_time_conflict("events", self.handle))
        first = pc.min(events.table["_time"]).as_py()
        if self.end is not None and not events.at_commit and first < self.end:
            raise attach_timeline(UpdateNotBeyondUpper(first, to_antichain(self.end)), self.handle.schema.timeline)
        if self.events and self.events[0].schema != events.schema:
            raise SchemaMismatch(
                f"these events of {self.handle.name!r} have another schema version than earlier ones of this block: "
                "load the collection once, and write all of its events by that handle"
            )
        self.events.append(events)

    def set_upper(self, end: int) -> None:
        """Set the upper to seal to; raise FrontierRegression if that goes back."""
        if self.end is not None and end < self.end:
            error = FrontierRegression("upper", to_antichain(end), to_antichain(self.end))
            raise attach_timeline(error, self.handle.schema.timeline)
        self.end = end

    def to_request(self, token: str | None) -> AskedEvents:
        """Return the events and the seal as a request for `submit_all`."""
        events, end = concat_events(self.events) if self.events else None, self.end
        if events is not None and events.is_partial and not events.at_commit:
            last = max(pc.max(each.table["_time"]).as_py() for each in self.events if each.is_partial)
            end = max(end or 0, last + 1)
        if self.change is not None and self.change.time is not None:
            end = max(end or 0, self.change.time + 1)
        return AskedEvents(events, end, token, change=self.change)


class Commit:
    """Collects steps in a `with` block and commits them when it ends: all of them, or none (rule 6).

    If the block raises, nothing happens. Otherwise its end waits until the commit is durable, and raises the error of a
    rejected commit. Memory: everything written in the block.

    Attributes:
        committed: the place of the commit, once the block has ended; as in `CommitFuture`.
    """

    def __init__(
        self,
        engine: Engine,
        options: WriteOptions | None = None,
        *,
        action: str = "multi_write",
        at_once: bool = False,
    ) -> None:
        """Begin an empty commit; errors are those of `Client.multi_write`.

        Args:
            options: the options of all steps, except the time, which each step has.
            action: the name of the caller's operation in errors.
            at_once: the caller adds steps and commits in one call, so no rows need be copied.
        """
        engine.writer(action)
        self.options = options or WriteOptions()
        self.committed: Committed | None = None
        self._engine = engine
        self._action = action
        self._at_once = at_once
        self._steps: list[Step] = []
        self._drafts: dict[str, _Draft] = {}
        self._changes: dict[str, tuple[CollectionHandle, PlainChange]] = {}
        self._upserts: dict[str, tuple[CollectionHandle, list[EventTable]]] = {}
        self._needed = ExitStack()
        self._names: dict[str, str] = {}
        self._committed: list[Callable[[], None]] = []
        self._is_open = at_once
        self._was_used = False

    @property
    def seqno(self) -> int | None:
        """The seqno of the commit, once the block has ended."""
        return None if self.committed is None else self.committed.seqno

    def add(self, handle: CollectionHandle, steps: Sequence[Step]) -> None:
        """Add steps on a collection."""
        self.check(handle)
        if handle.id not in self._names:
            self._names[handle.id] = handle.name
        self._steps += steps

    def add_parts(
        self,
        handle: CollectionHandle,
        parts: Sequence[Part],
        *,
        keep: bool = False,
        digest: int | None = None,
        at_commit: bool = False,
    ) -> None:
        """Add stored parts; see `MultiWrite.add_parts`.

        `at_commit`: the stored rows have time 0. They get the time of the commit, which also seals that time.
        """
        self.check(handle)
        steps: list[Step] = [*handle.make_part_steps(parts, keep=keep), Asked(handle.id, digest)]
        if at_commit:
            steps = [
                msgspec.structs.replace(step, at_commit=True) if isinstance(step, Write) else step for step in steps
            ]
            steps.append(handle.commit_time_step())
        self.add(handle, steps)

    def add_events(self, handle: CollectionHandle, events: EventTable) -> None:
        """Add events of a keyed collection, after the earlier ones.

        Raises:
            InvalidUsage: as `add`.
            UpdateNotBeyondUpper, SchemaMismatch: as `_Draft.add`.
        """
        self._get_draft(handle).add(events)

    def overwrite(
        self,
        handle: CollectionHandle,
        rows: Any,
        *,
        time: int | Moment | None = None,
        where: pc.Expression | None = None,
        multiset: bool = False,
        by_key: bool = False,
    ) -> None:
        """Make rows the contents of a collection; see `MultiWrite.overwrite` and `NewContents`."""
        handle = self.check_time(handle, time)
        self.check_unwritten(handle)
        token = self.options.token
        new = self._needed.enter_context(NewContents(handle, rows, time, token, multiset=multiset, by_key=by_key))
        if handle.keyed is not None:
            self._get_draft(handle).change = new.make_keyed_change(where)
            return
        if time is None and not self._at_once:
            new.read()
        self._add_difference(handle, time, partial(new.steps, where))

    def delete(
        self,
        handle: CollectionHandle,
        keys: Any,
        *,
        time: int | Moment | None = None,
        where: pc.Expression | None = None,
    ) -> None:
        """Retract records of a collection by their keys or a condition; see `MultiWrite.delete`."""
        check_one_selection(keys, where)
        handle = self.check_time(handle, time)
        if handle.keyed is not None:
            if where is None:
                self.add_events(handle, make_deletion_events(handle, keys, handle.stamp(time, None)))
            else:
                self.check_unwritten(handle)
                self._get_draft(handle).change = make_keyed_deletion(handle, where, time, self.options.token)
            return
        self.check_unwritten(handle)
        keys_to_delete = None if keys is None else find_distinct_keys(keys, handle.schema)
        self._add_difference(
            handle, time, partial(make_delete_steps, handle, keys_to_delete, where, time, self.options.token)
        )

    def restore(self, handle: CollectionHandle, as_of: int | Moment, *, time: int | Moment | None = None) -> None:
        """Restore the contents of an earlier time; see `Collection.restore`."""
        handle = self.check_time(handle, time)
        if handle.contents().view is not None:
            raise InvalidUsage(
                f"{handle.name!r} is a view: its query determines its contents. Restore its inputs, and refresh it"
            )
        then = handle.as_time("as_of", as_of)
        handle.wait_sealed(then, 0.0)
        if handle.keyed is None:
            self._add_difference(handle, time, partial(make_restore_steps, handle, then, time, self.options.token))
            return
        # The updates of a keyed collection are resolved from events, so an overwrite takes rows, one for each key.
        with snapshot(handle, then) as contents_then:
            self.overwrite(handle, contents_then.to_batches(), time=time)

    def rewrite(self, handle: CollectionHandle, replace_rows: ReplaceRows, *, time: int | Moment | None = None) -> None:
        """Replace rows that a function selects; see `rewrite`."""
        if handle.keyed is None:
            self._add_difference(handle, time, partial(make_rewrite_steps, handle, replace_rows, time))
            return
        check_upserts(handle, "a statement")
        at = None if time is None else handle.to_exact_time("time", time)
        self._get_draft(handle).change = KeyedChange(replace_rows, at, None, 0)

    def check_time(self, handle: CollectionHandle, time: int | Moment | None) -> CollectionHandle:
        """Return the collection for writes at a time, as the options allow; refuse an implausible time."""
        handle.check_plausible("time", time, allow_future=self.options.allow_future)
        return handle.with_future_times(allow_future=self.options.allow_future)

    def _add_difference(
        self, handle: CollectionHandle, time: int | Moment | None, steps: Callable[[], list[Step]]
    ) -> None:
        """Add a difference to a plain collection's contents: computed now if it has a time, else at the commit."""
        if time is not None:
            self.add(handle, steps())
            return
        self.add(handle, [])
        self._changes[handle.id] = (handle, PlainChange(steps, at_commit=True))

    def add_upsert(self, handle: CollectionHandle, events: EventTable) -> None:
        """Add rows for keys of a plain collection, after the earlier ones."""
        if handle.id not in self._upserts or any(step.collection == handle.id for step in self._steps):
            self.check_unwritten(handle)
        self.add(handle, [])
        pieces = self._upserts.setdefault(handle.id, (handle, []))[1]
        if pieces and pieces[0].at_commit != events.at_commit:
            raise InvalidUsage(_describe_time_conflict("rows", handle))
        pieces.append(events)

    def update(
        self, handle: CollectionHandle, rows: Any, *, time: int | Moment | None = None, missing: Missing = "error"
    ) -> None:
        """Change columns of the rows of keys; see `MultiWrite.update`."""
        handle = self.check_time(handle, time)
        stamp = handle.stamp(time, None)
        if handle.as_keyed().keyed is None:
            self.add_upsert(handle, convert_plain_updates(handle, rows, stamp, missing))
            return
        get_keyed_form(handle)
        self.add_events(handle, convert_partial_events(handle, rows, stamp, missing))

    def check_unwritten(self, handle: CollectionHandle) -> None:
        """Raise InvalidUsage if the block has changed a collection already, or may not change it."""
        self.check(handle)
        if handle.id in self._names:
            raise InvalidUsage(
                f"an overwrite, a delete or an upsert of a plain collection changes the contents before the block, "
                f"so it must be the block's first step on {handle.name!r}: put it first, or into a block of its own"
            )

    def add_seal(self, handle: CollectionHandle, upper: int) -> None:
        """Add a seal, which resolves events if the collection is keyed; see `MultiWrite.seal`."""
        handle = handle.as_keyed()
        if handle.keyed is None:
            self.add(handle, [kinds.Seal(handle.id, encode_frontier(upper))])
        else:
            self._get_draft(handle).set_upper(upper)

    def changes(self, handle: CollectionHandle) -> bool:
        """Return whether the block has events, a change or a keyed seal of a collection."""
        return handle.id in self._drafts or handle.id in self._changes or handle.id in self._upserts

    def call_when_durable(self, call: Callable[[], None]) -> None:
        """Call a function once the commit is durable."""
        self._committed.append(call)

    def check(self, handle: CollectionHandle) -> None:
        """Raise InvalidUsage unless steps on a collection can be added now."""
        if not self._is_open:
            raise InvalidUsage(
                "a multi_write takes writes only inside its `with` block: with client.multi_write() as multi: …"
            )
        if handle.engine is not self._engine:
            raise InvalidUsage(
                f"collection {handle.name!r} belongs to another client; a commit covers the collections of "
                "one location, so load it from the client that opened this block"
            )

    def _get_draft(self, handle: CollectionHandle) -> _Draft:
        """Return the draft of a keyed collection, a new one at its first step."""
        self.add(handle, [])
        return self._drafts.setdefault(handle.id, _Draft(handle))

    def __enter__(self) -> Self:
        if self._was_used:
            raise InvalidUsage("this multi_write was used already; open another one with client.multi_write()")
        self._is_open = self._was_used = True
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._is_open = False
        if kind is not None:
            self.abandon()
            return
        self.committed = self.submit().get_commit()
        for call in self._committed:
            call()

    def abandon(self) -> None:
        """Delete the uploads of a commit that is given up."""
        with self._needed:
            self._engine.abandon(self._steps)

    def submit(self) -> CommitFuture:
        """Queue all steps as one commit, and return its future."""
        with self._needed as needed:
            asks = [(draft.handle, draft.to_request(self.options.token)) for draft in self._drafts.values()]
            changes = [*self._changes.values(), *(self._make_upsert(*upsert) for upsert in self._upserts.values())]
            asks += [(handle, self._make_change_request(handle, change)) for handle, change in changes]
            keyed_ids = {handle.id for handle, _ in asks}
            plain = [id_ for id_ in self._names if id_ not in keyed_ids]
            steps = [*add_token(self.options.token, plain, self._steps), *self.options.make_notes(self._names)]
            future = submit_all(self._engine, self._action, asks, steps, self._names)
            until_done = needed.pop_all()
        future.add_done_callback(lambda _: until_done.close())
        return future

    def _make_upsert(
        self, handle: CollectionHandle, pieces: Sequence[EventTable]
    ) -> tuple[CollectionHandle, PlainChange]:
        """Return a collection, and the change that upserts rows into it."""
        events = concat_events(pieces)
        steps = partial(make_upsert_steps, handle, events, self.options.token)
        return handle, PlainChange(steps, events.at_commit)

    def _make_change_request(self, handle: CollectionHandle, change: PlainChange) -> AskedEvents:
        """Return the request for a change; its digest includes other additions to the collection."""
        beside = [step for step in self._steps if isinstance(step, Asked) and step.collection == handle.id]
        whole = msgspec.structs.replace(change, steps=lambda: [*change.steps(), *beside])
        return AskedEvents(None, None, self.options.token, plain=whole)


def commit_one(
    handle: CollectionHandle, action: str, options: WriteOptions, add: Callable[[Commit], object]
) -> CommitFuture:
    """Make a commit of the steps that a function adds; return the future."""
    commit = Commit(handle.engine, options, action=action, at_once=True)
    try:
        add(commit)
    except BaseException:
        commit.abandon()
        raise
    return commit.submit()


def rewrite(handle: CollectionHandle, replace_rows: ReplaceRows, time: int | Moment | None) -> CommitFuture:
    """Replace rows that a function selects, in one commit; repeat this after conflicts.

    The function sees the last sealed contents or, if the collection is keyed, the contents after all events up to the
    new time.

    Args:
        replace_rows: gets a reader of the contents; returns the removed and the new rows, or None for no change.
        time: the time of the difference; None for the time of the commit.
    """
    future = commit_one(handle, "sql", WriteOptions(), lambda commit: commit.rewrite(handle, replace_rows, time=time))
    if handle.keyed is not None and isinstance(future.exception(), Unchanged):
        return handle.submit("sql", [])
    return future
