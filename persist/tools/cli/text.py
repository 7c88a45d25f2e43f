"""Prints text on a terminal, so that it never interprets stored values.

A stored name or value may contain anything: escapes that move the cursor or set a window's title, characters that
reverse the direction of writing, or markup. Unprintable characters are shown as escapes, as in Python.

A table cuts texts beyond `CELL_CHARS_MAX`. On a terminal that is too narrow, rich breaks cells into lines, texts first;
if there are many columns, each row is printed with one line for each column. Output to a file or pipe aligns columns,
so that other programs can split lines into words.
"""

import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from persist.core.rendering import align_columns

if TYPE_CHECKING:
    from persist.blob.errors import PersistError  # Its package takes long to load.

CELL_CHARS_MAX = 120  # A longer text is cut, with an ellipsis.
COLUMN_CHARS_MIN = 8  # Of a column of texts on a terminal, if they are longer.


def escape_text(text: str, *, lines: bool = False) -> str:
    """Return text with unprintable characters as escapes. With `lines`, newlines stay."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or (lines and c == "\n") else _escape(c) for c in text)


def format_cell(value: object, *, whole: bool = False) -> str:
    """Return a value as a table cell, cut if long unless `whole`."""
    if value is None:
        return "NULL"
    text = escape_text(value if isinstance(value, str) else str(value))
    return text if whole or len(text) <= CELL_CHARS_MAX else text[: CELL_CHARS_MAX - 1] + "…"


def print_text(text: str) -> None:
    """Print a text, which may have several lines."""
    print(escape_text(text, lines=True))


def print_remark(text: str) -> None:
    """Print a remark on standard error."""
    print(escape_text(text, lines=True), file=sys.stderr)


def print_json(value: Mapping[str, Any] | Sequence[Any]) -> None:
    """Print one JSON document in ASCII, so that a terminal interprets nothing."""
    import json

    print(json.dumps(value, default=str))


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


_COMMANDS = {
    "create_or_load": "create",
    "history": "log",
    "load": "read",
    "redefine": "view --redefine",
    "snapshot": "read",
}
_ONLY_PYTHON = ("transition",)
_OPTIONS = {
    "as_of", "columns", "diff", "drop", "form", "key", "keyed", "late", "late_bound", "memory_budget", "order_by",
    "rename", "reorder", "resolve", "schema", "seal", "ties", "time", "timeline", "token", "tombstone", "where",
    "widen",
}  # fmt: skip


class _CommandLine:
    """Names calls and options of Python as on the command line, in errors."""

    def name_call(self, name: str) -> str:
        """Return the command for a call, such as persist compact."""
        return f"{name} in Python" if name in _ONLY_PYTHON else f"persist {_COMMANDS.get(name, name)}"

    def name_option(self, name: str, value: str) -> str:
        """Return the option of a command for a keyword argument."""
        option = "--" + name.removesuffix("_s").replace("_", "-")
        return option if value in ("", "True") else f"{option} {value}"


def format_error(error: "PersistError") -> str:
    """Return an error's message in the words of the command line."""
    text = error.format_message(_CommandLine())
    name, equals, value = text.partition("=")
    return f"--{name.replace('_', '-')} {value}" if equals and name in _OPTIONS else text


def print_table(
    head: Sequence[str], rows: Iterable[Sequence[object]], *, right: Iterable[int] = (), texts: Iterable[int] = ()
) -> None:
    """Print a table; `right` and `texts` number columns to align right, and to cut."""
    to_right, cut = {*right}, {*texts}
    names = [format_cell(name) for name in head]
    cells = [[format_cell(value, whole=at not in cut) for at, value in enumerate(row)] for row in rows]
    if not sys.stdout.isatty():
        print(*align_columns((names, *cells), to_right), sep="\n")
        return
    from rich.cells import cell_len  # Here: other output does without it.
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    width = shutil.get_terminal_size().columns
    widths = [max(map(cell_len, column)) for column in zip(names, *cells, strict=True)]
    least = [min(chars, COLUMN_CHARS_MIN) if at in cut else chars for at, chars in enumerate(widths)]
    if sum(least) + 2 * (len(least) - 1) > width:  # A table would cut a name or a number.
        _print_upright(names, cells)
        return
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for at, name in enumerate(names):
        table.add_column(Text(name), justify="right" if at in to_right else "left", no_wrap=at not in cut)
        table.columns[at].overflow = "fold"
    for row in cells:
        table.add_row(*map(Text, row))
    Console(file=sys.stdout, width=width).print(table)


def _print_upright(names: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    """Print each row as lines of name and value."""
    widest = max(map(len, names))
    for number, row in enumerate(cells, 1):
        print(f"row {number:,}")
        for name, value in zip(names, row, strict=True):
            print(f"  {name.ljust(widest)}  {value}")
    if not cells:
        print(f"no rows of {', '.join(names)}")
