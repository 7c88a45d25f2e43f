"""The state of a location itself: its writer, its readers, and the blobs that wait to be deleted.

Like the collections, this is a pure function of the log. Invariants:

- `epoch` is the seqno of the newest exclusive opening. While `writer` is set, only its records may change contents.
  After it has closed, records of earlier exclusive writers stay refused;
- leased holds are noted with their collections (`CollectionEntry.leased`), not here;
- `dropped` lists destroyed collections, and blobs that a compaction left unused: the seqno, and the leases with holds
  on the collection at the time. The blobs are deleted when a grace period has passed, and each of these leases has
  ended or reads later states only. Blobs that a clone, its source, or another clone names stay;
- before `erased`, the log may hold data that compaction has destroyed since;
- `erasures` lists erasures as (seqno, collection). Up to `log_floor`, only the last is kept;
- `policies` are set by the first record that sets a policy; until then the location has the defaults;
- `about` is the description of the location;
- the floors never go back. Below `log_floor` the log is not read. `check_uploaded`
  refuses a blob whose name begins with a seqno below `upload_floor`. So if nothing refers to it, it may be deleted,
  whatever its writer and all clocks do;
- `taken_over` names the basis of checkpoints from its seqno on: that checkpoint, or one from that seqno on. It only
  moves to a checkpoint that this rule allows, so the rule stays true for earlier ones.
"""

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from persist.core.errors import Conflict, LeaseExpired, Locked, UploadExpired, WriterFenced
from persist.core.log import kinds
from persist.core.log.fields import Policy
from persist.core.log.framing import BlobRef
from persist.core.log.keys import check_keys, parse_checkpoint_seqno, parse_upload_seqno
from persist.core.log.kinds import BringsParts, LeavesUnused, Mutation
from persist.core.names import check_holder, is_id
from persist.core.state_rules.annotations import About, apply_description
from persist.core.state_rules.collection_rules import Condition
from persist.core.state_rules.policies import Policies

CONSUMER_CHARS_MAX = 600  # The id of a collection, and the name of a hold.


class ExclusiveWriter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The client that has the location exclusively."""

    reentrance_id: str
    holder: str


class Lease(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The lease of a reader.

    The reader uses the states from the seqno `reads_from` on. `consumer`: the name of the only consumer that uses it.
    """

    holder: str
    expires_ms: int
    reads_from: int = 0
    consumer: str = ""


class Dropped(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Unused blobs of a collection, which leases of that time may read.

    Compaction left the listed blobs unused. An empty list means that the collection was destroyed, with all its blobs.
    Blobs of a clone may also be in the folders of other collections.
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
    """A declared basis of checkpoints, from a seqno on."""

    seqno: int
    checkpoint: BlobRef

    def allows(self, checkpoint: BlobRef) -> bool:
        """Return whether a checkpoint is this basis, or includes its declaration."""
        return checkpoint == self.checkpoint or (parse_checkpoint_seqno(checkpoint.blob) or 0) >= self.seqno


class LocationState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The location's leases, exclusive writer, policies and dropped blobs. `epoch`: None before any exclusive open."""

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

    def find_last_destroyed(self, floor: int) -> int:
        """Return the last seqno up to floor that destroyed data, or 0.

        Records from before it may hold data that was compacted away or erased.
        """
        return max((seqno for seqno in (self.erased, *(at for at, _ in self.erasures)) if seqno <= floor), default=0)


def check_uploaded(control: LocationState, mutation: BringsParts) -> None:
    """Check that new blobs lie in their collection's folder, and still exist.

    Raises:
        UploadExpired: a blob was uploaded before the floor, or was dropped.
        ValueError: no writer makes such a name.
    """
    keys = check_keys(mutation)
    waiting_blobs = (
        entry.blobs for entry in control.dropped if mutation.collection in (entry.collection, *entry.folders)
    )
    dropped = {key for blobs in waiting_blobs for key in blobs} if keys else set()
    for key in keys:
        if (parse_upload_seqno(key) or 0) < control.upload_floor or key in dropped:
            raise UploadExpired(key)


def check_writer(
    writer: ExclusiveWriter | None, newest: int | None, epoch: int | None, steps: Iterable[object]
) -> None:
    """Raise Locked or WriterFenced unless a client may commit (rule 12).

    Args:
        writer: the exclusive writer, None if there is none.
        newest: the epoch of the last exclusive writer; None if there never was one.
        epoch: the client's epoch; None if it did not open exclusively.

    Raises:
        Locked: another client is the exclusive writer.
        WriterFenced: the client is an exclusive writer, but not the newest one.
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


def _grant_lease(control: LocationState, mutation: kinds.GrantLease, _: int) -> LocationState:
    """Return control with a new or renewed lease; `reads_from` never goes back."""
    check_holder(mutation.holder)
    if not is_id(mutation.lease):
        raise ValueError(f"{mutation.lease[:200]!r} is not the id of a lease")
    if mutation.consumer and not (len(mutation.consumer) <= CONSUMER_CHARS_MAX and mutation.consumer.isprintable()):
        raise ValueError(f"{mutation.consumer[:200]!r} is not the name of a consumer")
    present_lease = control.leases.get(mutation.lease)
    if present_lease is None and mutation.renews:
        raise LeaseExpired("the lease has ended and cannot be renewed: since may have moved on")
    reads_from = mutation.reads_from if present_lease is None else max(present_lease.reads_from, mutation.reads_from)
    lease = Lease(mutation.holder, mutation.expires_ms, reads_from, mutation.consumer)
    return msgspec.structs.replace(control, leases={**control.leases, mutation.lease: lease})


def _end_lease(control: LocationState, mutation: kinds.EndLease, _: int) -> LocationState:
    """Return control without a lease; unchanged if the lease does not exist.

    The caller releases its holds. Raises Conflict: the lease was renewed meanwhile.
    """
    lease = control.leases.get(mutation.lease)
    if lease is None:
        return control
    if mutation.expires_ms not in (None, lease.expires_ms):
        raise Conflict(f"the lease {mutation.lease} of {lease.holder} was renewed, so it has not expired")
    other_leases = {id_: other_lease for id_, other_lease in control.leases.items() if id_ != mutation.lease}
    return msgspec.structs.replace(control, leases=other_leases)


def _open_writer(control: LocationState, mutation: kinds.OpenWriter, seqno: int) -> LocationState:
    """Return control with the exclusive writer of a record; its seqno is the epoch."""
    check_holder(mutation.holder)
    writer_before = control.writer
    if writer_before is not None and writer_before.reentrance_id != mutation.reentrance_id and not mutation.force:
        raise Locked(writer_before.holder)
    writer = ExclusiveWriter(mutation.reentrance_id, mutation.holder)
    return msgspec.structs.replace(control, epoch=seqno, writer=writer)


def _truncate_log(control: LocationState, mutation: kinds.TruncateLog, seqno: int) -> LocationState:
    """Return control with a higher log floor; erasures before it are forgotten, except the last."""
    floor = max(control.log_floor, min(mutation.floor, seqno))
    passed = [erasure for erasure in control.erasures if erasure[0] <= floor]
    erasures = (*passed[-1:], *control.erasures[len(passed) :])
    return msgspec.structs.replace(control, log_floor=floor, erasures=erasures)


def _void_uploads(control: LocationState, mutation: kinds.VoidUploads, seqno: int) -> LocationState:
    """Return control with a higher floor of uploads: older ones stay unused."""
    return msgspec.structs.replace(control, upload_floor=max(control.upload_floor, min(mutation.floor, seqno + 1)))


def _take_over(control: LocationState, mutation: kinds.TakeOver, seqno: int) -> LocationState:
    """Return control with a new basis of checkpoints, if the present allows."""
    checkpoint = mutation.checkpoint
    checkpoint_at = parse_checkpoint_seqno(checkpoint.blob)
    if checkpoint_at is None or checkpoint_at >= seqno:
        raise ValueError(f"{checkpoint.blob[:200]!r} is not the name of a checkpoint before seqno {seqno}")
    if control.taken_over is not None and not control.taken_over.allows(checkpoint):
        return control
    return msgspec.structs.replace(control, taken_over=TakenOver(seqno, checkpoint))


def _forget_dropped(control: LocationState, mutation: kinds.Collected, _: int) -> LocationState:
    """Return control without dropped blobs that have been deleted."""
    forgotten = set(mutation.dropped)
    remaining = tuple(dropped for dropped in control.dropped if (dropped.collection, dropped.seqno) not in forgotten)
    return msgspec.structs.replace(control, dropped=remaining)


def _describe_location(control: LocationState, mutation: kinds.DescribeLocation, _: int) -> LocationState:
    """Return control with a changed description."""
    return msgspec.structs.replace(
        control, about=apply_description(control.about, mutation.words, {}, mutation.version)
    )


def _set_policy(control: LocationState, mutation: kinds.SetPolicy, seqno: int) -> LocationState:
    """Return control with another policy; no lease ends sooner than its holder expects."""
    policies = control.policies or Policies(Policy())
    sooner_ms = 1000 * (policies.newest.clock_skew_s - mutation.policy.clock_skew_s)
    leases = control.leases
    if sooner_ms > 0 and not mutation.at_once:
        leases = {
            id_: msgspec.structs.replace(lease, expires_ms=lease.expires_ms + sooner_ms)
            for id_, lease in leases.items()
        }
    policies = policies.with_policy(mutation.policy, seqno, at_once=mutation.at_once)
    return msgspec.structs.replace(control, policies=policies, leases=leases)


# The rule of each kind, for the record at a seqno. It raises Conflict if another client came first.
LOCATION_RULES: dict[type, Callable[[LocationState, Any, int], LocationState]] = {
    kinds.GrantLease: _grant_lease,
    kinds.EndLease: _end_lease,
    kinds.OpenWriter: _open_writer,
    kinds.CloseWriter: lambda control, mutation, seqno: msgspec.structs.replace(control, writer=None),
    kinds.TruncateLog: _truncate_log,
    kinds.VoidUploads: _void_uploads,
    kinds.TakeOver: _take_over,
    kinds.Collected: _forget_dropped,
    kinds.DescribeLocation: _describe_location,
    kinds.SetPolicy: _set_policy,
    kinds.Upgrade: lambda control, mutation, seqno: control,  # It only raises the number of the record itself.
}


def add_destroyed(
    control: LocationState,
    collection: str,
    readers: tuple[str, ...],
    folders: tuple[str, ...],
    seqno: int,
    written_ms: int,
) -> LocationState:
    """Return control after a collection is dropped; leases keep its blobs readable."""
    dropped = Dropped(seqno, written_ms, collection, readers, folders=folders)
    return msgspec.structs.replace(control, dropped=(*control.dropped, dropped))


def add_unused(
    control: LocationState,
    mutation: LeavesUnused,
    readers: tuple[str, ...],
    folders: tuple[str, ...],
    seqno: int,
    written_ms: int,
) -> LocationState:
    """Return control after blobs become unused; leases keep them readable."""
    is_kept = not isinstance(mutation, kinds.Replace) or mutation.history_from is None
    erased = control.erased if is_kept else seqno
    dropped = control.dropped
    if mutation.unused:
        dropped = (*dropped, Dropped(seqno, written_ms, mutation.collection, readers, mutation.unused, folders))
    erasures = control.erasures
    if isinstance(mutation, kinds.Erase):
        erasures = (*erasures, (seqno, mutation.collection))
    return msgspec.structs.replace(control, dropped=dropped, erased=erased, erasures=erasures)


def is_still_readable(control: LocationState, dropped: Dropped) -> bool:
    """Return whether a lease that may read dropped blobs has not ended."""
    return any(control.leases[id_].reads_from < dropped.seqno for id_ in dropped.leases if id_ in control.leases)
