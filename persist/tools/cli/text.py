"""Text for a terminal: what is stored is shown, never interpreted.

A name or a value may hold anything: escapes that move the cursor or set a window's title, characters that turn the
direction of writing, or markup. Characters that do not print appear as escapes, as in Python.

On a terminal, a table is as wide as its values, or else as the terminal:

1. texts are cut at `TEXT_CHARS_MIN` or more, with an ellipsis; names, numbers and times stay whole;
2. columns in `spare` are left out, and a line below names them;
3. a first column that is too wide is narrowed: a longer name is a line of its own, above the rest of its row;
4. each column becomes a line of its row.

Lines of text are broken between words there. Output to a file or pipe cuts only texts beyond `CELL_CHARS_MAX`, and
aligns columns, so that other programs can split lines into words.
"""

import os
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from persist.core.rendering import align_columns, measure_text_width

if TYPE_CHECKING:
    from persist.blob.errors import PersistError  # Its package takes long to load.

CELL_CHARS_MAX = 120  # A longer text is cut, with an ellipsis.


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


def print_text(text: str, *, hanging: int = 2) -> None:
    """Print lines; `hanging` indents wrapped lines."""
    _print_lines(text, sys.stdout, hanging)


def print_remark(text: str) -> None:
    """Print a remark on standard error."""
    _print_lines(text, sys.stderr, 0)


def _print_lines(text: str, stream: TextIO, hanging: int) -> None:
    lines = escape_text(text, lines=True).split("\n")
    if stream.isatty():
        width = shutil.get_terminal_size().columns
        lines = [part for line in lines for part in wrap_line(line, width, hanging)]
    print(*lines, sep="\n", file=stream)


def wrap_line(line: str, width: int, hanging: int) -> list[str]:
    """Return a line in parts of a width; later parts are indented."""
    indent = " " * min(len(line) - len(line.lstrip()) + hanging, width // 2)
    parts = [""]
    for word in re.findall(r"\s*\S+", line):
        if parts[-1].strip() and measure_text_width(parts[-1] + word) > width:
            parts.append(indent + word.lstrip())
        else:
            parts[-1] += word
    return parts


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
    "rename", "reorder", "resolve", "schema", "seal", "ties", "time", "timeline", "token", "tombstone", "widen",
}  # fmt: skip


class _CommandLine:
    """The words of the command line."""

    def name_call(self, name: str) -> str:
        return f"{name} in Python" if name in _ONLY_PYTHON else f"persist {_COMMANDS.get(name, name)}"

    def name_option(self, name: str, value: str) -> str:
        option = "--" + name.removesuffix("_s").replace("_", "-")
        return option if value in ("", "True") else f"{option} {value}"


def format_error(error: "PersistError") -> str:
    """Return an error's message with the command line's option names."""
    text = error.format_message(_CommandLine())
    name, equals, value = text.partition("=")
    return f"--{name.replace('_', '-')} {value}" if equals and name in _OPTIONS else text


TEXT_CHARS_MIN = 16  # The least width of a column of long texts on a terminal.
GAP = 2  # Between two columns.


def print_table(
    head: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    right: Iterable[int] = (),
    texts: Iterable[int] = (),
    spare: Sequence[str] = (),
    says_so: bool = True,
) -> None:
    """Print a table.

    Args:
        right: the columns, by number, whose values are aligned at their right.
        texts: the columns whose values may be cut.
        spare: the columns, by name, that a narrow terminal does without, in the order in which they are left out.
        says_so: name the columns that are left out.
    """
    to_right, cut = {*right}, {*texts}
    names = [format_cell(name) for name in head]
    cells = [[format_cell(value, whole=at not in cut) for at, value in enumerate(row)] for row in rows]
    if not sys.stdout.isatty():
        print(*align_columns((names, *cells), to_right), sep="\n")
        return
    width = shutil.get_terminal_size().columns
    numbers = [*range(len(names))]
    shorter = [[at for at in numbers if names[at] not in spare[:count]] for count in range(len(spare) + 1)]
    # One after the other: whole names, then long ones above their rows; of each, with as many columns as there is room.
    for narrowed in (cut, cut | ({0} - to_right)):
        for columns in shorter:
            if (widths := _fit_widths(names, cells, columns, narrowed, width)) is not None:
                above = (
                    {}
                    if 0 in cut
                    else {i: row[0] for i, row in enumerate(cells) if measure_text_width(row[0]) > widths[0]}
                )
                _print_fitting(names, cells, dict(zip(columns, widths, strict=True)), to_right, above)
                if (left_out := [name for name in spare if names.index(name) not in columns]) and says_so:
                    print_remark(
                        f"The terminal is too narrow for {', '.join(left_out)}: make it wider, or say --format csv."
                    )
                return
    _print_upright(names, cells)


def _print_fitting(
    names: Sequence[str],
    cells: Sequence[Sequence[str]],
    widths: Mapping[int, int],
    right: set[int],
    above: Mapping[int, str],
) -> None:
    """Print chosen columns, cut to widths. Long first cells get their own line."""
    rows = [names, *(["", *row[1:]] if i in above else row for i, row in enumerate(cells))]
    texts_by_row = [[_truncate(row[at], width) for at, width in widths.items()] for row in rows]
    top, *lines = align_columns(texts_by_row, {i for i, at in enumerate(widths) if at in right})
    print(top if os.environ.get("TERM") == "dumb" else f"\x1b[1m{top}\x1b[0m")
    for i, line in enumerate(lines):
        print(*([above[i]] if i in above else []), line, sep="\n")


def _fit_widths(
    names: list[str], cells: list[list[str]], columns: Sequence[int], narrowed: set[int], width: int
) -> list[int] | None:
    """Return the widths of columns that fit into a width, or None."""
    widths = [max(measure_text_width(row[at]) for row in (names, *cells)) for at in columns]
    least = [
        min(w, max(measure_text_width(names[at]), TEXT_CHARS_MIN)) if at in narrowed else w
        for at, w in zip(columns, widths, strict=True)
    ]
    room = width - GAP * (len(widths) - 1)
    if sum(least) > room:
        return None
    while sum(widths) > room:
        widths[max((i for i, w in enumerate(widths) if w > least[i]), key=widths.__getitem__)] -= 1
    return widths


def _truncate(text: str, width: int) -> str:
    if measure_text_width(text) <= width:
        return text
    while measure_text_width(text) > width - 1:
        text = text[:-1]
    return text + "…"


def _print_upright(names: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    widest = max(map(len, names))
    for number, row in enumerate(cells, 1):
        print(f"row {number:,}")
        for name, value in zip(names, row, strict=True):
            print(f"  {name.ljust(widest)}  {value}")
    if not cells:
        print(f"no rows of {', '.join(names)}")
