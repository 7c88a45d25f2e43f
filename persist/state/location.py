"""What the log says of a location itself: who may write, who reads, and what waits to be deleted.

Who may write is in `persist.state.exclusive`, who reads in `persist.state.leases`.

Like the collections, this is a pure function of the log. Invariants:

- `epoch` is the seqno of the newest exclusive opening; while `writer` is set, only its records may change contents,
  and after it is gone, records of clients that opened exclusively before stay refused;
- the holds that live by a lease are noted with their collections (`CollectionEntry.leased`), not here;
- of a collection that was destroyed, and of blobs that a compaction left unused, `dropped` says since when, and which
  leases with holds on the collection lived then: the blobs are deleted when a grace period has passed and each of those
  leases is gone, or says that its holder reads from later states only;
- before `erased`, the log may hold data that compaction has destroyed since;
- `about` says of the location what people gave it to say;
- the floors never go back. Below `log_floor` the log is not read any more. A blob whose name begins with a seqno below
  `upload_floor` and to which nothing refers will never be referred to, because `check_uploaded` refuses it: so it may
  be deleted however slow its writer is, and whatever anybody's clock says;
- `taken_over` says of what checkpoints are made from its seqno on: of that one checkpoint, or of one from that seqno
  on. It only moves to what the same rule allows, so what it said of checkpoints stays true when it moves.
"""

import msgspec

from persist.errors import UploadExpired
from persist.log import (
    BlobRef,
    BringsParts,
    CloseWriter,
    Collected,
    DescribeLocation,
    EndLease,
    GrantLease,
    LocationMutation,
    OpenWriter,
    Replace,
    Resolve,
    TakeOver,
    TruncateLog,
    VoidUploads,
    check_keys,
    checkpoint_seqno,
    uploaded_seqno,
)
from persist.state.about import About, described
from persist.state.exclusive import ExclusiveWriter, opened
from persist.state.leases import Lease, with_ended, with_granted


class Dropped(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was given up at seqno, and the leases of those who read the collection then.

    The blobs named, which compaction left unused, or all of the collection if none are: it was destroyed.
    """

    seqno: int
    written_ms: int
    collection: str
    leases: tuple[str, ...] = ()
    blobs: tuple[str, ...] = ()

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


def check_uploaded(control: LocationState, append: BringsParts) -> None:
    """Check that everything that append brings lies where the collection's blobs lie, and cannot have been deleted.

    Raises:
        UploadExpired: it was uploaded before the floor, or was part of the collection before and waits to be deleted.
        ValueError: a name is not one that a writer would make.
    """
    keys = check_keys(append)
    ours = (dropped.blobs for dropped in control.dropped if dropped.collection == append.collection)
    dropped = {key for blobs in ours for key in blobs} if keys else set()
    for key in keys:
        if (uploaded_seqno(key) or 0) < control.upload_floor or key in dropped:
            raise UploadExpired(key)


def step(control: LocationState, mutation: LocationMutation, seqno: int) -> LocationState:
    """Return control after one mutation of the record at seqno. Holds that end with a lease are the caller's concern.

    Raises:
        Conflict: another client came first.
    """
    change = msgspec.structs.replace
    if isinstance(mutation, GrantLease):
        return change(control, leases=with_granted(control.leases, mutation))
    if isinstance(mutation, EndLease):
        return change(control, leases=with_ended(control.leases, mutation))
    if isinstance(mutation, OpenWriter):
        return change(control, epoch=seqno, writer=opened(control.writer, mutation))
    if isinstance(mutation, CloseWriter):
        return change(control, writer=None)
    if isinstance(mutation, TruncateLog):
        return change(control, log_floor=max(control.log_floor, min(mutation.floor, seqno)))
    if isinstance(mutation, VoidUploads):
        return change(control, upload_floor=max(control.upload_floor, min(mutation.floor, seqno + 1)))
    if isinstance(mutation, TakeOver):
        return _with_taken_over(control, mutation.checkpoint, seqno)
    if isinstance(mutation, DescribeLocation):
        return change(control, about=described(control.about, mutation.words, {}, mutation.version))
    assert isinstance(mutation, Collected)
    gone = set(mutation.dropped)
    return change(control, dropped=tuple(d for d in control.dropped if (d.collection, d.seqno) not in gone))


def _with_taken_over(control: LocationState, checkpoint: BlobRef, seqno: int) -> LocationState:
    """Return control after a `TakeOver`, which changes nothing if another one has come first that does not allow it.

    Raises:
        ValueError: it names no checkpoint before its own record.
    """
    of = checkpoint_seqno(checkpoint.blob)
    if of is None or of >= seqno:
        raise ValueError(f"{checkpoint.blob[:200]!r} is not the name of a checkpoint before seqno {seqno}")
    if control.taken_over is not None and not control.taken_over.allows(checkpoint):
        return control
    return msgspec.structs.replace(control, taken_over=TakenOver(seqno, checkpoint))


def with_destroyed(
    control: LocationState, collection: str, readers: tuple[str, ...], seqno: int, written_ms: int
) -> LocationState:
    """Return control after a collection was destroyed: its blobs wait for the leases of those who read it."""
    dropped = Dropped(seqno, written_ms, collection, readers)
    return msgspec.structs.replace(control, dropped=(*control.dropped, dropped))


def with_unused(
    control: LocationState, replace: Replace | Resolve, readers: tuple[str, ...], seqno: int, written_ms: int
) -> LocationState:
    """Return control after a compaction, or a resolution: blobs it left unused wait for the leases of their readers."""
    is_kept = isinstance(replace, Resolve) or replace.history_from is None
    erased = control.erased if is_kept else seqno
    dropped = control.dropped
    if replace.unused:
        dropped = (*dropped, Dropped(seqno, written_ms, replace.collection, readers, replace.unused))
    return msgspec.structs.replace(control, dropped=dropped, erased=erased)


def is_waited_for(control: LocationState, dropped: Dropped) -> bool:
    """Tell whether somebody with a lease may still read what was dropped."""
    return any(control.leases[id_].reads_from < dropped.seqno for id_ in dropped.leases if id_ in control.leases)
