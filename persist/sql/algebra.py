"""The plan of a query as it is stored: relational algebra over numbered columns, with the type of all that is made.

This, and not the text of the query, is what a view means. It is written once, when the view is created, and read at
every start; so another release of DuckDB, or none, changes nothing. Every value has a `kind` in the JSON, and the whole
stands in a `Definition` with a version (`persist.sql.definition`).

Columns are numbered from 0. An expression refers to those of its node's input; the condition of a join to those of the
left, and behind them those of the right. Relations are multisets: nothing is in an order.
"""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec


class _Expression(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="kind"):
    pass


class Column(_Expression, frozen=True, tag="column"):
    """A column of the input."""

    index: int


class Constant(_Expression, frozen=True, tag="constant"):
    """A value of a type (`persist.sql.types`), as text; None is NULL."""

    type: str
    value: str | None = None


class Call(_Expression, frozen=True, tag="call"):
    """A function of other expressions.

    Attributes:
        type: of its value.
        at: where it is in the text of the query, for messages.
    """

    function: str
    type: str
    arguments: tuple["Expression", ...] = ()
    at: int | None = None


Expression = Column | Constant | Call
TRUE = Constant("boolean", "true")


def all_of(conditions: Sequence[Expression]) -> Expression:
    """Return the condition that all of these hold, of which there is one at least."""
    return conditions[0] if len(conditions) == 1 else Call("and", "boolean", tuple(conditions))


class Order(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One key of an order."""

    by: Expression
    descending: bool = False
    nulls_first: bool = False


class Aggregation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One value for a group of rows; where is the condition of its FILTER."""

    function: str
    type: str
    arguments: tuple[Expression, ...] = ()
    distinct: bool = False
    where: Expression | None = None


class Frame(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Which rows of a partition a window function sees from a row: from start to end, both inclusive.

    A bound is (mode, offset): mode "rows" counts rows, "range" peers; None is the end of the partition.
    """

    start: tuple[Literal["rows", "range"], int] | None = None
    end: tuple[Literal["rows", "range"], int] | None = None


class WindowCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One column that a window function adds."""

    function: str
    type: str
    arguments: tuple[Expression, ...] = ()
    partition: tuple[Expression, ...] = ()
    order: tuple[Order, ...] = ()
    frame: Frame = Frame()
    where: Expression | None = None


class _Node(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="kind"):
    pass


class Scan(_Node, frozen=True, tag="scan"):
    """Columns of a collection."""

    collection: str
    columns: tuple[str, ...]
    types: tuple[str, ...]


class Values(_Node, frozen=True, tag="values"):
    """Rows that the query itself holds."""

    types: tuple[str, ...]
    rows: tuple[tuple[Constant, ...], ...]


class Project(_Node, frozen=True, tag="project"):
    """Computed columns."""

    input: "Node"
    outputs: tuple[Expression, ...]


class Filter(_Node, frozen=True, tag="filter"):
    """The rows for which a condition is true."""

    input: "Node"
    condition: Expression


class Temporal(_Node, frozen=True, tag="temporal"):
    """Each row at the times in [lower, upper), which it says itself; a row whose bound is NULL is never there."""

    input: "Node"
    lower: Expression | None = None
    upper: Expression | None = None


class Join(_Node, frozen=True, tag="join"):
    """Pairs of rows that agree.

    Attributes:
        how: inner, left, right, full: as in SQL; semi, anti: rows of the left with and without partner; mark: the rows
            of the left, and whether they have one (true, false, or NULL for unknown); single: left, and a second
            partner is an error; unless: the rows of the left for which mark would be false.
        equal: pairs of expressions that are equal and not NULL; same: that are equal or both NULL.
        condition: what else must be true of a pair.
    """

    how: Literal["inner", "left", "right", "full", "semi", "anti", "mark", "single", "unless"]
    left: "Node"
    right: "Node"
    equal: tuple[tuple[Expression, Expression], ...] = ()
    same: tuple[tuple[Expression, Expression], ...] = ()
    condition: Expression | None = None


class Aggregate(_Node, frozen=True, tag="aggregate"):
    """Keys and aggregates of each group, and then what GROUPING says.

    Attributes:
        sets: numbers of keys, for each grouping set. One set without keys has one group, even of no rows.
        groupings: of each GROUPING(…), the numbers of its keys.
    """

    input: "Node"
    keys: tuple[Expression, ...]
    aggregates: tuple[Aggregation, ...]
    sets: tuple[tuple[int, ...], ...]
    groupings: tuple[tuple[int, ...], ...] = ()


class Distinct(_Node, frozen=True, tag="distinct"):
    """Each row once."""

    input: "Node"


class TopK(_Node, frozen=True, tag="top"):
    """Of each partition the rows from offset on, as many as limit, in an order; all columns break its ties."""

    input: "Node"
    order: tuple[Order, ...]
    limit: int | None = None
    offset: int = 0
    partition: tuple[Expression, ...] = ()


class SetOperation(_Node, frozen=True, tag="set"):
    """UNION, EXCEPT or INTERSECT ALL: multiplicities are added, subtracted down to 0, or the lesser one is taken."""

    how: Literal["union", "except", "intersect"]
    left: "Node"
    right: "Node"


class Window(_Node, frozen=True, tag="window"):
    """The rows, with a column for each window function behind."""

    input: "Node"
    calls: tuple[WindowCall, ...]


class Let(_Node, frozen=True, tag="let"):
    """Give a relation a number, by which the body refers to it."""

    number: int
    value: "Node"
    body: "Node"


class Ref(_Node, frozen=True, tag="ref"):
    """A relation by its number."""

    number: int
    types: tuple[str, ...]


class Recursive(_Node, frozen=True, tag="recursive"):
    """WITH RECURSIVE: the anchor, and what step makes of the rows that are new, until there are none.

    In step, the number refers to the rows of the round before. Without all, a row that was there is not new.
    """

    number: int
    all: bool
    anchor: "Node"
    step: "Node"


Node = (
    Scan
    | Values
    | Project
    | Filter
    | Temporal
    | Join
    | Aggregate
    | Distinct
    | TopK
    | SetOperation
    | Window
    | Let
    | Ref
    | Recursive
)


def children(node: Node) -> tuple[Node, ...]:
    """Return the relations that a node is made of."""
    found = (getattr(node, name, None) for name in ("input", "left", "right", "value", "body", "anchor", "step"))
    return tuple(each for each in found if each is not None)


def replaced(node: Node, by: Any) -> Node:
    """Return a node with each of its relations given to a function, and replaced by what that returns."""
    names = ("input", "left", "right", "value", "body", "anchor", "step")
    changes = {name: by(getattr(node, name)) for name in names if getattr(node, name, None) is not None}
    return msgspec.structs.replace(node, **changes) if changes else node


def expressions_of(node: Node) -> list[Expression]:
    """Return the expressions of a node itself, without those of the relations that it is made of."""
    found: list[Expression] = []

    def collect(value: Any) -> None:
        if isinstance(value, Column | Constant | Call):
            found.append(value)
        elif isinstance(value, Aggregation | WindowCall | Order):
            for name in value.__struct_fields__:
                collect(getattr(value, name))
        elif isinstance(value, tuple):
            for each in value:
                collect(each)

    for name in node.__struct_fields__:
        collect(getattr(node, name))
    return found


def columns_in(expression: Expression) -> set[int]:
    """Return the numbers of the columns that an expression reads."""
    match expression:
        case Column(index):
            return {index}
        case Call(_, _, arguments):
            return set().union(*map(columns_in, arguments))
    return set()


def moved(expression: Expression, to: Any) -> Expression:
    """Return an expression with each column replaced by what a function of its number returns."""
    match expression:
        case Column(index):
            found: Expression = to(index)
            return found
        case Call(function, type_, arguments, at):
            return Call(function, type_, tuple(moved(each, to) for each in arguments), at)
    return expression
