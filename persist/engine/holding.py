"""Explicit holds on a collection: taken, loaded by name, listed."""

from contextlib import suppress

from persist.antichain import Antichain
from persist.engine.collection_handle import CollectionHandle
from persist.errors import HoldMoved, HoldNotFound, InvalidUsage
from persist.hold import Hold, HoldInfo, LeasedHold, NamedHold
from persist.log import kinds
from persist.names import check_hold_name
from persist.state import CollectionState, check_readable
from persist.timeline import Moment, is_moment
from persist.write import CommitFuture


def take_hold(
    handle: CollectionHandle, time: int | Moment | Antichain | None, name: str | None, schema: int | None = None
) -> Hold:
    """Keep since at or before a time, durably; arguments, cost and errors are those of `Collection.hold`.

    Args:
        schema: the version of the schema that the owner of a new named hold stays with.
    """
    leases = handle.engine.writer("hold").leases
    if isinstance(time, Antichain) and time.time is not None:
        time = time.time  # That of since, say: what is readable from there on stays so.
    time = None if time is None else handle.as_time("hold time", time)
    if name is not None:
        return _named_hold(handle, check_hold_name(name), time, schema)
    if time is None:
        raise InvalidUsage("hold() needs the time that since must not pass: hold(time), or hold(name=…)")
    check_readable(handle.contents(), time)
    claim = leases.claim(handle.id, handle.name, time, reads=False)
    return LeasedHold(leases, handle.id, claim, time, handle.as_time, handle.shown)


def allow_compaction(handle: CollectionHandle, since: int | Moment | Antichain) -> CommitFuture:
    """Let since advance as far as no hold needs what is before; see `Collection.allow_compaction`."""
    # A moment stays readable: the last time that is not after it does.
    reach = handle.as_time("since", since) if is_moment(since) else since
    step = kinds.AllowCompaction(handle.id, handle.frontier("since", reach).elements)
    return handle.engine.writer("allow_compaction").allow_compaction(step, handle.name)


def list_holds(handle: CollectionHandle) -> list[HoldInfo]:
    """Return all holds on a collection, of whatever client, least time first. Cost: one GET."""
    contents = handle.contents()
    leases = handle.engine.follower.state.control.leases
    found = [HoldInfo(name, time, is_tag=True) for name, time in contents.tags.items()]
    for name, held in contents.holds.items():
        lease = leases.get(held.lease or "")
        if lease is None:
            found.append(HoldInfo(name, held.time))
        else:
            found.append(HoldInfo(None, held.time, lease.holder, lease.expires_ms))
    return sorted(found, key=lambda hold: hold.time)


def held_schema(contents: CollectionState, name: str) -> int | None:
    """Return the version of the schema that the owner of a named hold stays with; None if nobody has said so."""
    held = contents.holds.get(name)
    return None if held is None else held.schema


def hold_with_schema(handle: CollectionHandle, name: str, schema: int) -> None:
    """Let the owner of a named hold, if there is one, stay with another version of the schema."""
    held = handle.contents().holds.get(name)
    if held is not None and held.schema != schema:
        handle.submit("hold", [kinds.SetHold(handle.id, name, held.time, None, held.time, schema)]).result()


def _named_hold(handle: CollectionHandle, name: str, time: int | None, schema: int | None) -> NamedHold:
    def move(expected: int | None, to: int) -> None:
        step = kinds.SetHold(handle.id, name, to, None, expected, schema if expected is None else None)
        handle.submit("hold", [step]).result()

    def give_up(expected: int) -> None:
        handle.submit("release", [kinds.ReleaseHold(handle.id, name, expected)]).result()

    while True:
        holds = handle.contents().holds
        found = holds.get(name)
        if found is None and time is None:
            raise HoldNotFound(name, tuple(n for n, held in holds.items() if held.lease is None))
        if found is not None and found.lease is None:
            return NamedHold(name, found.time, handle.as_time, move, give_up, handle.shown)
        assert time is not None
        with suppress(HoldMoved):  # Somebody else made it in between: return theirs.
            move(None, time)
