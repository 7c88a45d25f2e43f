"""Following a collection: what changed, and how far it is complete.

A `Listen` yields `Progress(updates, upper)` each time the collection's upper has advanced: `updates` are exactly the
updates at times not beyond the new `upper` that no earlier progress held, so that after applying them a follower has
the definite contents as of every time before `upper`. It ends when upper is empty, which means complete for ever.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType

import pyarrow as pa

from persist.antichain import Antichain
from persist.blob import InvalidUsage
from persist.codecs import TIME_MAX
from persist.read.claimed_read import ClaimedRead
from persist.read.stepping import AsyncSteps
from persist.replica import Follower
from persist.shown import ShownByRepr
from persist.state import CollectionState, check_changes_readable


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


class Listen(ShownByRepr, AsyncSteps[Progress]):
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

    def __iter__(self) -> Iterator[Progress]:
        return self

    def __next__(self) -> Progress:
        progress = self.step(None)
        if progress is None:
            raise StopIteration
        return progress

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

    def __enter__(self) -> "Listen":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

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

    def advance(self, contents: CollectionState) -> Progress:
        """Return what is sealed in a state that `has_advanced`; see `poll`."""
        progress = self.ahead(contents)
        self.move_past(progress)
        return progress

    def ahead(self, contents: CollectionState) -> Progress:
        """Return what `advance` does, but stay here: it comes again, unless `move_past` is told of it."""
        lower = self._lower
        assert lower is not None
        self._reading()  # Whose lease has ended should hear that, and not what came of it.
        check_changes_readable(contents, lower)
        upper = contents.upper
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
