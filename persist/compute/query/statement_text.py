"""The text of a statement that changes a collection, in parts, and queries that say what it would do twice.

DuckDB takes one of several rows of a source that change the same row, without a word, whichever comes first. So what a
statement joins is asked before, with its own words: `UPDATE t SET … FROM s WHERE c` as `FROM t, s WHERE c`, and `MERGE
INTO t USING s ON c WHEN MATCHED AND d THEN …` as `FROM t JOIN s ON c WHERE d`. DuckDB's own tokenizer finds the parts.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from persist.compute.query.tables import DUCKDB, Path, parts_of, path_of, quoted
from persist.core.errors import InvalidUsage
from persist.engine.read.results.result import required

_NAME = r'(?:"(?:[^"]|"")+"|[^\W\d][\w$-]*)'
_BEGINNING = re.compile(
    r"(?:\s|--[^\n]*(?:\n|$)|/\*.*?\*/)*"
    r"(?P<what>TRUNCATE(?:\s+TABLE)?|UPDATE|DELETE\s+FROM|INSERT\s+(?:OR\s+(?:REPLACE|IGNORE)\s+)?INTO|MERGE\s+INTO)\s+"
    rf"(?P<table>{_NAME}(?:\s*\.\s*{_NAME})*)",
    re.IGNORECASE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class _Token:
    """A token of SQL, in lower case; where it begins; and whether it is in no brackets and in no CASE."""

    text: str
    at: int
    is_outside: bool


class StatementText:
    """A statement, its parts, and what it changes.

    Attributes:
        table: the path of the table that it changes.
    """

    def __init__(self, sql: str, match: re.Match[str]) -> None:
        self.table: Path = parts_of(match["table"])
        self._what = match["what"].lower().split()
        self._rest = sql[match.end() :]
        self._tokens = _tokens(self._rest)
        self._end = len(self._rest.encode())
        while self._tokens and self._tokens[-1].text == ";":
            self._end = self._tokens.pop().at
        if self._found(";"):
            raise InvalidUsage(f"there are {len(self._found(';')) + 1} statements: give one, which is one commit")
        if self._found("returning"):
            raise InvalidUsage("the statement has RETURNING: leave it out, and read the changes of its time instead")

    @property
    def is_upsert(self) -> bool:
        """Whether it is an INSERT that says what happens to rows whose key is there."""
        return self._what[0] == "insert" and ("or" in self._what or self._conflict is not None)

    def new_rows(self, table: str) -> str:
        """Return a statement that inserts the rows of this INSERT into another table, whatever is there."""
        return f"INSERT INTO {quoted(table)} {self._text(0, self._conflict)}"

    def repeats(self, key: Sequence[str], columns: Sequence[str]) -> str | None:
        """Return a query for keys of rows that this changes for several rows of its source; None if it has none.

        Args:
            columns: all names of columns of the table.
        """
        if self._what[0] == "update":
            return self._repeated_updates(key, columns)
        return self._repeated_merges(key, columns) if self._what[0] == "merge" else None

    def _repeated_updates(self, key: Sequence[str], columns: Sequence[str]) -> str | None:
        set_at, sources = self._found("set"), self._found("from")
        if not set_at or not sources:
            return None
        alias, names = self._alias(self._text(0, set_at[0]), key, columns)
        source = self._text(sources[0] + 1, None)
        return _repeated(f"{names}, 'update' AS persist_action FROM {path_of(self.table)} {alias}, {source}", key)

    def _repeated_merges(self, key: Sequence[str], columns: Sequence[str]) -> str | None:
        using, whens = self._found("using"), self._found("when")
        if not using or not whens:
            return None
        alias, names = self._alias(self._text(0, using[0]), key, columns)
        source = self._text(using[0] + 1, whens[0])
        actions = []
        for at, end in zip(whens, [*whens[1:], None], strict=True):
            if self._tokens[at + 1].text == "matched":
                then = next(place for place in self._found("then") if place > at)
                condition = self._text(at + 3, then) if self._tokens[at + 2].text == "and" else "true"
                action = self._text(then + 1, end).split()[0].lower().strip(";")
                shown = f"'{action}'" if action in ("update", "delete") else "NULL"
                actions.append(f"WHEN (\n{condition}\n) THEN {shown}")
        if not actions:
            return None
        action = f"CASE {' '.join(actions)} END AS persist_action"
        return _repeated(f"{names}, {action} FROM {path_of(self.table)} {alias} JOIN {source}", key)

    def _alias(self, text: str, key: Sequence[str], columns: Sequence[str]) -> tuple[str, str]:
        """Return the alias of the table as it is written, and the columns of a query that tell its rows apart."""
        words = parts_of(text.strip())
        name = quoted(words[-1] if words else self.table[-1])
        row = name if "rowid" in map(str.lower, columns) else f"{name}.rowid"
        keys = (f"{name}.{quoted(column)} AS {quoted(f'persist_key_{at}')}" for at, column in enumerate(key))
        return text, ", ".join([f"{row} AS persist_row", *keys])

    @property
    def _conflict(self) -> int | None:
        places = self._found("conflict")
        return places[-1] - 1 if places and self._tokens[places[-1] - 1].text == "on" else None

    def _found(self, word: str) -> list[int]:
        """Return the tokens that are a word of the statement itself; IS DISTINCT FROM has none."""
        return [
            at
            for at, token in enumerate(self._tokens)
            if token.text == word and token.is_outside and (word != "from" or self._tokens[at - 1].text != "distinct")
        ]

    def _text(self, begin: int, end: int | None) -> str:
        """Return the text from one token up to another."""
        ends = [*(token.at for token in self._tokens), self._end]
        return self._rest.encode()[ends[begin] : ends[len(ends) - 1 if end is None else end]].decode()


def statement_text(sql: str) -> StatementText | None:
    """Return the parts of a statement; None if a text begins like none."""
    match = _BEGINNING.match(sql) if isinstance(sql, str) else None
    return None if match is None else StatementText(sql, match)


def is_statement(sql: str) -> bool:
    """Return whether a text begins like a statement that changes a collection."""
    return isinstance(sql, str) and _BEGINNING.match(sql) is not None


def split_by(sql: str, word: str) -> tuple[str, str] | None:
    """Return what comes before and after the first such keyword outside of brackets; None if there is none."""
    text = sql.encode()
    for token in _tokens(sql):
        if token.text == word and token.is_outside:
            return text[: token.at].decode(), text[token.at + len(word) :].decode()
    return None


def _repeated(rows: str, key: Sequence[str]) -> str:
    """Return a query for the key of a row that is changed several times."""
    keys = ", ".join(f"first({quoted(f'persist_key_{at}')})" for at in range(len(key)))
    return (
        f"SELECT {keys} FROM (SELECT {rows}\n) WHERE persist_action IS NOT NULL GROUP BY persist_row "
        "HAVING count(*) > 1 AND bool_or(persist_action = 'update') LIMIT 1"
    )


def _tokens(sql: str) -> list[_Token]:
    text, made, depth = sql.encode(), list[_Token](), 0
    tokens = required(DUCKDB).tokenize(sql)
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
