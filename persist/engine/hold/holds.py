"""Explicit holds with a handle, and the leases of named consumers.

A hold keeps since at or before a time. A leased hold lives as long as its client renews its lease. A named hold is
permanent: it belongs to all processes that know its name, such as a consumer that may be down for days. It is moved by
compare-and-set, so two processes with the same name notice each other.

A client's reads share one lease, which other clients may not end before it expires. If another consumer of the same
name appears, the earlier one is dead or replaced. So each consumer has its own lease with its name, and begins by
ending earlier leases of that name, in the commit that grants its own (`Leases`). If the earlier consumer is alive, its
next read gets `LeaseExpired`.
"""

import threading
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from persist.codecs.types.schema import TIME_MAX
from persist.core.antichain import to_antichain
from persist.core.closing import Closes
from persist.core.errors import FrontierRegression, HoldMoved, Indeterminate, InvalidUsage, LeaseExpired
from persist.core.timeline import Moment
from persist.engine.hold.leases import Claim, Leases, WantedClaim

ToTime = Callable[[str, Any], int]  # Converts a caller's time; the text names the argument in errors.
Shown = Callable[[int], str]  # A time as people read it.


@dataclass(frozen=True, slots=True)
class HoldInfo:
    """A hold of a collection, as the log stores it.

    Attributes:
        name: the name of a permanent hold; None for a leased one.
        time: the time at or before which since stays.
        holder: the client that has the lease.
        expires_ms: when the lease may be ended, milliseconds since 1970.
        is_tag: whether it is a tag: the name of a time (`Collection.tag`).
    """

    name: str | None
    time: int
    holder: str | None = None
    expires_ms: int | None = None
    is_tag: bool = False

    @property
    def kept(self) -> int | None:
        """The time to show; None if the hold only keeps an input of a view from being dropped."""
        return None if self.time == TIME_MAX else self.time


class Hold(Closes):
    """Keeps since at or before `time` until it is closed, advanced or released. Use it in a `with`."""

    def __init__(self, time: int, to_time: ToTime, shown: Shown) -> None:
        self._time = time
        self._to_time = to_time
        self._shown = shown

    @property
    def time(self) -> int:
        """The time of the hold."""
        return self._time

    @abstractmethod
    def advance(self, time: int | Moment) -> None:
        """Move the hold forward, durably, to a time or, if the collection has a timeline, a moment.

        Raises:
            FrontierRegression: time is before the hold's.
            LeaseExpired: the lease ended before.
            HoldMoved: a named hold is not where this handle left it; nothing was moved.
        """

    @abstractmethod
    def release(self) -> None:
        """Release the hold for good; idempotent.

        Raises HoldMoved: a named hold is not where this handle left it; it stays.
        """

    @abstractmethod
    def close(self) -> None:
        """Release a leased hold; leave a named one in place, for the next process."""

    def _check_later(self, what: str, time: int | Moment) -> int:
        """Return the new time of the hold as a number; raise FrontierRegression if the hold is later."""
        time = self._to_time("hold time", time)
        if time < self._time:
            raise FrontierRegression(what, to_antichain(time), to_antichain(self._time))
        return time


class LeasedHold(Hold):
    """A hold that ends with its client's lease."""

    def __init__(
        self, leases: Leases, collection: str, claim: Claim, time: int, to_time: ToTime, shown: Shown = str
    ) -> None:
        super().__init__(time, to_time, shown)
        self._leases = leases
        self._collection = collection
        self._claim = claim
        self._is_released = False

    def advance(self, time: int | Moment) -> None:
        """Move the hold to a later time."""
        time = self._check_later("this hold", time)
        if self._is_released:
            raise InvalidUsage("this hold was released; take a new one with hold(time)")
        self._claim.check()
        self._claim.move(time)
        self._leases.settle(self._collection)
        self._time = time

    def release(self) -> None:
        if not self._is_released:
            self._is_released = True
            self._claim.release()
            with suppress(LeaseExpired):  # Then the hold went with its lease; other reads by it will hear.
                self._leases.settle(self._collection)

    def close(self) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"<Hold at {self._shown(self._time)}{', released' if self._is_released else ''}>"


class NamedHold(Hold):
    """A permanent hold with a name.

    `move` and `give_up` commit a new time or the removal, if the hold is at an expected time.
    """

    def __init__(
        self,
        name: str,
        time: int,
        to_time: ToTime,
        move: Callable[[int, int], object],
        give_up: Callable[[int], object],
        shown: Shown = str,
    ) -> None:
        super().__init__(time, to_time, shown)
        self.name = name
        self._move = move
        self._give_up = give_up
        self._maybe: int | None = None  # Its possible time, because a move got no answer.

    def advance(self, time: int | Moment) -> None:
        time = self._check_later(f"the hold {self.name!r}", time)
        if time > self._time:
            try:
                self._compare_and_set(lambda at: self._move(at, time))
            except Indeterminate:
                self._maybe = time
                raise
            self._time, self._maybe = time, None

    def release(self) -> None:
        self._compare_and_set(self._give_up)

    def _compare_and_set(self, attempt: Callable[[int], object]) -> None:
        """Call attempt with the time at which the hold is believed to be.

        An earlier move may have succeeded although its answer was lost. Then `attempt` is called again with the time of
        that move.
        """
        try:
            attempt(self._time)
        except HoldMoved as error:
            if self._maybe is None or error.actual != self._maybe:
                raise
            self._time, self._maybe = self._maybe, None
            attempt(self._time)

    def close(self) -> None:
        """Leave the hold where it is."""

    def __repr__(self) -> str:
        return f"<Hold {self.name!r} at {self._shown(self._time)}>"


class ConsumerLeases:
    """The leases of the consumers of one client, by name. All methods may be called from any thread."""

    def __init__(self, make: Callable[[str], Leases]) -> None:
        """Begin without leases; make creates the leases of a consumer."""
        self._make = make
        self._lock = threading.Lock()
        self._by_name: dict[str, Leases] = {}
        self._beginning: dict[str, threading.Lock] = {}

    def claim_all(self, consumer: str, requests: Sequence[WantedClaim]) -> list[Claim]:
        """Begin a consumer, which replaces an earlier one of the same name, and make its claims, as `Leases` does.

        Cost: one commit, which also ends the earlier lease.
        """
        leases = self._make(consumer)
        leases.check_may_wait()
        with self._lock:
            beginning = self._beginning.setdefault(consumer, threading.Lock())
        with beginning:  # If two begin at once, one must know the other's lease to end it.
            claims = leases.claim_all(requests)
            with self._lock:
                self._by_name[consumer] = leases
        return claims

    def list_all(self) -> list[Leases]:
        """Return the leases of all consumers."""
        with self._lock:
            return [*self._by_name.values()]

    def list_ids(self) -> frozenset[str]:
        """Return the ids of the leases of all consumers."""
        return frozenset(leases.lease_id for leases in self.list_all())

    def counts(self) -> dict[str, int]:
        """Return the sums of `Leases.counts` over all consumers."""
        total = dict.fromkeys(("granted", "holds", "reads"), 0)
        for leases in self.list_all():
            for what, count in leases.counts().items():
                total[what] += count
        return total

    def tick(self) -> None:
        """Call `Leases.tick` for each consumer."""
        for leases in self.list_all():
            leases.tick()

    def settle_soon(self, collection: str) -> None:
        """Call `Leases.settle_soon` for each consumer."""
        for leases in self.list_all():
            leases.settle_soon(collection)

    def close(self) -> None:
        """End all these leases. Cost: a commit for each."""
        for leases in self.list_all():
            leases.close()
