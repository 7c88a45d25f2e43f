"""The known members of each node in DuckDB's plans: those that are translated or have no effect here.

Any other member is refused unless it is empty, and so is an unknown value of a member with few values. So a release's
additions to plans are refused until they are translated.
"""

from collections.abc import Iterable
from typing import Any

from persist.core.errors import InvalidUsage

Json = dict[str, Any]
NOWHERE = 2**64 - 1  # A place in the text, or a number of a table, that is not there.

_EVERY = "expression_class type alias query_location query_location_length return_type"
_CALL = "arguments children function_data has_serialize named_arguments positional_arguments qname"
_RANGE = (
    # As in start_expr and end_expr, and the casts in the order.
    "sql_range_start sql_range_end sql_range_start_boundary sql_range_end_boundary sql_range_order_casts "
    "sql_range_order_type"
)
_EXPRESSIONS = {
    "BOUND_AGGREGATE": f"{_CALL} aggregate_type filter order_bys state_export",
    "BOUND_CASE": "case_checks else_expr",
    "BOUND_COLUMN_REF": "binding depth",
    "BOUND_CONJUNCTION": "children",
    "BOUND_CONSTANT": "value",
    "BOUND_FUNCTION": f"{_CALL} is_operator",
    "BOUND_LAMBDA": "lambda_expr parameter_count parameter_names",
    "BOUND_OPERATOR": "children",
    "BOUND_REF": "index",
    "BOUND_UNNEST": "child",
    "BOUND_WINDOW": f"{_CALL} {_RANGE} arg_orders distinct end end_expr exclude_clause filters ignore_nulls orders "
    "partitions start start_expr",
}
_RUNS = "type children table_index column_count estimated_cardinality has_estimated_cardinality"
_SET = f"{_RUNS} setop_all allow_out_of_order"
_JOIN = (
    f"{_RUNS} join_type conditions condition expressions mark_index mark_types left_projection_map right_projection_map"
)
RELATIONS = {
    "LOGICAL_GET": f"{_RUNS} column_indexes extra_info function_data has_serialize names positional_arguments qname "
    "returned_types source_ordinality table_filters_by_projection arguments parameters input_table_types "
    "input_table_names projected_input ordinality_idx",
    "LOGICAL_PROJECTION": f"{_RUNS} expressions",
    "LOGICAL_FILTER": f"{_RUNS} expressions projection_map",
    "LOGICAL_CROSS_PRODUCT": _RUNS,
    "LOGICAL_COMPARISON_JOIN": _JOIN,
    "LOGICAL_ANY_JOIN": _JOIN,
    "LOGICAL_AGGREGATE_AND_GROUP_BY": f"{_RUNS} expressions groups grouping_sets grouping_functions group_index "
    "aggregate_index groupings_index distinct_validity",
    "LOGICAL_DISTINCT": f"{_RUNS} distinct_type distinct_targets order_by",
    "LOGICAL_ORDER_BY": f"{_RUNS} orders projection_map",
    "LOGICAL_LIMIT": f"{_RUNS} limit_val offset_val",
    "LOGICAL_UNION": _SET,
    "LOGICAL_EXCEPT": _SET,
    "LOGICAL_INTERSECT": _SET,
    "LOGICAL_WINDOW": f"{_RUNS} expressions window_index",
    "LOGICAL_MATERIALIZED_CTE": f"{_RUNS} ctename materialize",
    "LOGICAL_CTE_REF": f"{_RUNS} bound_columns chunk_types cte_index is_recurring",
    "LOGICAL_RECURSIVE_CTE": f"{_RUNS} ctename internal_types ref_recurring union_all key_targets "
    "payload_aggregates",  # A reader of the recursive rows is refused at its own node.
    "LOGICAL_DUMMY_SCAN": _RUNS,
    "LOGICAL_EXPRESSION_GET": f"{_RUNS} expr_types expressions",
    "LOGICAL_ASOF_JOIN": f"{_JOIN} delim_flipped",
    "LOGICAL_UNNEST": f"{_RUNS} expressions unnest_index",
    "LOGICAL_EMPTY_RESULT": f"{_RUNS} return_types bindings",
}
# Those inside of nodes, by the member that holds them.
_PARTS = {
    "orders": "type null_order expression",
    "arg_orders": "type null_order expression",
    "order_bys": "orders",
    "order_by": "orders",
    "case_checks": "when_expr then_expr",
    "conditions": "comparison left right",
    "limit_val": "type constant_integer constant_percentage expression",
    "offset_val": "type constant_integer constant_percentage expression",
    "column_indexes": "index index_type type has_index",
}
_ROWS = ("ROWS", "RANGE", "GROUPS")
_VALUES: dict[tuple[str, str], tuple[Any, ...]] = {
    ("BOUND_AGGREGATE", "aggregate_type"): ("NON_DISTINCT", "DISTINCT"),
    ("BOUND_AGGREGATE", "state_export"): ("NONE",),
    ("BOUND_WINDOW", "exclude_clause"): ("NO_OTHER", "CURRENT_ROW", "GROUP", "TIES"),
    **{
        ("BOUND_WINDOW", which): (
            *("UNBOUNDED_PRECEDING", "UNBOUNDED_FOLLOWING"),
            *(f"CURRENT_ROW_{how}" for how in _ROWS),
            *(f"EXPR_{side}_{how}" for side in ("PRECEDING", "FOLLOWING") for how in _ROWS),
        )
        for which in ("start", "end")
    },
    ("LOGICAL_DISTINCT", "distinct_type"): ("DISTINCT", "DISTINCT_ON"),
    ("LOGICAL_GET", "source_ordinality"): ("WITH_ORDINALITY", "WITHOUT_ORDINALITY"),
    **{(part, "type"): ("ASCENDING", "DESCENDING") for part in ("orders", "arg_orders")},
    **{(part, "null_order"): ("NULLS LAST", "NULLS FIRST") for part in ("orders", "arg_orders")},
    ("column_indexes", "index_type"): ("FULL_READ",),
}
# Options of an aggregate besides its arguments.
_AGGREGATE_DATA = "desc order quantiles separator"
_CLAUSES = {"state_export": "EXPORT_STATE", "index_type": "a field of a column"}


def check_members(node: Json) -> None:
    """Raise InvalidUsage if a node of DuckDB's plan has members that are not translated.

    `node`: of a relation or an expression. Its children are not checked.
    """
    kind = node.get("expression_class") or node["type"]
    supported = RELATIONS.get(kind) or f"{_EVERY} {_EXPRESSIONS.get(kind, '')}"
    _check_names(node, kind, supported.split())
    for member, names in _PARTS.items():
        parts = node.get(member) or []
        for part in parts if isinstance(parts, list) else [parts]:
            _check_names(part, member, names.split())
            for order in part.get("orders") or [] if member.startswith("order_by") else []:
                _check_names(order, "orders", _PARTS["orders"].split())
    if kind == "BOUND_AGGREGATE":
        _check_names(node.get("function_data") or {}, "function_data", _AGGREGATE_DATA.split())


def _check_names(node: Json, kind: str, known: Iterable[str]) -> None:
    """Raise InvalidUsage for a clause of a DuckDB plan that views lack."""
    for name, value in node.items():
        allowed = _VALUES.get((kind, name))
        is_known = name in known if allowed is None else value in allowed
        if not is_known and value not in (None, False, "", NOWHERE) and value != [] and value != {}:
            clause = _CLAUSES.get(name) or f"{name}={value!r:.60}"
            what = kind.removeprefix("LOGICAL_").removeprefix("BOUND_").replace("_", " ").lower()
            raise InvalidUsage(f"{clause} of the {what} is not supported in a view: leave it out")
