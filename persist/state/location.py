"""What the log says of a location itself: who may write, who reads, and what waits to be deleted.

Like the collections, this is a pure function of the log. Invariants:

- `epoch` is the seqno of the newest exclusive opening; while `writer` is set, only its records may change contents,
  and after it is gone, records of clients that opened exclusively before stay refused;
- the holds that live by a lease are noted with their collections (`persist.state.state.Entry.leased`), not here;
- of a collection that was destroyed, and of blobs that a compaction left unused, `dropped` says since when, and which
  leases with holds on the collection lived then: the blobs are deleted when a grace period has passed and each of those
  leases is gone, or says that its holder reads from later states only;
- before `erased`, the log may hold data that compaction has destroyed since;
- the floors never go back. Below `log_floor` the log is not read any more. A blob whose name begins with a seqno below
  `upload_floor` and to which nothing refers will never be referred to, because `check_uploaded` refuses it: so it may
  be deleted however slow its writer is, and whatever anybody's clock says.
"""

from collections.abc import Iterable

import msgspec

from persist.errors import Conflict, LeaseExpired, Locked, UploadExpired, WriterFenced
from persist.log.keys import check_keys
from persist.log.records import (
    Append,
    CloseWriter,
    Collected,
    EndLease,
    GrantLease,
    LocationMutation,
    OpenWriter,
    Replace,
    TruncateLog,
    Unguarded,
    VoidUploads,
)
from persist.names import is_id

HOLDER_CHARS_MAX = 1000


class Writer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who has the location exclusively."""

    reentrance_id: str
    holder: str


class Lease(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A reader that is alive, or was until not long ago.

    It reads from the state at seqno reads_from, and later ones.
    """

    holder: str
    expires_ms: int
    reads_from: int = 0


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


class Control(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """See the module's docstring. An epoch of None means that nobody has ever opened exclusively."""

    epoch: int | None = None
    writer: Writer | None = None
    leases: dict[str, Lease] = {}
    dropped: tuple[Dropped, ...] = ()
    log_floor: int = 0
    upload_floor: int = 0
    erased: int = 0


def check_writer(control: Control, epoch: int | None, steps: Iterable[object]) -> None:
    """Check that a client of that epoch may commit mutations, or what stands for them (rule 12).

    Raises:
        Locked: it is not an exclusive one, and another client is.
        WriterFenced: it is one, and not the newest.
    """
    may_write = epoch is None if control.writer is None else epoch == control.epoch
    if may_write or all(isinstance(step, Unguarded) for step in steps):
        return
    if epoch is not None:
        raise WriterFenced(epoch, epoch if control.epoch is None else control.epoch)
    assert control.writer is not None
    raise Locked(control.writer.holder)


def check_uploaded(control: Control, append: Append | Replace) -> None:
    """Check that everything that append brings lies where the collection's blobs lie, and cannot have been deleted.

    Raises:
        UploadExpired: it was uploaded before the floor, or was part of the collection before and waits to be deleted.
        ValueError: a name is not one that a writer would make.
    """
    keys = check_keys(append)
    ours = (dropped.blobs for dropped in control.dropped if dropped.collection == append.collection)
    dropped = {key for blobs in ours for key in blobs} if keys else set()
    for key in keys:
        if int(key.split("/")[2][:20]) < control.upload_floor or key in dropped:
            raise UploadExpired(key)


def step(control: Control, mutation: LocationMutation, seqno: int) -> Control:
    """Return control after one mutation of the record at seqno. Holds that end with a lease are the caller's concern.

    Raises:
        Conflict: another client came first.
    """
    change = msgspec.structs.replace
    if isinstance(mutation, GrantLease | OpenWriter):
        _check_holder(mutation.holder)
    if isinstance(mutation, GrantLease):
        if not is_id(mutation.lease):
            raise ValueError(f"{mutation.lease[:200]!r} is not the id of a lease")
        return change(control, leases={**control.leases, mutation.lease: _granted(control, mutation)})
    if isinstance(mutation, EndLease):
        lease = control.leases.get(mutation.lease)
        if lease is None:
            return control
        if mutation.expires_ms not in (None, lease.expires_ms):
            raise Conflict(f"the lease {mutation.lease} of {lease.holder} was renewed, so it has not expired")
        return change(control, leases={id_: le for id_, le in control.leases.items() if id_ != mutation.lease})
    if isinstance(mutation, OpenWriter):
        holder = control.writer
        if holder is not None and holder.reentrance_id != mutation.reentrance_id and not mutation.force:
            raise Locked(holder.holder)
        return change(control, epoch=seqno, writer=Writer(mutation.reentrance_id, mutation.holder))
    if isinstance(mutation, CloseWriter):
        return change(control, writer=None)
    if isinstance(mutation, TruncateLog):
        return change(control, log_floor=max(control.log_floor, min(mutation.floor, seqno)))
    if isinstance(mutation, VoidUploads):
        return change(control, upload_floor=max(control.upload_floor, min(mutation.floor, seqno + 1)))
    assert isinstance(mutation, Collected)
    gone = set(mutation.dropped)
    return change(control, dropped=tuple(d for d in control.dropped if (d.collection, d.seqno) not in gone))


def with_destroyed(control: Control, collection: str, readers: tuple[str, ...], seqno: int, written_ms: int) -> Control:
    """Return control after a collection was destroyed: its blobs wait for the leases of those who read it."""
    dropped = Dropped(seqno, written_ms, collection, readers)
    return msgspec.structs.replace(control, dropped=(*control.dropped, dropped))


def with_unused(control: Control, replace: Replace, readers: tuple[str, ...], seqno: int, written_ms: int) -> Control:
    """Return control after a compaction: blobs that it left unused wait for the leases of those who read them."""
    erased = control.erased if replace.history_from is None else seqno
    dropped = control.dropped
    if replace.unused:
        dropped = (*dropped, Dropped(seqno, written_ms, replace.collection, readers, replace.unused))
    return msgspec.structs.replace(control, dropped=dropped, erased=erased)


def is_waited_for(control: Control, dropped: Dropped) -> bool:
    """Tell whether somebody with a lease may still read what was dropped."""
    return any(control.leases[id_].reads_from < dropped.seqno for id_ in dropped.leases if id_ in control.leases)


def _check_holder(holder: str) -> None:
    if not 0 < len(holder) <= HOLDER_CHARS_MAX or not holder.isprintable():
        raise ValueError(f"{holder[:200]!r} is not the name of a client: it would be shown to people")


def _granted(control: Control, mutation: GrantLease) -> Lease:
    known = control.leases.get(mutation.lease)
    if known is None and mutation.renews:
        raise LeaseExpired("the lease has ended and cannot be renewed: since may have moved on")
    if known is None:
        return Lease(mutation.holder, mutation.expires_ms, mutation.reads_from)
    return Lease(mutation.holder, mutation.expires_ms, max(known.reads_from, mutation.reads_from))
