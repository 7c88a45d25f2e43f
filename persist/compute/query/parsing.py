"""Parses queries by DuckDB; refuses other statements with the call to use instead."""

import json
from collections.abc import Iterator
from typing import Any

from persist.compute.query.tables import explain_refusal
from persist.core.errors import InvalidUsage

# By the kind of a statement, or by its first word where the kind has several.
_INSTEAD = {
    "CREATE": "CREATE TABLE and CREATE VIEW make collections, collection.index(columns) an index, and "
    "client.create_function() a function. A schema is the part of a name before its dot, and need not be created",
    "DROP": "DROP TABLE and DROP VIEW drop collections, and collection.drop_index() an index",
    "ALTER": "ALTER TABLE changes the columns of a collection and its name",
    "COMMENT": "COMMENT ON TABLE, VIEW and COLUMN describe collections, and client.describe() the location",
    "REFRESH": "REFRESH VIEW brings a view up to date",
    "EXPLAIN": "use client.sql(query).explain(), which shows what is read",
    "MULTI": "PIVOT needs its values in the query: write PIVOT … ON column IN (1, 2) USING …",
    "EXPORT": "copy a location with backup, or publish its collections",
    "SET": "persist chooses DuckDB's settings, and a query cannot change them",
    "PRAGMA": "ask SHOW TABLES, DESCRIBE or information_schema",
    "CALL": "ask SHOW TABLES, DESCRIBE or information_schema",
    "LOAD": "extensions of DuckDB are not loaded, unless the caller lets the query read files",
    "ATTACH": "read another location with a client of its own",
    "DETACH": "read another location with a client of its own",
    "TRANSACTION": "each statement is one commit; several together are client.multi_write()",
    "VACUUM": "compact the collection, and delete garbage with gc",
    "INSERT": "put WITH behind the name of the collection: INSERT INTO orders WITH … SELECT …",
    "UPDATE": "put WITH into its source: UPDATE orders SET … FROM (WITH … SELECT …) AS new WHERE …",
    "DELETE": "put WITH into its source: DELETE FROM orders USING (WITH … SELECT …) AS old WHERE …",
    "MERGE_INTO": "put WITH into its source: MERGE INTO orders USING (WITH … SELECT …) AS new ON …",
}
_NO_QUERY = "this is not one query that begins with SELECT, FROM or WITH"


def parse_query(query: str, connection: Any) -> Any:
    """Return the only statement of a text as DuckDB parses it; refuse what is not a query."""
    try:
        statements = connection.extract_statements(query)
    except Exception as error:  # DuckDB has errors of several kinds for that.
        raise InvalidUsage(f"{_NO_QUERY}: {explain_refusal(error)}") from error
    kinds = [statement.type.name for statement in statements]
    if len(kinds) != 1:
        raise InvalidUsage(f"{_NO_QUERY}: it has {len(kinds)} statements")
    if kinds != ["SELECT"]:
        raise make_statement_refusal(query, kinds[0])
    with connection.cursor() as parser:
        parsed = json.loads(parser.execute("SELECT json_serialize_sql($1)", [query]).fetchone()[0])
    if parsed["error"]:
        raise InvalidUsage(f"{_NO_QUERY}: {parsed.get('error_message')}")
    return parsed


def make_statement_refusal(sql: str, kind: str = "") -> InvalidUsage:
    """Return the error for a statement, which names the call to use instead.

    `kind`: DuckDB's name of the kind of statement.
    """
    word = (sql.split() or [""])[0].upper()
    word = word if word in _INSTEAD else kind
    shown = {"MULTI": "PIVOT", "MERGE_INTO": "MERGE"}.get(word, word)
    instead = _INSTEAD.get(word, "ask a query, or change a collection")
    return InvalidUsage(f"{shown} is neither a query nor a statement that changes a collection here: {instead}")


def walk_parts(parsed: Any) -> Iterator[dict[str, Any]]:
    """Yield all nodes of a parsed query, each a dictionary."""
    left = [parsed]
    while left:
        node = left.pop()
        if isinstance(node, dict):
            yield node
        left += node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
