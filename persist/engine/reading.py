"""Reads of one collection: as of a time, and changes between times."""

from collections.abc import Sequence

import pyarrow.compute as pc

from persist.antichain import Antichain
from persist.codecs import TIME_MAX
from persist.engine.collection_handle import CollectionHandle
from persist.engine.keyed import keyed_form
from persist.errors import InvalidUsage
from persist.read import (
    Changes,
    Explanation,
    Form,
    Snapshot,
    UpsertEvents,
    Upserts,
    changes_scan,
    check_request,
    explained,
    snapshot_scan,
    snapshot_slices,
)
from persist.state import check_changes_readable, form_in
from persist.timeline import Moment, Times

READ_TIMEOUT_S = 30.0


def snapshot(
    handle: CollectionHandle,
    as_of: int | Moment | None = None,
    *,
    columns: Sequence[str] | None = None,
    filter: pc.Expression | None = None,
    form: Form = "rows",
    schema: int | None = None,
    timeout_s: float | None = READ_TIMEOUT_S,
) -> Snapshot:
    """Return the contents as of a time; arguments and errors are those of `Collection.snapshot`."""
    check_request(handle.reading_schema(schema), columns, filter, form)
    contents, time, reading = handle.sealed_and_claimed(as_of, timeout_s)
    try:
        read_as = handle.schema_in(contents, schema)
        check_request(read_as, columns, filter, form)
        scan = snapshot_scan(contents, read_as, time, columns, filter)
        scan.check_columns()
    except BaseException:
        reading.close()
        raise

    def explain() -> Explanation:
        return explained(contents, scan, form, len(snapshot_slices(scan, form, handle.engine.reader().slice_bytes)))

    return Snapshot(scan, form, reading, explain)


def changes(
    handle: CollectionHandle,
    lower: int | Moment | Antichain,
    upper: int | Moment | Antichain | None = None,
    *,
    columns: Sequence[str] | None = None,
    filter: pc.Expression | None = None,
    times: Times = "int",
    schema: int | None = None,
    timeout_s: float | None = READ_TIMEOUT_S,
    raw: bool = False,
) -> Changes:
    """Return the updates with `lower <= time < upper`; arguments and errors are those of `Collection.changes`.

    Args:
        raw: give tombstones, too.
    """
    lower = handle.as_bound("lower", lower)
    if upper is not None:
        upper = handle.as_bound("upper", upper, most=TIME_MAX + 1)
        if lower > upper:
            raise InvalidUsage(
                f"changes({lower}, {upper}) is backwards: the interval is [lower, upper), so lower <= upper"
            )
    check_request(handle.reading_schema(schema), columns, filter, "diff")
    moments = handle.moments(times)
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
        check_request(read_as, columns, filter, "diff")
        scan = changes_scan(contents, read_as, lower, upper, columns, filter, raw=raw)
        scan.check_columns()
        return Changes(scan, reading, moments)
    except BaseException:
        reading.close()
        raise


def upserts(
    handle: CollectionHandle,
    lower: int | Moment | Antichain,
    upper: int | Moment | Antichain | None = None,
    *,
    schema: int | None = None,
    timeout_s: float | None = READ_TIMEOUT_S,
) -> Upserts:
    """Return the changes of a keyed collection as events; arguments and errors are those of `Collection.upserts`."""
    keyed_form(handle)
    updates = changes(handle, lower, upper, schema=schema, timeout_s=timeout_s, raw=True)
    form = form_in(handle.known(), updates.scan.given, resolves=False)
    return Upserts(updates, UpsertEvents(updates.scan.given, form))
