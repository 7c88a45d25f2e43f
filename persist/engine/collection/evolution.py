"""Change the schema of a collection: from a user's request to a mutation, with its checks of stored data.

- Times in a finer unit have a smaller range: the statistics of the parts show whether all stored values fit; otherwise
  the parts are read. Pending events are stored values, too, and are checked.
- A collection that becomes keyed must have one value per key at every readable time: a later event of a key retracts
  its only row.

The commit is refused if anything was added after the check.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

import pyarrow as pa

from persist.codecs.errors import SchemaMismatch
from persist.codecs.evolution import evolve_schema
from persist.codecs.nested import Node, get_column_node, parse_new_names, reshape_column, split_changes
from persist.codecs.types.python_types import parse_fields
from persist.codecs.types.schema import TIME_MAX, CollectionSchema
from persist.codecs.types.widening import may_overflow, widen_column
from persist.core.errors import InvalidUsage, NotOneValue, Superseded, UpperMismatch
from persist.core.keyed.events import list_event_fields, make_event_schema, make_tombstone_filter
from persist.core.keyed.form import Keyed, build_form, find_machine
from persist.core.log import kinds as record_kinds
from persist.core.log.fields import KeyedForm, Words
from persist.core.names import is_storable_text
from persist.core.state_rules.collection_rules import ExpectNothingBeyondUpper, ExpectParts, apply_step
from persist.core.state_rules.contents import CollectionState
from persist.core.state_rules.keyed_rules import check_new_names
from persist.core.state_rules.schemas import attach_versions, build_schema_moved, check_based_on_newest
from persist.engine.collection.descriptions import get_newest_ids
from persist.engine.location.collection_handle import CollectionHandle
from persist.engine.read.keyed.key_history import (
    find_keys,
    find_keys_with_several,
    find_negative_keys,
    find_null_keys,
)
from persist.engine.read.parts.reader import PartReader
from persist.engine.read.planning.scan import Scan
from persist.engine.write.operations import Step
from persist.engine.write.retrying import commit_with_retry

KEYS_NAMED = 10


def parse_declaration(keyed: Any, schema: CollectionSchema) -> KeyedForm:
    """Return a user's `Keyed` as a checked form of events for a schema."""
    if not isinstance(keyed, Keyed):
        raise InvalidUsage(f"keyed={keyed!r} is not a declaration: give persist.Keyed(...)")
    return build_form(keyed, schema)


def check_one_value(
    handle: CollectionHandle, contents: CollectionState, then: CollectionState, keyed: Keyed, form: KeyedForm
) -> ExpectNothingBeyondUpper:
    """Check that a collection has one value per key; return the condition that keeps this true.

    `then`: the state after the collection becomes keyed.

    Raises:
        NotOneValue: some keys have several values, or are NULL; the error names the first ten.
        InvalidUsage: some rows would be tombstones, which no read shows.
    """
    machine = find_machine(form, keyed.machine, handle.name)
    reader = handle.engine.reader()
    if form.tombstone is not None and (
        dead := next(find_keys(then, make_tombstone_filter(then.schema, form), reader), None)
    ):
        raise InvalidUsage(
            f"the rows of {handle.name!r} that are tombstones by the column {form.tombstone!r} would vanish from all "
            f"times, such as the key {dead[0]} at time {dead[1]}: declare another column, or write the changes into a "
            "new keyed collection"
        )
    if nulls := [*islice(find_null_keys(contents, reader), KEYS_NAMED)]:
        raise NotOneValue(handle.name, nulls, are_null=True)
    for keys_with in (find_keys_with_several, find_negative_keys):
        if machine is not None and not machine.has_one_value:
            break
        if several := [*islice(keys_with(contents, reader), KEYS_NAMED)]:
            raise NotOneValue(handle.name, several, are_null=False)
    return ExpectNothingBeyondUpper(handle.id, contents.upper_times)


@dataclass(frozen=True, slots=True)
class WantedEvolution:
    """The arguments of `Collection.evolve`; checked when they are applied to a schema."""

    add: Mapping[str, Any]
    defaults: Mapping[str, Any]
    drop: Sequence[str]
    rename: Mapping[str, str]
    widen: Mapping[str, Any]
    reorder: Sequence[str] | None
    keyed: Any = None

    @property
    def changes_columns(self) -> bool:
        """Whether the evolution changes columns, not only the resolution of events."""
        return any((self.add, self.drop, self.rename, self.widen, self.reorder))


def evolve(
    handle: CollectionHandle,
    evolution: WantedEvolution,
    comments: Mapping[str, str] | None,
    beside: Sequence[Step],
) -> CollectionHandle:
    """Commit the next version of a schema; return a handle with it. Errors as of `Collection.evolve`.

    `beside`: steps of the same commit, such as notes.
    """
    handle.engine.writer("evolve")
    _check_changes(evolution, comments)
    evolution = replace(
        evolution, add=_convert_types(evolution.add, "add"), widen=_convert_types(evolution.widen, "widen")
    )
    plan = partial(_commit_evolution, handle, evolution, comments or {}, beside)
    return commit_with_retry(plan, action="evolve", clock=handle.engine.clock, conflicts=(Superseded, UpperMismatch))


def _commit_evolution(
    handle: CollectionHandle, evolution: WantedEvolution, comments: Mapping[str, str], beside: Sequence[Step]
) -> CollectionHandle:
    """Commit the next version, once; the caller repeats it after conflicts."""
    contents = handle.contents()
    if not evolution.changes_columns and evolution.keyed is None:
        if not comments:
            raise InvalidUsage(
                "evolve() was asked for no change: give add=, drop=, rename=, widen=, reorder= or keyed="
            )
        get_newest_ids(handle, contents.schema, contents.schema.check_distinct("comments", [*comments]))
        return _set_comments(handle, contents.schema, comments, beside)
    # From the user's version: a name may belong to another column now.
    schema_before = attach_versions(handle.schema, contents)
    after = _evolve_schema(schema_before, evolution, contents)
    check_new_names({*after.names} - {*schema_before.names})
    check_based_on_newest(contents, after, becomes_keyed=evolution.keyed is not None)
    if evolution.keyed is None and replace(after, version=schema_before.version) == schema_before:
        return _set_comments(handle, schema_before, comments, beside)
    _check_machine(handle, contents, after)
    form = None if evolution.keyed is None else parse_declaration(evolution.keyed, after)
    step = record_kinds.Evolve(handle.id, after.to_json(), form)
    then = apply_step(contents, step)  # Raise rule violations before anything is read.
    steps: list[Step] = (
        [step] if form is None else [check_one_value(handle, contents, then, evolution.keyed, form), step]
    )
    if risky := _find_risky_changes(schema_before, after):
        _check_fits(handle, contents, schema_before, risky)
        steps.insert(0, ExpectParts(handle.id, contents.next_number))
    steps += _make_comment_steps(handle, after, comments)
    handle.submit("evolve", [*steps, *beside]).result()
    if evolution.keyed is not None and evolution.keyed.machine is not None:
        handle.engine.writer("evolve").resolver.remember_machine(handle.id, evolution.keyed.machine)
        handle = replace(handle, machine=evolution.keyed.machine)
    return handle.adapt_to(then)  # The user has not seen the others' changes.


def _set_comments(
    handle: CollectionHandle, schema: CollectionSchema, comments: Mapping[str, str], beside: Sequence[Step]
) -> CollectionHandle:
    """Set comments of columns, if there are any; the schema and its version stay the same."""
    steps: list[Step] = [*_make_comment_steps(handle, schema, comments)]
    if steps or not all(isinstance(step, record_kinds.Note) for step in beside):
        handle.submit("evolve", [*steps, *beside]).result()
    return handle


def _evolve_schema(before: CollectionSchema, evolution: WantedEvolution, contents: CollectionState) -> CollectionSchema:
    """Return the next version of a schema; raise SchemaMismatch if the changes do not fit."""
    if not evolution.changes_columns:
        return replace(before, version=before.version + 1, known=())
    try:
        known = replace(before, known=before.known or (before,))
        add, drop, rename, widen, inner = split_changes(
            known, evolution.add, evolution.drop, evolution.rename, evolution.widen
        )
        return evolve_schema(
            known,
            add=add,
            defaults=parse_new_names(evolution.defaults),
            drop=drop,
            rename=rename,
            widen=widen,
            reorder=evolution.reorder,
            inner=inner,
        )
    except SchemaMismatch as error:
        if before.version == len(contents.earlier) + 1:
            raise
        # Another client may have changed the collection so that it does not apply: the user must look first.
        raise build_schema_moved(contents, before.version, [str(error)]) from error


def _check_machine(handle: CollectionHandle, contents: CollectionState, after: CollectionSchema) -> None:
    """Raise SchemaMismatch if a machine's events would not have a schema's columns."""
    if contents.keyed is None:
        return
    machine = find_machine(contents.keyed, handle.machine, handle.name)
    if machine is not None and contents.keyed.fields is None and machine.event_fields(after) != after.value.fields:
        raise SchemaMismatch(
            f"the events of {handle.name!r} would not have the columns of its schema any more, because of its machine "
            f"{machine.name!r}: write its changes into a plain collection, which can evolve"
        )


_EXAMPLES = {
    "add": {"note": "string"},
    "defaults": {"note": "none"},
    "rename": {"old": "new"},
    "widen": {"count": "int64"},
}


def _check_changes(evolution: WantedEvolution, comments: Mapping[str, str] | None) -> None:
    """Raise InvalidUsage if a change has the wrong type."""
    for what in _EXAMPLES:
        if not isinstance(value := getattr(evolution, what), Mapping):
            raise InvalidUsage(
                f"{what}={value!r:.100} is not a dict by name of column: give one, such as {what}={_EXAMPLES[what]}"
            )
    if not isinstance(comments or {}, Mapping) or not all(map(is_storable_text, (comments or {}).values())):
        raise InvalidUsage(f"comments={comments!r:.100} must be a dict of texts by column name")
    if not all(isinstance(name, str) for name in evolution.rename.values()):
        raise InvalidUsage(f"rename={dict(evolution.rename)!r:.200} must be a dict of old names to new ones")


def _convert_types(given: Mapping[str, Any], what: str) -> dict[str, pa.DataType]:
    """Return the types of columns as Arrow types; `what` names the argument in errors."""
    types = {}
    for name, kind, nullable in parse_fields(given, "value") if given else ():
        if not nullable:
            raise SchemaMismatch(
                f"{what}= declares column {name!r} as not null: whether a column may hold NULL cannot change, and "
                "an added column may, because older records lack it. Give the type alone"
            )
        types[name] = kind
    return types


def _make_comment_steps(
    handle: CollectionHandle, schema: CollectionSchema, comments: Mapping[str, str]
) -> list[record_kinds.Describe]:
    """Return the steps that set comments of columns."""
    names = schema.check_distinct("comments", [*comments])
    ids = dict(zip(schema.names, schema.ids, strict=True))
    words_by_id = {str(ids[name]): Words(comments[name]) for name in names}
    return [record_kinds.Describe(handle.id, columns=words_by_id)] if words_by_id else []


def _find_risky_changes(before: CollectionSchema, after: CollectionSchema) -> dict[str, tuple[Node, Node]]:
    """Return the columns, before and after, whose new types may be too narrow for stored values."""
    names, risky = dict(zip(after.ids, after.names, strict=True)), {}
    for id_, name in zip(before.ids, before.names, strict=True):
        if id_ in names:
            was, now = get_column_node(before, name), get_column_node(after, names[id_])
            kinds = {node.number: node.kind for node in was.walk()}
            if any(may_overflow(kinds.get(node.number, node.kind), node.kind) for node in now.walk()):
                risky[name] = was, now
    return risky


def _check_fits(
    handle: CollectionHandle,
    contents: CollectionState,
    schema: CollectionSchema,
    shapes: Mapping[str, tuple[Node, Node]],
) -> None:
    """Raise SchemaMismatch if a stored time does not fit a finer unit. Cost: reading these columns."""
    reader = handle.engine.reader()
    scan = Scan(schema, contents.history_parts, 0, TIME_MAX + 1, tuple(shapes))
    base = tuple(part for keyframe in contents.keyframes for part in contents.list_parts(keyframe.parts))
    waiting = _iterate_pending_rows(reader, contents, schema, [*shapes])
    for table in (*scan.read_base_rows(reader, [*shapes], base), *scan.updates(reader, [*shapes]), *waiting):
        for name, pair in shapes.items():
            try:
                reshape_column(table[name], *pair, widen_column)
            except pa.ArrowException as error:
                raise SchemaMismatch(
                    f"column {name!r} holds times that {pair[1].kind} cannot hold: {error}. Keep its unit, or correct "
                    "these times first."
                ) from error


def _iterate_pending_rows(
    reader: PartReader, contents: CollectionState, schema: CollectionSchema, columns: list[str]
) -> Iterator[pa.Table]:
    """Yield value columns of the pending events, read with another schema."""
    if contents.keyed is None or not contents.pending:
        return
    events = make_event_schema(schema, list_event_fields(schema, contents.keyed))
    yield from Scan(events, (*contents.pending.values(),), 0, TIME_MAX + 1, tuple(columns)).updates(reader, columns)
