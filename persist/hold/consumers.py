"""The leases of the consumers of one client: one for each name, so that whoever takes the name up next can end it.

What a client reads hangs on one lease, which nobody else may end before it has run out. A process that was killed would
so keep history for ten minutes. Of a consumer that resumes by its name it is known at once that it is dead or replaced:
when another one of that name appears. So each consumer has a lease of its own that carries its name, and begins by
ending those of the same name, in the commit that grants it (`Leases`). One that is alive all the same finds its lease
gone with its next read, and gets `LeaseExpired`. So does one of the same client.
"""

import threading
from collections.abc import Callable, Sequence

from persist.hold.leases import Claim, Leases, WantedClaim


class ConsumerLeases:
    """The leases of the consumers of one client, by name. All methods may be called from any thread."""

    def __init__(self, make: Callable[[str], Leases]) -> None:
        """Begin without any; make returns those of a consumer."""
        self._make = make
        self._lock = threading.Lock()
        self._by_name: dict[str, Leases] = {}
        self._beginning: dict[str, threading.Lock] = {}

    def claim_all(self, consumer: str, wanted: Sequence[WantedClaim]) -> list[Claim]:
        """Begin a consumer, which takes the place of the one that has its name: claim what it reads, as `Leases` does.

        Cost: one commit, which ends the lease of that one, too.
        """
        leases = self._make(consumer)
        leases.check_may_wait()
        with self._lock:
            beginning = self._beginning.setdefault(consumer, threading.Lock())
        with beginning:  # Of two that begin at once, one must know of the other's lease to end it.
            claims = leases.claim_all(wanted)
            with self._lock:
                self._by_name[consumer] = leases
        return claims

    def each(self) -> list[Leases]:
        """Return those of all consumers."""
        with self._lock:
            return [*self._by_name.values()]

    def ids(self) -> frozenset[str]:
        """Return the ids of their leases."""
        return frozenset(leases.lease_id for leases in self.each())

    def counts(self) -> dict[str, int]:
        """Return what `Leases.counts` does, in all."""
        total = dict.fromkeys(("granted", "holds", "reads"), 0)
        for leases in self.each():
            for what, count in leases.counts().items():
                total[what] += count
        return total

    def tick(self) -> None:
        """Do what is due, for each of them."""
        for leases in self.each():
            leases.tick()

    def settle_soon(self, collection: str) -> None:
        """Do what `Leases.settle_soon` does, for each of them."""
        for leases in self.each():
            leases.settle_soon(collection)

    def close(self) -> None:
        """End all these leases. Cost: a commit for each."""
        for leases in self.each():
            leases.close()
