"""Several steps, events and seals, of one or more collections, as one commit.

The block keeps, in call order, the steps of collections that take updates, and for each keyed collection a `_Draft`:
its events in the order of their arrival, and the upper that it is to be sealed to. When the block ends, the drafts are
planned from the newest contents (`persist.engine.collection.keyed_events.submit_all`), and all of it is one record.

- Before the block ends nothing reaches the log, and no event is stored. If it raises, what `write` has uploaded is
  deleted.
- A seal of a keyed collection resolves what was pending before it, together with the events of the block.
- What the block says of a keyed collection is checked in its order: an event before a seal of the block is refused, and
  so is a seal back. The last seal counts, and a condition is about what was there before the block.
- If somebody else changes one of the collections first, all is validated again, and resolved again where it changed.
  An upsert of a collection that is not keyed, and an overwrite or a delete without a time, is the difference to what is
  there when the block ends, and is made again then. With a time, it is the difference to what was there when the block
  asked for it, so the commit is refused.
- With a token, each collection remembers it with the digest of its own part, so that a repetition does nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Self

import pyarrow.compute as pc

from persist.codecs.part.part import Part
from persist.core.antichain import Antichain
from persist.core.errors import FrontierRegression, InvalidUsage, SchemaMismatch, UpdateNotBeyondUpper, with_timeline
from persist.core.keyed.intake import EventTable, joined_events
from persist.core.log import kinds
from persist.engine.collection.keyed_events import AskedEvents, KeyedChange, PlainChange, submit_all
from persist.engine.collection.plain_rows import upsert_steps
from persist.engine.location.collection_handle import CollectionHandle
from persist.engine.location.engine import Engine
from persist.engine.write.commit_future import Committed
from persist.engine.write.operations import Asked, Step, Write, check_token, note_steps, with_token


def _times_differ(what: str, handle: CollectionHandle) -> str:
    name = handle.name
    return f"some {what} of {name!r} in this block have no time, and others do: give a time to all of them or to none"


@dataclass(slots=True)
class _Draft:
    """What the block does with a keyed collection.

    Attributes:
        end: the upper that it is to be sealed to; None if it is not sealed.
        change: what becomes of all that it holds; there are no events then.
    """

    handle: CollectionHandle
    events: list[EventTable] = field(default_factory=list)
    end: Antichain | None = None
    change: KeyedChange | None = None

    def add(self, events: EventTable) -> None:
        """Add events after those that there are.

        Raises:
            UpdateNotBeyondUpper: the block has sealed their time.
            SchemaMismatch: they are of another version of the schema than those before them.
            InvalidUsage: some of all events have no time, and others do.
        """
        if self.change is not None:
            raise InvalidUsage(
                f"this block overwrites {self.handle.name!r}, or deletes what fits a condition, which is all that it "
                "can do with it: give its events to a block of their own"
            )
        if not len(events.table):
            return
        if self.events and self.events[0].at_commit != events.at_commit:
            raise InvalidUsage(_times_differ("events", self.handle))
        first = pc.min(events.table["_time"]).as_py()
        if self.end is not None and not (events.at_commit or self.end.has_beyond(first)):
            raise with_timeline(UpdateNotBeyondUpper(first, self.end), self.handle.schema.timeline)
        if self.events and self.events[0].schema != events.schema:
            raise SchemaMismatch(
                f"these events of {self.handle.name!r} are of another version of its schema than those before them: "
                "load the collection once, and give all of its events by that"
            )
        self.events.append(events)

    def seal(self, end: Antichain) -> None:
        """Let the collection be sealed to end; raise FrontierRegression if that goes back."""
        if self.end is not None and not self.end <= end:
            raise with_timeline(FrontierRegression("upper", end, self.end), self.handle.schema.timeline)
        self.end = end

    def asked(self, token: str | None) -> AskedEvents:
        """Return it for `submit_all`."""
        events, end = joined_events(self.events) if self.events else None, self.end
        if self.change is not None and self.change.time is not None:
            after = Antichain(self.change.time + 1)
            end = after if end is None else max(end, after)
        return AskedEvents(events, end, token, change=self.change)


class Commit:
    """Collects steps in a `with` block and commits them when it ends: all of them, or none (rule 6).

    Nothing happens if the block raises. If it does not, leaving it waits until the commit is durable and raises its
    error if it was rejected. Memory: everything written in the block.

    Attributes:
        committed: where the commit is, once the block has ended; as in `CommitFuture`, if the commit changed nothing.
    """

    def __init__(
        self,
        engine: Engine,
        token: str | None = None,
        message: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        """Begin with nothing; arguments and errors are those of `Client.multi_write`."""
        engine.writer("multi_write")
        check_token(token)
        note_steps(message, metadata, [""])  # What is wrong with them is said before anything is uploaded.
        self.committed: Committed | None = None
        self.token = token
        self._engine = engine
        self._message = message
        self._metadata = metadata
        self._steps: list[Step] = []
        self._drafts: dict[str, _Draft] = {}
        self._changes: dict[str, tuple[CollectionHandle, PlainChange]] = {}
        self._upserts: dict[str, tuple[CollectionHandle, list[EventTable]]] = {}
        self._needed = ExitStack()
        self._names: dict[str, str] = {}
        self._committed: list[Callable[[], None]] = []
        self._is_open = False
        self._was_used = False

    @property
    def seqno(self) -> int | None:
        """The seqno of the commit, once the block has ended."""
        return None if self.committed is None else self.committed.seqno

    def add(self, handle: CollectionHandle, steps: Sequence[Step]) -> None:
        """Add steps on a collection.

        Raises:
            InvalidUsage: outside of the block, or the collection is of another client.
        """
        self.check(handle)
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
        """Add parts that are stored; see `MultiWrite.add_parts`.

        Args:
            at_commit: their rows have 0 as their time, and get that of the commit, which seals after it.
        """
        self.check(handle)
        steps: list[Step] = [*handle.part_steps(parts, keep=keep), Asked(handle.id, digest)]
        if at_commit:
            steps = [replace(step, at_commit=True) if isinstance(step, Write) else step for step in steps]
            steps.append(handle.at_commit())
        self.add(handle, steps)

    def add_events(self, handle: CollectionHandle, events: EventTable) -> None:
        """Add events of a keyed collection, after those that there are.

        Raises:
            InvalidUsage: as `add`.
            UpdateNotBeyondUpper, SchemaMismatch: as `_Draft.add`.
        """
        self._draft(handle).add(events)

    def add_change(self, handle: CollectionHandle, change: KeyedChange) -> None:
        """Add what becomes of all that a keyed collection holds, of which the block has said nothing yet."""
        self._draft(handle).change = change

    def add_plain(self, handle: CollectionHandle, change: PlainChange) -> None:
        """Add a difference to what a collection holds that is not keyed, to be made when the block has ended."""
        self.add(handle, [])
        self._changes[handle.id] = (handle, change)

    def add_upsert(self, handle: CollectionHandle, events: EventTable) -> None:
        """Add rows for keys of a collection that is not keyed, after those that there are.

        Raises:
            InvalidUsage: some of all rows have no time, and others do; or the block has done something else with it.
        """
        if handle.id not in self._upserts or any(step.collection == handle.id for step in self._steps):
            self.check_unwritten(handle)
        self.add(handle, [])
        pieces = self._upserts.setdefault(handle.id, (handle, []))[1]
        if pieces and pieces[0].at_commit != events.at_commit:
            raise InvalidUsage(_times_differ("rows", handle))
        pieces.append(events)

    def until_committed(self, needed: AbstractContextManager[Any]) -> Any:
        """Enter what is needed until the commit is done, and left then; return what it gives."""
        return self._needed.enter_context(needed)

    def check_unwritten(self, handle: CollectionHandle) -> None:
        """Raise InvalidUsage if the block has done something with a collection, or cannot."""
        self.check(handle)
        if handle.id in self._names:
            raise InvalidUsage(
                f"an overwrite or delete, or an upsert of what is not keyed, is the difference to what is there before "
                f"this block, so it comes before all else that the block does with {handle.name!r}, and only once: put "
                "it first, or into a block of its own"
            )

    def add_seal(self, handle: CollectionHandle, upper: Antichain) -> None:
        """Add a seal, which resolves events if the collection is keyed; see `MultiWrite.seal`."""
        handle = handle.as_keyed()
        if handle.keyed is None:
            self.add(handle, [kinds.Seal(handle.id, upper.elements)])
        else:
            self._draft(handle).seal(upper)

    def changes(self, handle: CollectionHandle) -> bool:
        """Return whether there are events of a collection already, a change, or a seal of a keyed one."""
        return handle.id in self._drafts or handle.id in self._changes or handle.id in self._upserts

    def when_committed(self, call: Callable[[], None]) -> None:
        """Call this once the commit is durable."""
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

    def _draft(self, handle: CollectionHandle) -> _Draft:
        self.add(handle, [])
        return self._drafts.setdefault(handle.id, _Draft(handle))

    def __enter__(self) -> Self:
        if self._was_used:
            raise InvalidUsage("this multi_write was used already; open another one with client.multi_write()")
        self._is_open = self._was_used = True
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._is_open = False
        with self._needed:
            if kind is None:
                self._commit()
            else:
                self._engine.abandon(self._steps)

    def _commit(self) -> None:
        notes = note_steps(self._message, self._metadata, self._names)
        asks = [(draft.handle, draft.asked(self.token)) for draft in self._drafts.values()]
        changes = [*self._changes.values(), *(self._upserting(*upsert) for upsert in self._upserts.values())]
        asks += [(handle, self._with_steps_beside(handle, change)) for handle, change in changes]
        asked = {handle.id for handle, _ in asks}
        plain = [id_ for id_ in self._names if id_ not in asked]
        steps = [*with_token(self.token, plain, self._steps), *notes]
        self.committed = submit_all(self._engine, "multi_write", asks, steps, self._names).committed()
        for call in self._committed:
            call()

    def _upserting(
        self, handle: CollectionHandle, pieces: Sequence[EventTable]
    ) -> tuple[CollectionHandle, PlainChange]:
        events = joined_events(pieces)
        steps = partial(upsert_steps, handle, events, None, self.token)
        return handle, PlainChange(steps, events.at_commit)

    def _with_steps_beside(self, handle: CollectionHandle, change: PlainChange) -> AskedEvents:
        """Return a change whose token remembers, too, what else the block adds to the collection."""
        beside = [step for step in self._steps if isinstance(step, Asked) and step.collection == handle.id]
        whole = replace(change, steps=lambda: [*change.steps(), *beside])
        return AskedEvents(None, None, self.token, plain=whole)
