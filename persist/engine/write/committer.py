"""A client's queue of commits: one thread turns the callers' operations into records of the log, in call order.

While one PUT is in flight, callers queue up operations; the next record carries all of them
(`persist.engine.write.group_commit`).

A commit to a local folder takes less time than a few calls. Without a pause, a caller that issues many operations
without waiting would get a record for every few of them. While several operations are queued and no caller waits for
one, a group therefore stays open for `LINGER_S`.

A pool encodes and uploads large writes at once; small ones are encoded with their group. The memory budget bounds the
operations that are not durable yet: beyond it, callers wait.
"""

import collections
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, wait

from persist.blob.protocol import Blob
from persist.blob.threads import Clock
from persist.core.errors import ClientClosed, InvalidUsage
from persist.core.log.records import COMMIT_DEADLINE_S
from persist.engine.follow.follower import Follower
from persist.engine.write.commit_future import CommitFuture, UnobservedErrors
from persist.engine.write.group_commit import GroupCommit
from persist.engine.write.operations import Operation, Renew, Step, Submission, Write
from persist.engine.write.part_writer import MEMORY_BUDGET, PartWriter
from persist.engine.write.write_steps import WriteSteps

GROUP_BYTES_MAX = 16 << 20
LINGER_S = 0.01


class Committer:
    """Owns the thread that commits; every method may be called from any thread."""

    def __init__(
        self,
        blob: Blob,
        follower: Follower,
        pool: Executor,
        clock: Clock,
        writer_name: str,
        memory_budget: int = MEMORY_BUDGET,
        deadline_s: float = COMMIT_DEADLINE_S,
    ) -> None:
        self.writer_name = writer_name
        self.unobserved = UnobservedErrors(blob.url)
        parts = PartWriter(blob, follower.find_next_seqno, memory_budget)
        self.groups = GroupCommit(blob, follower, clock, writer_name, parts, pool, deadline_s)
        self.write_steps = WriteSteps(parts, pool, clock)
        self._in_flight_bytes_max = memory_budget
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._asked: collections.deque[Operation] = collections.deque()
        self._is_hurried = False  # Whether a caller waits for an operation.
        self._in_flight_bytes = 0
        self._closed = False
        self._pid = os.getpid()
        self._submitted = self._resolved = 0
        self._committing: tuple[Operation, ...] = ()  # The group under way.
        self._ended: list[Callable[[], object]] = []
        self._thread = threading.Thread(target=self._run_thread, name="persist-committer", daemon=True)
        self._thread.start()

    def submit(
        self,
        steps: Sequence[Step],
        names: dict[str, str],
        submission: Submission | None = None,
        renew: Renew | None = None,
    ) -> CommitFuture:
        """Queue an operation; return at once, or as soon as there is room for it.

        Args:
            submission: the id under which another client sent it.
            renew: builds the steps again for each state that the record may follow; this thread calls it.

        Raises:
            ClientClosed: `close` was called before.
        """
        operation = Operation.of(
            steps, names, CommitFuture(self.unobserved, self._on_result_requested), submission, renew
        )
        with self._lock:
            # A future's callback must not wait here: its thread is the one that makes room.
            if not self._has_room(operation.bytes) and not self._is_own_thread():
                self._changed.wait_for(lambda: self._closed or self._has_room(operation.bytes))
            if self._closed:
                raise ClientClosed("a write")
            self._in_flight_bytes += operation.bytes
            self._submitted += 1
            self._asked.append(operation)
            self._changed.notify_all()
        return operation.future

    def make_future(self, prepare_wait: Callable[[], object]) -> CommitFuture:
        """Return a future for several commits together; the caller resolves it.

        `prepare_wait`: called before a caller waits for it.
        """

        def on_wait() -> None:
            prepare_wait()
            self._on_result_requested()

        return CommitFuture(self.unobserved, on_wait)

    def close(self) -> None:
        """Finish the queued operations and end the thread; idempotent."""
        self.request_stop()
        if not self._is_own_thread():  # A future's callback may close its client.
            self._thread.join()

    def request_stop(self) -> None:
        """Take no more operations, and let the thread end after those it has."""
        with self._lock:
            self._closed = self._is_hurried = True
            self._changed.notify_all()

    def list_pending(self) -> tuple[int, tuple[str, ...]]:
        """Return the number of unfinished operations, and the names of their collections."""
        with self._lock:
            names_in_progress = {name for operation in self._list_pending() for name in operation.names.values()}
            return self._submitted - self._resolved, tuple(sorted(names_in_progress))

    def list_pending_writes(self, collection: str) -> list[tuple[Write, CommitFuture]]:
        """Return the submitted writes to a collection that are not durable yet, with their futures."""
        with self._lock:
            return [
                (step, operation.future)
                for operation in self._list_pending()
                if not operation.future.done()
                for step in operation.steps
                if isinstance(step, Write) and step.collection == collection
            ]

    def _list_pending(self) -> tuple[Operation, ...]:
        return (*self._committing, *self._asked)

    def settle(self, timeout_s: float) -> bool:
        """Wait until all submitted operations are done; return False after timeout_s."""
        with self._lock:
            submitted = self._submitted
            if self._resolved >= submitted:
                return True
            self._is_hurried = True
            self._changed.notify_all()
            return self._changed.wait_for(lambda: self._resolved >= submitted, timeout_s)

    def call_when_ended(self, call: Callable[[], object]) -> None:
        """Call a function when the thread ends after `request_stop`, or now if it has ended."""
        with self._lock:
            if self._thread.is_alive():
                self._ended.append(call)
                return
        call()

    def may_wait(self) -> bool:
        """Whether the calling thread may wait for a commit: not in a future's callback, nor in a fork."""
        return not self._is_own_thread() and os.getpid() == self._pid

    def check_may_wait(self) -> None:
        """Raise InvalidUsage in a future's callback. Call it before taking a lock that is held during a commit."""
        if self._is_own_thread():
            raise InvalidUsage(
                "a future's callback waits for another commit, which would wait for the callback. Do it in another "
                "thread, or await it."
            )

    def _on_result_requested(self) -> None:
        """Raise InvalidUsage if this thread may not wait; otherwise commit without more delay."""
        self.check_may_wait()
        if os.getpid() != self._pid:
            raise InvalidUsage(
                f"process {os.getpid()} waits for a commit that process {self._pid} asked for, and the thread that "
                "makes it did not come along with the fork. Wait for it there; open a new client in each process."
            )
        with self._lock:
            self._is_hurried = True
            self._changed.notify_all()

    def _is_own_thread(self) -> bool:
        return threading.current_thread() is self._thread

    def _has_room(self, wanted_bytes: int) -> bool:
        return self._in_flight_bytes == 0 or self._in_flight_bytes + wanted_bytes <= self._in_flight_bytes_max

    def _run_thread(self) -> None:
        """Commit groups until the client is closed."""
        # Nothing of a group may be left here during the wait for the next: not its futures, callbacks, their client.
        while self._commit_next():
            pass
        with self._lock:
            ended, self._ended = self._ended, []
        for call in ended:
            call()

    def _commit_next(self) -> bool:
        """Commit the next group; return False if none will follow."""
        group = self._wait_for_group()
        try:
            self.groups.commit(group)
        except BaseException as error:  # Whatever it is, callers must get the error and the thread must go on.
            for operation in group:
                if not operation.future.done():
                    operation.future.fail(error)
        with self._lock:
            self._in_flight_bytes -= sum([operation.bytes for operation in group])
            self._resolved += len(group)
            self._committing = ()
            self._changed.notify_all()
        return bool(group)

    def _wait_for_group(self) -> list[Operation]:
        """Wait for operations, and return a group of them; none after the client was closed."""
        with self._lock:
            self._changed.wait_for(lambda: self._asked or self._closed)
            if not self._asked:
                return []
            first = self._asked[0]
            pipelined = len(self._asked) > 1
        if uploads := first.uploads:
            wait(uploads)
        group: list[Operation] = []
        group_bytes = 0
        with self._lock:
            if pipelined:
                self._changed.wait_for(lambda: self._is_hurried, LINGER_S)
            self._is_hurried = False
            # A ready operation must not wait for a later upload.
            while self._asked and group_bytes <= GROUP_BYTES_MAX and self._asked[0].is_ready:
                is_alone = self._asked[0].is_alone
                if group and is_alone:
                    break
                group.append(self._asked.popleft())
                group_bytes += group[-1].bytes
                if is_alone:
                    break
            self._committing = tuple(group)
        return group
