"""Reads of collections: as of a time, changes between times, and listens, several of them at one point of the log."""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from persist.antichain import Antichain
from persist.codecs import TIME_MAX, consolidate
from persist.engine.collection_handle import CollectionHandle
from persist.engine.keyed import keyed_form
from persist.errors import InvalidUsage
from persist.hold import WantedClaim
from persist.read import (
    Changes,
    ChangesForm,
    ClaimedRead,
    Form,
    Listen,
    Progress,
    Scan,
    Snapshot,
    Transitions,
    UnreadParts,
    UpsertEvents,
    Upserts,
    changes_scan,
    check_changes_form,
    checked_filter,
    read_changes,
    snapshot_scan,
    snapshot_tables,
    with_moments,
)
from persist.state import CollectionState, among_versions, check_changes_readable, check_readable, form_in, last_sealed
from persist.timeline import Moment, Timeline, Times

READ_TIMEOUT_S = 0.0  # Who reads what is not sealed hears so at once.


def snapshot(
    handle: CollectionHandle,
    as_of: int | Moment | None = None,
    *,
    columns: Sequence[str] | None = None,
    where: str | pc.Expression | None = None,
    form: Form = "rows",
    schema: int | None = None,
    timeout_s: float | None = READ_TIMEOUT_S,
) -> Snapshot:
    """Return the contents as of a time; arguments and errors are those of `Collection.snapshot`."""
    checked_filter(handle.reading_schema(schema), where, columns, form)
    contents, time, reading = handle.sealed_and_claimed(as_of, timeout_s)
    try:
        read_as = handle.schema_in(contents, schema)
        filter = checked_filter(read_as, where, columns, form)
        scan = snapshot_scan(contents, read_as, time, columns, filter)
        scan.check_columns()
    except BaseException:
        reading.close()
        raise

    return Snapshot(scan, form, reading, contents, handle.engine.reader().slice_bytes)


def changes(
    handle: CollectionHandle,
    start: int | Moment | Antichain,
    until: int | Moment | Antichain | None = None,
    *,
    columns: Sequence[str] | None = None,
    where: str | pc.Expression | None = None,
    form: ChangesForm = "updates",
    times: Times = "int",
    schema: int | None = None,
    timeout_s: float | None = READ_TIMEOUT_S,
    raw: bool = False,
) -> Changes:
    """Return the updates with `start <= time < until`; arguments and errors are those of `Collection.changes`.

    Args:
        raw: give tombstones, too.
    """
    check_changes_form(form)
    lower, upper = handle.as_bound("start", start), None
    if until is not None:
        upper = handle.as_bound("until", until, most=TIME_MAX + 1)
        if lower > upper:
            raise InvalidUsage(
                f"changes({lower}, {upper}) is backwards: the interval is [start, until), so start <= until"
            )
    checked_filter(handle.reading_schema(schema), where, columns)
    moments = handle.moments(times)
    handle.engine.settle()
    contents = handle.contents()
    if upper is None:
        # What begins beyond upper is waited for, as far as that.
        upper = max(lower, handle.as_bound("upper", contents.upper))
        is_short = contents.upper < lower
    else:
        is_short = upper > lower
    check_changes_readable(contents, lower)
    if is_short and contents.upper.has_beyond(upper - 1):
        contents, _ = handle.sealed(upper - 1, timeout_s, until=upper)
        check_changes_readable(contents, lower)
    contents, reading = handle.claim(max(0, lower - 1), end=upper)
    try:
        check_changes_readable(contents, lower)
        read_as = handle.schema_in(contents, schema)
        filter = checked_filter(read_as, where, columns)
        scan = changes_scan(contents, read_as, lower, upper, columns, filter, raw=raw)
        scan.check_columns()
        return Changes(scan, reading, moments, Transitions.of_columns(read_as, columns) if form != "updates" else None)
    except BaseException:
        reading.close()
        raise


def difference(
    handle: CollectionHandle,
    first: int | Moment,
    second: int | Moment,
    columns: Sequence[str] | None,
    where: str | pc.Expression | None,
    timeout_s: float | None,
) -> pa.Table:
    """Return what differs between the contents as of two times; see `Collection.diff`."""
    schema = handle.reading_schema()
    values = schema.names if columns is None else schema.distinct("columns", columns)
    names = list(dict.fromkeys((*schema.key_names, *values)))
    transitions = Transitions.of_columns(schema, names)
    start, end = handle.as_time("first", first), handle.as_time("second", second)
    lower, upper = min(start, end) + 1, max(start, end) + 1
    with changes(handle, lower, upper, columns=names, where=where, timeout_s=timeout_s) as updates:
        table = consolidate(updates.to_arrow().drop_columns("_time"), names)
    if start > end:
        table = table.set_column(len(names), "_diff", pc.negate_checked(table["_diff"]))
    times = pa.repeat(pa.scalar(end, pa.int64()), len(table))
    return transitions.of(table.append_column("_time", times)).drop_columns("_time")


def upserts(
    handle: CollectionHandle,
    start: int | Moment | Antichain,
    until: int | Moment | Antichain | None = None,
    *,
    schema: int | None = None,
    timeout_s: float | None = READ_TIMEOUT_S,
) -> Upserts:
    """Return the changes of a keyed collection as events; arguments and errors are those of `Collection.upserts`."""
    keyed_form(handle)
    updates = changes(handle, start, until, schema=schema, timeout_s=timeout_s, raw=True)
    form = form_in(handle.known(), updates.scan.given, resolves=False)
    return Upserts(updates, UpsertEvents(updates.scan.given, form))


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
