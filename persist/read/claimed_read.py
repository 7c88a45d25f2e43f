"""What one read works with: a reader of parts, and the claim that keeps their blobs in the store."""

import weakref
from collections.abc import Callable
from types import TracebackType

from persist.blob import InvalidUsage, MissingBlob
from persist.errors import LeaseExpired
from persist.hold import Claim
from persist.read.part_reader import PartReader


class ClaimedRead:
    """Ask it for the reader each time something is read: it says so if that cannot be relied on any more.

    Args:
        source: gives what reads parts for the client; raises ClientClosed after its close.
        claim: released when this is closed, or dropped.
        is_needed: tells whether the collection, as it is now, refers to the blob of that key.
        name: of the collection, to tell of the read.
    """

    def __init__(
        self,
        source: Callable[[], PartReader],
        claim: Claim,
        is_needed: Callable[[str], bool],
        name: str = "",
    ) -> None:
        self.name = name
        self._source = source
        self._claim = claim
        self._explained = _Explained(is_needed)
        self._release = weakref.finalize(self, claim.release)

    def __call__(self) -> PartReader:
        """Return what to read with.

        Raises:
            InvalidUsage: the result this belongs to was closed.
            ClientClosed: its client was.
            LeaseExpired: what it reads may be gone.
        """
        if not self._release.alive:
            raise InvalidUsage("this result was closed, so what it reads may be gone. Ask for it again.")
        source = self._source()
        self._claim.check()
        return source

    def checked(self, reader: PartReader) -> PartReader:
        """Return reader, which came from here, if what it reads can be relied on still; raises as a call does."""
        self()
        return reader

    def move(self, time: int) -> None:
        """Claim from a later time on only."""
        self._claim.move(time)

    def close(self) -> None:
        """Give up the claim; idempotent."""
        self._release()

    def explained(self) -> "_Explained":
        """Raise, in a `with`, LeaseExpired in place of MissingBlob, if the blob is missing because it was collected."""
        return self._explained


class _Explained:
    """Keeps nothing of the block that it is used for, so one serves for all reads: a point read enters one each."""

    __slots__ = ("_is_needed",)

    def __init__(self, is_needed: Callable[[str], bool]) -> None:
        self._is_needed = is_needed

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, MissingBlob) and not self._is_needed(error.key):
            raise collected(error) from error


def collected(error: MissingBlob) -> LeaseExpired:
    """Return what to raise for a blob that is missing because nothing refers to it any more."""
    return LeaseExpired(
        f"the blob {error.key!r} was collected: nothing has referred to it for longer than the grace period, and this "
        "read held no lease that kept it"
    )
