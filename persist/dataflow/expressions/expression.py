"""Expressions over columns: what `col("delay") > 15` builds; a tree to be printed, typed, evaluated or translated.

The meaning is SQL's: NULL in, NULL out, except for `is_null`, `coalesce`, `when`, and the three-valued `&`, `|`, `~`.
A filter keeps a record only if its condition is true. Integer arithmetic that overflows raises. `/` gives a float, `//`
and `%` round down; a divisor of zero gives NULL, because a record that raises would stop a dataflow for ever. What an
expression costs, and which types fit, is Arrow's affair; see `persist.dataflow.expressions.evaluation`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from persist.blob import InvalidUsage


class Expression:
    """A value for each record. Combine it with operators and methods; `==` builds an expression, too."""

    __hash__ = None  # type: ignore[assignment]

    def __add__(self, other: Any) -> "Expression":
        return Call("add", (self, lit(other)))

    def __radd__(self, other: Any) -> "Expression":
        return Call("add", (lit(other), self))

    def __sub__(self, other: Any) -> "Expression":
        return Call("subtract", (self, lit(other)))

    def __rsub__(self, other: Any) -> "Expression":
        return Call("subtract", (lit(other), self))

    def __mul__(self, other: Any) -> "Expression":
        return Call("multiply", (self, lit(other)))

    def __rmul__(self, other: Any) -> "Expression":
        return Call("multiply", (lit(other), self))

    def __truediv__(self, other: Any) -> "Expression":
        return Call("divide", (self, lit(other)))

    def __rtruediv__(self, other: Any) -> "Expression":
        return Call("divide", (lit(other), self))

    def __floordiv__(self, other: Any) -> "Expression":
        return Call("floor_divide", (self, lit(other)))

    def __rfloordiv__(self, other: Any) -> "Expression":
        return Call("floor_divide", (lit(other), self))

    def __mod__(self, other: Any) -> "Expression":
        return Call("modulo", (self, lit(other)))

    def __rmod__(self, other: Any) -> "Expression":
        return Call("modulo", (lit(other), self))

    def __neg__(self) -> "Expression":
        return Call("negate", (self,))

    def __eq__(self, other: Any) -> "Expression":  # type: ignore[override]
        return Call("equal", (self, lit(other)))

    def __ne__(self, other: Any) -> "Expression":  # type: ignore[override]
        return Call("not_equal", (self, lit(other)))

    def __lt__(self, other: Any) -> "Expression":
        return Call("less", (self, lit(other)))

    def __le__(self, other: Any) -> "Expression":
        return Call("less_equal", (self, lit(other)))

    def __gt__(self, other: Any) -> "Expression":
        return Call("greater", (self, lit(other)))

    def __ge__(self, other: Any) -> "Expression":
        return Call("greater_equal", (self, lit(other)))

    def __and__(self, other: Any) -> "Expression":
        return Call("and", (self, lit(other)))

    def __or__(self, other: Any) -> "Expression":
        return Call("or", (self, lit(other)))

    def __invert__(self) -> "Expression":
        return Call("not", (self,))

    def __bool__(self) -> bool:
        raise InvalidUsage(f"{self} is no truth value: combine conditions with & | ~ instead of and, or, not")

    def abs(self) -> "Expression":
        """The absolute value."""
        return Call("abs", (self,))

    def cast(self, kind: pa.DataType) -> "Expression":
        """The value as another type; raises when the dataflow runs if a value does not fit."""
        return Call("cast", (self,), (kind,))

    def is_null(self) -> "Expression":
        """Whether it is NULL."""
        return Call("is_null", (self,))

    def is_in(self, values: Sequence[Any]) -> "Expression":
        """Whether it equals one of some constants."""
        return Call("is_in", (self,), (tuple(values),))

    def coalesce(self, *others: Any) -> "Expression":
        """The first of this and others that is not NULL."""
        return Call("coalesce", (self, *map(lit, others)))

    def min_with(self, *others: Any) -> "Expression":
        """The least of this and others, NULLs left out."""
        return Call("least", (self, *map(lit, others)))

    def max_with(self, *others: Any) -> "Expression":
        """The greatest of this and others, NULLs left out."""
        return Call("greatest", (self, *map(lit, others)))

    def lower(self) -> "Expression":
        """Text in small letters."""
        return Call("lower", (self,))

    def upper(self) -> "Expression":
        """Text in capital letters."""
        return Call("upper", (self,))

    def length(self) -> "Expression":
        """The number of characters of a text."""
        return Call("length", (self,))

    def strip(self) -> "Expression":
        """Text without white space at its ends."""
        return Call("strip", (self,))

    def slice(self, start: int, stop: int | None = None) -> "Expression":
        """The characters from start, inclusive, to stop, exclusive."""
        return Call("slice", (self,), (start, stop))

    def starts_with(self, text: str) -> "Expression":
        """Whether it begins with a constant text."""
        return Call("starts_with", (self,), (text,))

    def ends_with(self, text: str) -> "Expression":
        """Whether it ends with a constant text."""
        return Call("ends_with", (self,), (text,))

    def contains(self, text: str) -> "Expression":
        """Whether a constant text occurs in it."""
        return Call("contains", (self,), (text,))

    def replace(self, text: str, by: str) -> "Expression":
        """Text with each occurrence of a constant replaced."""
        return Call("replace", (self,), (text, by))

    def concat(self, *others: Any) -> "Expression":
        """Text with other texts behind it."""
        return Call("concat", (self, *map(lit, others)))

    def part(self, unit: str) -> "Expression":
        """A part of a date or timestamp as an integer: year, month, day, hour, minute, second, day_of_week …"""
        return Call("part", (self,), (unit,))

    def floor(self, unit: str | None = None) -> "Expression":
        """A number rounded down; or a timestamp, to the begin of its day, hour …"""
        return Call("floor", (self,), (unit,))

    def count(self) -> "Aggregate":
        """How many records have a value that is not NULL."""
        return Aggregate("count", self)

    def sum(self) -> "Aggregate":
        """The sum of the values; exact, so what was added and taken away leaves nothing. NULL if there are none."""
        return Aggregate("sum", self)

    def mean(self) -> "Aggregate":
        """The exact sum over the count, rounded once."""
        return Aggregate("mean", self)

    def min(self) -> "Aggregate":
        """The least value; NULL if there are none."""
        return Aggregate("min", self)

    def max(self) -> "Aggregate":
        """The greatest value; NULL if there are none."""
        return Aggregate("max", self)

    def median(self) -> "Aggregate":
        """The middle value, the lower of the two if the count is even; NULL if there are none."""
        return Aggregate("median", self)


@dataclass(frozen=True, eq=False, slots=True)
class Col(Expression):
    """A column by name."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, eq=False, slots=True)
class Lit(Expression):
    """A constant."""

    value: pa.Scalar

    def __str__(self) -> str:
        return "NULL" if not self.value.is_valid else repr(self.value.as_py())


@dataclass(frozen=True, eq=False, slots=True)
class Call(Expression):
    """A function of other expressions, with constant options."""

    function: str
    arguments: tuple[Expression, ...]
    options: tuple[Any, ...] = ()

    def __str__(self) -> str:
        shown = [*map(str, self.arguments), *map(str, self.options)]
        sign = _SIGNS.get(self.function)
        if sign is not None and len(shown) == 2:
            return f"({shown[0]} {sign} {shown[1]})"
        return f"{self.function}({', '.join(shown)})"


_SIGNS = {
    "add": "+",
    "subtract": "-",
    "multiply": "*",
    "divide": "/",
    "floor_divide": "//",
    "modulo": "%",
    "equal": "=",
    "not_equal": "!=",
    "less": "<",
    "less_equal": "<=",
    "greater": ">",
    "greater_equal": ">=",
    "and": "and",
    "or": "or",
}

AGGREGATES = ("count", "sum", "mean", "min", "max", "median")


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One value for a group of records: an aggregation of an expression over its multiset."""

    kind: str
    of: Expression

    def __str__(self) -> str:
        return f"{self.kind}({self.of})"


class When(Expression):
    """A conditional that still lacks its `otherwise`; without it, NULL is the last resort."""

    def __init__(self, branches: tuple[tuple[Expression, Expression], ...]) -> None:
        self._branches = branches

    def when(self, condition: Expression, value: Any) -> "When":
        """Add a branch that is taken if its condition is true, and those before are not."""
        return When((*self._branches, (condition, lit(value))))

    def otherwise(self, value: Any) -> Expression:
        """Return the whole conditional."""
        found = lit(value)
        for condition, then in reversed(self._branches):
            found = Call("if_else", (condition, then, found))
        return found


def when(condition: Expression, value: Any) -> When:
    """Begin a conditional: `when(col("n") > 0, "some").otherwise("none")`."""
    return When(((condition, lit(value)),))


def col(name: str) -> Expression:
    """Return the column of a name. In programs of one dimension, `_time` is the time of the update."""
    if not isinstance(name, str):
        raise InvalidUsage(f'col({name!r}): a column is called by its name, as in col("delay")')
    return Col(name)


def lit(value: Any, kind: pa.DataType | None = None) -> Expression:
    """Return a constant, of a type or of the one that Arrow finds for it; an expression is returned as it is."""
    if isinstance(value, When):
        return value.otherwise(None)
    if isinstance(value, Expression):
        return value
    if isinstance(value, Aggregate):
        raise InvalidUsage(f"{value} is one value for a group, and stands only in agg(…), by itself")
    try:
        return Lit(value if isinstance(value, pa.Scalar) and kind is None else pa.scalar(value, kind))
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise InvalidUsage(f"{value!r} cannot be a constant of {kind or 'any type'}: {error}") from error


def columns_of(expression: Expression) -> set[str]:
    """Return the names of the columns that an expression reads."""
    if isinstance(expression, Col):
        return {expression.name}
    if isinstance(expression, Call):
        return set().union(*map(columns_of, expression.arguments))
    return set()


def substituted(expression: Expression, by: dict[str, Expression]) -> Expression:
    """Return an expression with its columns replaced by other expressions."""
    if isinstance(expression, Col):
        return by.get(expression.name, expression)
    if isinstance(expression, Call):
        arguments = tuple(substituted(each, by) for each in expression.arguments)
        return Call(expression.function, arguments, expression.options)
    return expression
