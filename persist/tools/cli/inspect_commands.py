"""Commands that look at a location and read no data: ls, show, log, holds."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

import persist
from persist.core.rendering import format_moment
from persist.tools.cli.command import OK, Name, command
from persist.tools.cli.listing import Listing, Watch, make_column, make_time_column, show_listing
from persist.tools.cli.place import Place
from persist.tools.cli.read_commands import Format, Output
from persist.tools.cli.text import print_remark, print_text


def _format_unsealed(row: Mapping[str, Any]) -> object:
    return f"{row['unsealed']:,}" if row["unsealed"] else "-"


COLLECTIONS = Listing(
    kinds={
        "name": "string", "rows": "int64", "bytes": "int64", "parts": "int64", "since": "int64", "upper": "int64",
        "since_moment": "string", "upper_moment": "string", "holds": "int64", "unsealed": "int64",
    },
    shown={
        "name": make_column("name"), "rows": lambda row: "?" if row["rows"] is None else f"{row['rows']:,}",
        "bytes": make_column("bytes"), "since": make_time_column("since"), "upper": make_time_column("upper"),
        "parts": make_column("parts"), "holds": make_column("holds"), "unsealed": _format_unsealed,
    },
    right=["rows", "bytes", "since", "upper", "parts", "holds", "unsealed"],
    spare=("parts", "holds", "since", "bytes"),
)  # fmt: skip
HOLDS = Listing(
    kinds={
        "collection": "string", "hold": "string", "time": "int64", "time_moment": "string", "holder": "string",
        "until": "string",
    },
    shown={
        "collection": make_column("collection"), "hold": make_column("hold"), "time": make_time_column("time"),
        "holder": make_column("holder"), "until": lambda row: row["until"] or "released",
    },
    right=["time"],
    spare=("until", "holder"),
)  # fmt: skip
COSTS = Listing(
    kinds={
        "kind": "string", "requests": "int64", "request_bytes": "int64", "objects": "int64", "bytes": "int64",
        "dollars": "float64",
    },
    shown={
        **{name: make_column(name) for name in ("kind", "requests", "request_bytes", "objects", "bytes")},
        "dollars a month": lambda row: f"{row['dollars']:,.4f}",
    },
    right=["requests", "request_bytes", "objects", "bytes", "dollars a month"],
    spare=("objects", "request_bytes"),
)  # fmt: skip
RECORDS = {"seqno": "int64", "at": "string", "writer": "string", "did": "texts"}


@command
def ls(
    at: Place,
    prefix: Annotated[str, typer.Argument(metavar="PREFIX", help="Only names that begin like this.")] = "",
    format: Format = None,
    output: Output = None,
    watch: Watch = False,
) -> int:
    """List the collections: rows, bytes, since, upper, holds, and what is not sealed yet."""
    from persist.tools.reports.surveys import load_facts

    with at.open_reader() as client:

        def look() -> list[dict[str, Any]]:
            return [facts.as_json() for facts in load_facts(client, client.collections(prefix))]

        show_listing(at, client, COLLECTIONS, look, format, output, watch=watch)
    return OK


COLUMNS = Listing(kinds={"side": "string", "name": "string", "type": "string"}, shown={})


@command
def show(at: Place, collection: Name, format: Format = None, output: Output = None) -> int:
    """Show one collection: schema, times, holds, history, keyframes, sizes, and what reading it costs.

    JSON has all of it; other formats have the columns.
    """
    from persist.tools.cli.portrait import print_portrait
    from persist.tools.reports.surveys import load_portrait

    with at.open_reader() as client:
        summary = load_portrait(client, client.load(collection))
    document = summary.as_json()
    COLUMNS.write_document(at, document, lambda: print_portrait(summary), lambda: document["columns"], format, output)
    return OK


@command
def holds(
    at: Place,
    collections: Annotated[
        list[str] | None, typer.Argument(metavar="COLLECTION", help="Of which ones; all by default.")
    ] = None,
    format: Format = None,
    output: Output = None,
    watch: Watch = False,
) -> int:
    """List who keeps since back."""
    with at.open_reader() as client:
        show_listing(at, client, HOLDS, lambda: _list_holds(client, collections), format, output, watch=watch)
    return OK


def _list_holds(client: "persist.Client", collections: list[str] | None) -> list[dict[str, Any]]:
    from persist.tools.reports.surveys import Facts, format_hold, get_names_by_id

    rows: list[dict[str, Any]] = []
    names = get_names_by_id(client)
    for name in collections or client.collections():
        try:
            loaded = client.load(name)
            own_holds, moment = loaded.holds(), Facts(loaded.handle.contents()).moment
        except persist.errors.CollectionNotFound:
            if collections:
                raise
            continue  # It was dropped meanwhile.
        for hold in own_holds:
            rows.append(
                {
                    "collection": name,
                    "hold": format_hold(hold.name, names) if hold.name else None,
                    "time": hold.kept,
                    "time_moment": moment(hold.kept),
                    "holder": hold.holder,
                    "until": None if hold.expires_ms is None else format_moment(hold.expires_ms / 1000),
                }
            )
    return rows


@command
def log(
    at: Place,
    collection: Annotated[str | None, typer.Option("--collection", "-c", help="Only records about this one.")] = None,
    last: Annotated[int, typer.Option("--last", "-n", min=1, max=100_000, help="How many records.")] = 20,
    before: Annotated[int | None, typer.Option(min=0, help="Only records before this seqno.")] = None,
    format: Format = None,
    output: Output = None,
) -> int:
    """Show the newest records of the log as a person reads them, the oldest of them first."""
    from persist.tools.cli.portrait import RecordTexts, read_records_before
    from persist.tools.cli.row_output import choose_format

    with at.open_reader() as client:
        id_ = None if collection is None else client.load(collection).id
        records, is_cut = read_records_before(client, before, last, id_)
        teller = RecordTexts(client)
        did = [teller.sentences(record) for record in records]
    row_format = choose_format(format, output, at.as_json)
    if row_format != "table" or output is not None:
        rows: list[dict[str, Any]] = [
            {
                "seqno": record.seqno,
                "at": format_moment(record.written_ms / 1000),
                "writer": record.writer,
                "did": sentences,
            }
            for record, sentences in zip(records, did, strict=True)
        ]
        Listing(RECORDS, {}).write(at, rows, format, output)
        return OK
    for record, sentences in zip(records, did, strict=True):
        exclusive = "" if record.epoch is None else f", epoch {record.epoch}"
        print_text(f"{record.seqno:>8}  {format_moment(record.written_ms / 1000)}  {record.writer}{exclusive}")
        for sentence in sentences:
            print_text(f"          {sentence}")
    if is_cut:
        print_remark("Older records are not kept any more.")
    return OK


@command
def cost(
    at: Place,
    hours: Annotated[int, typer.Option(min=1, max=24, help="How many hours back new objects count as PUTs.")] = 24,
    prices: Annotated[
        str | None, typer.Option(metavar="FILE", help="A JSON object of dollars: puts_1000, gets_1000, lists_1000, …")
    ] = None,
    format: Format = None,
    output: Output = None,
) -> int:
    """Show the PUTs of the last day, the bytes stored, and the monthly price of both."""
    from persist.tools.reports.costs import LIST_PRICES, Prices, estimate_costs

    price_list = LIST_PRICES if prices is None else Prices.from_file(prices)
    with at.open_reader() as client:
        costs = estimate_costs(client, price_list, hours=hours)
        COSTS.write(at, [kind.as_json() for kind in costs.kinds], format, output)
    print_remark(
        f"Of the objects that were made since {format_moment(costs.since_s)}, {costs.made:,} are still there: "
        "there were "
        f"at least as many PUTs. This command itself has sent {costs.sent:,} requests. Each process counts its own "
        "requests in the metric persist_store_requests_total. The store's own metrics and its bill have all of them."
    )
    return OK
