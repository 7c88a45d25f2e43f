"""The leases that the log knows: of each reader that is alive, or was until not long ago."""

from collections.abc import Mapping

import msgspec

from persist.errors import Conflict, LeaseExpired
from persist.log import EndLease, GrantLease
from persist.names import check_holder, is_id

CONSUMER_CHARS_MAX = 600  # The id of a collection, and the name of a hold.


class Lease(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A reader that is alive, or was until not long ago.

    It reads from the state at seqno reads_from, and later ones. It may be the lease of one consumer alone.
    """

    holder: str
    expires_ms: int
    reads_from: int = 0
    consumer: str = ""


def with_granted(leases: Mapping[str, Lease], mutation: GrantLease) -> dict[str, Lease]:
    """Return leases after one was granted or renewed; what its holder reads from never goes back.

    Raises:
        LeaseExpired: it was to be renewed, and has ended.
    """
    check_holder(mutation.holder)
    if not is_id(mutation.lease):
        raise ValueError(f"{mutation.lease[:200]!r} is not the id of a lease")
    if mutation.consumer and not (len(mutation.consumer) <= CONSUMER_CHARS_MAX and mutation.consumer.isprintable()):
        raise ValueError(f"{mutation.consumer[:200]!r} is not the name of a consumer")
    known = leases.get(mutation.lease)
    if known is None and mutation.renews:
        raise LeaseExpired("the lease has ended and cannot be renewed: since may have moved on")
    reads_from = mutation.reads_from if known is None else max(known.reads_from, mutation.reads_from)
    return {**leases, mutation.lease: Lease(mutation.holder, mutation.expires_ms, reads_from, mutation.consumer)}


def with_ended(leases: dict[str, Lease], mutation: EndLease) -> dict[str, Lease]:
    """Return leases after the end of one, which may have ended before. Holds that end with it are the caller's concern.

    Raises:
        Conflict: it was renewed since somebody found it expired.
    """
    lease = leases.get(mutation.lease)
    if lease is None:
        return leases
    if mutation.expires_ms not in (None, lease.expires_ms):
        raise Conflict(f"the lease {mutation.lease} of {lease.holder} was renewed, so it has not expired")
    return {id_: each for id_, each in leases.items() if id_ != mutation.lease}
