"""The evolution of schemas: columns with ids, numbered versions, and reads of parts under another version.

A collection begins with version 1 of its schema. Each change creates the next version, and each part names the version
with which it was written. A change never rewrites parts. A reader of a part under another version gets its columns by
id, under their present names, widened where the type was widened, and with the default for columns younger than the
part. This conversion is called *lifting*.

Invariants:
- a column has its id for ever; a reused name is another column with another id, and no id is reused;
- fields inside of structs, lists and maps have numbers for ever (`persist.codecs.nested`);
- a default belongs to a column from its first version on, as long as it exists. Its type widens with the column's;
- lifting never invents a value: if a part lacks a column because it was written or merged after the column was dropped,
  that is an error, never NULL.

`docs/inside/format.md` ("Versions") defines which version may follow another one.

A read with an older version works with the newest types, and narrows its results at the end (`find_newest_types`,
`cast_columns`): a part holds updates of many times, and values outside the result need not fit.

Lifting preserves the equality of records, unless a column is left out: then records that differ in the part may become
equal (`Lift.is_exact` is False).
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import msgspec
import pyarrow as pa
import pyarrow.types as pt

from persist.codecs.errors import InvalidUpdate, SchemaMismatch, did_you_mean
from persist.codecs.nested import (
    COLUMN,
    InnerChanges,
    Node,
    change_node,
    find_differences,
    get_column_node,
    is_extended,
    iterate_column_nodes,
    list_all_ids,
    make_node,
    quote_name,
    reshape_column,
)
from persist.codecs.order.ordering import make_canonical
from persist.codecs.types.arrow_types import JSON, decode_scalar, encode_scalar, format_type, is_flat
from persist.codecs.types.casts import cast_column
from persist.codecs.types.documents import check_documents
from persist.codecs.types.python_types import get_stored_type
from persist.codecs.types.schema import CollectionSchema, Side, check_field, check_width
from persist.codecs.types.values import to_field
from persist.codecs.types.widening import is_wider, is_written_alike, widen_column

DEFAULT_BYTES_MAX = 64 << 10  # The limit for all columns, as JSON. Checked for new defaults, not for stored ones.


@dataclass(frozen=True, slots=True)
class Lift:
    """Converts parts of one schema version to another version.

    Attributes:
        stored: the schema of the parts.
        wanted: the reader's schema.
        is_exact: whether different records of the part stay different.
        sources: the part's names of the columns that it has.
        reshaped: columns whose inner fields differ: the part's and the reader's.
    """

    stored: CollectionSchema
    wanted: CollectionSchema
    is_exact: bool
    sources: Mapping[str, str]
    reshaped: Mapping[str, tuple[Node, Node]]

    @property
    def is_younger(self) -> bool:
        """Whether columns that the part lacks are newer than the part."""
        return self.wanted.version > self.stored.version

    def find_source(self, name: str) -> str | None:
        """Return a column's name in the part; None if the column is newer."""
        name_in_part = self.sources.get(name)
        if self.is_younger:
            return name_in_part
        shapes = self.reshaped.get(name)
        lost = [] if shapes is None else [path for path, old, _ in find_differences(*shapes) if old is None]
        if name_in_part is None or lost:
            what = f"column {name!r}" if name_in_part is None else f"field {lost[0]!r}"
            raise SchemaMismatch(
                f"{what} of schema version {self.wanted.version} is gone: rows that are to be read were "
                f"written or compacted with version {self.stored.version}, which does not have it. Read without this "
                "column, or with the newest schema; whoever follows changes begins again."
            )
        return name_in_part

    def list_source_columns(self, columns: Sequence[str]) -> list[str]:
        """Return the part's columns from which some result columns are computed."""
        sources = (self.find_source(name) for name in columns)
        return list(dict.fromkeys(name for name in sources if name is not None))

    def adapt_table(self, table: pa.Table, columns: Sequence[str]) -> pa.Table:
        """Compute columns from the part's `list_source_columns`; cost: one pass if types differ."""
        arrow = self.wanted.arrow
        fields = [arrow.field(name) for name in columns]
        lifted_columns = [self._adapt_column(table, field) for field in fields]
        return pa.Table.from_arrays(lifted_columns, schema=pa.schema(fields)) if lifted_columns else table.select([])

    def get_default(self, name: str) -> pa.Scalar:
        """Return a column's value in all rows older than the column."""
        return read_default(self.wanted, name)

    def _adapt_column(self, table: pa.Table, field: pa.Field) -> pa.ChunkedArray:
        """Return a result column: the part's, converted, or the default."""
        source = self.find_source(field.name)
        if source is None:
            return pa.chunked_array([pa.repeat(self.get_default(field.name), len(table))], field.type)
        column = table.column(source)
        if column.type == field.type and field.name not in self.reshaped:
            return column
        return _convert_to_type(column, field, self.wanted.version, self.reshaped.get(field.name))


def make_lift(schema: CollectionSchema, version: int) -> Lift | None:
    """Return the conversion of a version's parts to a schema; None if the versions are equal."""
    if version == schema.version and not schema.is_widened:
        return None
    stored = next((known_schema for known_schema in schema.known if known_schema.version == version), None)
    if stored is None:
        raise ValueError(f"it has schema version {version}, and the collection has none of that number")
    return _build_lift(stored, schema)


@lru_cache(maxsize=256)
def _build_lift(stored: CollectionSchema, requested: CollectionSchema) -> Lift:
    """Match the columns of two versions by id; return their conversion."""
    named = dict(zip(stored.ids, stored.names, strict=True))
    sources = {name: named[id_] for id_, name in zip(requested.ids, requested.names, strict=True) if id_ in named}
    stored_shapes = dict(zip(stored.names, stored.shapes, strict=True))
    reshaped = {
        name: (get_column_node(stored, sources[name]), get_column_node(requested, name))
        for name, shape in zip(requested.names, requested.shapes, strict=True)
        if name in sources and pt.is_nested(shape[0]) and stored_shapes[sources[name]] != shape
    }
    sources |= {"_time": "_time", "_diff": "_diff"}
    return Lift(stored, requested, list_all_ids(stored) <= list_all_ids(requested), sources, reshaped)


def find_newest_types(schema: CollectionSchema) -> CollectionSchema:
    """Return a version of a schema with the newest type of each column.

    The result is the schema itself if no column was widened. Types only become wider, so values of all versions fit.
    """
    return schema.compute_once(_build_newest_types)


def _build_newest_types(schema: CollectionSchema) -> CollectionSchema:
    """Compute the result of `find_newest_types`."""
    last = {
        id_: (version, name) for version in schema.known for id_, name in zip(version.ids, version.names, strict=True)
    }
    columns = [
        Column(id_, field.name, _find_newest_type(schema, field, last.get(id_)), field.nullable)
        for id_, field in zip(schema.ids, schema.declared, strict=True)
    ]
    if all(column.kind == f.type for column, f in zip(columns, schema.declared, strict=True)):
        return schema
    keys = len(schema.key_names)
    has_default = dict(schema.defaults)
    defaults = [
        (column.id, encode_scalar(_widen_default(column.name, read_default(schema, column.name), column.kind)))
        for column in columns
        if column.id in has_default
    ]
    return replace(
        schema,
        key=_rebuild_side(schema.key, columns[:keys]),
        value=_rebuild_side(schema.value, columns[keys:]),
        defaults=tuple((id_, msgspec.json.encode(value).decode()) for id_, value in sorted(defaults)),
        is_widened=True,
    )


def _find_newest_type(
    schema: CollectionSchema, field: pa.Field, last: tuple[CollectionSchema, str] | None
) -> pa.DataType:
    """Return a column's newest type. `last`: its last version, and its name there."""
    if last is None or not pt.is_nested(field.type):
        return field.type if last is None else last[0].declared.field(last[1]).type
    # The last version of each field, because it may have been dropped before the last version of the column.
    widest = {node.number: node.kind for node in iterate_column_nodes(schema, field.name) if not node.inner}
    return change_node(get_column_node(schema, field.name), InnerChanges(widen=widest), iter(())).kind


def cast_columns(table: pa.Table, columns: Sequence[str], schema: CollectionSchema) -> pa.Table:
    """Cast some columns of a table to their types in a schema."""
    former_documents = {*schema.json} - {*find_newest_types(schema).json}
    for name in columns:
        at, target = table.schema.get_field_index(name), schema.arrow.field(name)
        if table.schema.types[at] != target.type:
            table = table.set_column(at, target, _convert_to_type(table.column(at), target, schema.version))
        elif name in former_documents:
            try:
                check_documents(table.column(at), name)
            except InvalidUpdate as error:
                raise _make_narrow_error(schema.declared.field(name), schema.version, error) from error
    return table


def _convert_to_type(
    column: pa.ChunkedArray, field: pa.Field, version: int, shapes: tuple[Node, Node] | None = None
) -> pa.ChunkedArray:
    """Cast a column to a field's type without changing values. `shapes`: nodes, if fields differ."""
    try:
        if shapes is None and pt.is_nested(field.type):  # It has the same fields in other types.
            shapes = make_node("", column.type, count()), make_node("", field.type, count())
        return widen_column(column, field.type) if shapes is None else reshape_column(column, *shapes, widen_column)
    except pa.ArrowException as error:
        raise _make_narrow_error(field, version, error) from error


def _make_narrow_error(field: pa.Field, version: int, why: Exception) -> SchemaMismatch:
    """Return the error for values that an older, narrower type cannot hold."""
    kind = "json" if field.type == JSON else field.type
    return SchemaMismatch(
        f"column {field.name!r} holds values that its type {kind} of schema version {version} cannot hold: {why}. "
        "Read with the newest schema."
    )


def read_default(schema: CollectionSchema, name: str) -> pa.Scalar:
    """Return a column's value in records that are older than the column."""
    kind = schema.arrow.field(name).type
    written = dict(schema.defaults).get(schema.ids[schema.names.index(name)])
    # Not pa.scalar(None, kind), which imports pandas: half a second.
    return pa.nulls(1, kind)[0] if written is None else decode_scalar(msgspec.json.decode(written), kind)


def decode_defaults(schema: CollectionSchema) -> dict[str, pa.Scalar]:
    """Return the defaults of columns by name."""
    names = dict(zip(schema.ids, schema.names, strict=True))
    return {
        names[id_]: decode_scalar(msgspec.json.decode(written), schema.arrow.field(names[id_]).type)
        for id_, written in schema.defaults
    }


def check_successor(
    before: CollectionSchema, after: CollectionSchema, used: Set[int | tuple[int, int]] | None = None
) -> None:
    """Check that a schema may follow another one.

    `used`: the ids of columns and fields in all earlier versions (`list_all_ids`); None for those of `before.known`.
    """
    if after.version != before.version + 1:
        raise SchemaMismatch(f"version {after.version} of the schema does not follow version {before.version}")
    if after.timeline != before.timeline:
        raise SchemaMismatch("the timeline of a collection cannot change: its times would mean other moments")
    keys = len(before.key_names)
    if after.ids[: len(after.key_names)] != before.ids[:keys]:
        raise SchemaMismatch(
            "the key columns of a collection stay the same, in their order: the rows of all parts are in the order of "
            "keys. Write what has another key into another collection."
        )
    if _list_codecs(before) != _list_codecs(after):
        raise SchemaMismatch("the column of a codec cannot change: use another collection")
    if used is None:
        used = {id_ for version in before.known for id_ in list_all_ids(version)}
    names = dict(zip(before.ids, before.names, strict=True))
    if _list_required_ids(after) != [id_ for id_ in _list_required_ids(before) if id_ in after.ids]:
        raise SchemaMismatch("whether a column may be NULL cannot change; added columns may be NULL")
    for at, (id_, name) in enumerate(zip(after.ids, after.names, strict=True)):
        if id_ in names:
            was, now = get_column_node(before, names[id_]), get_column_node(after, name)
            _check_type_change(was, now, name, is_key=at < keys, is_column=True)
            _check_default(before, after, id_)
        elif id_ in used or id_ < 0:
            raise SchemaMismatch(f"column {name!r} has the id {id_}, which is that of another column")
        read_default(after, name)
    if numbers := {pair for pair in list_all_ids(after) - list_all_ids(before) if pair in used}:
        raise SchemaMismatch(f"fields inside of columns have numbers that others had: {sorted(numbers, key=str)}")
    check_width([*after.key.fields, *after.value.fields])


def _check_default(before: CollectionSchema, after: CollectionSchema, id_: int) -> None:
    """Raise SchemaMismatch if a column's default changes, because older records would change."""
    has = id_ in dict(before.defaults)
    is_kept = has == (id_ in dict(after.defaults))
    name = after.names[after.ids.index(id_)]
    if has and is_kept:
        now = read_default(after, name)
        then = _widen_default(name, read_default(before, before.names[before.ids.index(id_)]), now.type)
        is_kept = encode_scalar(then) == encode_scalar(now)
    if not is_kept:
        raise SchemaMismatch(f"column {name!r} keeps the default that it has")


def _check_type_change(before: Node, after: Node, path: str, *, is_key: bool, is_column: bool = False) -> None:
    """Raise SchemaMismatch unless a node may change from `before` to `after`.

    `is_key`: whether the column or field belongs to a key, of the collection or of a map.
    """
    if before.kind == after.kind and before.inner == after.inner:
        return
    what = "column" if is_column else "field"
    wide, narrow = after.kind, before.kind
    if before.inner or after.inner:
        _check_inner(before, after, path, is_key=is_key)
        return
    if not is_wider(narrow, wide):
        raise SchemaMismatch(
            f"{what} {path!r} is of type {format_type(narrow)}, and {format_type(wide)} does not hold all of its "
            f"values: add a {what} of type {format_type(wide)} instead, and write the converted values there"
        )
    if is_key and not (is_column and is_written_alike(narrow, wide)):
        raise SchemaMismatch(
            f"key {what} {path!r} is of type {narrow}, and cannot become {wide}: key columns can be widened among "
            "integers, and from string or binary to the large ones; fields inside of keys stay. Write what has such "
            "keys into another collection."
        )


def _check_inner(before: Node, after: Node, path: str, *, is_key: bool) -> None:
    """Raise SchemaMismatch unless inner fields may change from `before` to `after`."""
    old, new = ({child.number: child for child in node.inner} for node in (before, after))
    is_struct = before.is_struct and after.is_struct
    is_alike = type(before.kind) is type(after.kind) and (
        not pt.is_fixed_size_list(before.kind) or before.kind.list_size == after.kind.list_size
    )
    if not is_alike or (not is_struct and old.keys() != new.keys()):
        raise SchemaMismatch(
            f"{path!r} is of type {before.kind}, and cannot become {after.kind}: fields inside of structs are added, "
            "dropped, renamed and widened by their paths. Add a column of the new type instead"
        )
    if is_key and old.keys() != new.keys():
        raise SchemaMismatch(
            f"{path!r} is in a key, whose fields cannot be added or dropped: keys that differ must stay different. "
            "Write what has other keys into another collection or column."
        )
    for number in old.keys() & new.keys():
        in_key = is_key or (pt.is_map(after.kind) and new[number].name == "key")
        _check_type_change(old[number], new[number], f"{path}.{quote_name(new[number].name)}", is_key=in_key)


def _list_required_ids(schema: CollectionSchema) -> list[int]:
    """Return the ids of the columns that must not be NULL."""
    return sorted(i for i, name in zip(schema.ids, schema.names, strict=True) if name in schema.required)


def _list_codecs(schema: CollectionSchema) -> list[tuple[Any, ...]]:
    """Return name, version and columns of each side's codec."""
    return [
        (side.codec_name, side.codec_version, side.names if side.codec_name else None)
        for side in (schema.key, schema.value)
    ]


def only_adds(before: CollectionSchema, after: CollectionSchema) -> bool:
    """Return whether a later version only adds columns, so that earlier updates keep their meaning.

    Structs may also gain fields.
    """
    named = dict(zip(after.ids, zip(after.names, after.shapes, strict=True), strict=True))
    return [i for i in after.ids if i in set(before.ids)] == list(before.ids) and all(
        named[id_] == (name, shape)
        or (named[id_][0] == name and is_extended(get_column_node(before, name), get_column_node(after, name)))
        for id_, name, shape in zip(before.ids, before.names, before.shapes, strict=True)
    )


class Column(NamedTuple):
    """A column of the next version of a schema."""

    id: int
    name: str
    kind: pa.DataType
    nullable: bool = True


def evolve_schema(
    schema: CollectionSchema,
    *,
    add: Mapping[str, Any],
    defaults: Mapping[str, Any],
    drop: Sequence[str],
    rename: Mapping[str, str],
    widen: Mapping[str, pa.DataType],
    reorder: Sequence[str] | None,
    inner: Mapping[str, InnerChanges] | None = None,
) -> CollectionSchema:
    """Return the next version of a schema, whose `known` are all versions; arguments as of `Collection.evolve`.

    `inner`: changes of the fields inside of columns; all other arguments have plain names of columns.
    """
    inner = inner or {}
    for what, names in (("drop", drop), ("rename", [*rename]), ("widen", [*widen]), ("inner", [*inner])):
        schema.check_distinct(what, names)
    _check_codec(schema)
    if key := [name for name in drop if name in schema.key_names]:
        raise SchemaMismatch(
            f"drop={list(drop)} names the key column {key[0]!r}, and different records would become one. Drop "
            "value columns, or write into another collection with another key."
        )
    if twice := set(drop) & {*rename, *widen, *inner}:
        raise SchemaMismatch(f"column {sorted(twice)[0]!r} is dropped, and renamed or widened besides: do one of these")
    for name, kind in widen.items():
        if pt.is_nested(was := schema.arrow.field(name).type) and kind != was:
            first = f"{quote_name(name)}.{quote_name(get_column_node(schema, name).inner[0].name)}"
            raise SchemaMismatch(
                f"column {name!r} is of type {was}: change what is inside by its path, such as {first!r}, or add a "
                f"column of type {kind}"
            )
    nodes = {name: _change_column(schema, name, changes) for name, changes in inner.items()}
    types = {**{name: node.kind for name, node in nodes.items()}, **widen}
    columns = [
        Column(id_, rename.get(f.name, f.name), types.get(f.name, f.type), f.nullable)
        for id_, f in zip(schema.ids, schema.declared, strict=True)
        if f.name not in drop
    ]
    following = 1 + max(id_ for version in schema.known for id_ in version.ids) if schema.known else len(schema.ids)
    columns += [Column(following + n, name, kind) for n, (name, kind) in enumerate(add.items())]
    for _, name, kind, _ in columns:
        check_field(name, kind, "value")
    _check_names([column.name for column in columns])
    keys, values = columns[: len(schema.key_names)], columns[len(schema.key_names) :]
    if reorder is not None:
        values = _reorder_columns(values, reorder)
    after = CollectionSchema(
        _rebuild_side(schema.key, keys),
        _rebuild_side(schema.value, values),
        schema.timeline,
        version=schema.version + 1,
        ids=tuple(column.id for column in (*keys, *values)),
        defaults=_collect_defaults(
            schema, [*keys, *values], {following + n: name for n, name in enumerate(add)}, defaults
        ),
        inner=_collect_inner_numbers(schema, nodes, columns),
    )
    check_successor(schema, after)
    return after


def _change_column(schema: CollectionSchema, name: str, changes: InnerChanges) -> Node:
    """Return a column's node after changes of its inner fields."""
    last = max((node.number for node in iterate_column_nodes(schema, name)), default=COLUMN)
    return change_node(get_column_node(schema, name), changes, count(last + 1))


def _collect_inner_numbers(
    schema: CollectionSchema, nodes: Mapping[str, Node], columns: Sequence[Column]
) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Return inner fields' numbers by column id, if they ever changed."""
    ids = dict(zip(schema.names, schema.ids, strict=True))
    numbers = dict(schema.inner)
    numbers |= {ids[name]: tuple(field.number for field in node.walk())[1:] for name, node in nodes.items()}
    remaining = {column.id for column in columns}
    return tuple(sorted((id_, of_column) for id_, of_column in numbers.items() if id_ in remaining))


def _check_codec(schema: CollectionSchema) -> None:
    """Raise SchemaMismatch if a codec makes the value, which cannot evolve."""
    if schema.value.codec_name is not None:
        raise SchemaMismatch(
            f"the value of this collection is one column of the codec {schema.value.codec_name!r}, which cannot "
            "evolve: use a collection whose value has columns"
        )


def _check_names(names: list[str]) -> None:
    """Raise SchemaMismatch if two columns have one name."""
    twice = sorted({name for name in names if names.count(name) > 1}) if len({*names}) < len(names) else []
    if twice:
        raise SchemaMismatch(
            f"two columns would be called {twice[0]!r}: choose another name, or rename or drop the one that has it"
        )


def _reorder_columns(values: list[Column], reorder: Sequence[str]) -> list[Column]:
    """Return the columns in the order that the caller requests."""
    named = {column.name: column for column in values}
    new_order = None if isinstance(reorder, str) or not isinstance(reorder, Iterable) else [*reorder]
    if new_order is None or not all(isinstance(name, str) for name in new_order) or sorted(new_order) != sorted(named):
        hint = "".join(did_you_mean(name, named) for name in new_order or () if name not in [*named])
        raise SchemaMismatch(
            f"reorder={reorder!r} is not the value columns in another order{hint}: name each of {list(named)} once, "
            "after renames. The order of key columns stays."
        )
    return [named[name] for name in new_order]


def _rebuild_side(before: Side, columns: list[Column]) -> Side:
    """Return the key or value with other columns; a codec's column stays."""
    if before.codec_name is not None:
        return before
    return Side(tuple(pa.field(column.name, column.kind, column.nullable) for column in columns))


def _collect_defaults(
    schema: CollectionSchema, columns: list[Column], added: Mapping[int, str], given: Mapping[str, Any]
) -> tuple[tuple[int, str], ...]:
    """Return all columns' defaults, in JSON form, after a change of the schema."""
    if unknown := sorted({*given} - {*added.values()}, key=repr):
        raise SchemaMismatch(
            f"defaults= names {unknown[0]!r}, which is not added: a default is the value of an added column in "
            "older records"
        )
    defaults: dict[int, pa.Scalar] = {}
    old_defaults = dict(schema.defaults)
    for id_, name, kind, _ in columns:
        if id_ in old_defaults:
            defaults[id_] = _widen_default(name, read_default(schema, schema.names[schema.ids.index(id_)]), kind)
        elif id_ in added and given.get(name) is not None:
            defaults[id_] = _make_default(name, given[name], kind)
    written = tuple(
        (id_, msgspec.json.encode(encode_scalar(value)).decode()) for id_, value in sorted(defaults.items())
    )
    if written != schema.defaults:
        _check_defaults_size(written)
    return written


def _check_defaults_size(defaults: tuple[tuple[int, str], ...]) -> None:
    """Raise SchemaMismatch if the defaults take too many bytes."""
    size = sum(len(written.encode()) for _, written in defaults)
    if size > DEFAULT_BYTES_MAX:
        raise SchemaMismatch(
            f"the defaults of all columns would take {size} bytes as JSON, and at most {DEFAULT_BYTES_MAX} are kept: "
            "each version of the schema repeats them. Leave a default out, and write what is large to the records that "
            "should have it"
        )


def _make_default(name: str, value: Any, kind: pa.DataType) -> pa.Scalar:
    """Return the default of a new column as a scalar of its type."""
    if not is_flat(kind):
        raise SchemaMismatch(
            f"column {name!r} is of type {kind}, and only flat columns can have a default: leave it out"
        )
    declared, kind = kind, get_stored_type(kind)
    try:
        if isinstance(value, pa.Scalar):
            array = cast_column(pa.chunked_array([pa.array([value])]), kind, name)
        else:
            array = to_field([value], kind, "the default")
        if declared == JSON:
            check_documents(array, name)
        scalar = make_canonical(pa.table({"default": array})).column(0)[0]
        return decode_scalar(encode_scalar(scalar), kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        # Python cannot show every value that Arrow holds.
        text = f"of type {value.type}" if isinstance(value, pa.Scalar) else f"{value!r:.100}"
        reason = str(error).rpartition(": ")[2] if isinstance(error, InvalidUpdate) else str(error)
        raise SchemaMismatch(
            f"the default {text} does not fit column {name!r} of type {format_type(declared)}: {reason}"
        ) from error


def _widen_default(name: str, old: pa.Scalar, kind: pa.DataType) -> pa.Scalar:
    """Return a default in a wider type; not through Python, which cannot represent all Arrow values."""
    if old.type == (kind := get_stored_type(kind)):
        return old
    try:
        return widen_column(pa.chunked_array([pa.repeat(old, 1)]), kind)[0]
    except pa.ArrowException as error:
        raise SchemaMismatch(
            f"the default of column {name!r} does not fit its type {kind}: {error}. Keep its type {old.type}, or add a "
            f"column of type {kind} instead"
        ) from error


def link_versions(written: Sequence[bytes]) -> CollectionSchema:
    """Decode all versions of a schema; return the last, linked to the others.

    Each version is decoded once, because each state lists all versions.
    """
    versions = [_decode_version(one_version) for one_version in written]
    return replace(versions[-1], known=tuple(versions)) if len(versions) > 1 else versions[-1]


_read: WeakValueDictionary[bytes, CollectionSchema] = WeakValueDictionary()  # Safe to use from many threads.


def _decode_version(written: bytes) -> CollectionSchema:
    """Return the schema of a written form, from a cache."""
    schema = _read.get(written)
    if schema is None:
        schema = _read[written] = CollectionSchema.from_json(msgspec.json.decode(written))
    return schema
