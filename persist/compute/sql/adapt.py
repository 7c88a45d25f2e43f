"""Translates DuckDB 2.0's bound, unoptimised plan to ours. Each kind of node is translated here, or refused.

DuckDB has already made joins of all subqueries: correlated ones read, through a common table expression, the distinct
values that they depend on.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from persist.compute.sql import algebra
from persist.compute.sql.adapt_expression import Expressions, Json, is_computed_from_list
from persist.compute.sql.by_duckdb import read_function_name
from persist.compute.sql.by_place import add_positional_windows, is_by_place
from persist.compute.sql.duck import Columns
from persist.compute.sql.members import RELATIONS, check_members
from persist.compute.sql.temporal import apply_now_bounds, check_without_now, reads_now
from persist.compute.sql.types import Unreadable, parse_constant, to_arrow
from persist.core.errors import InvalidUsage
from persist.core.expression.evaluation import join_with_and, split_conjuncts
from persist.core.expression.term import Call, Lit, Place, Term, list_places, make_sql_call, shift_columns

_SERIES = ("unnest", "range", "generate_series", "json_each", "json_tree")
# Column numbers from here on are not columns: a query without columns has them, since tables have a `rowid`.
_ROW_ID = 2**63
_HOW = {
    "INNER": "inner", "LEFT": "left", "RIGHT": "right", "OUTER": "full", "FULL": "full", "SEMI": "semi",
    "ANTI": "anti", "MARK": "mark", "SINGLE": "single",
}  # fmt: skip
_COMPARED = {
    "COMPARE_NOTEQUAL": "not_equal", "COMPARE_LESSTHAN": "less", "COMPARE_LESSTHANOREQUALTO": "less_equal",
    "COMPARE_GREATERTHAN": "greater", "COMPARE_GREATERTHANOREQUALTO": "greater_equal",
    "COMPARE_DISTINCT_FROM": "distinct_from",
}  # fmt: skip


_NEAREST = (
    *("COMPARE_GREATERTHAN", "COMPARE_GREATERTHANOREQUALTO"),
    *("COMPARE_LESSTHAN", "COMPARE_LESSTHANOREQUALTO"),
)
_INSTEAD_OF_ALL = "write it as joins, groups and set operations"
_INSTEAD = {
    "SAMPLE": "what it takes is another part each time. Write a condition on a column, such as id % 10 = 0",
    "POSITIONAL JOIN": "rows of collections are in no order. Join by a column",
}


class Adapter:
    """Translates the plan of one query.

    Args:
        sql: its text, for messages.
        tables: the columns of each collection, with their types.
        unit: the unit of their common timeline; None if times are numbers.
    """

    def __init__(self, sql: str, tables: Mapping[str, Columns], unit: str | None = None) -> None:
        self._sql = sql
        self._tables = tables
        self._unit = unit
        self._of = Expressions(sql)

    def adapt(self, plan: Json) -> algebra.Node:
        """Translate a plan of DuckDB, or a part of one, to a relation."""
        if plan["type"] not in RELATIONS:
            name = plan["type"].removeprefix("LOGICAL_").replace("_", " ")
            raise InvalidUsage(f"{name} is not supported in a view: {_INSTEAD.get(name, _INSTEAD_OF_ALL)}")
        if plan["type"] == "LOGICAL_GET" and read_function_name(plan) not in _SERIES:
            self._check_table(plan)
        check_members(plan)
        node = self._adapt_relation(plan)
        for term in algebra.list_terms(node):
            check_without_now(term, self._sql)
        return node

    def _adapt_relation(self, plan: Json) -> algebra.Node:
        """Translate a relation by its kind."""
        match plan["type"].removeprefix("LOGICAL_"):
            case "GET":
                return self._adapt_scan(plan)
            case "UNNEST":
                lists = self._of.translate_all(node["child"] for node in plan["expressions"])
                return algebra.Unnest(self.adapt(plan["children"][0]), lists)
            case "PROJECTION":
                return self._adapt_project(plan)
            case "FILTER":
                return self._adapt_filter(plan)
            case "CROSS_PRODUCT":
                return algebra.Join("inner", self.adapt(plan["children"][0]), self.adapt(plan["children"][1]))
            case "COMPARISON_JOIN" | "ANY_JOIN":
                return self._adapt_join(plan)
            case "ASOF_JOIN":
                return self._adapt_asof(plan)
            case "AGGREGATE_AND_GROUP_BY":
                return self._adapt_aggregate(plan)
            case "DISTINCT":
                return self._adapt_distinct(plan)
            case "ORDER_BY":
                # A collection is in no order; `_adapt_limit` has what LIMIT makes of it.
                return _pick_columns(self.adapt(plan["children"][0]), plan.get("projection_map"))
            case "LIMIT":
                return self._adapt_limit(plan)
            case "UNION":
                node = _union_all(self._list_union_parts(plan, bool(plan.get("setop_all"))))
                return node if plan.get("setop_all") else algebra.Distinct(node)
            case "EXCEPT" | "INTERSECT" as how:
                return self._adapt_set_operation(plan, how.lower())
            case "WINDOW":
                return self._adapt_window(plan)
            case "MATERIALIZED_CTE":
                return algebra.Let(
                    plan["table_index"], self.adapt(plan["children"][0]), self.adapt(plan["children"][1])
                )
            case "CTE_REF":
                if plan.get("is_recurring"):
                    raise InvalidUsage("recurring.… is not supported in a view: read the rows of the round before")
                return algebra.Ref(
                    plan["cte_index"], tuple(self._of.infer_type(kind, plan) for kind in plan["chunk_types"])
                )
            case "RECURSIVE_CTE":
                return self._adapt_recursive(plan)
            case "DUMMY_SCAN":
                return algebra.Values(("boolean",), ((algebra.TRUE,),))
            case "EXPRESSION_GET":
                input_ = self.adapt(plan["children"][0])
                return _union_all([algebra.Project(input_, self._of.translate_all(row)) for row in plan["expressions"]])
            case "EMPTY_RESULT":
                types = tuple(self._of.infer_type(kind, plan) for kind in plan.get("return_types", ()))
                return algebra.Values(types or ("boolean",), ())
        raise AssertionError(plan["type"])

    def _check_table(self, plan: Json) -> None:
        """Raise InvalidUsage if a scan is of a table function, and not of a collection."""
        if plan.get("function_data", {}).get("table") not in self._tables:
            name = (plan.get("qname", {}).get("path") or ["?"])[-1]
            raise InvalidUsage(f"a view reads only collections, not {name}(): write its rows to a collection first")

    def _adapt_scan(self, plan: Json) -> algebra.Node:
        """Translate the scan of a collection or of a table function."""
        if read_function_name(plan) in _SERIES:
            return self._add_table_function(plan)
        table = plan["function_data"]["table"]
        columns = self._tables[table]
        numbers = [column_index["index"] for column_index in plan.get("column_indexes", ())]
        requested = [columns[number] for number in numbers if number < _ROW_ID]
        for _, kind in requested:
            if isinstance(kind, Unreadable):
                raise InvalidUsage(kind.why)
        picked = [(name, kind) for name, kind in requested or columns if isinstance(kind, str)]
        picked = picked if requested else picked[:1]
        node = algebra.Scan(table, tuple(name for name, _ in picked), tuple(kind for _, kind in picked))
        return node if requested else algebra.Project(node, (algebra.TRUE,))

    def _add_table_function(self, plan: Json) -> algebra.Node:
        """Return a relation's rows with the columns that a table function computes from each."""
        rows = (
            self.adapt(plan["children"][0])
            if plan.get("children")
            else algebra.Values(("boolean",), ((algebra.TRUE,),))
        )
        width = algebra.count_columns(rows)
        numbers = [column["index"] for column in plan.get("column_indexes", ())]
        requested = [number for number in numbers if number < _ROW_ID]
        if requested and requested != numbers:
            raise InvalidUsage(
                f"rows of {read_function_name(plan)}() have no rowid in a view: use WITH ORDINALITY, or id of JSON"
            )
        unnested = algebra.Unnest(rows, tuple(self._of.make_series(plan, requested or [0])))
        places = [*range(width, width + len(requested)), *plan.get("projected_input", ())]
        return algebra.Project(unnested, tuple(map(Place, places)) or (algebra.TRUE,))

    def _adapt_project(self, plan: Json) -> algebra.Node:
        """Translate a projection."""
        child = self.adapt(plan["children"][0])
        self._of.table = plan["children"][0].get("table_index")
        outputs = self._of.translate_all(plan["expressions"])
        self._of.table = None
        return algebra.Project(child, outputs)

    def _adapt_filter(self, plan: Json) -> algebra.Node:
        """Translate a filter; conditions on `_now()` become bounds of time."""
        node = self.adapt(plan["children"][0])
        conditions = [
            part for condition in self._of.translate_all(plan["expressions"]) for part in split_conjuncts(condition)
        ]
        timed = [condition for condition in conditions if reads_now(condition)]
        untimed = [condition for condition in conditions if condition not in timed]
        node = apply_now_bounds(
            algebra.Filter(node, join_with_and(untimed)) if untimed else node, timed, self._unit, self._sql
        )
        return _pick_columns(node, plan.get("projection_map"))

    def _adapt_join(self, plan: Json) -> algebra.Node:
        """Translate a join of any kind."""
        left, right = self.adapt(plan["children"][0]), self.adapt(plan["children"][1])
        width, right_width = algebra.count_columns(left), algebra.count_columns(right)
        how: Any = _HOW.get(plan["join_type"])
        if how is None:
            raise InvalidUsage(f"a {plan['join_type']} JOIN is not supported in a view")
        equal, same, residual = [], [], []
        for clause in plan.get("conditions", ()):
            comparison = clause["comparison"]
            if comparison == "INVALID":
                residual.append(self._of.translate(clause["left"]))
                continue
            left_value, right_value = (
                self._of.translate_for_comparison(clause["left"]),
                self._of.translate_for_comparison(clause["right"]),
            )
            if comparison == "COMPARE_EQUAL":
                equal.append((left_value, right_value))
            elif comparison == "COMPARE_NOT_DISTINCT_FROM":
                same.append((left_value, right_value))
            elif comparison in _COMPARED:
                residual.append(
                    make_sql_call(_COMPARED[comparison], pa.bool_(), left_value, shift_columns(right_value, width))
                )
            else:
                raise InvalidUsage(f"a join on {comparison} is not supported in a view")
        residual += self._of.translate_all(plan.get("expressions"))
        if "condition" in plan:
            residual.append(self._of.translate(plan["condition"]))
        condition = join_with_and(residual) if residual else None
        join = algebra.Join(how, left, right, tuple(equal), tuple(same), condition)
        lefts, rights = plan.get("left_projection_map"), plan.get("right_projection_map")
        if not lefts and (not rights or how in ("semi", "anti", "mark")):
            return join
        picked = list(lefts or range(width))
        if how == "mark":
            picked.append(width)
        elif how not in ("semi", "anti"):
            picked += [width + number for number in rights or range(right_width)]
        return algebra.Project(join, tuple(map(Place, picked)))

    def _adapt_asof(self, plan: Json) -> algebra.Node:
        """Translate an ASOF join: each left row with the nearest right row.

        Both sides are sorted together, and each left row gets the values of the last right row before it. The
        comparison determines whether right rows with an equal value are sorted before or after the left row. In a RIGHT
        or FULL join, a right row has a partner if the next row is a left one with a key.
        """
        left, right = self.adapt(plan["children"][0]), self.adapt(plan["children"][1])
        how, width, right_width = plan["join_type"], algebra.count_columns(left), algebra.count_columns(right)
        equal: list[tuple[Term, Term, bool]] = []
        nearest: list[tuple[Term, Term, str]] = []
        for clause in plan.get("conditions", ()):
            comparison = clause["comparison"]
            if comparison not in ("COMPARE_EQUAL", "COMPARE_NOT_DISTINCT_FROM", *_NEAREST):
                raise InvalidUsage("an ASOF JOIN has conditions with = and one with <, <=, > or >=, and no others")
            left_value, right_value = (
                self._of.translate_for_comparison(clause["left"]),
                self._of.translate_for_comparison(clause["right"]),
            )
            if comparison in _NEAREST:
                nearest.append((left_value, right_value, comparison))
            else:
                equal.append((left_value, right_value, comparison == "COMPARE_EQUAL"))
        if how not in ("INNER", "LEFT", "RIGHT", "FULL", "OUTER") or len(nearest) != 1 or plan.get("expressions"):
            raise InvalidUsage(f"an ASOF {how} JOIN with these conditions is not supported in a view")
        [(key, other_key, comparison)] = nearest
        kinds = [*algebra.infer_types(left), *algebra.infer_types(right)]
        nulls = [parse_constant(kind, None) for kind in kinds]
        keys = (*(left_value for left_value, _, _ in equal), key)
        other_keys = (*(right_value for _, right_value, _ in equal), other_key)
        needed = [at for at, (_, _, is_strict) in enumerate(equal) if is_strict] + [len(equal)]
        has_right_key = join_with_and([make_sql_call("is_not_null", pa.bool_(), other_keys[at]) for at in needed])
        ours = algebra.Project(left, (*map(Place, range(width)), *nulls[width:], *keys, Lit(pa.scalar(False))))
        right_rows = algebra.Project(
            algebra.Filter(right, has_right_key),
            (*nulls[:width], *map(Place, range(right_width)), *other_keys, Lit(pa.scalar(True))),
        )
        first = width + right_width
        is_right, by = Place(first + len(keys)), Place(first + len(equal))
        is_down, is_with_equal = comparison in _NEAREST[2:], comparison.endswith("OREQUALTO")
        window = algebra.WindowCall(
            "count_star",
            "int64",
            partition=tuple(map(Place, range(first, first + len(equal)))),
            order=(algebra.Order(by, is_down), algebra.Order(is_right, is_with_equal)),
            frame=algebra.Frame(None, ("rows", 0)),
            where=is_right,
        )
        calls = [
            msgspec.structs.replace(window, function="last_value", type=kinds[at], arguments=(Place(at),))
            for at in range(width, first)
        ]
        first_key, is_left = Place(first + len(keys) + 1), make_sql_call("not", pa.bool_(), is_right)
        has_key = join_with_and(
            [is_left, *(make_sql_call("is_not_null", pa.bool_(), Place(first + at)) for at in needed)]
        )
        finds = msgspec.structs.replace(window, function="lead", type="boolean", arguments=(has_key,), where=None)
        is_outer = how not in ("INNER", "LEFT")
        rows = algebra.Window(algebra.SetOperation("union", ours, right_rows), (*calls, window, *[finds] * is_outer))
        count, is_found = (Place(first_key.index + right_width + at) for at in (0, 1))
        matched = join_with_and([make_sql_call("greater", pa.bool_(), count, Lit(pa.scalar(0, pa.int64()))), has_key])
        of_left: algebra.Node = algebra.Filter(rows, matched if how in ("INNER", "RIGHT") else is_left)
        shown_columns = (
            make_sql_call("case", to_arrow(kinds[width + at]), matched, Place(first_key.index + at), nulls[width + at])
            for at in range(right_width)
        )
        pairs: algebra.Node = algebra.Project(of_left, (*map(Place, range(width)), *shown_columns))
        if not is_outer:
            return pairs
        is_alone = join_with_and([is_right, make_sql_call("distinct_from", pa.bool_(), is_found, Lit(pa.scalar(True)))])
        alone = algebra.Project(algebra.Filter(rows, is_alone), tuple(map(Place, range(first))))
        has_none = make_sql_call("distinct_from", pa.bool_(), has_right_key, Lit(pa.scalar(True)))
        keyless = algebra.Project(algebra.Filter(right, has_none), (*nulls[:width], *map(Place, range(right_width))))
        return _union_all([pairs, alone, keyless])

    def _adapt_aggregate(self, plan: Json) -> algebra.Node:
        """Translate a GROUP BY, with its grouping sets."""
        node = self.adapt(plan["children"][0])
        keys = self._of.translate_all(plan.get("groups"))
        nodes = plan.get("expressions") or []
        aggregates = _share_order(tuple(map(self._of.translate_aggregate, nodes)))
        if not keys and not aggregates:
            raise InvalidUsage(
                "a HAVING without a GROUP BY and without an aggregate in the query makes one row of no column, which "
                "is not supported in a view: write count(*) >= 0 AND your condition, or use WHERE"
            )
        sets = plan.get("grouping_sets") or [list(range(len(keys)))]
        if len(sets) > 1:  # DuckDB shows one of the intervals where the column is not grouped by.
            self._refuse_intervals(algebra.infer_types(algebra.Project(node, keys)), "ROLLUP, CUBE or GROUPING SETS")
        groupings = tuple(map(tuple, plan.get("grouping_functions") or ()))
        aggregated = algebra.Aggregate(
            node, keys, aggregates, tuple(tuple(sorted(grouping_set)) for grouping_set in sets), groupings
        )
        return self._add_list_aggregates(aggregated, nodes, len(keys))

    def _add_list_aggregates(self, made: algebra.Node, nodes: Sequence[Json], first: int) -> algebra.Node:
        """Replace collected lists by the aggregates that DuckDB computes of them."""
        if not any(map(is_computed_from_list, nodes)):
            return made
        outputs: list[Term] = [Place(at) for at in range(algebra.count_columns(made))]
        for at, node in enumerate(nodes, first):
            outputs[at] = self._of.compute_from_list(node, Place(at)) if is_computed_from_list(node) else outputs[at]
        return algebra.Project(made, tuple(outputs))

    def _adapt_distinct(self, plan: Json, order: tuple[algebra.Order, ...] = ()) -> algebra.Node:
        """Return each row once; with an order by other columns, the first row in that order."""
        node = self.adapt(plan["children"][0])
        targets = self._of.translate_all(plan["distinct_targets"])
        if plan.get("distinct_type") == "DISTINCT_ON":
            order = tuple(map(self._of.translate_order, plan.get("order_by", {}).get("orders") or ()))
        elif _determines(targets, node):
            return algebra.Distinct(node)
        return algebra.TopK(node, order, 1, 0, targets)

    def _adapt_limit(self, plan: Json) -> algebra.Node:
        """Translate a LIMIT with its ORDER BY, or a DISTINCT ON."""
        ordered = plan["children"][0]
        order: tuple[algebra.Order, ...] = ()
        map_ = None
        if ordered["type"] == "LOGICAL_ORDER_BY":
            order, map_ = tuple(map(self._of.translate_order, ordered["orders"])), ordered.get("projection_map")
            ordered = ordered["children"][0]
        is_distinct = ordered["type"] == "LOGICAL_DISTINCT"
        node = self._adapt_distinct(ordered, order) if is_distinct else self.adapt(ordered)
        limit, offset = self._read_limit(plan, "limit_val"), self._read_limit(plan, "offset_val") or 0
        return _pick_columns(algebra.TopK(node, order, limit, offset), map_)

    def _read_limit(self, plan: Json, which: str) -> int | None:
        """Return a constant LIMIT or OFFSET; None without one."""
        value = plan.get(which, {"type": "UNSET"})
        if value["type"] == "UNSET":
            return None
        if value["type"] == "CONSTANT_VALUE":
            return int(value.get("constant_integer", 0))
        if value["type"] == "EXPRESSION_VALUE":
            return self._of.read_whole_number(value["expression"], "LIMIT or OFFSET")
        raise InvalidUsage("LIMIT of a percentage is not supported in a view: give a number of rows")

    def _list_union_parts(self, plan: Json, is_all: bool) -> list[algebra.Node]:
        """Return the parts of a UNION, with nested unions of the same result flattened."""
        below = [child for child in plan["children"] if child["type"] == "LOGICAL_UNION"]
        through = [child for child in below if bool(child.get("setop_all")) or not is_all]
        for child in through:
            check_members(child)
        every = [
            self._list_union_parts(child, is_all) if any(child is branch for branch in through) else [self.adapt(child)]
            for child in plan["children"]
        ]
        return [part for parts in every for part in parts]

    def _adapt_set_operation(self, plan: Json, how: Any) -> algebra.Node:
        """Translate an EXCEPT or INTERSECT."""
        left, right = self.adapt(plan["children"][0]), self.adapt(plan["children"][1])
        self._refuse_intervals(algebra.infer_types(left), how.upper())
        if plan.get("setop_all"):
            return algebra.SetOperation(how, left, right)
        return algebra.SetOperation(how, algebra.Distinct(left), algebra.Distinct(right))

    def _refuse_intervals(self, kinds: Sequence[str], what: str) -> None:
        """Raise InvalidUsage if a column is an interval. `what`: for the message."""
        if "interval" in kinds:
            raise InvalidUsage(f"{what} of intervals is not supported in a view: take epoch_us(…), their lengths")

    def _adapt_window(self, plan: Json) -> algebra.Node:
        """Translate window functions, including those that DuckDB computes from lists."""
        child, nodes = self.adapt(plan["children"][0]), plan["expressions"]
        if any(map(is_by_place, nodes)):
            windowed = add_positional_windows(child, nodes, plan["window_index"], self._of, self._of.translate_window)
            return self._add_list_aggregates(windowed, nodes, algebra.count_columns(child))
        return self._add_list_aggregates(
            algebra.Window(child, tuple(map(self._of.translate_window, nodes))), nodes, algebra.count_columns(child)
        )

    def _adapt_recursive(self, plan: Json) -> algebra.Node:
        """Translate a recursive query."""
        if plan.get("key_targets") or plan.get("payload_aggregates"):
            raise InvalidUsage("WITH RECURSIVE … USING KEY is not supported in a view")
        anchor, step = self.adapt(plan["children"][0]), self.adapt(plan["children"][1])
        if not plan.get("union_all"):
            self._refuse_intervals(algebra.infer_types(anchor), "WITH RECURSIVE with UNION")
        if any(isinstance(node, algebra.Temporal) for node in algebra.iterate_nodes(step)):
            raise InvalidUsage("_now() is not supported in the step of WITH RECURSIVE: compare it before, or after")
        return algebra.Recursive(plan["table_index"], bool(plan.get("union_all")), anchor, step)


def _union_all(parts: Sequence[algebra.Node]) -> algebra.Node:
    """Return the rows of all parts, as a balanced tree of unions."""
    if len(parts) == 1:
        return parts[0]
    half = len(parts) // 2
    return algebra.SetOperation("union", _union_all(parts[:half]), _union_all(parts[half:]))


def _share_order(aggregates: tuple[algebra.Aggregation, ...]) -> tuple[algebra.Aggregation, ...]:
    """Complete the orders of aggregates, so that all use one row order.

    So `first(a)` and `first(b)` come from the same row, and the elements of two lists correspond, as in DuckDB.
    """
    read = [
        [argument for argument in call.arguments if not isinstance(argument, Lit)]
        for call in aggregates
        if call.function in _IN_AN_ORDER
    ]
    if all(columns == read[0] for columns in read):
        return aggregates
    ties: list[algebra.Order] = []
    for columns in read:
        ties += [key for key in map(algebra.Order, columns) if key not in ties]
    return tuple(
        msgspec.structs.replace(call, order=(*call.order, *ties)) if call.function in _IN_AN_ORDER else call
        for call in aggregates
    )


_IN_AN_ORDER = ("first", "last", "any", "arg_min", "arg_max", "list", "string_agg")


def _determines(targets: Sequence[Term], node: algebra.Node) -> bool:
    """Return whether rows equal in some expressions are equal in all columns."""
    target_places = {target.index for target in targets if isinstance(target, Place)}
    if not isinstance(node, algebra.Project):
        return len(target_places) == algebra.count_columns(node)
    outputs = [node.outputs[at] for at in target_places]
    kinds = algebra.infer_types(node.input)
    exact = {at for at, kind in enumerate(kinds) if kind not in ("float", "double")}  # 0.0 and -0.0 are one row.

    def is_known(expression: Term) -> bool:
        if isinstance(expression, Call) and list_places(expression) <= exact and expression not in outputs:
            return all(map(is_known, expression.arguments))
        return isinstance(expression, Lit) or expression in outputs

    return all(map(is_known, node.outputs))


def _pick_columns(node: algebra.Node, places: Sequence[int] | None) -> algebra.Node:
    """Return some columns of a relation; all if `places` is None or empty."""
    if not places or list(places) == list(range(algebra.count_columns(node))):
        return node
    return algebra.Project(node, tuple(map(Place, places)))
