"""Several steps, of one or more collections, as one commit."""

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Self

from persist.codecs import Part
from persist.engine.collection_handle import CollectionHandle
from persist.engine.engine import Engine
from persist.errors import InvalidUsage
from persist.write.operations import Asked, Step, check_token, note_steps, with_token


class Commit:
    """Collects steps in a `with` block and commits them when it ends: all of them, or none (rule 6).

    Nothing happens if the block raises. If it does not, leaving it waits until the commit is durable and raises its
    error if it was rejected. Memory: everything written in the block.

    Attributes:
        seqno: of the commit, once the block has ended; as in `CommitFuture`, if the commit changed nothing.
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
        self.seqno: int | None = None
        self.token = token
        self._engine = engine
        self._message = message
        self._metadata = metadata
        self._steps: list[Step] = []
        self._names: dict[str, str] = {}
        self._committed: list[Callable[[], None]] = []
        self._is_open = False
        self._was_used = False

    def add(self, handle: CollectionHandle, steps: Sequence[Step]) -> None:
        """Add steps on a collection.

        Raises:
            InvalidUsage: outside of the block, or the collection is of another client.
        """
        self.check(handle)
        self._names[handle.id] = handle.name
        self._steps += steps

    def add_parts(
        self, handle: CollectionHandle, parts: Sequence[Part], *, keep: bool = False, digest: int | None = None
    ) -> None:
        """Add parts that are stored; see `MultiWrite.add_parts`."""
        self.check(handle)
        self.add(handle, [*handle.part_steps(parts, keep=keep), Asked(handle.id, digest)])

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

    def __enter__(self) -> Self:
        if self._was_used:
            raise InvalidUsage("this multi_write was used already; open another one with client.multi_write()")
        self._is_open = self._was_used = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_open = False
        if kind is None:
            notes = note_steps(self._message, self._metadata, self._names)
            steps = [*with_token(self.token, self._names, self._steps), *notes]
            self.seqno = self._engine.submit("multi_write", steps, self._names).result()
            for call in self._committed:
                call()
        else:
            self._engine.abandon(self._steps)
