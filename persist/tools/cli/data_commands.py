"""Commands that change a schema or index it, move data in and out, and serve it: evolve, index, ingest, publish …"""

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

import persist
from persist.core.rendering import format_count
from persist.tools.cli.command import Name, Terminated, catch_sigterm, command
from persist.tools.cli.listing import Listing, make_column, make_time_column
from persist.tools.cli.place import Place, report_done
from persist.tools.cli.read_commands import AsOf, Columns, Where, build_read_arguments
from persist.tools.cli.text import print_json, print_remark, print_text
from persist.tools.cli.write_commands import OrderBy, Ties, Tombstone, make_keyed_form
from persist.tools.reports.times import make_time_format

TOKEN_VARIABLE, WRITE_TOKEN_VARIABLE = "PERSIST_SERVE_TOKEN", "PERSIST_SERVE_WRITE_TOKEN"


@command
def evolve(
    at: Place,
    collection: Name,
    add: Annotated[list[str] | None, typer.Option(metavar="NAME:TYPE", help="A value column; may be repeated.")] = None,
    drop: Annotated[list[str] | None, typer.Option(metavar="NAME", help="A value column; may be repeated.")] = None,
    rename: Annotated[list[str] | None, typer.Option(metavar="OLD=NEW", help="A column; may be repeated.")] = None,
    widen: Annotated[
        list[str] | None, typer.Option(metavar="NAME:TYPE", help="A wider type for a column; may be repeated.")
    ] = None,
    default: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="The value of an added column in older records.")
    ] = None,
    keyed: Annotated[
        bool, typer.Option("--keyed", help="Make the collection keyed: it takes events by upsert from now on.")
    ] = False,
    order_by: OrderBy = None,
    tombstone: Tombstone = None,
    ties: Ties = "last",
) -> None:
    """Change the schema of a collection, for reads of all times; no data is rewritten."""
    from persist.tools.cli.columns import parse_named_type

    names = dict(_parse_pair(renaming) for renaming in rename or [])
    if not (add or drop or names or widen or keyed):
        raise persist.InvalidUsage("say what is to change: --add, --drop, --rename, --widen or --keyed")
    form = make_keyed_form(keyed, order_by, tombstone, ties)
    added = dict(map(parse_named_type, add or []))
    with at.open_writer() as client:
        loaded = client.load(collection)
        version = loaded.evolve(
            add=added,
            defaults=_parse_defaults(default or [], added),
            drop=drop or [],
            rename=names,
            widen=dict(map(parse_named_type, widen or [])),
            keyed=form,
        )
        columns = {name: str(loaded.schema.arrow.field(name).type) for name in loaded.schema.columns}
        report_done(
            at,
            {"collection": collection, "version": version, "columns": columns},
            f"{collection} has version {version} of its schema: {', '.join(f'{n}: {t}' for n, t in columns.items())}",
        )


INDEXES = Listing(
    shown={
        "columns": lambda row: ", ".join(row["columns"]), "as_of": make_time_column("as_of"),
        "rows": make_column("rows"), "bytes": make_column("bytes"),
    },
    right=["as_of", "rows", "bytes"],
)  # fmt: skip


@command
def index(
    at: Place,
    collection: Name,
    columns: Annotated[
        list[str] | None,
        typer.Argument(metavar="[COLUMN]...", help="The columns to look up by; none to list the indexes."),
    ] = None,
    drop: Annotated[
        bool, typer.Option("--drop", help="Remove the index by these columns; queries stay correct.")
    ] = False,
) -> None:
    """Create an index by columns, or bring it up to date; without columns, list the indexes."""
    from persist.tools.reports.surveys import Facts

    if drop and not columns:
        raise persist.InvalidUsage("--drop removes one index: name its columns")
    with at.open_writer() if columns else at.open_reader() as client:
        loaded = client.load(collection)
        if drop:
            loaded.drop_index(*columns or ()).result()
            answer = {"collection": collection, "columns": columns, "dropped": True}
            report_done(at, answer, f"dropped the index of {collection} by {', '.join(columns or ())}")
            return
        if columns:
            entry = loaded.index(*columns)
            line = f"{collection} by {', '.join(entry.columns)}: as of {make_time_format(loaded)(entry.as_of)}"
            report_done(at, asdict(entry), f"{line}, {format_count(entry.rows, 'row')}, {entry.bytes:,} bytes")
            return
        moment = Facts(loaded.handle.contents()).moment
        indexes = [{**asdict(entry), "as_of_moment": moment(entry.as_of)} for entry in loaded.indexes()]
        INDEXES.write(at, indexes)


def _parse_defaults(given: list[str], added: dict[str, Any]) -> dict[str, Any]:
    """Return the values of --default, by column, in the types of added columns."""
    import pyarrow as pa

    from persist.codecs.types.texts import parse_column

    defaults: dict[str, Any] = {}
    for name, text in (_parse_pair(assignment, "--default NAME=VALUE") for assignment in given):
        if name not in added:
            raise persist.InvalidUsage(f"--default {name}={text}: {name} is not a column that --add adds")
        try:
            defaults[name] = parse_column(pa.chunked_array([[text]]), added[name])[0]
        except pa.ArrowException as error:
            raise persist.InvalidUsage(f"--default {name}={text} is not of type {added[name]}: {error}") from error
    return defaults


@command
def export(
    at: Place,
    collection: Name,
    target: Annotated[str, typer.Argument(metavar="TARGET", help="A folder that is not there yet, or the URL of one.")],
    as_of: AsOf = None,
    columns: Columns = None,
    where: Where = None,
) -> None:
    """Write the contents of one time as a folder of Parquet files."""
    with at.open_reader() as client:
        loaded = client.load(collection)
        with loaded.snapshot(as_of, timeout_s=0, **build_read_arguments(columns, where)) as snapshot:
            paths = snapshot.export_parquet(target)
        line = f"wrote {format_count(len(paths), 'file')} to {target}"
        report_done(at, {"collection": collection, "target": target, "made": paths}, line)


TableFormat = Annotated[str, typer.Argument(metavar="FORMAT", help="delta or iceberg.")]
FormatVersion = Annotated[
    int | None, typer.Option(metavar="2|3", help="For Iceberg: 3 has deletion vectors, nanoseconds and row lineage.")
]


@command
def publish(
    at: Place,
    collection: Name,
    table: TableFormat = "delta",
    as_of: AsOf = None,
    deletes: Annotated[
        str, typer.Option(help="How deleted rows are marked: vectors, or none for readers without deletion vectors.")
    ] = "vectors",
    every: Annotated[
        str | None, typer.Option(metavar="WHEN", help='Keep it current: seal, keyframe, or "10 minutes".')
    ] = None,
    feed: Annotated[bool, typer.Option("--feed", help="For Delta: write a change feed.")] = False,
    digest: Annotated[bool, typer.Option("--digest", help="Store a digest of the rows with the version.")] = False,
    catalog: Annotated[str | None, typer.Option(help="For Iceberg: a catalog in pyiceberg's configuration.")] = None,
    identifier: Annotated[str | None, typer.Option(help="The name of the table in the catalog.")] = None,
    format_version: FormatVersion = None,
) -> None:
    """Publish a sealed time as a Delta or Iceberg table without copying, or its next version."""
    with at.open_writer() as client:
        loaded = client.load(collection)
        published = loaded.publish(
            table,  # type: ignore[arg-type]
            as_of,
            deletes=deletes,  # type: ignore[arg-type]
            every=every,
            feed=feed,
            digest=digest,
            catalog=catalog,
            identifier=identifier,
            format_version=format_version,
        )
        report_done(at, asdict(published), f"{'published' if published.is_new else 'there already'}: {published}")


@command
def unpublish(at: Place, collection: Name, table: TableFormat = "delta") -> None:
    """Remove a published table; gc then deletes what only this table needed."""
    with at.open_writer() as client:
        was_there = client.load(collection).unpublish(table)  # type: ignore[arg-type]
        line = f"unpublished the {table} table of {collection}" if was_there else f"{collection} has no {table} table"
        report_done(at, {"collection": collection, "table": table, "unpublished": was_there}, line)


@command
def serve(
    at: Place,
    flight: Annotated[str, typer.Option(help="grpc://host:port; port 0 takes a free one.")] = "grpc://127.0.0.1:0",
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Allow an address that other machines reach without a token.")
    ] = False,
    commits: Annotated[
        bool, typer.Option("--commits", help="Commit for others, too: clients opened with commit_through=.")
    ] = False,
    store: Annotated[
        bool, typer.Option("--store", help="Let clients without rights on the store open the location through this.")
    ] = False,
    sql: Annotated[
        bool, typer.Option("--sql", help="Serve Flight SQL, too, for queries of any tool with a driver for it.")
    ] = False,
    sql_memory: Annotated[
        int | None, typer.Option(metavar="MB", help="Most memory of one query; 1,024 by default.")
    ] = None,
    sql_timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="How long one query may take; 300 by default.")
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Serve metrics there, too: http, for Prometheus and Grafana."),
    ] = None,
    postgres: Annotated[
        str | None,
        typer.Option(metavar="[HOST:]PORT", help="Serve Postgres clients there, too: psql, drivers, BI tools."),
    ] = None,
    write: Annotated[bool, typer.Option("--write", help="Let Postgres clients change collections.")] = False,
    iceberg: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Serve the location there as an Iceberg REST catalog, too: http."),
    ] = None,
    iceberg_properties: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="JSON of properties for Iceberg readers, such as credentials of S3."),
    ] = None,
    format_version: FormatVersion = None,
) -> None:
    """Notify other clients of new records and answer their queries, until interrupted.

    Clients must send the token of the environment variable PERSIST_SERVE_TOKEN. The token of PERSIST_SERVE_WRITE_TOKEN
    allows writes through --store, --commits and --write. If both are set, the first token only allows reads.
    """
    token = os.environ.get(TOKEN_VARIABLE)
    # The error reports a taken port in one line; gRPC would print more.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    opened = at.open_writer(background=True) if commits or write or iceberg is not None else at.open_reader()
    with opened as client, ExitStack() as stack, catch_sigterm() as stop:
        write_token = os.environ.get(WRITE_TOKEN_VARIABLE) if store or commits or write else None
        limits: dict[str, Any] = {"memory_bytes": sql_memory and sql_memory << 20, "timeout_s": sql_timeout}
        limits = {name: limit for name, limit in limits.items() if limit is not None}
        from persist.compute.query import QueryLimits  # Here: the other commands start sooner without it.

        if limits and not sql and postgres is None:
            raise persist.InvalidUsage("--sql-memory and --sql-timeout go with --sql or --postgres")
        with _explain_missing_packages() if iceberg is not None else nullcontext():
            server = client.serve(
                flight,
                postgres=f"127.0.0.1:{postgres}" if postgres is not None and postgres.isdecimal() else postgres,
                iceberg=iceberg,
                token=token,
                insecure=insecure,
                write=write,
                commits=commits,
                store=store,
                write_token=write_token,
                sql=QueryLimits(**limits) if limits else sql,
                iceberg_properties=None if iceberg_properties is None else _read_properties(iceberg_properties),
                format_version=2 if format_version is None else format_version,
            )
        stack.enter_context(server)
        addresses = {"url": server.url}
        also = ", and commits to it" * commits + ", and its store" * store + ", in SQL, too" * sql
        line = f"{server.url} serves {client.url}{also}. Ctrl-C ends it."
        if metrics is not None:
            with _explain_missing_packages():
                from persist.tools.web.metrics import serve_metrics
            serving = serve_metrics(client, metrics, token=token, write_token=write_token, insecure=insecure)
            addresses["metrics"] = stack.enter_context(serving)
            line += f"\nMetrics are at {addresses['metrics']}"
        if postgres is not None:
            addresses["postgres"] = server.postgres_url
            line += f"\nPostgres clients connect to {server.postgres_url}"
        if iceberg is not None:
            addresses["iceberg"] = server.iceberg_url
            line += f"\nThe Iceberg catalog is at {server.iceberg_url}"
        report_done(at, addresses, line)
        typer.get_text_stream("stdout").flush()
        stop.wait()


def _read_properties(path: Path) -> dict[str, str]:
    """Return the properties in a file with a JSON object of texts."""
    try:
        properties = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise persist.InvalidUsage(f"--iceberg-properties {path} cannot be read: {error}") from error
    if not isinstance(properties, dict) or not all(isinstance(value, str) for value in properties.values()):
        raise persist.InvalidUsage(
            f'--iceberg-properties {path} is not an object of texts, such as {{"s3.endpoint": "http://host:9000"}}'
        )
    return properties


@contextmanager
def _explain_missing_packages() -> Iterator[None]:
    """Raise InvalidUsage, with the install command, if a package for the page or metrics is missing."""
    try:
        yield
    except ImportError as missing:
        raise persist.InvalidUsage(
            f"the page and the metrics need the package {missing.name}, which is not installed: "
            "pip install 'starlette>=0.45' 'uvicorn>=0.34' 'prometheus-client>=0.21'"
        ) from missing


def _parse_pair(text: str, shape: str = "--rename OLD=NEW") -> tuple[str, str]:
    """Split text such as OLD=NEW into two; raise InvalidUsage for another form."""
    old, equals, new = text.partition("=")
    if not (old and equals and new):
        raise persist.InvalidUsage(f"{text!r} is not of the form {shape}")
    return old, new


@command
def ui(
    at: Place,
    host: Annotated[str, typer.Option(help="Where to listen; other machines can reach all but loopback addresses.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option("--port", "-p", help="0 for any free port.")] = 8420,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A further host name of the page, such as a proxy's; may be repeated."),
    ] = None,
    open_: Annotated[bool, typer.Option("--open", help="Open it in a browser.")] = False,
) -> None:
    """Serve a read-only web page that shows a location, until interrupted."""
    from persist.services.serve.messages import is_loopback

    with _explain_missing_packages():
        from persist.tools.web.app import MEMORY_BUDGET, serve_page
    with (
        suppress(Terminated),
        at.open_reader(memory_budget=MEMORY_BUDGET) as client,
        serve_page(client, host, port, None, allow_host or []) as page,
    ):
        if at.as_json:
            print_json({"url": page.url})
        else:
            print_text(f"{page.url}\nWhoever has this address can read {client.url}. Ctrl-C ends it.")
        if not is_loopback(host):
            print_remark(
                "This address can be reached from other machines, and what it shows goes over the network as it is."
            )
        if open_:
            import webbrowser

            webbrowser.open(page.url)
        page.run()


@command
def ingest(
    at: Place,
    source: Annotated[
        str,
        typer.Argument(metavar="SOURCE", help="A TOML file that describes a source, or its URL: docs/use/ingest.md."),
    ],
    collection: Annotated[
        str | None, typer.Option(metavar="NAME", help="The collection that gets the rows of files.")
    ] = None,
    key: Annotated[
        list[str] | None, typer.Option("--key", "-k", metavar="COLUMN", help="A key column; may be repeated.")
    ] = None,
    publication: Annotated[
        str | None, typer.Option(metavar="NAME", help="For Postgres: the publication with the tables.")
    ] = None,
    tables: Annotated[
        list[str] | None, typer.Option(metavar="TABLE", help="Ingest only this table; may be repeated.")
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option(metavar="TABLE.COLUMN", help="Leave a column out; may be repeated.")
    ] = None,
    as_text: Annotated[
        list[str] | None, typer.Option(metavar="TABLE.COLUMN", help="Keep a column as text; may be repeated.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="End when all present rows are ingested.")] = False,
) -> None:
    """Ingest files, a database or topics exactly once, and follow them. A repeated command continues."""
    options: dict[str, Any] = {"collection": collection, "key": key}
    options |= {"publication": publication, "tables": tables, "exclude": exclude, "as_text": as_text}
    options = {name: value for name, value in options.items() if value is not None}
    with at.open_writer(may_be_new=True, background=True) as client, catch_sigterm() as stop:
        done = persist.ingest(client, source, once=once, stop=stop, **options)
        line = f"took in {format_count(done.rows, 'row')} from {done.source} in {format_count(done.commits, 'commit')}"
        report_done(
            at,
            {"source": done.source, "rows": done.rows, "commits": done.commits, "uppers": dict(done.uppers)},
            line if done.commits else f"nothing is new at {done.source}",
        )


@command
def egress(
    at: Place,
    sink: Annotated[
        str, typer.Argument(metavar="SINK", help="A TOML file that describes a target, or its URL: docs/use/egress.md.")
    ],
    collection: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A collection or view to send; may be repeated.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="End when all that is sealed now was sent.")] = False,
    drop: Annotated[
        bool, typer.Option("--drop", help="Send nothing: release the holds, delete the target's positions.")
    ] = False,
) -> None:
    """Send collections to a database, topics or files exactly once, and follow. A repeated command continues."""
    options: dict[str, Any] = {} if collection is None else {"collections": collection}
    with at.open_writer(background=True) as client, catch_sigterm() as stop:
        done = persist.egress(client, sink, once=once, drop=drop, stop=stop, **options)
        answer = {"sink": done.sink, "rows": done.rows, "commits": done.commits, "uppers": dict(done.uppers)}
        if drop:
            line = f"gave up {format_count(len(done.dropped), 'hold')} of {done.sink}"
            report_done(at, {**answer, "dropped": list(done.dropped)}, line)
            return
        line = f"sent {format_count(done.rows, 'row')} to {done.sink} in {format_count(done.commits, 'transaction')}"
        report_done(at, answer, line if done.commits else f"nothing is new for {done.sink}")
