"""A view before its commit: its bound query, and the steps that create it.

A view may read another view of the same commit, so a folder of views that read each other is one commit.
"""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from persist.codecs.types.arrow_types import JSON
from persist.codecs.types.schema import TIME_MAX, CollectionSchema
from persist.compute.dataflow.plan.optimise import Statistics
from persist.compute.sql.algebra import Node, find_documents
from persist.compute.sql.compile import check_columns, choose_key, find_mentioned, plan_query
from persist.compute.sql.definition import VERSION, Definition, Readable, Start, choose_start, find_shared_timeline
from persist.compute.sql.graph import estimate_sizes, list_functions, list_read_columns, load_definition, lower_relation
from persist.compute.sql.groups import Groups, split_at_aggregates
from persist.compute.sql.order import list_ordered_collections
from persist.compute.sql.rewrite import rewrite_plan
from persist.compute.sql.stored import encode_plan
from persist.compute.sql.types import to_arrow
from persist.core.errors import CollectionNotFound, InvalidUsage
from persist.core.log import kinds as record_kinds
from persist.core.names import GROUPS_PREFIX, make_groups_prefix, make_view_hold_name
from persist.core.state_rules.contents import CollectionState, get_first_time
from persist.core.state_rules.schemas import load_schema_version
from persist.engine.location.engine import Engine
from persist.engine.location.opening import load_handle, load_handle_by_id

PLANS_CAME_WITH = 11  # The number of the format of locations.


@dataclass(frozen=True, slots=True)
class Draft:
    """A view before its commit: its definition, steps and names for errors.

    Attributes:
        bound: the rewritten relation of the query, before its groups were split off.
        groups: the definitions of the hidden views that store the groups.
    """

    readable: Readable
    definition: Definition
    steps: tuple[Any, ...]
    names: Mapping[str, str]
    bound: Node
    columns: Mapping[str, Mapping[str, str]]
    groups: tuple[Readable, ...] = ()


class Catalog:
    """The collections that a view may read, as they are after the planned commit."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._by_name: dict[str, Readable | None] = {}  # None: it will be gone.
        self._by_id: dict[str, Readable] = {}

    @property
    def names(self) -> list[str]:
        """The names of all collections that a view may read."""
        existing = [name for name in self._engine.names() if name not in self._by_name]
        return [*existing, *(name for name, readable in self._by_name.items() if readable is not None)]

    @property
    def keeps_plans(self) -> bool:
        """Whether all clients of the location support plans that are stored with views."""
        return self._engine.follower.state.format >= PLANS_CAME_WITH

    def plan_removal(self, name: str) -> None:
        """From now on, treat a collection as dropped."""
        self._by_name[name] = None

    def plan_addition(self, draft: Draft) -> None:
        """From now on, treat a drafted view as existing."""
        self._by_name[draft.readable.name] = draft.readable
        self._by_id |= {readable.id: readable for readable in (*draft.groups, draft.readable)}

    def load(self, name: str) -> Readable:
        """Return the collection of a name. The name must be in `names`."""
        return self._by_name.get(name) or self._load_stored(load_handle(self._engine, name).id, name)

    def load_by_id(self, id_: str) -> Readable:
        """Return the collection of an id. Raises CollectionNotFound: it was dropped."""
        return self._by_id.get(id_) or self._load_stored(id_, id_)

    def load_groups(self, definition: Definition) -> list[Groups]:
        """Return the hidden views that store the groups of a view."""
        every_groups = []
        for name, id_ in definition.reads.items():
            groups_definition = (
                load_definition(load_handle_by_id(self._engine, id_, name)) if name.startswith(GROUPS_PREFIX) else None
            )
            if groups_definition is not None:
                every_groups.append(
                    Groups(name, groups_definition.plan, groups_definition.columns, groups_definition.key)
                )
        return every_groups

    def load_read_schema(self, view: Readable, id_: str) -> tuple[CollectionSchema, set[str]] | None:
        """Return the schema and columns by which an existing view reads a collection."""
        try:
            contents = load_handle_by_id(self._engine, id_, id_).contents()
        except CollectionNotFound:
            return None  # It is planned.
        hold = contents.holds.get(make_view_hold_name(view.id))
        if hold is None or hold.schema is None or not hold.columns:
            return None
        schema = load_schema_version(contents, hold.schema)
        names = dict(zip(schema.ids, schema.names, strict=True))
        return schema, {names[column] for column in hold.columns}

    def estimate_statistics(self, reads: Mapping[str, Readable]) -> dict[str, Statistics]:
        """Return statistics of the collections that a query reads, by name."""
        return estimate_sizes(self._engine, {name: readable.id for name, readable in reads.items()})

    def _load_stored(self, id_: str, name: str) -> Readable:
        """Return an existing collection as the draft reads it."""
        handle = load_handle_by_id(self._engine, id_, name)
        contents, definition = handle.contents(), load_definition(handle)
        inputs = () if definition is None else definition.inputs
        last, is_view = _find_last_sealed(contents), definition is not None
        redefined = 0 if definition is None else definition.since
        since = max(get_first_time(contents), redefined)
        about = (contents.timeline, last, since, inputs, is_view, redefined, contents.keyed)
        readable = Readable(id_, handle.name, handle.schema, *about)
        self._by_id[id_] = readable
        return readable


def draft_view(
    catalog: Catalog,
    name: str,
    sql: str,
    key: Sequence[str] | None,
    start: Start = None,
    *,
    keeps_groups: bool = False,
    replaces: Definition | None = None,
) -> Draft:
    """Bind a query, and return the view's draft, which is not committed yet.

    The commit makes times before its start unreadable.

    Args:
        keeps_groups: also make the views that store its groups (`persist.compute.sql.groups`).
        replaces: the present definition of the view, whose groups the new one reuses if it can.
    """
    reads = {read_name: catalog.load(read_name) for read_name in find_mentioned(sql, catalog.names)}
    forms = {read_name: readable.keyed for read_name, readable in reads.items() if readable.keyed is not None}
    relation, columns = plan_query(sql, {read_name: readable.schema for read_name, readable in reads.items()}, forms)
    check_columns(columns)
    documents_by_name = {read_name: readable.schema.json for read_name, readable in reads.items()}
    are_documents = find_documents(relation, documents_by_name, {})
    documents = [name for (name, _), is_document in zip(columns, are_documents, strict=True) if is_document]
    keys = choose_key(relation, columns, key, documents)
    every = {id_: catalog.load_by_id(id_) for readable in reads.values() for id_ in (readable.id, *readable.inputs)}
    unit = find_shared_timeline(reads.values())
    begin = choose_start(start, [*every.values()], unit)
    id_ = uuid.uuid4().hex
    steps: list[Any] = []
    group_readables: list[Readable] = []
    statistics = catalog.estimate_statistics(reads)
    plan, bound, keeps_plan = relation, rewrite_plan(relation, statistics), catalog.keeps_plans
    if keeps_groups:
        plan, every_groups = split_at_aggregates(bound, make_groups_prefix(id_))
        for groups in every_groups:
            whose = f"the groups of view {name!r}"
            groups_draft = _draft_collection(
                uuid.uuid4().hex, groups, whose, reads, every, begin, unit, statistics, keeps_plan=keeps_plan
            )
            reads = {**reads, groups.name: groups_draft.readable}
            every = {**every, groups_draft.readable.id: groups_draft.readable}
            group_readables.append(groups_draft.readable)
            steps += groups_draft.steps
    elif replaces is not None and has_groups(replaces):
        plan, every_groups = split_at_aggregates(bound, "", catalog.load_groups(replaces))
        for groups in every_groups:
            held_by = catalog.load_by_id(replaces.reads[groups.name])
            reads = {**reads, groups.name: held_by}
            every = {**every, held_by.id: held_by}
    answer = Groups(name, plan, tuple(columns), keys)
    requested_plan = bound if plan is relation else None
    draft = _draft_collection(
        id_, answer, sql, reads, every, begin, unit, statistics, requested_plan, documents, keeps_plan=keeps_plan
    )
    _check_same_schemas(catalog, name, draft.columns, every)
    return replace(draft, steps=(*steps, *draft.steps), bound=bound, groups=tuple(group_readables))


def _draft_collection(
    id_: str,
    what: Groups,
    sql: str,
    reads: Mapping[str, Readable],
    every: Mapping[str, Readable],
    begin: int,
    unit: str | None,
    statistics: Mapping[str, Statistics],
    relation: Node | None = None,
    documents: Sequence[str] = (),
    *,
    keeps_plan: bool,
) -> Draft:
    """Return the draft of one collection that a relation defines.

    Args:
        reads: the collections that it may scan, by name.
        every: the collections that it may depend on, by id.
        statistics: the statistics of the collections that it may scan.
        relation: the rewritten plan, if it was rewritten.
        documents: the columns of JSON documents; in the key, they are stored as texts.
        keeps_plan: store the plan that refreshes run.
    """
    ids = {read_name: readable.id for read_name, readable in reads.items()}
    schema = _make_schema(what.columns, what.key, unit, documents)
    output = Readable(id_, what.name, schema, unit, None, begin, tuple(every), is_view=True)
    relation = rewrite_plan(what.plan, statistics) if relation is None else relation
    try:
        program = lower_relation(relation, what.columns)
    except InvalidUsage as error:
        whose = sql if what.name.startswith(GROUPS_PREFIX) else f"the query of view {what.name!r}"
        raise InvalidUsage(f"{whose} cannot be computed on any rows: {error}") from error
    columns = {ids[read_name]: kinds for read_name, kinds in list_read_columns(program).items()}
    sizes = {read_name: statistics.get(read_name) for read_name in list_ordered_collections(relation)}
    stored = encode_plan(program, list_functions(what.plan), sizes) if keeps_plan else None
    version = VERSION if stored is not None else 1
    definition = Definition(
        version, sql, tuple(every), ids, what.columns, what.key, what.plan, start=begin, program=stored
    )
    steps = (
        record_kinds.Create(id_, what.name, schema.to_json(), view=definition.to_json()),
        *([record_kinds.AllowCompaction(id_, (begin,))] if begin else []),
        *_make_holds(id_, definition, columns, every.values()),
    )
    names = {id_: what.name, **{readable.id: readable.name for readable in every.values()}}
    return Draft(output, definition, steps, names, what.plan, columns)


def _check_same_schemas(
    catalog: Catalog, name: str, own: Mapping[str, Mapping[str, str]], every: Mapping[str, Readable]
) -> None:
    """Raise InvalidUsage if a collection has evolved between the schemas that the view and the views below it use.

    All views of a graph are refreshed by one program, which reads a collection once.
    """
    for id_, readable in every.items():
        parts = [(name, readable.schema, set(own[id_]))] if own.get(id_) else []
        for view in every.values():
            read = catalog.load_read_schema(view, id_) if view.is_view else None
            if read is not None:
                parts.append((view.name, *read))
        columns = set().union(*(names for _, _, names in parts))
        for reader, schema, _ in parts[1:]:
            then, now = (
                dict(zip(s.names, zip(s.ids, s.shapes, strict=True), strict=True)) for s in (schema, parts[0][1])
            )
            if differing := sorted(column for column in columns if then.get(column) != now.get(column)):
                raise InvalidUsage(
                    f"view {name!r} and the views that it reads are refreshed together, and {reader!r} reads "
                    f"collection {readable.name!r} as of version {schema.version} of its schema, in which "
                    f"{differing} are other columns than in version {parts[0][1].version}, which {parts[0][0]!r} "
                    f"reads: make {reader!r} anew first"
                )


def _make_holds(
    view: str, definition: Definition, columns: Mapping[str, Mapping[str, str]], inputs: Iterable[Readable]
) -> list[record_kinds.SetHold]:
    """Return the holds of a new view on everything that it depends on.

    The holds on plain collections are at the view's start. A hold on a view only records the dependency, and keeps no
    history: the contents of views below are computed again, and not read.
    """
    return [
        record_kinds.SetHold(
            readable.id,
            make_view_hold_name(view),
            TIME_MAX if readable.is_view else definition.start,
            schema=readable.schema.version,
            columns=find_column_ids(readable.schema, columns.get(readable.id, ())),
        )
        for readable in inputs
    ]


def list_reads(definition: Definition) -> dict[str, str]:
    """Return the collections that the query of a view reads: name and id."""
    return {name: id_ for name, id_ in definition.reads.items() if not name.startswith(GROUPS_PREFIX)}


def has_groups(definition: Definition) -> bool:
    """Return whether a view keeps its groups."""
    return len(list_reads(definition)) < len(definition.reads)


def find_column_ids(schema: CollectionSchema, names: Iterable[str]) -> tuple[int, ...]:
    """Return the ids of columns of a schema by name, in ascending order."""
    ids = dict(zip(schema.names, schema.ids, strict=True))
    return tuple(sorted(ids[name] for name in names))


def _make_schema(
    columns: Sequence[tuple[str, str]], keys: Sequence[str], unit: str | None, documents: Sequence[str]
) -> CollectionSchema:
    """Return the schema of a view from its query's columns."""
    kinds = {name: JSON if name in documents and name not in keys else to_arrow(kind) for name, kind in columns}
    schema = CollectionSchema.of(
        {name: kinds[name] for name in keys},
        {name: kind for name, kind in kinds.items() if name not in keys} or None,
        unit,
    )
    return replace(schema, order=tuple(kinds) if tuple(kinds) != schema.names else ())


def _find_last_sealed(contents: CollectionState) -> int | None:
    """Return the last sealed time, or 0; None for an unrefreshed view."""
    if contents.view is not None and contents.upper == 0:
        return None
    return max(0, contents.upper - 1)
