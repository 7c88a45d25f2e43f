"""Parses statements of SQL that define collections: CREATE, DROP, ALTER and COMMENT.

DuckDB runs a statement on an empty table, or view, with the columns of the collection. The difference of DuckDB's
catalog before and after shows what the statement changes. So the grammar is DuckDB's. Parts that a collection cannot
have, such as a CHECK, are found and refused.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa

from persist.codecs.types.arrow_types import JSON
from persist.codecs.types.sql_names import fold_case
from persist.compute.query.catalog import create_tables, describe_table
from persist.compute.query.copying import is_copy
from persist.compute.query.databases import QueryLimits, lend_database
from persist.compute.query.parsing import make_statement_refusal
from persist.compute.query.result import check_arrow_types
from persist.compute.query.statement_text import is_statement, split_at_keyword
from persist.compute.query.tables import MAIN, Path, explain_refusal, format_path, list_words, resolve_table, split_name
from persist.core.errors import InvalidUsage
from persist.core.names import check_free_name
from persist.core.state_rules.contents import CollectionState
from persist.engine.location.collection_times import LATEST

_SPACE = r"(?:\s|--[^\n]*(?:\n|$)|/\*.*?\*/)*"
_NAME = r'(?:"(?:[^"]|"")+"|[^\W\d][\w$-]*)'
_BEGINNING = re.compile(
    rf"{_SPACE}(?P<verb>CREATE|DROP|ALTER|COMMENT\s+ON|REFRESH)\s+(?P<replace>OR\s+REPLACE\s+)?"
    r"(?:MATERIALIZED\s+)?(?P<kind>TABLE|VIEW|COLUMN)\s+(?P<condition>IF\s+(?:NOT\s+)?EXISTS\s+)?"
    rf"(?P<path>{_NAME}(?:\s*\.\s*{_NAME})*)(?P<rest>.*)",
    re.IGNORECASE | re.DOTALL,
)
_COLUMNS = (
    "SELECT column_name, data_type, column_default, is_nullable, comment FROM duckdb_columns() WHERE NOT internal "
    "ORDER BY column_index"
)
_TABLES = (
    "SELECT table_name, comment FROM duckdb_tables() "
    "UNION ALL SELECT view_name, comment FROM duckdb_views() WHERE NOT internal"
)
_CONSTRAINTS = "SELECT constraint_type, constraint_column_names, constraint_text FROM duckdb_constraints()"
_FACTS = ("VARCHAR", None, True)  # The facts of a column without a DEFAULT or NOT NULL.


@dataclass(frozen=True, slots=True)
class Definition:
    """A CREATE, DROP, ALTER or COMMENT: `verb [OR REPLACE] kind [condition] path rest`.

    Attributes:
        verb: such as "COMMENT ON", in upper case; so are kind and condition.
        path: the path of the table, or of the column of a COMMENT ON COLUMN.
    """

    verb: str
    kind: str
    condition: str
    path: Path
    rest: str
    is_replacing: bool

    @classmethod
    def parse(cls, sql: str) -> "Definition":
        """Parse a definition; raise InvalidUsage for other statements."""
        match = _BEGINNING.match(sql)
        if match is None:
            raise make_statement_refusal(sql)
        verb, kind, condition = (
            " ".join((match[part] or "").upper().split()) for part in ("verb", "kind", "condition")
        )
        return cls(verb, kind, condition, split_name(match["path"]), match["rest"], match["replace"] is not None)

    @property
    def words(self) -> str:
        """The first words of the statement, such as "CREATE TABLE"."""
        return f"{self.verb} {self.kind}"

    @property
    def query(self) -> str | None:
        """The query of a CREATE … AS; None if there is none."""
        parts = split_at_keyword(self.rest, "as") if self.verb == "CREATE" else None
        if parts is not None and parts[0].strip():
            raise InvalidUsage(
                f"{self.words} … {parts[0].strip()[:40]}: leave the column list out; name columns in the query with AS"
            )
        return None if parts is None else parts[1].strip().rstrip(";")

    def find_table(self, names: Sequence[str]) -> tuple[str, bool]:
        """Return the name of the collection, and whether it exists. `names`: of all collections."""
        path = self.path[:-1] if self.kind == "COLUMN" else self.path
        if not path:
            raise InvalidUsage(f"COMMENT ON COLUMN {format_path(self.path)} names no table: write table.column")
        at = resolve_table(path, names)
        if at is not None and at.as_of not in (None, LATEST):
            raise InvalidUsage(
                f"{format_path(path)} is {at.name!r} as of a time: a statement changes what is there now"
            )
        if at is not None:
            return at.name, True
        parts = path[1:] if len(path) > 2 and fold_case(path[0]) == LATEST else path
        parts = parts[1:] if len(parts) > 1 and fold_case(parts[0]) == MAIN else parts
        check_free_name(name := ".".join(parts))
        return name, False

    def read_new_columns(self, name: str) -> tuple[pa.Schema, list[str]]:
        """Return the columns of a CREATE TABLE, and the names of its primary key."""
        schema, _, table = name.rpartition(".")
        path = (schema or MAIN, table)
        key, not_null = list[str](), set[str]()
        with lend_database(limits=QueryLimits()) as lent:
            connection = lent.connection
            connection.execute(f"CREATE SCHEMA IF NOT EXISTS {format_path(path[:1])}")
            self._run_with_path(connection, path)
            if "collate" in {*map(str.lower, list_words(self.rest))}:
                raise _make_refusal(name, "COLLATE")
            for kind, names, text in connection.execute(_CONSTRAINTS).fetchall():
                if kind not in ("PRIMARY KEY", "NOT NULL"):
                    raise _make_refusal(name, text)
                not_null |= {*names}
                key = names if kind == "PRIMARY KEY" else key
            for column, (_, default, _) in _TableCatalog.read(connection).columns.items():
                if default is not None:
                    raise _make_refusal(name, f"{column} … {default}")
            relation = connection.sql(f"FROM {format_path(path)} LIMIT 0")
            check_arrow_types(relation)
            fields = [field.with_nullable(field.name not in not_null) for field in _list_fields(relation)]
        return pa.schema(fields), key

    def plan_change(self, contents: CollectionState) -> "TableChange":
        """Return the change that a DROP, ALTER or COMMENT makes to a collection."""
        about = describe_table(contents)
        path = (about.schema, about.table)
        with lend_database(limits=QueryLimits()) as lent:
            connection = lent.connection
            create_tables(connection, [about], ())
            before = _TableCatalog.read(connection)
            self._run_with_path(connection, path)
            if self.verb == "DROP":
                if re.search(r"\bcascade\b", self.rest, re.IGNORECASE):
                    raise InvalidUsage(
                        f"DROP … CASCADE: drop the views that read {about.name!r} first, each by its name"
                    )
                return TableChange()
            after = _TableCatalog.read(connection)
            if self.verb == "COMMENT ON":
                if self.kind != "COLUMN":
                    return TableChange(comments={"": after.comment})
                column = fold_case(self.path[-1])
                return TableChange(comments={n: text for n, text in after.comments.items() if fold_case(n) == column})
            if after.table != before.table:
                return TableChange(name=after.table if about.schema == MAIN else f"{about.schema}.{after.table}")
            types = pa.schema(
                [] if about.is_view else _list_fields(connection.sql(f"FROM {format_path(path)} LIMIT 0"))
            )
            return TableChange(evolution=self._diff_columns(before.columns, after.columns, types))

    def _diff_columns(self, before: "_Columns", after: "_Columns", types: Any) -> dict[str, Any]:
        """Return the arguments of `evolve` for a change; none if IF EXISTS makes it void."""
        added = [name for name in after if name not in before]
        dropped = [name for name in before if name not in after]
        changed = [name for name, facts in after.items() if name in before and facts != before[name]]
        is_plain = all(after[name][1:] == before.get(name, _FACTS)[1:] for name in (*added, *changed))
        if not is_plain and not dropped:
            raise InvalidUsage(
                f"ALTER TABLE{self.rest:.100}: columns have no DEFAULT, and NOT NULL only from the beginning. "
                "evolve(add=…, defaults=…) adds a column with a value in older records"
            )
        if changed and split_at_keyword(self.rest, "using"):
            raise InvalidUsage("ALTER … TYPE … USING computes values: add a column, and UPDATE it")
        if added and dropped:
            return {"rename": dict(zip(dropped, added, strict=True))}
        if dropped:
            return {"drop": dropped}
        if added or changed:
            return {"add" if added else "widen": {name: types.field(name).type for name in added or changed}}
        if re.search(r"\bIF\s+(?:NOT\s+)?EXISTS\b", self.rest, re.IGNORECASE):
            return {}
        raise InvalidUsage(
            f"ALTER TABLE{self.rest:.100} changes nothing that a collection has: add, drop, rename or widen columns, "
            "or rename the table"
        )

    def _run_with_path(self, connection: Any, path: Path) -> None:
        """Run the statement, with another path in place of its table's."""
        column = format_path(self.path[-1:]) if self.kind == "COLUMN" else ""
        words = (self.verb, "OR REPLACE" * self.is_replacing, self.kind, self.condition)
        sql = f"{' '.join(filter(None, words))} {format_path(path)}{'.' * bool(column)}{column}{self.rest}"
        try:
            statements = connection.extract_statements(sql)
            if len(statements) == 1:
                connection.execute(statements[0])
        except Exception as error:  # DuckDB has errors of several kinds for that.
            raise InvalidUsage(f"DuckDB refuses the statement: {' '.join(explain_refusal(error).split())}") from error
        if len(statements) != 1:
            raise InvalidUsage(f"there are {len(statements)} statements: give one, which is one commit")


def _list_fields(relation: Any) -> list[pa.Field]:
    """Return the columns of an empty table with Arrow types; JSON is text."""
    kinds = zip(relation.types, relation.to_arrow_table().schema, strict=True)
    return [field.with_type(JSON) if str(kind) == "JSON" else field for kind, field in kinds]


@dataclass(frozen=True, slots=True)
class TableChange:
    """What a DROP, ALTER or COMMENT changes; without any attribute, the collection is dropped.

    Attributes:
        name: the new name; None keeps the old one.
        evolution: arguments of `evolve`.
        comments: the comment of each column by its name, and of the collection by "".
    """

    name: str | None = None
    evolution: Mapping[str, Any] | None = None
    comments: Mapping[str, str] = field(default_factory=dict)


_Columns = Mapping[str, tuple[Any, ...]]


@dataclass(frozen=True)
class _TableCatalog:
    """DuckDB's catalog entries of the only table of a connection.

    Attributes:
        columns: the type, default and nullability of each column, by name.
        comments: the comments of columns, by name.
    """

    table: str
    comment: str
    columns: _Columns
    comments: Mapping[str, str]

    @classmethod
    def read(cls, connection: Any) -> "_TableCatalog":
        """Read the entries from a connection."""
        (table, comment), *_ = connection.execute(_TABLES).fetchall() or [("", None)]
        columns = connection.execute(_COLUMNS).fetchall()
        facts = {name: tuple(facts) for name, *facts, _ in columns}
        return cls(table, comment or "", facts, {name: comment or "" for name, *_, comment in columns})


def classify_statement(sql: str) -> Literal["change", "definition", "copy"] | None:
    """Return the kind of statement that a text begins with; None for a query."""
    if is_statement(sql):
        return "change"
    if is_copy(sql):
        return "copy"
    return "definition" if isinstance(sql, str) and _BEGINNING.match(sql) else None


def _make_refusal(name: str, text: str) -> InvalidUsage:
    """Return the error for a part of CREATE TABLE that collections do not have."""
    return InvalidUsage(
        f"{text!r:.200} is not what a collection has: {name!r} may have columns with types, NOT NULL and one PRIMARY "
        "KEY. Leave it out, and check rows before you write them"
    )
