"""How requests are paced to a store that is slow or throttles: hedged reads, and one rate for all threads of a client.

Hedged reads do not wait for one slow answer. Each read runs in a thread of a bounded crew, because nothing can call a
thread back from a socket; the caller waits for answers. When none came for as long as nearly all recent reads took, a
second read of the same key is sent, and the first answer wins. A reader that takes too long altogether is left behind
and ends by the store's own timeouts. When all threads are busy the caller reads by itself. See Dean and Barroso, "The
Tail at Scale", CACM 56(2), 2013.

The rate has no limit until the store first refuses a request because there are too many. Then the rate becomes half of
what was sent, halves again when a request that was sent at the new rate is refused, and grows steadily while requests
succeed ("additive increase, multiplicative decrease": Chiu and Jain, Computer Networks and ISDN Systems 17, 1989). It
is lifted at twice the rate at which throttling began.
"""

import threading
import time
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from typing import NamedTuple

from persist.blob.errors import Unavailable
from persist.blob.layers.metered import LatencyHistogram
from persist.blob.protocol import Blob
from persist.blob.threads import Clock, DaemonThreads

SHARE = 0.95  # Of recent reads are faster than the delay.
HEDGES_SHARE_MAX = 0.1  # Of all reads, so that a store that becomes slow is not sent twice as much.
HEDGES_SAVED_MAX = 10.0
SAMPLES_MIN = 32
DELAY_AT_FIRST_S = 1.0
_RECENT = 512
RATE_MIN = 1.0  # Requests per second.
GROWTH = 0.1  # Per second, as a share of the rate at which throttling began.
_WINDOW_S = 1.0
_WINDOW_MIN_S = 0.25  # A burst is not taken for a rate that was kept up.


class _Answer(NamedTuple):
    value: bytes | None
    error: BaseException | None
    is_hedge: bool


class HedgedReads:
    """Gets values from a store, with a second request for slow ones. Costs about 35 µs per read for the threads.

    Args:
        timeout_s: for one read, hedge included.
        after_s: when to send the second request; None: after the time that 95% of recent reads took.
        floor_s: the least of that time.
        may_hedge: asked before a second request.
        count: called with "hedges" and "hedges_won".
    """

    def __init__(
        self,
        inner: Blob,
        threads: DaemonThreads,
        *,
        timeout_s: float,
        after_s: float | None,
        floor_s: float,
        may_hedge: Callable[[], bool],
        count: Callable[[str], None],
    ) -> None:
        self._inner = inner
        self._threads = threads
        self._timeout_s = timeout_s
        self._may_hedge = may_hedge
        self._count = count
        self._pace = _Pace(after_s, floor_s)

    def get(self, key: str, range: tuple[int, int] | None) -> bytes | None:
        """Return the value at key or its bytes `[start, end)`; None when there is none.

        Raises:
            Unavailable: no answer within the timeout (`timed_out` is set), or the store says so.
        """
        answers: SimpleQueue[_Answer] = SimpleQueue()
        ends_s = time.monotonic() + self._timeout_s
        if not self._ask(key, range, answers, is_hedge=False):
            return self._inner.get(key, range)
        asked = 1
        answer = _next(answers, min(self._pace.delay_s(), self._timeout_s))
        if answer is None and time.monotonic() < ends_s and self._may_hedge() and self._pace.take_hedge():
            asked += self._hedge(key, range, answers)
        while True:
            answer = answer or _next(answers, ends_s - time.monotonic())
            if answer is None:
                late = Unavailable(
                    f"get of {key!r} at {self._inner.url} had no answer within {self._timeout_s:g} s. Check that the "
                    "store is up and reachable, then try again."
                )
                late.timed_out = True
                raise late
            asked -= 1
            if answer.error is None or not asked:
                return self._result(answer)
            answer = None

    def _hedge(self, key: str, range: tuple[int, int] | None, answers: "SimpleQueue[_Answer]") -> bool:
        if not self._ask(key, range, answers, is_hedge=True):
            return False
        self._count("hedges")
        return True

    def _result(self, answer: _Answer) -> bytes | None:
        if answer.error is not None:
            raise answer.error
        if answer.is_hedge:
            self._count("hedges_won")
        return answer.value

    def _ask(self, key: str, range: tuple[int, int] | None, answers: "SimpleQueue[_Answer]", *, is_hedge: bool) -> bool:
        def ask() -> Callable[[], None]:
            began_s = time.monotonic()
            try:
                value = self._inner.get(key, range)
            except BaseException as error:
                return partial(answers.put, _Answer(None, error, is_hedge))
            self._pace.record(time.monotonic() - began_s)
            return partial(answers.put, _Answer(value, None, is_hedge))

        return self._threads.try_run(ask)


class _Pace:
    """When a read counts as slow, and how many second requests are left."""

    def __init__(self, after_s: float | None, floor_s: float) -> None:
        self._after_s = after_s
        self._floor_s = floor_s
        self._lock = threading.Lock()
        self._delay_s = max(floor_s, DELAY_AT_FIRST_S) if after_s is None else after_s
        self._hedges_left = HEDGES_SAVED_MAX
        self._recent, self._older = LatencyHistogram(), LatencyHistogram()

    def delay_s(self) -> float:
        return self._delay_s

    def take_hedge(self) -> bool:
        with self._lock:
            if self._hedges_left < 1:
                return False
            self._hedges_left -= 1
            return True

    def record(self, seconds: float) -> None:
        with self._lock:
            self._hedges_left = min(HEDGES_SAVED_MAX, self._hedges_left + HEDGES_SHARE_MAX)
            if self._after_s is not None:
                return
            self._recent.record(seconds)
            if self._recent.total % SAMPLES_MIN:
                return
            both = self._older.copy()
            both.merge(self._recent)
            self._delay_s = max(self._floor_s, both.quantile_s(SHARE))
            if self._recent.total >= _RECENT:
                self._recent, self._older = LatencyHistogram(), self._recent


def _next(answers: "SimpleQueue[_Answer]", timeout_s: float) -> _Answer | None:
    try:
        return answers.get(timeout=max(0.0, timeout_s))
    except Empty:
        return None


class AdaptiveRate:
    """The turns of all calls of one client. Without throttling, it costs a tenth of a microsecond per request."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._limit: float | None = None
        self._peak = 0.0
        self._next_turn_s = 0.0
        self._lowered_s = self._raised_s = 0.0
        # Of what is sent without a limit, to know where to begin. Threads may miscount; it need not be exact.
        self._window_began_s = clock.monotonic_s()
        self._sent = 0
        self._sent_before = 0.0

    @property
    def limit(self) -> float | None:
        """Requests per second allowed now; None without a limit."""
        return self._limit

    def take_turn(self, now_s: float, ends_s: float) -> float | None:
        """Wait until a request may be sent, and return when that is; or None at once if that is after ends_s."""
        if self._limit is None:
            self._sent += 1
            if now_s - self._window_began_s >= _WINDOW_S:
                self._sent_before = self._sent / (now_s - self._window_began_s)
                self._sent, self._window_began_s = 0, now_s
            return now_s
        with self._lock:
            turn_s = max(now_s, self._next_turn_s)
            if turn_s > ends_s:
                return None
            self._next_turn_s = turn_s + 1 / (self._limit or self._peak)
        if turn_s > now_s:
            self._clock.sleep(turn_s - now_s)
        return turn_s

    def was_throttled(self, sent_s: float) -> None:
        """Slow down, unless the request that was refused had been sent before the last time."""
        with self._lock:
            now_s = self._clock.monotonic_s()
            if self._limit is not None and sent_s < self._lowered_s:
                return
            if self._limit is None:
                sent = self._sent / max(_WINDOW_MIN_S, now_s - self._window_began_s)
                self._limit = self._peak = max(2 * RATE_MIN, sent, self._sent_before)
            self._limit = max(RATE_MIN, self._limit / 2)
            self._lowered_s = self._raised_s = now_s

    def succeeded(self) -> None:
        """Speed up again, by the time that passed; a pause without requests counts as one second."""
        if self._limit is None:
            return
        with self._lock:
            if self._limit is None:
                return
            now_s = self._clock.monotonic_s()
            self._limit += GROWTH * self._peak * min(1.0, now_s - self._raised_s)
            self._raised_s = now_s
            if self._limit > 2 * self._peak:
                self._limit = None
                self._sent, self._sent_before, self._window_began_s = 0, 0.0, now_s
