"""Commits for others: passes requests of clients to the server's committer, and returns the answers.

A request is answered when each of its operations is in the log, rejected, or in doubt. The client looks for an
operation in doubt in the log. Operations of one client are queued in the order of its requests. The operations of all
clients are committed together, like those of one (`persist.engine.write.committer`).

An operation is in doubt here only if the store gave the server no clear answer, the server ends, the client has
continued without it, or the server does not understand the request. None of these lets an operation be committed twice,
because each has an id in the log (`persist.engine.follow.log_queries`).
"""

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

from persist.blob.errors import ReadOnlyStore, StoreMisconfigured
from persist.core.errors import Conflict, InvalidUsage, PersistError, Unavailable
from persist.engine.follow.follower import Follower
from persist.engine.write.commit_future import CommitFuture
from persist.engine.write.committer import Committer
from persist.engine.write.operations import Step, Submission
from persist.engine.write.relay import Answer
from persist.engine.write.relay_messages import (
    REQUEST_BYTES_MAX,
    Asking,
    Request,
    decode_request,
    decode_steps,
    encode_answers,
)

SUBMITTERS_MAX = 4096
ROOM_BYTES = 2 * REQUEST_BYTES_MAX  # The limit for all requests that are being received and answered.


class Room:
    """Limits the memory of requests: the bytes of all calls that are received and answered.

    `left`: how many bytes are free.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = self.left = bytes_max
        self._lock = threading.Lock()

    @contextmanager
    def reserve(self, count: int) -> Iterator[None]:
        """Reserve bytes of the limit for a block. Raises Unavailable if too few are free."""
        with self._lock:
            if count > self.left:
                raise Unavailable(f"requests of {self._bytes_max - self.left:,} bytes are under way: try again later")
            self.left -= count
        try:
            yield
        finally:
            with self._lock:
                self.left += count


class CommitsForOthers:
    """Commits the operations of clients' requests, and returns answers; for many threads."""

    def __init__(self, committer: Committer, follower: Follower) -> None:
        self._committer = committer
        self._follower = follower
        self._lock = threading.Lock()
        self._newest: OrderedDict[str, int] = OrderedDict()  # The last request number of each submitter.
        self.room = Room(ROOM_BYTES)
        self._counts = {"requests": 0, "operations": 0}

    def counts(self) -> dict[str, int]:
        """Return how many requests were queued, with how many operations."""
        return dict(self._counts)

    def location(self) -> str | None:
        """Return the id of the location; None if it has no record yet."""
        # The client may have created the location just now.
        return self._follower.state.location or self._follower.refresh().location

    def answer_request(self, data: bytes) -> bytes:
        """Return the answers to a request, once all are known."""
        request = decode_request(data)
        location = self.location()
        if request.location != location:
            raise ValueError(
                f"this server commits to the location {location}, and the request is for {request.location}"
            )
        self._check_new(request)
        futures = [self._queue(request, asking) for asking in request.operations]
        with self._lock:
            self._counts["requests"] += 1
            self._counts["operations"] += len(request.operations)
        return encode_answers([_make_answer(future) for future in futures])

    def _check_new(self, request: Request) -> None:
        """Raise ValueError if the operations of a request were requested before."""
        with self._lock:
            newest = self._newest.pop(request.submitter, 0)
            self._newest[request.submitter] = max(newest, request.operations[-1].number)
            if len(self._newest) > SUBMITTERS_MAX:
                self._newest.popitem(last=False)
        if request.operations[0].number <= newest:
            raise ValueError("its operations were requested before")

    def _queue(self, request: Request, asking: Asking) -> CommitFuture | None:
        """Queue an operation; return its future, or None if the client must look for it in the log."""
        id_ = Submission(request.submitter, asking.number, request.after, is_own=False)
        try:
            return self._committer.submit(self._make_steps(asking), dict(asking.names), id_)
        except (ValueError, PersistError):
            return None

    def _make_steps(self, asking: Asking) -> list[Step]:
        """Return the decoded steps of an operation; read the log for newer collections."""
        try:
            return decode_steps(asking, self._follower.load)
        except ValueError:
            self._follower.refresh()  # The client may use collections and schemas that are newer.
            return decode_steps(asking, self._follower.load)


def _make_answer(future: CommitFuture | None) -> Answer:
    """Wait for a commit, and return its outcome."""
    if future is None:
        return None
    error = future.exception()
    if error is None:
        return future.get_commit()
    # An error of the server's own store connection does not concern its clients.
    is_rejected = isinstance(error, InvalidUsage | Conflict) and not isinstance(
        error, StoreMisconfigured | ReadOnlyStore
    )
    return error if is_rejected and isinstance(error, PersistError) else None
