"""Upkeep of a location by a client: garbage, examinations, upgrades, and the policy that all clients share."""

from collections.abc import Iterable

from persist.core.log.fields import Policy
from persist.engine.location.engine import Engine
from persist.engine.location.opening import UpgradeReport, set_policy, upgrade
from persist.engine.upkeep import Deleted, GarbageReport
from persist.services.fsck import FsckReport, examine


class UpkeepCalls:
    """The part of `Client` for the upkeep of the location."""

    engine: Engine

    def gc(self, *, dry_run: bool = False) -> GarbageReport:
        """Delete unused blobs. Safe while other clients read, write and collect.

        Args:
            dry_run: delete nothing, and return an estimate of what would be deleted.

        Raises:
            Unavailable: the store did not answer; what was not deleted stays for the next time.
        """
        return self.engine.writer("gc").collect_garbage(dry_run=dry_run)

    def fsck(
        self, *, repair: bool = False, dry_run: bool = False, set_aside: bool = False, deep: bool = True
    ) -> FsckReport:
        """Examine the whole location. `persist.fsck` also works if opening fails.

        Raises:
            Unavailable: the store did not answer, so the examination is incomplete.
        """
        self.engine.check_open("fsck")
        if repair and not dry_run:
            self.engine.writer("fsck with repair")

        def collect(keys: Iterable[str]) -> Deleted:
            return self.engine.writer("fsck with repair").garbage.delete_leaked(keys)

        storage, settings, clock = self.engine.storage, self.engine.settings, self.engine.clock
        # Around the cache, which may hold what the store has lost.
        how = {"repair": repair, "dry_run": dry_run, "set_aside": set_aside, "deep": deep}
        return examine(storage.retried, settings, clock, collect, **how)

    def upgrade(self, *, dry_run: bool = False) -> UpgradeReport:
        """Raise the location's format number to this release's newest.

        A location keeps its number while newer releases work on it, beside older ones. After this, releases that do not
        know the new number stop with IncompatibleVersion. Cost: one commit, or nothing if it has that number.

        Args:
            dry_run: change nothing, and return the effects that the call would have.

        Raises Locked: another client has the location exclusively.
        """
        return upgrade(self.engine, dry_run=dry_run)

    def maintain(self) -> None:
        """Do due background work: leases, compaction, garbage collection."""
        self.engine.writer("maintain").maintain()

    @property
    def policy(self) -> Policy:
        """The times and limits that all clients of the location share. Cost: one GET."""
        self.engine.check_open("policy")
        self.engine.follower.refresh()
        return self.engine.follower.policies.newest

    def set_policy(self, *, at_once: bool = False, **changes: int) -> Policy:
        """Change the times and limits that all clients of the location share; return the new policy.

        A longer time takes effect at once. A shorter `grace_s` or `log_retention_s` takes effect when the old time has
        passed since the change, because other clients count on it until then. A shorter `orphan_grace_s` is for uploads
        that begin from now on. A shorter `lease_s` is for leases that are granted or renewed from now on, and a shorter
        `clock_skew_s` for leases that are granted from now on. Clients of a release without policies stop with
        IncompatibleVersion. Cost: one commit.

        Args:
            at_once: let shorter times take effect now. For locations that no other client uses now.
            changes: names of `Policy` with their new values, such as `grace_s=7200`.

        Raises:
            InvalidUsage: a name is not known, or a value is not allowed.
            Locked: another client has the location exclusively.
        """
        return set_policy(self.engine, changes, at_once=at_once)
