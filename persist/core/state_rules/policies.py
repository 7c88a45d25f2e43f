"""The policy of a location, and earlier policies with longer times that clients may still rely on.

    record 40    grace_s 3600 -> 60      a reader that planned before record 40 relies on 3600 s

A longer time applies from its record on, at once. A client that has not read the record yet deletes only blobs that
were dropped or uploaded before it. A reader that planned before it relies on the earlier time only.

A shorter time takes effect when the longer one has passed since its record. By then, all work that began before the
record has had the time that it relies on. Garbage collection measures this by the store's dates, as far back as the log
reaches. The log loses a record only after the `grace_s` in force, so that time has passed by then. Nor can a follower
from before a lost record rely on `log_retention_s`. There are two exceptions: the policy in the first record of a
location takes effect at once, as does a policy that is set with `at_once` for an unused location.

The name of an upload shows which records its writer had read. So its `orphan_grace_s` is the longest among the policies
that may have been the newest for that writer.

The log has the expiry of each lease, so a shorter `lease_s` concerns later grants. Other clients end a lease only
`clock_skew_s` after its expiry. So a shorter skew moves the expiry of the present leases by the difference.
"""

from collections.abc import Callable

import msgspec

from persist.core.log.fields import Policy, Seqno

BEFORE_MAX = 8  # Earlier policies. If there are more, the two oldest become one with the longer times.
AGES = ("grace_s", "log_retention_s")  # The times that are measured by the ages of records.


class Policies(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The newest policy; earlier ones, oldest first, with their replacement's seqno."""

    newest: Policy
    before: tuple[tuple[Seqno, Policy], ...] = ()

    def with_policy(self, policy: Policy, seqno: int, *, at_once: bool) -> "Policies":
        """Return the policies after a record at `seqno` sets a new one."""
        if at_once or seqno == 0:
            return Policies(policy)
        earlier = (*self.before, (seqno, self.newest))
        if len(earlier) > BEFORE_MAX:
            (_, first), (end, second) = earlier[:2]
            earlier = ((end, _keep_longer_times(first, second)), *earlier[2:])
        return Policies(policy, earlier)

    def get_policy_in_force(self, log_floor: int, is_old: Callable[[int, float], bool]) -> Policy:
        """Return the policy by which blobs may be deleted now. Uploads: `get_orphan_grace_s`.

        Args:
            log_floor: the first record of the log.
            is_old: tests whether the record at a seqno is certainly at least so many seconds old.
        """
        times = {name: getattr(self.newest, name) for name in AGES}
        for seqno, policy in self.before:
            for name, time_s in times.items():
                longer_s = getattr(policy, name)
                if longer_s > time_s and seqno >= log_floor and not is_old(seqno, longer_s):
                    times[name] = longer_s
        return msgspec.structs.replace(self.newest, **times)

    def get_orphan_grace_s(self, seqno: int) -> int:
        """Return how many seconds an upload may take that began at `seqno`."""
        earlier = (policy.orphan_grace_s for replaced_at, policy in self.before if seqno <= replaced_at)
        return max(self.newest.orphan_grace_s, *earlier, 0)


def _keep_longer_times(first: Policy, second: Policy) -> Policy:
    """Return the second policy, with the longer of each pair of times."""
    times = (*AGES, "orphan_grace_s")
    return msgspec.structs.replace(second, **{name: max(getattr(first, name), getattr(second, name)) for name in times})
