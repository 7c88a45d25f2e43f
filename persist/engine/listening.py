"""How listens begin: what a collection held, what its listen reads, and several of them at one point of the log."""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from persist.antichain import Antichain
from persist.engine.collection_handle import CollectionHandle
from persist.hold import WantedClaim
from persist.read import (
    ClaimedRead,
    Listen,
    Progress,
    Scan,
    UnreadParts,
    changes_scan,
    read_changes,
    snapshot_scan,
    snapshot_tables,
    with_moments,
)
from persist.state import CollectionState, among_versions, check_changes_readable, check_readable, last_sealed
from persist.timeline import Moment, Timeline


def listen_from(
    handle: CollectionHandle,
    lower: int,
    reading: ClaimedRead,
    first: Progress | None,
    moments: Timeline | None,
    columns: Sequence[str] | None = None,
) -> Listen:
    """Return what yields first, if there is something, and then the updates at times >= lower, or columns of them."""
    unread = UnreadParts()

    def read(reading: ClaimedRead, contents: CollectionState, lower: int, upper: int) -> pa.Table:
        if contents.keyed is not None:
            scan = changes_scan(handle.folded(contents), handle.schema, lower, upper, columns)
            found = read_changes(scan, reading())
            return with_moments(found, moments)
        parts = unread.at_or_after(contents, lower)
        schema = among_versions(handle.schema, contents)
        scan = Scan(schema, parts, lower, upper, tuple(columns or schema.names)).with_newest_types()
        found = read_changes(scan.pruned(), reading())
        return with_moments(found, moments)

    return Listen(handle.engine.follower, handle.id, handle.name, lower, reading, read, first)


def contents_as_of(
    handle: CollectionHandle, contents: CollectionState, time: int, reading: ClaimedRead, moments: Timeline | None
) -> Progress:
    """Return the contents of a collection as of a time, as the updates of that time that would make them."""
    scan = snapshot_scan(handle.folded(contents), handle.schema, time, None, None)
    with reading.explained():
        empty = scan.given_out(scan.empty([*scan.columns, "_diff"]))
        found = pa.concat_tables([empty, *snapshot_tables(scan, "diff", reading)])
    column = pa.repeat(pa.scalar(time, pa.int64()), len(found))
    updates = found.add_column(len(handle.schema.names), handle.schema.arrow.field("_time"), column)
    return Progress(with_moments(updates, moments), Antichain(time + 1))


def begun_listen(
    handle: CollectionHandle,
    as_of: int | Moment | None,
    moments: Timeline | None,
    consumer: str = "",
    columns: Sequence[str] | None = None,
) -> Listen:
    """Return what yields the updates after as_of, None for all; see `Collection.listen`, and `Engine.claim_all`.

    With columns, only these are read, and whatever becomes of the others is not noticed.
    """
    lower = 0 if as_of is None else handle.as_time("as_of", as_of) + 1
    check_changes_readable(handle.contents(), lower)
    contents, reading = handle.claim(max(0, lower - 1), consumer)
    try:
        check_changes_readable(contents, lower)
    except BaseException:
        reading.close()
        raise
    return listen_from(handle, lower, reading, None, moments, columns)


def begun_subscription(
    handle: CollectionHandle,
    as_of: int | Moment | None,
    moments: Timeline | None,
    timeout_s: float | None,
    consumer: str = "",
) -> Listen:
    """Return what yields the contents as of a time, then what follows; see `Collection.subscribe`."""
    contents, time, reading = handle.sealed_and_claimed(as_of, timeout_s, consumer)
    try:
        first = contents_as_of(handle, contents, time, reading, moments)
    except BaseException:
        reading.close()
        raise
    return listen_from(handle, time + 1, reading, first, moments)


@dataclass(frozen=True, slots=True)
class WantedListen:
    """What is to be followed: a collection, after a time, with what turns its times into moments.

    A time of None stands for all that ever was, or for the latest sealed time if contents come first.
    """

    handle: CollectionHandle
    as_of: int | None
    moments: Timeline | None


def listens_together(wanted: Sequence[WantedListen], *, contents: bool) -> list[Listen]:
    """Return a listen of each collection, begun at one point of the log. Cost: one commit for all claims.

    Args:
        wanted: collections of one engine, one at least.
        contents: begin with the contents as of these times, which must be sealed.

    Raises:
        AsOfCompacted: since has passed one of the times; then nothing is claimed.
    """
    handles = [each.handle for each in wanted]
    engine = handles[0].engine
    engine.follower.refresh()
    _, known = engine.follower.known_at_once([(each.id, each.name) for each in handles])
    lowers = [_lower(state, each.as_of, contents=contents) for each, state in zip(wanted, known, strict=True)]
    claims = engine.claim_all(
        [WantedClaim(each.id, each.name, max(0, lower - 1)) for each, lower in zip(handles, lowers, strict=True)]
    )
    readings = [ClaimedRead(engine.reader, claim, each.needs) for claim, each in zip(claims, handles, strict=True)]
    try:
        _, known = engine.follower.known_at_once([(each.id, each.name) for each in handles])
        listens = []
        for each, state, lower, reading in zip(wanted, known, lowers, readings, strict=True):
            first = None
            if contents:
                check_readable(state, lower - 1)
                first = contents_as_of(each.handle, state, lower - 1, reading, each.moments)
            else:
                check_changes_readable(state, lower)
            listens.append(listen_from(each.handle, lower, reading, first, each.moments))
        return listens
    except BaseException:
        for reading in readings:
            reading.close()
        raise


def _lower(state: CollectionState, as_of: int | None, *, contents: bool) -> int:
    """Return the first time of what follows as_of, after checking that it can be read."""
    if contents:
        as_of = last_sealed(state) if as_of is None else as_of
        check_readable(state, as_of)
        return as_of + 1
    lower = 0 if as_of is None else as_of + 1
    check_changes_readable(state, lower)
    return lower
