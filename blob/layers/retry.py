"""Repeats failed calls of a store while that is safe, until a deadline. Nothing else retries.

These calls are repeated, with full jitter (`persist.blob.threads.Backoff`) until a deadline:

    Unavailable    nothing happened: any operation; not a full store, which waiting does not help
    Throttled      nothing happened, and this client sends requests too fast: any operation; only the longer of the two
                   deadlines limits this, and it is not counted as an attempt
    Indeterminate  it may have happened: `set` and `delete`, which may happen twice; never `create`, whose second
                   attempt could fail because of its own first. `persist.core.log.records` finds out by the commit id.

If one attempt of a `set` or `delete` was doubtful, the whole call is: when it gives up, it raises Indeterminate,
whatever the last attempt raised. A listing is repeated page by page, from the last key that was yielded.

One attempt ends by the store's own timeouts (for S3, `connect_timeout_s` and `read_timeout_s`): then a read is
repeated, and a write is Indeterminate, because it may still arrive. A call that has failed for `WARN_AFTER_S` is logged
as a warning of `persist.blob`, and again every half a minute.

Rejected: a second request for a slow read ("hedged reads"). On a store whose slowest percent takes 20 times the median,
the p99 of a snapshot of 450 parts only fell from 1.9 to 1.6 s: in one snapshot of 22 the second request was slow as
well.
"""

import logging
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, TypeVar

from persist.blob.errors import Indeterminate, PersistError, StoreFull, Throttled, Unavailable
from persist.blob.protocol import LIST_PAGE_ENTRIES, OPERATIONS, Blob, BlobEntry, BlobLayer, DeletePage, get_at_most
from persist.blob.threads import Backoff, Clock, SystemClock

RETRY_S, THROTTLED_S = 60.0, 300.0  # How long a call is repeated; the second is the total for a throttled call.
ATTEMPTS_MAX = 20  # For one call, including the first; throttled ones do not count.
FIRST_S, BOUND_MAX_S = 0.05, 5.0  # The bound of the random waits doubles from the first to the second.
WARN_AFTER_S = 1.5
WARN_EVERY_S = 30.0
_HARMLESS_TWICE = ("set", "delete")

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RetryCount:
    """How often calls of one operation were retried.

    Attributes:
        retries: attempts after the first one.
        timeouts: attempts without an answer in time.
        throttled: attempts that the store refused because requests came too fast.
        gave_up: calls that failed in the end because of the deadline or the number of attempts.
    """

    retries: int = 0
    timeouts: int = 0
    throttled: int = 0
    gave_up: int = 0


class RetryBlob(BlobLayer):
    """Repeats failed calls of another store. A call that works at once costs about 1.5 µs more.

    Args:
        retry_s: no attempt begins later than this after the call; waits because of throttling are added.
        attempts_max: of one call, with the first one; throttled attempts do not count.
        throttled_s: the same limit with all waits because of throttling; at least retry_s.
        clock, chance: replace the machine's, for tests.
    """

    def __init__(
        self,
        inner: Blob,
        retry_s: float = RETRY_S,
        attempts_max: int = ATTEMPTS_MAX,
        *,
        throttled_s: float = THROTTLED_S,
        clock: Clock | None = None,
        chance: random.Random | None = None,
    ) -> None:
        super().__init__(inner)
        self._retry_s, self._throttled_s = retry_s, max(retry_s, throttled_s)
        self._attempts_max = attempts_max
        self._clock = clock or SystemClock()
        self._chance = chance or random.Random()
        self._counts = _Counts()
        self._warned_s: float | None = None

    def get_counts(self) -> dict[str, RetryCount]:
        """Return the counts so far, by the name of the operation."""
        return self._counts.copy()

    def get(self, key: str, range: tuple[int, int] | None = None) -> bytes | None:
        return self._call_with_retries("get", key, self._inner.get, key, range)

    def get_at_most(self, key: str, bytes_max: int) -> bytes | None:
        return self._call_with_retries("get", key, get_at_most, self._inner, key, bytes_max)

    def set(self, key: str, value: bytes) -> None:
        self._call_with_retries("set", key, self._inner.set, key, value)

    def create(self, key: str, value: bytes) -> bool:
        return self._call_with_retries("create", key, self._inner.create, key, value)

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[BlobEntry]:
        pages = _Pages(self._inner, prefix, start_after)
        while page := self._call_with_retries("list", prefix, pages.fetch_page):
            yield from page
            if len(page) < LIST_PAGE_ENTRIES:
                return

    def delete(self, key: str) -> None:
        self._call_with_retries("delete", key, self._inner.delete, key)

    def _delete_page(self, delete: DeletePage, keys: Sequence[str]) -> Mapping[str, PersistError]:
        """Delete keys, and retry those that failed; return the keys that failed in the end."""
        failed: dict[str, PersistError] = {}
        pending = keys

        def attempt() -> None:
            nonlocal failed, pending
            failed = dict(delete(pending))
            pending = [*failed]
            again = [error for error in failed.values() if isinstance(error, (Unavailable, Indeterminate))]
            if again:  # One that was throttled is the reason to slow down.
                raise next((error for error in again if isinstance(error, Throttled)), again[0])

        try:
            self._call_with_retries("delete", keys[0], attempt)
        except (Unavailable, Indeterminate):
            if not failed:
                raise
        return failed

    def _call_with_retries(self, operation: str, key: str, attempt: Callable[..., T], *arguments: Any) -> T:
        """Make a call until it succeeds, cannot succeed or is too late."""
        began_s = sent_s = self._clock.monotonic_s()
        failures = None
        while True:
            try:
                return attempt(*arguments)
            except PersistError as error:
                failures = failures or self._start_failures(operation, key, began_s)
                failures.last = error
                if not self._wait_before_retry(failures, error, sent_s):
                    raise self._make_final_error(failures) from error
                sent_s = self._clock.monotonic_s()

    def _wait_before_retry(self, failures: "_Failures", error: PersistError, sent_s: float) -> bool:
        """Wait; return False if it is too late. Raise an error that no retry helps."""
        operation = failures.operation
        if not isinstance(error, (Unavailable, Indeterminate)) or isinstance(error, StoreFull):
            if failures.is_doubtful:
                raise self._make_final_error(failures) from error
            raise error
        if error.timed_out:
            self._counts.add(operation, "timeouts")
        if isinstance(error, Indeterminate):
            if operation not in _HARMLESS_TWICE:
                raise error
            failures.is_doubtful = True
        extra_s = self._throttled_s - self._retry_s
        if isinstance(error, Throttled):
            self._counts.add(operation, "throttled")
        else:
            failures.attempts += 1
            extra_s = min(extra_s, failures.throttled_s)
            self._warn_of_failures(failures)
        if failures.attempts >= self._attempts_max or not failures.backoff.wait(extra_s=extra_s):
            return False
        if isinstance(error, Throttled):
            failures.throttled_s += self._clock.monotonic_s() - sent_s
        self._counts.add(operation, "retries")
        return True

    def _make_final_error(self, failures: "_Failures") -> PersistError:
        """Return the error of a call that is given up; count it."""
        last = failures.last
        self._counts.add(failures.operation, "gave_up")
        took_s = self._clock.monotonic_s() - failures.began_s
        tried = f"{failures.operation} of {failures.key!r} at {self.url} was given up after {took_s:.1f} s"
        if failures.is_doubtful:
            return Indeterminate(
                f"{tried}, and an attempt that got no answer may have done it. The last failure: {last}"
            )
        kind = Throttled if isinstance(last, Throttled) else Unavailable
        return kind(f"{tried}. The last failure: {last}")

    def _warn_of_failures(self, failures: "_Failures") -> None:
        """Log a call that has failed for long, or will have after the next wait; once in `WARN_EVERY_S`."""
        now_s = self._clock.monotonic_s()
        is_news = self._warned_s is None or now_s - self._warned_s >= WARN_EVERY_S
        is_long = now_s + failures.backoff.bound_s - failures.began_s > WARN_AFTER_S < self._retry_s
        if is_news and is_long:
            self._warned_s = now_s
            what, last = f"{failures.operation} of {failures.key!r} at {self.url}", failures.last
            # The text alone: a handler that keeps records must not keep what the error refers to.
            logger.warning("%s is tried for up to %g s: %s", what, self._retry_s, str(last))

    def _start_failures(self, operation: str, key: str, began_s: float) -> "_Failures":
        """Return the record of a call's failures, with its deadline."""
        left_s = began_s + self._retry_s - self._clock.monotonic_s()
        backoff = Backoff(self._clock, left_s, first_s=FIRST_S, bound_max_s=BOUND_MAX_S, chance=self._chance)
        return _Failures(operation, key, began_s, backoff)


@dataclass(slots=True)
class _Failures:
    """The failures of one call so far."""

    operation: str
    key: str
    began_s: float
    backoff: Backoff
    last: PersistError = field(default_factory=Unavailable)
    attempts: int = 0  # That failed, throttled ones left out.
    throttled_s: float = 0.0
    is_doubtful: bool = False


class _Pages:
    """A listing in pages; each page can be repeated."""

    def __init__(self, inner: Blob, prefix: str, start_after: str | None) -> None:
        self._inner = inner
        self._prefix = prefix
        self._after = start_after
        self._entries: Iterator[BlobEntry] | None = None

    def fetch_page(self) -> Sequence[BlobEntry]:
        """Return the entries after the last page; only the final page has fewer than `LIST_PAGE_ENTRIES`."""
        if self._entries is None:
            self._entries = iter(self._inner.list(self._prefix, self._after))
        entries, self._entries = self._entries, None  # An iterator that raised is of no more use.
        page = [*islice(entries, LIST_PAGE_ENTRIES)]
        if page:
            self._entries, self._after = entries, page[-1].key
        return page


class _Counts:
    """The retry counts of all operations; safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = {operation: RetryCount() for operation in OPERATIONS}

    def add(self, operation: str, name: str) -> None:
        """Add one to a count of an operation."""
        with self._lock:
            count = self._counts[operation]
            self._counts[operation] = replace(count, **{name: getattr(count, name) + 1})

    def copy(self) -> dict[str, RetryCount]:
        """Return the counts so far."""
        with self._lock:
            return dict(self._counts)
