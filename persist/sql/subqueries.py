"""What binding leaves of correlated subqueries, with less to keep.

A subquery that reads columns of the rows around it is bound as a *domain* (the different values of these columns, as a
relation of its own), what the subquery gives for each of them, and a join of that with the rows around. Two parts of it
are mostly not needed:

- The domain is joined once more with a relation that was made of it, by the columns that come from it. That join finds
  one partner for each row, and changes nothing: `without_domains`.
- Rows without a partner are kept with NULLs, of which a condition above then is not true. An inner join does, where no
  row can have a second partner: `with_inner_joins`.
"""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec

from persist.expression import Call, Place, Term, calls, factored_conjuncts, moved, places_in
from persist.sql.algebra import Aggregate, Filter, Join, Let, Node, Project, Ref, Temporal, replaced
from persist.sql.prune import has_one_partner, width_of

# Functions that are NULL, and no error, where an argument is: a condition that is one of NULL keeps no row.
_COMPARED = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "like", "not_like")
_STRICT = (*_COMPARED, "add", "subtract", "multiply", "negate", "cast")
Origin: TypeAlias = tuple[tuple[str, ...], int, int]  # Where in a plan a `Ref` stands, its number, and a column of it.


def without_domains(node: Node, domains: Mapping[int, int] | None = None) -> Node:
    """Return an equivalent plan without joins of a domain with what was made of it.

    Args:
        domains: how many columns each relation has, by its number, that holds no row twice.
    """
    known = domains or {}
    if isinstance(node, Let):
        value = without_domains(node.value, known)
        found = {**known, node.number: width_of(value)} if _is_distinct(value) else known
        return Let(node.number, value, without_domains(node.body, found))
    made: Node = replaced(node, lambda each: without_domains(each, known))
    if isinstance(made, Join) and _adds_nothing(made, known):
        partner = {one.index: other for one, other in made.same if isinstance(one, Place)}
        rest = map(Place, range(width_of(made.right)))
        return Project(made.right, (*(partner[at] for at in range(width_of(made.left))), *rest))
    return made


def with_inner_joins(node: Node, conditions: Sequence[Term] = ()) -> Node:
    """Return an equivalent plan with inner joins in place of outer ones, where conditions keep no row with their NULLs.

    Args:
        conditions: only rows for which all of them are true are asked for.
    """
    match node:
        case Filter(input_, condition):
            return Filter(with_inner_joins(input_, [*conditions, *factored_conjuncts(condition)]), condition)
        case Project(input_, outputs):
            below = [moved(each, outputs.__getitem__) for each in conditions]
            return Project(with_inner_joins(input_, below), outputs)
        case Let(number, value, body):
            return Let(number, with_inner_joins(value), with_inner_joins(body, conditions))
        case Join(how, left, right) if how not in ("right", "full"):
            width = width_of(left)
            is_asked_for = any(_rejects_nulls(each, width) for each in conditions)
            if is_asked_for and (how == "left" or (how == "single" and has_one_partner(node))):
                node = msgspec.structs.replace(node, how="inner")
            lefts = [each for each in conditions if places_in(each) and max(places_in(each)) < width]
            left, right = with_inner_joins(left, lefts), with_inner_joins(right)
            return msgspec.structs.replace(node, left=left, right=right)
    found: Node = replaced(node, with_inner_joins)
    return found


def _rejects_nulls(condition: Term, first: int) -> bool:
    """Return whether a condition is not true of a row whose columns from a number on are NULL."""
    if isinstance(condition, Call) and calls(condition, "and", "or"):
        found = [_rejects_nulls(each, first) for each in condition.arguments]
        return any(found) if calls(condition, "and") else all(found)
    return _is_null(condition, first)


def _is_null(value: Term, first: int) -> bool:
    """Return whether a value is NULL of such a row: of NULL AND false, for one, it is not."""
    if not isinstance(value, Call):
        return isinstance(value, Place) and value.index >= first
    return calls(value, *_STRICT) and any(_is_null(each, first) for each in value.arguments[:2])


def _is_distinct(node: Node) -> bool:
    return isinstance(node, Aggregate) and not node.aggregates and not node.groupings and len(node.sets) == 1


def _adds_nothing(join: Join, domains: Mapping[int, int]) -> bool:
    """Return whether a join is one of a domain with rows that hold, all in one place, a row of that domain."""
    left = join.left
    if join.how != "inner" or join.equal or join.condition is not None:
        return False
    if not isinstance(left, Ref) or left.number not in domains:
        return False
    found = {}
    for one, other in join.same:
        origin = _origin(join.right, other.index) if isinstance(other, Place) else None
        if not isinstance(one, Place) or origin is None or origin[1:] != (left.number, one.index):
            return False
        found[one.index] = origin[0]
    return len(found) == domains[left.number] == len(join.same) and len(set(found.values())) == 1


def _origin(node: Node, index: int) -> Origin | None:
    """Return which column of which occurrence of a `Ref` a column of a relation is a copy of."""
    match node:
        case Ref(number):
            return (), number, index
        case Project(input_, outputs):
            return _below("input", input_, outputs[index])
        case Aggregate(input_, keys, _, sets) if len(sets) == 1 and index < len(keys):
            return _below("input", input_, keys[index])
        case Filter(input_) | Temporal(input_):
            return _below("input", input_, Place(index))
        case Join(how, left, right):
            width = width_of(left)
            if index < width and how not in ("right", "full"):
                return _below("left", left, Place(index))
            if index >= width and how == "inner":
                return _below("right", right, Place(index - width))
    return None


def _below(where: str, node: Node, expression: Term) -> Origin | None:
    found = _origin(node, expression.index) if isinstance(expression, Place) else None
    return None if found is None else ((where, *found[0]), *found[1:])
