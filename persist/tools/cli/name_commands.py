"""Commands for names and derived collections: tag, tags, untag, rename, clone, view, refresh, apply."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import persist
from persist.tools.cli.command import Name, Yes, command, confirm
from persist.tools.cli.listing import Listing, make_column, make_time_column
from persist.tools.cli.place import Place, report_done
from persist.tools.cli.read_commands import AsOf
from persist.tools.cli.text import print_json, print_remark, print_text
from persist.tools.reports.times import make_time_format

if TYPE_CHECKING:
    from persist.compute.sql import Wanted

Tag = Annotated[str, typer.Argument(metavar="TAG", help="A name that does not look like a time.")]


@command
def tag(
    at: Place,
    collection: Name,
    name: Tag,
    time: Annotated[str | None, typer.Argument(metavar="TIME", help="A sealed time; else the latest one.")] = None,
    move: Annotated[bool, typer.Option("--move", help="Move the tag if it is at another time.")] = False,
) -> None:
    """Name a sealed time, so that --as-of TAG reads it; it stays readable until the tag is dropped."""
    with at.open_writer() as client:
        loaded = client.load(collection)
        tagged = loaded.tag(name, time, move=move)
        time_text = make_time_format(loaded)(tagged)
        report_done(
            at, {"collection": collection, "tag": name, "time": tagged}, f"{collection} as of {time_text} is {name!r}"
        )


TAGS = Listing(
    shown={"tag": make_column("tag"), "time": make_time_column("time")},
    right=["time"],
)


@command
def tags(at: Place, collection: Name) -> None:
    """List the tags of a collection."""
    from persist.tools.reports.surveys import Facts

    with at.open_reader() as client:
        loaded = client.load(collection)
        times = sorted((time, name) for name, time in loaded.tags().items())
        moment = Facts(loaded.handle.contents()).moment
    TAGS.write(at, [{"tag": name, "time": t, "time_moment": moment(t)} for t, name in times])


@command
def untag(at: Place, collection: Name, name: Tag) -> None:
    """Drop a tag; the time that it named may be compacted then."""
    with at.open_writer() as client:
        client.load(collection).untag(name).result()
        report_done(at, {"collection": collection, "dropped": name}, f"dropped the tag {name!r} of {collection}")


@command
def rename(
    at: Place, collection: Name, name: Annotated[str, typer.Argument(metavar="NEW", help="The new name.")]
) -> None:
    """Give a collection another name."""
    with at.open_writer() as client:
        client.load(collection).rename(name).result()
        report_done(at, {"collection": name, "was": collection}, f"{collection} is called {name} now")


@command
def clone(
    at: Place,
    collection: Name,
    name: Annotated[str, typer.Argument(metavar="TARGET", help="The name of the new collection.")],
    as_of: AsOf = None,
) -> None:
    """Make another collection with the same contents as of a time, without copying data."""
    with at.open_writer() as client:
        copy = client.clone(collection, name, as_of=as_of)
        (since,) = copy.since.elements
        time_text = make_time_format(copy)(since)
        report_done(
            at,
            {"collection": name, "source": collection, "as_of": since},
            f"{name} holds what {collection} held as of {time_text}",
        )


@command
def view(
    at: Place,
    name: Annotated[str, typer.Argument(metavar="VIEW", help="The name of the view, which is a collection.")],
    query: Annotated[
        str | None, typer.Argument(metavar="QUERY", help="A SELECT of DuckDB's SQL; else the view is shown.")
    ] = None,
    key: Annotated[list[str] | None, typer.Option("--key", "-k", help="A column of its key; may be repeated.")] = None,
    start: Annotated[
        str | None, typer.Option(metavar="TIME", help='The first time, or "now"; else as early as the inputs.')
    ] = None,
    redefine: Annotated[
        bool, typer.Option("--redefine", help="Change the query of a view; its sealed times stay as they are.")
    ] = False,
) -> None:
    """Store a query's result as a collection and keep it up to date; without a query, show the view."""
    if redefine and (query is None or key):
        raise persist.InvalidUsage("--redefine goes with a query, and not with --key: a view keeps its key")
    if start is not None and query is None:
        raise persist.InvalidUsage("--start says where a new view begins: give its query, too")
    if query is None:
        with at.open_reader() as client:
            loaded = client.view(name)
            report_done(
                at, {"view": name, "sql": loaded.sql, "upper": loaded.upper.time}, f"{loaded.sql}\n\n{loaded.explain()}"
            )
        return
    with at.open_writer() as client:
        if redefine:
            loaded_view = client.view(name)
            loaded_view.redefine(query, start=start)
        else:
            loaded_view = client.create_view(name, query, key=key, start=start)
        upper = loaded_view.refresh()
        loaded_view.close()
        report_done(at, {"view": name, "upper": upper.time}, _format_upper(client, name, upper))


@command
def refresh(
    at: Place,
    views: Annotated[
        list[str] | None, typer.Argument(metavar="VIEW", help="One after the other; all of them by default.")
    ] = None,
    memory_budget: Annotated[
        int | None, typer.Option(metavar="BYTES", help="Memory for state; the rest goes to files.")
    ] = None,
    spill_folder: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="The folder of these files, which are deleted at the end.")
    ] = None,
) -> None:
    """Bring views up to the sealed times of their inputs; without names, all views in one commit."""
    refreshed: list[dict[str, Any]] = []
    with at.open_writer() as client:
        room = {"memory_budget": memory_budget, "spill_folder": spill_folder}
        for name, upper in _refresh_each(client, views, room) if views else refresh_together(client, room):
            refreshed.append({"view": name, "upper": upper.time})
            if not at.as_json:
                print_text(_format_upper(client, name, upper))
    if at.as_json:
        print_json(refreshed)
    elif not refreshed:
        print_remark("persist: there is no view here. persist view makes one")


def _refresh_each(
    client: "persist.Client", names: list[str], room: Mapping[str, Any]
) -> Iterator[tuple[str, "persist.Antichain"]]:
    """Refresh views one by one, and yield each with its upper. `room`: memory and spill options."""
    for name in names:
        loaded = client.view(name, **room)
        try:
            yield name, loaded.refresh()
        finally:
            loaded.close()


def refresh_together(client: "persist.Client", room: Mapping[str, Any]) -> Iterator[tuple[str, "persist.Antichain"]]:
    """Refresh all views in one commit, and yield each with its upper."""
    from persist.compute.sql import open_together
    from persist.tools.reports.surveys import load_facts

    views = [client.view(facts.name) for facts in load_facts(client, client.collections()) if facts.contents.view]
    if views:
        with open_together(views, **room) as together:
            together.refresh()
    for refreshed_view in views:
        yield refreshed_view.name, refreshed_view.upper


PLAN = Listing(
    shown={name: make_column(name) for name in ("view", "action", "why")},
    texts=["why"],
)


@command
def apply(
    at: Place,
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="A folder with a file NAME.sql for each view.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would be done.")] = False,
    prune: Annotated[bool, typer.Option("--prune", help="Drop views that have no file, too.")] = False,
    yes: Yes = False,
) -> None:
    """Create, replace and drop views to match a folder of queries: a plan first, then one commit, then one refresh.

    A view whose query has changed is dropped and created again, with the views that read it, after a prompt. A file may
    begin with `-- key: A, B` and `-- start: TIME`. A file in a folder below is the view FOLDER.NAME.
    """
    from persist.compute.sql import plan_views

    definitions = load_definitions(folder)
    opened = at.open_reader() if dry_run else at.open_writer()
    with opened as client:
        plan = plan_views(client, definitions, prune=prune)
        changes = [{"view": c.view, "action": c.action, "why": c.why} for c in plan.changes]
        lost = [c.view for c in plan.changes if c.action in ("replace", "drop")]
        if not at.as_json:
            PLAN.print(changes)
        if dry_run:
            report_done(at, {"changes": changes, "seqno": None}, "nothing was done: this is the plan")
            return
        if lost and not yes:
            confirm(f"Drop {', '.join(lost)} at {client.url} with all their history?", "nothing was done")
        seqno = plan.commit()
        plan.refresh()
        done = "all is as defined" if seqno is None else f"done in record {seqno}"
        report_done(at, {"changes": changes, "seqno": seqno}, f"{done}, and refreshed")


def _format_upper(client: "persist.Client", name: str, upper: "persist.Antichain") -> str:
    """Return a sentence: up to which time a view is up to date."""
    if upper.time is None:
        return f"{name} is complete: what it reads will not change any more"
    return f"{name} is up to date before {make_time_format(client.load(name))(upper.time)}"


FILES_MAX = 10_000
BYTES_MAX = 1 << 20  # The size limit of one query.
_COMMENT = re.compile(r"\s*--[ \t]*(key|start)[ \t]*:[ \t]*(.*)")


def load_definitions(folder: str) -> "dict[str, Wanted]":
    """Return the view definitions in a folder and its subfolders, by name.

    Raises:
        InvalidUsage: there are no files, two files define one view, or a file is not text.
        FileNotFoundError, NotADirectoryError: the folder is missing.
    """
    root = Path(folder).expanduser()
    if not root.exists():
        raise FileNotFoundError(2, "there is no such folder", folder)
    if not root.is_dir():
        raise NotADirectoryError(20, "this is not a folder of queries", folder)
    files = sorted(path for path in root.rglob("*.sql") if path.is_file() and not path.name.startswith("."))
    if not 0 < len(files) <= FILES_MAX:
        raise persist.InvalidUsage(f"{folder} holds {len(files):,} files NAME.sql: 1 to {FILES_MAX:,} are allowed")
    definitions: dict[str, Wanted] = {}
    for file in files:
        name = ".".join([*file.relative_to(root).parent.parts, file.stem])
        if name in definitions:
            raise persist.InvalidUsage(f"{folder} defines the view {name!r} twice, the second time in {file}")
        definitions[name] = _load_definition(file)
    return definitions


def _load_definition(file: Path) -> "Wanted":
    """Return the definition of a view in a file: query, key and start."""
    from persist.compute.sql import Wanted

    if file.stat().st_size > BYTES_MAX:
        raise persist.InvalidUsage(f"{file} is larger than {BYTES_MAX:,} bytes: that is not a query")
    try:
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise persist.InvalidUsage(f"{file} is not text in UTF-8: {error.reason} at byte {error.start}") from error
    sql = text.strip().removesuffix(";").rstrip()
    if not sql:
        raise persist.InvalidUsage(f"{file} is empty: it holds no query")
    settings: dict[str, str] = {}
    while (comment := _COMMENT.match(text)) is not None and comment[1] not in settings:
        settings[comment[1]] = comment[2].strip()
        text = text[comment.end() :]
    key = (
        tuple(column.strip() for column in settings["key"].split(",") if column.strip()) if "key" in settings else None
    )
    for name, value in (("key", key), ("start", settings.get("start"))):
        if value in ((), ""):
            raise persist.InvalidUsage(f"{file} says `-- {name}:` and names no {'column' if name == 'key' else 'time'}")
    return Wanted(sql, key, settings.get("start"))
