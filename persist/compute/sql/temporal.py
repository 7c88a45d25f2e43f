"""`_now()`: conditions that compare the time at which a view is read with a row's columns.

`_now()` is a moment (TIMESTAMP, in UTC) where all inputs have one timeline, and otherwise a number (BIGINT), the time
itself. A row exists at the times for which its condition holds, so such a condition is a bound of these times, and
nothing is computed again when time passes. `_now()`, or `_now()` plus or minus a constant, must be alone on one side of
a comparison, which is one of the conjuncts of a WHERE or HAVING.
"""

from typing import NoReturn

import pyarrow as pa

from persist.compute.sql.algebra import Node, Temporal
from persist.compute.sql.duck import show_position
from persist.core.errors import InvalidUsage
from persist.core.expression.evaluation import evaluate
from persist.core.expression.term import INTERVAL, SQL, Call, Lit, Term, is_call, list_places, make_sql_call

MARK = "persist: the time as of which a view is read"
_MOMENTS = (pa.timestamp("us"), pa.timestamp("us", "UTC"))
_TIMES = (*_MOMENTS, pa.int64())
_MIRRORED = {
    "less": "greater",
    "less_equal": "greater_equal",
    "greater": "less",
    "greater_equal": "less_equal",
    "equal": "equal",
}


def is_now(expression: Term) -> bool:
    """Return whether an expression is `_now()`, which a plan has as a call of `error`."""
    match expression:
        case Call("sql.cast", (Call("sql.error", (Lit(text),)),)):
            return bool(text.as_py() == MARK)
        case Call("sql.cast", (inner,)) if expression.kind in _TIMES:
            return is_now(inner)
    return False


def reads_now(expression: Term) -> bool:
    """Return whether `_now()` is a part of an expression."""
    return isinstance(expression, Call) and (is_now(expression) or any(map(reads_now, expression.arguments)))


def check_without_now(expression: Term, sql: str) -> None:
    """Raise InvalidUsage if an expression outside of a WHERE reads `_now()`."""
    if reads_now(expression):
        _refuse_expression(expression, sql)


def apply_now_bounds(node: Node, conditions: list[Term], unit: str | None, sql: str) -> Node:
    """Turn conditions on `_now()` into bounds of time. `unit`: of the timeline; None if times are numbers."""
    for condition in conditions:
        node = _apply_now_bound(node, condition, unit or "", sql)
    return node


def _apply_now_bound(node: Node, condition: Term, unit: str, sql: str) -> Node:
    """Turn one condition on `_now()` into a bound of time."""
    if not isinstance(condition, Call) or not is_call(condition, *_MIRRORED):
        _refuse_expression(condition, sql)
    left_term, right_term = condition.arguments
    how = condition.function.removeprefix(SQL)
    if reads_now(right_term):
        left_term, right_term, how = right_term, left_term, _MIRRORED[how]
    if reads_now(right_term):
        _refuse_expression(condition, sql)
    right_term = _isolate_now(left_term, right_term, sql)

    def time(function: str) -> Term:
        return make_sql_call(function, pa.int64(), right_term, Lit(pa.scalar(unit)), at=condition.at)

    # The first time that is not before, and the first that is after.
    reach, passed = time("time_from"), time("time_after")
    lower = {"greater": passed, "greater_equal": reach, "equal": reach}.get(how)
    upper = {"less": reach, "less_equal": passed, "equal": passed}.get(how)
    return Temporal(node, lower, upper)


def _isolate_now(now: Term, other: Term, sql: str) -> Term:
    """Move terms to the other side: `_now() - x < y` becomes `_now() < y + x`."""
    if is_now(now):
        return other
    if isinstance(now, Call) and is_call(now, "cast") and now.kind in _MOMENTS:
        [inner] = now.arguments
        if isinstance(inner, Call) and inner.kind in _MOMENTS:  # In UTC, both are the same moment.
            return _isolate_now(inner, make_sql_call("cast", inner.kind, other, at=now.at), sql)
    if isinstance(now, Call) and is_call(now, "add", "subtract") and now.kind in _TIMES:
        moment, constant = now.arguments
        if is_call(now, "add") and reads_now(constant):
            moment, constant = constant, moment
        if is_now(moment) and not list_places(constant) and not reads_now(constant):
            if _has_months(constant):
                raise InvalidUsage(
                    "months and years are not of one length, so _now() cannot be compared at their distance: "
                    f"write days{_describe_place(now, sql)}"
                )
            back = "subtract" if is_call(now, "add") else "add"
            return make_sql_call(back, now.kind, other, constant, at=now.at)
    _refuse_expression(now, sql)


def _has_months(constant: Term) -> bool:
    """Return whether a constant is an interval with months."""
    value = evaluate(constant, {})
    return bool(value.type == INTERVAL and value.is_valid and value[0].as_py())


def _refuse_expression(expression: Term, sql: str) -> NoReturn:
    """Raise InvalidUsage for an expression that uses `_now()` in an unsupported way."""
    raise InvalidUsage(
        "_now() can be compared in WHERE only, alone or plus or minus a constant, as one of the conditions that all "
        f"must hold: WHERE _now() < expires AND …{_describe_place(expression, sql)}"
    )


def _describe_place(expression: Term, sql: str) -> str:
    """Return where the query has an expression; empty if that is unknown."""
    match expression:
        case Call(_, arguments, _, at):
            return show_position(sql, at) or next(
                (where for argument in arguments if (where := _describe_place(argument, sql))), ""
            )
    return ""
