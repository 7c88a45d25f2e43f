"""Waits for new records of the log: threads read it again after a hint, and at intervals.

Invariants:
- a hint may be wrong, so it only makes waiting threads read the log;
- a waiting thread reads the log after each commit of this client, and after the longest pause at the latest;
- `close` ends each wait.

A *look* is one read of the log's next records. Waiting callers share a look that began after their call. In
`LookSharing.share_look`, only the first call of a thread looks. A caller that is about to commit may skip that look
with `skip_refresh`: if it creates the record at the next seqno, no other record has come.
"""

import itertools
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from persist.blob.threads import Clock
from persist.core.log.fields import Policy
from persist.core.state_rules.policies import Policies
from persist.core.state_rules.state import State

T = TypeVar("T")

HINT_S = 1.0
POLL_FIRST_S = 0.005
TOLD_FIRST_S = 0.25  # A GET in progress when a hint comes would only delay the one that finds the record.
POLL_MAX_S = 1.0  # For stores where requests are slow or cost money; elsewhere the first pause stays.


class LookSharing:
    """Shares looks at the log: one read of new records serves several calls and threads."""

    def __init__(self) -> None:
        self._tickets = itertools.count(1)
        self._issued = 0
        self._served = 0
        self._elsewhere = 0
        # In `share_look`, for each thread: has_looked, and the value of elsewhere at that time.
        self._here = threading.local()

    @contextmanager
    def share_look(self) -> Iterator[None]:
        """Look at the log at most once in this block, however often the thread refreshes.

        This client's own commits and their conflicts are seen; a caller that waits for a change looks again.
        """
        if hasattr(self._here, "has_looked"):
            yield
            return
        self._here.has_looked = False
        try:
            yield
        finally:
            del self._here.has_looked

    @property
    def is_enough(self) -> bool:
        """Whether this thread is in `share_look`, and has looked."""
        return getattr(self._here, "has_looked", False) and self._here.elsewhere == self._elsewhere

    def note(self) -> None:
        """Note that this thread has looked."""
        if hasattr(self._here, "has_looked"):
            self._here.has_looked, self._here.elsewhere = True, self._elsewhere

    def require_new_look(self) -> None:
        """Make every thread look again, because another client has committed for this one."""
        self._elsewhere += 1

    def skip_refresh(self) -> bool:
        """In `share_look`, skip reads of the log until `force_next_look`; return whether this changed anything."""
        is_first = not getattr(self._here, "has_looked", True)
        self.note()
        return is_first

    def force_next_look(self) -> None:
        """Make the next call look, even in `share_look`."""
        if hasattr(self._here, "has_looked"):
            self._here.has_looked = False

    def take_ticket(self) -> int:
        """Return a ticket for a call that needs a look that begins from now on."""
        self._issued = next(self._tickets)
        return self._issued

    def serve(self, ticket: int) -> int | None:
        """Begin a look; return the last ticket that it serves, or None if an earlier look served this ticket."""
        return None if self._served >= ticket else self._issued

    def finish_look(self, issued: int) -> None:
        """Note that the look that `serve` began is done; `issued`: the result of `serve`."""
        self._served = issued


class AwaitedLog(ABC):
    """The part of a view of the log that waits for new records.

    Attributes:
        is_told: whether a notifier promises a hint for each record.
        longest_pause_s: the longest pause of a waiting thread; see `Settings.poll_s`.
    """

    _state: State

    def __init__(self, clock: Clock, longest_pause_s: float, policy: Policy) -> None:
        self._clock = clock
        self._usual = Policies(policy)
        self.longest_pause_s = longest_pause_s
        self.is_told = False
        self.looks = LookSharing()
        self._lock = threading.RLock()
        self._advanced = threading.Condition(self._lock)
        self._is_closed = False
        self._hints = 0
        self._hinted, self._hinted_s = -1, 0.0

    @property
    def policies(self) -> Policies:
        """The policy of the location, and earlier policies."""
        return self._state.control.policies or self._usual

    @abstractmethod
    def check_open(self) -> None:
        """Raise ClientClosed after `close`."""

    @abstractmethod
    def refresh(self) -> State:
        """Return the newest state. Cost: a GET."""

    @abstractmethod
    def _read_hinted(self) -> None:
        """Read the log up to the hinted record."""

    def hint(self, seqno: int) -> None:
        """Make waiting threads read the log now, because a record was announced.

        A hint may be wrong. Until the announced record appears, or `HINT_S` passes, no other hint counts. So false
        hints cost at most one look a second.
        """
        with self._lock:
            now_s = self._clock.monotonic_s()
            is_doubtful = self._hinted > self._state.seqno and now_s - self._hinted_s < HINT_S
            if seqno > self._state.seqno and not is_doubtful:
                self._hinted, self._hinted_s = seqno, now_s
                self._hints += 1
                self._advanced.notify_all()

    def wake(self) -> None:
        """Wake the waiting threads, because something other than the log has changed."""
        with self._lock:
            self._hints += 1
            self._advanced.notify_all()

    @property
    def first_pause_s(self) -> float:
        """How long a thread waits after a first look without news."""
        return min(TOLD_FIRST_S if self.is_told else POLL_FIRST_S, self.longest_pause_s)

    def wait_for(self, look: Callable[[], T | None], timeout_s: float | None) -> T | None:
        """Return the first answer of look that is not None, or None after timeout_s.

        It calls look after a refresh: whenever this client commits, upon a `hint`, and at intervals that double from
        `first_pause_s` to the longest pause while the log stays the same.

        Raises:
            ClientClosed: `close` was called.
            Exception: any error that look raises.
        """
        ends_s = None if timeout_s is None else self._clock.monotonic_s() + timeout_s
        pause_s, is_hinted = self.first_pause_s, False
        seqno_seen: int | None = None
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
            pause_s = self.first_pause_s if seqno != seqno_seen else min(pause_s * 2, self.longest_pause_s)
            seqno_seen = seqno
            self.looks.force_next_look()
            with self._advanced:
                if self._state.seqno == seqno and not self._is_closed and self._hints == hints:
                    self._advanced.wait(pause_s if left_s is None else min(pause_s, left_s))
            is_hinted = self._hints != hints
