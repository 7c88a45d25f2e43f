"""Who may write: anybody, or the one client that has opened the location exclusively (rule 12)."""

from collections.abc import Iterable

import msgspec

from persist.errors import Locked, WriterFenced
from persist.log import OpenWriter, Unguarded
from persist.names import check_holder


class ExclusiveWriter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who has the location exclusively."""

    reentrance_id: str
    holder: str


def opened(before: ExclusiveWriter | None, mutation: OpenWriter) -> ExclusiveWriter:
    """Return who has the location exclusively from now on.

    Raises:
        Locked: another client has it, and is not to be displaced.
    """
    check_holder(mutation.holder)
    if before is not None and before.reentrance_id != mutation.reentrance_id and not mutation.force:
        raise Locked(before.holder)
    return ExclusiveWriter(mutation.reentrance_id, mutation.holder)


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
    if may_write or all(isinstance(step, Unguarded) for step in steps):
        return
    if epoch is not None:
        raise WriterFenced(epoch, epoch if newest is None else newest)
    assert writer is not None
    raise Locked(writer.holder)
