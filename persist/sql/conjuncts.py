"""Conditions as the parts that must all hold."""

from collections.abc import Sequence

from persist.sql.algebra import TRUE, Call, Expression, Filter, Node, all_of


def conjuncts_of(condition: Expression) -> list[Expression]:
    """Return the conditions that must all hold."""
    if isinstance(condition, Call) and condition.function == "and":
        return [found for each in condition.arguments for found in conjuncts_of(each)]
    if isinstance(condition, Call) and condition.function == "or":
        return _factored(condition)
    return [] if condition == TRUE else [condition]


def _factored(condition: Call) -> list[Expression]:
    """Return what all branches of an OR have in common, and what is left of it: of a b OR a c, a and b OR c."""
    branches = [conjuncts_of(each) for each in condition.arguments]
    bare = [[_without_places(each) for each in branch] for branch in branches]
    common = [each for each in bare[0] if all(each in others for others in bare[1:])]
    if not common:
        return [condition]
    rest = [[each for each in branch if each not in common] for branch in bare]
    if not all(rest):
        return common
    return [*common, Call("or", "boolean", tuple(map(all_of, rest)))]


def _without_places(expression: Expression) -> Expression:
    if isinstance(expression, Call):
        return Call(expression.function, expression.type, tuple(map(_without_places, expression.arguments)))
    return expression


def filtered(node: Node, conditions: Sequence[Expression]) -> Node:
    """Return the rows of a relation for which some conditions hold."""
    return Filter(node, all_of(conditions)) if conditions else node
