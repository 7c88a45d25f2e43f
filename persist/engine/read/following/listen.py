"""Following collections: changes and completeness, of one collection or of several at one point of the log.

A `Listen` yields `Progress(updates, upper)` each time the collection's upper has advanced. `updates` are exactly the
updates at times not beyond the new `upper` that no earlier progress held. A follower that applies them has the definite
contents as of every time before `upper`. It ends when upper is empty: the collection is complete for ever.

Updates that exceed a slice of the memory budget come as several progresses, planned together and read one by one
(`Piece`). Each progress ends at a time, its `upper`. A single time that is too large is cut by keys: only its last
piece advances `upper`, and the pieces before it repeat the previous `upper`. A consumer that acknowledges gets each
time as a whole, because it can acknowledge only whole times. A piece that could not be read is returned by the next
step.

A `JointListen` is several listens on the same states: each `JointProgress` has the progress of all of them at one point
of the log. A state larger than a slice takes several steps. All uppers move with the last step (`is_last`), so the work
of one commit is never complete in only some collections. A poll costs one refresh for all collections.

Both can be awaited (`Steps`): a thread waits for the store, a second at a time, so no event loop is blocked. A
cancelled task loses nothing: the next step has its result.
"""

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Self, TypeVar

import pyarrow as pa

from persist.blob.errors import InvalidUsage
from persist.core.antichain import END, Antichain, to_antichain
from persist.core.closing import Closes
from persist.core.rendering import Completed, ShownByRepr
from persist.core.state_rules.contents import CollectionState, check_changes_readable
from persist.engine.follow.follower import Follower
from persist.engine.read.parts.reader import ClaimedRead, PartReader

if TYPE_CHECKING:
    import asyncio

P = TypeVar("P")

WAIT_S = 1.0


class Steps(Closes, Generic[P]):
    """Base of iterators over the steps of a follower, by blocking or by awaiting; for one thread or task."""

    _coming: "asyncio.Future[P | None] | None" = None

    def poll(self, timeout_s: float | None = 0.0) -> P | None:
        """Return the next step, or None after timeout_s seconds (None: wait without limit).

        Raises:
            AsOfCompacted: since has passed the reached time.
            LeaseExpired: the collection's history is no longer kept for this follower.
            CollectionNotFound: the collection was destroyed.
            ClientClosed: the client was closed.
            InvalidUsage: this object was closed.
        """
        self.check_unclosed()
        return self.step(timeout_s)

    @abstractmethod
    def step(self, timeout_s: float | None) -> P | None:
        """Return the next step; None after the timeout, or if this is closed."""

    @abstractmethod
    def check_unclosed(self) -> None:
        """Raise InvalidUsage after `close`, so that polls do not return None for ever."""

    @property
    @abstractmethod
    def is_finished(self) -> bool:
        """Whether there will be no further step."""

    @abstractmethod
    def close(self) -> None:
        """Stop."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> P:
        progress = self.step(None)
        if progress is None:
            raise StopIteration
        return progress

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> P:
        import asyncio  # Late: programs that never await start 8 ms sooner.

        while True:
            if self._coming is None:
                if self.is_finished:
                    raise StopAsyncIteration
                self._coming = asyncio.ensure_future(asyncio.to_thread(self.step, WAIT_S))
                # Without a next step, its error is not news: the listen or its client was closed.
                self._coming.add_done_callback(lambda step: step.cancelled() or step.exception())
            # Shielded: after a cancellation the thread continues, and its step must not be lost.
            progress = await asyncio.shield(self._coming)
            self._coming = None
            if progress is not None:
                return progress

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        import asyncio

        await asyncio.to_thread(self.close)


@dataclass(frozen=True, slots=True)
class Progress:
    """One step of a listen.

    Attributes:
        updates: key columns, value columns, `_time`, `_diff`, in time order.
        upper: times not beyond it are complete; `Antichain()` if all are. The updates of a time that exceed the memory
            budget come in several steps; only the last one has an upper beyond that time.
    """

    updates: pa.Table
    upper: Antichain


@dataclass(frozen=True, slots=True)
class Piece:
    """The plan of one step of a listen: some updates, and the frontier that they complete.

    Attributes:
        read: reads the updates, and may be repeated.
        upper: the frontier that is complete after it.
        size: the approximate size of the updates in bytes.
    """

    read: Callable[[ClaimedRead], pa.Table]
    upper: int
    size: int


PlanChanges = Callable[[PartReader, CollectionState, int, int], Sequence[Piece]]


class Listen(ShownByRepr, Completed, Steps[Progress]):
    """An iterator of `Progress`; waits for the next seal by reading the log. Close it, or use it in a `with`.

    For one thread at a time, except `close`.
    """

    _INTERNAL = frozenset(
        {
            "advance",
            "check_hold",
            "check_unclosed",
            "has_advanced",
            "move_forward",
            "plan_advance",
            "reached",
            "read",
            "slice_bytes",
        }
        | {"step", "take_first"}
    )

    def __init__(
        self,
        follower: Follower,
        id_: str,
        name: str,
        lower: int,
        reading: ClaimedRead,
        plan: PlanChanges,
        first: Sequence[Piece] = (),
    ) -> None:
        """Listen from lower on, after the pieces of first.

        `plan`: returns the pieces of the updates from a time up to a frontier, at least one, in order.
        """
        self._follower = follower
        self.id = id_
        self.name = name
        self._lower: int | None = lower
        self._reading = reading
        self._plan = plan
        self._left = deque(first)  # Planned pieces that were not yielded yet.
        self._closed = False

    @property
    def is_finished(self) -> bool:
        """Whether everything has been yielded, for ever, or this was closed."""
        return self._closed or (self._lower is None and not self._left)

    def step(self, timeout_s: float | None) -> Progress | None:
        """Like `poll`, but return None after `close`, for loops that another thread ends."""
        self._follower.check_open()
        if self.is_finished:
            return None
        if not self._left:
            contents = self._follower.wait_for(self._load_advanced, timeout_s)
            if contents is None or self._closed:
                return None
            self._left.extend(self.plan_advance(contents))
        piece = self._left[0]
        updates = self.read([piece])
        if self._closed:
            return None
        self._left.popleft()
        self.move_forward(piece.upper)
        return Progress(updates, to_antichain(piece.upper))

    def check_unclosed(self) -> None:
        if self._closed:
            raise InvalidUsage(f"this read of {self.name!r} was closed, so it yields nothing more. Begin again.")

    def check_hold(self) -> None:
        """Raise LeaseExpired if the collection's history is no longer kept for this follower."""
        if not self.is_finished:
            self._reading()

    def take_first(self) -> Sequence[Piece]:
        """Return the pieces of the initial contents, for `read`; only once."""
        first = [*self._left]
        self._left.clear()
        return first

    def close(self) -> None:
        """Stop, and let since advance; a wait in another thread ends within a second."""
        self._closed = True
        self._reading.close()

    def __repr__(self) -> str:
        at = "finished" if self.is_finished else f"next time {self._lower}"
        return f"<Listen to {self.name!r}, {at}>"

    def _load_advanced(self) -> CollectionState | None:
        """Return the state of the collection if it has new sealed times, or if this was closed."""
        contents = self._follower.require(self.id, self.name)
        return contents if self._closed or self.has_advanced(contents) else None

    def has_advanced(self, contents: CollectionState) -> bool:
        """Return whether a state of the collection has sealed times that were not yielded."""
        assert self._lower is not None
        # A complete collection ends what follows it, even if its last time was yielded and no piece is left.
        return contents.upper > self._lower or contents.upper == END

    @property
    def reached(self) -> int:
        """The first time that was not yielded; defined only while this is not finished."""
        assert self._lower is not None
        return self._lower

    @property
    def slice_bytes(self) -> int:
        """The size of one step, in bytes."""
        return self._reading().changes_slice_bytes

    def advance(self, contents: CollectionState, until: int | None = None) -> Progress:
        """Return all new sealed updates of a state for which `has_advanced` is true.

        `until`: only updates before this time, which is after `reached`; None for all.
        """
        pieces = self.plan_advance(contents, until)
        updates = self.read(pieces)
        self.move_forward(pieces[-1].upper)
        return Progress(updates, to_antichain(pieces[-1].upper))

    def plan_advance(self, contents: CollectionState, until: int | None = None) -> Sequence[Piece]:
        """Return the plans of `advance`, unread; the caller calls `move_forward` after reading them."""
        lower = self._lower
        assert lower is not None
        assert not self._left
        reader = self._reading()  # Report an expired lease before its consequences.
        check_changes_readable(contents, lower)
        upper = contents.upper if until is None else min(contents.upper, until)
        return self._plan(reader, contents, lower, upper)

    def read(self, pieces: Sequence[Piece]) -> pa.Table:
        """Return the updates of one or more pieces. Memory: these updates."""
        with self._reading.explain_missing():
            return pa.concat_tables([piece.read(self._reading) for piece in pieces])

    def move_forward(self, upper: int) -> None:
        """Continue from a frontier, because the caller has read everything before it."""
        if upper == END:
            self._lower = None
            self._reading.close()
        elif upper > self.reached:
            self._lower = upper
            self._reading.move(upper - 1, has_planned=bool(self._left))


K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class JointProgress(Generic[K]):
    """One step of a joint listen.

    Attributes:
        seqno: the point of the log: all times sealed by then are included, and no later ones.
        progress: the progress of each collection that has advanced, in the order of the request. The last step of a
            state has all of them; earlier steps have some, with their old uppers.
        is_last: whether this step completes the state at seqno; mostly true. A state that exceeds the memory budget
            takes several steps, and all uppers move with the last one.
    """

    seqno: int
    progress: Mapping[K, Progress]
    is_last: bool = True

    def __getitem__(self, collection: K) -> Progress:
        return self.progress[collection]

    def __contains__(self, collection: K) -> bool:
        return collection in self.progress

    def __iter__(self) -> Iterator[K]:
        return iter(self.progress)

    def __len__(self) -> int:
        return len(self.progress)


@dataclass(slots=True)
class _Advance:
    """How far one collection advances in the current joint state. `schema`: the schema of its updates, once known."""

    before: int
    after: int
    schema: pa.Schema | None = None


class JointListen(ShownByRepr, Steps[JointProgress[K]], Generic[K]):
    """An iterator of `JointProgress`; close it, or use it in a `with`. For one thread at a time, except `close`.

    It ends when every collection is complete for ever.
    """

    def __init__(self, follower: Follower, listens: Mapping[K, Listen]) -> None:
        assert listens, "there is nothing to wait for"
        self._follower = follower
        self._listens = dict(listens)
        self._seqno = follower.state.seqno
        self._advances: dict[K, _Advance] = {}  # In the current state.
        self._left: deque[tuple[K, Piece]] = deque()  # Pieces of it that were not yielded yet.
        for key, listen in self._listens.items():
            first = listen.take_first()
            if first:  # The contents, as updates of one time.
                self._plan_pieces(key, listen.reached - 1, first)

    @property
    def is_finished(self) -> bool:
        """Whether everything has been yielded, for ever, or this was closed."""
        return all(listen.is_finished for listen in self._listens.values())

    def check_unclosed(self) -> None:
        next(iter(self._listens.values())).check_unclosed()

    def step(self, timeout_s: float | None) -> JointProgress[K] | None:
        """Like `poll`, but return None after `close`."""
        self._follower.check_open()
        if self.is_finished:
            return None
        if not self._left:
            looked = self._follower.wait_for(self._load_advanced, timeout_s)
            if looked is None:
                return None
            self._seqno, advanced = looked
            planned = {
                key: self._listens[key].plan_advance(contents)
                for key, contents in advanced.items()
                if not self._listens[key].is_finished
            }
            for key, pieces in planned.items():
                self._plan_pieces(key, self._listens[key].reached, pieces)
        return self._next_step() if self._left else None

    def close(self) -> None:
        """Stop, and let since advance; a wait in another thread ends within a second."""
        for listen in self._listens.values():
            listen.close()

    def __repr__(self) -> str:
        return f"<JointListen to {', '.join(repr(listen.name) for listen in self._listens.values())}>"

    def _plan_pieces(self, key: K, before: int, pieces: Sequence[Piece]) -> None:
        """Queue the pieces of one collection; `before` is its upper until they are yielded."""
        self._advances[key] = _Advance(before, pieces[-1].upper)
        self._left.extend((key, piece) for piece in pieces)

    def _next_step(self) -> JointProgress[K] | None:
        """Return the next step of the current state: the pieces that fit into a slice, at least one.

        If a piece cannot be read, the next step returns all of them.
        """
        pieces_by_key: dict[K, list[Piece]] = {}
        count = size = 0
        slice_bytes = self._listens[self._left[0][0]].slice_bytes
        for key, piece in self._left:
            if count and size + piece.size > slice_bytes:
                break
            pieces_by_key.setdefault(key, []).append(piece)
            count, size = count + 1, size + piece.size
        updates = {key: self._listens[key].read(pieces) for key, pieces in pieces_by_key.items()}
        if self.is_finished:
            return None  # It was closed meanwhile.
        for key, table in updates.items():
            self._advances[key].schema = table.schema
        for _ in range(count):
            self._left.popleft()
        if self._left:
            parts = {key: Progress(table, to_antichain(self._advances[key].before)) for key, table in updates.items()}
            return JointProgress(self._seqno, parts, is_last=False)
        advances, self._advances = self._advances, {}
        progress = {}
        for key, advance in advances.items():
            assert advance.schema is not None
            rows = updates[key] if key in updates else advance.schema.empty_table()
            progress[key] = Progress(rows, to_antichain(advance.after))
            self._listens[key].move_forward(advance.after)
        return JointProgress(self._seqno, progress)

    def _load_advanced(self) -> tuple[int, dict[K, CollectionState]] | None:
        """Return a seqno and the contents of the collections that have advanced by then; None if none has."""
        waiting = {key: listen for key, listen in self._listens.items() if not listen.is_finished}
        if not waiting:
            return self._follower.state.seqno, {}
        seqno, contents_by_listen = self._follower.read_known_states(
            [(waiting_listen.id, waiting_listen.name) for waiting_listen in waiting.values()]
        )
        pairs = zip(waiting.items(), contents_by_listen, strict=True)
        advanced = {key: contents for (key, listen), contents in pairs if listen.has_advanced(contents)}
        return (seqno, advanced) if advanced else None
