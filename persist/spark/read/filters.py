"""Filters that Spark pushes down, as Arrow expressions.

Spark applies every filter itself too, so an expression here may let more rows pass than the filter, never fewer. Where
Spark and Arrow disagree, this side is the more generous: in Spark NaN equals itself and is greater than any number.
"""

import math
from collections.abc import Iterable
from datetime import date, datetime
from functools import reduce
from operator import and_
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from pyspark.sql import datasource as ds

# Spark 4.3 hands over days that the Julian calendar's end left out as others, ten days away.
GAP = (date(1582, 10, 5), date(1582, 10, 24))


def expression(filters: Iterable[ds.Filter], schema: pa.Schema) -> pc.Expression | None:
    """Return an expression that every row passes which passes all filters; None if it would let everything pass.

    Args:
        filters: what Spark pushed.
        schema: the key and value columns. `_time` and `_diff` are not among them: filters on them hold for sums, and
            would drop summands.
    """
    parts = [part for each in filters if (part := _expression(each, schema)) is not None]
    usable = [part for part in parts if _can_be_applied(part, schema)]
    return reduce(and_, usable) if usable else None


def _can_be_applied(part: pc.Expression, schema: pa.Schema) -> bool:
    try:
        schema.empty_table().filter(part)
    except pa.ArrowException:
        return False
    return True


def _expression(each: ds.Filter, schema: pa.Schema) -> pc.Expression | None:
    if isinstance(each, ds.Not):
        return _negated(each.child, schema)
    path: tuple[str, ...] = getattr(each, "attribute", ())
    if len(path) != 1 or path[0] not in schema.names:
        return None
    field, type_ = pc.field(path[0]), schema.field(path[0]).type
    if isinstance(each, ds.IsNull):
        return field.is_null()
    if isinstance(each, ds.IsNotNull):
        return field.is_valid()
    value = _literal(each, type_)
    return None if value is None else _comparison(each, field, type_, value)


def _negated(child: ds.Filter, schema: pa.Schema) -> pc.Expression | None:
    if isinstance(child, (ds.IsNull, ds.IsNotNull)):
        inner = _expression(child, schema)
        return None if inner is None else ~inner
    return None


def _comparison(each: ds.Filter, field: pc.Expression, type_: pa.DataType, value: Any) -> pc.Expression | None:
    if isinstance(each, (ds.EqualTo, ds.EqualNullSafe)):
        return field == value
    if isinstance(each, ds.In):
        return field.isin(value)
    if isinstance(each, ds.LessThan):
        return field < value
    if isinstance(each, ds.LessThanOrEqual):
        return field <= value
    if isinstance(each, (ds.GreaterThan, ds.GreaterThanOrEqual)):
        above = field > value if isinstance(each, ds.GreaterThan) else field >= value
        return above | pc.is_nan(field) if pt.is_floating(type_) else above
    if isinstance(each, ds.StringStartsWith):
        return pc.starts_with(field, each.value)
    if isinstance(each, ds.StringEndsWith):
        return pc.ends_with(field, each.value)
    if isinstance(each, ds.StringContains):
        return pc.match_substring(field, each.value)
    return None


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
