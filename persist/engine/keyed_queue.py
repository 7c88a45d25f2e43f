"""What a client asks of keyed collections and has to look things up: done by one thread, in call order."""

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from persist.errors import ClientClosed
from persist.write import CommitFuture

THREAD = "persist-resolver"


class KeyedQueue:
    """Does what one client asks of keyed collections, in call order for each of them.

    Args:
        bytes_max: of the events that are queued and under way; beyond it, callers wait.
    """

    def __init__(self, bytes_max: int) -> None:
        self._lock = threading.Condition()
        self._queued: Counter[str] = Counter()
        self._bytes_max = bytes_max
        self._bytes = 0
        self._thread: ThreadPoolExecutor | None = None
        self._is_closed = False

    def is_busy(self, collection: str) -> bool:
        """Whether something of a collection is queued or under way."""
        with self._lock:
            return self._queued[collection] > 0

    @staticmethod
    def is_own_thread() -> bool:
        """Whether the caller is what was submitted here."""
        return threading.current_thread().name.startswith(THREAD)

    def submit(
        self, collections: Sequence[str], future: CommitFuture, do: Callable[[], int], size: int
    ) -> CommitFuture:
        """Have future become what do returns, after what was submitted before; size is of its events, in bytes."""
        with self._lock:
            # In a future's callback there is no waiting: the thread that makes room is the one that would wait.
            if not threading.current_thread().name.startswith((THREAD, "persist-committer")):
                self._lock.wait_for(lambda: not self._bytes or self._bytes + size <= self._bytes_max)
            if self._is_closed:
                raise ClientClosed("a write")
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, THREAD)
            self._queued.update(collections)
            self._bytes += size
            self._thread.submit(self._run, collections, future, do, size)
        return future

    def close(self) -> None:
        """Finish what was submitted, and end the thread; idempotent."""
        with self._lock:
            self._is_closed = True
            thread = self._thread
        if thread is not None:
            thread.shutdown(wait=True)

    def _run(self, collections: Sequence[str], future: CommitFuture, do: Callable[[], int], size: int) -> None:
        error: BaseException | None = None
        try:
            seqno = do()
        except BaseException as raised:  # Whatever it is, the caller must hear of it and the thread live on.
            error = raised
        # Before the future resolves: who has waited for it finds nothing under way.
        with self._lock:
            self._queued -= Counter(collections)  # Which drops what comes to nothing.
            self._bytes -= size
            self._lock.notify_all()
        if error is None:
            future.succeed(seqno)
        else:
            future.fail(error)
