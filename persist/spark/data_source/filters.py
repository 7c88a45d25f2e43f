"""Filters that Spark pushes down, as Arrow expressions.

Spark applies every filter itself too, so an expression here may let more rows pass than the filter, never fewer. Where
Spark and Arrow disagree, this side is the more generous: in Spark NaN equals itself and is greater than any number.
"""

import math
from collections.abc import Iterable
from contextlib import suppress
from datetime import date, datetime
from functools import reduce
from operator import and_
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from pyspark.sql import datasource as ds

from persist.errors import InvalidUsage
from persist.expression import Call, Col, Lit, Term, arrow_filter

_COMPARED = ("equal", "less", "less_equal", "greater", "greater_equal")
_FUNCTIONS = (
    ((ds.EqualTo, ds.EqualNullSafe), "equal"),
    (ds.In, "among"),
    (ds.LessThan, "less"),
    (ds.LessThanOrEqual, "less_equal"),
    (ds.GreaterThan, "greater"),
    (ds.GreaterThanOrEqual, "greater_equal"),
    (ds.StringStartsWith, "starts_with"),
    (ds.StringEndsWith, "ends_with"),
    (ds.StringContains, "contains"),
)
# Spark 4.3 hands over days that the Julian calendar's end left out as others, ten days away.
GAP = (date(1582, 10, 5), date(1582, 10, 24))


def expression(filters: Iterable[ds.Filter], schema: pa.Schema) -> pc.Expression | None:
    """Return an expression that every row passes which passes all filters; None if it would let everything pass.

    Args:
        filters: what Spark pushed.
        schema: the key and value columns. `_time` and `_diff` are not among them: filters on them hold for sums, and
            would drop summands.
    """
    usable = []
    for spark_filter in filters:
        condition = _condition(spark_filter, schema)
        with suppress(InvalidUsage):  # Arrow compares fewer types than Spark.
            usable += [] if condition is None else [arrow_filter(condition, schema)]
    return reduce(and_, usable) if usable else None


def _condition(each: ds.Filter, schema: pa.Schema) -> Term | None:
    if isinstance(each, ds.Not):
        # Of other filters, those that let more rows pass let fewer pass when they are negated.
        inner = _condition(each.child, schema) if isinstance(each.child, ds.IsNull | ds.IsNotNull) else None
        return None if inner is None else Call("not", (inner,))
    path: tuple[str, ...] = getattr(each, "attribute", ())
    if len(path) != 1 or path[0] not in schema.names:
        return None
    column, kind = Col(path[0]), schema.field(path[0]).type
    if isinstance(each, ds.IsNull | ds.IsNotNull):
        return Call("is_null" if isinstance(each, ds.IsNull) else "is_valid", (column,))
    value = _literal(each, kind)
    function = next((name for which, name in _FUNCTIONS if isinstance(each, which)), None)
    if value is None or function is None:
        return None
    if function not in _COMPARED:
        return Call(function, (column,), (value,))
    condition = Call(function, (column, Lit(value)))
    if function in ("greater", "greater_equal") and pt.is_floating(kind):
        return Call("or", (condition, Call("is_nan", (column,))))
    return condition


def _literal(each: ds.Filter, type_: pa.DataType) -> Any:
    """Return the filter's value as the column's type, or None if it has no exact counterpart there."""
    value = getattr(each, "value", None)
    if value is None or pt.is_nested(type_):
        return None
    if isinstance(each, (ds.StringStartsWith, ds.StringEndsWith, ds.StringContains)):
        return value if pt.is_string(type_) or pt.is_large_string(type_) else None
    values = list(value) if isinstance(each, ds.In) else [value]
    if any(isinstance(v, date) and not isinstance(v, datetime) and GAP[0] <= v <= GAP[1] for v in values):
        return None
    if any(v is None or (isinstance(v, float) and math.isnan(v)) for v in values):
        return None
    values = [v + 0.0 if isinstance(v, float) else v for v in values]  # -0.0 to 0.0, which is how zero is stored.
    try:
        converted = pa.array(values, type=type_)
        exact = converted.to_pylist() == values
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None
    if not exact:  # Arrow cuts a time to the column's unit, and rounds a float.
        return None
    return converted if isinstance(each, ds.In) else converted[0]
