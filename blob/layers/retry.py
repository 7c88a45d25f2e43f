"""Repeats what a store failed to do, as long as that is safe and worth the time: the one place that retries.

What is repeated, with full jitter (`persist.blob.threads.Backoff`) until a deadline:

    Unavailable    nothing happened: any operation; not a full store, which waiting does not help
    Throttled      nothing happened, and this client asks too fast: any operation, slower; counts against the longer of
                   the two deadlines only, not as an attempt
    Indeterminate  it may have happened: `set` and `delete`, which may happen twice; never `create`, whose second
                   attempt could lose to its own first. `persist.core.log.records` tells by the commit id.

Once an attempt of a `set` or `delete` was doubtful, so is the whole: whatever the last attempt says, a call that is
given up raises Indeterminate. A listing is repeated page by page, from the last key that was yielded.

One attempt ends by the store's own timeouts (for S3, `connect_timeout_s` and `read_timeout_s`): then a read is
repeated, and a write is Indeterminate, because it may still arrive. Reads from a remote store are also watched
from outside, hedged when they are slow, and paced when the store throttles (`persist.blob.layers.pacing`).

What is asked of a store that does not answer is said before whoever waits has to wonder.
A request of S3 may be under way for twenty seconds before it fails, and is then repeated for a minute. `Silence` knows
the requests that are under way and small, and one thread looks at them: whatever has had no answer for `after_s` is
said once, as a warning of the logger `persist.blob`, and again every half a minute. The thread is there only while
requests are under way. Reads of unknown size and large uploads are left out: on a slow line they take their time.
"""

import logging
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Annotated, TypeVar

from msgspec import Meta

from persist.blob.errors import Indeterminate, InvalidUsage, PersistError, StoreFull, Throttled, Unavailable
from persist.blob.layers.pacing import AdaptiveRate, HedgedReads
from persist.blob.options import check_fields
from persist.blob.protocol import (
    LIST_PAGE_ENTRIES,
    OPERATIONS,
    Blob,
    BlobEntry,
    BlobLayer,
    DeletePage,
    check_bytes,
    get_at_most,
    is_remote,
)
from persist.blob.threads import Backoff, Clock, DaemonThreads, SystemClock

EVERY_S = 30.0
LOOKS = 6  # In the time after which something is said.

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Asked:
    """One request, with all its attempts.

    Attributes:
        last: how its last attempt failed, as text: an error would keep its traceback, and with it the whole client.
    """

    operation: str
    key: str
    began_s: float
    last: str = "no answer came yet"


class Silence:
    """Watches the requests of one client to one store. Safe for many threads.

    Args:
        url: what the store is called.
        after_s: how long a request may stay without an answer before something is said.
        for_s: how long a request is tried, which is what is said.
    """

    def __init__(self, url: str, clock: Clock, after_s: float, for_s: float) -> None:
        self._url, self._clock, self._after_s, self._for_s = url, clock, after_s, for_s
        self._lock = threading.Lock()
        self._asked: set[Asked] = set()
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()
        self._said_s: float | None = None

    def begin(self, asked: Asked) -> None:
        """Watch a request, until `end`."""
        with self._lock:
            self._asked.add(asked)
            if self._thread is None and self._for_s > self._after_s and not self._closed.is_set():
                self._thread = threading.Thread(target=self._watch, name="persist-silence", daemon=True)
                self._thread.start()

    def end(self, asked: Asked) -> None:
        """Watch it no longer."""
        with self._lock:
            self._asked.discard(asked)

    def say(self, asked: Asked, within_s: float = 0.0) -> None:
        """Say that a request has no answer, if it has waited long enough, or will have within some seconds."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            is_news = self._said_s is None or now_s - self._said_s >= EVERY_S
            if not is_news or not now_s + within_s - asked.began_s > self._after_s < self._for_s:
                return
            self._said_s = now_s
        logger.warning(
            "%s of %r at %s is tried for up to %g s: %s", asked.operation, asked.key, self._url, self._for_s, asked.last
        )

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        if (thread := self._thread) is not None:
            thread.join()

    def _watch(self) -> None:
        while not self._closed.wait(self._after_s / LOOKS):
            with self._lock:
                longest = min(self._asked, key=lambda asked: asked.began_s, default=None)
                if longest is None:
                    break
            self.say(longest)
        with self._lock:
            self._thread = None


CLOSE_TIMEOUT_S = 2.0
SMALL_BYTES = 64 << 10  # What takes no time to send, so that a slow answer is the store's.
_HARMLESS_TWICE = ("set", "delete")

T = TypeVar("T")
_Positive = Annotated[float, Meta(gt=0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How long and how often to try. Times are seconds.

    Attributes:
        deadline_s: no attempt of a call begins later than this after the call; time lost to throttling is added.
        throttled_deadline_s: the same for a call that is throttled, all in all.
        attempts_max: of one call, the first included, throttled ones not counted.
        first_s, bound_max_s: the bound of the random waits, which doubles from the first to the second.
        commit_deadline_s: how long a commit asks a store that gives no clear answer, before it ends in doubt.
        read_timeout_s: for one attempt to get a whole value from a remote store, and its hedge.
        hedge: whether slow reads are hedged; None: those from a remote store.
        hedge_after_s: when a second read is sent; None: after the time that 95% of recent reads took.
        hedge_floor_s: the least that "95% of recent reads" is taken for.
        read_threads_max: threads for reads that can be hedged; further reads at the same time are not.
        told_after_s: who waits so long for a store without an answer is told what is tried.
    """

    deadline_s: _Positive = 60.0
    throttled_deadline_s: _Positive = 300.0
    attempts_max: Annotated[int, Meta(ge=1)] = 20
    first_s: _Positive = 0.05
    bound_max_s: _Positive = 5.0
    commit_deadline_s: _Positive = 30.0
    read_timeout_s: _Positive = 60.0
    hedge: bool | None = None
    hedge_after_s: _Positive | None = None
    hedge_floor_s: _Positive = 0.05
    read_threads_max: Annotated[int, Meta(ge=1)] = 32
    told_after_s: _Positive = 1.5  # A command that takes a second to start then says it within three.

    def __post_init__(self) -> None:
        check_fields(self)
        for low, high in (("deadline_s", "throttled_deadline_s"), ("first_s", "bound_max_s")):
            if getattr(self, low) > getattr(self, high):
                raise InvalidUsage(f"{low}={getattr(self, low)} is more than {high}={getattr(self, high)}")

    @classmethod
    def within(cls, retry_s: float) -> "RetryPolicy":
        """Return the policy that gives up a request after this time, and asks no longer than that for one answer."""
        usual = cls()
        return cls(
            deadline_s=retry_s,
            throttled_deadline_s=max(retry_s, usual.throttled_deadline_s),
            commit_deadline_s=min(retry_s, usual.commit_deadline_s),
            read_timeout_s=retry_s,
        )


@dataclass(frozen=True, slots=True)
class RetryCount:
    """What one operation needed besides its first attempts.

    Attributes:
        retries: further attempts, hedges not counted.
        hedges, hedges_won: second requests for slow reads, and those that answered first.
        timeouts: attempts without an answer in time.
        throttled: attempts that the store refused because there are too many.
        gave_up: calls that failed in the end though they could have been tried again later.
    """

    retries: int = 0
    hedges: int = 0
    hedges_won: int = 0
    timeouts: int = 0
    throttled: int = 0
    gave_up: int = 0


class RetryBlob(BlobLayer):
    """Repeats failed calls of another store. A call that works at once costs about 1.5 µs more, a remote read 35 µs.

    Args:
        policy: see `RetryPolicy`.
        clock, chance: replace the machine's, for tests. Hedging goes by the machine's clock all the same.
    """

    def __init__(
        self,
        inner: Blob,
        policy: RetryPolicy | None = None,
        *,
        clock: Clock | None = None,
        chance: random.Random | None = None,
    ) -> None:
        super().__init__(inner)
        self._policy = policy = policy or RetryPolicy()
        self._clock = clock or SystemClock()
        self._chance = chance or random.Random()
        self._rate = AdaptiveRate(self._clock)
        self._counts = _Counts()
        self._threads = DaemonThreads(policy.read_threads_max, "persist-read")
        self._is_remote = is_remote(inner)
        self._is_hedged = self._is_remote if policy.hedge is None else policy.hedge
        self._get = self._hedged(policy) if self._is_hedged else inner.get
        self._silence = Silence(inner.url, self._clock, policy.told_after_s, policy.deadline_s)

    @property
    def requests_per_s_max(self) -> float | None:
        """How fast the store lets this client ask at present; None without a limit."""
        return self._rate.limit

    def counts(self) -> dict[str, RetryCount]:
        """Return the counts so far, by the name of the operation."""
        return self._counts.copy()

    def get(self, key: str, range: tuple[int, int] | None = None) -> bytes | None:
        return self._call("get", key, lambda: self._get(key, range))

    def get_at_most(self, key: str, bytes_max: int) -> bytes | None:
        if self._is_hedged:
            value = self.get(key)
            check_bytes(key, len(value or b""), bytes_max)
            return value
        return self._call("get", key, lambda: get_at_most(self._inner, key, bytes_max))

    def set(self, key: str, value: bytes) -> None:
        self._call("set", key, lambda: self._inner.set(key, value), is_small=len(value) <= SMALL_BYTES)

    def create(self, key: str, value: bytes) -> bool:
        return self._call("create", key, lambda: self._inner.create(key, value), is_small=len(value) <= SMALL_BYTES)

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[BlobEntry]:
        pages = _Pages(self._inner, prefix, start_after)
        while page := self._call("list", prefix, pages.next, is_small=True):
            yield from page
            if len(page) < LIST_PAGE_ENTRIES:
                return

    def delete(self, key: str) -> None:
        self._call("delete", key, lambda: self._inner.delete(key), is_small=True)

    def _delete_page(self, delete: DeletePage, keys: Sequence[str]) -> Mapping[str, PersistError]:
        """Delete keys; those that could not be deleted are tried again, and returned when they are given up."""
        failed: dict[str, PersistError] = {}
        left = keys

        def attempt() -> None:
            nonlocal failed, left
            failed = dict(delete(left))
            left = [*failed]
            again = [error for error in failed.values() if isinstance(error, (Unavailable, Indeterminate))]
            if again:  # One that was throttled is the reason to slow down.
                raise next((error for error in again if isinstance(error, Throttled)), again[0])

        try:
            self._call("delete", keys[0], attempt)
        except (Unavailable, Indeterminate):
            if not failed:
                raise
        return failed

    def close(self) -> None:
        """Close the store; a read that hangs is waited for at most two seconds, and ends by the store's timeouts."""
        self._threads.close(CLOSE_TIMEOUT_S)
        self._silence.close()
        self._inner.close()

    def _call(self, operation: str, key: str, attempt: Callable[[], T], *, is_small: bool = False) -> T:
        asked = Asked(operation, key, self._clock.monotonic_s())
        if not (is_small and self._is_remote):
            return self._tried(asked, attempt)
        self._silence.begin(asked)
        try:
            return self._tried(asked, attempt)
        finally:
            self._silence.end(asked)

    def _tried(self, asked: Asked, attempt: Callable[[], T]) -> T:
        began_s = asked.began_s
        last_s = began_s + self._policy.throttled_deadline_s
        ready_s, failures = began_s, None
        while True:
            sent_s = self._rate.take_turn(ready_s, last_s)
            if sent_s is None:
                failures = failures or self._no_turn(asked)
                raise self._gave_up(failures) from failures.last
            try:
                result = attempt()
            except PersistError as error:
                failures = failures or _Failures(asked, self._backoff(began_s))
                failures.throttled_s += sent_s - ready_s
                if not self._wait(failures, error, sent_s):
                    raise self._gave_up(failures) from error
                ready_s = self._clock.monotonic_s()
            else:
                self._rate.succeeded()
                return result

    def _wait(self, failures: "_Failures", error: PersistError, sent_s: float) -> bool:
        """Return True after a pause, or False if it is too late; raise what cannot be helped by trying again."""
        policy, operation = self._policy, failures.asked.operation
        failures.last = error
        if not isinstance(error, (Unavailable, Indeterminate)) or isinstance(error, StoreFull):
            if failures.is_doubtful:
                raise self._gave_up(failures) from error
            raise error
        if error.timed_out:
            self._counts.add(operation, "timeouts")
        if isinstance(error, Indeterminate):
            if operation not in _HARMLESS_TWICE:
                raise error
            failures.is_doubtful = True
        extra_s = policy.throttled_deadline_s - policy.deadline_s
        if isinstance(error, Throttled):
            self._counts.add(operation, "throttled")
            self._rate.was_throttled(sent_s)
        else:
            failures.attempts += 1
            extra_s = min(extra_s, failures.throttled_s)
            failures.asked.last = str(error)
            # A wait is not cut in two to say so, hence before one that may end later.
            self._silence.say(failures.asked, failures.backoff.bound_s)
        if failures.attempts >= policy.attempts_max or not failures.backoff.wait(extra_s=extra_s):
            return False
        if isinstance(error, Throttled):
            failures.throttled_s += self._clock.monotonic_s() - sent_s
        self._counts.add(operation, "retries")
        return True

    def _gave_up(self, failures: "_Failures") -> PersistError:
        """Return the error that a call fails with in the end, and count it."""
        asked, last = failures.asked, failures.last
        self._counts.add(asked.operation, "gave_up")
        took_s = self._clock.monotonic_s() - asked.began_s
        tried = f"{asked.operation} of {asked.key!r} at {self.url} was given up after {took_s:.1f} s"
        if failures.is_doubtful:
            return Indeterminate(
                f"{tried}, and an attempt that got no answer may have done it. The last failure: {last}"
            )
        kind = Throttled if isinstance(last, Throttled) else Unavailable
        return kind(f"{tried}. The last failure: {last}")

    def _no_turn(self, asked: Asked) -> "_Failures":
        text = (
            f"the store refuses more than {self._rate.limit or 0:.1f} requests of this client per second, and more "
            "wait than can be sent until the deadline. Ask for less at a time."
        )
        return _Failures(asked, self._backoff(asked.began_s), last=Throttled(text))

    def _backoff(self, began_s: float) -> Backoff:
        policy = self._policy
        return Backoff(
            self._clock,
            began_s + policy.deadline_s - self._clock.monotonic_s(),
            first_s=policy.first_s,
            bound_max_s=policy.bound_max_s,
            chance=self._chance,
        )

    def _hedged(self, policy: RetryPolicy) -> Callable[[str, tuple[int, int] | None], bytes | None]:
        rate = self._rate
        reads = HedgedReads(
            self._inner,
            self._threads,
            timeout_s=policy.read_timeout_s,
            after_s=policy.hedge_after_s,
            floor_s=policy.hedge_floor_s,
            may_hedge=lambda: rate.limit is None,  # A store that throttles is asked for nothing twice.
            count=partial(self._counts.add, "get"),
        )
        return reads.get


@dataclass(slots=True)
class _Failures:
    """What happened so far to a call that has failed."""

    asked: Asked
    backoff: Backoff
    last: PersistError = field(default_factory=Unavailable)
    attempts: int = 0  # That failed, throttled ones left out.
    throttled_s: float = 0.0
    is_doubtful: bool = False


class _Pages:
    """A listing in pages, each of which can be asked for again."""

    def __init__(self, inner: Blob, prefix: str, start_after: str | None) -> None:
        self._inner = inner
        self._prefix = prefix
        self._after = start_after
        self._entries: Iterator[BlobEntry] | None = None

    def next(self) -> Sequence[BlobEntry]:
        """Return the entries after the last page; fewer than `LIST_PAGE_ENTRIES` at the end only."""
        if self._entries is None:
            self._entries = iter(self._inner.list(self._prefix, self._after))
        entries, self._entries = self._entries, None  # An iterator that raised is of no more use.
        page = [*islice(entries, LIST_PAGE_ENTRIES)]
        if page:
            self._entries, self._after = entries, page[-1].key
        return page


class _Counts:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = {operation: RetryCount() for operation in OPERATIONS}

    def add(self, operation: str, name: str) -> None:
        with self._lock:
            count = self._counts[operation]
            self._counts[operation] = replace(count, **{name: getattr(count, name) + 1})

    def copy(self) -> dict[str, RetryCount]:
        with self._lock:
            return dict(self._counts)
