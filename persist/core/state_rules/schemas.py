"""The schema of a collection and its changes: numbered versions, the newest of which applies to all clients.

`persist.codecs.evolution` has the rules for columns. A commit may make the next version from the newest one. It may add
parts that were written with an older version, if later versions only add columns. Then their updates have the same
meaning under the newest.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from typing import Any

import msgspec

from persist.codecs.errors import SchemaMismatch
from persist.codecs.evolution import check_successor, only_adds
from persist.codecs.nested import Node, describe_changes, find_differences, get_column_node, list_all_ids
from persist.codecs.types.schema import CollectionSchema
from persist.core.antichain import decode_frontier, to_antichain
from persist.core.errors import InvalidUsage, SchemaMoved, UpperMismatch, ViewRedefined
from persist.core.log import kinds
from persist.core.state_rules.annotations import drop_columns
from persist.core.state_rules.contents import CollectionState, get_definition_number
from persist.core.state_rules.keyed_rules import evolve_form, make_keyed


def load_schema_version(contents: CollectionState, version: int) -> CollectionSchema:
    """Return a version of a collection's schema, with all other versions attached."""
    newest = contents.schema
    schema = next((known_schema for known_schema in newest.known or (newest,) if known_schema.version == version), None)
    if schema is None or type(version) is not int:
        raise SchemaMismatch(
            f"schema={version!r} is not a version of the schema of this collection: it has 1 to {newest.version}"
        )
    return newest if schema is newest else replace(schema, known=newest.known)


def attach_versions(schema: CollectionSchema, contents: CollectionState) -> CollectionSchema:
    """Return the schema with all versions of the collection's schema attached.

    Reading parts of other versions needs them. The codecs of the schema stay.
    """
    if len(schema.known) == len(contents.earlier) + 1 or not contents.earlier:
        return schema
    return replace(schema, known=contents.schema.known)


def load_newest_schema(schema: CollectionSchema, contents: CollectionState) -> CollectionSchema:
    """Return a collection's newest schema, with the codecs of an older one."""
    if schema.version == len(contents.earlier) + 1:
        return attach_versions(schema, contents)
    newest = contents.schema
    key = replace(newest.key, codec=schema.key.codec if newest.key.codec_name else None)
    value = replace(newest.value, codec=schema.value.codec if newest.value.codec_name else None)
    return replace(newest, key=key, value=value)


def reconcile_schema(caller_schema: CollectionSchema, contents: CollectionState, collection: str) -> CollectionSchema:
    """Return the stored version of a caller's schema, with the caller's codecs.

    This is the newest version; or an older one if columns were only added since: then the caller writes with that one.

    Raises CodecMismatch, SchemaMismatch: no version matches; the message has the difference to the newest.
    """
    newest = contents.schema
    try:
        return replace(caller_schema.reconcile(newest, collection), known=newest.known)
    except SchemaMismatch:
        for older in reversed(newest.known[:-1]):
            if only_adds(older, newest):
                with suppress(SchemaMismatch):
                    return replace(caller_schema.reconcile(older, collection), known=newest.known)
        raise


def apply_evolve(contents: CollectionState, step: kinds.Evolve) -> CollectionState:
    """Return contents with the next version of their schema.

    Raises:
        SchemaMoved: another client was first, so the new schema is not based on the newest version.
        SchemaMismatch: the new schema may not follow the newest version.
        InvalidUsage: the collection is a view; or as `evolve_form` and `make_keyed`.
        ValueError: the new schema is not valid.
    """
    if contents.view is not None:
        raise InvalidUsage(
            f"collection {contents.name!r} is a view, whose columns are those of its definition."
        ).with_remedy("{redefine:call} gives it another definition.")
    apply_evolve = add_schema_version(contents, step.schema, becomes_keyed=step.keyed is not None)
    return apply_evolve if step.keyed is None else make_keyed(apply_evolve, step.keyed)


def apply_redefine(contents: CollectionState, step: kinds.Redefine) -> CollectionState:
    """Return contents of a view with its next definition.

    Raises:
        UpperMismatch, ViewRedefined, SchemaMoved: the view was refreshed, or another client was first.
        InvalidUsage: the collection is not a view, or is complete for ever.
        SchemaMismatch: the new schema may not follow the newest version.
    """
    if contents.view is None:
        raise InvalidUsage(f"collection {contents.name!r} is not a view: it is written by its users")
    if not step.start or decode_frontier(step.start) != contents.upper:
        raise UpperMismatch(to_antichain(decode_frontier(step.start)), to_antichain(contents.upper))
    number = get_definition_number(contents)
    if step.view.get("number") != number + 1:
        raise ViewRedefined(contents.name, int(step.view.get("number", 1)) - 1, number)
    if step.schema is not None:
        contents = add_schema_version(contents, step.schema)
    return msgspec.structs.replace(contents, view=step.view)


def add_schema_version(
    contents: CollectionState, schema: dict[str, Any], *, becomes_keyed: bool = False
) -> CollectionState:
    """Return contents with the next version of their schema. Raises as `apply_evolve`."""
    after, schema_before = CollectionSchema.from_json(schema), contents.schema
    check_based_on_newest(contents, after, becomes_keyed=becomes_keyed)
    check_successor(replace(schema_before, known=schema_before.known or (schema_before,)), after)
    form = evolve_form(contents, after)
    earlier = (*contents.earlier, contents.schema_json)
    about = drop_columns(contents.about, {str(id_) for id_ in {*schema_before.ids} - {*after.ids}})
    return msgspec.structs.replace(contents, schema_json=schema, earlier=earlier, keyed=form, about=about)


def check_based_on_newest(contents: CollectionState, after: CollectionSchema, *, becomes_keyed: bool = False) -> None:
    """Raise SchemaMoved unless a schema is based on the newest version."""
    if after.version != len(contents.earlier) + 2:
        base = next(
            (known_schema for known_schema in contents.schema.known if known_schema.version == after.version - 1), None
        )
        own_changes = [] if base is None else describe_changes(base, after)
        if becomes_keyed:
            own_changes = [*(change for change in own_changes if change != "nothing"), "it becomes keyed"]
        raise build_schema_moved(contents, after.version - 1, own_changes)


def build_schema_moved(contents: CollectionState, base_version: int, own_changes: Sequence[str]) -> SchemaMoved:
    """Return the error for a change to an outdated version of a schema."""
    newest = contents.schema
    base_schema = next((schema for schema in newest.known if schema.version == base_version), None)
    other_changes = () if base_schema is None else tuple(describe_changes(base_schema, newest))
    return SchemaMoved(base_version, newest.version, tuple(own_changes), other_changes)


def check_writable_version(contents: CollectionState, version: int) -> None:
    """Check that updates of an older schema version may still be written."""
    if version == len(contents.earlier) + 1:
        return
    newest = contents.schema
    base = next((known_schema for known_schema in newest.known if known_schema.version == version), None)
    if base is None:
        raise ValueError(f"it has schema version {version}, and the collection has 1 to {newest.version}")
    if not only_adds(base, newest):
        raise SchemaMismatch(
            f"this was written with version {version} of the schema of collection {contents.name!r}, which has version "
            f"{newest.version} by now: {'; '.join(describe_changes(base, newest))}. Load the collection again, and "
            "write with its schema; nothing was applied."
        )


def check_columns_exist(contents: CollectionState, ids: Sequence[int]) -> None:
    """Raise SchemaMismatch if a column to be read was dropped."""
    newest = contents.schema
    dropped_ids = [id_ for id_ in ids if id_ not in newest.ids]
    if dropped_ids:
        names = {id_: name for schema in newest.known for id_, name in zip(schema.ids, schema.names, strict=True)}
        raise SchemaMismatch(
            f"column {names.get(dropped_ids[0], dropped_ids[0])!r} of collection {contents.name!r} was dropped "
            f"meanwhile: it has {list(newest.names)} by now"
        )


def find_columns_in_use(contents: CollectionState, schema: dict[str, Any]) -> dict[str, list[str]]:
    """Return the columns that a new schema drops although holds name them.

    A column that loses an inner field counts as dropped.
    """
    if not any(hold_state.columns for hold_state in contents.holds.values()):
        return {}
    schema_before, after = contents.schema, CollectionSchema.from_json(schema)
    now = dict(zip(after.ids, after.names, strict=True))
    dropped = {
        id_: name
        for id_, name in zip(schema_before.ids, schema_before.names, strict=True)
        if id_ not in now or _loses_fields(get_column_node(schema_before, name), get_column_node(after, now[id_]))
    }
    in_use: dict[str, list[str]] = {}
    for hold, hold_state in contents.holds.items():
        for id_ in hold_state.columns:
            if id_ in dropped:
                in_use.setdefault(dropped[id_], []).append(hold)
    return in_use


def _loses_fields(before: Node, after: Node) -> bool:
    """Return whether a column's later version lacks fields of an earlier one."""
    return any(field_after is None for _, _, field_after in find_differences(before, after))


def check_versions(contents: CollectionState) -> None:
    """Raise ValueError if schema versions are inconsistent, or a part's version is missing."""
    used: set[int | tuple[int, int]] = set()
    for earlier_schema, after in pairwise(contents.schema.known if contents.earlier else ()):
        used.update(list_all_ids(earlier_schema))
        check_successor(earlier_schema, after, used)
    newest = len(contents.earlier) + 1
    if any(part.schema > newest for part in (*contents.parts, *contents.pending.values())):
        raise ValueError(f"a part has a later schema version than there is: {newest}")
