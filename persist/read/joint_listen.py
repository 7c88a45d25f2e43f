"""Following several collections at one point of the log.

A `JointListen` is several listens that look at the same states: each `JointProgress` says what all of them gave at one
point of the log, so that what one commit did to several collections is never seen in parts. However many
collections there are, a poll costs one refresh, and nothing for those that have not advanced.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Generic, TypeVar

from persist.read.listen import Listen, Progress
from persist.read.stepping import AsyncSteps
from persist.replica import Follower
from persist.shown import ShownByRepr
from persist.state import CollectionState

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


class JointListen(ShownByRepr, AsyncSteps[JointProgress[K]], Generic[K]):
    """An iterator of `JointProgress`; close it, or use it in a `with`. Not for several threads at once, except `close`.

    It ends when every collection is complete for ever.
    """

    def __init__(self, follower: Follower, listens: Mapping[K, Listen]) -> None:
        assert listens, "there is nothing to wait for"
        self._follower = follower
        self._listens = dict(listens)

    def __iter__(self) -> Iterator[JointProgress[K]]:
        return self

    def __next__(self) -> JointProgress[K]:
        progress = self.step(None)
        if progress is None:
            raise StopIteration
        return progress

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
        first = {key: found for key, listen in self._listens.items() if (found := listen.take_first()) is not None}
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
        for key, each in progress.items():
            self._listens[key].move_past(each)
        return JointProgress(seqno, progress) if progress else None

    def close(self) -> None:
        """Stop, and let since advance; a wait in another thread ends within a second."""
        for listen in self._listens.values():
            listen.close()

    def __enter__(self) -> "JointListen[K]":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<JointListen to {', '.join(repr(each.name) for each in self._listens.values())}>"

    def _look(self) -> tuple[int, dict[K, CollectionState]] | None:
        """Return the seqno and the contents of those that have advanced at it; None if none has."""
        waiting = {key: listen for key, listen in self._listens.items() if not listen.is_finished}
        if not waiting:
            return self._follower.state.seqno, {}
        seqno, known = self._follower.known_at_once([(each.id, each.name) for each in waiting.values()])
        found = zip(waiting.items(), known, strict=True)
        advanced = {key: contents for (key, listen), contents in found if listen.has_advanced(contents)}
        return (seqno, advanced) if advanced else None
