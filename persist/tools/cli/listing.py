"""Prints lists: as tables for people, as JSON for programs, and on a screen that is updated when they change."""

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

import persist
from persist.tools.cli.place import Place
from persist.tools.cli.text import print_json, print_table

if TYPE_CHECKING:
    from persist.api.client import Client

T = TypeVar("T")
Watch = Annotated[bool, typer.Option("--watch", help="Show it again as it changes, until you interrupt it.")]
WATCH_S = 2.0  # How often it is shown again if nothing changes: what lies behind the clock does so all the time.


@dataclass(frozen=True)
class Listing:
    """A table to print: for each column, the function that returns its cell of a row."""

    shown: Mapping[str, Callable[[Mapping[str, Any]], object]]
    right: Collection[str] = ()
    texts: Collection[str] = ()

    def write(self, at: Place, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write rows as a table, or as a line of JSON each."""
        if not at.as_json:
            self.print(rows)
        for row in rows if at.as_json else ():
            print_json(row)

    def print(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Print rows as a table."""
        head = [*self.shown]
        cells = [[of(row) for of in self.shown.values()] for row in rows]
        print_table(head, cells, right=map(head.index, self.right), texts=map(head.index, self.texts))


def make_column(name: str) -> Callable[[Mapping[str, Any]], object]:
    """Return a function that returns a value of a row as a cell, with commas in numbers."""

    def format_cell(row: Mapping[str, Any]) -> object:
        value = row[name]
        return "-" if value is None else f"{value:,}" if isinstance(value, int) else value

    return format_cell


def make_time_column(name: str) -> Callable[[Mapping[str, Any]], object]:
    """Return a function that returns a time of a row as a cell: as its moment, if there is one."""

    def format_cell(row: Mapping[str, Any]) -> object:
        return "-" if row[name] is None else (row[f"{name}_moment"] if row[name] else None) or row[name]

    return format_cell


def show_listing(
    at: Place, client: "Client", listing: Listing, look: Callable[[], Sequence[Mapping[str, Any]]], *, watch: bool
) -> None:
    """Print the rows that `look` returns, once or, with `watch`, after each new record."""
    check_watch(at, watch=watch)
    if watch:
        watch_screen(client, look, listing.print)
    else:
        listing.write(at, look())


def check_watch(at: Place, *, watch: bool) -> None:
    """Raise InvalidUsage if `--watch` is combined with `--json`."""
    if watch and at.as_json:
        raise persist.InvalidUsage("--watch shows a table, again and again: leave --json out")


def watch_screen(client: "Client", look: Callable[[], T], show: Callable[[T], None]) -> None:
    """Show the result of `look` again after each new record, until Ctrl-C."""
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
