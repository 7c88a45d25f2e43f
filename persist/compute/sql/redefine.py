"""A view's next definition: from one time on its contents follow the new query, and so do the views that read it.

Sealed contents stay, because they are definite. So a definition holds from the view's upper on. The commit of a
definition writes no rows. The next refresh computes the new contents beside the old ones, which stay readable until it
commits the difference at that time. A follower of the view sees the switch as changes of that one time.

The views that depend on it are computed from the same inputs in the same steps, so they switch with it, in one commit.
They get a next definition, too: the same query with its new dependencies. All of them switch at one time, so all are
refreshed before.

**Recreated views** have a new history under the same name, computed from the present history of their inputs.

A view's contents at a time are its definition's result on its inputs at that time (rule 19). If an erasure changes the
inputs at sealed times (rule 23), the dependent views are wrong at those times, and may contain erased records. A
correction cannot be written, because these times are sealed. So one commit drops them all and creates them with the
same definitions, and the next refresh computes them from the earliest time that their inputs still have. In between
they are empty, and never contain erased records.

Comments, properties, retention, indexes and kept groups come along. A tag or a named hold refers to a time of the old
history, so its owner must remove it before.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pyarrow as pa

from persist.codecs.evolution import evolve_schema
from persist.codecs.types.arrow_types import JSON
from persist.codecs.types.schema import TIME_MAX, CollectionSchema
from persist.compute.index import list_indexed_columns
from persist.compute.sql.definition import EARLIER_KEPT, Definition, EarlierDefinition, Readable
from persist.compute.sql.draft import Catalog, Draft, draft_view, find_column_ids, has_groups, list_reads
from persist.compute.sql.graph import list_columns_read, load_definition
from persist.compute.sql.types import to_arrow
from persist.core.antichain import END
from persist.core.errors import CollectionNotFound, InvalidUsage
from persist.core.log import kinds
from persist.core.log.fields import Words
from persist.core.names import GROUPS_PREFIX, LIBRARY_HOLDS, VIEW_HOLD, find_owner, find_reader, make_view_hold_name
from persist.core.state_rules.contents import CollectionState, Publication
from persist.core.state_rules.schemas import load_schema_version
from persist.engine.location.arrangements import list_arrangements, make_drop_steps
from persist.engine.location.collection_handle import CollectionHandle
from persist.engine.location.engine import Engine
from persist.engine.location.opening import load_handle_by_id
from persist.engine.write.operations import Step


@dataclass(frozen=True, slots=True)
class Dependent:
    """A view, with its present state, that changes together with a redefined view.

    `name`: the name that errors show; for stored groups, that is the name of their view.
    """

    handle: CollectionHandle
    contents: CollectionState
    definition: Definition
    name: str

    @property
    def id(self) -> str:
        return self.contents.id


def load_dependents(engine: Engine, view: CollectionHandle, *, with_groups: bool = False) -> list[CollectionHandle]:
    """Return the views that depend on a collection, directly or not.

    `with_groups`: also the hidden views that store their groups.
    """
    dependents = []
    for hold in view.contents().holds:
        if hold.startswith(VIEW_HOLD) and (id_ := find_reader(hold)) is not None:
            with suppress(CollectionNotFound):  # It is dropped just now.
                dependents.append(load_handle_by_id(engine, id_, id_))
    return [view for view in dependents if with_groups or find_owner(view.name) is None]


def plan_redefinition(engine: Engine, view: CollectionHandle, sql: str) -> tuple[list[Step], dict[str, str]] | None:
    """Return the steps of the commit that gives a view another query, and names for errors, by id.

    Returns None if the query means the same as the present one.
    """
    changed = load_dependent(view)
    draft = draft_view(Catalog(engine), changed.name, sql, changed.definition.key, replaces=changed.definition)
    _check_same_kind(changed, draft)
    keeps_documents = {*changed.contents.schema.json} <= {*draft.readable.schema.json}
    if keeps_documents and _is_same_query(changed.definition, draft.definition):
        return None
    dependents = load_dependents(engine, view, with_groups=True)
    names = {dependent.id: dependent.name for dependent in dependents}
    every = [changed, *(load_dependent(below, names.get(find_owner(below.name) or "")) for below in dependents)]
    if any(dependent.id in draft.definition.inputs for dependent in every):
        raise InvalidUsage(f"views cannot read each other in a circle: the query reads what depends on {view.name!r}")
    _check_together(every)
    catalog = Catalog(engine)
    inputs: dict[str, tuple[str, ...]] = {}
    steps: list[Step] = []
    for dependent in sort_by_inputs(every):
        _check_columns(dependent, changed, draft)
        inputs[dependent.id] = _list_inputs(catalog, dependent, changed, draft, inputs)
        next_definition = draft.definition if dependent is changed else dependent.definition
        definition = _make_next_definition(
            dependent, next_definition, inputs[dependent.id], _choose_next_start(dependent, changed, draft)
        )
        schema = _derive_next_schema(changed.contents.schema, draft) if dependent is changed else None
        steps.append(kinds.Redefine(dependent.id, definition.to_json(), dependent.contents.upper_times, schema))
        steps += _make_hold_steps(engine, dependent, definition, catalog, renews=dependent is changed)
    unused = [
        each for each in list_arrangements(engine, view.id, [GROUPS_PREFIX]) if each.id not in draft.definition.inputs
    ]
    steps += make_drop_steps(engine, unused)[0]
    names = {dependent.id: dependent.name for dependent in every}
    for dependent in every:
        names |= {id_: catalog.load_by_id(id_).name for id_ in (*inputs[dependent.id], *dependent.definition.inputs)}
    return steps, names


def load_dependent(view: CollectionHandle, name: str | None = None) -> Dependent:
    """Return a view with its present state. `name`: the name that errors show, if it differs."""
    definition = load_definition(view)
    if definition is None:
        raise InvalidUsage(f"collection {view.name!r} is not a view: it is written by its users")
    return Dependent(view, view.contents(), definition, name or view.name)


def _is_same_query(old: Definition, new: Definition) -> bool:
    """Return whether two definitions read the same and have the same plan."""
    if old.columns != new.columns or list_reads(old) != list_reads(new):
        return False
    return old.plan == new.plan or (old.sql == new.sql and has_groups(old))


def _check_same_kind(view: Dependent, draft: Draft) -> None:
    """Raise InvalidUsage unless the answer of the new query fits the existing collection."""
    old, new = dict(view.definition.columns), dict(draft.definition.columns)
    for name in view.definition.key:
        if to_arrow(new[name]) != to_arrow(old[name]):
            raise InvalidUsage(
                f"the key column {name!r} of view {view.name!r} is of type {old[name]}, and the query gives {new[name]}"
                ": cast it, or make another view"
            )
    if draft.readable.timeline != view.contents.timeline:
        raise InvalidUsage(
            f"view {view.name!r} has the timeline {view.contents.timeline!r}, and what the query reads has "
            f"{draft.readable.timeline!r}: make another view"
        )
    if view.contents.upper == END:
        raise InvalidUsage(f"view {view.name!r} is complete for ever, so nothing of it can change: make another view")


def _check_together(every: Sequence[Dependent]) -> None:
    """Raise InvalidUsage unless all views that were ever refreshed are sealed to one time, at which they can switch."""
    uppers = {dependent.contents.upper for dependent in every if dependent.contents.upper != 0}
    if len(uppers) > 1:
        seals = ", ".join(f"{dependent.name!r} to {dependent.contents.upper}" for dependent in every)
        raise InvalidUsage(
            f"these views depend on each other and must switch together, but they are sealed to different times: "
            f"{seals}. Seal what they read to one time, refresh them, and try again"
        )


def sort_by_inputs(every: Sequence[Dependent]) -> list[Dependent]:
    """Return views so that each comes after its inputs."""
    ids = {dependent.id for dependent in every}
    return sorted(every, key=lambda dependent: len(ids.intersection(dependent.definition.inputs)))


def _check_columns(dependent: Dependent, changed: Dependent, draft: Draft) -> None:
    """Raise InvalidUsage if a view reads a column of the changed view that disappears or changes its type."""
    columns_read = {} if dependent is changed else list_columns_read(dependent.definition).get(changed.id, {})
    new_columns = dict(draft.definition.columns)
    for column, kind in columns_read.items():
        is_document = column in changed.contents.schema.json and column not in draft.readable.schema.json
        if column not in new_columns or is_document or to_arrow(new_columns[column]) != to_arrow(kind):
            changed_kind = "texts for documents of JSON" if is_document else new_columns.get(column)
            problem = "lacks it" if column not in new_columns else f"gives {changed_kind}"
            raise InvalidUsage(
                f"the view {dependent.name!r} reads column {column!r} ({kind}) of view {changed.name!r}, and the query "
                f"{problem}: keep the column as it is, or drop {dependent.name!r} first"
            )


def _list_inputs(
    catalog: Catalog, dependent: Dependent, changed: Dependent, draft: Draft, known: Mapping[str, tuple[str, ...]]
) -> tuple[str, ...]:
    """Return the ids of the new dependencies of a view."""
    if dependent is changed:
        return draft.definition.inputs
    inputs: dict[str, None] = {}
    for id_ in dependent.definition.reads.values():
        inputs |= dict.fromkeys((id_, *(known[id_] if id_ in known else catalog.load_by_id(id_).inputs)))
    return tuple(inputs)


def _choose_next_start(dependent: Dependent, changed: Dependent, draft: Draft) -> int:
    """Return the time at which a view begins under its next definition."""
    start = dependent.definition.start
    if dependent.contents.upper != 0:
        return start
    return max(start, draft.definition.start if dependent is changed else changed.contents.upper)


def _make_next_definition(dependent: Dependent, wanted: Definition, inputs: tuple[str, ...], start: int) -> Definition:
    """Return the next definition of a view that depends on a redefined view."""
    old = dependent.definition
    was = EarlierDefinition(old.sql, old.since)
    return msgspec.structs.replace(
        wanted,
        inputs=inputs,
        number=old.number + 1,
        since=dependent.contents.upper,
        earlier=(*old.earlier, was)[-EARLIER_KEPT:],
        start=start,
    )


def _derive_next_schema(before: CollectionSchema, draft: Draft) -> dict[str, Any] | None:
    """Return a view's next schema as JSON; None if its columns do not change."""
    after = draft.readable.schema
    old, new = (dict(zip(schema.names, schema.declared.types, strict=True)) for schema in (before, after))
    # Texts stay texts, because earlier ones need not be documents.
    new = {name: pa.string() if kind == JSON and old.get(name, JSON) != JSON else kind for name, kind in new.items()}
    if list(old.items()) == list(new.items()) and before.columns == after.columns:
        return None
    values = [name for name in after.names if name not in after.key_names]
    new_schema = evolve_schema(
        replace(before, known=before.known or (before,), order=()),
        add={name: kind for name, kind in new.items() if name not in old},
        defaults={},
        drop=[name for name in old if name not in new],
        rename={},
        widen={name: kind for name, kind in new.items() if name in old and old[name] != kind},
        reorder=values or None,
    )
    return replace(new_schema, order=after.order).to_json()


def _make_hold_steps(
    engine: Engine, dependent: Dependent, definition: Definition, catalog: Catalog, *, renews: bool
) -> list[kinds.SetHold | kinds.ReleaseHold]:
    """Return the steps that move the holds of a view to its new dependencies.

    `renews`: the view reads with the newest schemas from now on; otherwise only holds on indirect inputs change.
    """
    hold, read = make_view_hold_name(dependent.id), list_columns_read(definition)
    steps: list[kinds.SetHold | kinds.ReleaseHold] = []
    for id_ in definition.inputs:
        readable = catalog.load_by_id(id_)
        current = load_handle_by_id(engine, id_, readable.name).contents().holds.get(hold)
        columns = read.get(id_, {})
        if current is not None and columns and not renews:
            _check_read(engine, dependent, readable, current.schema, columns)
            continue
        ids = find_column_ids(readable.schema, columns)
        if current is not None:
            at, expected = current.time, current.time
        else:
            at, expected = _choose_hold_time(dependent, readable, definition.start), None
        steps.append(kinds.SetHold(id_, hold, at, None, expected, readable.schema.version, ids))
    steps += [kinds.ReleaseHold(id_, hold) for id_ in dependent.definition.inputs if id_ not in definition.inputs]
    return steps


def _choose_hold_time(dependent: Dependent, readable: Readable, start: int) -> int:
    """Return the time from which a view's hold keeps a new input."""
    if readable.is_view:
        return TIME_MAX
    upper = dependent.contents.upper
    if upper == 0:
        return max(readable.since, start)
    if readable.since > upper - 1 or readable.last is None or readable.last < upper - 1:
        raise InvalidUsage(
            f"view {dependent.name!r} is sealed to {upper}, so what it reads must be readable at {upper - 1}; "
            f"collection {readable.name!r} is at the times from {readable.since} to {readable.last}. Refresh the "
            "view, or seal the collection further, and try again"
        )
    return upper - 1


def _check_read(
    engine: Engine, dependent: Dependent, readable: Readable, version: int | None, columns: Mapping[str, str]
) -> None:
    """Raise InvalidUsage if a view reads columns in a version where they differ from the newest one."""
    contents = load_handle_by_id(engine, readable.id, readable.name).contents()
    versions = (contents.schema, contents.schema if version is None else load_schema_version(contents, version))
    newest, held_columns = (
        dict(zip(schema.names, zip(schema.ids, schema.shapes, strict=True), strict=True)) for schema in versions
    )
    for column in columns:
        if newest.get(column) != held_columns.get(column):
            raise InvalidUsage(
                f"the view {dependent.name!r} reads column {column!r} of {readable.name!r} as of version {version} of "
                f"its schema, in which it is a different column. So it cannot be refreshed together with views that "
                f"read the newest version: drop {dependent.name!r} first"
            )


@dataclass(frozen=True, slots=True)
class RecreatedViews:
    """The steps of a commit that recreates views; refresh these afterwards.

    Attributes:
        views: the names, each after its inputs, and whether the view was ever refreshed.
        indexed: by name, the columns of each index of a view.
        published: by name, the tables that a view was published as.
    """

    steps: tuple[Step, ...]
    names: Mapping[str, str]
    views: Mapping[str, bool]
    indexed: Mapping[str, tuple[tuple[str, ...], ...]]
    published: Mapping[str, Mapping[str, Publication]]


def recreate_views(engine: Engine, collections: Iterable[CollectionHandle]) -> RecreatedViews:
    """Return the steps that recreate all views that depend on some collections."""
    ids = {view.id: view for handle in collections for view in load_dependents(engine, handle)}
    every = sort_by_inputs([load_dependent(view) for view in ids.values()])
    for view in every:
        _check_can_recreate(view)
    catalog = Catalog(engine)
    steps, names = make_drop_steps(engine, [view.contents for view in every])
    indexed = {view.name: list_indexed_columns(view.handle) for view in every}
    for view in every:
        catalog.plan_removal(view.name)
    drafts: dict[str, Draft] = {}
    for view in every:
        old, start = view.definition, _keep_start(catalog, view, drafts)
        draft = draft_view(catalog, view.name, old.sql, old.key, start, keeps_groups=has_groups(old))
        catalog.plan_addition(draft)
        drafts[view.id] = draft
        steps += [*draft.steps, *steps_to_describe(view.contents, draft)]
        names |= draft.names
    views = {view.name: view.contents.upper != 0 for view in every}
    published = {view.name: view.contents.tables for view in every if view.contents.tables}
    return RecreatedViews(tuple(steps), names, views, indexed, published)


def _check_can_recreate(view: Dependent) -> None:
    """Raise InvalidUsage if a view cannot be recreated."""
    named = [hold for hold, hold_record in view.contents.holds.items() if hold_record.lease is None]
    holds = [hold for hold in named if not hold.startswith(LIBRARY_HOLDS)]
    if view.contents.tags or holds:
        tied = [f"the tag {tag!r}" for tag in view.contents.tags] + [f"the hold {hold!r}" for hold in holds]
        raise InvalidUsage(
            f"the view {view.name!r} must begin anew, because something is erased from what it reads, and "
            f"{', '.join(tied)} would keep its old history: drop tags with untag() and release holds first"
        )


def _keep_start(catalog: Catalog, view: Dependent, made: Mapping[str, Draft]) -> int | None:
    """Return the start of a view: its old one, if its inputs still have that time."""
    inputs = (made[id_].readable if id_ in made else catalog.load_by_id(id_) for id_ in view.definition.inputs)
    sinces = (readable.since for readable in inputs if find_owner(readable.name) is None)  # Groups have no past.
    start = view.definition.start
    return start if start > max(sinces, default=0) else None


def steps_to_describe(old_contents: CollectionState, draft: Draft) -> Sequence[Step]:
    """Return the steps that copy a view's description and retention to its successor."""
    about, id_, steps = old_contents.about, draft.readable.id, list[Step]()
    old = dict(zip(map(str, old_contents.schema.ids), old_contents.schema.names, strict=True))
    new = dict(zip(draft.readable.schema.names, map(str, draft.readable.schema.ids), strict=True))
    columns = {
        new[old[column]]: column_words for column, column_words in about.columns.items() if old.get(column) in new
    }
    if about.comment or about.properties or columns:
        words = {
            column: Words(column_words.comment, {**column_words.properties}) for column, column_words in columns.items()
        }
        steps.append(kinds.Describe(id_, Words(about.comment or None, {**about.properties}), words))
    if old_contents.retention is not None:
        steps.append(kinds.SetRetention(id_, old_contents.retention))
    return steps
