"""`_now()`: conditions that compare the time as of which a view is read with what a row says.

`_now()` is a moment (TIMESTAMP, in UTC) where all inputs have one timeline, and otherwise a number (BIGINT), the time
itself. A row is there at the times for which its condition holds, so such a condition is a bound of these times, and
nothing is computed again when time goes on. That needs `_now()`, or `_now()` plus or minus a constant, alone on one
side of a comparison, which is one of the conditions that all must hold in a WHERE or HAVING.
"""

from typing import NoReturn

from persist.errors import InvalidUsage
from persist.sql.algebra import Call, Constant, Expression, Node, Temporal, columns_in
from persist.sql.duck import place

MARK = "persist: the time as of which a view is read"
_TIMES = ("timestamp", "timestamptz", "int64")
_MIRRORED = {
    "less": "greater",
    "less_equal": "greater_equal",
    "greater": "less",
    "greater_equal": "less_equal",
    "equal": "equal",
}


def is_now(expression: Expression) -> bool:
    """Return whether an expression is `_now()`, as the binder sees it: an error of a certain text, cast to its type."""
    match expression:
        case Call("cast", _, (Call("error", _, (Constant("text", text),)),)):
            return text == MARK
        case Call("cast", kind, (inner,)) if kind in _TIMES:
            return is_now(inner)
    return False


def reads_now(expression: Expression) -> bool:
    """Return whether `_now()` is a part of an expression."""
    return isinstance(expression, Call) and (is_now(expression) or any(map(reads_now, expression.arguments)))


def check_without_now(expression: Expression, sql: str) -> None:
    """Raise InvalidUsage if an expression that is no condition of a WHERE reads `_now()`."""
    if reads_now(expression):
        _refuse(expression, sql)


def bounded(node: Node, conditions: list[Expression], unit: str | None, sql: str) -> Node:
    """Return a relation at the times at which conditions hold that compare `_now()`.

    Args:
        unit: of the timeline; None if times are numbers.
    """
    for each in conditions:
        node = _bounded(node, each, unit or "", sql)
    return node


def _bounded(node: Node, condition: Expression, unit: str, sql: str) -> Node:
    if not isinstance(condition, Call) or condition.function not in _MIRRORED:
        _refuse(condition, sql)
    one, other = condition.arguments
    how = condition.function
    if reads_now(other):
        one, other, how = other, one, _MIRRORED[how]
    if reads_now(other):
        _refuse(condition, sql)
    other = _moved_over(one, other, sql)

    def time(function: str) -> Expression:
        return Call(function, "int64", (other, Constant("text", unit)), condition.at)

    # The first time that is not before, and the first that is after.
    reach, passed = time("time_from"), time("time_after")
    lower = {"greater": passed, "greater_equal": reach, "equal": reach}.get(how)
    upper = {"less": reach, "less_equal": passed, "equal": passed}.get(how)
    return Temporal(node, lower, upper)


def _moved_over(now: Expression, other: Expression, sql: str) -> Expression:
    """Return what `_now()` alone is compared with: `_now() - x < y` is `_now() < y + x`."""
    if is_now(now):
        return other
    if isinstance(now, Call) and now.function in ("add", "subtract") and now.type in _TIMES:
        one, constant = now.arguments
        if now.function == "add" and reads_now(constant):
            one, constant = constant, one
        if is_now(one) and not columns_in(constant) and not reads_now(constant):
            if _has_months(constant):
                raise InvalidUsage(
                    "months and years are not of one length, so _now() cannot be compared at their distance: "
                    f"write days{_place(now, sql)}"
                )
            back = "subtract" if now.function == "add" else "add"
            return Call(back, now.type, (other, constant), now.at)
    _refuse(now, sql)


def _has_months(constant: Expression) -> bool:
    match constant:
        case Constant("interval", str(text)):
            return not text.startswith("0,")
        case Call(function, _, arguments):
            return function in ("to_months", "to_quarters", "to_years") or any(map(_has_months, arguments))
    return False


def _refuse(expression: Expression, sql: str) -> NoReturn:
    raise InvalidUsage(
        "_now() can be compared in WHERE only, alone or plus or minus a constant, as one of the conditions that all "
        f"must hold: WHERE _now() < expires AND …{_place(expression, sql)}"
    )


def _place(expression: Expression, sql: str) -> str:
    match expression:
        case Call(_, _, arguments, at):
            return place(sql, at) or next((found for each in arguments if (found := _place(each, sql))), "")
    return ""
