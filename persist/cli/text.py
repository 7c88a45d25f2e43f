"""Text for a terminal: what is stored is shown, never interpreted.

A name or a value may hold anything: escapes that move the cursor or set a window's title, characters that turn the
direction of writing, or markup. Whatever does not print is shown as an escape, as in Python.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

CELL_CHARS_MAX = 120  # Of a table on a terminal; a longer value is cut, and says so by an ellipsis.
COLUMN_CHARS_MIN = 8  # What a column of longer values gets on a terminal at least.


def shown(text: str, *, lines: bool = False) -> str:
    """Return text with everything that does not print as an escape; with lines, line ends stay."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or (lines and c == "\n") else _escape(c) for c in text)


def cell(value: object) -> str:
    """Return a value as one cell of a table on a terminal."""
    if value is None:
        return "NULL"
    text = shown(value if isinstance(value, str) else str(value))
    return text if len(text) <= CELL_CHARS_MAX else text[: CELL_CHARS_MAX - 1] + "…"


def say(text: str) -> None:
    """Print lines of text for people."""
    print(shown(text, lines=True))


def tell(text: str) -> None:
    """Print a remark beside the output."""
    print(shown(text, lines=True), file=sys.stderr)


def print_table(head: Sequence[str], rows: Iterable[Sequence[object]], *, right: Iterable[int] = ()) -> None:
    """Print a table: with lines on a terminal, and else aligned, so that other programs can cut it into words.

    Where a terminal is too narrow for the columns, each column is a line of its row.
    """
    cells, to_right = [[cell(each) for each in row] for row in rows], frozenset(right)
    names = [cell(each) for each in head]
    if not sys.stdout.isatty():
        widths = [max(map(len, column)) for column in zip(names, *cells, strict=True)]
        for row in (names, *cells):
            padded = [
                c.rjust(w) if i in to_right else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))
            ]
            print("  ".join(padded).rstrip())
        return
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False, markup=False, emoji=False)
    widths = [max(map(len, column)) for column in zip(names, *cells, strict=True)]
    if sum(min(width, COLUMN_CHARS_MIN) + 3 for width in widths) + 1 > console.width:
        _print_upright(names, cells)
        return
    table = Table(box=SIMPLE_HEAD)
    for i, name in enumerate(names):
        table.add_column(Text(name), justify="right" if i in to_right else "left", overflow="fold")
    for row in cells:
        table.add_row(*map(Text, row))
    console.print(table)


def _print_upright(names: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    widest = max(map(len, names))
    for number, row in enumerate(cells, 1):
        print(f"row {number:,}")
        for name, value in zip(names, row, strict=True):
            print(f"  {name.ljust(widest)}  {value}")
    if not cells:
        print(f"no rows of {', '.join(names)}")


def print_json(value: Mapping[str, Any] | Sequence[Any]) -> None:
    """Print one JSON document, in ASCII, so that nothing in it reaches a terminal as it is."""
    import json

    print(json.dumps(value, default=str))


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
