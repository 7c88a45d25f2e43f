"""The definition of an index, its creation and its removal.

    index = a plain collection of the library's own
        name    .index.<id of the collection>.<ids of the indexed columns>
        key     the indexed columns
        value   all other columns of the collection, those of its key first
        view    { version, number, inputs: [id], index: [ids of the columns as the index has them] }

An index holds whole records, not only keys. Records that agree in an indexed column are scattered in the collection's
order: with keys alone, a look-up of a thousand of them would read nearly all row groups of a collection of ten million.
In the index they are adjacent. So an index takes as much room as its collection.

Its contents are valid as of one time, its last sealed one, so its history is given up at once. To read the
collection at another time, the changes in between are added to the index's contents, or subtracted. So an index may
be older or newer than the read, and a client refreshes it when it pays.

A permanent hold keeps the changes of the collection after that time. It also keeps the indexed columns from being
dropped. Columns are identified by their ids, so a rename needs no change. After columns were added, dropped or widened,
the index's records do not cancel with new ones: the next refresh rebuilds the index.
"""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from persist.codecs.types.arrow_types import format_type, is_flat
from persist.codecs.types.schema import CollectionSchema
from persist.core.errors import CollectionNotFound, InvalidUsage
from persist.core.log import kinds
from persist.core.names import INDEX_PREFIX, OWN_PREFIX, make_index_name
from persist.core.state_rules.contents import CollectionState, get_last_sealed
from persist.engine.location.arrangements import list_arrangements, make_drop_steps
from persist.engine.location.collection_handle import CollectionHandle
from persist.engine.location.engine import Engine
from persist.engine.write.commit_future import CommitFuture

VERSION = 1


@dataclass(frozen=True, slots=True)
class Index:
    """An index of a collection, by the state that this client knows.

    Attributes:
        handle: the collection that stores the index.
        contents: the state of that collection.
        ids: the ids of the indexed collection's columns, in the order of the index's columns.
    """

    handle: CollectionHandle
    contents: CollectionState
    ids: tuple[int, ...]

    @property
    def as_of(self) -> int:
        """The last time up to which the index equals its collection; -1 before a seal."""
        return get_last_sealed(self.contents)

    @property
    def indexed_ids(self) -> tuple[int, ...]:
        """The ids of the indexed columns."""
        return self.ids[: len(self.handle.schema.key_names)]

    def map_names(self, schema: CollectionSchema) -> dict[str, str]:
        """Return the index's column names by the collection's, for columns that are unchanged."""
        held_names = {
            id_: (name, kind)
            for id_, name, kind in zip(self.ids, self.handle.schema.names, self.handle.schema.shapes, strict=True)
        }
        return {
            name: held_names[id_][0]
            for id_, name, kind in zip(schema.ids, schema.names, schema.shapes, strict=True)
            if id_ in held_names and held_names[id_][1] == kind
        }

    def name_columns(self, schema: CollectionSchema) -> tuple[str, ...] | None:
        """Return the indexed columns' names in a version of the schema; None if one is missing."""
        names = {held_names: name for name, held_names in self.map_names(schema).items()}
        columns = tuple(names.get(held_names, "") for held_names in self.handle.schema.key_names)
        return columns if all(columns) else None

    def fits(self, schema: CollectionSchema) -> bool:
        """Return whether the index has exactly the columns of a schema, unchanged."""
        return len(self.map_names(schema)) == len(schema.names) == len(self.ids)


@dataclass(frozen=True, slots=True)
class IndexInfo:
    """A description of an index for users.

    Attributes:
        columns: the indexed columns, by their current names.
        as_of: the time as of which it equals its collection; -1 if nothing is sealed yet.
        rows: how many updates it has, including updates that cancel out.
        bytes: its size in the store.
    """

    columns: tuple[str, ...]
    as_of: int
    rows: int
    bytes: int

    @classmethod
    def of(cls, index: Index, handle: CollectionHandle) -> "IndexInfo":
        """Return a description of an index of a collection."""
        schema = handle.get_known_state().schema
        names = dict(zip(schema.ids, schema.names, strict=True))
        parts = index.contents.parts
        columns = tuple(names.get(id_, "?") for id_ in index.indexed_ids)
        return cls(columns, index.as_of, sum(part.rows for part in parts), sum(part.bytes for part in parts))


def load_indexes(handle: CollectionHandle) -> list[Index]:
    """Return the indexes of a collection that this client knows of."""
    every = list_arrangements(handle.engine, handle.id, [INDEX_PREFIX])
    return [index for contents in every if (index := _parse_index(handle.engine, contents)) is not None]


def list_indexed_columns(handle: CollectionHandle) -> tuple[tuple[str, ...], ...]:
    """Return the columns of each index of a collection, by their current names."""
    names = (index.name_columns(handle.get_known_state().schema) for index in load_indexes(handle))
    return tuple(columns for columns in names if columns is not None)


def load_index(engine: Engine, id_: str) -> Index | None:
    """Return the index with an id; None if it does not exist any more."""
    try:
        return _parse_index(engine, engine.follower.require(id_, id_))
    except CollectionNotFound:
        return None


def _parse_index(engine: Engine, contents: CollectionState) -> Index | None:
    """Return an index from its collection's state; None if it is of a later version."""
    ids = read_indexed_ids(contents)
    id_ = contents.id
    return None if ids is None else Index(CollectionHandle(engine, id_, contents.name, contents.schema), contents, ids)


def read_indexed_ids(contents: CollectionState) -> tuple[int, ...] | None:
    """Return the column ids of an index; None for another collection or a later version."""
    stored = contents.view or {}
    return tuple(stored["index"]) if stored.get("version") == VERSION and "index" in stored else None


def check_columns(handle: CollectionHandle, schema: CollectionSchema, columns: Sequence[str]) -> tuple[str, ...]:
    """Check the columns for an index, and return them."""
    names = schema.check_distinct("columns", columns)
    if not names:
        raise InvalidUsage(
            'index() was given no column: name those that are looked up by, such as index("customer_id")'
        )
    if handle.name.startswith(OWN_PREFIX):
        raise InvalidUsage(f"collection {handle.name!r} is the library's own, and gets no index")
    for name in names:
        if not is_indexable(schema, name):
            raise InvalidUsage(
                f"column {name!r} is of type {format_type(schema.declared.field(name).type)}, which has no order "
                "that is looked up by: index columns of numbers, texts, bytes, dates or times"
            )
    if names == schema.key_names:
        raise InvalidUsage(f"collection {handle.name!r} is in the order of {list(names)} itself, so it needs no index")
    return names


def is_indexable(schema: CollectionSchema, column: str) -> bool:
    """Return whether an index can be in the order of a column."""
    return column not in schema.json and is_flat(schema.arrow.field(column).type)


def draft_index(
    handle: CollectionHandle, schema: CollectionSchema, wanted: Sequence[int]
) -> tuple[Index, kinds.Create]:
    """Return a new index, and the step that creates it.

    Args:
        schema: the newest schema of the collection.
        wanted: the ids of the columns to index.
    """
    fields = dict(zip(schema.ids, (schema.declared.field(name) for name in schema.names), strict=True))
    ids = (*wanted, *(id_ for id_ in schema.ids if id_ not in wanted))
    sides = [pa.schema([fields[id_] for id_ in side]) for side in (wanted, ids[len(wanted) :])]
    index_schema = CollectionSchema.of(sides[0], sides[1] if len(sides[1]) else None, schema.timeline)
    numbers = dict(schema.inner)  # By them it knows the fields inside of columns when these change.
    inner = tuple((at, numbers[id_]) for at, id_ in enumerate(ids) if id_ in numbers)
    index_schema = replace(index_schema, inner=inner)
    id_, name = uuid.uuid4().hex, make_index_name(handle.id, wanted)
    view: dict[str, Any] = {"version": VERSION, "number": 1, "inputs": [handle.id], "index": [*ids]}
    contents = CollectionState(id_, name, index_schema.to_json(), view=view)
    return Index(CollectionHandle(handle.engine, id_, name, index_schema), contents, ids), kinds.Create(
        id_, name, index_schema.to_json(), view=view
    )


def drop_index(handle: CollectionHandle, columns: Sequence[str]) -> CommitFuture:
    """Remove the index of a collection by some columns; see `Collection.drop_index`."""
    handle.engine.writer("drop_index")
    contents = handle.contents()
    schema = contents.schema
    names = schema.check_distinct("columns", columns)
    indexes = load_indexes(handle)
    for index in indexes:
        if index.name_columns(schema) == names or list_ids(schema, names) == index.indexed_ids:
            return handle.engine.submit("drop_index", *make_drop_steps(handle.engine, [index.contents]))
    present = [list(index.name_columns(schema) or ()) for index in indexes]
    raise InvalidUsage(
        f"collection {handle.name!r} has no index by {list(names)}; it has {present or 'none'}: name the columns of one"
    )


def list_ids(schema: CollectionSchema, names: Sequence[str]) -> tuple[int, ...]:
    """Return the ids of some columns of a schema, by their names."""
    ids = dict(zip(schema.names, schema.ids, strict=True))
    return tuple(ids[name] for name in names)
