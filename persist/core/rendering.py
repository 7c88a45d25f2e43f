"""Representations of objects for people: text in a terminal, HTML in a notebook.

Names, comments and messages may come from other people: control characters are shown as escapes, so that no terminal
executes them, and HTML is escaped.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from typing import ClassVar
from unicodedata import combining, east_asian_width

_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2028\u2029\u2066-\u2069]")

SOME = 20  # Names that an error lists.
_PASSWORD = re.compile(r"(?<=://)([^/@:]*):[^@]*@(?:[^\s?]*@)?")
_WORD = re.compile(r"(?i)\b(password|sslpassword|passfile)\s*=\s*('(?:[^'\\]|\\.)*'|[^\s&]+)")


def strip_control_characters(text: str) -> str:
    """Escape the control characters of a text, except line ends."""
    return _CONTROL.sub(lambda control: control[0].encode("unicode_escape").decode("ascii"), text)


def hide_passwords(text: str) -> str:
    """Return a URL, or a message with URLs in it, without passwords."""
    return _WORD.sub(r"\1=***", _PASSWORD.sub(r"\1:***@", text))


def list_some(names: Sequence[str]) -> str:
    """Return a short list of names for an error: the first ones, and the number of others."""
    more = len(names) - SOME
    return f"{[*names[:SOME]]}" + (f" and {more:,} more" if more > 0 else "")


def format_count(number: int, noun: str) -> str:
    """Return a number with a noun, such as 1 row, 2 rows or 3 directories."""
    nouns = noun if number == 1 else f"{noun[:-1]}ies" if noun.endswith("ory") else f"{noun}s"
    return f"{number:,} {nouns}"


def format_moment(moment: datetime | float, timespec: str = "seconds") -> str:
    """Return a moment, or seconds since 1970, as text in UTC, such as 2026-11-21T12:00:00Z."""
    at = moment.astimezone(UTC) if isinstance(moment, datetime) else datetime.fromtimestamp(moment, UTC)
    return at.isoformat(timespec=timespec).replace("+00:00", "Z")


def format_duration(seconds: float) -> str:
    """Return a duration in words: 350 ms, 12 s, 5 min, 3 h or 2 days."""
    if seconds < 0.95:
        return f"{max(0, round(seconds * 1000))} ms"
    for least_s, length_s, unit in ((172_800, 86_400, "days"), (3600, 3600, "h"), (60, 60, "min")):
        if seconds >= least_s:
            return f"{round(seconds / length_s):,} {unit}"
    return f"{round(seconds)} s"


def measure_text_width(text: str) -> int:
    """Return the width of a text in columns of a terminal."""
    if text.isascii():
        return len(text)
    return sum((east_asian_width(c) in "WF") + (not combining(c)) for c in text)


def align_columns(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> list[str]:
    """Return the lines of a table with aligned columns; `right`: those that are right-aligned."""
    widths = [max(map(measure_text_width, column)) for column in zip(*rows, strict=True)]

    def line(row: Sequence[str]) -> str:
        room = [" " * (w - measure_text_width(c)) for c, w in zip(row, widths, strict=True)]
        return "  ".join(
            r + c if i in right else c + r for i, (c, r) in enumerate(zip(row, room, strict=True))
        ).rstrip()

    return [*map(line, rows)]


def render_html_table(caption: str, rows: Iterable[tuple[str, str]]) -> str:
    """Return a table of names and values as HTML."""
    body = "".join(
        f'<tr><th style="text-align:left">{escape(strip_control_characters(name))}</th>'
        f'<td style="text-align:left">{escape(strip_control_characters(value))}</td></tr>'
        for name, value in rows
    )
    return f"<table><caption>{escape(strip_control_characters(caption))}</caption>{body}</table>"


def render_html_rows(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return an HTML table with a row of headings."""

    def line(kind: str, cells: Iterable[str]) -> str:
        return (
            "<tr>"
            + "".join(f'<{kind} style="text-align:left">{escape(strip_control_characters(c))}</{kind}>' for c in cells)
            + "</tr>"
        )

    return f"<table>{line('th', head)}{''.join(line('td', row) for row in rows)}</table>"


class Completed:
    """A mixin for completion in a shell: `dir` omits names that are internal to the package."""

    __slots__ = ()
    _INTERNAL: ClassVar[frozenset[str]] = frozenset()

    def __dir__(self) -> list[str]:
        hidden = {name for kind in type(self).__mro__ for name in getattr(kind, "_INTERNAL", ())}
        return [name for name in super().__dir__() if name not in hidden and name != "_INTERNAL"]


class Shown:
    """A mixin: `repr` is the text for people; notebooks keep its lines."""

    __slots__ = ()

    def __init_subclass__(cls) -> None:
        # A dataclass makes a representation of its own where the class itself has none.
        cls.__repr__ = Shown.__repr__  # type: ignore[method-assign]

    def __repr__(self) -> str:
        return strip_control_characters(str(self))

    def _repr_html_(self) -> str:
        return f"<pre>{escape(strip_control_characters(str(self)))}</pre>"


class ShownByRepr:
    """A mixin: notebooks show the representation."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return f"<pre>{escape(strip_control_characters(repr(self)))}</pre>"
