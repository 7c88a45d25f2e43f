"""Conditions as the parts that must all hold, and which of them may raise."""

from collections.abc import Sequence

from persist.sql.algebra import TRUE, Call, Column, Constant, Expression, Filter, Node, all_of
from persist.sql.types import INTEGERS, digits_of, range_of

# Sums and products raise where they overflow, which is taken for no purpose of anybody's: they are done wherever it is
# best, as in DuckDB.
_MAY_RAISE = (
    *("divide_whole", "remainder", "error", "date_part", "date_trunc", "date_diff", "make_date", "chr", "repeat"),
    *("lpad", "rpad", "sqrt", "ln", "log", "log2", "log10", "asin", "acos"),
)
_WITH_UNIT = ("date_part", "date_trunc")  # By a constant unit, these have a value for every time.
_TIMES = ("date", "timestamp", "timestamptz")


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


def may_raise(expression: Expression, types: Sequence[str]) -> bool:
    """Return whether an expression over columns of given types fails on some rows."""
    if not isinstance(expression, Call):
        return False
    if any(may_raise(each, types) for each in expression.arguments):
        return True
    if expression.function == "cast":
        [value] = expression.arguments
        # Constants are computed once, when the view is made.
        return not isinstance(value, Constant) and not _always_fits(_type_of(value, types), expression.type)
    if expression.function in _WITH_UNIT:
        return not isinstance(expression.arguments[0], Constant)
    return expression.function in _MAY_RAISE


def _type_of(value: Column | Call, types: Sequence[str]) -> str:
    return types[value.index] if isinstance(value, Column) else value.type


def _always_fits(narrow: str, wide: str) -> bool:
    """Return whether a type has a value for every value of another one."""
    if wide in (narrow, "text") or narrow == "null":
        return True
    if wide in _TIMES:
        return narrow in (*_TIMES, "timestamp_s", "timestamp_ms", "timestamp_ns")
    if wide == "double":
        return narrow in ("float", "boolean") or digits_of(narrow) is not None
    if narrow in INTEGERS and wide in INTEGERS:
        (least, most), (low, high) = range_of(narrow), range_of(wide)
        return low <= least and most <= high
    ours, theirs = digits_of(narrow), digits_of(wide)
    if ours is None or theirs is None or wide in INTEGERS:
        return narrow == "boolean" and theirs is not None
    return ours[0] <= theirs[0] and ours[1] <= theirs[1]
