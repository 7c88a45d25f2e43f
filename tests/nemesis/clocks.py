"""Time in a run: it passes only when the run or somebody who waits says so."""

import threading

BEGAN_MS = 1_700_000_000_000


class World:
    """The clock that all clients share, more or less."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now_s = 0.0

    def now_s(self) -> float:
        with self._lock:
            self._now_s += 1e-6
            return self._now_s

    def advance(self, seconds: float) -> None:
        with self._lock:
            self._now_s += seconds


class ClientClock:
    """What one client takes the time for: a little off, and its sleep costs nobody time."""

    def __init__(self, world: World, skew_s: float) -> None:
        self._world = world
        self._skew_s = skew_s
        self._dead_s: float | None = None

    def die(self) -> None:
        """From now on, what its client sleeps passes for itself only."""
        self._dead_s = self._world.now_s()

    def monotonic_s(self) -> float:
        return self._world.now_s() if self._dead_s is None else self._dead_s

    def wall_ms(self) -> int:
        return BEGAN_MS + int((self.monotonic_s() + self._skew_s) * 1000)

    def sleep(self, seconds: float) -> None:
        if self._dead_s is None:
            self._world.advance(seconds)
        else:
            self._dead_s += seconds
