"""Lists of facts: tables for people, every format for programs, and the screen that shows them again as they change."""

import json
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

import persist
from persist.tools.cli.place import Place
from persist.tools.cli.text import print_table

if TYPE_CHECKING:
    from persist.api.client import Client

T = TypeVar("T")
Watch = Annotated[bool, typer.Option("--watch", help="Show it again as it changes, until you interrupt it.")]
WATCH_S = 2.0  # How often it is shown again if nothing changes: what lies behind the clock does so all the time.


@dataclass(frozen=True)
class Listing:
    """A list of rows: all fields for programs, some columns for people.

    Attributes:
        kinds: what programs get of a row: names and their types, as Arrow calls them; or "texts", a list of them.
        shown: the columns that people see, and what makes their values of a row.
    """

    kinds: Mapping[str, str]
    shown: Mapping[str, Callable[[Mapping[str, Any]], object]]
    right: Collection[str] = ()
    texts: Collection[str] = ()
    spare: Sequence[str] = ()

    def write(self, at: Place, rows: Sequence[Mapping[str, Any]], format: str | None, output: str | None) -> None:
        """Write rows in the requested format."""
        from persist.tools.cli.row_output import choose_format, write_rows

        row_format = choose_format(format, output, at.as_json)
        if row_format == "table" and output is None:
            self.print(rows)
            return
        import pyarrow as pa

        lists = [name for name, kind in self.kinds.items() if kind == "texts"]
        if row_format == "csv":  # CSV has no lists.
            rows, lists = [{**row, **{name: "; ".join(row[name]) for name in lists}} for row in rows], []
        kinds = {name: "string" if kind == "texts" else kind for name, kind in self.kinds.items()}
        schema = pa.schema([(name, pa.list_(pa.string()) if name in lists else kind) for name, kind in kinds.items()])
        write_rows(schema, [pa.RecordBatch.from_pylist([*rows], schema)], row_format, output, None, in_order=True)

    def write_document(
        self,
        at: Place,
        document: Mapping[str, Any],
        show: Callable[[], None],
        rows: Callable[[], Sequence[Mapping[str, Any]]],
        format: str | None,
        output: str | None,
    ) -> None:
        """Write a document: a screen for people, one JSON object, or its list as rows."""
        from persist.tools.cli.row_output import choose_format, open_output

        row_format = choose_format(format, output, at.as_json)
        if row_format == "json":
            with open_output(output) as file:
                file.write(json.dumps(document, default=str).encode() + b"\n")
        elif row_format == "table" and output is None:
            show()
        else:
            self.write(at, rows(), row_format, output)

    def print(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Print rows as a table."""
        head = [*self.shown]
        print_table(
            head,
            [[of(row) for of in self.shown.values()] for row in rows],
            right=map(head.index, self.right),
            texts=map(head.index, self.texts),
            spare=self.spare,
        )


def make_column(name: str) -> Callable[[Mapping[str, Any]], object]:
    """Return a formatter of a column. Numbers get commas, None a dash."""

    def format_cell(row: Mapping[str, Any]) -> object:
        value = row[name]
        return "-" if value is None else f"{value:,}" if isinstance(value, int) else value

    return format_cell


def make_time_column(name: str) -> Callable[[Mapping[str, Any]], object]:
    """Return a formatter of a time: its moment, or else the number."""

    def format_cell(row: Mapping[str, Any]) -> object:
        return "-" if row[name] is None else (row[f"{name}_moment"] if row[name] else None) or row[name]

    return format_cell


def show_listing(
    at: Place,
    client: "Client",
    listing: Listing,
    look: Callable[[], Sequence[Mapping[str, Any]]],
    format: str | None,
    output: str | None,
    *,
    watch: bool,
) -> None:
    """Write the rows of `look`, or watch them as a table."""
    check_watch(at, format, output, watch=watch)
    if watch:
        watch_screen(client, look, listing.print)
    else:
        listing.write(at, look(), format, output)


def check_watch(at: Place, format: str | None, output: str | None, *, watch: bool) -> None:
    """Raise InvalidUsage if `--watch` is combined with a format or file."""
    if watch and (at.as_json or output is not None or format not in (None, "table")):
        raise persist.InvalidUsage("--watch shows a table, again and again: leave the format and --output out")


def watch_screen(client: "Client", look: Callable[[], T], show: Callable[[T], None]) -> None:
    """Show `look()` at each new record, at least every `WATCH_S`, until Ctrl-C."""
    follower, last_seqno, facts = client.engine.follower, client.seqno, look()

    def has_news() -> bool | None:
        return follower.state.seqno > last_seqno or None

    with suppress(KeyboardInterrupt):
        while True:
            if sys.stdout.isatty():
                print("\x1b[H\x1b[2J\x1b[3J", end="")  # Home, and an empty screen.
            show(facts)
            sys.stdout.flush()
            if follower.wait_for(has_news, WATCH_S):
                last_seqno, facts = follower.state.seqno, look()
