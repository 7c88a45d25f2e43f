"""The first rows of partitions: a condition on a row's place in its partition becomes the top rows of the partition.

`row_number() OVER (PARTITION BY g ORDER BY x) <= 3` asks for three rows of each partition. However it is written
(`= 1`, `IN (1, 2)`, `QUALIFY`, a LIMIT in a correlated subquery, which is bound as this), the window then is put over
the first three rows only:

    Filter(Window(input, row_number), place <= 3)  =  Filter(Window(TopK(input, 3), row_number), place <= 3)

For `rank` and `dense_rank`, rows that agree in the order are in or out together (`TopK.counted`).

That holds if all functions of the window see the same of these rows as before: they have the same partitions and
order, and say nothing about what stands behind a row. Ties are broken by the same columns in both.

Where only the columns that tell partitions apart are asked for, it does not matter which row of one is the first. So
`SELECT DISTINCT a FROM t ORDER BY b` keeps no order.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from persist.expression import Call, Lit, Place, Term, calls, evaluate, factored_conjuncts, moved, places_in
from persist.sql.algebra import Distinct, Filter, Node, Project, TopK, Window, WindowCall, replaced, types_of

FEW = 1000  # Of more first rows, the whole partition kept in order is the better way.
_PLACES = ("row_number", "rank", "dense_rank")
_RUNNING = ("count_star", "count", "count_if", "sum", "avg", "min", "max", "bool_and", "bool_or", "first_value")
_TURNED = {"less": "greater", "less_equal": "greater_equal", "greater": "less", "greater_equal": "less_equal"}


@dataclass(frozen=True, slots=True)
class _Bound:
    """A function that says a row's place, and the greatest one that is asked for."""

    call: WindowCall
    most: int


def with_first_rows(plan: Node) -> Node:
    """Return an equivalent plan in which windows are put over the first rows of partitions where no others count."""
    made: Node = replaced(plan, with_first_rows)
    if isinstance(made, Project) and isinstance(made.input, TopK):
        return _without_order(made, made.input)
    if isinstance(made, Filter) and isinstance(made.input, Window):
        window, bound = made.input, _bound(made.input, factored_conjuncts(made.condition))
        if bound is not None:
            call: Any = bound.call
            first = TopK(window.input, call.order, bound.most, 0, call.partition, call.function)
            return Filter(Window(first, window.calls), made.condition)
    return made


def _without_order(shown: Project, top: TopK) -> Node:
    """Return columns of first rows; where these tell partitions only, it does not matter which row is the first."""
    places = {term: Place(at) for at, term in enumerate(top.partition)}
    read = set().union(*map(places_in, shown.outputs))
    is_first = bool(places) and (top.limit, top.offset, top.counted) == (1, 0, "row_number")
    if not is_first or not {*map(Place, read)} <= places.keys():
        return shown
    distinct = Distinct(Project(top.input, top.partition))
    return Project(distinct, tuple(moved(output, lambda at: places[Place(at)]) for output in shown.outputs))


def _bound(window: Window, conditions: Sequence[Term]) -> _Bound | None:
    """Return the condition by which the fewest rows are asked for; None if there is none, or others count, too."""
    width = len(types_of(window.input))
    bounds = []
    for call in dict.fromkeys(window.calls):
        if call.function not in _PLACES or (call.function != "row_number" and not call.order):
            continue
        places = [Place(width + place) for place, other in enumerate(window.calls) if other == call]
        most = min((_most(part, places) for part in conditions), default=math.inf)
        if 1 <= most <= FEW and all(_looks_back(other, call) for other in window.calls):
            bounds.append(_Bound(call, int(most)))
    return min(bounds, key=lambda bound: (bound.call.function != "row_number", bound.most), default=None)


def _looks_back(call: WindowCall, by: WindowCall) -> bool:
    """Return whether a function gives a row the same without the rows that are further on than some place."""
    if (call.partition, call.order) != (by.partition, by.order) or call.frame.exclude or call.within:
        return False
    if call.function == "lag":
        return len(call.arguments) < 2 or _number(call.arguments[1]) >= 0
    if call.function not in _RUNNING:
        return call.function in _PLACES
    is_whole = by.function != "row_number" and call.frame.end == ("range", 0)
    return call.frame.start is None and (is_whole or call.frame.end == ("rows", 0))


def _most(condition: Term, places: Sequence[Place]) -> float:
    """Return up to which number a place may be, so that a condition on it is true."""
    if not isinstance(condition, Call):
        return math.inf
    if calls(condition, "or"):
        return max(_most(part, places) for part in condition.arguments)
    if calls(condition, "and"):
        return min(_most(part, places) for part in condition.arguments)
    if calls(condition, "in"):
        one, *others = condition.arguments
        return max(map(_floor, others)) if _is_place(one, places) else math.inf
    for function in ("equal", "less", "less_equal", "greater", "greater_equal"):
        if calls(condition, function):
            one, other = condition.arguments
            if _is_place(other, places):
                one, other, function = other, one, _TURNED.get(function, function)
            if _is_place(one, places) and function in ("equal", "less", "less_equal"):
                return _floor(other) if function != "less" else _ceiling(other) - 1
    return math.inf


def _is_place(term: Term, places: Sequence[Place]) -> bool:
    while isinstance(term, Call) and calls(term, "cast") and _is_number(term.options[0]):
        [term] = term.arguments
    return term in places


def _is_number(kind: pa.DataType) -> bool:
    return bool(pat.is_integer(kind) or pat.is_floating(kind) or pat.is_decimal(kind))


def _floor(term: Term) -> float:
    number = _number(term)
    return number if math.isinf(number) else math.floor(number)


def _ceiling(term: Term) -> float:
    number = _number(term)
    return number if math.isinf(number) else math.ceil(number)


def _number(term: Term) -> float:
    """Return the number that a constant is, or infinity."""
    inner = term
    while isinstance(inner, Call) and calls(inner, "cast"):
        [inner] = inner.arguments
    if not isinstance(inner, Lit):
        return math.inf
    try:
        value: Any = evaluate(term, {})  # A cast rounds.
    except (ValueError, pa.ArrowException):
        return math.inf  # It says so when it is asked of a row.
    number = value.as_py() if _is_number(value.type) else None
    return math.inf if number is None or math.isnan(number) else float(number)
