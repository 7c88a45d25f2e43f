"""Views as one program: a view, and the views that it reads, in the order in which they depend on each other.

All of them are outputs of the program, so a step of it is one commit. A view that another one reads is not read back
from the store: what is written of it is what the other one takes in.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from persist.compute.dataflow.plan.draft import DefinedAs
from persist.compute.dataflow.plan.optimise import Statistics, of_collection, trimmed
from persist.compute.dataflow.plan.plan import Source
from persist.compute.dataflow.program import Program
from persist.compute.dataflow.stream import Stream
from persist.compute.sql.algebra import Node, Scan, all_terms_of, every
from persist.compute.sql.definition import Definition
from persist.compute.sql.lower import Lowering
from persist.compute.sql.lower_join import column
from persist.compute.sql.rewrite import rewritten
from persist.compute.sql.types import to_arrow
from persist.core.errors import CollectionNotFound, InvalidUsage
from persist.core.expression.python_functions import check_functions
from persist.core.expression.term import Col
from persist.core.names import owner_of_groups, view_hold
from persist.engine.location.collection_handle import CollectionHandle
from persist.engine.location.engine import Engine
from persist.engine.location.opening import loaded_by_id


def scans_of(plan: Node) -> dict[str, dict[str, str]]:
    """Return the collections that a plan reads, and which columns of them with their types."""
    read_columns: dict[str, dict[str, str]] = {}
    for node in every(plan):
        if isinstance(node, Scan):
            read_columns.setdefault(node.collection, {}).update(zip(node.columns, node.types, strict=True))
    return read_columns


def columns_read(plan: Node) -> dict[str, dict[str, str]]:
    """Return the collections that a rewritten plan reads, and which columns of them are read when it runs."""
    program, scanned = Program("columns"), scans_of(plan)
    sources = {name: program.source(name, schema=_columns(kinds)) for name, kinds in scanned.items()}
    Lowering(program, sources.__getitem__).lowered(plan).probe()
    read: dict[str, dict[str, str]] = {}
    for node in trimmed(program.plan).nodes.values():
        if isinstance(node.operator, Source):
            name = node.operator.collection
            read[name] = {column: scanned[name][column] for column in node.schema.names}
    return read


def _columns(kinds: Mapping[str, str]) -> pa.Schema:
    return pa.schema([(name, to_arrow(kind)) for name, kind in sorted(kinds.items())])


def read_by(definition: Definition) -> dict[str, dict[str, str]]:
    """Return the columns that a view reads itself, with their types as it takes them for, by id of collection."""
    types_by_id: dict[str, dict[str, str]] = {}
    for name, columns in columns_read(rewritten(definition.plan)).items():
        types_by_id.setdefault(definition.reads[name], {}).update(columns)
    return types_by_id


@dataclass(frozen=True, slots=True)
class Defined:
    """A view and what it is."""

    handle: CollectionHandle
    definition: Definition


class ViewProgram(Program):
    """The program of some views.

    Args:
        views: each after those that it reads.
        is_rehearsal: keep what they hold nowhere, only compute it.
    """

    def __init__(self, engine: Engine, views: Sequence[Defined], *, is_rehearsal: bool = False) -> None:
        super().__init__(f"view {views[-1].handle.name}"[:100])
        self.using(engine)
        self._views = views
        self._streams: dict[str, Stream] = {}
        self._ids: dict[str, str] = {}
        self._scanned: dict[str, dict[str, str]] = {}  # By id of collection, the columns that the views name.
        names, plans = {view.handle.id: view.handle.name for view in views}, []
        for view in views:
            check_functions(view.handle.name, all_terms_of(view.definition.plan))
            plans.append(rewritten(view.definition.plan, sizes_of(engine, view.definition.reads)))
            for name, kinds in scans_of(plans[-1]).items():
                self._scanned.setdefault(view.definition.reads[name], {}).update(kinds)
        for view, plan in zip(views, plans, strict=True):
            name, definition = view.handle.name, view.definition
            answer = Lowering(self, partial(self._stream_of, engine, definition)).lowered(plan)
            columns: dict[str, Any] = {
                column_name: Col(column(at)) for at, (column_name, _) in enumerate(definition.columns)
            }
            owner = names.get(owner_of_groups(name) or "")
            answer = answer.map(**columns).named(f"view {name}" if owner is None else f"groups of view {owner}")
            self._streams[view.handle.id] = answer
            if is_rehearsal:
                answer.probe()
            else:
                answer.persist(name, key=definition.key)
        self.plan = trimmed(self.plan)

    def _stream_of(self, engine: Engine, definition: Definition, name: str) -> Stream:
        """Return the stream of what a view calls by a name: another view of the program, or a source."""
        id_ = definition.reads[name]
        if id_ not in self._streams:
            now = loaded_by_id(engine, id_, name).name
            self._ids[now] = id_
            self._streams[id_] = self.source(now, schema=_columns(self._scanned[id_])).named(f"read {now}")
        return self._streams[id_]

    def makes_holds(self) -> bool:
        return False

    def output(self, collection: str) -> CollectionHandle | None:
        return next(view.handle for view in self._views if view.handle.name == collection)

    def definition(self, collection: str) -> DefinedAs | None:
        definition = next(view.definition for view in self._views if view.handle.name == collection)
        return DefinedAs(
            definition.number, definition.since, definition.start, has_past=owner_of_groups(collection) is None
        )

    def holders(self, collection: str) -> list[str]:
        """Return what the permanent holds on a source are called: those of the views that depend on it."""
        id_ = self._ids[collection]
        return [view_hold(view.handle.id) for view in self._views if id_ in view.definition.inputs]


def sizes_of(engine: Engine, reads: Mapping[str, str]) -> dict[str, Statistics]:
    """Return what is known of the sizes of collections, by their names, of which reads has the ids.

    Of one that is not there, nothing is known: whoever opens it says so.
    """
    sizes = {}
    for name, id_ in reads.items():
        with suppress(CollectionNotFound):
            sizes[name] = of_collection(loaded_by_id(engine, id_, name))
    return sizes


def views_for(engine: Engine, wanted: Mapping[str, str]) -> list[Defined]:
    """Return views and all views that they depend on, each after those that it reads.

    Args:
        wanted: the names of the views, by id.

    Raises:
        InvalidUsage: it is no view.
        CollectionNotFound: it was dropped.
    """
    views: dict[str, Defined] = {}

    def visit(handle: CollectionHandle) -> bool:
        definition = definition_of(handle)
        if definition is None:
            return False
        for read_name, below in definition.reads.items():
            if below not in views:
                visit(loaded_by_id(engine, below, read_name))
        views[handle.id] = Defined(handle, definition)
        return True

    for id_, name in wanted.items():
        if not visit(loaded_by_id(engine, id_, name)):
            raise InvalidUsage(f"collection {name!r} is no view: it is written by its users")
    return list(views.values())


def definition_of(handle: CollectionHandle) -> Definition | None:
    """Return the definition of a view; None of another collection, such as an index."""
    stored = handle.contents().view
    return None if stored is None or "index" in stored else Definition.from_json(stored)
