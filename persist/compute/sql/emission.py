"""`EMIT FINAL` behind a query over windows of time: a window appears once, when no event can change it any more.

    SELECT window_end, count(*) AS n FROM tumble(bids, at, INTERVAL 10 MINUTE) GROUP BY window_end EMIT FINAL

A late bound (`persist.Keyed(late_bound=persist.Behind(…))`) refuses events that lie more than a distance behind the
greatest time seen. So a window is final when its end lies that far behind the greatest time in the collection, and
`EMIT FINAL` leaves out the rows of all others: `window_end <= (SELECT max(at) - distance FROM bids)`. Views keep rows
in order of such a comparison with one value, so a refresh computes only what changes.

This needs no mechanism of its own: a view's contents at each time are its query's result on its inputs at that time.
More conditions ensure that a row stays once it is shown. They are checked when the view is created:

- The collection has such a bound, of the column that the windows use, and events are its only changes: none replaces or
  deletes a row (`InsertIfAbsent`, and no tombstones).
- The query reads nothing else, and each row of its answer comes from the rows of one window: it groups by a bound of
  the window, and its window functions have partitions of such a bound. It has no LIMIT, and does not read `_now()`.

The bound holds in the order in which events arrive. An event with a later time than one that arrived after it, or a
statement that overwrites rows, still changes its windows, as an exact correction.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow.types as pat

from persist.codecs.types.schema import CollectionSchema
from persist.codecs.types.sql_names import fold_case
from persist.compute.query import is_time_window, list_arguments, walk_parts
from persist.compute.sql.duck import load_duckdb, parse_statement, show_position
from persist.core.errors import InvalidUsage
from persist.core.keyed.machines import InsertIfAbsent
from persist.core.log.fields import KeyedForm

Json = Mapping[str, Any]
_WORDS = [b"emit", b"final"]
_BOUNDS = ("window_start", "window_end")
_SHAPE = "EMIT FINAL wants one SELECT … FROM tumble(…), hop(…) or session(…) … GROUP BY window_end"


def split_emission(sql: str) -> tuple[str, bool]:
    """Return a query without `EMIT FINAL`, and whether it ended with that."""
    if not isinstance(sql, str) or "emit" not in sql.lower():
        return sql, False
    text = sql.encode()
    tokens = [(at, kind.name) for at, kind in load_duckdb().tokenize(sql)]
    ends = [at for at, _ in tokens[1:]] + [len(text)]
    words = [
        (at, text[at:end].strip().lower()) for (at, kind), end in zip(tokens, ends, strict=True) if kind != "comment"
    ]
    while words and words[-1][1] == b";":
        words.pop()
    if [word for _, word in words[-2:]] != _WORDS:
        return sql, False
    return text[: words[-2][0]].decode(), True


def derive_lateness(sql: str, schemas: Mapping[str, CollectionSchema], keyed: Mapping[str, KeyedForm]) -> str:
    """Return how far behind the greatest time a window is final, as an interval in SQL.

    Args:
        sql: the query without `EMIT FINAL`.
        keyed: the declarations of keyed collections.
    """
    node = parse_statement(sql)["node"]
    source = node.get("from_table") or {}
    is_alone = not node.get("cte_map", {}).get("map") and not source.get("column_name_alias")
    if node["type"] != "SELECT_NODE" or not is_time_window(source) or not is_alone:
        raise InvalidUsage(f"{_SHAPE}, and nothing else that reads collections: make views of the other parts")
    _check_parts(node, sql)
    [(name, schema)] = schemas.items()  # It reads no other collection.
    _check_groups(node, [*map(fold_case, schema.names)])
    moments = [
        source_arguments.get("column_names") or [str(source_arguments.get("type"))]
        for source_arguments in list_arguments(source)[1:2]
    ]
    return _derive_distance(name, str(moments[0][-1]) if moments else "", schema, keyed.get(name))


def _derive_distance(name: str, column: str, schema: CollectionSchema, form: KeyedForm | None) -> str:
    """Return how far behind the greatest time a collection's late bound is, as an interval."""
    keyed_options = f"Keyed(order_by=[{column!r}], late_bound=Behind(…), machine=InsertIfAbsent())"
    first = form.order_by[0] if form is not None and form.order_by else None
    if form is None or form.late_by is None or first is None or fold_case(first) != fold_case(column):
        raise InvalidUsage(
            f"EMIT FINAL: collection {name!r} has no late bound that follows {column!r}, so no window of it is ever "
            f"final: make the collection with keyed={keyed_options}, or use HAVING window_end <= _now()"
        )
    if form.machine.name != InsertIfAbsent.name or form.tombstone is not None:
        raise InvalidUsage(
            f"EMIT FINAL: events may replace or delete rows of collection {name!r}, whenever their window was, so no "
            f"window of it is ever final: make the collection with keyed={keyed_options}"
        )
    kind = schema.arrow.field(first).type
    if pat.is_date(kind):
        return f"to_days({form.late_by if pat.is_date32(kind) else -(-form.late_by // 86_400_000)})"
    if not pat.is_timestamp(kind):
        raise InvalidUsage(f"EMIT FINAL: {column!r} of collection {name!r} is {kind}, which has no windows of time")
    parts = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[kind.unit]
    return f"to_microseconds({-(-form.late_by * 10**6 // parts)})"


def _check_parts(node: Json, sql: str) -> None:
    """Raise InvalidUsage if a part of a query reads more than one window."""
    for part in walk_parts(node):
        what = str(part.get("class") or part.get("type") or "")
        if what == "SUBQUERY" or (part.get("class") == "FUNCTION" and part["function_name"].lower() == "_now"):
            raise InvalidUsage(
                f"{_SHAPE}, without subqueries and _now(){show_position(sql, part.get('query_location'))}"
            )
        if what == "WINDOW" and not any(map(_is_bound, part.get("partitions", ()))):
            raise InvalidUsage(
                "EMIT FINAL: a function over rows of several windows would change with the next one: add PARTITION BY "
                f"window_end{show_position(sql, part.get('query_location'))}"
            )
        if what.startswith("LIMIT") or part.get("distinct_on_targets"):
            raise InvalidUsage(
                "EMIT FINAL: what LIMIT and DISTINCT ON take may change with the next window: take "
                "QUALIFY row_number() OVER (PARTITION BY window_end …) <= n"
            )


def _check_groups(node: Json, columns: Sequence[str]) -> None:
    """Raise InvalidUsage if the groups of a query are not of one window each.

    `columns`: the columns of its collection, which precede the aliases of the query.
    """
    items = node.get("select_list") or []
    aliases = {fold_case(item["alias"]): item for item in items if item.get("alias")}
    groups = node.get("group_expressions") or []
    if node.get("aggregate_handling") == "FORCE_AGGREGATES":  # GROUP BY ALL
        groups = items

    def is_of_window(group: Json) -> bool:
        if group.get("type") == "VALUE_CONSTANT" and str(group["literal"]["text"]).isdecimal():
            at = int(group["literal"]["text"]) - 1
            return 0 <= at < len(items) and _is_bound(items[at])
        names = group.get("column_names") or [""]
        return _is_bound(group) or (
            fold_case(names[-1]) not in columns and _is_bound(aliases.get(fold_case(names[0]), {}))
        )

    if len(node.get("group_sets") or [()]) > 1 or not any(map(is_of_window, groups)):
        raise InvalidUsage(f"{_SHAPE} or window_start, and no ROLLUP, CUBE or GROUPING SETS")


def _is_bound(expression: Json) -> bool:
    """Return whether an expression is `window_start` or `window_end`."""
    return (expression.get("column_names") or [""])[-1].lower() in _BOUNDS
