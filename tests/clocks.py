"""Clocks that tests own."""

import threading


class ImpatientClock:
    """Time passes only when somebody sleeps, so nothing that waits for the clock takes real time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now_s = 0.0

    def monotonic_s(self) -> float:
        with self._lock:
            self._now_s += 1e-6
            return self._now_s

    def wall_ms(self) -> int:
        return 1_700_000_000_000 + int(self.monotonic_s() * 1000)

    def sleep(self, seconds: float) -> None:
        with self._lock:
            self._now_s += seconds
