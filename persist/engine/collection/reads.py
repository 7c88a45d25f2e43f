"""Reads of collections: as of a time, changes between times, and listens, several of them at one point of the log.

An as-of join is a read, too: it adds to each row of a frame the contents of a collection at the row's time.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from persist.codecs.errors import InvalidUpdate, did_you_mean
from persist.codecs.types.casts import cast_column, decode_column
from persist.codecs.types.python_types import get_stored_type
from persist.codecs.types.schema import TIME_MAX
from persist.codecs.updates.inputs import TableStream, open_stream, to_table
from persist.core.antichain import END, Antichain
from persist.core.errors import InvalidUsage, SchemaMismatch
from persist.core.state_rules.contents import CollectionState, check_changes_readable, check_readable, get_last_sealed
from persist.core.state_rules.keyed_rules import load_form
from persist.core.state_rules.schemas import attach_versions
from persist.core.timeline import Moment, Timeline, Times
from persist.engine.collection.keyed_events import get_keyed_form
from persist.engine.hold import WantedClaim
from persist.engine.location.collection_handle import CollectionHandle
from persist.engine.read.following.changes import (
    Changes,
    ChangesForm,
    Difference,
    Transitions,
    UpsertEvents,
    Upserts,
    check_changes_form,
    read_all_changes,
    read_no_changes,
    show_moments,
    slice_by_time,
)
from persist.engine.read.following.listen import Listen, Piece
from persist.engine.read.keyed.key_history import join_records
from persist.engine.read.lookups.lookup import Lookup
from persist.engine.read.merging import Form, read_snapshot_tables
from persist.engine.read.parts.reader import ClaimedRead, PartReader
from persist.engine.read.planning.scan import Scan
from persist.engine.read.planning.snapshot_plan import UnreadParts, plan_changes_scan, plan_snapshot
from persist.engine.read.results.snapshot import Snapshot, build_filter

READ_TIMEOUT_S = 0.0  # A read of an unsealed time fails at once.


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
    """Return the contents as of a time; see `Collection.snapshot` for arguments and errors."""
    build_filter(handle.get_reading_schema(schema), where, columns, form)
    contents, time, reading = handle.wait_and_claim(as_of, timeout_s)
    try:
        read_as = handle.load_schema(contents, schema)
        filter = build_filter(read_as, where, columns, form)
        scan = plan_snapshot(contents, read_as, time, columns, filter)
        scan.check_columns()
    except BaseException:
        reading.close()
        raise

    return Snapshot(scan, form, reading, contents, handle.engine.reader().slice_bytes)


def open_snapshots(
    wanted: Sequence[tuple[CollectionHandle, int | Moment | None]], timeout_s: float | None = READ_TIMEOUT_S
) -> list[Snapshot]:
    """Open snapshots of collections of one engine, from one state of the location; a time of None is the latest.

    One record makes all claims first, so opening the single snapshots needs no further commit. Cost: one refresh of the
    log, and one commit. Errors are those of `snapshot`; after an error, no claim remains.
    """
    if not wanted:
        return []
    engine = wanted[0][0].engine
    with engine.follower.looks.share_look(), ExitStack() as listens, ExitStack() as claimed:
        for handle, as_of in wanted:
            if as_of is not None:
                handle.wait_sealed(as_of, timeout_s)
        engine.settle()
        engine.follower.refresh()
        _, states = engine.follower.read_known_states([(handle.id, handle.name) for handle, _ in wanted])
        times = [handle.choose_time(state, as_of) for (handle, as_of), state in zip(wanted, states, strict=True)]
        least: dict[str, WantedClaim] = {}
        for (handle, _), state, time in zip(wanted, states, times, strict=True):
            check_readable(state, time)
            if handle.id not in least or time < least[handle.id].time:
                least[handle.id] = WantedClaim(handle.id, handle.name, time)
        for claim in engine.claim_all([*least.values()]):
            claimed.callback(claim.release)
        snapshots = [
            listens.enter_context(snapshot(handle, time)) for (handle, _), time in zip(wanted, times, strict=True)
        ]
        listens.pop_all()
    return snapshots


def changes(
    handle: CollectionHandle,
    start: int | Moment | Antichain,
    until: int | Moment | Antichain | None = None,
    *,
    columns: Sequence[str] | None = None,
    where: str | pc.Expression | None = None,
    form: ChangesForm = "updates",
    times: Times | None = "int",
    schema: int | None = None,
    timeout_s: float | None = READ_TIMEOUT_S,
    raw: bool = False,
) -> Changes:
    """Return the updates with `start <= time < until`; see `Collection.changes` for arguments and errors.

    `raw`: include tombstones.
    """
    check_changes_form(form)
    moments = handle.moments(times)

    def make(scan: Scan, reading: ClaimedRead) -> Changes:
        columns_of = Transitions.of_columns(scan.result_schema, columns) if form != "updates" else None
        return Changes(scan, reading, moments, columns_of)

    return _open_changes(handle, start, until, make, columns, where, schema, timeout_s, raw=raw)


T = TypeVar("T", bound=Changes)


def _open_changes(
    handle: CollectionHandle,
    start: int | Moment | Antichain,
    until: int | Moment | Antichain | None,
    make: Callable[[Scan, ClaimedRead], T],
    columns: Sequence[str] | None,
    where: str | pc.Expression | None,
    schema: int | None,
    timeout_s: float | None,
    *,
    raw: bool = False,
) -> T:
    """Plan a read of the updates with `start <= time < until`.

    Return the result of `make`, called with the plan and a reader.
    """
    lower, upper = handle.as_bound("start", start), None
    if until is not None:
        upper = handle.as_bound("until", until, most=END)
        if lower > upper:
            raise InvalidUsage(
                f"start={lower} and until={upper} are backwards: the interval is [start, until), so start <= until"
            )
    build_filter(handle.get_reading_schema(schema), where, columns)
    handle.engine.settle()
    contents = handle.contents()
    if upper is None:
        # If the start is beyond upper, the read waits as far as that.
        upper = max(lower, contents.upper)
        is_short = contents.upper < lower
    else:
        is_short = upper > lower
    check_changes_readable(contents, lower)
    if is_short and upper > contents.upper:
        contents, _ = handle.wait_sealed(upper - 1, timeout_s, until=upper)
        check_changes_readable(contents, lower)
    contents, reading = handle.claim(max(0, lower - 1), end=upper)
    try:
        check_changes_readable(contents, lower)
        read_as = handle.load_schema(contents, schema)
        filter = build_filter(read_as, where, columns)
        scan = plan_changes_scan(contents, read_as, lower, upper, columns, filter, raw=raw)
        scan.check_columns()
        return make(scan, reading)
    except BaseException:
        reading.close()
        raise


def difference(
    handle: CollectionHandle,
    first: int | Moment,
    second: int | Moment,
    columns: Sequence[str] | None = None,
    where: str | pc.Expression | None = None,
    timeout_s: float | None = 0.0,
    schema: int | None = None,
) -> Difference:
    """Return the difference between the contents as of two times; see `Collection.diff`."""
    read_as = handle.get_reading_schema(schema)
    values = read_as.names if columns is None else read_as.check_distinct("columns", columns)
    names = list(dict.fromkeys((*read_as.key_names, *values)))
    transitions = Transitions.of_columns(read_as, names)
    start, end = handle.as_time("first", first), handle.as_time("second", second)
    lower = min(min(start, end) + 1, TIME_MAX)
    upper = max(start, end) + 1 if start != end else lower
    make = partial(Difference, transitions=transitions, is_backwards=start > end)
    return _open_changes(handle, lower, upper, make, names, where, schema, timeout_s)


def upserts(
    handle: CollectionHandle,
    start: int | Moment | Antichain,
    until: int | Moment | Antichain | None = None,
    *,
    schema: int | None = None,
    timeout_s: float | None = READ_TIMEOUT_S,
) -> Upserts:
    """Return the changes of a keyed collection as events; see `Collection.upserts` for arguments and errors."""
    get_keyed_form(handle)
    updates = changes(handle, start, until, schema=schema, timeout_s=timeout_s, raw=True)
    form = load_form(handle.get_known_state(), updates.scan.result_schema, resolves=False)
    return Upserts(updates, UpsertEvents(updates.scan.result_schema, form))


def open_listen(
    handle: CollectionHandle,
    lower: int,
    reading: ClaimedRead,
    first: Sequence[Piece],
    moments: Timeline | None,
    columns: Sequence[str] | None = None,
    filter: pc.Expression | None = None,
    *,
    whole_times: bool = False,
) -> Listen:
    """Return a listen that yields the pieces of `first`, and then the updates at times >= lower.

    Args:
        filter: the condition on the updates after `first`.
        whole_times: never split the updates of a time, whatever memory they take.
    """
    unread = UnreadParts()

    def planned(contents: CollectionState, lower: int, upper: int) -> Scan:
        """Plan the updates of an interval."""
        if contents.keyed is not None:
            return plan_changes_scan(handle.fold(contents), handle.schema, lower, upper, columns, filter)
        parts = unread.select_from_frontier(contents, lower)
        schema = attach_versions(handle.schema, contents)
        return Scan(schema, parts, lower, upper, tuple(columns or schema.columns), filter).with_newest_types().prune()

    def plan(reader: PartReader, contents: CollectionState, lower: int, upper: int) -> Sequence[Piece]:
        """Cut an interval into pieces that fit into memory."""
        scan = planned(contents, lower, upper)
        if not scan.parts:
            return [Piece(lambda _: show_moments(read_no_changes(scan), moments), upper, 0)]
        is_whole = whole_times or not {*scan.schema.key_names} <= {*scan.columns}
        pieces: list[Piece] = []
        for slices in slice_by_time(scan, reader.changes_slice_bytes):
            start, end = slices[0].time_lower, slices[0].time_upper
            if is_whole or len(slices) == 1:
                is_one = len(slices) == 1
                interval = slices[0] if is_one else replace(scan, time_lower=start, time_upper=end).prune()
                pieces.append(Piece(partial(read, interval), end, interval.updates_memory))
                continue
            uppers = [*[start] * (len(slices) - 1), end]
            sized = zip(slices, uppers, strict=True)
            pieces += [Piece(partial(read, part), upper, part.updates_memory) for part, upper in sized]
        return pieces

    def read(scan: Scan, reading: ClaimedRead) -> pa.Table:
        return show_moments(read_all_changes(scan, reading), moments)

    return Listen(handle.engine.follower, handle.id, handle.name, lower, reading, plan, first)


def read_as_updates(
    handle: CollectionHandle,
    contents: CollectionState,
    time: int,
    reading: ClaimedRead,
    moments: Timeline | None,
    *,
    whole_times: bool = False,
) -> Sequence[Piece]:
    """Return the contents as of a time as insertions at that time.

    They are one piece, or several within the memory budget; the last one completes the time.
    """
    scan = plan_snapshot(handle.fold(contents), handle.schema, time, None, None)
    slices = [scan] if whole_times else scan.cut_into_slices(reading().changes_slice_bytes)

    def read(scan: Scan, reading: ClaimedRead) -> pa.Table:
        """Read contents as updates of the one time."""
        empty = scan.cast_to_result(scan.empty([*scan.columns, "_diff"]))
        rows = pa.concat_tables([empty, *read_snapshot_tables(scan, "diff", reading)])
        column = pa.repeat(pa.scalar(time, pa.int64()), len(rows))
        updates = rows.add_column(len(handle.schema.names), handle.schema.arrow.field("_time"), column)
        return show_moments(updates, moments)

    uppers = [*[time] * (len(slices) - 1), time + 1]
    return [Piece(partial(read, part), upper, part.memory) for part, upper in zip(slices, uppers, strict=True)]


def begin_listen(
    handle: CollectionHandle,
    as_of: int | Moment | None,
    moments: Timeline | None,
    consumer: str = "",
    columns: Sequence[str] | None = None,
    filter: pc.Expression | None = None,
) -> Listen:
    """Return a listen of the updates after as_of, None for all; see `Collection.listen`, and `Engine.claim_all`.

    With columns, only these are read, and changes of other columns do not matter. The filter must not test sets of
    floats.
    """
    lower = 0 if as_of is None else handle.as_time("as_of", as_of) + 1
    if not handle.is_kept:  # What cannot be read is refused before a commit claims it.
        check_changes_readable(handle.contents(), lower)
    contents, reading = handle.claim(max(0, lower - 1), consumer)
    try:
        check_changes_readable(contents, lower)
    except BaseException:
        reading.close()
        raise
    return open_listen(handle, lower, reading, (), moments, columns, filter, whole_times=bool(consumer))


def begin_subscription(
    handle: CollectionHandle,
    as_of: int | Moment | None,
    moments: Timeline | None,
    timeout_s: float | None,
    consumer: str = "",
) -> Listen:
    """Return a listen of the contents as of a time and of later updates; see `Collection.subscribe`."""
    contents, time, reading = handle.wait_and_claim(as_of, timeout_s, consumer)
    try:
        first = read_as_updates(handle, contents, time, reading, moments, whole_times=bool(consumer))
    except BaseException:
        reading.close()
        raise
    return open_listen(handle, time + 1, reading, first, moments, whole_times=bool(consumer))


@dataclass(frozen=True, slots=True)
class WantedListen:
    """A collection to follow after a time, and the conversion of its times to moments.

    A time of None means the complete history, or the latest sealed time if contents come first.
    """

    handle: CollectionHandle
    as_of: int | None
    moments: Timeline | None


def open_listens(wanted: Sequence[WantedListen], *, contents: bool) -> list[Listen]:
    """Return a listen of each collection, begun at one point of the log. Cost: one commit for all claims.

    Args:
        wanted: collections of one engine, one at least.
        contents: begin with the contents as of these times, which must be sealed.

    Raises:
        AsOfCompacted: since has passed one of the times; then nothing is claimed.
    """
    handles = [want.handle for want in wanted]
    engine = handles[0].engine
    engine.follower.refresh()
    _, states = engine.follower.read_known_states([(handle.id, handle.name) for handle in handles])
    lowers = [
        _find_first_time(state, want.as_of, contents=contents) for want, state in zip(wanted, states, strict=True)
    ]
    claims = engine.claim_all(
        [WantedClaim(handle.id, handle.name, max(0, lower - 1)) for handle, lower in zip(handles, lowers, strict=True)]
    )
    readings = [ClaimedRead(engine.reader, claim, handle.needs) for claim, handle in zip(claims, handles, strict=True)]
    try:
        _, states = engine.follower.read_known_states([(handle.id, handle.name) for handle in handles])
        listens = []
        for want, state, lower, reading in zip(wanted, states, lowers, readings, strict=True):
            first: Sequence[Piece] = ()
            if contents:
                check_readable(state, lower - 1)
                first = read_as_updates(want.handle, state, lower - 1, reading, want.moments)
            else:
                check_changes_readable(state, lower)
            listens.append(open_listen(want.handle, lower, reading, first, want.moments))
        return listens
    except BaseException:
        for reading in readings:
            reading.close()
        raise


def _find_first_time(state: CollectionState, as_of: int | None, *, contents: bool) -> int:
    """Return the first time of the updates that a listen after as_of yields.

    Raise an error if these updates, or with `contents` the contents as of as_of, cannot be read.
    """
    if contents:
        as_of = get_last_sealed(state) if as_of is None else as_of
        check_readable(state, as_of)
        return as_of + 1
    lower = 0 if as_of is None else as_of + 1
    check_changes_readable(state, lower)
    return lower


def as_of_join(
    handle: CollectionHandle,
    frame: Any,
    time: str,
    on: Sequence[str] | None,
    columns: Sequence[str] | None,
    timeout_s: float | None,
) -> pa.Table:
    """Add to each row of a frame the values of its key at its time; see `Collection.as_of_join`."""
    schema = handle.schema
    table = _to_table(frame)
    value_columns = schema.value_names if columns is None else schema.check_distinct("columns", columns)
    keys, times = _select_keys(table, on, time, handle), _get_times(table, time, handle)
    if clashing := [name for name in value_columns if name in table.column_names]:
        raise SchemaMismatch(
            f"the frame has a column {clashing[0]!r}, as the collection has: rename it in the frame, or leave it "
            "out of columns"
        )
    ends = pc.min_max(times).as_py()
    if ends["min"] is None:  # No row has a time, so none has a record.
        return join_records(table, keys, times, schema.arrow.empty_table(), schema, value_columns)
    handle.wait_sealed(ends["max"], timeout_s)
    contents, reading = handle.claim(ends["min"])
    try:
        check_readable(contents, ends["min"])
        with reading.explain_missing():
            lookup = Lookup(plan_snapshot(contents, schema, ends["min"], None))
            records = lookup.read_contents(lookup.to_lookup_keys(keys), "diff", reading())
            first = records.append_column(schema.arrow.field("_time"), pa.array(np.full(len(records), ends["min"])))
            changes = plan_changes_scan(contents, schema, ends["min"] + 1, ends["max"] + 1, None)
            after = Lookup(changes, keeps_time=True)
            later = after.read_updates(after.to_lookup_keys(keys), reading())
    finally:
        reading.close()
    updates = pa.concat_tables([first.select(schema.arrow.names), later])
    return join_records(table, keys, times, updates, schema, value_columns)


def _to_table(frame: Any) -> pa.Table:
    """Return a frame as a table in types of which Arrow can select rows."""
    data = open_stream(frame)
    if isinstance(data, TableStream):
        tables = [*data.tables(None)]
        try:
            table = pa.concat_tables(tables, promote_options="default") if tables else pa.table({})
        except pa.ArrowException as error:
            raise SchemaMismatch(
                f"the pieces of the frame differ in their columns: {error}. Make them alike."
            ) from error
    else:
        table = to_table(data, None)  # A table's own columns need not be columns of the collection.
    if table is None:
        raise InvalidUsage(
            f"{frame!r:.80} is not a frame: give anything Arrow, a frame, a dict of columns or rows as dicts"
        )
    for at, field in enumerate(table.schema):
        if "_view" in str(field.type) and not pat.is_dictionary(field.type):  # Arrow takes no rows of views.
            table = table.set_column(at, field.name, decode_column(table.column(at)))
    return table


def _select_keys(table: pa.Table, on: Sequence[str] | None, time: str, handle: CollectionHandle) -> pa.Table:
    """Return the columns of a frame that match the key, in its order and with its types."""
    fields = handle.schema.key.fields
    if not (on is None or isinstance(on, str | Sequence)) or not isinstance(time, str):
        raise InvalidUsage(
            f"on={on!r:.80} and time={time!r:.80} are not names of columns: give a list as on, and one name as time"
        )
    names = list(handle.schema.key_names) if on is None else [on] if isinstance(on, str) else [*on]
    if len(names) != len(fields):
        raise InvalidUsage(
            f"on={names} names {len(names)} columns, and a key of {handle.name!r} has {len(fields)}: name one column "
            f"of the frame for each of {list(handle.schema.key_names)}, in that order"
        )
    cast = [cast_column(_get_column(table, name), f.type, name) for name, f in zip(names, fields, strict=True)]
    return pa.Table.from_arrays(cast, schema=pa.schema(list(fields)))


def _get_times(table: pa.Table, name: str, handle: CollectionHandle) -> pa.ChunkedArray:
    """Return the time of each row, int64; for a moment, the last time not after it."""
    column = _get_column(table, name)
    if (plain := get_stored_type(column.type)) != column.type:
        column = cast_column(column, plain, name)
    if handle.timeline is not None and (pat.is_string(column.type) or pat.is_large_string(column.type)):
        times = handle.timeline.convert_text_column(column)
    elif pat.is_integer(column.type) or pat.is_floating(column.type):  # pandas makes floats of integers with gaps.
        try:
            times = cast_column(column, pa.int64(), name)
        except InvalidUpdate as error:
            if pat.is_integer(column.type):
                raise
            raise SchemaMismatch(f"the time of a row is a whole number: {error}") from error
    elif handle.timeline is not None and (pat.is_timestamp(column.type) or pat.is_date(column.type)):
        unit = {"s": "second", "ms": "millisecond", "us": "microsecond", "ns": "nanosecond"}[handle.timeline.unit]
        if pat.is_timestamp(column.type):
            if column.type.tz is not None:  # Rounding is of local time, which there is twice when clocks are set back.
                column = column.cast(pa.timestamp(column.type.unit, "UTC"))
            column = pc.floor_temporal(column, unit=unit)
        times = handle.timeline.convert_column(column, name)
    else:
        what = "a whole number" if handle.timeline is None else "a whole number, a timestamp with a zone, or ISO text"
        raise SchemaMismatch(f"column {name!r} has type {column.type}, but the time of a row is {what}")
    if (least := pc.min(times).as_py()) is not None and least < 0:
        raise InvalidUsage(f"column {name!r} holds {least}: times are not negative")
    return times


def _get_column(table: pa.Table, name: str) -> pa.ChunkedArray:
    """Return a column of a frame; raise SchemaMismatch if it is missing."""
    if name not in table.column_names:
        hint = did_you_mean(name, table.column_names) or ","
        raise SchemaMismatch(f"the frame has no column {name!r}{hint} it has {table.column_names}")
    return table.column(name)
