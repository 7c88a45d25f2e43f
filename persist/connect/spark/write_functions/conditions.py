"""Conditions on records, as SQL text or columns of Spark, without casts that round.

Spark compares a BIGINT with a DOUBLE as DOUBLE. Text that is not a number becomes NULL if ANSI is off. A condition
would then match records that its text excludes. So a cast that Spark has added is refused unless it changes no value.
Under Spark Connect, which shows no plan, Spark's casts are not checked.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

from persist.connect.spark.types import quote_column
from persist.core.errors import InvalidUsage


@dataclass(frozen=True)
class Condition:
    """A condition on records, which selects those for which it is true.

    `text`: the condition as text, for messages and for the digest of a write with a token.
    """

    column: Column
    text: str

    @classmethod
    def of(cls, given: "str | Column | Condition") -> "Condition":
        """Return a condition for SQL text or a column of Spark."""
        if isinstance(given, Condition):
            return given
        if isinstance(given, str) and given.strip():
            return cls(F.expr(given), given)
        if isinstance(given, Column):
            return cls(given, str(given))
        raise InvalidUsage(
            f'{given!r:.80} is not a condition: give SQL text such as "amount > 5", or a column of Spark'
        )

    def make_failing_column(self, df: DataFrame) -> Column:
        """Return a column that fails a task, with a row that breaks the condition."""
        refusal = (
            f"persist.errors.InvalidUsage: where={self.text} is not true for all rows of the DataFrame, so they would "
            "come beside what is there and not in its place: leave them out, or widen the condition. Nothing was "
            "written. One of them is "
        )
        row = F.struct(*(F.col(quote_column(name)) for name in df.columns)).cast("string")
        return F.raise_error(F.concat(F.lit(refusal), row)).cast("long")

    def filter(self, records: DataFrame) -> DataFrame:
        """Return the records that fulfil the condition."""
        matching = records.where(self.column)
        if isinstance(matching, ClassicDataFrame):
            plan: Any = matching._jdf.queryExecution().analyzed()
            jvm: Any = matching.sparkSession._jvm
            self._check_casts(
                plan.condition(), jvm.org.apache.spark.sql.catalyst.expressions.Cast.USER_SPECIFIED_CAST()
            )
        return matching

    def _check_casts(self, term: Any, by_user: Any, above: str = "") -> None:
        """Raise InvalidUsage if Spark has added a cast that changes some values.

        `above`: the class of the expression around `term`; in arithmetic, casts of numbers are allowed.
        """
        name = term.getClass().getSimpleName()
        if name == "Cast" and not term.getTagValue(by_user).isDefined():
            source, target = (_get_type(part) for part in (term.child(), term))
            is_counted = above in _ARITHMETIC and isinstance(source, T.NumericType)
            is_same = _keeps_constant if term.child().foldable() else _keeps_all
            if not (is_counted or is_same(source, target, term)):
                raise InvalidUsage(
                    f"where={self.text}: Spark would compare {term.child().sql()}, which is "
                    f"{source.simpleString().upper()}, as {target.simpleString().upper()}, in which different values "
                    "may become equal. Give a value of the column's own type, or write the CAST that you mean."
                )
        below = [*_iterate_scala(term.children())]
        if name in _SUBQUERIES:
            below += _expressions(term.plan())
        for child in below:
            self._check_casts(child, by_user, name)


def _expressions(plan: Any) -> Iterator[Any]:
    """Yield the expressions of a Spark plan, except in views inside of it."""
    if plan.getClass().getSimpleName() != "View":
        yield from _iterate_scala(plan.expressions())
        for child in _iterate_scala(plan.children()):
            yield from _expressions(child)


def _iterate_scala(found: Any) -> Iterator[Any]:
    """Yield the items of a Scala sequence."""
    for at in range(found.size()):
        yield found.apply(at)


def _get_type(term: Any) -> T.DataType:
    """Return the type of a Java expression of Spark."""
    field = {"name": "", "type": json.loads(term.dataType().json()), "nullable": True, "metadata": {}}
    return T.StructField.fromJson(field).dataType


_SUBQUERIES = ("ScalarSubquery", "ListQuery", "Exists")
_ARITHMETIC = ("Add", "Subtract", "Multiply", "Divide", "IntegralDivide", "Remainder", "Pmod")
_DIGITS = {T.ByteType: 3, T.ShortType: 5, T.IntegerType: 10, T.LongType: 19}
_EXACT_DIGITS = {T.FloatType: 6, T.DoubleType: 15}  # Numbers of so many digits stay distinct.


def _keeps_all(source: T.DataType, target: T.DataType, term: Any) -> bool:
    """Return whether a cast keeps all values of a type distinct."""
    if source.simpleString() == target.simpleString() or isinstance(target, T.StringType):
        return True
    if isinstance(source, T.FloatType) and isinstance(target, T.DoubleType):
        return True
    if isinstance(source, T.DateType):
        return isinstance(target, T.TimestampType | T.TimestampNTZType)
    digits, scale = _get_digits(source)
    if digits and type(target) in _EXACT_DIGITS:
        return digits <= _EXACT_DIGITS[type(target)]
    most, places = _get_digits(target)
    return bool(digits and most) and digits - scale <= most - places and scale <= places


def _get_digits(kind: T.DataType) -> tuple[int, int]:
    """Return the digits and decimal places of a numeric type; 0 for other types."""
    if isinstance(kind, T.DecimalType):
        return kind.precision, kind.scale
    return _DIGITS.get(type(kind), 0), 0


_DAY = re.compile(r"\d{4}-\d{1,2}-\d{1,2}")
_FINE = re.compile(r"\.\d{7}")


def _to_decimal(value: Any) -> Decimal:
    """Convert a number of Python, or a decimal of Spark, to a Decimal."""
    return Decimal(value) if isinstance(value, int | float) else Decimal(str(value.toString()))


def _keeps_constant(source: T.DataType, target: T.DataType, term: Any) -> bool:
    """Return whether a cast keeps a constant, or rounds decimal SQL text to the nearest float."""
    if isinstance(source, T.DecimalType) and type(target) in _EXACT_DIGITS:
        return True
    try:
        original, value = term.child().eval(None), term.eval(None)
    except Py4JError:  # Spark itself reports the error.
        return True
    if original is None or value is None:
        return original is None
    if isinstance(source, T.NumericType) and isinstance(target, T.NumericType):
        return _to_decimal(original) == _to_decimal(value)
    if not isinstance(source, T.StringType):
        return _keeps_all(source, target, term)
    text = str(original.toString()).strip()
    if isinstance(target, T.DateType):
        return bool(_DAY.fullmatch(text))
    if isinstance(target, T.TimestampType | T.TimestampNTZType):
        return not _FINE.search(text)
    if isinstance(target, T.NumericType):
        try:
            number = Decimal(text)
        except ArithmeticError:
            return False
        return isinstance(target, T.FractionalType) or number == _to_decimal(value)
    return isinstance(target, T.StringType | T.BinaryType | T.BooleanType)
