"""How threads wait for the log to move on: they look again when somebody says that it has, and at intervals.

Invariants:
- a hint need not be true, so it only makes those who wait look; nobody takes a state from it;
- who waits looks again after each record that this client commits, and the longest pause later at the latest;
- `close` ends each wait.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeVar

from persist.blob import Clock
from persist.replica.looks import Looks
from persist.state import State

T = TypeVar("T")

HINT_S = 1.0
POLL_FIRST_S = 0.005
TOLD_FIRST_S = 0.25  # A GET that is under way when a hint comes would only delay the one that finds the record.
POLL_MAX_S = 1.0  # Where a request costs money and takes a while; elsewhere the first pause stays.


class AwaitedLog(ABC):
    """What a view of the log has for those who wait for it.

    Attributes:
        is_told: whether somebody has promised to tell of each record.
        longest_pause_s: the longest pause of who waits for a record; see `Settings.poll_s`.
    """

    _state: State

    def __init__(self, clock: Clock, longest_pause_s: float) -> None:
        self._clock = clock
        self.longest_pause_s = longest_pause_s
        self.is_told = False
        self.looks = Looks()
        self._lock = threading.RLock()
        self._advanced = threading.Condition(self._lock)
        self._is_closed = False
        self._hints = 0
        self._hinted, self._hinted_s = -1, 0.0

    @abstractmethod
    def check_open(self) -> None:
        """Raise ClientClosed after `close`."""

    @abstractmethod
    def refresh(self) -> State:
        """Return the newest state. Cost: a GET."""

    @abstractmethod
    def _read_hinted(self) -> None:
        """Read up to the record that a hint spoke of."""

    def hint(self, seqno: int) -> None:
        """Let those who wait look now, because somebody says that there is a record at seqno.

        It need not be true. While it is not, and for `HINT_S`, no other hint is taken: so a liar costs a look a second.
        """
        with self._lock:
            now_s = self._clock.monotonic_s()
            is_doubtful = self._hinted > self._state.seqno and now_s - self._hinted_s < HINT_S
            if seqno > self._state.seqno and not is_doubtful:
                self._hinted, self._hinted_s = seqno, now_s
                self._hints += 1
                self._advanced.notify_all()

    def wake(self) -> None:
        """Let those who wait look now, because something else than the log has changed that they look at."""
        with self._lock:
            self._hints += 1
            self._advanced.notify_all()

    @property
    def first_pause_s(self) -> float:
        """How long who waits does so after a look that found nothing new, for the first time."""
        return min(TOLD_FIRST_S if self.is_told else POLL_FIRST_S, self.longest_pause_s)

    def wait_for(self, look: Callable[[], T | None], timeout_s: float | None) -> T | None:
        """Return the first answer of look that is not None, or None when timeout_s has passed.

        It looks after a refresh, whenever this client commits, upon a `hint`, and at intervals that double from
        `first_pause_s` to the longest pause while the log stands still.

        Raises:
            ClientClosed: `close` was called; anything that look raises.
        """
        ends_s = None if timeout_s is None else self._clock.monotonic_s() + timeout_s
        pause_s, is_hinted = self.first_pause_s, False
        seen: int | None = None
        while True:
            self.check_open()
            if is_hinted:
                self._read_hinted()
                if (answer := look()) is not None:
                    return answer
            hints = self._hints
            seqno = self.refresh().seqno
            if (answer := look()) is not None:
                return answer
            left_s = None if ends_s is None else ends_s - self._clock.monotonic_s()
            if left_s is not None and left_s <= 0:
                return None
            pause_s = self.first_pause_s if seqno != seen else min(pause_s * 2, self.longest_pause_s)
            seen = seqno
            self.looks.again()
            with self._advanced:
                if self._state.seqno == seqno and not self._is_closed and self._hints == hints:
                    self._advanced.wait(pause_s if left_s is None else min(pause_s, left_s))
            is_hinted = self._hints != hints
