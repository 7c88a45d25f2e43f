"""One rate for all threads of a client, at which it may send requests to a store that throttles.

The rate has no limit until the store first refuses a request because there are too many. Then it becomes half of the
measured rate, and halves again if a request sent at the new rate is refused. It grows steadily while requests succeed
("additive increase, multiplicative decrease": Chiu and Jain, Computer Networks and ISDN Systems 17, 1989). It is lifted
at twice the rate at which throttling began.
"""

import threading

from persist.blob.threads import Clock

RATE_MIN = 1.0  # Requests per second.
GROWTH = 0.1  # Per second, as a share of the rate at which throttling began.
_WINDOW_S = 1.0
_WINDOW_MIN_S = 0.25  # A burst is not taken for a rate that was kept up.


class AdaptiveRate:
    """The turns of all calls of one client. Without throttling, it costs a tenth of a microsecond per request."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._limit: float | None = None
        self._peak = 0.0
        self._next_turn_s = 0.0
        self._lowered_s = self._raised_s = 0.0
        # Counts requests while there is no limit, to choose the first one. Threads may miscount; it need not be exact.
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
