"""Window functions whose number is a column: `lag(x, n)`, `lead(x, n)`, `nth_value(x, n)` and `ntile(n)`.

Such a function returns the value of a row whose position a column determines. So the rows of each partition are
numbered, and the partition is joined with itself: the requested position equals the number of the row with the value.
Ties of the order are broken by all columns, on both sides in the same way, so the places of a partition are 1, 2, 3 and
so on. The first place of a frame is known only where frames begin with their partitions, and `nth_value` over others is
refused. `ntile` is arithmetic on the number of the row and the count of its partition.

Cost: a `row_number`, and a join by partition and position.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from persist.compute.sql.adapt_expression import Expressions, Json
from persist.compute.sql.algebra import Frame, Join, Let, Node, Order, Project, Ref, Window, WindowCall, infer_types
from persist.compute.sql.by_duckdb import strip_text_cast
from persist.compute.sql.types import parse_constant, to_arrow
from persist.core.expression.evaluation import join_with_and
from persist.core.expression.term import Lit, Place, Term, make_sql_call

_NUMBER = {"WINDOW_LAG": 1, "WINDOW_LEAD": 1, "WINDOW_NTH_VALUE": 1, "WINDOW_NTILE": 0}
_WHOLE = Frame(None, None)
_NTILE = (
    'CASE WHEN "$3" IS NULL THEN NULL'
    " WHEN \"$3\" < 1 THEN CAST(error('the argument of ntile must be greater than zero') AS BIGINT)"
    ' WHEN "$1" <= "$2" % least("$2", "$3") * ("$2" // least("$2", "$3") + 1)'
    ' THEN ("$1" - 1) // ("$2" // least("$2", "$3") + 1) + 1'
    ' ELSE ("$1" - 1 - "$2" % least("$2", "$3")) // ("$2" // least("$2", "$3")) + 1 END'
)


def is_by_place(node: Json) -> bool:
    """Return whether a window function has a position that is not constant."""
    at, children = _NUMBER.get(node["type"]), node.get("children") or []
    return at is not None and len(children) > at and _find_constant(children[at]) is None


def _find_constant(node: Json) -> Json | None:
    """Return a node without its casts if it is a constant; else None."""
    node = strip_text_cast(node)
    while node.get("type") == "OPERATOR_CAST":
        node = node["children"][0]
    return node if node.get("expression_class") == "BOUND_CONSTANT" else None


def add_positional_windows(
    child: Node, nodes: Sequence[Json], number: int, of: Expressions, call: Callable[[Json], Any]
) -> Node:
    """Return rows with a column for each window function, some by position.

    Args:
        number: a number that no other relation of the plan has.
        call: translates a window function whose position is constant.
    """
    kinds = tuple(infer_types(child))
    width, ref = len(kinds), Ref(number, kinds)
    calls: list[WindowCall] = []
    more: list[WindowCall] = []
    for node in nodes:
        if not is_by_place(node):
            calls.append(call(node))
            continue
        _check_arguments(node, of)
        calls.append(_make_row_number(node, width, of))
        frame = _translate_frame(node, of) if node["type"] == "WINDOW_NTH_VALUE" else _WHOLE
        order = tuple(map(of.translate_order, node.get("orders") or ()))
        more.append(WindowCall("count_star", "int64", (), calls[-1].partition, order, frame))
    rows: Node = Window(ref, (*calls, *more))
    outputs: list[Term] = [Place(at) for at in range(width + len(calls))]
    counts, end = iter(range(width + len(calls), width + len(calls) + len(more))), width + len(calls) + len(more)
    for at, node in enumerate(nodes, width):
        if not is_by_place(node):
            continue
        count = Place(next(counts))
        if node["type"] == "WINDOW_NTILE":
            position = _cast_to_int64(of.translate(node["children"][0]))
            outputs[at] = make_sql_call("duckdb", pa.int64(), Lit(pa.scalar(_NTILE)), Place(at), count, position)
            continue
        window = calls[at - width]
        positions = Project(
            Window(ref, (window,)), (*window.partition, Place(width), of.translate(node["children"][0]))
        )
        keys = len(window.partition)
        same = tuple((term, Place(key)) for key, term in enumerate(window.partition))
        position = _find_target_position(node, Place(at), of)
        rows = Join("left", rows, positions, ((position, Place(keys)),), same)
        outputs[at] = _make_value_at_position(node, position, count, Place(end + keys), of)
        end += keys + 2
    return Let(number, child, Project(rows, tuple(outputs)))


def _check_arguments(node: Json, of: Expressions) -> None:
    """Raise InvalidUsage for unsupported arguments of a window by position."""
    of.check(node)
    if node.get("ignore_nulls") or node.get("arg_orders") or node.get("filters") or node.get("filter_expr"):
        of.refuse("IGNORE NULLS, FILTER and ORDER BY inside go with a constant number in a view", node)
    if node["type"] == "WINDOW_NTH_VALUE":
        is_whole = node["start"].startswith("UNBOUNDED") and node.get("exclude_clause", "NO_OTHER") == "NO_OTHER"
        if not is_whole:
            of.refuse("nth_value() of a number that is a column has frames of UNBOUNDED PRECEDING in a view", node)


def _make_row_number(node: Json, width: int, of: Expressions) -> WindowCall:
    """Return a ROW_NUMBER in the partitions and order of a window function."""
    order = (*map(of.translate_order, node.get("orders") or ()), *(Order(Place(at)) for at in range(width)))
    return WindowCall("row_number", "int64", (), of.translate_all(node.get("partitions")), order, _WHOLE)


def _translate_frame(node: Json, of: Expressions) -> Frame:
    """Return the frame of a window function."""
    end, end_at = of.translate_frame_bound(node, "end")
    return Frame(None, end, None, end_at)


def _find_target_position(node: Json, own: Term, of: Expressions) -> Term:
    """Return the term for the position from which each row takes its value."""
    distance = _cast_to_int64(of.translate(node["children"][1]))
    if node["type"] == "WINDOW_NTH_VALUE":
        return distance
    return make_sql_call("subtract" if node["type"] == "WINDOW_LAG" else "add", pa.int64(), own, distance)


def _make_value_at_position(node: Json, wanted: Term, count: Place, place: Place, of: Expressions) -> Term:
    """Return the term for the value at the wanted position, or the function's default."""
    kind = of.infer_type(node["return_type"], node)
    default: Term = parse_constant(kind, None)
    if len(node["children"]) > 2:
        default = make_sql_call("cast", to_arrow(kind), of.translate(node["children"][2]))
    conditions: list[Term] = [make_sql_call("is_not_null", pa.bool_(), place)]
    if node["type"] == "WINDOW_NTH_VALUE":
        conditions.append(make_sql_call("less_equal", pa.bool_(), wanted, count))
    is_said = make_sql_call("is_not_null", pa.bool_(), wanted)
    cases = (join_with_and(conditions), Place(place.index + 1), is_said, default)
    return make_sql_call("case", to_arrow(kind), *cases, parse_constant(kind, None))


def _cast_to_int64(term: Term) -> Term:
    return make_sql_call("cast", pa.int64(), term)
