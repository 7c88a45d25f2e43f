"""The policy of a location, and those before it on whose longer times somebody may still count.

    record 40    grace_s 3600 -> 60      a reader that planned before record 40 counts on 3600 s

A longer time holds from its record on. That needs no wait: who does not know the record yet only deletes what was
dropped, uploaded or written before it, and those who planned before it count on no more than the time before.

A shorter time takes effect when the longer one has passed since its record: by then, what anybody began before the
record has had all the time that it counts on. The collector of garbage measures that by the store's own dates, like all
ages. It does not measure longer than the log reaches back. The log loses a record only after `grace_s` in force, so
this has passed by then; and nobody counts on `log_retention_s` of records before those that are gone. Two exceptions: a
policy in the first record of a location, which nobody has read before, and one that is declared to hold at once, by
somebody who knows that nobody else uses the location.

An upload says in its name which records its writer knew. So `orphan_grace_s` is the longest of those policies that the
writer may have known as the newest one.

A lease says in the log when it expires, so a shorter `lease_s` concerns the next grant. Whoever ends a lease waits for
`clock_skew_s` after that. So a shorter one moves the expiry of the present leases by the difference.
"""

from collections.abc import Callable

import msgspec

from persist.core.log.fields import Policy, Seqno

BEFORE_MAX = 8  # Policies before the present one. Of more, the two oldest become one with the longer times.
AGES = ("grace_s", "log_retention_s")  # What records are measured by.


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

    def in_force(self, log_floor: int, is_old: Callable[[int, float], bool]) -> Policy:
        """Return the policy by which something may be deleted now, but for uploads.

        Args:
            log_floor: the first record of the log.
            is_old: whether the record at a seqno is certainly at least so many seconds old.
        """
        times = {name: getattr(self.newest, name) for name in AGES}
        for seqno, policy in self.before:
            for name, time_s in times.items():
                longer_s = getattr(policy, name)
                if longer_s > time_s and seqno >= log_floor and not is_old(seqno, longer_s):
                    times[name] = longer_s
        return msgspec.structs.replace(self.newest, **times)

    def orphan_grace_s(self, seqno: int) -> int:
        """Return how long an upload may take that began when seqno was next."""
        before = (policy.orphan_grace_s for replaced_at, policy in self.before if seqno <= replaced_at)
        return max(self.newest.orphan_grace_s, *before, 0)


def _longer(first: Policy, second: Policy) -> Policy:
    times = (*AGES, "orphan_grace_s")
    return msgspec.structs.replace(second, **{name: max(getattr(first, name), getattr(second, name)) for name in times})
