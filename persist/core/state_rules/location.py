"""What the log says of a location itself: who may write, who reads, and what waits to be deleted.

Like the collections, this is a pure function of the log. Invariants:

- `epoch` is the seqno of the newest exclusive opening; while `writer` is set, only its records may change contents,
  and after it is gone, records of clients that opened exclusively before stay refused;
- the holds that live by a lease are noted with their collections (`CollectionEntry.leased`), not here;
- of a collection that was destroyed, and of blobs that a compaction left unused, `dropped` says since when, and which
  leases with holds on the collection lived then: the blobs are deleted when a grace period has passed and each of those
  leases is gone, or says that its holder reads from later states only. What another collection names stays: a clone,
  what it was cloned from, or another clone of that;
- before `erased`, the log may hold data that compaction has destroyed since;
- `erasures` are the records that erased something, as (seqno, collection). Of those not beyond `log_floor`, only the
  last is kept;
- `policies` are set by the first record that sets a policy; until then the location has the defaults;
- `about` says of the location what people gave it to say;
- the floors never go back. Below `log_floor` the log is not read any more. A blob whose name begins with a seqno below
  `upload_floor` and to which nothing refers will never be referred to, because `check_uploaded` refuses it: so it may
  be deleted however slow its writer is, and whatever anybody's clock says;
- `taken_over` says of what checkpoints are made from its seqno on: of that one checkpoint, or of one from that seqno
  on. It only moves to what the same rule allows, so what it said of checkpoints stays true when it moves.
"""

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from persist.core.errors import Conflict, LeaseExpired, Locked, UploadExpired, WriterFenced
from persist.core.log import kinds
from persist.core.log.fields import Policy
from persist.core.log.framing import BlobRef
from persist.core.log.keys import check_keys, checkpoint_seqno, uploaded_seqno
from persist.core.log.kinds import BringsParts, LeavesUnused, Mutation
from persist.core.names import check_holder, is_id
from persist.core.state_rules.annotations import About, described
from persist.core.state_rules.collection_rules import Condition
from persist.core.state_rules.policies import Policies

CONSUMER_CHARS_MAX = 600  # The id of a collection, and the name of a hold.


class ExclusiveWriter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who has the location exclusively."""

    reentrance_id: str
    holder: str


class Lease(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A reader that is alive, or was until not long ago.

    It reads from the state at seqno reads_from, and later ones. It may be the lease of one consumer alone.
    """

    holder: str
    expires_ms: int
    reads_from: int = 0
    consumer: str = ""


class Dropped(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was given up at seqno, and the leases of those who read the collection then.

    The blobs named, which compaction left unused, or all of the collection if none are: it was destroyed. Blobs of a
    clone may lie in the folders of other collections, too.
    """

    seqno: int
    written_ms: int
    collection: str
    leases: tuple[str, ...] = ()
    blobs: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()

    @property
    def is_destroyed(self) -> bool:
        return not self.blobs


class TakenOver(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of what checkpoints at seqno and later are made: of this one, or of one at seqno or later."""

    seqno: int
    checkpoint: BlobRef

    def allows(self, checkpoint: BlobRef) -> bool:
        """Whether a checkpoint at `seqno` or later may be made of this one."""
        return checkpoint == self.checkpoint or (checkpoint_seqno(checkpoint.blob) or 0) >= self.seqno


class LocationState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """See the module's docstring. An epoch of None means that nobody has ever opened exclusively."""

    epoch: int | None = None
    writer: ExclusiveWriter | None = None
    leases: dict[str, Lease] = {}
    dropped: tuple[Dropped, ...] = ()
    log_floor: int = 0
    upload_floor: int = 0
    erased: int = 0
    about: About = About()
    taken_over: TakenOver | None = None
    erasures: tuple[tuple[int, str], ...] = ()
    policies: Policies | msgspec.UnsetType = msgspec.UNSET

    def destroyed_before(self, floor: int) -> int:
        """Return the seqno from which on nothing holds what was destroyed at or before a floor of the log."""
        return max((seqno for seqno in (self.erased, *(at for at, _ in self.erasures)) if seqno <= floor), default=0)


def check_uploaded(control: LocationState, append: BringsParts) -> None:
    """Check that everything that append brings lies where the collection's blobs lie, and cannot have been deleted.

    Raises:
        UploadExpired: it was uploaded before the floor, or was part of the collection before and waits to be deleted.
        ValueError: a name is not one that a writer would make.
    """
    keys = check_keys(append)
    ours = (entry.blobs for entry in control.dropped if append.collection in (entry.collection, *entry.folders))
    dropped = {key for blobs in ours for key in blobs} if keys else set()
    for key in keys:
        if (uploaded_seqno(key) or 0) < control.upload_floor or key in dropped:
            raise UploadExpired(key)


def check_writer(
    writer: ExclusiveWriter | None, newest: int | None, epoch: int | None, steps: Iterable[object]
) -> None:
    """Check that a client of that epoch may commit mutations, or what stands for them (rule 12).

    Args:
        writer, newest: who has the location exclusively, and the epoch of who had it last; None if nobody ever did.
        epoch: the client's, None if it did not open exclusively.

    Raises:
        Locked: it is not an exclusive one, and another client is.
        WriterFenced: it is one, and not the newest.
    """
    may_write = epoch is None if writer is None else epoch == newest
    if may_write or all(
        isinstance(step, Condition) or (isinstance(step, Mutation) and not step.is_guarded) for step in steps
    ):
        return
    if epoch is not None:
        raise WriterFenced(epoch, epoch if newest is None else newest)
    assert writer is not None
    raise Locked(writer.holder)


def _granted(control: LocationState, mutation: kinds.GrantLease, _: int) -> LocationState:
    """Return control after a lease was granted or renewed; what its holder reads from never goes back."""
    check_holder(mutation.holder)
    if not is_id(mutation.lease):
        raise ValueError(f"{mutation.lease[:200]!r} is not the id of a lease")
    if mutation.consumer and not (len(mutation.consumer) <= CONSUMER_CHARS_MAX and mutation.consumer.isprintable()):
        raise ValueError(f"{mutation.consumer[:200]!r} is not the name of a consumer")
    known = control.leases.get(mutation.lease)
    if known is None and mutation.renews:
        raise LeaseExpired("the lease has ended and cannot be renewed: since may have moved on")
    reads_from = mutation.reads_from if known is None else max(known.reads_from, mutation.reads_from)
    lease = Lease(mutation.holder, mutation.expires_ms, reads_from, mutation.consumer)
    return msgspec.structs.replace(control, leases={**control.leases, mutation.lease: lease})


def _ended(control: LocationState, mutation: kinds.EndLease, _: int) -> LocationState:
    """Return control after the end of a lease, which may have ended before; it may have been renewed since it was seen.

    Holds that end with it are the caller's concern.
    """
    lease = control.leases.get(mutation.lease)
    if lease is None:
        return control
    if mutation.expires_ms not in (None, lease.expires_ms):
        raise Conflict(f"the lease {mutation.lease} of {lease.holder} was renewed, so it has not expired")
    others = {id_: other for id_, other in control.leases.items() if id_ != mutation.lease}
    return msgspec.structs.replace(control, leases=others)


def _opened(control: LocationState, mutation: kinds.OpenWriter, seqno: int) -> LocationState:
    check_holder(mutation.holder)
    before = control.writer
    if before is not None and before.reentrance_id != mutation.reentrance_id and not mutation.force:
        raise Locked(before.holder)
    writer = ExclusiveWriter(mutation.reentrance_id, mutation.holder)
    return msgspec.structs.replace(control, epoch=seqno, writer=writer)


def _closed(control: LocationState, _: kinds.CloseWriter, __: int) -> LocationState:
    return msgspec.structs.replace(control, writer=None)


def _truncated(control: LocationState, mutation: kinds.TruncateLog, seqno: int) -> LocationState:
    floor = max(control.log_floor, min(mutation.floor, seqno))
    passed = [erasure for erasure in control.erasures if erasure[0] <= floor]
    erasures = (*passed[-1:], *control.erasures[len(passed) :])
    return msgspec.structs.replace(control, log_floor=floor, erasures=erasures)


def _voided(control: LocationState, mutation: kinds.VoidUploads, seqno: int) -> LocationState:
    return msgspec.structs.replace(control, upload_floor=max(control.upload_floor, min(mutation.floor, seqno + 1)))


def _taken_over(control: LocationState, mutation: kinds.TakeOver, seqno: int) -> LocationState:
    """Return control after a `TakeOver`, which changes nothing if another one has come first that does not allow it.

    Raises:
        ValueError: it names no checkpoint before its own record.
    """
    checkpoint = mutation.checkpoint
    of = checkpoint_seqno(checkpoint.blob)
    if of is None or of >= seqno:
        raise ValueError(f"{checkpoint.blob[:200]!r} is not the name of a checkpoint before seqno {seqno}")
    if control.taken_over is not None and not control.taken_over.allows(checkpoint):
        return control
    return msgspec.structs.replace(control, taken_over=TakenOver(seqno, checkpoint))


def _collected(control: LocationState, mutation: kinds.Collected, _: int) -> LocationState:
    gone = set(mutation.dropped)
    kept = tuple(dropped for dropped in control.dropped if (dropped.collection, dropped.seqno) not in gone)
    return msgspec.structs.replace(control, dropped=kept)


def _described(control: LocationState, mutation: kinds.DescribeLocation, _: int) -> LocationState:
    return msgspec.structs.replace(control, about=described(control.about, mutation.words, {}, mutation.version))


def _policy_set(control: LocationState, mutation: kinds.SetPolicy, seqno: int) -> LocationState:
    """Return control after a change of the policy: nobody ends a lease sooner than its holder counts on."""
    policies = control.policies or Policies(Policy())
    sooner_ms = 1000 * (policies.newest.clock_skew_s - mutation.policy.clock_skew_s)
    leases = control.leases
    if sooner_ms > 0 and not mutation.at_once:
        leases = {
            id_: msgspec.structs.replace(lease, expires_ms=lease.expires_ms + sooner_ms)
            for id_, lease in leases.items()
        }
    policies = policies.replaced(mutation.policy, seqno, at_once=mutation.at_once)
    return msgspec.structs.replace(control, policies=policies, leases=leases)


# What each kind of the location does in the record at a seqno. A rule raises Conflict if another client came first.
LOCATION_RULES: dict[type, Callable[[LocationState, Any, int], LocationState]] = {
    kinds.GrantLease: _granted,
    kinds.EndLease: _ended,
    kinds.OpenWriter: _opened,
    kinds.CloseWriter: _closed,
    kinds.TruncateLog: _truncated,
    kinds.VoidUploads: _voided,
    kinds.TakeOver: _taken_over,
    kinds.Collected: _collected,
    kinds.DescribeLocation: _described,
    kinds.SetPolicy: _policy_set,
    kinds.Upgrade: lambda control, mutation, seqno: control,  # What it raises is the number of the record itself.
}


def with_destroyed(
    control: LocationState,
    collection: str,
    readers: tuple[str, ...],
    folders: tuple[str, ...],
    seqno: int,
    written_ms: int,
) -> LocationState:
    """Return control after a collection was destroyed: its blobs wait for the leases of those who read it."""
    dropped = Dropped(seqno, written_ms, collection, readers, folders=folders)
    return msgspec.structs.replace(control, dropped=(*control.dropped, dropped))


def with_unused(
    control: LocationState,
    mutation: LeavesUnused,
    readers: tuple[str, ...],
    folders: tuple[str, ...],
    seqno: int,
    written_ms: int,
) -> LocationState:
    """Return control after a mutation: the blobs that it left unused wait for the leases of their readers."""
    is_kept = not isinstance(mutation, kinds.Replace) or mutation.history_from is None
    erased = control.erased if is_kept else seqno
    dropped = control.dropped
    if mutation.unused:
        dropped = (*dropped, Dropped(seqno, written_ms, mutation.collection, readers, mutation.unused, folders))
    erasures = control.erasures
    if isinstance(mutation, kinds.Erase):
        erasures = (*erasures, (seqno, mutation.collection))
    return msgspec.structs.replace(control, dropped=dropped, erased=erased, erasures=erasures)


def is_waited_for(control: LocationState, dropped: Dropped) -> bool:
    """Tell whether somebody with a lease may still read what was dropped."""
    return any(control.leases[id_].reads_from < dropped.seqno for id_ in dropped.leases if id_ in control.leases)
