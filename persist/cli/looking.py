"""Commands that look at a location and read no data: ls, show, log, holds."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

import persist
from persist.cli.command import OK, Name, command
from persist.cli.place import Place
from persist.cli.text import print_json, print_table, say, tell

if TYPE_CHECKING:
    from persist.facts import Facts


@command
def ls(
    at: Place,
    prefix: Annotated[str, typer.Argument(metavar="PREFIX", help="Only names that begin like this.")] = "",
) -> int:
    """List the collections: rows, bytes, since, upper, holds, and what is not sealed yet."""
    with at.reading() as client:
        from persist.facts import survey

        all_facts = [*survey(client, client.collections(prefix))]
    if at.as_json:
        print_json([facts.as_json() for facts in all_facts])
        return OK
    head = ("name", "rows", "bytes", "since", "upper", "parts", "holds", "unsealed")
    rows = []
    for facts in all_facts:
        hidden = facts.unsealed
        updates = "-" if hidden is None else f"{hidden.updates:,}"
        rows_told = "?" if facts.rows is None else f"{facts.rows:,}"
        sizes = (rows_told, f"{facts.bytes:,}", _shown_once(facts, facts.since), _shown_once(facts, facts.upper))
        rows.append((facts.name, *sizes, f"{facts.parts:,}", len(facts.contents.holds), updates))
    print_table(head, rows, right=range(1, 8), spare=("parts", "holds", "since", "bytes"))
    return OK


def _shown_once(facts: "Facts", time: int | None) -> str:
    """Return a time of a list, in which a number and its moment would take two columns."""
    return facts.moment(time) or facts.time(time) if time else facts.time(time)


@command
def show(at: Place, collection: Name) -> int:
    """Show one collection: schema, times, holds, history, keyframes, sizes, and what reading it costs."""
    from persist.cli.portrait import print_portrait
    from persist.facts import portrait

    with at.reading() as client:
        summary = portrait(client, client.load(collection))
    if at.as_json:
        print_json(summary.as_json())
    else:
        print_portrait(summary)
    return OK


@command
def holds(
    at: Place,
    collections: Annotated[
        list[str] | None, typer.Argument(metavar="COLLECTION", help="Of which ones; all by default.")
    ] = None,
) -> int:
    """List who keeps since back."""
    from persist.facts import hold_for_people, names_by_id

    rows: list[dict[str, Any]] = []
    with at.reading() as client:
        names = names_by_id(client)
        for name in collections or client.collections():
            try:
                own_holds = client.load(name).holds()
            except persist.errors.CollectionNotFound:
                if collections:
                    raise
                continue  # It was dropped meanwhile.
            for hold in own_holds:
                until = None if hold.expires_ms is None else _moment(hold.expires_ms)
                rows.append(
                    {"collection": name, "hold": hold.name, "time": hold.kept, "holder": hold.holder, "until": until}
                )
    if at.as_json:
        print_json(rows)
        return OK
    cells = [
        (
            r["collection"],
            hold_for_people(r["hold"], names) if r["hold"] else "-",
            "-" if r["time"] is None else r["time"],
            r["holder"] or "-",
            r["until"] or "released",
        )
        for r in rows
    ]
    print_table(("collection", "hold", "time", "holder", "until"), cells, right=[2])
    return OK


@command
def log(
    at: Place,
    collection: Annotated[str | None, typer.Option("--collection", "-c", help="Only records about this one.")] = None,
    last: Annotated[int, typer.Option("--last", "-n", min=1, max=100_000, help="How many records.")] = 20,
    before: Annotated[int | None, typer.Option(min=0, help="Only records before this seqno.")] = None,
) -> int:
    """Show the newest records of the log as a person reads them, the oldest of them first."""
    from persist.cli.portrait import Told, records_before

    with at.reading() as client:
        id_ = None if collection is None else client.load(collection).id
        records, is_cut = records_before(client, before, last, id_)
        teller = Told(client)
        did = [teller.sentences(record) for record in records]
    if at.as_json:
        print_json(
            [
                {"seqno": record.seqno, "at": _moment(record.written_ms), "writer": record.writer, "did": sentences}
                for record, sentences in zip(records, did, strict=True)
            ]
        )
        return OK
    for record, sentences in zip(records, did, strict=True):
        exclusive = "" if record.epoch is None else f", epoch {record.epoch}"
        say(f"{record.seqno:>8}  {_moment(record.written_ms)}  {record.writer}{exclusive}")
        for sentence in sentences:
            say(f"          {sentence}")
    if is_cut:
        tell("Older records are not kept any more.")
    return OK


def _moment(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
