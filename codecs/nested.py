"""Fields inside of columns: their numbers, the paths that name them, and their changes.

A field inside of a struct, a list or a map has a number that no other field of its column ever has. A new column has
the numbers 0, 1, 2 … in the order of its type, depth first. The element of a list and the key and value of a map have
numbers, as the fields of structs do. An added field gets the next number. So reads match the fields of a changed type
by number, as they match columns by id (`persist.codecs.evolution`).

A path is a column's name, and then names of fields, or "element", "key" and "value", separated by dots. A name that
has dots itself is quoted, "like.this"; within quotes, two quotes are one. A path that is exactly the name of a column
is that column.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from persist.codecs.errors import SchemaMismatch, did_you_mean
from persist.codecs.types.arrow_types import (
    format_type,
    list_inner_arrays,
    list_inner_fields,
    rebuild_nested,
    replace_inner_types,
)
from persist.codecs.types.python_types import get_stored_type
from persist.codecs.types.schema import CollectionSchema

COLUMN = -1  # The number of the column itself.
Cast = Callable[[pa.ChunkedArray, pa.DataType], pa.ChunkedArray]


@dataclass(frozen=True, slots=True)
class Node:
    """A column, or a field inside one; its inner fields are nodes."""

    number: int
    name: str
    kind: pa.DataType
    inner: tuple["Node", ...] = ()

    @property
    def is_struct(self) -> bool:
        """Whether the node is a struct."""
        return bool(pt.is_struct(self.kind))

    def walk(self) -> Iterator["Node"]:
        """Yield this node and all nodes inside, depth first."""
        yield self
        for child in self.inner:
            yield from child.walk()


def make_node(name: str, kind: pa.DataType, numbers: Iterator[int], number: int = COLUMN) -> Node:
    """Return the node of a column or field; `numbers` numbers inner fields."""
    inner = []
    for step, child in zip(list_step_names(kind), list_inner_fields(kind) if pt.is_nested(kind) else (), strict=True):
        inner.append(make_node(step, child.type, numbers, next(numbers)))
    return Node(number, name, kind, tuple(inner))


def list_step_names(kind: pa.DataType) -> list[str]:
    """Return the names by which paths address a type's direct fields."""
    if not pt.is_nested(kind):
        return []
    named = {2: ["key", "value"]} if pt.is_map(kind) else {1: ["element"]}
    return [child.name for child in list_inner_fields(kind)] if pt.is_struct(kind) else next(iter(named.values()))


def get_column_node(schema: CollectionSchema, name: str) -> Node:
    """Return the node of a column."""
    return schema.compute_once(_make_nested_nodes).get(name) or Node(COLUMN, name, schema.declared.field(name).type)


def _make_nested_nodes(schema: CollectionSchema) -> dict[str, Node]:
    """Return the node of each nested column, by name."""
    return {
        name: make_node(name, kind, iter(numbers) if numbers else count())
        for name, (kind, numbers) in zip(schema.names, schema.shapes, strict=True)
        if pt.is_nested(kind)
    }


def iterate_column_nodes(schema: CollectionSchema, name: str) -> Iterator[Node]:
    """Yield all fields inside of a column of all versions."""
    id_ = schema.ids[schema.names.index(name)]
    for version in schema.known:
        if id_ in version.ids:
            yield from get_column_node(version, version.names[version.ids.index(id_)]).walk()


def list_all_ids(schema: CollectionSchema) -> frozenset[int | tuple[int, int]]:
    """Return the ids of all columns, and the pairs of a column's id and the number of each field inside."""
    return schema.compute_once(_list_all_ids)


def _list_all_ids(schema: CollectionSchema) -> frozenset[int | tuple[int, int]]:
    """Compute the result of `list_all_ids`."""
    ids = dict(zip(schema.names, schema.ids, strict=True))
    nodes = schema.compute_once(_make_nested_nodes)
    return frozenset(ids.values()) | {
        (ids[name], node.number) for name, column in nodes.items() for child in column.inner for node in child.walk()
    }


def reshape_column(column: pa.ChunkedArray, source: Node, target: Node, cast: Cast) -> pa.ChunkedArray:
    """Convert a column to the fields of `target`, matched by their numbers.

    NULL values stay NULL. Raises the errors of the cast for values that do not fit.
    """
    try:
        chunks = [_reshape_array(chunk, source, target, cast) for chunk in column.chunks]
    except pa.ArrowInvalid:
        # The cast also saw values outside of slices and under NULLs; these do not count.
        whole = column.take(pa.array(np.arange(len(column))))
        chunks = [_reshape_array(chunk, source, target, cast) for chunk in whole.chunks]
    return pa.chunked_array(chunks, target.kind)


def _reshape_array(array: pa.Array, source: Node, target: Node, cast: Cast) -> pa.Array:
    """Convert an array to the fields of `target`, at all depths."""
    if source.kind == target.kind and source.inner == target.inner:
        return array
    if not target.inner:
        return cast(pa.chunked_array([array]), target.kind).combine_chunks()
    # Under a NULL struct may lie what does not fit.
    parts = array.flatten() if source.is_struct else list_inner_arrays(array)
    parts_by_number = {child.number: (part, child) for part, child in zip(parts, source.inner, strict=True)}
    inner = [
        _reshape_array(*parts_by_number[child.number], child, cast)
        if child.number in parts_by_number
        else pa.nulls(len(array), child.kind)
        for child in target.inner
    ]
    return rebuild_nested(array, target.kind, inner)


# Changes.


@dataclass(frozen=True, slots=True)
class InnerChanges:
    """Changes inside one column, by field number; additions by their struct's number."""

    add: dict[int, dict[str, pa.DataType]] = field(default_factory=dict)
    drop: dict[int, str] = field(default_factory=dict)
    rename: dict[int, str] = field(default_factory=dict)
    widen: dict[int, pa.DataType] = field(default_factory=dict)


def split_path(path: str) -> list[str]:
    """Return the steps of a path; raises SchemaMismatch if a quote is not closed or a step is empty."""
    steps, at = list[str]() if path else [""], 0
    while path and at <= len(path):
        quoted = path.startswith('"', at)
        end = at + 1 if quoted else path.find(".", at)
        while quoted and (end := path.find('"', end)) >= 0 and path.startswith('"', end + 1):
            end += 2
        if quoted:
            step, end = path[at + 1 : end].replace('""', '"'), end + 1 if end >= 0 else -1
        else:
            end = len(path) if end < 0 else end
            step = path[at:end]
        if end < 0 or not step or path[end : end + 1] not in ("", "."):
            raise SchemaMismatch(
                f"{path!r} is not a path: give names with dots between them, such as address.zip, and quote a "
                f"name that "
                'has dots itself, such as "like.this".zip'
            )
        steps.append(step)
        at = end + 1
    return steps


def quote_name(name: str) -> str:
    """Return a column's name as a path for `evolve`, quoted if needed."""
    return '"{}"'.format(name.replace('"', '""')) if "." in name or name.startswith('"') else name


def parse_new_names(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Remove the quotes from the names of new columns."""
    if inner := [path for path in changes if isinstance(path, str) and len(split_path(path)) > 1]:
        raise SchemaMismatch(
            f"defaults= names {inner[0]!r}: a field inside of a column has no default, and is NULL in older records. "
            f"If it is the name of a column, quote it: {quote_name(inner[0])!r}"
        )
    return {split_path(path)[0] if isinstance(path, str) else path: value for path, value in changes.items()}


def split_changes(
    schema: CollectionSchema,
    add: Mapping[str, pa.DataType],
    drop: Sequence[str],
    rename: Mapping[str, str],
    widen: Mapping[str, pa.DataType],
) -> tuple[dict[str, pa.DataType], list[str], dict[str, str], dict[str, pa.DataType], dict[str, InnerChanges]]:
    """Split the arguments of `evolve` into changes of columns and inside columns."""
    drop = drop if isinstance(drop, str) or not isinstance(drop, Iterable) else tuple(drop)
    if not isinstance(drop, tuple) or not all(isinstance(path, str) for path in drop):
        schema.check_distinct("drop", drop)
    inner: dict[str, InnerChanges] = {}
    steps = {
        path: split_path(path) if path not in schema.names and ("." in path or path.startswith('"')) else [path]
        for path in (*drop, *rename, *widen)
    }
    added = {path: split_path(path) for path in add}
    named = {"add": [*added.values()]}
    named |= {"drop": [steps[path] for path in drop if len(steps[path]) > 1]}
    named |= {what: [steps[path] for path in paths] for what, paths in (("rename", rename), ("widen", widen))}
    for what, paths in named.items():
        if twice := [path for path in paths if paths.count(path) > 1]:
            raise SchemaMismatch(f"{what}= names {_join_path(twice[0])} twice: name it once")

    def change(column: str) -> InnerChanges:
        return inner.setdefault(column, InnerChanges())

    for path, kind in add.items():
        if len(added[path]) > 1:
            struct = _find_node(schema, added[path][:-1], path, "add")
            if not struct.is_struct:
                raise SchemaMismatch(
                    f"add={path!r}: {_join_path(added[path][:-1])} is of type {struct.kind}, and only a struct "
                    "gets fields"
                )
            change(added[path][0]).add.setdefault(struct.number, {})[added[path][-1]] = kind
    for path in drop:
        if len(steps[path]) > 1:
            change(steps[path][0]).drop[_find_field(schema, steps[path], path, "drop").number] = path
    for path, new in rename.items():
        if len(steps[path]) > 1:
            field, target = _find_field(schema, steps[path], path, "rename"), split_path(new)
            if target[:-1] != steps[path][:-1]:
                raise SchemaMismatch(
                    f"rename={{{path!r}: {new!r}}} would move a field: give the whole path with another last name, "
                    f"such as {_join_path([*steps[path][:-1], target[-1]])!r}"
                )
            change(steps[path][0]).rename[field.number] = target[-1]
    for path, kind in widen.items():
        if len(steps[path]) > 1:
            change(steps[path][0]).widen[_find_node(schema, steps[path], path, "widen").number] = kind
    return (
        {added[path][0]: kind for path, kind in add.items() if len(added[path]) == 1},
        [steps[path][0] for path in drop if len(steps[path]) == 1],
        {steps[path][0]: _parse_new_name(path, new) for path, new in rename.items() if len(steps[path]) == 1},
        {steps[path][0]: kind for path, kind in widen.items() if len(steps[path]) == 1},
        inner,
    )


def _parse_new_name(path: str, new: str) -> str:
    """Return a column's or field's new name unquoted; refuse a path."""
    steps = split_path(new)
    if len(steps) > 1:
        raise SchemaMismatch(
            f"rename={{{path!r}: {new!r}}} would move a column into another one. If its new name has dots, quote it: "
            f"{quote_name(new)!r}"
        )
    return steps[0]


def _join_path(steps: Sequence[str]) -> str:
    """Return the steps as one path, quoted if needed."""
    return ".".join(map(quote_name, steps))


def _find_node(schema: CollectionSchema, steps: Sequence[str], path: str, what: str) -> Node:
    """Return the node at the end of a path; `what`: for errors."""
    if steps[0] not in schema.names:
        raise SchemaMismatch(
            f"{what}={path!r}: there is no column {steps[0]!r}{did_you_mean(steps[0], schema.names) or ','} the "
            f"collection has {list(schema.names)}. Quote a column's name that has dots itself: {quote_name(path)!r}"
        )
    node = get_column_node(schema, steps[0])
    for at, step in enumerate(steps[1:], 1):
        named = {child.name: child for child in node.inner}
        if step not in named:
            has = f"has {[*named]}" if named else "has no fields inside"
            raise SchemaMismatch(
                f"{what}={path!r}: {_join_path(steps[:at])!r} is of type {node.kind}, which {has}"
                f"{did_you_mean(step, named) or ''}"
            )
        node = named[step]
    return node


def _find_field(schema: CollectionSchema, steps: Sequence[str], path: str, what: str) -> Node:
    """Return the node at the end of a path; raise SchemaMismatch unless it is a field of a struct."""
    parent, node = _find_node(schema, steps[:-1], path, what), _find_node(schema, steps, path, what)
    if not parent.is_struct:
        raise SchemaMismatch(
            f"{what}={path!r}: {steps[-1]!r} is what each {parent.kind} has, and no field of a struct; {what} the "
            "whole column, or fields of structs"
        )
    return node


def change_node(node: Node, changes: InnerChanges, numbers: Iterator[int], path: str = "") -> Node:
    """Apply changes to a node's inner fields; new fields take from `numbers`."""
    path = f"{path}{quote_name(node.name)}"
    inner = []
    for child in node.inner:
        if child.number not in changes.drop:
            inner.append(change_node(child, changes, numbers, f"{path}."))
        elif any({n.number for n in child.walk()} & {*edits} for edits in (changes.add, changes.rename, changes.widen)):
            raise SchemaMismatch(
                f"field {changes.drop[child.number]!r} is dropped, and changed besides: do one of these"
            )
    for name, kind in changes.add.get(node.number, {}).items():
        inner.append(make_node(name, get_stored_type(kind), numbers, next(numbers)))
    name, kind = changes.rename.get(node.number, node.name), changes.widen.get(node.number, node.kind)
    if node.inner and kind != node.kind:
        raise SchemaMismatch(f"{path!r} is of type {node.kind}: change the fields inside by their paths")
    if node.inner:
        names = [child.name for child in inner]
        if not names:
            raise SchemaMismatch(f"{path!r} would have no field any more: drop the column, or the field, that holds it")
        if twice := [name for name in names if names.count(name) > 1]:
            raise SchemaMismatch(f"two fields of {path!r} would be called {twice[0]!r}: choose another name")
        named = [pa.field(child.name, child.kind) for child in inner]
        kind = pa.struct(named) if node.is_struct else replace_inner_types(kind, [child.kind for child in inner])
    return replace(node, name=name, kind=kind, inner=tuple(inner))


def find_differences(before: Node, after: Node, path: str = "") -> Iterator[tuple[str, Node | None, Node | None]]:
    """Yield differences inside a column: path, old and new node, or None."""
    old, new = ({child.number: child for child in node.inner} for node in (before, after))
    path = f"{path}{quote_name(after.name)}."
    for number, child in old.items():
        if number not in new:
            yield path + quote_name(child.name), child, None
    for number, child in new.items():
        was, place = old.get(number), path + quote_name(child.name)
        if was is None:
            yield place, None, child
            continue
        if was.name != child.name or (not was.inner and not child.inner and was.kind != child.kind):
            yield place, was, child
        yield from find_differences(was, child, path)


def is_extended(before: Node, after: Node) -> bool:
    """Return whether a column keeps its inner fields; more may be added."""
    if not before.inner:
        return bool(before.kind == after.kind)
    old, new = before.inner, [child for child in after.inner if child.number in {n.number for n in before.inner}]
    is_same = [(node.number, node.name) for node in old] == [(node.number, node.name) for node in new]
    return is_same and all(map(is_extended, old, new))


# Fields by their names, of what comes from elsewhere.


def make_node_like(name: str, kind: pa.DataType, like: Node) -> Node:
    """Return a type's node; fields named as in `like` share its numbers."""
    return _match_names(name, kind, like, count(_UNKNOWN), COLUMN)


_UNKNOWN = 1 << 32  # The first number of fields that the other node has not.


def _match_names(name: str, kind: pa.DataType, like: Node, fresh: Iterator[int], number: int) -> Node:
    """Build a node whose fields take the numbers of equally named fields."""
    if _get_nesting(kind) != _get_nesting(like.kind):
        return Node(number, name, kind)
    named, inner = {child.name: child for child in like.inner}, list[Node]()
    for step, child in zip(list_step_names(kind), list_inner_fields(kind), strict=True):
        match = named.get(step)
        if match is None:
            inner.append(make_node(step, child.type, fresh, next(fresh)))
        else:
            inner.append(_match_names(step, child.type, match, fresh, match.number))
    return Node(number, name, kind, tuple(inner))


def _get_nesting(kind: pa.DataType) -> str:
    """Return "list", "struct", "map", or "" for a flat type."""
    if pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind):
        return "list"
    return "struct" if pt.is_struct(kind) else "map" if pt.is_map(kind) else ""


def find_new_fields(name: str, source_type: pa.DataType, target_type: pa.DataType) -> dict[str, pa.DataType]:
    """Return the types by path of the inner fields that an earlier type lacks."""
    if not _get_nesting(target_type) or not _get_nesting(source_type):
        return {}
    node = make_node(name, target_type, count())
    differences = find_differences(node, make_node_like(name, source_type, node))
    return {path: now.kind for path, was, now in differences if was is None and now is not None}


def align_fields(column: pa.ChunkedArray, target_type: pa.DataType) -> pa.ChunkedArray:
    """Give a column a type's inner fields: drop others, fill missing ones with NULL."""
    kind = _align_type(column.type, target_type)
    if kind == column.type:
        return column
    target = make_node("", kind, count())
    return reshape_column(column, make_node_like("", column.type, target), target, lambda piece, _: piece)


def _align_type(source_type: pa.DataType, target_type: pa.DataType) -> pa.DataType:
    """Return the target's nesting and fields, with the source's leaf types."""
    if not _get_nesting(source_type) or _get_nesting(source_type) != _get_nesting(target_type):
        return source_type
    if pt.is_struct(source_type):
        types = {child.name: child.type for child in list_inner_fields(source_type)}
        return pa.struct(
            [(f.name, _align_type(types.get(f.name, f.type), f.type)) for f in list_inner_fields(target_type)]
        )
    pairs = zip(list_inner_fields(source_type), list_inner_fields(target_type), strict=True)
    return replace_inner_types(source_type, [_align_type(ours.type, target.type) for ours, target in pairs])


def find_changes_by_path(before: Node, after: Node) -> dict[str, Any]:
    """Return the arguments of `evolve` that turn one node of a column into another."""
    add: dict[str, pa.DataType] = {}
    drop, rename, widen = list[str](), dict[str, str](), dict[str, pa.DataType]()

    def collect_changes(was: Node, now: Node, path: str) -> None:
        old, new = ({child.number: child for child in node.inner} for node in (was, now))
        drop.extend(f"{path}.{quote_name(child.name)}" for number, child in old.items() if number not in new)
        for number, child in new.items():
            place = f"{path}.{quote_name(child.name)}"
            if number not in old:
                add[place] = child.kind
                continue
            old_place = f"{path}.{quote_name(old[number].name)}"
            if old_place != place:
                rename[old_place] = place
            if not child.inner and not old[number].inner and child.kind != old[number].kind:
                widen[old_place] = child.kind
            collect_changes(old[number], child, old_place)

    collect_changes(before, after, quote_name(before.name))
    return {"add": add, "drop": drop, "rename": rename, "widen": widen}


def describe_changes(before: CollectionSchema, after: CollectionSchema) -> list[str]:
    """Describe the differences between two versions of a schema, column by column."""
    old, new = ({i: get_column_node(s, n) for i, n in zip(s.ids, s.names, strict=True)} for s in (before, after))
    differences: list[tuple[str, Node | None, Node | None]] = []
    for id_, node in new.items():
        was = old.get(id_)
        if was is None or was.name != node.name or (was.kind != node.kind and not (was.inner and node.inner)):
            differences.append((node.name, was, node))
        if was is not None:
            differences += find_differences(was, node)
    differences += [(node.name, node, None) for id_, node in old.items() if id_ not in new]
    changes = [
        f"{path!r} ({format_type(now.kind)}) was added"
        for path, was, now in differences
        if was is None and now is not None
    ]
    changes += [
        f"{path!r} ({format_type(was.kind)}) was dropped" for path, was, now in differences if was and now is None
    ]
    shared = [(path, was, now) for path, was, now in differences if was is not None and now is not None]
    changes += [f"{was.name!r} was renamed to {path!r}" for path, was, now in shared if was.name != now.name]
    changes += [
        f"{path!r} was widened from {was.kind} to {now.kind}"
        for path, was, now in shared
        if was.kind != now.kind and not (was.inner and now.inner)
    ]
    if [i for i in before.ids if i in new] != [i for i in after.ids if i in old]:
        changes.append(f"the columns are in the order {list(after.names)}")
    return changes or ["nothing"]
