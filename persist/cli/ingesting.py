"""The commands that take in files, databases and topics, and that send collections there: ingest, egress."""

from typing import Annotated, Any

import typer

import persist
from persist.cli.command import OK, command, stopped_by_sigterm
from persist.cli.place import Place, tell_done
from persist.shown import counted


@command
def ingest(
    at: Place,
    source: Annotated[
        str,
        typer.Argument(metavar="SOURCE", help="A TOML file that describes a source, or its URL: docs/ingest.md."),
    ],
    collection: Annotated[
        str | None, typer.Option(metavar="NAME", help="The collection that gets the rows of files.")
    ] = None,
    key: Annotated[
        list[str] | None, typer.Option("--key", "-k", metavar="COLUMN", help="Of its key; may be repeated.")
    ] = None,
    publication: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of a database: whose tables are taken in.")
    ] = None,
    tables: Annotated[
        list[str] | None, typer.Option(metavar="TABLE", help="Only these of its tables; may be repeated.")
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option(metavar="TABLE.COLUMN", help="Leave a column out; may be repeated.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="End when all that is there by now was taken in.")] = False,
) -> int:
    """Take in files, a database or a topic exactly once, and follow it. Given again, it goes on where it was."""
    options: dict[str, Any] = {"collection": collection, "key": key}
    options |= {"publication": publication, "tables": tables, "exclude": exclude}
    options = {name: value for name, value in options.items() if value is not None}
    with at.writing(may_be_new=True, background=True) as client, stopped_by_sigterm() as stop:
        done = persist.ingest(client, source, once=once, stop=stop, **options)
        line = f"took in {counted(done.rows, 'row')} from {done.source} in {counted(done.commits, 'commit')}"
        tell_done(
            at,
            {"source": done.source, "rows": done.rows, "commits": done.commits, "uppers": dict(done.uppers)},
            line if done.commits else f"nothing is new at {done.source}",
        )
    return OK


@command
def egress(
    at: Place,
    sink: Annotated[
        str,
        typer.Argument(metavar="SINK", help="A TOML file that describes a target, or its URL: docs/egress.md."),
    ],
    collection: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A collection or view to send; may be repeated.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="End when all that is sealed by now was sent.")] = False,
    drop: Annotated[
        bool, typer.Option("--drop", help="Send nothing: give up the holds and what the target knows of them.")
    ] = False,
) -> int:
    """Send collections to a database, topics or files exactly once, and follow. Given again, it goes on."""
    options: dict[str, Any] = {} if collection is None else {"collections": collection}
    with at.writing(background=True) as client, stopped_by_sigterm() as stop:
        done = persist.egress(client, sink, once=once, drop=drop, stop=stop, **options)
        said = {"sink": done.sink, "rows": done.rows, "commits": done.commits, "uppers": dict(done.uppers)}
        if drop:
            line = f"gave up {counted(len(done.dropped), 'hold')} of {done.sink}"
            tell_done(at, {**said, "dropped": list(done.dropped)}, line)
            return OK
        line = f"sent {counted(done.rows, 'row')} to {done.sink} in {counted(done.commits, 'transaction')}"
        tell_done(at, said, line if done.commits else f"nothing is new for {done.sink}")
    return OK
