"""From the text of a query to the definition of a view."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches

from persist.codecs import CollectionSchema
from persist.errors import InvalidUsage
from persist.sql.adapt import Adapter
from persist.sql.algebra import Aggregate, Column, Filter, Node, Project, Temporal, TopK
from persist.sql.duck import bound, place, tables_of
from persist.sql.temporal import MARK
from persist.sql.types import of_arrow

Tables = dict[str, Sequence[tuple[str, str]]]
_NOT_STORED = ("interval", "null")


def mentioned(sql: str, names: Sequence[str]) -> list[str]:
    """Return the collections that a query mentions.

    Raises:
        InvalidUsage: one of them is not there, or it cannot be told which one is meant.
    """
    found = []
    for each, at in tables_of(sql).items():
        same = [name for name in names if name == each] or [name for name in names if name.lower() == each.lower()]
        if len(same) > 1:
            raise InvalidUsage(
                f"the query reads {each!r}, and there are the collections {sorted(same)}: write one of them"
            )
        if not same:
            close = get_close_matches(each, names, 3, 0.5)
            hint = f"; did you mean {', '.join(map(repr, close))}?" if close else f"; there are {sorted(names)[:20]}"
            raise InvalidUsage(
                f"the query reads {each!r}, and there is no collection of that name{hint}{place(sql, at)}"
            )
        found.append(same[0])
    return list(dict.fromkeys(found))


def columns_of(schema: CollectionSchema) -> list[tuple[str, str]]:
    """Return the columns of a collection that queries can read, with their types."""
    found = [(name, of_arrow(schema.arrow.field(name).type)) for name in schema.names]
    return [(name, kind) for name, kind in found if kind is not None]


def planned(sql: str, schemas: Mapping[str, CollectionSchema]) -> tuple[Node, list[tuple[str, str]]]:
    """Return the plan of a query over some collections, and its columns.

    Raises:
        InvalidUsage: it is no query, or needs what is not there or not supported.
    """
    tables: Tables = {name: columns_of(schema) for name, schema in schemas.items()}
    for name, columns in tables.items():
        if not columns:
            raise InvalidUsage(f"collection {name!r} has no column of a type that queries can read")
    units = {schema.timeline for schema in schemas.values()}
    unit = units.pop() if len(units) == 1 else None
    found = bound(sql, tables, f"CAST(error('{MARK}') AS {'BIGINT' if unit is None else 'TIMESTAMP'})")
    plan, width = Adapter(sql, tables, unit).adapted(found.plan)
    assert width == len(found.names), (width, found.names)
    return plan, list(zip(found.names, found.types, strict=True))


def check_columns(columns: Sequence[tuple[str, str]]) -> None:
    """Raise InvalidUsage unless a collection can have the columns of a query."""
    names = [name for name, _ in columns]
    for name, kind in columns:
        if names.count(name) > 1:
            raise InvalidUsage(f"the query has two columns {name!r}: give one of them another name with AS")
        if name in ("_time", "_diff"):
            raise InvalidUsage(f"a column of a view cannot be called {name!r}: give it another name with AS")
        if kind in _NOT_STORED:
            raise InvalidUsage(f"column {name!r} is of type {kind}, which collections cannot hold: cast it")


def asked_key(asked: Sequence[str]) -> tuple[str, ...]:
    """Return the columns that a caller wants for the key; one may be given by its name alone."""
    return tuple([asked] if isinstance(asked, str) else asked)


def key_of(plan: Node, columns: Sequence[tuple[str, str]], asked: Sequence[str] | None) -> tuple[str, ...]:
    """Return which columns are the key: those asked for, or what the query groups by, or all."""
    names = [name for name, _ in columns]
    if asked is not None:
        given = asked_key(asked)
        unknown = [name for name in given if name not in names]
        if unknown or not given or len(set(given)) < len(given):
            raise InvalidUsage(f"key={asked!r} are not distinct columns of the query, which are {names}")
        return given
    places: dict[int, int] = {at: at for at in range(len(names))}
    node = plan
    while isinstance(node, Project | Filter | Temporal | TopK):
        if isinstance(node, Project):
            columns_at = {at: each.index for at, each in enumerate(node.outputs) if isinstance(each, Column)}
            places = {columns_at[at]: to for at, to in places.items() if at in columns_at}
        node = node.input
    if isinstance(node, Aggregate) and len(node.sets) == 1 and node.keys:
        found = [places[at] for at in range(len(node.keys)) if at in places]
        if len(found) == len(node.keys):
            return tuple(names[at] for at in sorted(found))
    return tuple(names)
