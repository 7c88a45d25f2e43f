"""A table of cells: every function, operator and cast that views accept, of all types, as DuckDB answers.

What is accepted is read from the product's own tables, and what types a function takes from DuckDB's list of
functions. So a function that is added later is in the table without a word here, and one that the table cannot make an
expression of fails a test. Every argument is a column; where there are several, each is a constant once as well.

A `Sheet` is the expressions over the same columns, and the rows that these columns have.
"""

import itertools
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import duckdb

from persist.compute.sql.adapt_expression import COMPARISONS, FUNCTIONS
from tests.compute.sql.values import CASTS_FROM_TEXT, CONSTANTS, POOLS, ROLES, Role

ROWS_MAX = 40  # Of the combinations of values, so many are taken.
Value: TypeAlias = str  # As DuckDB reads it from a text; None is NULL.

# Types that a collection's column can have, by the names that DuckDB gives them.
TYPES = tuple(POOLS)
# What stands for any type, and for decimals of any precision, in DuckDB's lists of parameters.
_ANY = ("BOOLEAN", "INTEGER", "UBIGINT", "DOUBLE", "DECIMAL(18,3)", "VARCHAR", "BLOB", "DATE", "TIME", "TIMESTAMP")
_DECIMALS = ("DECIMAL(4,2)", "DECIMAL(18,3)", "DECIMAL(38,10)")

# Operators that are not functions: how each is written, and how many values of one type it has.
OPERATORS: dict[str, list[str]] = {
    "COMPARE_EQUAL": ["{0} = {1}"],
    "COMPARE_NOTEQUAL": ["{0} <> {1}"],
    "COMPARE_LESSTHAN": ["{0} < {1}"],
    "COMPARE_LESSTHANOREQUALTO": ["{0} <= {1}"],
    "COMPARE_GREATERTHAN": ["{0} > {1}"],
    "COMPARE_GREATERTHANOREQUALTO": ["{0} >= {1}"],
    "COMPARE_DISTINCT_FROM": ["{0} IS DISTINCT FROM {1}"],
    "COMPARE_NOT_DISTINCT_FROM": ["{0} IS NOT DISTINCT FROM {1}"],
    "COMPARE_IN": ["{0} IN ({1}, {0})", "{0} IN ({1}, NULL)"],
    "COMPARE_NOT_IN": ["{0} NOT IN ({1}, {1})", "{0} NOT IN ({1}, NULL)"],
    "CONJUNCTION_AND": ["({0} < {1}) AND ({1} < {0} OR {0} IS NULL)", "({0} = {1}) AND {1} IS NOT NULL"],
    "CONJUNCTION_OR": ["({0} < {1}) OR ({1} < {0} AND {0} IS NOT NULL)", "({0} = {1}) OR {1} IS NULL"],
    "OPERATOR_NOT": ["NOT ({0} < {1})"],
    "OPERATOR_IS_NULL": ["{0} IS NULL"],
    "OPERATOR_IS_NOT_NULL": ["{0} IS NOT NULL"],
    "OPERATOR_COALESCE": ["coalesce({0}, {1})", "coalesce({0}, {1}, {0})"],
    "OPERATOR_NULLIF": ["nullif({0}, {1})"],
    "COMPARE_BETWEEN": ["{0} BETWEEN {1} AND {0}", "{0} NOT BETWEEN {1} AND {1}"],
    "CASE": ["CASE WHEN {0} < {1} THEN {0} WHEN {0} > {1} THEN {1} END", "CASE {0} WHEN {1} THEN {1} ELSE {0} END"],
}
# Those whose types DuckDB's list does not say.
_TEMPLATES = {"ifnull": "ifnull({0}, {1})", "nullif": "nullif({0}, {1})"}


@dataclass
class Sheet:
    """Expressions over the columns a0, a1, …, and the rows of these.

    Attributes:
        types: of the columns, as DuckDB calls them.
        expressions: each with the name of the function that it is of.
    """

    types: tuple[str, ...]
    rows: list[tuple[Value | None, ...]]
    expressions: list[tuple[str, str]] = field(default_factory=list)

    @property
    def cells(self) -> int:
        return len(self.rows) * len(self.expressions)


def sheets() -> list[Sheet]:
    """Return the whole table."""
    found: dict[Any, Sheet] = {}
    for name, shape, arguments in [*_functions(), *_operators(), *_casts()]:
        key = tuple(arguments)
        if key not in found:
            found[key] = _sheet(arguments)
        found[key].expressions += [(name, each) for each in _written(shape, arguments, found[key])]
    return list(found.values())


@dataclass(frozen=True)
class Argument:
    """What stands for one argument: columns of types, an expression of them, and their values."""

    types: tuple[str, ...]
    shape: str
    values: tuple[Any, ...]


def argument(kind: str, role: Role | None = None) -> Argument:
    """Return an argument of a type; its values are those of the type, or of the role that it has in a function."""
    if kind == "INTERVAL":
        shape = "(to_months({0}) + to_days({1}) + to_microseconds({2}))"
        return Argument(("INTEGER", "INTEGER", "BIGINT"), shape, role or POOLS_OF_INTERVALS)
    if kind == "HUGEINT":
        return Argument(("DECIMAL(38,0)",), "{0}::HUGEINT", role or HUGE)
    return Argument((kind,), "{0}", tuple(role or POOLS[kind]))


HUGE = (None, "0", "1", "-1", "12", str(2**63), str(-(2**63)), str(10**20))
POOLS_OF_INTERVALS = (
    (None, None, None),
    ("0", "0", "0"),
    ("1", "0", "0"),
    ("-13", "0", "0"),
    ("0", "1", "0"),
    ("0", "-40", "0"),
    ("0", "0", "900000000"),
    ("0", "0", "-1"),
    ("14", "3", "3723000001"),
    ("0", "2", "-7200000000"),
    ("0", None, "5"),
)


def _sheet(arguments: Sequence[Argument]) -> Sheet:
    if not arguments:  # A table has one column at least.
        return Sheet(("INTEGER",), [("1",), (None,)])
    types = tuple(kind for each in arguments for kind in each.types)
    pools = [each.values for each in arguments]
    rows = list(itertools.islice(itertools.product(*pools), 20_000))
    if len(rows) > ROWS_MAX:
        random_ = random.Random(repr(arguments))
        longest = max(map(len, pools))
        # Each value of each argument comes at least once.
        shuffled = [random_.sample(pool, len(pool)) for pool in pools]
        covered = [tuple(pool[at % len(pool)] for pool in shuffled) for at in range(longest)]
        picked = random_.sample(rows, max(0, ROWS_MAX - len(covered)))
        rows = list(dict.fromkeys([*covered, *picked]))
    return Sheet(types, [tuple(_flat(row)) for row in rows])


def _flat(row: Sequence[Any]) -> Iterator[Any]:
    for value in row:
        if isinstance(value, tuple):
            yield from value
        else:
            yield value


def _written(shape: str, arguments: Sequence[Argument], sheet: Sheet) -> Iterator[str]:
    """Yield an expression of columns, and, if there are several arguments, one for each that is a constant instead."""
    shown, at = [], 0
    for each in arguments:
        shown.append(each.shape.format(*(f"a{at + n}" for n in range(len(each.types)))))
        at += len(each.types)
    yield shape.format(*shown)
    for place, each in enumerate(arguments if len(arguments) > 1 else ()):
        # A constant that is neither the first nor the last; all of them where views take constants only.
        some = [value for value in each.values if value not in (None, (None, None, None), ("0", None, "5"))]
        for values in some if each.values in CONSTANTS else some[len(some) // 2 :][:1]:
            parts = values if isinstance(values, tuple) else (values,)
            literal = each.shape.format(*(f"{_quoted(v)}::{k}" for v, k in zip(parts, each.types, strict=True)))
            yield shape.format(*shown[:place], literal, *shown[place + 1 :])


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def overloads() -> dict[str, list[tuple[list[str], str | None]]]:
    """Return the types that the arguments of each function may have, and those of more of them."""
    with duckdb.connect(":memory:") as connection:
        rows = connection.execute(
            "SELECT function_name, parameter_types, varargs FROM duckdb_functions() WHERE function_type = 'scalar'"
        ).fetchall()
    found: dict[str, list[tuple[list[str], str | None]]] = defaultdict(list)
    for name, types, more in rows:
        found[name.lower()].append((types, more))
    return found


def _functions() -> Iterator[tuple[str, str, list[Argument]]]:
    known = overloads()
    for name in FUNCTIONS:
        for types, more in known.get(name, ()):
            for kinds in _concrete(types, more):
                roles = ROLES.get(name, ())
                arguments = [
                    argument(kind, roles[at].get(kind) if at < len(roles) else None) for at, kind in enumerate(kinds)
                ]
                yield name, _call(name, len(kinds)), arguments
        if name in _TEMPLATES:
            for kind in _ANY:
                yield name, _TEMPLATES[name], [argument(kind), argument(kind)]


def _concrete(types: list[str], more: str | None) -> Iterator[list[str]]:
    """Yield types of columns for types of parameters."""
    if more is not None:
        types = [*types, more] if types else [more, more]
    choices: list[Sequence[str]] = []
    generic = {"ANY": _ANY, "DECIMAL": _DECIMALS, "T": _ANY}
    for each in types:
        if each in generic:
            choices.append(generic[each])
        elif each in TYPES or each in ("INTERVAL", "HUGEINT"):
            choices.append((each,))
        else:
            return
    if sum(each is _ANY for each in choices) > 1:  # Of one type each time, and of two neighbours.
        for at, kind in enumerate(_ANY):
            yield [kind if each is _ANY else each[0] for each in choices]
            if more is not None:
                mixed = itertools.cycle([kind, _ANY[(at + 1) % len(_ANY)]])
                yield [next(mixed) if each is _ANY else each[0] for each in choices]
        return
    yield from map(list, itertools.product(*choices))


def _call(name: str, count: int) -> str:
    places = [f"{{{at}}}" for at in range(count)]
    if name.isidentifier():
        called = f'"{name}"' if name in ("position",) else name
        return f"{called}({', '.join(places)})"
    return f"{name} {places[0]}" if count == 1 else f"{places[0]} {name} {places[1]}"


def _operators() -> Iterator[tuple[str, str, list[Argument]]]:
    assert {*COMPARISONS, "CASE"} == OPERATORS.keys(), "write each operator of COMPARISONS down in OPERATORS"
    for name, shapes in OPERATORS.items():
        for kind in TYPES:
            count = 2 if any("{1}" in shape for shape in shapes) else 1
            for shape in shapes:
                yield name, shape, [argument(kind)] * count


def _casts() -> Iterator[tuple[str, str, list[Argument]]]:
    for given in (*TYPES, "HUGEINT"):
        for wanted in (*TYPES, "HUGEINT"):
            if given == wanted:
                continue
            pool = CASTS_FROM_TEXT.get(wanted) if given == "VARCHAR" else None
            for word in ("CAST", "TRY_CAST"):
                yield word, f"{word}({{0}} AS {wanted})", [argument(given, pool)]
