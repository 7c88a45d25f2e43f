"""Rewrites a view's plan to an equivalent one that costs less. The definition stores the plan as it was bound.

1. *Conditions move down*, through projections, groups and set operations, to the relations that they read. A cross
   product below a condition becomes a join. A mark that is only used as a condition becomes a semijoin, its negation an
   antijoin. An outer join without use of its NULLs becomes an inner one. Unneeded joins of correlated subqueries are
   removed.
2. *Bounds of time* move below joins, so that these forget records whose time is over.
3. *Joins are ordered* so that intermediate results are small (`persist.compute.sql.order`). Windows whose first rows
   suffice are computed on these.

The dataflow leaves out unused columns (`persist.compute.dataflow.plan.optimise`).

**Conditions that may raise come last.** Among the conditions that must all hold (in a WHERE and in the inner joins
below it), the ones that cannot raise move down first, wherever they are in the text. Conditions that may raise are
tested after them, in their order, on the remaining rows. There is one exception: if a join has no other equality, an
equality that may raise is its key, because a cross product is too slow. Earlier conditions then move down to the side
that they read, in front of it. DuckDB, too, evaluates both on all rows of their side.

**Correlated subqueries.** A subquery that reads columns of the surrounding rows is bound as a *domain* (the distinct
values of these columns, as a relation of its own), the result of the subquery for each of them, and a join of that with
the surrounding rows. Two parts of it are mostly not needed. The domain is joined again with a relation derived from it,
by the columns that come from it: that join finds one partner for each row, and changes nothing (`drop_domain_joins`).
An outer join keeps rows without a partner, with NULLs. If a condition above is not true of NULLs, an inner join
suffices (`_push_down`).

**First rows.** A condition on a row's place in its partition becomes the top rows of the partition. `row_number() OVER
(PARTITION BY g ORDER BY x) <= 3` needs three rows of each partition. However it is written (`= 1`, `IN (1, 2)`,
`QUALIFY`, a LIMIT in a correlated subquery, which is bound as this), the window then is put over the first three rows
only:

    Filter(Window(input, row_number), place <= 3)  =  Filter(Window(TopK(input, 3), row_number), place <= 3)

For `rank` and `dense_rank`, rows with equal ranks are selected or left out together (`TopK.counted`).

That holds if all functions of the window have the same result on these rows: they have the same partitions and order,
and do not use later rows. Ties are broken by the same columns in both.

If only the partition columns are used, any row of a partition may be the first. So `SELECT DISTINCT a FROM t ORDER BY
b` keeps no order.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.types as pat

from persist.compute.sql import algebra
from persist.compute.sql.order import NOTHING, Known, order_joins
from persist.compute.sql.types import to_arrow
from persist.core.expression.evaluation import evaluate, factor_conjuncts, may_raise
from persist.core.expression.term import Call, Lit, Place, Term, is_call, list_places, replace_columns, shift_columns

FEW = 1000  # For more first rows, it is better to keep the whole partition in order.
_PLACES = ("row_number", "rank", "dense_rank")
_RUNNING = ("count_star", "count", "count_if", "sum", "avg", "min", "max", "bool_and", "bool_or", "first_value")
_TURNED = {"less": "greater", "less_equal": "greater_equal", "greater": "less", "greater_equal": "less_equal"}
# Functions that are NULL, and no error, where an argument is: a condition that is one of NULL keeps no row.
_COMPARED = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "like", "not_like")
_STRICT = (*_COMPARED, "add", "subtract", "multiply", "negate", "cast")
Origin: TypeAlias = tuple[tuple[str, ...], int, int]  # The path to a `Ref` in a plan, its number, and a column of it.


def rewrite_plan(plan: algebra.Node, statistics: Known = NOTHING) -> algebra.Node:
    """Return an equivalent, cheaper plan. `statistics`: of each collection, by its name."""
    pushed = _push_down(drop_domain_joins(plan), [])
    return order_joins(limit_windows(pushed), statistics)


def _push_down(node: algebra.Node, conditions: list[Term], known: Sequence[Term] = ()) -> algebra.Node:
    """Apply conditions to a relation, as far down as possible.

    `known`: conditions that are tested above, so rows that fail them may be dropped.
    """
    if isinstance(node, algebra.Join) and node.how in ("left", "single"):
        width = algebra.count_columns(node.left)
        if any(_rejects_nulls(part, width) for part in (*conditions, *known)):
            is_inner = node.how == "left" or algebra.has_one_partner(node)
            node = msgspec.structs.replace(node, how="inner") if is_inner else node
    if isinstance(node, algebra.Join) and node.how == "inner" and node.condition is not None:
        conjuncts = factor_conjuncts(node.condition)
        return _push_down(msgspec.structs.replace(node, condition=None), [*conjuncts, *conditions], known)
    if conditions and not isinstance(node, algebra.Filter | algebra.Project):
        types = dict(enumerate(map(to_arrow, algebra.infer_types(node))))
        raising = [part for part in conditions if may_raise(part, types)]
        if raising:
            pushed = _push_down(node, [part for part in conditions if part not in raising], [*known, *raising])
            useful = (
                at
                for at, part in enumerate(raising, 1)
                if algebra.count_cross_joins(_push_join_keys(pushed, [part])) < algebra.count_cross_joins(pushed)
            )
            first = max(useful, default=0)
            return algebra.filter_rows(_push_join_keys(pushed, raising[:first]), raising[first:])
    match node:
        case algebra.Filter(input_, condition):
            return _push_down(input_, [*factor_conjuncts(condition), *conditions], known)
        case algebra.Temporal(input_, lower, upper):
            return _push_bounds_down(_push_down(input_, conditions, known), lower, upper)
        case algebra.Project(input_, outputs):
            down, above = (
                [replace_columns(part, outputs.__getitem__) for part in parts] for parts in (conditions, known)
            )
            return algebra.Project(_push_down(input_, down, above), outputs)
        case algebra.Join():
            return _push_into_join(node, conditions, known)
        case algebra.Aggregate(input_, keys, _, sets) if len(sets) == 1 and len(sets[0]) == len(keys):
            below = [part for part in conditions if list_places(part) and max(list_places(part)) < len(keys)]
            above = [part for part in conditions if part not in below]
            down = [replace_columns(part, keys.__getitem__) for part in below]
            return algebra.filter_rows(algebra.replace_children(node, lambda _: _push_down(input_, down)), above)
        case algebra.Distinct() | algebra.SetOperation():
            return algebra.replace_children(node, lambda below: _push_down(below, conditions))
        case algebra.Let(number, value, body):
            return algebra.Let(number, _push_down(value, []), _push_down(body, conditions, known))
        case algebra.Window(input_, calls):
            fixed = set.intersection(*({e.index for e in c.partition if isinstance(e, Place)} for c in calls))
            below = [part for part in conditions if list_places(part) <= fixed and list_places(part)]
            above = [part for part in conditions if part not in below]
            return algebra.filter_rows(algebra.Window(_push_down(input_, below), calls), above)
    return algebra.filter_rows(algebra.replace_children(node, lambda below: _push_down(below, [])), conditions)


def _push_bounds_down(node: algebra.Node, lower: Term | None, upper: Term | None) -> algebra.Node:
    """Apply time bounds of rows as far down as possible, so that less state is kept."""
    bounds = [bound for bound in (lower, upper) if bound is not None]
    reads = set().union(*map(list_places, bounds))
    if isinstance(node, algebra.Join) and node.how in ("inner", "left", "semi", "anti") and reads:
        width = algebra.count_columns(node.left)
        if max(reads) < width:
            return msgspec.structs.replace(node, left=_push_bounds_down(node.left, lower, upper))
        if min(reads) >= width and node.how == "inner":
            below = [None if e is None else shift_columns(e, -width) for e in (lower, upper)]
            return msgspec.structs.replace(node, right=_push_bounds_down(node.right, *below))
    return algebra.Temporal(node, lower, upper)


def _push_into_join(join: algebra.Join, conditions: list[Term], known: Sequence[Term]) -> algebra.Node:
    """Apply conditions below a join where possible, otherwise above."""
    width = algebra.count_columns(join.left)
    known_lefts, known_rights, _ = algebra.split_by_side(known, width)
    if join.how == "inner":
        lefts, rights, crossing = algebra.split_by_side(conditions, width)
        left, right = _push_down(join.left, lefts, known_lefts), _push_down(join.right, rights, known_rights)
        return algebra.make_inner_join(left, right, crossing, join.equal, join.same)
    lefts = [part for part in conditions if list_places(part) and max(list_places(part)) < width]
    residual = [part for part in conditions if part not in lefts]
    if join.how in ("right", "full"):
        lefts, known_lefts, residual = [], [], conditions
    joined = msgspec.structs.replace(
        join, left=_push_down(join.left, lefts, known_lefts), right=_push_down(join.right, [])
    )
    return _filter_by_mark(joined, residual, width) if join.how == "mark" else algebra.filter_rows(joined, residual)


def _push_join_keys(node: algebra.Node, conditions: list[Term]) -> algebra.Node:
    """Apply conditions that joins below can use as keys."""
    if not conditions:
        return node
    match node:
        case algebra.Project(input_, outputs):
            return algebra.Project(
                _push_join_keys(input_, [replace_columns(part, outputs.__getitem__) for part in conditions]), outputs
            )
        case algebra.Filter(input_, condition):
            return _push_join_keys(input_, [*factor_conjuncts(condition), *conditions])
        case algebra.Let(number, value, body):
            return algebra.Let(number, value, _push_join_keys(body, conditions))
        case algebra.Join(how, left, right, equal) if how not in ("right", "full"):
            width = algebra.count_columns(left)
            lefts, rights, residual = algebra.split_by_side(conditions, width)
            if how != "inner":
                residual = [part for part in conditions if part not in lefts]
                return algebra.filter_rows(msgspec.structs.replace(node, left=_push_join_keys(left, lefts)), residual)
            keys = (
                []
                if equal or node.same
                else [part for part in residual if algebra.split_equality(part, width) is not None][:1]
            )
            joined = algebra.make_inner_join(
                _push_join_keys(left, lefts), _push_join_keys(right, rights), keys, equal, node.same
            )
            residual = [part for part in residual if part not in keys]
            return algebra.filter_rows(msgspec.structs.replace(joined, condition=node.condition), residual)
    return algebra.filter_rows(node, conditions)


def _filter_by_mark(join: algebra.Join, conditions: list[Term], width: int) -> algebra.Node:
    """Return the rows of a mark join that meet conditions, by a semijoin or antijoin where possible."""
    mark = Place(width)
    negated = [p for p in conditions if isinstance(p, Call) and is_call(p, "not") and p.arguments == (mark,)]
    if mark not in conditions and not negated:
        return algebra.filter_rows(join, conditions)
    is_semi = mark in conditions
    matching = msgspec.structs.replace(join, how="semi" if is_semi else "unless")
    joined = algebra.Project(matching, (*map(Place, range(width)), Lit(pa.scalar(is_semi))))
    above = [part for part in conditions if part != mark and part not in negated]
    return _push_down(joined, above) if above else joined


def drop_domain_joins(node: algebra.Node, domains: Mapping[int, int] | None = None) -> algebra.Node:
    """Return an equivalent plan without joins of a domain with relations derived from it.

    `domains`: how many columns each domain (a relation without repeated rows) has, by its number.
    """
    known_domains = domains or {}
    if isinstance(node, algebra.Let):
        value = drop_domain_joins(node.value, known_domains)
        inside = {**known_domains, node.number: algebra.count_columns(value)} if _is_distinct(value) else known_domains
        return algebra.Let(node.number, value, drop_domain_joins(node.body, inside))
    rewritten_node: algebra.Node = algebra.replace_children(node, lambda below: drop_domain_joins(below, known_domains))
    if isinstance(rewritten_node, algebra.Join) and _is_redundant_domain_join(rewritten_node, known_domains):
        partner = {
            domain_column.index: row_column
            for domain_column, row_column in rewritten_node.same
            if isinstance(domain_column, Place)
        }
        row_places = map(Place, range(algebra.count_columns(rewritten_node.right)))
        return algebra.Project(
            rewritten_node.right,
            (*(partner[at] for at in range(algebra.count_columns(rewritten_node.left))), *row_places),
        )
    return rewritten_node


def _rejects_nulls(condition: Term, first: int) -> bool:
    """Return whether a condition is never true if all columns from a number on are NULL."""
    if isinstance(condition, Call) and is_call(condition, "and", "or"):
        rejecting = [_rejects_nulls(part, first) for part in condition.arguments]
        return any(rejecting) if is_call(condition, "and") else all(rejecting)
    return _is_null(condition, first)


def _is_null(value: Term, first: int) -> bool:
    """Return whether a value is NULL if all columns from a number on are NULL."""
    if not isinstance(value, Call):
        return isinstance(value, Place) and value.index >= first
    return is_call(value, *_STRICT) and any(_is_null(part, first) for part in value.arguments[:2])


def _is_distinct(node: algebra.Node) -> bool:
    """Return whether a relation is an aggregate that only removes repeated rows."""
    return isinstance(node, algebra.Aggregate) and not node.aggregates and not node.groupings and len(node.sets) == 1


def _is_redundant_domain_join(join: algebra.Join, domains: Mapping[int, int]) -> bool:
    """Return whether a join with a domain keeps all rows."""
    domain = join.left
    if join.how != "inner" or join.equal or join.condition is not None:
        return False
    if not isinstance(domain, algebra.Ref) or domain.number not in domains:
        return False
    origins = {}
    for domain_column, row_column in join.same:
        origin = _find_origin(join.right, row_column.index) if isinstance(row_column, Place) else None
        if not isinstance(domain_column, Place) or origin is None or origin[1:] != (domain.number, domain_column.index):
            return False
        origins[domain_column.index] = origin[0]
    return len(origins) == domains[domain.number] == len(join.same) and len(set(origins.values())) == 1


def _find_origin(node: algebra.Node, index: int) -> Origin | None:
    """Return the path to the `Ref` whose column a column copies, and that column; or None."""
    match node:
        case algebra.Ref(number):
            return (), number, index
        case algebra.Project(input_, outputs):
            return _find_origin_in_input("input", input_, outputs[index])
        case algebra.Aggregate(input_, keys, _, sets) if len(sets) == 1 and index < len(keys):
            return _find_origin_in_input("input", input_, keys[index])
        case algebra.Filter(input_) | algebra.Temporal(input_):
            return _find_origin_in_input("input", input_, Place(index))
        case algebra.Join(how, left, right):
            width = algebra.count_columns(left)
            if index < width and how not in ("right", "full"):
                return _find_origin_in_input("left", left, Place(index))
            if index >= width and how == "inner":
                return _find_origin_in_input("right", right, Place(index - width))
    return None


def _find_origin_in_input(where: str, node: algebra.Node, expression: Term) -> Origin | None:
    """Return the origin of a term of a node's input; None if it is computed."""
    origin = _find_origin(node, expression.index) if isinstance(expression, Place) else None
    return None if origin is None else ((where, *origin[0]), *origin[1:])


@dataclass(frozen=True, slots=True)
class _WindowLimit:
    """A row-numbering window function, and the greatest number that the query uses."""

    call: algebra.WindowCall
    most: int


def limit_windows(plan: algebra.Node) -> algebra.Node:
    """Return a plan that computes windows over first rows only, where these suffice."""
    rewritten_plan: algebra.Node = algebra.replace_children(plan, limit_windows)
    if isinstance(rewritten_plan, algebra.Project) and isinstance(rewritten_plan.input, algebra.TopK):
        return _drop_needless_order(rewritten_plan, rewritten_plan.input)
    if isinstance(rewritten_plan, algebra.Filter) and isinstance(rewritten_plan.input, algebra.Window):
        window, bound = (
            rewritten_plan.input,
            _find_bound(rewritten_plan.input, factor_conjuncts(rewritten_plan.condition)),
        )
        if bound is not None:
            call: Any = bound.call
            first = algebra.TopK(window.input, call.order, bound.most, 0, call.partition, call.function)
            return algebra.Filter(algebra.Window(first, window.calls), rewritten_plan.condition)
    return rewritten_plan


def _drop_needless_order(shown: algebra.Project, top: algebra.TopK) -> algebra.Node:
    """Drop the order of first rows if only partition columns are shown."""
    places = {term: Place(at) for at, term in enumerate(top.partition)}
    read = set().union(*map(list_places, shown.outputs))
    is_first = bool(places) and (top.limit, top.offset, top.counted) == (1, 0, "row_number")
    if not is_first or not {*map(Place, read)} <= places.keys():
        return shown
    distinct = algebra.Distinct(algebra.Project(top.input, top.partition))
    return algebra.Project(
        distinct, tuple(replace_columns(output, lambda at: places[Place(at)]) for output in shown.outputs)
    )


def _find_bound(window: algebra.Window, conditions: Sequence[Term]) -> _WindowLimit | None:
    """Return the tightest limit that conditions set on row numbers; None if later rows matter."""
    width = len(algebra.infer_types(window.input))
    bounds = []
    for call in dict.fromkeys(window.calls):
        if call.function not in _PLACES or (call.function != "row_number" and not call.order):
            continue
        places = [Place(width + place) for place, window_call in enumerate(window.calls) if window_call == call]
        most = min((_find_greatest_place(part, places) for part in conditions), default=math.inf)
        if 1 <= most <= FEW and all(_ignores_later_rows(window_call, call) for window_call in window.calls):
            bounds.append(_WindowLimit(call, int(most)))
    return min(bounds, key=lambda bound: (bound.call.function != "row_number", bound.most), default=None)


def _ignores_later_rows(call: algebra.WindowCall, by: algebra.WindowCall) -> bool:
    """Return whether a function's result on a row is independent of the later rows."""
    if (call.partition, call.order) != (by.partition, by.order) or call.frame.exclude or call.within:
        return False
    if call.function == "lag":
        return len(call.arguments) < 2 or _to_number(call.arguments[1]) >= 0
    if call.function not in _RUNNING:
        return call.function in _PLACES
    is_whole = by.function != "row_number" and call.frame.end == ("range", 0)
    return call.frame.start is None and (is_whole or call.frame.end == ("rows", 0))


def _find_greatest_place(condition: Term, places: Sequence[Place]) -> float:
    """Return the greatest row number for which a condition can be true."""
    if not isinstance(condition, Call):
        return math.inf
    if is_call(condition, "or"):
        return max(_find_greatest_place(part, places) for part in condition.arguments)
    if is_call(condition, "and"):
        return min(_find_greatest_place(part, places) for part in condition.arguments)
    if is_call(condition, "in"):
        first_term, *later_terms = condition.arguments
        return max(map(_round_down, later_terms)) if _is_place(first_term, places) else math.inf
    for function in ("equal", "less", "less_equal", "greater", "greater_equal"):
        if is_call(condition, function):
            first_term, second_term = condition.arguments
            if _is_place(second_term, places):
                first_term, second_term, function = second_term, first_term, _TURNED.get(function, function)
            if _is_place(first_term, places) and function in ("equal", "less", "less_equal"):
                return _round_down(second_term) if function != "less" else _round_up(second_term) - 1
    return math.inf


def _is_place(term: Term, places: Sequence[Place]) -> bool:
    """Return whether a term, apart from numeric casts, is one of some columns."""
    while isinstance(term, Call) and is_call(term, "cast") and _is_number(term.options[0]):
        [term] = term.arguments
    return term in places


def _is_number(kind: pa.DataType) -> bool:
    """Return whether a type is of integers, floats or decimals."""
    return bool(pat.is_integer(kind) or pat.is_floating(kind) or pat.is_decimal(kind))


def _round_down(term: Term) -> float:
    """Return a constant number rounded down; infinity for another term."""
    number = _to_number(term)
    return number if math.isinf(number) else math.floor(number)


def _round_up(term: Term) -> float:
    """Return a constant number rounded up; infinity for another term."""
    number = _to_number(term)
    return number if math.isinf(number) else math.ceil(number)


def _to_number(term: Term) -> float:
    """Return the value of a constant number, or infinity."""
    inner = term
    while isinstance(inner, Call) and is_call(inner, "cast"):
        [inner] = inner.arguments
    if not isinstance(inner, Lit):
        return math.inf
    try:
        value: Any = evaluate(term, {})  # A cast rounds.
    except (ValueError, pa.ArrowException):
        return math.inf  # The error is raised for a row.
    number = value.as_py() if _is_number(value.type) else None
    return math.inf if number is None or math.isnan(number) else float(number)
