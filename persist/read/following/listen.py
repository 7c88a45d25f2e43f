"""Following collections: what changed, and how far it is complete, for one collection or for several at one point.

A `Listen` yields `Progress(updates, upper)` each time the collection's upper has advanced: `updates` are exactly the
updates at times not beyond the new `upper` that no earlier progress held, so that after applying them a follower has
the definite contents as of every time before `upper`. It ends when upper is empty, which means complete for ever.

A `JointListen` is several listens that look at the same states: each `JointProgress` says what all of them gave at one
point of the log, so that what one commit did to several collections is never seen in parts. However many
collections there are, a poll costs one refresh, and nothing for those that have not advanced.

Both can be awaited (`Steps`): a thread waits for the store, a second at a time, so no event loop is blocked. When
a task is cancelled it loses nothing: the next step gives out what came meanwhile.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Self, TypeVar

import pyarrow as pa

from persist.antichain import Antichain
from persist.blob import InvalidUsage
from persist.closing import Closes
from persist.codecs import TIME_MAX
from persist.read.scanning.reader import ClaimedRead
from persist.replica import Follower
from persist.shown import ShownByRepr
from persist.state import CollectionState, check_changes_readable

if TYPE_CHECKING:
    import asyncio

P = TypeVar("P")

WAIT_S = 1.0


class Steps(Closes, Generic[P]):
    """Steps to iterate over in a `with`, by waiting or by awaiting; for one thread or task, and not in both ways."""

    _coming: "asyncio.Future[P | None] | None" = None

    @abstractmethod
    def step(self, timeout_s: float | None) -> P | None:
        """Return the next step, or None if there is none in time, or this is closed."""

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
        upper: times not beyond it are complete; `Antichain()` when no more will come.
    """

    updates: pa.Table
    upper: Antichain


ReadChanges = Callable[[ClaimedRead, CollectionState, int, int], pa.Table]


class Listen(ShownByRepr, Steps[Progress]):
    """An iterator of `Progress`; waits for the next seal by reading the log. Close it, or use it in a `with`.

    Not for use from several threads at once, except `close`.
    """

    def __init__(
        self,
        follower: Follower,
        id_: str,
        name: str,
        lower: int,
        reading: ClaimedRead,
        read: ReadChanges,
        first: Progress | None = None,
    ) -> None:
        self._follower = follower
        self.id = id_
        self.name = name
        self._lower: int | None = lower
        self._reading = reading
        self._read = read
        self._first = first
        self._closed = False

    @property
    def is_finished(self) -> bool:
        """Whether everything has been yielded, for ever, or this was closed."""
        return self._closed or (self._lower is None and self._first is None)

    def poll(self, timeout_s: float | None = 0.0) -> Progress | None:
        """Return the next progress, or None if there is none within timeout_s seconds (None: wait without limit).

        Raises:
            AsOfCompacted: since has passed the time reached here.
            LeaseExpired: what this follows is not kept for it any more.
            CollectionNotFound: the collection was destroyed.
            ClientClosed: the client was closed.
            InvalidUsage: this was closed before.
        """
        self.check_unclosed()
        return self.step(timeout_s)

    def step(self, timeout_s: float | None) -> Progress | None:
        """Do what `poll` does, but return None once this is closed, as a loop that somebody else ends wants it."""
        self._follower.check_open()
        if (first := self.take_first()) is not None:
            return first
        if self.is_finished:
            return None
        contents = self._follower.wait_for(self._look, timeout_s)
        if contents is None or self._closed:
            return None
        return self.advance(contents)

    def check_unclosed(self) -> None:
        """Raise InvalidUsage if this was closed: that nothing came is not what a poll should say then."""
        if self._closed:
            raise InvalidUsage(f"what followed {self.name!r} was closed, so nothing comes any more. Begin again.")

    def check_kept(self) -> None:
        """Raise LeaseExpired if what this follows is not kept for it any more."""
        if not self.is_finished:
            self._reading()

    def take_first(self) -> Progress | None:
        """Return the contents that come before all updates, once; None if there are none."""
        first, self._first = self._first, None
        return None if self._closed else first

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
        return contents.upper > Antichain(self._lower)

    @property
    def reached(self) -> int:
        """The first time that was not yielded, of a listen that is not finished."""
        assert self._lower is not None
        return self._lower

    def advance(self, contents: CollectionState, until: int | None = None) -> Progress:
        """Return what is sealed in a state that `has_advanced`; see `poll`.

        Args:
            until: return what is before this time only, which is beyond the one that was `reached`.
        """
        progress = self.ahead(contents, until)
        self.move_past(progress)
        return progress

    def ahead(self, contents: CollectionState, until: int | None = None) -> Progress:
        """Return what `advance` does, but stay here: it comes again, unless `move_past` is told of it."""
        lower = self._lower
        assert lower is not None
        self._reading()  # Whose lease has ended should hear that, and not what came of it.
        check_changes_readable(contents, lower)
        upper = contents.upper if until is None else contents.upper.meet(until)
        with self._reading.explained():
            updates = self._read(self._reading, contents, lower, TIME_MAX + 1 if upper.time is None else upper.time)
        return Progress(updates, upper)

    def move_past(self, progress: Progress) -> None:
        """Go on behind what `ahead` has returned."""
        upper = self._lower = progress.upper.time
        if upper is None:
            self._reading.close()
        else:
            self._reading.move(upper - 1)


K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class JointProgress(Generic[K]):
    """One step of a joint listen.

    Attributes:
        seqno: the point of the log; what was sealed by then is there, and nothing of later.
        progress: of the collections that have advanced, in the order in which they were given.
    """

    seqno: int
    progress: Mapping[K, Progress]

    def __getitem__(self, collection: K) -> Progress:
        return self.progress[collection]

    def __contains__(self, collection: K) -> bool:
        return collection in self.progress

    def __iter__(self) -> Iterator[K]:
        return iter(self.progress)

    def __len__(self) -> int:
        return len(self.progress)


class JointListen(ShownByRepr, Steps[JointProgress[K]], Generic[K]):
    """An iterator of `JointProgress`; close it, or use it in a `with`. Not for several threads at once, except `close`.

    It ends when every collection is complete for ever.
    """

    def __init__(self, follower: Follower, listens: Mapping[K, Listen]) -> None:
        assert listens, "there is nothing to wait for"
        self._follower = follower
        self._listens = dict(listens)

    @property
    def is_finished(self) -> bool:
        """Whether everything has been yielded, for ever, or this was closed."""
        return all(listen.is_finished for listen in self._listens.values())

    def poll(self, timeout_s: float | None = 0.0) -> JointProgress[K] | None:
        """Return what has advanced, or None if nothing has within timeout_s seconds (None: wait without limit).

        Raises:
            AsOfCompacted, LeaseExpired, CollectionNotFound, ClientClosed, InvalidUsage: as `Listen.poll`.
        """
        next(iter(self._listens.values())).check_unclosed()
        return self.step(timeout_s)

    def step(self, timeout_s: float | None) -> JointProgress[K] | None:
        """Do what `poll` does, but return None once this is closed."""
        self._follower.check_open()
        first = {
            key: first_progress
            for key, listen in self._listens.items()
            if (first_progress := listen.take_first()) is not None
        }
        if first:
            return JointProgress(self._follower.state.seqno, first)
        if self.is_finished:
            return None
        looked = self._follower.wait_for(self._look, timeout_s)
        if looked is None:
            return None
        seqno, advanced = looked
        progress = {
            key: self._listens[key].ahead(contents)
            for key, contents in advanced.items()
            if not self._listens[key].is_finished
        }
        # All or none: if one of them cannot be read now, what the others have comes with the next step.
        for key, listen_progress in progress.items():
            self._listens[key].move_past(listen_progress)
        return JointProgress(seqno, progress) if progress else None

    def close(self) -> None:
        """Stop, and let since advance; a wait in another thread ends within a second."""
        for listen in self._listens.values():
            listen.close()

    def __repr__(self) -> str:
        return f"<JointListen to {', '.join(repr(listen.name) for listen in self._listens.values())}>"

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
