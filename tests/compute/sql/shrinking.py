"""Makes a query that fails, and the changes that it fails on, smaller while it still fails.

DuckDB gives the syntax tree of a query as JSON, and takes one. What is tried on it does not know the grammar: leave out
what is one of several or need not be there; put a part of something, such as one side of a join or of a union, an
argument or a subquery, in its place. Most results are not queries, so they do not fail in the same way.
"""

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import duckdb

from tests.compute.sql.oracle import Changes

Tree: TypeAlias = Any
Where: TypeAlias = "tuple[str | int, ...]"

ROUNDS_MAX = 200  # Each makes the query smaller by one thing at least.
_OPTIONAL = {"where_clause", "having", "qualify", "filter", "modifiers", "orders", "group_expressions", "cte_map"}


def shrunk(sql: str, fails: Callable[[str], bool]) -> str:
    """Return a query that fails, too, and of which nothing more can be left out."""
    with duckdb.connect(":memory:") as connection:
        tree = _parsed(connection, sql)
        for _ in range(ROUNDS_MAX):
            for smaller in _smaller(tree):
                text = _written(connection, smaller)
                if text is not None and len(text) < len(sql) and fails(text):
                    sql, tree = text, _parsed(connection, text)
                    break
            else:
                break
    return sql


def shrunk_changes(steps: list[Changes], fails: Callable[[list[Changes]], bool]) -> list[Changes]:
    """Return changes that something fails on, too, with as few steps and rows as can be."""
    at = 0
    while at < len(steps):
        rest = [*steps[:at], *steps[at + 1 :]]
        if fails(rest):
            steps = rest
        else:
            at += 1
    for step in range(len(steps)):
        for name in [*steps[step]]:
            row = 0
            while row < len(steps[step][name]):
                rest = copy.deepcopy(steps)
                del rest[step][name][row]
                if fails(rest):
                    steps = rest
                else:
                    row += 1
    return steps


def _parsed(connection: duckdb.DuckDBPyConnection, sql: str) -> Tree:
    asked = "SELECT json_serialize_sql(?, skip_null := true, skip_empty := true)"
    found = connection.execute(asked, [sql]).fetchone()
    assert found is not None
    return json.loads(found[0])


def _written(connection: duckdb.DuckDBPyConnection, tree: Tree) -> str | None:
    """Return the text of a tree; None if it is none."""
    try:
        found = connection.execute("SELECT json_deserialize_sql(?)", [json.dumps(tree)]).fetchone()
    except duckdb.Error:
        return None
    return None if found is None else str(found[0])


def _smaller(tree: Tree) -> Iterator[Tree]:
    """Yield trees of which something is left out, what is largest first."""
    for path in sorted(_paths(tree), key=len):
        node = _at(tree, path)
        if isinstance(node, list):
            for index in range(len(node)):
                if len(node) > 1:
                    yield _changed(tree, path, [*node[:index], *node[index + 1 :]])
        elif isinstance(node, dict):
            for name in sorted(_OPTIONAL & node.keys()):
                yield _changed(tree, path, {key: value for key, value in node.items() if key != name})
            for inner in _paths(node):
                if inner and _is_of_one_kind(node, _at(node, inner)):
                    yield _changed(tree, path, _at(node, inner))


def _is_of_one_kind(node: Tree, inner: Tree) -> bool:
    """Whether one may stand where the other stands: both expressions, queries, or tables."""
    return (
        isinstance(inner, dict)
        and "type" in inner
        and ("class" in node, _is_query(node)) == ("class" in inner, _is_query(inner))
    )


def _is_query(node: Tree) -> bool:
    return str(node.get("type", "")).endswith("_NODE")


def _paths(tree: Tree) -> Iterator[Where]:
    """Yield the paths to all dicts and lists inside, the tree's own among them."""
    yield ()
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for name, each in items:
        if isinstance(each, dict | list):
            for path in _paths(each):
                yield (name, *path)


def _at(tree: Tree, path: Where) -> Tree:
    for name in path:
        tree = tree[name]
    return tree


def _changed(tree: Tree, path: Where, value: Tree) -> Tree:
    """Return a tree with another value at a path."""
    if not path:
        return value
    found: Tree = dict(tree) if isinstance(tree, dict) else list(tree)
    found[path[0]] = _changed(tree[path[0]], path[1:], value)
    return found
