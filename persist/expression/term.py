"""The one tree of every expression: columns, constants, and calls of functions.

What people write with Python's operators, conditions in text, queries in SQL, and what Spark and Polars push down all
become terms. A term says nothing of how it is computed: `evaluation` computes terms on Arrow columns, and
`arrow_filter` gives those that can be asked of files to Arrow's own engine.

Two families of functions share the tree. Programs name them as in `add`; queries name DuckDB's as in `sql.add`, and
such a call has one option, the type of its value. The families mean different things in places; see `sql_functions`.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

import pyarrow as pa

SQL = "sql."
DUCKDB = (2, 0)  # Its functions, and the names of nodes in its plans, change from one minor version to the next.


class Term:
    """A value for each record. Terms that are built alike are equal, and none is ever changed."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Col(Term):
    """A column by its name, as programs and filters have them."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Place(Term):
    """A column by its place, as the plans of queries have them, whose columns have no names."""

    index: int


@dataclass(frozen=True, slots=True, eq=False)
class Lit(Term):
    """A constant."""

    value: pa.Scalar

    def __eq__(self, other: object) -> bool:
        # As they are written: 0.0 and -0.0 are two constants, because 1 / x is not the same of both.
        return isinstance(other, Lit) and self._written == other._written

    def __hash__(self) -> int:
        return hash(self._written)

    @property
    def _written(self) -> tuple[pa.DataType, str]:
        return self.value.type, repr(self.value)

    def __str__(self) -> str:
        return "NULL" if not self.value.is_valid else repr(self.value.as_py())


@dataclass(frozen=True, slots=True, eq=False)
class Call(Term):
    """A function of other terms, with constant options.

    Attributes:
        at: where it is in the text of a query, for messages.
    """

    function: str
    arguments: tuple[Term, ...]
    options: tuple[Any, ...] = ()
    at: int | None = field(default=None, compare=False)

    def __eq__(self, other: object) -> bool:
        left: list[tuple[object, object]] = [(self, other)]  # In place of recursion: terms may be deep.
        while left:
            one, two = left.pop()
            if isinstance(one, Call) and isinstance(two, Call):
                is_alike = one.function == two.function and one.options == two.options
                if not is_alike or len(one.arguments) != len(two.arguments):
                    return False
                left += zip(one.arguments, two.arguments, strict=True)
            elif isinstance(one, Call) or isinstance(two, Call) or one != two:
                return False
        return True

    def __hash__(self) -> int:
        return hash(
            (self.function, self.options, *(argument for argument in self.arguments if not isinstance(argument, Call)))
        )

    @property
    def kind(self) -> pa.DataType:
        """The type of the value, of a function of queries."""
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


def calls(term: Term, *functions: str) -> bool:
    """Return whether a term is a call of one of some functions, of either family."""
    return isinstance(term, Call) and term.function.removeprefix(SQL) in functions


def sql_call(function: str, kind: pa.DataType, *arguments: Term, at: int | None = None) -> Call:
    """Return a call of a function of queries; kind is the type of its value."""
    return Call(SQL + function, arguments, (kind,), at)


def leaves(term: Term) -> Iterator[Term]:
    """Yield the columns and constants of a term, each as often as it stands there."""
    if isinstance(term, Call):
        for argument in term.arguments:
            yield from leaves(argument)
    else:
        yield term


def columns_of(term: Term) -> set[str]:
    """Return the names of the columns that a term reads."""
    return {leaf.name for leaf in leaves(term) if isinstance(leaf, Col)}


def places_in(term: Term) -> set[int]:
    """Return the places of the columns that a term reads."""
    return {leaf.index for leaf in leaves(term) if isinstance(leaf, Place)}


def replaced_columns(term: Term, by: Mapping[str, Term]) -> Term:
    """Return a term with columns replaced by other terms."""
    if isinstance(term, Call):  # With one call of Python for each level, so that deep terms can be taken.
        return Call(term.function, tuple(map(replaced_columns, term.arguments, repeat(by))), term.options, term.at)
    return by.get(term.name, term) if isinstance(term, Col) else term


def moved(term: Term, to: Callable[[int], Term]) -> Term:
    """Return a term with the column of each place replaced by what a function of the place returns."""
    if isinstance(term, Call):
        return Call(term.function, tuple(map(moved, term.arguments, repeat(to))), term.options, term.at)
    return to(term.index) if isinstance(term, Place) else term


def shifted(term: Term, by: int) -> Term:
    """Return a term with its columns at places further on."""
    return moved(term, lambda index: Place(index + by))


def placed(term: Term, places: Mapping[int, int]) -> Term:
    """Return a term with its columns at other places."""
    return moved(term, lambda index: Place(places[index]))
