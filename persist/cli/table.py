"""Tables for people, which fit the terminal.

On a terminal, a table is as wide as its values, or else as the terminal:

1. texts are cut, never below `TEXT_CHARS_MIN`, and say so by an ellipsis; names, numbers and times stay whole;
2. columns that can be spared are left out, which a line below says;
3. each column becomes a line of its row.

Where the output is no terminal, nothing is cut, and columns are aligned, so that other programs can cut lines into
words.
"""

import os
import shutil
import sys
from collections.abc import Iterable, Sequence

from persist.cli.text import cell, tell
from persist.shown import aligned, text_width

TEXT_CHARS_MIN = 16  # What a column of texts gets on a terminal at least, if it has longer ones.
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
        says_so: say which ones were left out.
    """
    names, cells, to_right = [cell(name) for name in head], [[cell(value) for value in row] for row in rows], {*right}
    if not sys.stdout.isatty():
        print(*aligned((names, *cells), to_right), sep="\n")
        return
    width, left_out, all_names, all_cells = shutil.get_terminal_size().columns, 0, names, cells
    while (widths := _widths(names, cells, {*texts}, width)) is None and left_out < len(spare):
        at = names.index(spare[left_out])
        left_out += 1
        names, cells = _without(names, at), [_without(row, at) for row in cells]
        to_right, texts = _shifted(to_right, at), _shifted(texts, at)
    if widths is None:
        _print_upright(all_names, all_cells)
        return
    top, *lines = aligned([[_cut(c, w) for c, w in zip(row, widths, strict=True)] for row in (names, *cells)], to_right)
    print(top if os.environ.get("TERM") == "dumb" else f"\x1b[1m{top}\x1b[0m", *lines, sep="\n")
    if left_out and says_so:
        tell(f"The terminal is too narrow for {', '.join(spare[:left_out])}: make it wider, or say --format csv.")


def _widths(names: list[str], cells: list[list[str]], texts: set[int], width: int) -> list[int] | None:
    """Return how wide each column is, so that all fit into a width; None if that cannot be."""
    widths = [max(map(text_width, column)) for column in zip(names, *cells, strict=True)]
    least = [min(w, max(text_width(names[i]), TEXT_CHARS_MIN)) if i in texts else w for i, w in enumerate(widths)]
    room = width - GAP * (len(widths) - 1)
    if sum(least) > room:
        return None
    while sum(widths) > room:
        widths[max((i for i, w in enumerate(widths) if w > least[i]), key=widths.__getitem__)] -= 1
    return widths


def _cut(text: str, width: int) -> str:
    if text_width(text) <= width:
        return text
    while text_width(text) > width - 1:
        text = text[:-1]
    return text + "…"


def _without(row: list[str], at: int) -> list[str]:
    return row[:at] + row[at + 1 :]


def _shifted(columns: Iterable[int], at: int) -> set[int]:
    return {i - (i > at) for i in columns if i != at}


def _print_upright(names: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    widest = max(map(len, names))
    for number, row in enumerate(cells, 1):
        print(f"row {number:,}")
        for name, value in zip(names, row, strict=True):
            print(f"  {name.ljust(widest)}  {value}")
    if not cells:
        print(f"no rows of {', '.join(names)}")
