"""The policy of a location, and those before it on whose longer times somebody may still count.

    record 40    grace_s 3600 -> 60      a reader that planned before record 40 counts on 3600 s

A longer time holds from its record on. That needs no wait: who does not know the record yet only deletes what was
dropped, uploaded or written before it, and those who planned before it count on no more than the time before.

A shorter time takes effect when the longer one has passed since its record: by then, what anybody began before the
record has had all the time that it counts on. The collector of garbage measures that by the store's own dates, like all
ages. Two exceptions: a policy in the first record of a location, which nobody has read before, and one that is declared
to hold at once, by somebody who knows that nobody else uses the location.

A lease says in the log when it expires, so a shorter `lease_s` concerns the next grant. Whoever ends a lease waits for
`clock_skew_s` after that. So a shorter one moves the expiry of the present leases by the difference.
"""

from collections.abc import Callable

import msgspec

from persist.core.log.fields import Policy, Seqno

BEFORE_MAX = 8  # Policies before the present one. Of more, the two oldest become one with the longer times.
AGES = ("grace_s", "orphan_grace_s", "log_retention_s")  # The times after which something is deleted.


class Policies(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The newest policy, and the ones before it, oldest first, each with the seqno of the record that replaced it."""

    newest: Policy
    before: tuple[tuple[Seqno, Policy], ...] = ()

    def replaced(self, policy: Policy, seqno: int, *, at_once: bool) -> "Policies":
        """Return the policies after a record."""
        if at_once or seqno == 0:
            return Policies(policy)
        before = (*self.before, (seqno, self.newest))
        if len(before) > BEFORE_MAX:
            (_, first), (end, second) = before[:2]
            before = ((end, _longer(first, second)), *before[2:])
        return Policies(policy, before)

    def in_force(self, is_old: Callable[[int, float], bool]) -> Policy:
        """Return the policy by which something may be deleted now.

        Args:
            is_old: whether the record at a seqno is certainly at least so many seconds old.
        """
        if not self.before:
            return self.newest
        times = {name: getattr(self.newest, name) for name in AGES}
        for seqno, policy in self.before:
            for name, time_s in times.items():
                longer_s = getattr(policy, name)
                if longer_s > time_s and not is_old(seqno, longer_s):
                    times[name] = longer_s
        return msgspec.structs.replace(self.newest, **times)


def _longer(first: Policy, second: Policy) -> Policy:
    return msgspec.structs.replace(second, **{name: max(getattr(first, name), getattr(second, name)) for name in AGES})
