"""Expressions of our plans as expressions of the dataflow; what is made of constants only is computed at once."""

from collections.abc import Sequence
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa

from persist.dataflow import Call as DataflowCall
from persist.dataflow import Col, Lit, Stream, evaluate, of_text
from persist.dataflow import Expression as DataflowExpression
from persist.errors import InvalidUsage
from persist.sql.algebra import Call, Column, Constant, Expression
from persist.sql.types import INTEGERS, to_arrow

_EXACT = Context(prec=76)


def column(index: int) -> str:
    """Return what the dataflow calls a column."""
    return f"c{index}"


def lowered(expression: Expression) -> DataflowExpression:
    """Return an expression over the columns c0, c1, …"""
    match expression:
        case Column(index):
            return Col(column(index))
        case Constant():
            return Lit(scalar(expression))
        case Call(function, kind, arguments):
            made = DataflowCall(f"sql.{function}", tuple(map(lowered, arguments)), (to_arrow(kind),))
            return _folded(made)
    raise AssertionError(expression)


def numbered(stream: Stream, outputs: Sequence[DataflowExpression]) -> Stream:
    """Return computed columns as c0, c1, …"""
    named: dict[str, Any] = {column(at): each for at, each in enumerate(outputs)}
    return stream.map(**named)


def _folded(call: DataflowCall) -> DataflowExpression:
    """Return a constant for a call of constants that can be computed."""
    if call.function in ("sql.error", "sql.case") or not all(isinstance(each, Lit) for each in call.arguments):
        return call
    try:
        found = evaluate(call, _OneRow())
    except (pa.ArrowException, ValueError, TypeError):
        return call  # It raises when it is evaluated, if it ever is.
    return Lit(found if isinstance(found, pa.Scalar) else found[0])


class _OneRow(dict[str, Any]):
    def __len__(self) -> int:
        return 1


def scalar(constant: Constant) -> pa.Scalar:
    """Return the value of a constant."""
    kind, text = to_arrow(constant.type), constant.value
    if text is None:
        return pa.scalar(None, kind)
    if constant.type in INTEGERS:
        return pa.scalar(int(text), kind)
    if constant.type == "hugeint":
        if abs(int(text)) >= 10**38:
            raise InvalidUsage(f"the number {text} has more than 38 digits; cast it to double")
        return pa.scalar(Decimal(int(text)), kind)
    if constant.type.startswith("decimal"):
        return pa.scalar(_EXACT.scaleb(_EXACT.create_decimal(int(text)), -kind.scale), kind)
    if constant.type in ("double", "float"):
        return pa.scalar(float(text), kind)
    if constant.type == "boolean":
        return pa.scalar(text == "true", kind)
    if constant.type == "interval":
        months, days, micros = map(int, text.split(","))
        return pa.scalar(pa.MonthDayNano([months, days, micros * 1000]), kind)
    if constant.type == "blob":
        return of_text(pa.array([text]), kind)[0]
    if constant.type == "text":
        return pa.scalar(text, kind)
    if text.lstrip("-").isdigit():
        return pa.scalar(int(text), pa.int64()).cast(pa.int32() if kind.bit_width == 32 else pa.int64()).cast(kind)
    return pa.scalar(text).cast(kind)
