"""Commands that look at a location and read no data: ls, show, log, holds."""

from dataclasses import asdict
from typing import Annotated, Any

import typer

import persist
from persist.core.rendering import format_moment
from persist.tools.cli.command import Name, command
from persist.tools.cli.listing import Listing, Watch, make_column, make_time_column, show_listing
from persist.tools.cli.place import Place
from persist.tools.cli.text import print_json, print_remark, print_text

COLLECTIONS = Listing(
    shown={
        "name": make_column("name"), "rows": lambda row: "?" if row["rows"] is None else f"{row['rows']:,}",
        "bytes": make_column("bytes"), "upper": make_time_column("upper"),
        "unsealed": lambda row: f"{row['unsealed']:,}" if row["unsealed"] else "-",
    },
    right=["rows", "bytes", "upper", "unsealed"],
)  # fmt: skip
HOLDS = Listing(
    shown={
        "collection": make_column("collection"), "hold": make_column("hold"), "time": make_time_column("time"),
        "holder": make_column("holder"), "until": lambda row: row["until"] or "released",
    },
    right=["time"],
)  # fmt: skip
COSTS = Listing(
    shown={
        **{name: make_column(name) for name in ("kind", "requests", "request_bytes", "objects", "bytes")},
        "dollars a month": lambda row: f"{row['dollars']:,.4f}",
    },
    right=["requests", "request_bytes", "objects", "bytes", "dollars a month"],
)  # fmt: skip


@command
def ls(
    at: Place,
    prefix: Annotated[str, typer.Argument(metavar="PREFIX", help="Only names that begin with this.")] = "",
    watch: Watch = False,
) -> None:
    """List the collections: rows, bytes, upper, and what is not sealed yet."""
    from persist.tools.reports.surveys import load_facts

    with at.open_reader() as client:

        def look() -> list[dict[str, Any]]:
            return [facts.as_json() for facts in load_facts(client, client.collections(prefix))]

        show_listing(at, client, COLLECTIONS, look, watch=watch)


@command
def show(at: Place, collection: Name) -> None:
    """Show one collection: schema, times, holds, history, keyframes, sizes, and the cost of a read."""
    from persist.tools.cli.portrait import print_portrait
    from persist.tools.reports.surveys import load_portrait

    with at.open_reader() as client:
        summary = load_portrait(client, client.load(collection))
    if at.as_json:
        print_json(summary.as_json())
    else:
        print_portrait(summary)


@command
def holds(
    at: Place,
    collections: Annotated[
        list[str] | None, typer.Argument(metavar="COLLECTION", help="The collections; all by default.")
    ] = None,
    watch: Watch = False,
) -> None:
    """List the holds and leases that keep since back."""
    with at.open_reader() as client:
        show_listing(at, client, HOLDS, lambda: _list_holds(client, collections), watch=watch)


def _list_holds(client: "persist.Client", collections: list[str] | None) -> list[dict[str, Any]]:
    """Return the holds of collections, each as a row of the list."""
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
) -> None:
    """Show the newest records of the log as sentences, the oldest of them first."""
    from persist.tools.cli.portrait import RecordTexts, read_last_records

    with at.open_reader() as client:
        id_ = None if collection is None else client.load(collection).id
        records, is_cut = read_last_records(client, last, id_)
        teller = RecordTexts(client)
        did = [teller.sentences(record) for record in records]
    for record, sentences in zip(records, did, strict=True):
        moment = format_moment(record.written_ms / 1000)
        if at.as_json:
            print_json({"seqno": record.seqno, "at": moment, "writer": record.writer, "did": sentences})
            continue
        exclusive = "" if record.epoch is None else f", epoch {record.epoch}"
        print_text(f"{record.seqno:>8}  {moment}  {record.writer}{exclusive}")
        for sentence in sentences:
            print_text(f"          {sentence}")
    if is_cut and not at.as_json:
        print_remark("Older records are not kept any more.")


@command
def cost(
    at: Place,
    prices: Annotated[
        str | None, typer.Option(metavar="FILE", help="A JSON object of dollars: puts_1000, gets_1000, lists_1000, …")
    ] = None,
) -> None:
    """Show the PUTs of the last day, the bytes stored, and the monthly price of both."""
    from persist.tools.reports.costs import LIST_PRICES, Prices, estimate_costs

    price_list = LIST_PRICES if prices is None else Prices.from_file(prices)
    with at.open_reader() as client:
        costs = estimate_costs(client, price_list)
        COSTS.write(at, [asdict(kind) for kind in costs.kinds])
    print_remark(
        f"Of the objects that were made since {format_moment(costs.since_s)}, {costs.made:,} are still there: "
        "there were "
        f"at least as many PUTs. This command itself has sent {costs.sent:,} requests. Each process counts its own "
        "requests in the metric persist_store_requests_total. The store's own metrics and its bill have all of them."
    )
