"""The collections of a location, as DuckDB's catalog tables show them.

`SHOW TABLES`, `information_schema` and the like list the tables of DuckDB. So before a query of these, each collection
is created as an empty table, or a view, with its columns.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from persist.codecs.types.sql_names import check_sql_names, fold_case
from persist.compute.query.parsing import walk_parts
from persist.compute.query.tables import MAIN, format_path, quote_name, to_sql_schema
from persist.core.errors import InvalidUsage
from persist.core.keyed.form import has_one_value
from persist.core.state_rules.contents import CollectionState
from persist.engine.location.engine import Engine

_SCHEMAS = ("information_schema", "pg_catalog")
_BEGINNINGS = ("duckdb_", "pg_", "pragma_", "sqlite_")


@dataclass(frozen=True, slots=True)
class TableDescription:
    """The description of a collection as an SQL table.

    Attributes:
        schema: the part of the collection's name before the last dot; "main" if there is none.
        table: the rest of the collection's name.
        is_view: whether a query defines it.
        key: the unique columns; empty without any.
        columns: their names and types.
    """

    schema: str
    table: str
    is_view: bool
    key: tuple[str, ...]
    columns: pa.Schema

    @property
    def name(self) -> str:
        """The name of the collection."""
        return self.table if self.schema == MAIN else f"{self.schema}.{self.table}"


def load_all_states(engine: Engine) -> list[CollectionState]:
    """Return the state of each collection, all at one point of the log."""
    names, ids = engine.names(""), engine.follower.state.ids
    return engine.follower.read_known_states([(ids[name], name) for name in names if name in ids])[1]


def list_tables(engine: Engine) -> list[TableDescription]:
    """Return all collections, by schema and table."""
    tables = map(describe_table, load_all_states(engine))
    return sorted(tables, key=lambda about: (about.schema, about.table))


def describe_table(contents: CollectionState) -> TableDescription:
    """Describe a collection as a table."""
    schema, _, table = contents.name.rpartition(".")
    known = contents.schema
    columns = pa.schema([known.declared.field(name) for name in known.columns])
    key = known.key_names if has_one_value(contents) else ()
    return TableDescription(schema or MAIN, table, contents.view is not None, key, columns)


def reads_catalog(parsed: Any) -> bool:
    """Return whether a parsed query reads catalog tables of DuckDB."""
    for node in walk_parts(parsed):
        kind, name = node.get("type"), str(node.get("table_name") or "")
        if kind == "TABLE_FUNCTION":
            name = str(node["function"]["function_name"])
        is_table = kind in ("BASE_TABLE", "TABLE_FUNCTION") and name.lower().startswith(_BEGINNINGS)
        if is_table or node.get("show_type") in ("SHOW_SPECIAL", "SHOW_FROM"):
            return True
        if kind == "BASE_TABLE" and str(node.get("schema_name")).lower() in _SCHEMAS:
            return True
    return False


def create_tables(connection: Any, tables: Sequence[TableDescription], known: Collection[str]) -> None:
    """Create an empty table on a connection for each collection not among `known`."""
    names: dict[tuple[str, str], str] = {}
    for about in tables:
        other = names.setdefault((fold_case(about.schema), fold_case(about.table)), about.name)
        if other != about.name:
            raise InvalidUsage(
                f"SQL takes the collections {other!r} and {about.name!r} for one table, so it cannot describe both: "
                "rename one with client.rename(), or list them with client.collections()"
            )
    for about in tables:
        if about.name in known:
            continue
        check_sql_names(about.name, about.columns)
        path = format_path((about.schema, about.table))
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {quote_name(about.schema)}")
        kinds = {field.name: _name_type(connection, field.type) for field in about.columns}
        if about.is_view:
            shown = ", ".join(f"CAST(NULL AS {kind}) AS {quote_name(name)}" for name, kind in kinds.items())
            connection.execute(f"CREATE VIEW {path} AS SELECT {shown} WHERE false")
        else:
            shown = ", ".join(f"{quote_name(name)} {kind}" for name, kind in kinds.items())
            connection.execute(f"CREATE TABLE {path} ({shown})")


def _name_type(connection: Any, kind: pa.DataType) -> str:
    """Return DuckDB's name of a type; VARIANT if it lacks the type."""
    try:
        return str(connection.from_arrow(to_sql_schema(pa.schema({"x": kind})).empty_table()).types[0])
    except Exception:  # It has errors of several kinds for that.
        return "VARIANT"
