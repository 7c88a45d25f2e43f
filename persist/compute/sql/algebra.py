"""The plan of a query as it is stored: relational algebra over numbered columns, with all types.

This, and not the text of the query, is what a view means. It is written once, when the view is created, and read at
every start; so another release of DuckDB, or none, changes nothing. Every value has a `kind` in the JSON, and the whole
is part of a `Definition` with a version (`persist.compute.sql.definition`).

Expressions are terms (`persist.core.expression`). Their columns are numbered from 0, and are the columns of the node's
input; in the condition of a join, the left columns and then the right ones. Relations are multisets without an order.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import and_
from typing import Any, Literal

import msgspec
import pyarrow as pa

from persist.compute.sql.types import infer_arrow_type, name_arrow_type, to_arrow
from persist.core.expression.evaluation import join_with_and
from persist.core.expression.term import Call, Lit, Place, Term, is_call, list_places, shift_columns

TRUE = Lit(pa.scalar(True))


class Order(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One key of an ORDER BY."""

    by: Term
    descending: bool = False
    nulls_first: bool = False


class Aggregation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One aggregate of a group of rows. `where`: its FILTER; `order`: its own ORDER BY."""

    function: str
    type: str
    arguments: tuple[Term, ...] = ()
    distinct: bool = False
    where: Term | None = None
    order: tuple[Order, ...] = ()


class Frame(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The rows of a partition that a window function uses for a row: from start to end, both inclusive.

    A bound is (mode, offset), or None for the first or last row of the partition. A negative offset is before the
    present row. "rows" counts rows; "groups" counts groups of rows that are equal in the order. ("range", 0) takes in
    all rows equal to the present one. ("value", 0) is the value that the term `start_at` or `end_at` has for that row.

    `exclude`: which rows are left out: "current row", "group", "ties".
    """

    start: tuple[Literal["rows", "range", "groups", "value"], int] | None = None
    end: tuple[Literal["rows", "range", "groups", "value"], int] | None = None
    start_at: Term | None = None
    end_at: Term | None = None
    exclude: Literal["", "current row", "group", "ties"] = ""


class WindowCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One column that a window function adds. `within`: the ORDER BY inside an aggregate's call."""

    function: str
    type: str
    arguments: tuple[Term, ...] = ()
    partition: tuple[Term, ...] = ()
    order: tuple[Order, ...] = ()
    frame: Frame = Frame()
    where: Term | None = None
    within: tuple[Order, ...] = ()
    distinct: bool = False
    ignore_nulls: bool = False


class _Node(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="kind"):
    """The base of relations: stored as JSON with its kind, without default values."""


class Scan(_Node, frozen=True, tag="scan"):
    """Some columns of a collection."""

    collection: str
    columns: tuple[str, ...]
    types: tuple[str, ...]


class Values(_Node, frozen=True, tag="values"):
    """Rows that the query itself holds."""

    types: tuple[str, ...]
    rows: tuple[tuple[Term, ...], ...]


class Project(_Node, frozen=True, tag="project"):
    """Columns that terms compute from the input's columns."""

    input: "Node"
    outputs: tuple[Term, ...]


class Filter(_Node, frozen=True, tag="filter"):
    """The rows for which a condition is true."""

    input: "Node"
    condition: Term


class Temporal(_Node, frozen=True, tag="temporal"):
    """Each row at the times in [lower, upper), which are its own columns; a row with a NULL bound never appears."""

    input: "Node"
    lower: Term | None = None
    upper: Term | None = None


class Join(_Node, frozen=True, tag="join"):
    """Pairs of left and right rows that meet conditions, or left rows by their partners.

    Attributes:
        how: inner, left, right, full: as in SQL; semi, anti: rows of the left with and without partner; mark: the rows
            of the left, and whether they have one (true, false, or NULL for unknown); single: left, and a second
            partner is an error; unless: the rows of the left for which mark would be false.
        equal: pairs of expressions that are equal and not NULL; same: that are equal or both NULL.
        condition: a further condition on a pair.
    """

    how: Literal["inner", "left", "right", "full", "semi", "anti", "mark", "single", "unless"]
    left: "Node"
    right: "Node"
    equal: tuple[tuple[Term, Term], ...] = ()
    same: tuple[tuple[Term, Term], ...] = ()
    condition: Term | None = None


class Aggregate(_Node, frozen=True, tag="aggregate"):
    """Keys and aggregates of each group, and then the GROUPING values.

    Attributes:
        sets: numbers of keys, for each grouping set. One set without keys has one group, even of no rows.
        groupings: for each GROUPING(…), the numbers of its keys.
        complete: aggregates are counts and totals, and a group exists while one of them is not 0
            (`persist.compute.sql.groups`). Users' queries never have this.
    """

    input: "Node"
    keys: tuple[Term, ...]
    aggregates: tuple[Aggregation, ...]
    sets: tuple[tuple[int, ...], ...]
    groupings: tuple[tuple[int, ...], ...] = ()
    complete: bool = False


class Distinct(_Node, frozen=True, tag="distinct"):
    """Each row once."""

    input: "Node"


class TopK(_Node, frozen=True, tag="top"):
    """The first `limit` rows of each partition in an order, after `offset` others; all columns break ties.

    `counted`: the function whose values `limit` bounds, such as "rank" or "dense_rank".
    """

    input: "Node"
    order: tuple[Order, ...]
    limit: int | None = None
    offset: int = 0
    partition: tuple[Term, ...] = ()
    counted: Literal["row_number", "rank", "dense_rank"] = "row_number"


class Unnest(_Node, frozen=True, tag="unnest"):
    """Each row for each element of its lists, followed by a column for each list.

    Shorter lists are filled up with NULL. A row without elements is left out.
    """

    input: "Node"
    lists: tuple[Term, ...]


class SetOperation(_Node, frozen=True, tag="set"):
    """UNION, EXCEPT or INTERSECT ALL: multiplicities are added, subtracted down to 0, or the lesser one is taken."""

    how: Literal["union", "except", "intersect"]
    left: "Node"
    right: "Node"


class Window(_Node, frozen=True, tag="window"):
    """The rows, followed by a column for each window function."""

    input: "Node"
    calls: tuple[WindowCall, ...]


class Let(_Node, frozen=True, tag="let"):
    """A common relation: `body` refers to `value` by its number."""

    number: int
    value: "Node"
    body: "Node"


class Ref(_Node, frozen=True, tag="ref"):
    """A reference to a relation of a `Let` or `Recursive`, by its number."""

    number: int
    types: tuple[str, ...]


class Recursive(_Node, frozen=True, tag="recursive"):
    """WITH RECURSIVE: the anchor, and `step` of the new rows until none are left.

    In `step`, the number refers to the rows that the round before has added. Unless `all`, only rows that no earlier
    round had are added.
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
    | Unnest
    | Let
    | Ref
    | Recursive
)


_PARTS = ("input", "left", "right", "value", "body", "anchor", "step")


def list_inputs(node: Node) -> tuple[Node, ...]:
    """Return the inputs of a node."""
    parts = (getattr(node, name, None) for name in _PARTS)
    return tuple(part for part in parts if part is not None)


def iterate_nodes(node: Node) -> Iterator[Node]:
    """Yield a relation, and all relations below it."""
    yield node
    for child in list_inputs(node):
        yield from iterate_nodes(child)


def count_cross_joins(plan: Node) -> int:
    """Return how many inner joins of a plan have no key."""
    return sum(
        isinstance(node, Join) and node.how == "inner" and not (node.equal or node.same) for node in iterate_nodes(plan)
    )


def replace_children(node: Node, by: Callable[[Any], Node]) -> Any:
    """Return a node with a function applied to each of its inputs."""
    changes = {name: by(getattr(node, name)) for name in _PARTS if getattr(node, name, None) is not None}
    return msgspec.structs.replace(node, **changes) if changes else node


def list_terms(node: Node) -> list[Term]:
    """Return the terms of a node itself, without those of its inputs."""
    terms: list[Term] = []

    def collect(term: Term) -> Term:
        terms.append(term)
        return term

    replace_terms(node, collect)
    return terms


def iterate_terms(node: Node) -> Iterator[Term]:
    """Yield the terms of a relation, and of all relations below it."""
    for relation in iterate_nodes(node):
        yield from list_terms(relation)


def replace_terms(value: Any, by: Callable[[Term], Term]) -> Any:
    """Return a node with a function applied to each of its own terms."""
    if isinstance(value, Term):
        return by(value)
    if isinstance(value, tuple):
        return tuple(replace_terms(item, by) for item in value)
    if not isinstance(value, msgspec.Struct):
        return value
    parts = [name for name in value.__struct_fields__ if name not in _PARTS]
    return msgspec.structs.replace(value, **{name: replace_terms(getattr(value, name), by) for name in parts})


def filter_rows(node: Node, conditions: Sequence[Term]) -> Node:
    """Return the rows of a relation for which some conditions hold."""
    return Filter(node, join_with_and(conditions)) if conditions else node


def split_by_side(conditions: Sequence[Term], width: int) -> tuple[list[Term], list[Term], list[Term]]:
    """Split conditions into those on left columns only, those on right columns only (renumbered), and the others."""
    lefts, rights, crossing = [], [], []
    for part in conditions:
        reads = list_places(part)
        if reads and max(reads) < width:
            lefts.append(part)
        elif reads and min(reads) >= width:
            rights.append(shift_columns(part, -width))
        else:
            crossing.append(part)
    return lefts, rights, crossing


def split_equality(condition: Term, width: int) -> tuple[Term, Term] | None:
    """Return the sides of a condition `left = right`; None for other conditions."""
    if not (isinstance(condition, Call) and is_call(condition, "equal")):
        return None
    left_term, right_term = condition.arguments
    if list_places(left_term) and list_places(right_term):
        if min(list_places(left_term)) >= width:
            left_term, right_term = right_term, left_term
        if max(list_places(left_term)) < width <= min(list_places(right_term)):
            return left_term, shift_columns(right_term, -width)
    return None


def make_inner_join(
    left: Node,
    right: Node,
    conditions: Sequence[Term],
    equal: Sequence[tuple[Term, Term]] = (),
    same: Sequence[tuple[Term, Term]] = (),
) -> Join:
    """Return an inner join under some conditions; equalities between the sides become its keys."""
    pairs = [split_equality(part, count_columns(left)) for part in conditions]
    residual = [part for part, pair in zip(conditions, pairs, strict=True) if pair is None]
    keys = (*equal, *(pair for pair in pairs if pair is not None))
    return Join("inner", left, right, keys, tuple(same), join_with_and(residual) if residual else None)


def count_columns(node: Node) -> int:
    """Return how many columns a relation has."""
    return len(infer_types(node))


def infer_types(node: Node) -> tuple[str, ...]:
    """Return the types of the columns of a relation."""
    match node:
        case Scan(_, _, types) | Values(types) | Ref(_, types):
            return types
        case Project(input_, outputs):
            return infer_term_types(outputs, infer_types(input_))
        case Filter(input_) | Temporal(input_) | Distinct(input_) | TopK(input_):
            return infer_types(input_)
        case Join(how, left, right):
            if how in ("semi", "anti", "unless"):
                return infer_types(left)
            return (*infer_types(left), *(("boolean",) if how == "mark" else infer_types(right)))
        case Aggregate(input_, keys, aggregates, _, groupings):
            aggregate_types = (*(aggregation.type for aggregation in aggregates), *("int64" for _ in groupings))
            return (*infer_term_types(keys, infer_types(input_)), *aggregate_types)
        case SetOperation(_, left) | Recursive(_, _, left):
            return infer_types(left)
        case Window(input_, calls):
            return (*infer_types(input_), *(call.type for call in calls))
        case Unnest(input_, lists):
            input_types = infer_types(input_)
            elements = (to_arrow(kind).value_type for kind in infer_term_types(lists, input_types))
            return (*input_types, *map(name_arrow_type, elements))
        case Let(_, _, body):
            return infer_types(body)
    raise AssertionError(node)


def infer_term_types(expressions: Iterable[Term], given: Sequence[str]) -> tuple[str, ...]:
    """Return the types of expressions; given: the types of the columns."""
    return tuple(
        given[term.index] if isinstance(term, Place) else name_arrow_type(infer_arrow_type(term))
        for term in expressions
    )


def find_documents(
    node: Node, documents: Mapping[str, Sequence[str]], known: Mapping[int, tuple[bool, ...]]
) -> tuple[bool, ...]:
    """Return for each column whether it holds only unchanged JSON documents of a collection, and NULL.

    Args:
        documents: the JSON columns of each collection.
        known: this function's result for each relation that has a number.
    """
    find = partial(find_documents, documents=documents, known=known)
    match node:
        case Scan(collection, columns):
            flags = [column in documents[collection] for column in columns]
        case Project(input_, outputs):
            below = find(input_)
            flags = [isinstance(output, Place) and below[output.index] for output in outputs]
        case Filter(input_) | Temporal(input_) | Distinct(input_) | TopK(input_) | Window(input_) | Unnest(input_):
            flags = [*find(input_)]
        case Join(how, left, right):
            flags = [*find(left), *(() if how in ("semi", "anti", "mark", "unless") else find(right))]
        case SetOperation(_, left, right):
            flags = [*map(and_, find(left), find(right))]
        case Let(number, value, body):
            return find_documents(body, documents, {**known, number: find(value)})
        case Ref(number) if number in known:
            return known[number]
        case _:
            flags = []
    return (*flags, *[False] * (count_columns(node) - len(flags)))


def is_empty_without(node: Node, empty: frozenset[int]) -> bool:
    """Return whether a relation is surely empty if the relations of these numbers are."""
    match node:
        case Scan():
            return False
        case Values(_, rows):
            return not rows
        case Ref(number):
            return number in empty
        case Aggregate(input_, _, _, sets):
            return all(sets) and is_empty_without(input_, empty)
        case Join(how, left, right):
            sides = is_empty_without(left, empty), is_empty_without(right, empty)
            return any(sides) if how in ("inner", "semi") else all(sides) if how == "full" else sides[how == "right"]
        case SetOperation(how, left, right):
            parts = is_empty_without(left, empty), is_empty_without(right, empty)
            return all(parts) if how == "union" else parts[0] or (how == "intersect" and parts[1])
        case Let(number, value, body):
            return is_empty_without(body, empty | {number} if is_empty_without(value, empty) else empty)
        case Recursive(_, _, anchor):
            return is_empty_without(anchor, empty)
    return all(is_empty_without(child, empty) for child in list_inputs(node))


def unique_columns(node: Node) -> list[frozenset[int]]:
    """Return sets of columns whose values surely do not repeat."""
    match node:
        case Aggregate(_, keys, _, sets) if len(sets) == 1:
            return [frozenset(range(len(keys)))]
        case Filter(input_) | Temporal(input_):
            return unique_columns(input_)
        case Let(_, _, body):
            return unique_columns(body)
        case Project(input_, outputs):
            places = {
                output.index: at for at, output in reversed(list(enumerate(outputs))) if isinstance(output, Place)
            }
            unique_sets = unique_columns(input_)
            return [frozenset(places[at] for at in columns) for columns in unique_sets if columns <= places.keys()]
        case Join(how, left) if how in ("semi", "anti", "mark", "single", "unless"):
            return unique_columns(left)
        case Join(how, left) if how in ("inner", "left") and has_one_partner(node):
            return unique_columns(left)
    return []


def has_one_partner(join: Join) -> bool:
    """Return whether each left row has at most one partner."""
    keys = {right_key.index for _, right_key in (*join.equal, *join.same) if isinstance(right_key, Place)}
    return any(unique <= keys for unique in unique_columns(join.right))
