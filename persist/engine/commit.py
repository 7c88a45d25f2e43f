"""Several steps, events and seals, of one or more collections, as one commit.

The block keeps, in call order, the steps of collections that take updates, and for each keyed collection a `_Draft`:
its events in the order of their arrival, and the upper that it is to be sealed to. When the block ends, the drafts are
planned from the newest contents (`persist.engine.keyed.submit_all`), and all of it is one record.

- Before the block ends nothing reaches the log, and no event is stored. If it raises, what `write` has uploaded is
  deleted.
- A seal of a keyed collection resolves what was pending before it, together with the events of the block.
- What the block says of a keyed collection is checked in its order: an event before a seal of the block is refused, and
  so is a seal back. The last seal counts, and a condition is about what was there before the block.
- If somebody else changes one of the collections first, all is validated again, and resolved again where it changed.
  An overwrite or a delete of plain rows is the difference to what was there, so it is refused then.
- With a token, each collection remembers it with the digest of its own part, so that a repetition does nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import pyarrow.compute as pc

from persist.antichain import Antichain
from persist.codecs import Part
from persist.engine.collection_handle import CollectionHandle
from persist.engine.engine import Engine
from persist.engine.keyed import AskedEvents, submit_all
from persist.errors import FrontierRegression, InvalidUsage, SchemaMismatch, UpdateNotBeyondUpper, with_timeline
from persist.log import kinds
from persist.upsert import EventTable, joined_events
from persist.write import Asked, Committed, Step, Write, check_token, note_steps, with_token


@dataclass(slots=True)
class _Draft:
    """What the block does with a keyed collection.

    Attributes:
        end: the upper that it is to be sealed to; None if it is not sealed.
    """

    handle: CollectionHandle
    events: list[EventTable] = field(default_factory=list)
    end: Antichain | None = None

    def add(self, events: EventTable) -> None:
        """Add events after those that there are.

        Raises:
            UpdateNotBeyondUpper: the block has sealed their time.
            SchemaMismatch: they are of another version of the schema than those before them.
            InvalidUsage: some of all events have no time, and others do.
        """
        if not len(events.table):
            return
        if self.events and self.events[0].at_commit != events.at_commit:
            raise InvalidUsage(
                f"some events of {self.handle.name!r} in this block have no time, and others do: give a time to all of "
                "them or to none"
            )
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
        return AskedEvents(joined_events(self.events) if self.events else None, self.end, token)


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

    def add_seal(self, handle: CollectionHandle, upper: Antichain) -> None:
        """Add a seal, which resolves events if the collection is keyed; see `MultiWrite.seal`."""
        handle = handle.as_keyed()
        if handle.keyed is None:
            self.add(handle, [kinds.Seal(handle.id, upper.elements)])
        else:
            self._draft(handle).seal(upper)

    def has_events_of(self, handle: CollectionHandle) -> bool:
        """Return whether there are events of a keyed collection already, or a seal."""
        return handle.id in self._drafts

    def when_committed(self, call: Callable[[], None]) -> None:
        """Call this once the commit is durable."""
        self._committed.append(call)

    def holds_steps_on(self, handle: CollectionHandle) -> bool:
        """Return whether there are steps on a collection already."""
        return handle.id in self._names

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
        if kind is None:
            notes = note_steps(self._message, self._metadata, self._names)
            plain = [id_ for id_ in self._names if id_ not in self._drafts]
            steps = [*with_token(self.token, plain, self._steps), *notes]
            asks = [(draft.handle, draft.asked(self.token)) for draft in self._drafts.values()]
            self.committed = submit_all(self._engine, "multi_write", asks, steps, self._names).committed()
            for call in self._committed:
                call()
        else:
            self._engine.abandon(self._steps)
