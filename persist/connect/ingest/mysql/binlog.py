"""Statements in the log of MySQL or MariaDB, and sets of transactions.

The log has changed rows, and the text of statements that change tables. The parser reads statements for three things:
tables that they empty, columns that they rename or drop, and changes of rows that the log lacks. After a missing change
the table cannot be followed. Any other change appears with the next row of the table, which describes its columns.

MySQL counts the transactions of each server: a set has `uuid:1-5:7`. MariaDB has the last number of each domain, as
`domain-server-number`, and numbers of a domain only grow. Both kinds are the same on each server of a group, so a
source may move to another server.

The *measure* of a set is the number of its transactions, or the sum of the last numbers. Each transaction increases the
measure, and its time is the new measure, times `STEP`. So times are the same on each server, and between two of them
there are times for moments without transactions.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from persist.core.errors import InvalidUsage

_TOKEN = re.compile(
    r"/\*!\d*|/\*M!\d*|\*/|(?P<comment>/\*(?!M?!).*?\*/|--[ \t\n].*?(?:\n|$)|#.*?(?:\n|$))|`(?P<name>(?:[^`]|``)*)`"
    r"|(?P<text>'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.|\"\")*\")|(?P<word>[\w$@\u0080-\uffff]+)|(?P<mark>\S)",
    re.DOTALL,
)
_ROWS = {"INSERT", "UPDATE", "DELETE", "REPLACE", "LOAD", "MERGE", "WITH", "CALL", "DO"}
_CANNOT = {
    ("EXCHANGE", "PARTITION"), ("DROP", "PARTITION"), ("TRUNCATE", "PARTITION"), ("CONVERT", "PARTITION"),
    ("CONVERT", "TABLE"), ("DISCARD", "TABLESPACE"), ("IMPORT", "TABLESPACE"), ("ADD", "SYSTEM"),
    ("SYSTEM", "VERSIONING"),
}  # fmt: skip
Table = tuple[str, str]


@dataclass
class Effect:
    """The effect of a logged statement on followed tables.

    Attributes:
        emptied: tables that have no rows after the statement.
        renamed, dropped: columns of `table`.
        refused: why the source cannot continue after the statement; "" if it can.
        is_gone: the statement rolls the transaction back.
    """

    emptied: list[Table] = field(default_factory=list)
    table: Table | None = None
    renamed: dict[str, str] = field(default_factory=dict)
    dropped: list[str] = field(default_factory=list)
    refused: str = ""
    is_gone: bool = False


@dataclass(frozen=True)
class _Token:
    """A token of SQL; `is_name`: a quoted name."""

    text: str
    is_name: bool = False

    @property
    def word(self) -> str:
        """The token in upper case; "" for a quoted name."""
        return "" if self.is_name else self.text.upper()


def parse_effect(statement: str, schema: str, followed: Sequence[Table]) -> Effect:
    """Parse the effect of a statement on followed tables; `schema` is its default schema."""
    tokens = [*_tokenize(statement)]
    words = [*(token.word for token in tokens), "", "", ""]
    effect = Effect()
    tables = {*followed}
    if words[0] == "TRUNCATE":
        effect.emptied = [_parse_table_name(tokens, 2 if words[1] == "TABLE" else 1, schema)[0]]
    elif words[0] == "DROP" and words[1] in ("DATABASE", "SCHEMA"):
        name = tokens[4 if words[2] == "IF" else 2].text
        effect.emptied = [table for table in followed if table[0] == name]
    elif words[0] == "DROP" and words[1] == "TABLE":
        effect.emptied = [*_parse_table_list(tokens, 4 if words[2] == "IF" else 2, schema)]
    elif words[:4] == ["CREATE", "OR", "REPLACE", "TABLE"]:
        effect.emptied = [_parse_table_name(tokens, 4, schema)[0]]
    elif words[0] == "RENAME" and words[1] in ("TABLE", "TABLES"):
        starts = [at for at in range(1, len(tokens)) if tokens[at - 1].word != "."]
        moved = {_parse_table_name(tokens, at, schema)[0] for at in starts}
        effect.refused = "it gives tables other names" if moved & tables else ""
    elif words[0] == "ALTER":
        _parse_alter(tokens, schema, tables, effect)
    elif words[0] in _ROWS and {token.text for token in tokens} & {name for _, name in followed}:
        effect.refused = "it changes rows and is logged as a statement (binlog_format of its session is not ROW)"
    elif words[0] == "ROLLBACK":
        effect.is_gone = True
    effect.emptied = [table for table in effect.emptied if table in tables]
    return effect


def _parse_alter(tokens: list[_Token], schema: str, tables: set[Table], effect: Effect) -> None:
    """Add the effect of ALTER TABLE on followed tables."""
    at = next((at for at, token in enumerate(tokens[:4]) if token.word == "TABLE"), None)
    if at is None:
        return
    at += 3 if tokens[at + 1].word == "IF" else 1
    table, at = _parse_table_name(tokens, at, schema)
    for spec in _split_specifications(tokens[at:]):
        words = [*(token.word for token in spec), ""]
        if words[0] == "RENAME" and words[1] not in ("COLUMN", "INDEX", "KEY"):
            target = _parse_table_name(spec, 2 if words[1] in ("TO", "AS", "=") else 1, schema)[0]
            effect.refused = "it gives the table another name" if {table, target} & tables else effect.refused
    if table not in tables:
        return
    effect.table = table
    for spec in _split_specifications(tokens[at:]):
        words = [*(token.word for token in spec), ""]
        names = [token.text for token in spec if token.word not in ("COLUMN", "IF", "EXISTS")]
        if words[0] == "CHANGE" or words[:2] == ["RENAME", "COLUMN"]:
            new = names[3] if words[0] == "RENAME" else names[2]
            effect.renamed |= {names[1]: new} if names[1] != new else {}
        elif words[0] == "DROP" and words[1] not in (
            "INDEX",
            "KEY",
            "PRIMARY",
            "FOREIGN",
            "CONSTRAINT",
            "CHECK",
            "PERIOD",
        ):
            effect.dropped.append(names[1])
        pairs = {*pairwise(words)}
        if cannot := pairs & _CANNOT:
            effect.refused = f"{' '.join(min(cannot))} changes rows that are not in the log"
        if "FOREIGN" in words and ("CASCADE" in words or ("SET", "NULL") in pairs):
            effect.refused = "rows that a foreign key changes are not in the log"


def _split_specifications(tokens: list[_Token]) -> Iterator[list[_Token]]:
    """Yield the tokens of each comma-separated part of a statement."""
    depth, spec = 0, list[_Token]()
    for token in tokens:
        depth += (token.word == "(") - (token.word == ")")
        if token.word == "," and not depth:
            yield spec
            spec = []
        else:
            spec.append(token)
    if spec:
        yield spec


def _tokenize(statement: str) -> Iterator[_Token]:
    """Yield the tokens of a statement, without spaces and comments."""
    for match in _TOKEN.finditer(statement):
        if match["name"] is not None:
            yield _Token(match["name"].replace("``", "`"), True)
        elif text := match["text"] or match["word"] or match["mark"]:
            yield _Token(text)


def _parse_table_name(tokens: list[_Token], at: int, schema: str) -> tuple[Table, int]:
    """Return the table that tokens name at a position, and the next position."""
    if len(tokens) > at + 2 and tokens[at + 1].word == ".":
        return (tokens[at].text, tokens[at + 2].text), at + 3
    return (schema, tokens[at].text), at + 1


def _parse_table_list(tokens: list[_Token], at: int, schema: str) -> Iterator[Table]:
    """Yield the tables of a comma-separated list."""
    while at < len(tokens):
        table, at = _parse_table_name(tokens, at, schema)
        yield table
        if at >= len(tokens) or tokens[at].word != ",":
            return
        at += 1


STEP = 1 << 20


def parse_gtids(text: str, *, is_mariadb: bool) -> "Gtids":
    """Return the set of transactions in the text of a server."""
    return _Domains(text) if is_mariadb else _Servers(text)


class _Domains:
    """A set of MariaDB transactions: the last number of each domain."""

    def __init__(self, text: str) -> None:
        self._last: dict[int, tuple[int, int]] = {}
        for gtid in filter(None, text.replace("\n", "").split(",")):
            domain, server, number = map(int, gtid.strip().split("-"))
            self._last[domain] = (number, server)

    @property
    def measure(self) -> int:
        """The sum of the last numbers."""
        return sum(number for number, _ in self._last.values())

    def add(self, gtid: str) -> None:
        """Add the id of a MariaDB transaction."""
        domain, server, number = map(int, gtid.split("-"))
        if domain in self._last and number <= self._last[domain][0]:
            raise InvalidUsage(
                f"the transaction {gtid} comes after number {self._last[domain][0]} of its domain, so numbers run "
                "back: several servers write to one domain. Set gtid_strict_mode = ON, or give each its own "
                "gtid_domain_id; then copy again"
            )
        self._last[domain] = (number, server)

    def has(self, other: str) -> bool:
        """Return whether this set contains all transactions of another set, which is text."""
        return all(
            domain in self._last and self._last[domain][0] >= at[0] for domain, at in _Domains(other)._last.items()
        )

    def __str__(self) -> str:
        return ",".join(f"{domain}-{server}-{number}" for domain, (number, server) in sorted(self._last.items()))


class _Servers:
    """A set of MySQL transactions: intervals of numbers for each server."""

    def __init__(self, text: str) -> None:
        self._intervals: dict[str, list[tuple[int, int]]] = {}
        for server in filter(None, text.replace("\n", "").split(",")):
            name, _, intervals_text = server.strip().partition(":")
            tag = ""
            for piece in intervals_text.split(":"):
                if not piece[0].isdigit():
                    tag = f":{piece}"
                    continue
                first, _, last = piece.partition("-")
                self._intervals.setdefault(name.lower() + tag, []).append((int(first), int(last or first)))

    @property
    def measure(self) -> int:
        """The number of transactions."""
        return sum(last - first + 1 for intervals in self._intervals.values() for first, last in intervals)

    def add(self, gtid: str) -> None:
        """Add the id of a MySQL transaction."""
        server, _, number = gtid.lower().rpartition(":")
        at, intervals = int(number), self._intervals.setdefault(server, [])
        if any(first <= at <= last for first, last in intervals):
            raise InvalidUsage(f"the transaction {gtid} was taken in already: copy again")
        merged: list[tuple[int, int]] = []
        for first, last in sorted([*intervals, (at, at)]):
            if merged and merged[-1][1] + 1 == first:
                merged[-1] = (merged[-1][0], last)
            else:
                merged.append((first, last))
        self._intervals[server] = merged

    def has(self, other: str) -> bool:
        """Return whether this set contains all transactions of another set, which is text."""
        return all(
            any(first <= low and high <= last for first, last in self._intervals.get(server, []))
            for server, intervals in _Servers(other)._intervals.items()
            for low, high in intervals
        )

    def __str__(self) -> str:
        return ",".join(
            ":".join([server, *(str(first) if first == last else f"{first}-{last}" for first, last in intervals)])
            for server, intervals in sorted(self._intervals.items())
        )


Gtids = _Domains | _Servers  # `measure` grows with each transaction that `add` adds.
