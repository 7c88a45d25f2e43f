"""Commands that write: create, write, overwrite, delete, restore, seal, drop."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

import persist
from persist.core.rendering import format_count
from persist.tools.cli.command import OK, Name, Yes, command, confirm
from persist.tools.cli.place import Place, report_done
from persist.tools.cli.text import print_remark
from persist.tools.reports.times import make_time_format, parse_write_time

if TYPE_CHECKING:
    import pyarrow as pa

    from persist.connect.ingest.row_columns import RowColumns
    from persist.connect.ingest.row_formats import RowFile
    from persist.tools.cli.loading import Plan

File = Annotated[
    str, typer.Argument(metavar="FILE", help="CSV, JSON lines, Parquet or Arrow IPC; - for standard input.")
]
Format = Annotated[
    str | None, typer.Option("--format", "-f", help="csv, json (lines), parquet or arrow; else by the file's name.")
]
At = Annotated[
    str | None,
    typer.Option(
        "--time", "-t", metavar="TIME", help="A moment such as 2026-11-21T12:00Z, or a number; else the commit's."
    ),
]
TimeOfAll = Annotated[
    str | None, typer.Option("--time", "-t", metavar="TIME", help="The time of all rows; else that of the commit.")
]
TimeColumn = Annotated[str | None, typer.Option(metavar="COLUMN", help="The column with the time of each row.")]
Future = Annotated[
    bool, typer.Option("--allow-future", help="Accept times that are more than a day ahead of the clock.")
]
SealTo = Annotated[str | None, typer.Option(metavar="TIME", help="Seal to this time with the last commit.")]
Token = Annotated[str | None, typer.Option(help="A name by which the load happens once; else the file's hash.")]
Ignore = Annotated[
    list[str] | None, typer.Option("--ignore", metavar="COLUMN", help="Leave a column out; may be repeated.")
]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Leave rows out that do not fit, and write the others.")]
Where = Annotated[
    str | None, typer.Option("--where", metavar="CONDITION", help="Such as \"status = 'paid' and amount > 5\".")
]


Keys = Annotated[str | None, typer.Option("--keys", metavar="FILE", help="A file with the key columns.")]
OrderBy = Annotated[
    list[str] | None, typer.Option(metavar="COLUMN", help="With --keyed: orders the events of a key; may be repeated.")
]
Tombstone = Annotated[
    str | None, typer.Option(metavar="COLUMN", help="With --keyed: the column that marks deleted keys.")
]
Ties = Annotated[
    str, typer.Option(help='With --keyed: of events that are equal in order, "last" to arrive or "greatest" value.')
]


def make_keyed_form(
    keyed: bool, order_by: list[str] | None, tombstone: str | None, ties: str, resolve: str = "seal"
) -> "persist.Keyed | None":
    """Return the declaration of a keyed collection from options; None if it is not keyed."""
    if not keyed and (order_by or tombstone is not None or ties != "last" or resolve != "seal"):
        raise persist.InvalidUsage("--order-by, --tombstone, --ties and --resolve go with --keyed")
    form: Any = {"order_by": order_by or (), "tombstone": tombstone, "ties": ties, "resolve": resolve}
    return persist.Keyed(**form) if keyed else None


@command
def create(
    at: Place,
    collection: Name,
    key: Annotated[
        list[str] | None, typer.Option("--key", "-k", metavar="NAME:TYPE", help="Such as id:int64; may be repeated.")
    ] = None,
    value: Annotated[
        list[str] | None,
        typer.Option("--value", "-v", metavar="NAME:TYPE", help="Such as amount:float64; may be repeated."),
    ] = None,
    like: Annotated[
        str | None, typer.Option(metavar="FILE", help="A file whose columns have the types; unnamed ones are values.")
    ] = None,
    timeline: Annotated[
        str | None, typer.Option(metavar="UNIT", help="Times are s, ms, us or ns since 1970, not plain numbers.")
    ] = None,
    keyed: Annotated[
        bool, typer.Option("--keyed", help="One value per key: it takes events by upsert, and no plain updates.")
    ] = False,
    order_by: OrderBy = None,
    tombstone: Tombstone = None,
    ties: Ties = "last",
    resolve: Annotated[
        str, typer.Option(help='With --keyed: who turns events into updates, "seal" or "background".')
    ] = "seal",
    format: Format = None,
) -> None:
    """Create an empty collection, and the location if it is missing."""
    from persist.tools.cli.columns import parse_columns

    form = make_keyed_form(keyed, order_by, tombstone, ties, resolve)
    sides_of = parse_columns(key or [], value or [], like, format)
    with at.open_writer(may_be_new=True) as client:
        if client.seqno >= 0 and collection in client:
            raise persist.InvalidUsage(f"there is a collection {collection!r} at {client.url}: choose another name")
        collection_handle = client.create_or_load(
            collection,
            key=sides_of[0],
            value=sides_of[1],
            timeline=timeline,
            keyed=form,
        )
        columns = {
            name: str(collection_handle.schema.arrow.field(name).type) for name in collection_handle.schema.columns
        }
        report_done(
            at,
            {"created": collection_handle.name, "location": client.url, "id": collection_handle.id, "columns": columns},
            f"created {collection_handle.name} with {', '.join(f'{n}: {t}' for n, t in columns.items())}",
        )


@command
def write(
    at: Place,
    collection: Name,
    file: File,
    time: TimeOfAll = None,
    time_column: TimeColumn = None,
    diff: Annotated[int | None, typer.Option(help="The diff of rows without _diff: 1 inserts, -1 retracts.")] = None,
    seal: SealTo = None,
    token: Token = None,
    ignore: Ignore = None,
    skip_bad: SkipBad = False,
    allow_future: Future = False,
    key: Annotated[
        list[str] | None,
        typer.Option("--key", "-k", metavar="NAME", help="Create a missing collection with this key; may be repeated."),
    ] = None,
    no_key: Annotated[bool, typer.Option("--no-key", help="Create a missing collection without a key.")] = False,
    mode: Annotated[
        str | None,
        typer.Option(
            metavar="MODE", help="upsert, append, overwrite or error; else upsert with --key, or append without a key."
        ),
    ] = None,
    timeline: Annotated[
        str | None,
        typer.Option(
            metavar="UNIT", help="Of a new collection: s, ms, us, ns or none; else ms, or none for whole numbers."
        ),
    ] = None,
    format: Format = None,
) -> int:
    """Write the rows or updates of a file; with --key, rows replace those of their keys. Repeat it after a crash.

    With --key, the collection, and the location, are created if they are not there, with the columns of the file.
    """
    from persist.tools.cli.loading import Plan

    if key and no_key:
        raise persist.InvalidUsage("--key and --no-key exclude each other")
    if timeline is not None and not (key or no_key):
        raise persist.InvalidUsage(
            "--timeline only applies if the command creates the collection, with --key or --no-key"
        )

    when = _choose_row_times(time, time_column, "a row")
    plan = Plan(when, diff, seal, token, skip_bad, allow_future=allow_future)
    own_key = key or ([] if no_key else None)
    return _load_file(at, collection, file, format, plan, time_column, ignore, own_key, timeline, mode)


@command
def upsert(
    at: Place,
    collection: Name,
    file: File,
    time: TimeOfAll = None,
    time_column: TimeColumn = None,
    seal: SealTo = None,
    token: Token = None,
    late: Annotated[
        str, typer.Option(help='"raise" refuses events that come too late, "collect" leaves them out and counts them.')
    ] = "raise",
    ignore: Ignore = None,
    skip_bad: SkipBad = False,
    allow_future: Future = False,
    format: Format = None,
) -> int:
    """Add events of a file to a keyed collection: new values of keys, or deletions with _deleted true."""
    from persist.tools.cli.loading import Plan

    when, upper = _choose_row_times(time, time_column, "an event"), seal
    plan = Plan(when, None, upper, token, skip_bad, late=late or "raise", allow_future=allow_future)
    return _load_file(at, collection, file, format, plan, time_column, ignore)


def _choose_row_times(time: str | None, time_column: str | None, what: str) -> int | str | None:
    """Return the time of all rows or the column of times; None if rows have `_time`."""
    if time is not None and time_column is not None:
        raise persist.InvalidUsage(f"--time and --time-column exclude each other: {what} has one time")
    from persist.core.timeline import is_column_name  # Here, because help does without it.

    if time_column is not None and not is_column_name(time_column):
        raise persist.InvalidUsage(f"--time-column {time_column!r} looks like a time: rename the column")
    return time_column if time is None else parse_write_time(time)


def _parse_time(time: str | None) -> int | str | None:
    """Return a time as a number, or a moment as text."""
    return None if time is None else parse_write_time(time)


def _load_file(
    at: Place,
    collection: str,
    file: str,
    format: str | None,
    plan: "Plan",
    time_column: str | None,
    ignore: list[str] | None,
    key: list[str] | None = None,
    timeline: str | None = None,
    mode: Any = None,
) -> int:
    """Write a file as updates or, if the plan has `late`, as events; return the exit status."""
    from persist.connect.ingest.row_files import read_names
    from persist.engine.location.opening import choose_write_mode
    from persist.tools.cli.loading import has_begun, load, open_input

    is_events = plan.late is not None
    with open_input(file, format) as rows, at.open_writer(may_be_new=key is not None) as client:
        if key is None:
            target = _load_writable(client, collection, None if is_events else rows)
        else:
            target = _load_or_plan_target(client, collection, rows, key, plan, ignore, timeline)
        if not is_events:
            has_diffs = plan.diff is not None or "_diff" in read_names(rows)
            plan = replace(plan, mode=choose_write_mode(target.handle, mode, names_key=bool(key), has_diffs=has_diffs))
        if plan.mode == "update":
            raise persist.InvalidUsage(
                "--mode update cannot write a file of whole rows: use --mode upsert, or `persist sql` with UPDATE"
            )
        if mode == "error" and target.handle.create is None and not has_begun(target, rows, plan, plan.token):
            raise persist.errors.CollectionExists(collection)
        has_times = plan.time is None and time_column is None and "_time" in read_names(rows)
        if plan.seal is not None and plan.time is None and not has_times:
            raise persist.InvalidUsage(
                f"--seal {plan.seal} goes with times, and neither --time nor a column _time says any: the commit gives "
                "rows one, and seals just after it. Leave --seal out, or give a time"
            )
        source = "_time" if has_times else time_column
        is_new = target.handle.create is not None
        upper = None if is_events or is_new or has_begun(target, rows, plan) else target.upper.time
        try:
            loaded = load(target, rows, _plan_columns(target, source, ignore, upper, is_events=is_events), plan)
        except KeyboardInterrupt:
            if not at.as_json:
                print_remark("persist: interrupted. The same command goes on after the last commit of this one.")
            raise
        late = {"late": target.late_counts} if is_events else {}
        left_out = sum(count for counts in late.values() for count in counts.values())
        done = f"{'gave' if is_events else 'wrote'} {format_count(loaded.rows, 'event' if is_events else 'row')}"
        done += f" to {collection} in {format_count(loaded.commits, 'commit')}"
        done += "" if loaded.time is None else f", at {make_time_format(target)(loaded.time)}"
        done += f", {format_count(left_out, 'late event')} left out" if left_out else ""
        if not loaded.commits and loaded.done_before:
            done += " (all of it was written before: nothing was done)"
        report_done(at, {"collection": collection, **asdict(loaded), **late}, done)
    return OK


@command
def overwrite(
    at: Place,
    collection: Name,
    file: File,
    time: At = None,
    where: Where = None,
    multiset: Annotated[bool, typer.Option("--multiset", help="Let keys have several rows.")] = False,
    token: Token = None,
    ignore: Ignore = None,
    skip_bad: SkipBad = False,
    allow_future: Future = False,
    format: Format = None,
) -> None:
    """Replace all contents by the rows of a file, or those for which a condition is true, from a time on; seal it."""
    from persist.tools.cli.loading import build_overwrite_token, check_rows, open_input, read_rows

    with open_input(file, format) as rows, at.open_writer() as client:
        loaded = _load_writable(client, collection)
        columns = _plan_columns(loaded, None, ignore)
        count, skipped = check_rows(rows, columns, skip_bad=skip_bad)
        when = _parse_time(time)
        # Without a time, the same file may be written again on purpose: only a token marks a repetition.
        mark = token if when is None else token or build_overwrite_token(loaded, rows, when, (where, ignore, skip_bad))
        is_done = loaded.handle.remembers_token(loaded.handle.contents(), mark)
        future = loaded.overwrite(
            read_rows(rows, columns), time=when, where=where, multiset=multiset, token=mark, allow_future=allow_future
        )
        done = {"collection": collection, "rows": count, "skipped": skipped, "seqno": future.result()}
        begin = time or make_time_format(loaded)(future.time or 0)
        line = f"{collection} has the {count:,} rows of {rows.name} from {begin} on"
        report_done(
            at,
            {**done, "time": future.time, "changed": not is_done},
            f"nothing changed: {line}, by this command given before" if is_done else line,
        )


@command
def delete(
    at: Place,
    collection: Name,
    time: At = None,
    where: Where = None,
    keys: Keys = None,
    ignore: Ignore = None,
    allow_future: Future = False,
    format: Format = None,
) -> None:
    """Retract records from a time on: those of some keys, or those that match a condition."""
    if (where is None) == (keys is None):
        raise persist.InvalidUsage("say what to delete: --where CONDITION, or --keys FILE")
    check_format(keys, format)
    with at.open_writer() as client:
        loaded = _load_writable(client, collection)
        key_rows = None if keys is None else read_keys(loaded, keys, format, ignore)
        future = loaded.delete(key_rows, where=where, time=_parse_time(time), allow_future=allow_future)
        report_done(
            at,
            {"collection": collection, "seqno": future.result(), "time": future.time},
            f"deleted from {collection} at {time or make_time_format(loaded)(future.time or 0)}",
        )


@command
def restore(
    at: Place,
    collection: Name,
    as_of: Annotated[str, typer.Argument(metavar="AS_OF", help="The time, moment or tag whose contents to restore.")],
    time: At = None,
    token: Annotated[str | None, typer.Option(help="A name by which the command happens once.")] = None,
    allow_future: Future = False,
) -> None:
    """Make the contents of a collection equal to an earlier time; history stays."""
    with at.open_writer() as client:
        loaded = _load_writable(client, collection)
        future = loaded.restore(as_of, time=_parse_time(time), token=token, allow_future=allow_future)
        done = {"collection": collection, "as_of": as_of, "seqno": future.result(), "time": future.time}
        start = time or make_time_format(loaded)(future.time or 0)
        report_done(at, done, f"{collection} holds what it held as of {as_of}, from {start} on")


@command
def seal(
    at: Place,
    collection: Name,
    upper: Annotated[str | None, typer.Argument(metavar="TIME", help="The first time that stays open.")] = None,
    for_ever: Annotated[
        bool, typer.Option("--for-ever", help="Complete the collection: no more updates will come.")
    ] = False,
    allow_future: Future = False,
) -> None:
    """Promise that no more updates come before a time, so that it can be read."""
    if (upper is None) == (not for_ever):
        raise persist.InvalidUsage("say to which time: persist seal LOCATION COLLECTION TIME, or --for-ever")
    with at.open_writer() as client:
        loaded = _load_writable(client, collection)
        end = persist.Antichain() if upper is None else upper
        seqno = loaded.seal(end, allow_future=allow_future).result()
        now = loaded.upper.time
        report_done(
            at,
            {"collection": collection, "upper": now, "seqno": seqno},
            f"{collection} is complete {'for ever' if now is None else f'before {make_time_format(loaded)(now)}'}",
        )


@command
def drop(at: Place, collection: Name, yes: Yes = False) -> None:
    """Remove a collection with all its history, after a prompt."""
    with at.open_writer() as client:
        loaded = client.load(collection)
        if not yes:
            confirm(f"Drop {collection!r} at {client.url}, with all its history?", f"{collection!r} was not dropped")
        seqno = loaded.drop().result()
        report_done(at, {"dropped": collection, "seqno": seqno}, f"dropped {collection}")


def check_format(keys: str | None, format: str | None) -> None:
    """Raise InvalidUsage if there is a format without a file."""
    if keys is None and format is not None:
        raise persist.InvalidUsage("--format is the format of the file of --keys: add --keys, or leave --format out")


def read_keys(
    collection: "persist.Collection", file: str, format: str | None, ignore: Sequence[str] | None = None
) -> "pa.Table":
    """Return the key columns of the rows in a file."""
    import pyarrow as pa

    from persist.tools.cli.loading import check_rows, open_input, read_rows

    with open_input(file, format) as rows:
        columns = _plan_columns(collection, None, ignore, keys_only=True)
        check_rows(rows, columns, skip_bad=False)
        return pa.table(read_rows(rows, columns).read_all())


def _load_writable(client: "persist.Client", collection: str, rows: "RowFile | None" = None) -> "persist.Collection":
    """Return a collection; raise InvalidUsage for a view, which only its query writes.

    `rows`: the file from which the collection could be created; the error suggests it.
    """
    try:
        loaded = client.load(collection)
    except persist.errors.CollectionNotFound as error:
        if rows is None:
            raise
        raise persist.InvalidUsage(
            f"{error.describe()} To create it with the columns of {rows.name}, say which are its key: "
            "--key NAME, or --no-key"
        ) from error
    if loaded.handle.contents().view is not None:
        raise persist.InvalidUsage(
            f"{collection!r} is a view: its query determines its contents, and nothing else writes or seals it. "
            "Write to the collections that it reads, then use persist refresh"
        )
    return loaded


def _load_or_plan_target(
    client: "persist.Client",
    collection: str,
    rows: "RowFile",
    key: list[str],
    plan: "Plan",
    ignore: list[str] | None,
    timeline: str | None,
) -> "persist.Collection":
    """Return the collection with this key, or a new one, created by the first commit."""
    import pyarrow as pa

    from persist.engine.location.opening import find_row_target
    from persist.tools.cli.columns import read_columns

    is_new = client.seqno < 0 or collection not in client
    types = read_columns(rows) if is_new else {}
    columns = pa.schema([(name, kind) for name, kind in types.items() if name not in (ignore or ())])
    unit: Any = ... if timeline is None else None if timeline == "none" else timeline
    handle = find_row_target(client.engine, collection, columns, key=key, timeline=unit, time=plan.time)
    return _load_writable(client, collection) if handle.create is None else persist.Collection(handle)


def _plan_columns(
    collection: "persist.Collection",
    time_column: str | None,
    ignore: Sequence[str] | None,
    upper: int | None = None,
    *,
    is_events: bool = False,
    keys_only: bool = False,
) -> "RowColumns":
    """Return which columns of a file to read, for updates, events or keys."""
    from persist.connect.ingest.row_columns import RowColumns

    return RowColumns(
        collection.schema,
        "leave it out of the file, or say --ignore {}",
        None if keys_only else "_deleted" if is_events else "_diff",
        time_column,
        keys_only=keys_only,
        ignored=tuple(ignore or ()),
        upper=upper,
    )
