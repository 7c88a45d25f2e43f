"""A client's claims: one lease per client, at most one durable hold per collection.

Every open read has a `Claim`: since must stay at or before its time. Holds cost commits, so the claims of one
collection share a durable hold at or before the least of them:

    claims of a collection   {5, 9, 9}      in memory
    its durable hold         3 <= 5         in the log, until the client's lease ends

A new claim at or after the hold costs nothing. A hold that is too far back, or that no claim needs, is moved or
released only after `hold_linger_s` without a new claim, because the next read probably needs it. With a constant flow
of claims it is moved every tenth of a lease. A hold is moved at once when this client allows compaction, closes an
explicit hold, or is closed. The lease is granted with the first hold, renewed every third of its duration while there
is a hold, and ended with the last hold.

Joint claims (`claim_all`), and all holds that are due to move, are one record for any number of collections. Claims of
several threads while the store is busy share the next record, like all commits.

The log decides whether a lease has expired: a client whose clock is past the expiry and the declared skew writes a
record. Until then it can be renewed, however late. A reader that finds its lease gone gets `LeaseExpired`. So a wrong
clock may cost a reader its lease, but never returns wrong rows: parts are immutable and verified.

Each grant names the seqno of the oldest state that an open read was planned on. Blobs that compaction left unused
before that need not be kept for this client, however long it lives.

Invariant: for every claim that was returned and neither released nor lost, the durable hold is at or before its time.
Finalizers release claims, and may run inside any other call of the same thread. So releases are queued, without a lock.
"""

import collections
import itertools
import logging
import threading
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field

from persist.blob.errors import StoreFull
from persist.blob.threads import Clock
from persist.core.errors import (
    ClientClosed,
    CollectionNotFound,
    Conflict,
    Indeterminate,
    InvalidUsage,
    LeaseExpired,
    PersistError,
)
from persist.core.log import kinds
from persist.core.log.fields import Policy
from persist.engine.follow.follower import Follower
from persist.engine.write.operations import Commit, Step

SEQNO_MAX = 2**63 - 1

logger = logging.getLogger(__name__)


class OwnLease:
    """This client's lease, as last known."""

    def __init__(self) -> None:
        self.id = uuid.uuid4().hex
        self.is_granted = False
        self.granted_at = -1  # In which record, which this client may not have read yet, if a server made it.
        self.is_doubtful = False  # Whether it may be in the log without an answer.
        self.is_lost = False
        self.expires_ms = 0
        self.lasts_s = 0.0  # From `renewed_s` on.
        self.renewed_s = 0.0
        self.lock = threading.Lock()


@dataclass
class _SharedHold:
    """The durable hold of one collection, shared by several claims.

    Attributes:
        durable: the confirmed time of the hold, or None. `in_log`: whether the log may have the hold.
        claims: for each claim by number, its time and the seqno of the oldest state that it may read.
        is_gone: the collection was destroyed, and its holds with it. Its blobs stay for the leases of its readers, so
            the claims keep the lease alive.
        moving: locked while the hold is being changed.
    """

    name: str
    hold: str
    lease: OwnLease
    durable: int | None = None
    in_log: bool = False
    is_gone: bool = False
    claims: dict[int, tuple[int, int]] = field(default_factory=dict)
    changed_s: float = 0.0
    moved_s: float = 0.0
    moving: threading.Lock = field(default_factory=threading.Lock)


class Claim:
    """A time that since must not pass while a read is open; without `leases` (read-only clients), it keeps nothing."""

    def __init__(
        self, leases: "Leases | None", collection: str, number: int = 0, lease: OwnLease | None = None
    ) -> None:
        self._leases = leases
        self._collection = collection
        self._number = number
        self._lease = lease

    def check(self) -> None:
        """Raise LeaseExpired if the claim is no longer kept. Cost: nothing, or a late renewal."""
        if self._leases is not None and self._lease is not None:
            self._leases._check_lease(self._lease)

    def move(self, time: int, *, has_planned: bool = False) -> None:
        """Move the claim to a later time. has_planned: the next read uses an earlier plan."""
        if self._leases is not None:
            # Reads from now on use this state or a later one.
            seqno = 0 if has_planned else self._leases._follower.state.seqno
            self._leases._changes.append((self._collection, self._number, (time, seqno)))

    def release(self) -> None:
        """Let since advance, soon; idempotent, and safe to call from a finalizer."""
        if self._leases is not None:
            self._leases._changes.append((self._collection, self._number, None))


@dataclass(frozen=True, slots=True)
class WantedClaim:
    """A requested claim: keep the since of a collection at or before a time; errors show the name."""

    collection: str
    name: str
    time: int


class Leases:
    """The claims of one client, or of one consumer in it. All methods may be called from any thread."""

    def __init__(
        self,
        follower: Follower,
        commit: Commit,
        check_may_wait: Callable[[], object],
        clock: Clock,
        hold_linger_s: float,
        holder: str,
        consumer: str = "",
    ) -> None:
        """Begin without claims.

        Args:
            hold_linger_s: see `Tuning.hold_linger_s`.
            holder: this client's name for people.
            consumer: the name of the consumer whose claims these are, if any. Its lease ends its earlier leases.
        """
        self._consumer = consumer
        self._follower = follower
        self._commit = commit
        self.check_may_wait = check_may_wait  # Before each lock that is kept while a commit is waited for.
        self._clock = clock
        self._hold_linger_s = hold_linger_s
        self._holder = holder
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._lease = OwnLease()
        self._held: dict[str, _SharedHold] = {}
        self._changes: collections.deque[tuple[str, int, tuple[int, int] | None]] = collections.deque()
        self._is_closed = False

    @property
    def _policy(self) -> Policy:
        """The newest policy of the location."""
        return self._follower.policies.newest

    def counts(self) -> dict[str, int]:
        """Return how many leases this client has (one or none), its holds, and the reads in progress."""
        with self._lock:
            self._process_queue()
            shared_holds = self._held.values()
            return {
                "granted": int(self._lease.is_granted),
                "holds": sum(hold.in_log for hold in shared_holds),
                "reads": sum(len(hold.claims) for hold in shared_holds),
            }

    def claim(self, collection: str, name: str, time: int, *, reads: bool = True) -> Claim:
        """Return a claim once it is durable; see `claim_all`."""
        return self.claim_all([WantedClaim(collection, name, time)], reads=reads)[0]

    def claim_all(self, requests: Sequence[WantedClaim], *, reads: bool = True) -> list[Claim]:
        """Return a claim for each request, once all are durable. Cost: nothing, or one commit for all.

        Args:
            requests: collections, each once.
            reads: whether parts of the present state will be read; otherwise only since is kept.

        Raises:
            AsOfCompacted: since has passed one of the times; a note names the collection.
            CollectionNotFound: a collection was destroyed.
            Unavailable, Indeterminate: the commit failed.
        """
        return self._commit_claims(requests, self._follower.state.seqno if reads else SEQNO_MAX)[0]

    def claim_unseen(self, request: WantedClaim) -> Claim | None:
        """Commit a claim without a refresh before it; its record shows the newest state.

        Return None if the claim needs no commit, or if its record was not read; then refresh, and use `claim_all`.

        Raises: as `claim_all`.
        """
        (claim,), seqno = self._commit_claims([request], self._follower.state.seqno)
        if 0 <= seqno <= self._follower.state.seqno:
            return claim
        claim.release()
        return None

    def _commit_claims(self, requests: Sequence[WantedClaim], reads_from: int) -> tuple[list[Claim], int]:
        """Make claims; return them, and their record's seqno or -1. `reads_from`: the oldest state to read."""
        while True:
            lease, claims, uncovered = self._note_claims(requests, reads_from)
            try:
                if uncovered:
                    self.check_may_wait()
                seqno = self._move_holds(uncovered, eager=False)
            except LeaseExpired:
                self._forget_lost(lease)
            except BaseException:
                for claim in claims:
                    claim.release()
                raise
            if not lease.is_lost:  # Or else: nothing relied on it yet, so begin another one.
                return claims, seqno

    def _note_claims(
        self, requests: Sequence[WantedClaim], reads_from: int
    ) -> tuple[OwnLease, list[Claim], dict[str, _SharedHold]]:
        """Note claims in memory; return their lease, the claims, and the holds that must move back for them."""
        claims: list[Claim] = []
        uncovered: dict[str, _SharedHold] = {}
        with self._lock:
            self._process_queue()
            lease, now_s = self._get_live_lease(), self._clock.monotonic_s()
            for want in requests:
                shared_hold = self._held.get(want.collection)
                if shared_hold is None:
                    shared_hold = self._held[want.collection] = _SharedHold(
                        want.name, uuid.uuid4().hex, lease, moved_s=now_s
                    )
                number = next(self._numbers)
                shared_hold.claims[number] = (want.time, reads_from)
                shared_hold.changed_s = now_s
                claims.append(Claim(self, want.collection, number, lease))
                if shared_hold.durable is None or shared_hold.durable > want.time:
                    uncovered[want.collection] = shared_hold
        return lease, claims, uncovered

    def settle(self, collection: str) -> None:
        """Move the durable hold of a collection to its least claim. Cost: nothing, or a commit."""
        with self._lock:
            shared_hold = self._held.get(collection)
        if shared_hold is not None:
            self.check_may_wait()
            self._move_holds({collection: shared_hold}, eager=True)

    def settle_soon(self, collection: str) -> None:
        """Like `settle`, without waiting, before this client's next request."""
        with self._lock:
            shared_hold = self._held.get(collection)
        if shared_hold is None or not shared_hold.moving.acquire(blocking=False):
            return
        steps = self._plan_hold_steps(collection, shared_hold, eager=True)
        if not steps:
            shared_hold.moving.release()
            return

        def settled(future: Future[int]) -> None:
            try:
                error = future.exception()
                self._note_lease_start(shared_hold.lease, begins, future)
                self._note_hold_result(collection, shared_hold, steps, error)
            finally:
                shared_hold.moving.release()

        begins = self._list_beginning_steps(shared_hold.lease, steps)
        self._commit([*begins, *steps], {collection: shared_hold.name}).add_done_callback(settled)

    def tick(self) -> None:
        """Do the due work: release lingering holds, renew the lease or end it."""
        self.check_may_wait()
        now_s = self._clock.monotonic_s()
        with self._lock:
            self._process_queue()
            due = {
                collection: shared_hold
                for collection, shared_hold in self._held.items()
                if now_s - shared_hold.changed_s >= self._hold_linger_s
                or now_s - shared_hold.moved_s >= self._policy.lease_s / 10
            }
        self._move_holds(due, eager=True)
        lease = self._lease
        if lease.is_granted or lease.is_doubtful:
            if self._end_unused_lease(lease):
                return
            if lease.is_granted and now_s - lease.renewed_s >= min(lease.lasts_s, self._policy.lease_s) / 3:
                self._renew_lease(lease)

    @property
    def lease_id(self) -> str:
        """The id of the lease of these claims, present or next."""
        return self._lease.id

    def end_expired(self, spared: Collection[str] = ()) -> None:
        """End others' leases, except `spared` ones, that have expired by this client's clock and the declared skew."""
        leases = self._follower.refresh().control.leases
        limit_ms = self._clock.wall_ms() - int(self._policy.clock_skew_s * 1000)
        renewed_ids = {self._lease.id, *spared}  # However late, they are renewed rather than ended.
        expired = [
            kinds.EndLease(i, le.expires_ms)
            for i, le in leases.items()
            if i not in renewed_ids and le.expires_ms < limit_ms
        ]
        futures = [self._commit([step], {}) for step in expired]
        errors = [future.exception() for future in futures]  # For all of them: close raises unseen errors.
        for error in errors:
            # After a conflict, it was renewed in the last moment.
            if error is not None and not isinstance(error, Conflict):
                raise error

    def close(self) -> None:
        """End the lease, and with it all holds. Cost: a commit, if there is a lease."""
        lease = self._lease
        with self._lock:
            self._is_closed = True
            self._held = {}
            self._lease = OwnLease()
        if (lease.is_granted or lease.is_doubtful) and not lease.is_lost:
            try:
                self._commit([kinds.EndLease(lease.id)], {}).result()
            except PersistError as error:
                logger.warning("a lease was not given back, and lasts until it expires: %s", error)

    def _check_lease(self, lease: OwnLease) -> None:
        """Raise LeaseExpired if the lease is over or cannot be renewed."""
        if self._is_closed:
            raise ClientClosed("reading")
        if lease.is_lost or self._has_ended(lease):
            self._forget_lost(lease)
            name = self._consumer.partition("/")[2]
            why = f"another one follows as {name!r} now, or its lease ran out" if name else "its lease has ended"
            raise LeaseExpired(f"the data of this read may have been compacted or deleted: {why}")
        if self._is_overdue(lease):
            with suppress(StoreFull):  # Then it goes on as a read without a lease does, until there is room.
                self._renew_lease(lease)

    def _is_overdue(self, lease: OwnLease) -> bool:
        """Return whether the lease has expired by either clock of this client."""
        late_s = self._clock.monotonic_s() - lease.renewed_s
        return late_s >= lease.lasts_s or self._clock.wall_ms() >= lease.expires_ms

    def _renew_lease(self, lease: OwnLease) -> None:
        """Renew the lease by a commit; a later tick retries failures."""
        began_s = self._clock.monotonic_s()
        self.check_may_wait()
        with lease.lock:
            if lease.renewed_s > began_s:
                return  # Another thread did, meanwhile.
            with self._lock:
                self._process_queue()
                grant = self._make_grant(lease, renews=True)
            try:
                self._commit([grant], {}).result()
            except LeaseExpired:
                self._forget_lost(lease)
                raise
            self._note_grant(lease, grant)

    def _note_grant(self, lease: OwnLease, grant: kinds.GrantLease) -> None:
        """Note the expiry of the lease from a grant in the log, because the policy may have changed."""
        lease.expires_ms, lease.renewed_s = grant.expires_ms, self._clock.monotonic_s()
        lease.lasts_s = (grant.expires_ms - self._clock.wall_ms()) / 1000

    def _end_unused_lease(self, lease: OwnLease) -> bool:
        """End the lease if it has no claim and no read; return whether it ended."""
        with self._lock:
            if self._held or self._lease is not lease:
                return False
            self._lease = OwnLease()  # From here on no thread takes a hold with the old one.
        self._commit([kinds.EndLease(lease.id)], {}).result()
        return True

    def _get_live_lease(self) -> OwnLease:
        """Return the present lease, or a new one if that has ended."""
        if self._lease.is_lost or (self._lease.is_granted and self._has_ended(self._lease)):
            self._forget_lease(self._lease)
        return self._lease

    def _has_ended(self, lease: OwnLease) -> bool:
        """Return whether the known log ends the lease."""
        state = self._follower.state
        return state.seqno >= lease.granted_at and lease.id not in state.control.leases

    def _forget_lost(self, lease: OwnLease) -> None:
        """Forget a lost lease and its holds; takes the lock."""
        with self._lock:
            self._forget_lease(lease)

    def _forget_lease(self, lease: OwnLease) -> None:
        """Mark a lease as lost, and forget its holds; the caller has the lock."""
        lease.is_lost = True
        if self._lease is lease:
            self._lease = OwnLease()
            self._held = {}

    def _make_grant(self, lease: OwnLease, *, renews: bool) -> kinds.GrantLease:
        """Return the step that grants or renews the lease; the caller has the lock."""
        expires_ms = self._clock.wall_ms() + int(self._policy.lease_s * 1000)
        open_reads = [seqno for shared_hold in self._held.values() for _, seqno in shared_hold.claims.values()]
        reads_from = min([*open_reads, self._follower.state.seqno])
        return kinds.GrantLease(lease.id, self._holder, expires_ms, renews, reads_from, self._consumer)

    def _move_holds(self, holds: Mapping[str, _SharedHold], *, eager: bool) -> int:
        """Commit the steps of `_plan_hold_steps` for holds, in one record; a refused hold does not affect the others.

        Return the seqno of the record; -1 if there was nothing to commit.
        """
        with ExitStack() as moving:
            for collection in sorted(holds):  # In an order that all threads keep, so that none waits for another.
                moving.enter_context(holds[collection].moving)
            planned = {
                collection: self._plan_hold_steps(collection, shared_hold, eager=eager)
                for collection, shared_hold in holds.items()
            }
            errors, seqno = self._commit_together(holds, {id_: steps for id_, steps in planned.items() if steps})
            for collection, error in errors.items():
                shared_hold = holds[collection]
                if shared_hold.claims and not (eager and shared_hold.is_gone):
                    error.add_note(f"This is about the collection {shared_hold.name!r}.")
                    raise error
        return seqno

    def _commit_together(
        self, holds: Mapping[str, _SharedHold], planned: Mapping[str, list[Step]]
    ) -> tuple[dict[str, BaseException], int]:
        """Commit the steps of each collection, in one record if possible, and note the results.

        Return the errors by collection, and the seqno of the record; -1 unless all steps are in one.
        """
        if not planned:
            return {}, -1
        (together,) = self._submit_groups(holds, planned, [[*planned]])
        error = together.exception()
        errors = dict.fromkeys(planned, error)
        if len(planned) > 1 and isinstance(error, InvalidUsage | Conflict) and not isinstance(error, LeaseExpired):
            # One of them was refused, and all with it: now each by itself, which is one record again.
            alone = self._submit_groups(holds, planned, [[collection] for collection in planned])
            errors = {collection: future.exception() for collection, future in zip(planned, alone, strict=True)}
        for collection, error in errors.items():
            self._note_hold_result(collection, holds[collection], planned[collection], error)
        failed = {collection: error for collection, error in errors.items() if error is not None}
        return failed, -1 if together.exception() is not None else together.result()

    def _submit_groups(
        self, holds: Mapping[str, _SharedHold], planned: Mapping[str, list[Step]], groups: Sequence[Sequence[str]]
    ) -> list[Future[int]]:
        """Submit each group of collections as one commit; return the result for each collection."""
        lease = next(iter(holds.values())).lease
        begins = self._list_beginning_steps(lease, [step for steps in planned.values() for step in steps])
        alone = self._commit(begins, {}) if begins and len(groups) > 1 else None
        futures: list[Future[int]] = []
        for group in groups:
            steps = [*(begins if alone is None else []), *(step for id_ in group for step in planned[id_])]
            futures.append(self._commit(steps, {id_: holds[id_].name for id_ in group}))
        self._note_lease_start(lease, begins, futures[0] if alone is None else alone)
        return futures

    def _plan_hold_steps(self, collection: str, shared_hold: _SharedHold, *, eager: bool) -> list[Step]:
        """Return the steps that move the hold to the least claim; without eager, only to an earlier time.

        From here on no new claim relies on the old time of the hold.
        """
        with self._lock:
            self._process_queue()
            least_time = min((time for time, _ in shared_hold.claims.values()), default=None)
            if least_time is None:
                if not eager:
                    return []
                shared_hold.durable = None
                if shared_hold.in_log and not shared_hold.lease.is_lost:
                    return [kinds.ReleaseHold(collection, shared_hold.hold)]
                self._drop_hold(collection, shared_hold)
                return []
            durable = shared_hold.durable
            is_enough = durable is not None and (durable == least_time if eager else durable <= least_time)
            if shared_hold.lease.is_lost or shared_hold.is_gone or is_enough:
                return []
            shared_hold.durable = None
            shared_hold.in_log = True
            return [kinds.SetHold(collection, shared_hold.hold, least_time, shared_hold.lease.id)]

    def _list_beginning_steps(self, lease: OwnLease, steps: Sequence[Step]) -> list[Step]:
        """Return the steps that begin the lease, if it is needed and not begun."""
        if lease.is_granted or not any(isinstance(step, kinds.SetHold) for step in steps):
            return []
        with self._lock:
            return [*self._list_predecessor_ends(lease), self._make_grant(lease, renews=False)]

    def _list_predecessor_ends(self, lease: OwnLease) -> list[Step]:
        """Return the steps that end earlier leases of this consumer's name."""
        if not self._consumer:
            return []
        leases = self._follower.state.control.leases
        return [
            kinds.EndLease(id_)
            for id_, other_lease in leases.items()
            if other_lease.consumer == self._consumer and id_ != lease.id
        ]

    def _note_lease_start(self, lease: OwnLease, steps: Sequence[Step], grant: Future[int]) -> None:
        """Note whether the log accepted the steps that begin the lease."""
        error = grant.exception()
        with self._lock:
            for step in steps:
                if isinstance(step, kinds.GrantLease) and error is None:
                    lease.is_granted, lease.granted_at = True, grant.result()
                    self._note_grant(lease, step)
                elif isinstance(error, Indeterminate):
                    lease.is_doubtful = True

    def _note_hold_result(
        self, collection: str, shared_hold: _SharedHold, steps: list[Step], error: BaseException | None
    ) -> None:
        """Note whether the log accepted the steps of a shared hold."""
        with self._lock:
            if isinstance(error, CollectionNotFound):
                shared_hold.is_gone, shared_hold.in_log = True, False
                if not shared_hold.claims:
                    self._drop_hold(collection, shared_hold)
            if error is not None:
                return
            for step in steps:
                if isinstance(step, kinds.SetHold):
                    shared_hold.durable, shared_hold.moved_s = step.time, self._clock.monotonic_s()
                elif not shared_hold.claims:  # It was released.
                    self._drop_hold(collection, shared_hold)

    def _drop_hold(self, collection: str, shared_hold: _SharedHold) -> None:
        """Forget the shared hold of a collection, unless another one replaced it."""
        if self._held.get(collection) is shared_hold:
            del self._held[collection]

    def _process_queue(self) -> None:
        """Process the queued changes of claims; the caller has the lock."""
        while self._changes:
            collection, number, moved = self._changes.popleft()
            shared_hold = self._held.get(collection)
            if shared_hold is None or number not in shared_hold.claims:
                continue
            if moved is None:
                del shared_hold.claims[number]
            else:
                shared_hold.claims[number] = (moved[0], max(moved[1], shared_hold.claims[number][1]))


def make_empty_claim(collection: str) -> Claim:
    """Return the claim of a read-only client, which keeps nothing."""
    return Claim(None, collection)
