"""The order of joins: the next relation is the one that keeps the intermediate result smallest.

The statistics of collections (rows, and the number of values within the bounds of whole numbers) and the form of
conditions give an estimate of each relation, and of a join: |A| · |B| over the number of values of the key. Beginning
with each relation, the relation with the smallest join is added next, cross products last. The order with the fewest
intermediate rows wins. Without statistics, all collections count as equally large.

Estimates affect only speed and memory. They may change from one start to the next; results do not.
"""

from collections.abc import Mapping, Sequence
from math import prod
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from persist.compute.dataflow.plan.optimise import Statistics
from persist.compute.sql import algebra
from persist.core.expression.evaluation import factor_conjuncts
from persist.core.expression.term import (
    Call,
    Lit,
    Place,
    Term,
    is_call,
    list_places,
    make_sql_call,
    move_columns,
    shift_columns,
)

Known = Mapping[Any, Statistics]  # For collections by their names, for relations by the numbers that refer to them.
NOTHING: Known = MappingProxyType({})
ROWS = 1000.0  # Assumed for a collection without statistics.
EQUAL_KEEPS, OTHER_KEEPS = 0.1, 0.3  # Shares of rows for an equality with a constant, and for any other condition.
SEMI_KEEPS = 0.5


def estimate_relation(node: algebra.Node, known: Known) -> Statistics:
    """Estimate a relation's number of rows and distinct values."""
    match node:
        case algebra.Scan(collection, columns):
            statistics = known.get(collection, Statistics(ROWS))
            rows = max(1.0, statistics.rows)
            return Statistics(rows, None, statistics.distinct).rename((name, at) for at, name in enumerate(columns))
        case algebra.Ref(number) if number in known:
            return known[number]
        case algebra.Values(_, rows_given):
            return Statistics(float(len(rows_given)))
        case algebra.TopK(input_, _, limit, _, ()) if limit is not None:
            return Statistics(min(float(limit), estimate_relation(input_, known).rows))
        case algebra.Filter(input_, condition):
            below = estimate_relation(input_, known)
            for conjunct in factor_conjuncts(condition):
                below = below.scale(_estimate_share(conjunct, below))
            return below
        case algebra.Project(input_, outputs):
            copies = ((output.index, at) for at, output in enumerate(outputs) if isinstance(output, Place))
            return estimate_relation(input_, known).rename(copies)
        case algebra.Temporal(input_) | algebra.Distinct(input_):
            return estimate_relation(input_, known)
        case algebra.Aggregate(input_, keys):
            below = estimate_relation(input_, known)
            counts = {at: _estimate_distinct(below, key) for at, key in enumerate(keys)}
            return Statistics(max(1.0, min(prod(counts.values()), below.rows)), None, counts)
        case algebra.Join(how, left, right) if how == "inner":
            width, left_size, right_size = (
                algebra.count_columns(left),
                estimate_relation(left, known),
                estimate_relation(right, known),
            )
            return _estimate_join(
                left_size, _shift_columns(right_size, width), [(a, shift_columns(b, width)) for a, b in node.equal]
            )
        case algebra.Join(how, left) if how in ("semi", "anti", "unless"):
            return estimate_relation(left, known).scale(SEMI_KEEPS)
    below_all = [estimate_relation(child, known) for child in algebra.list_inputs(node)]
    return Statistics(max((estimate.rows for estimate in below_all), default=ROWS))


def _estimate_share(condition: Term, statistics: Statistics) -> float:
    """Estimate the share of rows for which a condition holds."""
    if not isinstance(condition, Call):
        return OTHER_KEEPS
    if is_call(condition, "equal", "in") and isinstance(condition.arguments[-1], Lit):
        key = condition.arguments[0]
        is_known = isinstance(key, Place) and key.index in statistics.distinct
        share = 1 / _estimate_distinct(statistics, key) if is_known else EQUAL_KEEPS
        return float(min(1.0, share * (len(condition.arguments) - 1)))
    if is_call(condition, "or"):
        return float(min(1.0, sum(_estimate_share(argument, statistics) for argument in condition.arguments)))
    if is_call(condition, "like", "prefix", "suffix", "contains"):
        return EQUAL_KEEPS
    return OTHER_KEEPS


def _estimate_join(one: Statistics, other: Statistics, keys: Sequence[tuple[Term, Term]]) -> Statistics:
    """Estimate the rows and distinct values of an inner join."""
    values = prod(max(_estimate_distinct(one, a), _estimate_distinct(other, b)) for a, b in keys)
    if len(keys) > 1:  # Their columns depend on each other, as in a key and a reference to it.
        values = min(values, one.rows, other.rows)
    rows = max(1.0, one.rows * other.rows / max(values, 1.0))
    counts = {**one.distinct, **other.distinct}
    for a, b in keys:
        least = min(_estimate_distinct(one, a), _estimate_distinct(other, b))
        counts |= {key.index: least for key in (a, b) if isinstance(key, Place)}
    return Statistics(rows, None, counts)


def _estimate_distinct(statistics: Statistics, key: Term) -> float:
    """Estimate the distinct values of a term, which may be a column."""
    return statistics.estimate_distinct(key.index if isinstance(key, Place) else None)


def _shift_columns(statistics: Statistics, by: int) -> Statistics:
    """Return statistics whose columns have numbers greater by `by`."""
    return statistics.rename((at, at + by) for at in statistics.distinct)


def order_joins(node: algebra.Node, statistics: Known = NOTHING) -> algebra.Node:
    """Reorder inner joins so that intermediate results stay small.

    `statistics`: the statistics of collections; they affect speed only.
    """
    if not isinstance(node, algebra.Join) or node.how != "inner" or node.same:
        return algebra.replace_children(node, lambda child: order_joins(child, statistics))
    relations, conditions = _flatten_joins(node, 0)
    if len(relations) < 3:
        return algebra.replace_children(node, lambda child: order_joins(child, statistics))
    widths = [algebra.count_columns(leaf) for leaf in relations]
    starts = [sum(widths[:at]) for at in range(len(widths))]

    def owners(expression: Term) -> set[int]:
        return {max(at for at, start in enumerate(starts) if start <= index) for index in list_places(expression)}

    estimates = [
        _shift_columns(estimate_relation(leaf, statistics), start)
        for leaf, start in zip(relations, starts, strict=True)
    ]
    conditions.sort(key=_is_key)  # Keys may raise, and then only for rows for which the others hold.
    keys = [part.arguments for part in conditions if isinstance(part, Call) and _is_key(part)]
    first, *later = _choose_order(
        estimates, [(left_key, right_key, owners(left_key), owners(right_key)) for left_key, right_key in keys]
    )
    joined = order_joins(relations[first], statistics)
    place = {starts[first] + n: n for n in range(widths[first])}
    for at in later:
        place |= {starts[at] + n: len(place) + n for n in range(widths[at])}
        ready = [part for part in conditions if list_places(part) <= place.keys()]
        conditions = [part for part in conditions if part not in ready]
        joined = algebra.make_inner_join(
            joined, order_joins(relations[at], statistics), [move_columns(part, place) for part in ready]
        )
    return algebra.Project(joined, tuple(Place(place[index]) for index in range(sum(widths))))


def list_ordered_collections(node: algebra.Node) -> list[str]:
    """Return the collections whose sizes determine the order of joins."""
    if not any(
        isinstance(part, algebra.Join) and part.how == "inner" and len(_flatten_joins(part, 0)[0]) > 2
        for part in algebra.iterate_nodes(node)
    ):
        return []
    return list(
        dict.fromkeys(part.collection for part in algebra.iterate_nodes(node) if isinstance(part, algebra.Scan))
    )


def _is_key(condition: Term) -> bool:
    """Return whether a condition is an equality of two terms that read columns."""
    return isinstance(condition, Call) and is_call(condition, "equal") and all(map(list_places, condition.arguments))


def _flatten_joins(node: algebra.Node, start: int) -> tuple[list[algebra.Node], list[Term]]:
    """Return the relations of inner joins of inner joins, and their conditions by columns of the whole."""
    if not isinstance(node, algebra.Join) or node.how != "inner" or node.same:
        return [node], []
    width = algebra.count_columns(node.left)
    (lefts, above), (rights, below) = _flatten_joins(node.left, start), _flatten_joins(node.right, start + width)
    residual: list[Term] = [
        make_sql_call("equal", pa.bool_(), left_key, shift_columns(right_key, width))
        for left_key, right_key in node.equal
    ]
    residual += [] if node.condition is None else factor_conjuncts(node.condition)
    return [*lefts, *rights], [*above, *below, *(shift_columns(part, start) for part in residual)]


def _choose_order(relations: Sequence[Statistics], pairs: Sequence[tuple[Term, Term, set[int], set[int]]]) -> list[int]:
    """Return the best order of relations; pairs are keys, with the relations that each side reads."""
    orders = [_build_order(start, relations, pairs) for start in range(len(relations))]
    return min(orders)[-1]


def _build_order(
    start: int, relations: Sequence[Statistics], pairs: Sequence[tuple[Term, Term, set[int], set[int]]]
) -> tuple[int, float, list[int]]:
    """Return a greedy order from a start: cross products, intermediate rows, relations."""
    order, so_far, crosses, rows = [start], relations[start], 0, 0.0
    while len(order) < len(relations):
        joined_so_far, best = set(order), None
        for at in range(len(relations)):
            if at in joined_so_far:
                continue
            keys = [
                (a, b)
                for a, b, left_owners, right_owners in pairs
                if left_owners <= joined_so_far and right_owners == {at}
            ]
            keys += [
                (b, a)
                for a, b, left_owners, right_owners in pairs
                if right_owners <= joined_so_far and left_owners == {at}
            ]
            candidate = _estimate_join(so_far, relations[at], keys)
            rank = (not keys, candidate.rows, at)
            if best is None or rank < best[0]:
                best = (rank, candidate, at)
        assert best is not None
        (is_cross, _, at), so_far = best[0], best[1]
        crosses, rows = crosses + is_cross, rows + so_far.rows
        order.append(at)
    return crosses, rows - so_far.rows, order
