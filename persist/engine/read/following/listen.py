"""Following collections: what changed, and how far it is complete, for one collection or for several at one point.

A `Listen` yields `Progress(updates, upper)` each time the collection's upper has advanced: `updates` are exactly the
updates at times not beyond the new `upper` that no earlier progress held, so that after applying them a follower has
the definite contents as of every time before `upper`. It ends when upper is empty, which means complete for ever.

What is more than a slice of the memory budget comes in several progresses, which are planned at once and read one by
one (`Piece`). Each ends at a time, and its `upper` says so. A single time that is larger is cut by keys: its last
piece has the next `upper`, and those before have the one that was reached before. A consumer that acknowledges is given
each time as a whole, because it can acknowledge nothing less. A piece that could not be read comes with the next step.

A `JointListen` is several listens that look at the same states: each `JointProgress` says what all of them gave at one
point of the log. A state that is more than a slice of the budget comes in several steps. All uppers move with the last
one (`is_last`), so what one commit did to several collections is never complete in some of them alone. However many
collections there are, a poll costs one refresh, and nothing for those that have not advanced.

Both can be awaited (`Steps`): a thread waits for the store, a second at a time, so no event loop is blocked. When
a task is cancelled it loses nothing: the next step gives out what came meanwhile.
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
from persist.engine.read.parts.reader import ClaimedRead

if TYPE_CHECKING:
    import asyncio

P = TypeVar("P")

WAIT_S = 1.0


class Steps(Closes, Generic[P]):
    """Steps to iterate over in a `with`, by waiting or by awaiting; for one thread or task, and not in both ways."""

    _coming: "asyncio.Future[P | None] | None" = None

    def poll(self, timeout_s: float | None = 0.0) -> P | None:
        """Return the next step, or None if there is none within timeout_s seconds (None: wait without limit).

        Raises:
            AsOfCompacted: since has passed the time reached here.
            LeaseExpired: what this follows is not kept for it any more.
            CollectionNotFound: the collection was destroyed.
            ClientClosed: the client was closed.
            InvalidUsage: this was closed before.
        """
        self.check_unclosed()
        return self.step(timeout_s)

    @abstractmethod
    def step(self, timeout_s: float | None) -> P | None:
        """Return the next step, or None if there is none in time, or this is closed."""

    @abstractmethod
    def check_unclosed(self) -> None:
        """Raise InvalidUsage if this was closed: that nothing came is not what a poll should say then."""

    @property
    @abstractmethod
    def is_finished(self) -> bool:
        """Whether no step will come any more."""

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
        import asyncio  # Here: who never awaits starts without it, 8 ms sooner.

        while True:
            if self._coming is None:
                if self.is_finished:
                    raise StopAsyncIteration
                self._coming = asyncio.ensure_future(asyncio.to_thread(self.step, WAIT_S))
                # If nobody asks for another step, what ended this one is no news: the listen or its client was closed.
                self._coming.add_done_callback(lambda step: step.cancelled() or step.exception())
            # Shielded: the thread goes on if this is cancelled, and what it takes must not get lost.
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
        upper: times not beyond it are complete; `Antichain()` when no more will come. If a time takes more memory than
            there is, its updates come in several steps, and only the last of these has an upper beyond that time.
    """

    updates: pa.Table
    upper: Antichain


@dataclass(frozen=True, slots=True)
class Piece:
    """What one step will give out.

    Attributes:
        read: reads it, and may be tried again.
        upper: what is complete with it.
        size: about how many bytes it takes.
    """

    read: Callable[[ClaimedRead], pa.Table]
    upper: int
    size: int


PlanChanges = Callable[[ClaimedRead, CollectionState, int, int], Sequence[Piece]]


class Listen(ShownByRepr, Completed, Steps[Progress]):
    """An iterator of `Progress`; waits for the next seal by reading the log. Close it, or use it in a `with`.

    Not for use from several threads at once, except `close`.
    """

    _INTERNAL = frozenset(
        {
            "advance",
            "check_kept",
            "check_unclosed",
            "has_advanced",
            "move_to",
            "planned",
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
        """Make one that yields first, if that is something, and then what is planned from lower on.

        Args:
            plan: returns the pieces of the updates from a time on and before a frontier; one at least, in order.
        """
        self._follower = follower
        self.id = id_
        self.name = name
        self._lower: int | None = lower
        self._reading = reading
        self._plan = plan
        self._left = deque(first)  # What is planned and not yet given out.
        self._closed = False

    @property
    def is_finished(self) -> bool:
        """Whether everything has been yielded, for ever, or this was closed."""
        return self._closed or (self._lower is None and not self._left)

    def step(self, timeout_s: float | None) -> Progress | None:
        """Do what `poll` does, but return None once this is closed, as a loop that somebody else ends wants it."""
        self._follower.check_open()
        if self.is_finished:
            return None
        if not self._left:
            contents = self._follower.wait_for(self._look, timeout_s)
            if contents is None or self._closed:
                return None
            self._left.extend(self.planned(contents))
        piece = self._left[0]
        updates = self.read([piece])
        if self._closed:
            return None
        self._left.popleft()
        self.move_to(piece.upper)
        return Progress(updates, to_antichain(piece.upper))

    def check_unclosed(self) -> None:
        if self._closed:
            raise InvalidUsage(f"what followed {self.name!r} was closed, so nothing comes any more. Begin again.")

    def check_kept(self) -> None:
        """Raise LeaseExpired if what this follows is not kept for it any more."""
        if not self.is_finished:
            self._reading()

    def take_first(self) -> Sequence[Piece]:
        """Return the contents that come before all updates, for `read`; none if they were taken."""
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

    def _look(self) -> CollectionState | None:
        contents = self._follower.known(self.id, self.name)
        return contents if self._closed or self.has_advanced(contents) else None

    def has_advanced(self, contents: CollectionState) -> bool:
        """Return whether more is sealed in that state of the collection than has been yielded."""
        assert self._lower is not None
        return contents.upper > self._lower

    @property
    def reached(self) -> int:
        """The first time that was not yielded, of a listen that is not finished."""
        assert self._lower is not None
        return self._lower

    @property
    def slice_bytes(self) -> int:
        """How much one step should hold."""
        return self._reading().changes_slice_bytes

    def advance(self, contents: CollectionState, until: int | None = None) -> Progress:
        """Return all that is sealed in a state that `has_advanced`; see `poll`.

        Args:
            until: return what is before this time only, which is beyond the one that was `reached`.
        """
        pieces = self.planned(contents, until)
        updates = self.read(pieces)
        self.move_to(pieces[-1].upper)
        return Progress(updates, to_antichain(pieces[-1].upper))

    def planned(self, contents: CollectionState, until: int | None = None) -> Sequence[Piece]:
        """Return the pieces of what `advance` gives, but stay here until `move_to` is called with the last upper."""
        lower = self._lower
        assert lower is not None
        assert not self._left
        self._reading()  # Whose lease has ended should hear that, and not what came of it.
        check_changes_readable(contents, lower)
        upper = contents.upper if until is None else min(contents.upper, until)
        return self._plan(self._reading, contents, lower, upper)

    def read(self, pieces: Sequence[Piece]) -> pa.Table:
        """Return the updates of some pieces, one at least. Memory: theirs."""
        with self._reading.explained():
            return pa.concat_tables([piece.read(self._reading) for piece in pieces])

    def move_to(self, upper: int) -> None:
        """Go on behind what was given out up to a frontier."""
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
        seqno: the point of the log; what was sealed by then is there, and nothing of later.
        progress: of the collections that have advanced, in the order in which they were given. In a step that is not
            the last of its state, some of them, each with the upper from before.
        is_last: whether all that the state at seqno holds has been given out with this step. It mostly has. A state
            that takes more memory than there is comes in several steps, and all uppers move with the last one.
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
    """How one collection advances in the state that is being given out; schema is that of its updates, once known."""

    before: int
    after: int
    schema: pa.Schema | None = None


class JointListen(ShownByRepr, Steps[JointProgress[K]], Generic[K]):
    """An iterator of `JointProgress`; close it, or use it in a `with`. Not for several threads at once, except `close`.

    It ends when every collection is complete for ever.
    """

    def __init__(self, follower: Follower, listens: Mapping[K, Listen]) -> None:
        assert listens, "there is nothing to wait for"
        self._follower = follower
        self._listens = dict(listens)
        self._seqno = follower.state.seqno
        self._advances: dict[K, _Advance] = {}  # Of the state that is being given out.
        self._left: deque[tuple[K, Piece]] = deque()  # What of it was not given out.
        for key, listen in self._listens.items():
            first = listen.take_first()
            if first:  # The contents, as updates of one time.
                self._give_out(key, listen.reached - 1, first)

    @property
    def is_finished(self) -> bool:
        """Whether everything has been yielded, for ever, or this was closed."""
        return all(listen.is_finished for listen in self._listens.values())

    def check_unclosed(self) -> None:
        next(iter(self._listens.values())).check_unclosed()

    def step(self, timeout_s: float | None) -> JointProgress[K] | None:
        """Do what `poll` does, but return None once this is closed."""
        self._follower.check_open()
        if self.is_finished:
            return None
        if not self._left:
            looked = self._follower.wait_for(self._look, timeout_s)
            if looked is None:
                return None
            self._seqno, advanced = looked
            planned = {
                key: self._listens[key].planned(contents)
                for key, contents in advanced.items()
                if not self._listens[key].is_finished
            }
            for key, pieces in planned.items():
                self._give_out(key, self._listens[key].reached, pieces)
        return self._given_out() if self._left else None

    def close(self) -> None:
        """Stop, and let since advance; a wait in another thread ends within a second."""
        for listen in self._listens.values():
            listen.close()

    def __repr__(self) -> str:
        return f"<JointListen to {', '.join(repr(listen.name) for listen in self._listens.values())}>"

    def _give_out(self, key: K, before: int, pieces: Sequence[Piece]) -> None:
        self._advances[key] = _Advance(before, pieces[-1].upper)
        self._left.extend((key, piece) for piece in pieces)

    def _given_out(self) -> JointProgress[K] | None:
        """Return the next step of the state that is being given out: what fits into a slice, one piece at least.

        All or none: if one of its pieces cannot be read now, all of them come with the next step.
        """
        taken: dict[K, list[Piece]] = {}
        count = size = 0
        slice_bytes = self._listens[self._left[0][0]].slice_bytes
        for key, piece in self._left:
            if count and size + piece.size > slice_bytes:
                break
            taken.setdefault(key, []).append(piece)
            count, size = count + 1, size + piece.size
        updates = {key: self._listens[key].read(pieces) for key, pieces in taken.items()}
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
            given = updates[key] if key in updates else advance.schema.empty_table()
            progress[key] = Progress(given, to_antichain(advance.after))
            self._listens[key].move_to(advance.after)
        return JointProgress(self._seqno, progress)

    def _look(self) -> tuple[int, dict[K, CollectionState]] | None:
        """Return the seqno and the contents of those that have advanced at it; None if none has."""
        waiting = {key: listen for key, listen in self._listens.items() if not listen.is_finished}
        if not waiting:
            return self._follower.state.seqno, {}
        seqno, known = self._follower.known_at_once(
            [(waiting_listen.id, waiting_listen.name) for waiting_listen in waiting.values()]
        )
        pairs = zip(waiting.items(), known, strict=True)
        advanced = {key: contents for (key, listen), contents in pairs if listen.has_advanced(contents)}
        return (seqno, advanced) if advanced else None
