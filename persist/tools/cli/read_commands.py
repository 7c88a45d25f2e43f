"""Commands that read data: read, changes, diff, tail, wait."""

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

import persist
from persist.tools.cli.command import OK, PROBLEMS, Name, Terminated, command
from persist.tools.cli.place import Place, report_done
from persist.tools.cli.text import format_cell, format_error, print_remark, print_text
from persist.tools.reports.times import make_time_format

if TYPE_CHECKING:
    import pyarrow as pa

AsOf = Annotated[
    str | None,
    typer.Option(
        "--as-of", metavar="TIME", help="A time, or a moment such as 2026-11-21T12:00Z; else the latest sealed."
    ),
]
Columns = Annotated[str | None, typer.Option("--columns", metavar="A,B", help="Only these columns.")]
Where = Annotated[
    str | None, typer.Option("--where", metavar="CONDITION", help="Such as \"status = 'paid' and amount > 5\".")
]
Format = Annotated[
    str | None,
    typer.Option("--format", "-f", help="table, csv, json (lines), parquet or arrow; else by the file's name."),
]
Output = Annotated[str | None, typer.Option("--output", "-o", metavar="FILE", help="Write to a file.")]
Limit = Annotated[int | None, typer.Option("--limit", "-n", min=0, help="At most so many rows.")]


Version = Annotated[
    int | None, typer.Option("--schema", min=1, help="Read with this version of the schema, not the newest.")
]
Timeout = Annotated[
    float, typer.Option("--timeout", min=0, metavar="SECONDS", help="How long to wait for the time to be sealed.")
]


@command
def read(
    at: Place,
    collection: Name,
    as_of: AsOf = None,
    columns: Columns = None,
    where: Where = None,
    form: Annotated[str, typer.Option(help='"rows", or "diff" for each record once, with its multiplicity.')] = "rows",
    limit: Limit = None,
    format: Format = None,
    output: Output = None,
    schema: Version = None,
    timeout: Timeout = 0.0,
) -> None:
    """Read the contents of a collection as of a time."""
    from persist.tools.cli.row_output import choose_format, write_rows

    row_format = choose_format(format, output, at.as_json)
    with at.open_reader() as client:
        loaded = client.load(collection)
        chosen = build_read_arguments(columns, where)
        read = loaded.snapshot(as_of, form=form, schema=schema, timeout_s=timeout, **chosen)  # type: ignore[arg-type]
        with read as snapshot:
            write_rows(snapshot.schema, snapshot.to_batches(), row_format, output, limit)


@command
def changes(
    at: Place,
    collection: Name,
    start: Annotated[str, typer.Argument(metavar="START", help="The first time to read.")],
    until: Annotated[
        str | None, typer.Argument(metavar="UNTIL", help="The first time to leave out; else all sealed ones are read.")
    ] = None,
    columns: Columns = None,
    where: Where = None,
    form: Annotated[
        str, typer.Option(help='"updates", or "transitions": inserts, updates with old and new values, deletes.')
    ] = "updates",
    limit: Limit = None,
    format: Format = None,
    output: Output = None,
    schema: Version = None,
    timeout: Timeout = 0.0,
) -> None:
    """Read the updates with START <= time < UNTIL, in the order of their times."""
    from persist.tools.cli.row_output import choose_format, write_rows

    row_format = choose_format(format, output, at.as_json)
    with at.open_reader() as client:
        loaded = client.load(collection)
        chosen = build_read_arguments(columns, where)
        chosen |= {"form": form, "schema": schema, "timeout_s": timeout}
        with loaded.changes(start, until, **chosen) as updates:
            write_rows(updates.schema, updates.to_batches(), row_format, output, limit, in_order=True)


@command
def diff(
    at: Place,
    collection: Name,
    first: Annotated[str, typer.Argument(metavar="FIRST", help="A time or moment.")],
    second: Annotated[str, typer.Argument(metavar="SECOND", help="Another time or moment.")],
    columns: Columns = None,
    where: Where = None,
    limit: Limit = None,
    format: Format = None,
    output: Output = None,
) -> None:
    """Show the differences between the contents as of FIRST and SECOND: old and new values side by side."""
    from persist.tools.cli.row_output import choose_format, write_rows

    row_format = choose_format(format, output, at.as_json)
    with at.open_reader() as client:
        loaded = client.load(collection)
        table = loaded.diff(first, second, timeout_s=0, **build_read_arguments(columns, where))
        write_rows(table.schema, table.to_batches(), row_format, output, limit)


@command
def tail(
    at: Place,
    collection: Name,
    as_of: Annotated[
        str | None,
        typer.Option("--as-of", metavar="TIME", help="Begin after this time; else with the next updates."),
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help="End when all before this time was shown.")
    ] = None,
    format: Annotated[str, typer.Option("--format", "-f", help="table, csv or json (lines).")] = "table",
) -> None:
    """Follow a collection: print its updates as soon as they are sealed, until it is interrupted."""
    from persist.tools.cli.row_output import choose_format

    row_format = choose_format("json" if at.as_json and format == "table" else format, None, at.as_json)
    if row_format not in ("table", "csv", "json"):
        raise persist.InvalidUsage(
            f"--format {row_format} is not for tail, which prints updates as they are sealed: use table, csv or json"
        )
    with at.open_reader() as client:
        loaded = client.load(collection)
        _report_waiting(loaded, "what comes now is shown as it is sealed")
        with suppress(Terminated):  # It has no end of its own, so this one is as good as any.
            follow(loaded, as_of, until=until, format=row_format)


@command
def wait(
    at: Place,
    collection: Name,
    until: Annotated[str, typer.Option("--until", metavar="TIME", help="The time or moment to wait for.")],
    timeout: Annotated[
        float | None, typer.Option("--timeout", min=0.01, metavar="SECONDS", help="How long to wait; else for ever.")
    ] = None,
) -> int:
    """Wait until a time of a collection is sealed, and then end with status 0.

    It waits as long as it takes, or for the seconds of --timeout. Status 1 means that it was not sealed in time.
    """
    from persist.core.errors import AsOfCompacted, AsOfNotSealed
    from persist.core.timeline import parse_time_word

    with at.open_reader() as client:
        handle = client.load(collection)
        time = parse_time_word(until, client.engine.clock.wall_ms()) or until  # Reads take what is sealed by then.
        _report_waiting(handle, f"waiting for {until}")
        try:
            handle.snapshot(time, timeout_s=timeout).close()
        except AsOfNotSealed as error:
            print_remark(f"persist: {format_error(error)}")
            return PROBLEMS
        except AsOfCompacted:
            print_remark(f"{collection} was complete up to {until} long ago: history that old is no longer kept")
        upper = handle.upper.time
        report_done(at, {"collection": collection, "upper": upper}, f"{collection} is complete up to {until}")
    return OK


def _report_waiting(collection: "persist.Collection", what: str) -> None:
    """Print on a terminal up to which time a collection is sealed."""
    if sys.stdout.isatty():
        upper = collection.upper.time
        sealed = "complete" if upper is None else f"sealed before {make_time_format(collection)(upper)}"
        print_remark(f"{collection.name} is {sealed}: {what}. Ctrl-C ends it.")


def build_read_arguments(columns: str | None, where: str | None) -> dict[str, Any]:
    """Return the `columns` and `where` arguments of a read."""
    return {"columns": None if columns is None else [name.strip() for name in columns.split(",")], "where": where}


def follow(collection: "persist.Collection", as_of: int | str | None, *, until: int | str | None, format: str) -> None:
    """Print updates as they are sealed, until a time or completion."""
    from persist.tools.reports.surveys import Facts

    brief = Facts(collection.handle.contents()).brief
    end = None if until is None else collection.handle.as_bound("until", until)
    if end is not None and as_of is not None and collection.handle.as_time("as_of", as_of) + 1 >= end:
        raise persist.InvalidUsage(f"no time is after {as_of} and before {until}: give --until a later one")
    if end is not None and as_of is None and (sealed := collection.upper) >= persist.Antichain(end):
        sealed_to = "for ever" if sealed.time is None else f"before {brief(sealed.time)}"
        print_remark(f"-- complete {sealed_to}")  # Nothing of before now is shown.
        return
    upper = collection.upper.time
    after = as_of if as_of is not None else upper - 1 if upper else None
    with collection.listen(after, times="int") as listen:
        printed = False
        for progress in listen:
            _print_updates(progress.updates, format, brief, with_head=not printed)
            printed = True
            upper = progress.upper.time
            if format == "table":
                print_remark(f"-- complete {'for ever' if upper is None else f'before {brief(upper)}'}")
            sys.stdout.flush()
            if end is not None and progress.upper >= persist.Antichain(end):
                return


def _print_updates(updates: "pa.Table", format: str, brief: Callable[[int], str], *, with_head: bool) -> None:
    """Print updates as a table, CSV or JSON lines."""
    if format == "json":
        from persist.connect.egress.files import JsonLinesWriter

        lines = JsonLinesWriter(sys.stdout.buffer)
        for batch in updates.to_batches():
            lines.write_batch(batch)
    elif format == "csv":
        from persist.connect.egress.files import CsvWriter

        sys.stdout.flush()
        table = CsvWriter(updates.schema, sys.stdout.buffer, with_head=with_head)
        for batch in updates.to_batches():
            table.write_batch(batch)
        table.close()
    else:
        from persist.codecs.types.objects import to_dicts

        names = [name for name in updates.column_names if name not in ("_time", "_diff")]
        for row in to_dicts(updates, " "):
            values = "  ".join(f"{name}={format_cell(row[name])}" for name in names)
            print_text(f"{brief(row['_time'])}  {row['_diff']:>+3d}  {values}")
