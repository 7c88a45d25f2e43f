"""Time and chance as parameters, so that tests own both."""

import random
import time
from typing import Protocol


class Clock(Protocol):
    """Clocks in the units their names say, and a sleep that a test can skip."""

    def monotonic_s(self) -> float: ...

    def wall_ms(self) -> int: ...

    def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The machine's own clocks."""

    def monotonic_s(self) -> float:
        return time.monotonic()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class Backoff:
    """Waits of random length whose bound doubles, until a deadline.

    "Full jitter": each wait is uniform in [0, bound], which spreads clients that failed together (Marc Brooker,
    "Exponential Backoff And Jitter", AWS Architecture Blog, 2015).
    """

    def __init__(
        self,
        clock: Clock,
        deadline_s: float,
        *,
        first_s: float = 0.01,
        bound_max_s: float = 2.0,
        chance: random.Random | None = None,
    ) -> None:
        self._clock = clock
        self._ends_s = clock.monotonic_s() + deadline_s
        self._bound_s = first_s
        self._bound_max_s = bound_max_s
        self._chance = chance or random.Random()

    @property
    def bound_s(self) -> float:
        """How long the next wait is at most."""
        return self._bound_s

    def wait(self, *, extra_s: float = 0.0) -> bool:
        """Sleep, and return True; or return False at once when the deadline has passed for extra_s."""
        left_s = self._ends_s + extra_s - self._clock.monotonic_s()
        if left_s <= 0:
            return False
        self._clock.sleep(min(left_s, self._chance.uniform(0, self._bound_s)))
        self._bound_s = min(self._bound_s * 2, self._bound_max_s)
        return True
