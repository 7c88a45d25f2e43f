"""Rewriting of plans: the same rows, for less work. The plan is stored as it was bound; this is done at each start.

1. *Conditions go down*, through projections, groups and set operations, to what they read. A cross product below a
   condition becomes a join; a mark that is only asked for becomes a semijoin, its negation an antijoin; an outer join
   whose NULLs are not asked for becomes an inner one. What correlated subqueries join without need is left out; see
   `persist.sql.subqueries`.
2. *Joins are put in an order* in which what is in between is small; see `persist.sql.order`.
3. *Columns that nobody reads* are left out where they are made.
4. *Bounds of time* go below joins, so that these forget what is over.

A condition that may raise stays where it is, so that it sees no rows that others were meant to keep from it.
"""

from typing import Any

import msgspec

from persist.sql.algebra import (
    Aggregate,
    Call,
    Column,
    Constant,
    Distinct,
    Expression,
    Filter,
    Join,
    Let,
    Node,
    Project,
    SetOperation,
    Temporal,
    Window,
    all_of,
    columns_in,
    moved,
    replaced,
)
from persist.sql.conjuncts import conjuncts_of, filtered
from persist.sql.order import NOTHING, Known, ordered
from persist.sql.prune import pruned, width_of
from persist.sql.subqueries import with_inner_joins, without_domains

_MAY_RAISE = ("divide_whole", "remainder", "error", "cast", "try_cast", "date_part", "date_trunc", "date_diff")


def rewritten(plan: Node, known: Known = NOTHING) -> Node:
    """Return an equivalent plan that does less; known is what is known of the sizes of collections."""
    return steps_of(plan, known)[-1]


def steps_of(plan: Node, known: Known = NOTHING) -> tuple[Node, Node, Node]:
    """Return the plan after its conditions went down, then with its joins in order, then without unread columns."""
    pushed = _pushed(with_inner_joins(without_domains(plan)), [])
    placed = ordered(pushed, known)
    return pushed, placed, pruned(placed)


def _may_raise(expression: Expression) -> bool:
    if not isinstance(expression, Call):
        return False
    if expression.function == "cast" and _is_wider(expression):
        return any(map(_may_raise, expression.arguments))
    return expression.function in _MAY_RAISE or any(map(_may_raise, expression.arguments))


def _is_wider(cast: Call) -> bool:
    """Return whether a cast cannot fail: of constants, which are computed once, and to floats, texts and timestamps."""
    return isinstance(cast.arguments[0], Constant) or cast.type in ("double", "timestamp", "hugeint", "int64")


def _pushed(node: Node, conditions: list[Expression]) -> Node:
    """Return a relation of which some conditions hold, which are done as far down as they can."""
    raising = [each for each in conditions if _may_raise(each)]
    if raising:
        kept = conditions[conditions.index(raising[0]) :]
        return filtered(_pushed(node, conditions[: conditions.index(raising[0])]), kept)
    match node:
        case Filter(input_, condition):
            return _pushed(input_, [*conjuncts_of(condition), *conditions])
        case Temporal(input_, lower, upper):
            return _sunk(_pushed(input_, conditions), lower, upper)
        case Project(input_, outputs):
            down = [moved(each, outputs.__getitem__) for each in conditions]
            return Project(_pushed(input_, down), outputs)
        case Join():
            return _pushed_into_join(node, conditions)
        case Aggregate(input_, keys, _, sets) if len(sets) == 1 and len(sets[0]) == len(keys):
            below = [each for each in conditions if columns_in(each) and max(columns_in(each)) < len(keys)]
            above = [each for each in conditions if each not in below]
            down = [moved(each, keys.__getitem__) for each in below]
            return filtered(replaced(node, lambda _: _pushed(input_, down)), above)
        case Distinct() | SetOperation():
            return replaced(node, lambda each: _pushed(each, conditions))
        case Let(number, value, body):
            return Let(number, _pushed(value, []), _pushed(body, conditions))
        case Window(input_, calls):
            fixed = set.intersection(*({e.index for e in c.partition if isinstance(e, Column)} for c in calls))
            below = [each for each in conditions if columns_in(each) <= fixed and columns_in(each)]
            above = [each for each in conditions if each not in below]
            return filtered(Window(_pushed(input_, below), calls), above)
    return filtered(replaced(node, lambda each: _pushed(each, [])), conditions)


def _sunk(node: Node, lower: Expression | None, upper: Expression | None) -> Node:
    """Return a relation at times that its rows say, which are kept as far down as can be: less is arranged then."""
    bounds = [each for each in (lower, upper) if each is not None]
    reads = set().union(*map(columns_in, bounds))
    if isinstance(node, Join) and node.how in ("inner", "left", "semi", "anti") and reads:
        width = width_of(node.left)
        if max(reads) < width:
            return msgspec.structs.replace(node, left=_sunk(node.left, lower, upper))
        if min(reads) >= width and node.how == "inner":
            below = [None if e is None else moved(e, lambda index: Column(index - width)) for e in (lower, upper)]
            return msgspec.structs.replace(node, right=_sunk(node.right, *below))
    return Temporal(node, lower, upper)


def _pushed_into_join(join: Join, conditions: list[Expression]) -> Node:
    width = width_of(join.left)
    lefts = [each for each in conditions if columns_in(each) and max(columns_in(each)) < width]
    rest = [each for each in conditions if each not in lefts]
    if join.how == "inner":
        return _pushed_into_inner(join, conditions, width)
    if join.how == "mark":
        return _pushed_into_mark(join, lefts, rest, width)
    if join.how in ("right", "full"):
        lefts, rest = [], conditions
    found = Join(
        join.how,
        _pushed(join.left, lefts),
        _pushed(join.right, []),
        join.equal,
        join.same,
        join.condition,
    )
    return filtered(found, rest)


def _pushed_into_inner(join: Join, conditions: list[Expression], width: int) -> Node:
    every = [*(conjuncts_of(join.condition) if join.condition is not None else ()), *conditions]
    lefts, rights, rest = [], [], []
    equal = list(join.equal)
    for each in every:
        reads = columns_in(each)
        if reads and max(reads) < width:
            lefts.append(each)
        elif reads and min(reads) >= width:
            rights.append(moved(each, lambda index: Column(index - width)))
        elif (pair := _equality(each, width)) is not None:
            equal.append(pair)
        else:
            rest.append(each)
    return Join(
        "inner",
        _pushed(join.left, lefts),
        _pushed(join.right, rights),
        tuple(equal),
        join.same,
        all_of(rest) if rest else None,
    )


def _equality(condition: Expression, width: int) -> tuple[Expression, Expression] | None:
    """Return the two sides of a condition that something of the left equals something of the right."""
    if not isinstance(condition, Call) or condition.function != "equal":
        return None
    one, other = condition.arguments
    if columns_in(one) and columns_in(other):
        if min(columns_in(one)) >= width:
            one, other = other, one
        if max(columns_in(one)) < width <= min(columns_in(other)):
            return one, moved(other, lambda index: Column(index - width))
    return None


def _pushed_into_mark(join: Join, lefts: list[Expression], rest: list[Expression], width: int) -> Node:
    mark = Column(width)
    negated = [each for each in rest if isinstance(each, Call) and (each.function, each.arguments) == ("not", (mark,))]
    how: Any = "semi" if mark in rest else "unless" if negated else "mark"
    left, right = _pushed(join.left, lefts), _pushed(join.right, [])
    found: Node = Join(how, left, right, join.equal, join.same, join.condition)
    if how == "mark":
        return filtered(found, rest)
    value = Constant("boolean", "true" if how == "semi" else "false")
    above = [each for each in rest if each != mark and each not in negated]
    found = Project(found, (*map(Column, range(width)), value))
    return _pushed(found, above) if above else found
