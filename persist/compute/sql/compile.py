"""From the text of a query to the definition of a view."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches

import pyarrow as pa
import pyarrow.types as pat

from persist.codecs.types.schema import NAME_CHARS_MAX, CollectionSchema
from persist.codecs.types.sql_names import check_sql_names, fold_case
from persist.compute.query import match_collection, quote_name
from persist.compute.sql import algebra
from persist.compute.sql.adapt import Adapter
from persist.compute.sql.duck import Columns, bind_query, find_tables, mentions_column, show_position
from persist.compute.sql.emission import derive_lateness, split_emission
from persist.compute.sql.rows import fold_constant_call
from persist.compute.sql.temporal import MARK
from persist.compute.sql.types import Unreadable, from_arrow, to_arrow
from persist.core.errors import InvalidUsage
from persist.core.expression.term import Call, Lit, Place, Term, make_sql_call
from persist.core.log.fields import KeyedForm

_ROW_ID = "rowid"
_NO_FORMS: Mapping[str, KeyedForm] = {}
LEVELS_MAX = 250  # Rewriting takes two calls of Python for each, of the 1000 that may be under way at once.
_TOO_DEEP = (
    "the query nests deeper than views can take, which is about 100 subqueries or 200 operators in each other: make "
    "views of its parts, or write a long chain in parentheses, as (a + b) + (c + d)"
)
_STORED_INTERVAL = 'struct("months" int32,"days" int32,"micros" int64)'


def find_mentioned(sql: str, names: Sequence[str]) -> list[str]:
    """Return the collections that a query mentions."""
    collections = []
    with _refuse_deep_plans():
        tables = find_tables(split_emission(sql)[0])
    for path, at in tables.items():
        dotted = match_collection(path, names) if len(path) > 1 else None
        if dotted is not None:
            raise InvalidUsage(
                f"the query reads {'.'.join(path)}: in a view, write the name of a collection with a dot as one name, "
                f"{quote_name(dotted)}{show_position(sql, at)}"
            )
        table = path[-1]
        collection = match_collection([table], names)
        if collection is None:
            close = get_close_matches(table, names, 3, 0.5)
            hint = f"; did you mean {', '.join(map(repr, close))}?" if close else f"; there are {sorted(names)[:20]}"
            raise InvalidUsage(
                f"the query reads {table!r}, and there is no collection of that name{hint}{show_position(sql, at)}"
            )
        collections.append(collection)
    read: dict[str, str] = {}
    for collection in collections:
        collision = read.setdefault(fold_case(collection), collection)
        if collision != collection:
            raise InvalidUsage(
                f"the query reads {collision!r} and {collection!r}, which differ by case only, and SQL takes them "
                "for one: make a view of one of them, by another name"
            )
    return [*read.values()]


def list_columns(name: str, schema: CollectionSchema, *, names_row_id: bool) -> Columns:
    """Return a collection's columns with their types; with `names_row_id`, also DuckDB's `rowid`."""
    columns: list[tuple[str, str | Unreadable]] = []
    for column in schema.columns:
        kind = schema.arrow.field(column).type
        why = (
            f"column {column!r} of collection {name!r} is of type {kind}, which queries cannot read: name the columns "
            "that the query needs in place of *, or make a collection with this one as texts or numbers, by a dataflow"
        )
        columns.append((column, from_arrow(kind) or Unreadable(why, kind)))
    if names_row_id and _ROW_ID not in map(str.lower, schema.names):
        # DuckDB numbers the rows of its tables, and a column of that name hides the number.
        why = f"rowid: rows of collections have no number, and collection {name!r} has no column of that name"
        columns.append((_ROW_ID, Unreadable(f"{why}; use its key, which is {list(schema.key_names)}")))
    return columns


def plan_query(
    sql: str, schemas: Mapping[str, CollectionSchema], keyed: Mapping[str, KeyedForm] = _NO_FORMS
) -> tuple[algebra.Node, list[tuple[str, str]]]:
    """Return the plan of a query over some collections, and its columns.

    `keyed`: the declarations of keyed collections.
    """
    with _refuse_deep_plans():
        return _plan_uncached(sql, schemas, keyed)


def _plan_uncached(
    whole: str, schemas: Mapping[str, CollectionSchema], keyed: Mapping[str, KeyedForm]
) -> tuple[algebra.Node, list[tuple[str, str]]]:
    """Return the rewritten plan and the columns of a query."""
    sql, is_final = split_emission(whole)
    late_by = derive_lateness(sql, schemas, keyed) if is_final else None
    names_row_id = mentions_column(sql, _ROW_ID)
    for name, schema in schemas.items():
        check_sql_names(name, schema.arrow)
    tables = {name: list_columns(name, schema, names_row_id=names_row_id) for name, schema in schemas.items()}
    for name, columns in tables.items():
        if all(isinstance(kind, Unreadable) for _, kind in columns):
            raise InvalidUsage(f"collection {name!r} has no column of a type that queries can read")
    units = {schema.timeline for schema in schemas.values()}
    unit = units.pop() if len(units) == 1 else None
    now = f"CAST(error('{MARK}') AS {'BIGINT' if unit is None else 'TIMESTAMP'})"
    bound_query = bind_query(sql, tables, now, late_by)
    plan = _fold_constants(Adapter(sql, tables, unit).adapt(bound_query.plan))
    if _count_node_levels(plan) > LEVELS_MAX:
        raise InvalidUsage(_TOO_DEEP)
    return _replace_intervals(plan, bound_query.list_columns(algebra.infer_types(plan)))


def _fold_constants(plan: algebra.Node) -> algebra.Node:
    """Return a plan with its constant expressions computed.

    A value of a type that definitions do not spell exactly, such as a float or a list, is left as it is.
    """

    def fold_constants(term: Term) -> Term:
        """Fold a term if its value can be stored exactly."""
        if not isinstance(term, Call):
            return term
        call = Call(term.function, tuple(map(fold_constants, term.arguments)), term.options)
        folded = fold_constant_call(call)
        return folded if isinstance(folded, Lit) and _can_be_stored(folded.value.type) else call

    return algebra.replace_terms(algebra.replace_children(plan, _fold_constants), fold_constants)


def _can_be_stored(kind: pa.DataType) -> bool:
    """Return whether definitions store constants of a type exactly."""
    return bool(pat.is_integer(kind) or pat.is_boolean(kind) or pat.is_date32(kind) or pat.is_timestamp(kind))


def _replace_intervals(
    plan: algebra.Node, columns: list[tuple[str, str]]
) -> tuple[algebra.Node, list[tuple[str, str]]]:
    """Return a plan and its columns with intervals as structs."""
    if not any(kind == "interval" for _, kind in columns):
        return plan, columns
    outputs = (
        make_sql_call("parts_of_interval", to_arrow(_STORED_INTERVAL), Place(at)) if kind == "interval" else Place(at)
        for at, (_, kind) in enumerate(columns)
    )
    stored = [(name, _STORED_INTERVAL if kind == "interval" else kind) for name, kind in columns]
    return algebra.Project(plan, tuple(outputs)), stored


@contextmanager
def _refuse_deep_plans() -> Iterator[None]:
    """Context that raises InvalidUsage if a plan is too deep for recursion."""
    try:
        yield
    except RecursionError:
        raise InvalidUsage(_TOO_DEEP) from None


def _count_node_levels(node: algebra.Node) -> int:
    """Return how deep a plan is nested, where a relation counts twice."""
    depth = max(map(_count_levels, algebra.list_terms(node)), default=0)
    return 2 + max([depth, *map(_count_node_levels, algebra.list_inputs(node))])


def _count_levels(expression: Term) -> int:
    """Return how deep a term is nested."""
    return 1 + max(map(_count_levels, expression.arguments), default=0) if isinstance(expression, Call) else 1


def check_columns(columns: Sequence[tuple[str, str]]) -> None:
    """Raise InvalidUsage unless a collection can have the columns of a query."""
    names = [name for name, _ in columns]
    for name, kind in columns:
        if names.count(name) > 1:
            raise InvalidUsage(f"the query has two columns {name!r}: give one of them another name with AS")
        if len(name) > NAME_CHARS_MAX:
            raise InvalidUsage(
                f"column {name!r:.80} of the query has a name of {len(name)} characters, and the name of a column has "
                f"{NAME_CHARS_MAX} at most: give it another name with AS"
            )
        if name in ("_time", "_diff"):
            raise InvalidUsage(f"a column of a view cannot be called {name!r}: give it another name with AS")
        if kind == "null":
            raise InvalidUsage(f"column {name!r} is of type {kind}, which collections cannot hold: cast it")


def parse_key(asked: Sequence[str]) -> tuple[str, ...]:
    """Return a caller's key columns as a tuple; a single name is allowed.

    Raises InvalidUsage: `asked` is not a list of texts.
    """
    key = [asked] if isinstance(asked, str) else asked
    if not isinstance(key, (list, tuple)) or not all(isinstance(name, str) for name in key):
        raise InvalidUsage(f"key={asked!r:.100} is not a list of names of columns: give one, such as key=['id']")
    return tuple(key)


def choose_key(
    plan: algebra.Node, columns: Sequence[tuple[str, str]], asked: Sequence[str] | None, documents: Sequence[str] = ()
) -> tuple[str, ...]:
    """Return the key columns of a view: the caller's, or else the query's groups, or all but JSON columns."""
    names = [name for name, _ in columns]
    if asked is not None:
        key = parse_key(asked)
        unknown = [name for name in key if name not in names]
        if unknown or not key or len(set(key)) < len(key):
            raise InvalidUsage(f"key={asked!r} are not distinct columns of the query, which are {names}")
        return key
    places: dict[int, int] = {at: at for at in range(len(names))}
    node = plan
    while isinstance(node, algebra.Project | algebra.Filter | algebra.Temporal | algebra.TopK):
        if isinstance(node, algebra.Project):
            columns_at = {at: output.index for at, output in enumerate(node.outputs) if isinstance(output, Place)}
            places = {columns_at[at]: to for at, to in places.items() if at in columns_at}
        node = node.input
    if isinstance(node, algebra.Aggregate) and len(node.sets) == 1 and node.keys:
        key_places = [places[at] for at in range(len(node.keys)) if at in places]
        if len(key_places) == len(node.keys):
            return tuple(names[at] for at in sorted(key_places))
    return tuple(name for name in names if name not in documents) or tuple(names)
