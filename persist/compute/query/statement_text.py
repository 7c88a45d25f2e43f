"""Parses a statement that changes a collection, and makes queries that find rows that it would change twice.

If several rows of a source change the same row, DuckDB silently uses the first that it meets. So the joined rows are
queried before, with the statement's own words: `UPDATE t SET … FROM s WHERE c` as `FROM t, s WHERE c`, and `MERGE INTO
t USING s ON c WHEN MATCHED AND d THEN …` as `FROM t JOIN s ON c WHERE d`. DuckDB's own tokenizer finds the parts.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from persist.compute.query.tables import DUCKDB, Path, format_path, quote_name, split_name
from persist.core.errors import InvalidUsage
from persist.engine.read.results.result import require_package

_NAME = r'(?:"(?:[^"]|"")+"|[^\W\d][\w$-]*)'
_BEGINNING = re.compile(
    r"(?:\s|--[^\n]*(?:\n|$)|/\*.*?\*/)*"
    r"(?P<what>TRUNCATE(?:\s+TABLE)?|UPDATE|DELETE\s+FROM|INSERT\s+(?:OR\s+(?:REPLACE|IGNORE)\s+)?INTO|MERGE\s+INTO)\s+"
    rf"(?P<table>{_NAME}(?:\s*\.\s*{_NAME})*)",
    re.IGNORECASE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class _Token:
    """A token of SQL: its lower-case text, its place, and whether it is nested."""

    text: str
    at: int
    is_outside: bool


@dataclass(frozen=True, slots=True)
class TouchedRows:
    """Describes rows that include all rows that a statement touches.

    Attributes:
        alias: the name that the condition uses for the table.
        source: what the statement joins the table with, as SQL; None without a join.
        condition: true for the rows, as SQL; None if equal columns alone decide.
        equal: columns that are equal in both, by USING.
    """

    alias: str
    source: str | None = None
    condition: str | None = None
    equal: tuple[str, ...] = ()


class StatementText:
    """The text of a statement, split into its parts."""

    def __init__(self, sql: str, match: re.Match[str]) -> None:
        self.table: Path = split_name(match["table"])
        self._what = match["what"].lower().split()
        self._rest = sql[match.end() :]
        self._tokens = _split_tokens(self._rest)
        self._end = len(self._rest.encode())
        while self._tokens and self._tokens[-1].text == ";":
            self._end = self._tokens.pop().at
        if self._find_words(";"):
            raise InvalidUsage(f"there are {len(self._find_words(';')) + 1} statements: give one, which is one commit")
        if self._find_words("returning"):
            raise InvalidUsage(
                "the statement has RETURNING: leave it out. The answer has the time of the changes, which "
                "collection.changes(start=time, until=time + 1) reads"
            )

    @property
    def is_upsert(self) -> bool:
        """Whether the statement is an INSERT with ON CONFLICT, OR REPLACE or OR IGNORE."""
        return self._what[0] == "insert" and ("or" in self._what or self._conflict_token is not None)

    def find_touched_rows(self) -> TouchedRows | None:
        """Describe the rows that the statement may touch; None for all rows."""
        wheres = self._find_words("where")
        condition = self._slice_text(wheres[-1] + 1, None) if wheres else None
        if self._what[0] == "insert":
            return TouchedRows(self.table[-1], condition="false")
        if self._what[0] == "merge":
            return self._find_merged_rows()
        if self._what[0] not in ("update", "delete") or condition is None:
            return None
        first = "set" if self._what[0] == "update" else "using"
        sources = self._find_words("from" if first == "set" else "using")
        source = self._slice_text(sources[0] + 1, wheres[-1]) if sources else None
        ends = self._find_words(first) or wheres
        return TouchedRows(self._parse_alias(self._slice_text(0, ends[0])), source, condition)

    def _find_merged_rows(self) -> TouchedRows | None:
        """Describe the rows that a MERGE may touch; None for all rows."""
        using, on, whens = self._find_words("using"), self._find_words("on"), self._find_words("when")
        if not using or not whens or any(self._tokens[at - 1].text == "matched" for at in self._find_words("by")):
            return None  # WHEN NOT MATCHED BY SOURCE may touch any row.
        name = self._parse_alias(self._slice_text(0, using[0]))
        if len(using) > 1 and using[1] < whens[0]:
            columns = split_name(self._slice_text(using[1] + 1, whens[0]).strip().strip("()").replace(",", " "))
            return TouchedRows(name, self._slice_text(using[0] + 1, using[1]), None, columns)
        if not on or on[0] > whens[0]:
            return None
        return TouchedRows(name, self._slice_text(using[0] + 1, on[0]), self._slice_text(on[0] + 1, whens[0]))

    def _parse_alias(self, text: str) -> str:
        """Return the alias in a text, or else the name of the table."""
        words = split_name(re.sub(r"--[^\n]*|/\*.*?\*/", " ", text, flags=re.DOTALL).strip())
        return words[-1] if words else self.table[-1]

    def make_plain_insert(self, table: str) -> str:
        """Return an INSERT of the same rows into another table, without ON CONFLICT."""
        return f"INSERT INTO {quote_name(table)} {self._slice_text(0, self._conflict_token)}"

    def make_repeat_query(self, key: Sequence[str], columns: Sequence[str], *, differ: bool = False) -> str | None:
        """Return a query that finds keys changed by several source rows, or None.

        Args:
            columns: all names of columns of the table.
            differ: find only source rows that differ, which takes longer.
        """
        rows = None
        if self._what[0] == "update":
            rows = self._find_repeated_updates(key, columns)
        elif self._what[0] == "merge":
            rows = self._find_repeated_merges(key, columns)
        if rows is None:
            return None
        names, tables = rows
        keys = ", ".join(f"first({quote_name(f'persist_key_{at}')})" for at in range(len(key)))
        chosen = f"DISTINCT {names}, *" if differ else names
        return (
            f"SELECT {keys} FROM (SELECT {chosen} FROM {tables}\n) WHERE persist_action IS NOT NULL "
            "GROUP BY persist_row HAVING count(*) > 1 AND bool_or(persist_action = 'update') LIMIT 1"
        )

    def _find_repeated_updates(self, key: Sequence[str], columns: Sequence[str]) -> tuple[str, str] | None:
        """Return a select list and a FROM that list the rows of an UPDATE … FROM; or None."""
        set_at, sources = self._find_words("set"), self._find_words("from")
        if not set_at or not sources:
            return None
        alias, names = self._select_row_columns(self._slice_text(0, set_at[0]), key, columns)
        source = self._slice_text(sources[0] + 1, None)
        return f"{names}, 'update' AS persist_action", f"{format_path(self.table)} {alias}, {source}"

    def _find_repeated_merges(self, key: Sequence[str], columns: Sequence[str]) -> tuple[str, str] | None:
        """Return a select list and a FROM that list the rows a MERGE matches, or None."""
        using, whens = self._find_words("using"), self._find_words("when")
        if not using or not whens:
            return None
        alias, names = self._select_row_columns(self._slice_text(0, using[0]), key, columns)
        source = self._slice_text(using[0] + 1, whens[0])
        actions = []
        for at, end in zip(whens, [*whens[1:], None], strict=True):
            if self._tokens[at + 1].text == "matched":
                then = next(place for place in self._find_words("then") if place > at)
                condition = self._slice_text(at + 3, then) if self._tokens[at + 2].text == "and" else "true"
                action = self._slice_text(then + 1, end).split()[0].lower().strip(";")
                shown = f"'{action}'" if action in ("update", "delete") else "NULL"
                actions.append(f"WHEN (\n{condition}\n) THEN {shown}")
        if not actions:
            return None
        action = f"CASE {' '.join(actions)} END AS persist_action"
        return f"{names}, {action}", f"{format_path(self.table)} {alias} JOIN {source}"

    def _select_row_columns(self, text: str, key: Sequence[str], columns: Sequence[str]) -> tuple[str, str]:
        """Return a table as written, and the select list that identifies its rows."""
        name = quote_name(self._parse_alias(text))
        row = name if "rowid" in map(str.lower, columns) else f"{name}.rowid"
        keys = (f"{name}.{quote_name(column)} AS {quote_name(f'persist_key_{at}')}" for at, column in enumerate(key))
        return text, ", ".join([f"{row} AS persist_row", *keys])

    @property
    def _conflict_token(self) -> int | None:
        """The place of the ON of an ON CONFLICT; None without one."""
        places = self._find_words("conflict")
        return places[-1] - 1 if places and self._tokens[places[-1] - 1].text == "on" else None

    def _find_words(self, word: str) -> list[int]:
        """Return the places of a keyword of the statement itself; the FROM of IS DISTINCT FROM is not one."""
        return [
            at
            for at, token in enumerate(self._tokens)
            if token.text == word and token.is_outside and (word != "from" or self._tokens[at - 1].text != "distinct")
        ]

    def _slice_text(self, begin: int, end: int | None) -> str:
        """Return the text from one token up to another."""
        ends = [*(token.at for token in self._tokens), self._end]
        return self._rest.encode()[ends[begin] : ends[len(ends) - 1 if end is None else end]].decode()


def parse_statement_text(sql: str) -> StatementText | None:
    """Parse a statement that changes a collection; None for other texts."""
    match = _BEGINNING.match(sql) if isinstance(sql, str) else None
    return None if match is None else StatementText(sql, match)


def is_statement(sql: str) -> bool:
    """Return whether a text begins like a statement that changes a collection."""
    return isinstance(sql, str) and _BEGINNING.match(sql) is not None


def split_at_keyword(sql: str, word: str) -> tuple[str, str] | None:
    """Split a text at the first such keyword outside of brackets, or None."""
    text = sql.encode()
    for token in _split_tokens(sql):
        if token.text == word and token.is_outside:
            return text[: token.at].decode(), text[token.at + len(word) :].decode()
    return None


def _split_tokens(sql: str) -> list[_Token]:
    """Return the tokens of a statement, each with its place and nesting."""
    text, made, depth = sql.encode(), list[_Token](), 0
    tokens = require_package(DUCKDB).tokenize(sql)
    for (at, kind), end in zip(tokens, [*(at for at, _ in tokens[1:]), len(text)], strict=False):
        word = text[at:end].decode().strip()
        if kind.name == "comment" or not word:
            continue
        if kind.name == "operator":
            depth += sum(word.count(sign) for sign in "([{") - sum(word.count(sign) for sign in ")]}")
        is_word = kind.name == "keyword"
        depth -= is_word and word.lower() == "end"
        made.append(_Token(word.lower() if is_word else "" if kind.name != "operator" else word, at, depth == 0))
        depth += is_word and word.lower() == "case"
    return made
