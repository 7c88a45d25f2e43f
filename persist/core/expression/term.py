"""The one tree of every expression: columns, constants, and calls of functions.

Python operators, conditions as text, SQL queries, and filters of Spark and Polars all become terms. A
term does not define its computation: `evaluation` computes terms on Arrow columns, and `to_arrow_filter` translates
filters of files for Arrow's own engine.

Two families of functions share the tree. Those of programs have names such as `add`; those of queries, DuckDB's, have
names such as `sql.add` and one option, the type of the value. Their meanings differ in some places; see
`sql_functions`.

Programs write terms as `col("delay") > 15`. The meaning is SQL's: NULL in, NULL out, except for `is_null`, `coalesce`,
`when`, and the three-valued `&`, `|`, `~`. A filter keeps a record only if its condition is true. Integer arithmetic
that overflows raises. `/` returns a float, `//` and `%` round down; a divisor of zero returns NULL, because a record
that raises would stop a dataflow for ever. Arrow determines the types and the cost of an expression; see
`persist.core.expression.evaluation`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, TypeAlias

import pyarrow as pa

from persist.blob.errors import InvalidUsage

SQL = "sql."
# Intervals in Arrow: its own interval types cannot be compared, sorted or stored. Collections have other names for the
# fields.
INTERVAL = pa.struct([("interval_months", pa.int32()), ("interval_days", pa.int32()), ("interval_micros", pa.int64())])


class Term:
    """A value for each record. Terms are immutable, and equal if they have the same structure."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Col(Term):
    """A column by its name, in programs and filters."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Place(Term):
    """A column by its number, in plans of queries, whose columns have no names."""

    index: int


@dataclass(frozen=True, slots=True, eq=False)
class Lit(Term):
    """A constant."""

    value: pa.Scalar

    def __eq__(self, other: object) -> bool:
        # As they are written: 0.0 and -0.0 are two constants, because 1 / x is not the same of both.
        return isinstance(other, Lit) and self._encode_value == other._encode_value

    def __hash__(self) -> int:
        return hash(self._encode_value)

    @property
    def _encode_value(self) -> tuple[pa.DataType, str]:
        """Return type and text of the constant, by which constants are compared."""
        try:
            return self.value.type, repr(self.value)
        except (OverflowError, ValueError):  # Python has no object for it, such as for an infinite date.
            return self.value.type, str(pa.array([self.value], self.value.type))

    def __str__(self) -> str:
        if not self.value.is_valid:
            return "NULL"
        try:
            return repr(self.value.as_py())
        except (OverflowError, ValueError):  # A moment that Python has no object for, such as an infinity.
            return f"{self.value.type}({self.value.value})"


@dataclass(frozen=True, slots=True, eq=False)
class Call(Term):
    """A call of a function. `at`: its position in a query's text."""

    function: str
    arguments: tuple[Term, ...]
    options: tuple[Any, ...] = ()
    at: int | None = field(default=None, compare=False)

    def __eq__(self, other: object) -> bool:
        pending: list[tuple[object, object]] = [(self, other)]  # In place of recursion: terms may be deep.
        while pending:
            first, two = pending.pop()
            if isinstance(first, Call) and isinstance(two, Call):
                is_alike = first.function == two.function and first.options == two.options
                if not is_alike or len(first.arguments) != len(two.arguments):
                    return False
                pending += zip(first.arguments, two.arguments, strict=True)
            elif isinstance(first, Call) or isinstance(two, Call) or first != two:
                return False
        return True

    def __hash__(self) -> int:
        return hash(
            (self.function, self.options, *(argument for argument in self.arguments if not isinstance(argument, Call)))
        )

    @property
    def kind(self) -> pa.DataType:
        """The type of the value, which only calls of `sql.` functions have."""
        assert self.function.startswith(SQL)
        return self.options[0]

    def __str__(self) -> str:
        written = [*map(str, self.arguments), *map(str, self.options)]
        sign = _SIGNS.get(self.function)
        if sign is not None and len(written) == 2:
            return f"({written[0]} {sign} {written[1]})"
        return f"{self.function}({', '.join(written)})"


_SIGNS = {
    "add": "+", "subtract": "-", "multiply": "*", "divide": "/", "floor_divide": "//", "modulo": "%", "equal": "=",
    "not_equal": "!=", "less": "<", "less_equal": "<=", "greater": ">", "greater_equal": ">=", "and": "and", "or": "or",
}  # fmt: skip


def is_call(term: Term, *functions: str) -> bool:
    """Return whether a term calls a given function, with `sql.` or without."""
    return isinstance(term, Call) and term.function.removeprefix(SQL) in functions


def make_sql_call(function: str, kind: pa.DataType, *arguments: Term, at: int | None = None) -> Call:
    """Return a call of a query's function, whose value has type `kind`."""
    return Call(SQL + function, arguments, (kind,), at)


def iterate_leaves(term: Term) -> Iterator[Term]:
    """Yield the columns and constants of a term, with repetitions."""
    if isinstance(term, Call):
        for argument in term.arguments:
            yield from iterate_leaves(argument)
    else:
        yield term


def list_columns(term: Term) -> set[str]:
    """Return the names of the columns that a term reads."""
    return {leaf.name for leaf in iterate_leaves(term) if isinstance(leaf, Col)}


def list_places(term: Term) -> set[int]:
    """Return the numbers of the columns that a term reads."""
    return {leaf.index for leaf in iterate_leaves(term) if isinstance(leaf, Place)}


def substitute_columns(term: Term, by: Mapping[str, Term]) -> Term:
    """Return a term with named columns replaced by the terms in `by`."""
    if isinstance(term, Call):  # With one call of Python for each level, so that deep terms can be taken.
        return Call(term.function, tuple(map(substitute_columns, term.arguments, repeat(by))), term.options, term.at)
    return by.get(term.name, term) if isinstance(term, Col) else term


def replace_columns(term: Term, to: Callable[[int], Term]) -> Term:
    """Return a term with each numbered column replaced by `to(number)`."""
    if isinstance(term, Call):
        return Call(term.function, tuple(map(replace_columns, term.arguments, repeat(to))), term.options, term.at)
    return to(term.index) if isinstance(term, Place) else term


def shift_columns(term: Term, by: int) -> Term:
    """Return a term with `by` added to its column numbers."""
    return replace_columns(term, lambda index: Place(index + by))


def move_columns(term: Term, places: Mapping[int, int]) -> Term:
    """Return a term with its column numbers replaced by `places`."""
    return replace_columns(term, lambda index: Place(places[index]))


_Binary: TypeAlias = Callable[["Expression", Any], "Expression"]


def _make_operator(function: str) -> _Binary:
    """Return the method of `Expression` for an operator."""
    return lambda self, other: _make_expression(function, self, other)


def _make_reflected_operator(function: str) -> _Binary:
    """Return the method for an operator whose left operand is a constant."""
    return lambda self, other: _make_expression(function, other, self)


class Expression:
    """A value for each record. Combine it with operators and methods; `==` also builds an expression.

    `term`: its term, for evaluators.
    """

    __slots__ = ("term",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, term: Term) -> None:
        self.term = term

    def __str__(self) -> str:
        return str(self.term)

    def __repr__(self) -> str:
        return f"<Expression {self.term}>"

    __add__, __radd__ = _make_operator("add"), _make_reflected_operator("add")
    __sub__, __rsub__ = _make_operator("subtract"), _make_reflected_operator("subtract")
    __mul__, __rmul__ = _make_operator("multiply"), _make_reflected_operator("multiply")
    __truediv__, __rtruediv__ = _make_operator("divide"), _make_reflected_operator("divide")
    __floordiv__, __rfloordiv__ = _make_operator("floor_divide"), _make_reflected_operator("floor_divide")
    __mod__, __rmod__ = _make_operator("modulo"), _make_reflected_operator("modulo")
    __eq__, __ne__ = _make_operator("equal"), _make_operator("not_equal")  # type: ignore[assignment]
    __lt__, __le__ = _make_operator("less"), _make_operator("less_equal")
    __gt__, __ge__ = _make_operator("greater"), _make_operator("greater_equal")
    __and__, __or__ = _make_operator("and"), _make_operator("or")

    def __neg__(self) -> "Expression":
        return _make_expression("negate", self)

    def __invert__(self) -> "Expression":
        return _make_expression("not", self)

    def __bool__(self) -> bool:
        raise InvalidUsage(f"{self} is not a truth value: combine conditions with & | ~ instead of and, or, not")

    def abs(self) -> "Expression":
        """The absolute value."""
        return _make_expression("abs", self)

    def cast(self, kind: pa.DataType) -> "Expression":
        """The value as another type; raises when the dataflow runs if a value does not fit."""
        return _make_expression("cast", self, options=(kind,))

    def is_null(self) -> "Expression":
        """Whether the value is NULL."""
        return _make_expression("is_null", self)

    def is_in(self, values: Sequence[Any]) -> "Expression":
        """Whether the value equals one of some constants."""
        return _make_expression("is_in", self, options=(tuple(values),))

    def coalesce(self, *others: Any) -> "Expression":
        """The first of this and others that is not NULL."""
        return _make_expression("coalesce", self, *others)

    def min_with(self, *others: Any) -> "Expression":
        """The least of this value and others; NULLs are ignored."""
        return _make_expression("least", self, *others)

    def max_with(self, *others: Any) -> "Expression":
        """The greatest of this value and others; NULLs are ignored."""
        return _make_expression("greatest", self, *others)

    def lower(self) -> "Expression":
        """Text in small letters."""
        return _make_expression("lower", self)

    def upper(self) -> "Expression":
        """Text in capital letters."""
        return _make_expression("upper", self)

    def length(self) -> "Expression":
        """The number of characters of a text."""
        return _make_expression("length", self)

    def strip(self) -> "Expression":
        """Text without white space at its ends."""
        return _make_expression("strip", self)

    def slice(self, start: int, stop: int | None = None) -> "Expression":
        """The characters from start, inclusive, to stop, exclusive."""
        return _make_expression("slice", self, options=(start, stop))

    def starts_with(self, text: str) -> "Expression":
        """Whether the text begins with a constant text."""
        return _make_expression("starts_with", self, options=(text,))

    def ends_with(self, text: str) -> "Expression":
        """Whether the text ends with a constant text."""
        return _make_expression("ends_with", self, options=(text,))

    def contains(self, text: str) -> "Expression":
        """Whether the text contains a constant text."""
        return _make_expression("contains", self, options=(text,))

    def replace(self, text: str, by: str) -> "Expression":
        """Text with each occurrence of a constant replaced."""
        return _make_expression("replace", self, options=(text, by))

    def concat(self, *others: Any) -> "Expression":
        """This text, followed by other texts."""
        return _make_expression("concat", self, *others)

    def part(self, unit: str) -> "Expression":
        """A part of a date or timestamp as an integer: year, month, day, hour, minute, second, day_of_week …"""
        return _make_expression("part", self, options=(unit,))

    def floor(self, unit: str | None = None) -> "Expression":
        """A number rounded down; or a timestamp, to the start of its day, hour …"""
        return _make_expression("floor", self, options=(unit,))

    def bit_length(self) -> "Expression":
        """How many binary digits a whole number has, without its sign: 0 for 0, and 3 for 4 to 7."""
        return _make_expression("bit_length", self)

    def count(self) -> "Aggregate":
        """How many records have a value that is not NULL."""
        return Aggregate("count", self.term)

    def sum(self) -> "Aggregate":
        """The exact sum of the values, so retracted values leave no residue. NULL without values."""
        return Aggregate("sum", self.term)

    def mean(self) -> "Aggregate":
        """The exact sum over the count, rounded once."""
        return Aggregate("mean", self.term)

    def min(self) -> "Aggregate":
        """The least value; NULL if there are none."""
        return Aggregate("min", self.term)

    def max(self) -> "Aggregate":
        """The greatest value; NULL if there are none."""
        return Aggregate("max", self.term)

    def median(self) -> "Aggregate":
        """The middle value, the lower of the two if the count is even; NULL if there are none."""
        return Aggregate("median", self.term)


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One value for a group of records: an aggregation of a term over its multiset."""

    kind: str
    of: Term

    def __str__(self) -> str:
        return f"{self.kind}({self.of})"


class When(Expression):
    """An unfinished conditional: without `otherwise`, other records get NULL."""

    __slots__ = ("_branches",)

    def __init__(self, branches: tuple[tuple[Any, Any], ...]) -> None:
        self._branches = branches
        super().__init__(self._make_conditional(None))

    def when(self, condition: Expression, value: Any) -> "When":
        """Add a branch for records that meet its condition and no earlier one."""
        return When((*self._branches, (condition, value)))

    def otherwise(self, value: Any) -> Expression:
        """Return the conditional, with a value for all other records."""
        return Expression(self._make_conditional(value))

    def _make_conditional(self, value: Any) -> Term:
        """Return the term of all branches, with a value for other records."""
        ending = to_term(value)
        for condition, then in reversed(self._branches):
            ending = Call("if_else", (to_term(condition), to_term(then), ending))
        return ending


def when(condition: Expression, value: Any) -> When:
    """Begin a conditional: `when(col("n") > 0, "some").otherwise("none")`."""
    return When(((condition, value),))


def col(name: str) -> Expression:
    """Return the column of a name. In programs of one dimension, `_time` is the time of the update."""
    if not isinstance(name, str):
        raise InvalidUsage(f'col({name!r}): a column is called by its name, as in col("delay")')
    return Expression(Col(name))


def lit(value: Any, kind: pa.DataType | None = None) -> Expression:
    """Return a constant, of a type or of the type that Arrow infers; an expression is returned unchanged."""
    if isinstance(value, Expression):
        return value
    if isinstance(value, Aggregate):
        raise InvalidUsage(f"{value} is an aggregate: use it as an argument of agg(…), not in another expression")
    try:
        return Expression(Lit(value if isinstance(value, pa.Scalar) and kind is None else pa.scalar(value, kind)))
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise InvalidUsage(f"{value!r} cannot be a constant of {kind or 'any type'}: {error}") from error


def to_term(value: Any) -> Term:
    """Return the term of an expression, or of a constant; a term is returned as it is."""
    return value if isinstance(value, Term) else lit(value).term


def _make_expression(function: str, *arguments: Any, options: tuple[Any, ...] = ()) -> Expression:
    """Return an expression that calls a function on expressions or constants."""
    return Expression(Call(function, tuple(map(to_term, arguments)), options))
