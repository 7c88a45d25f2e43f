"""Views as one program: a view, and the views that it reads, in the order in which they depend on each other.

All of them are outputs of the program, so each step is one commit. If a view reads another one, its input is that
view's output, which is not read back from the store.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from persist.compute.dataflow.plan.draft import DefinedAs
from persist.compute.dataflow.plan.optimise import Statistics, estimate_collection, optimise_plan, trim_plan
from persist.compute.dataflow.plan.plan import Linear, Node, Persist, Plan, Probe, Reduce, Source
from persist.compute.dataflow.plan.stages import Map
from persist.compute.dataflow.program import Program
from persist.compute.sql.algebra import Node as Relation
from persist.compute.sql.algebra import Scan, iterate_nodes, iterate_terms
from persist.compute.sql.definition import Definition
from persist.compute.sql.lower import Lowering
from persist.compute.sql.rewrite import rewrite_plan
from persist.compute.sql.stored import StoredPlan, read_plan
from persist.compute.sql.types import name_arrow_type, to_arrow
from persist.core.errors import CollectionNotFound, InvalidUsage
from persist.core.expression.python_functions import check_functions, list_python_calls
from persist.core.expression.term import Call, Col, Term
from persist.core.names import find_owner, make_view_hold_name
from persist.engine.location.collection_handle import CollectionHandle
from persist.engine.location.engine import Engine
from persist.engine.location.opening import load_handle_by_id, open_handle


def list_scans(plan: Relation) -> dict[str, dict[str, str]]:
    """Return the collections that a relation reads, each with names and types of read columns."""
    read_columns: dict[str, dict[str, str]] = {}
    for node in iterate_nodes(plan):
        if isinstance(node, Scan):
            read_columns.setdefault(node.collection, {}).update(zip(node.columns, node.types, strict=True))
    return read_columns


def list_read_columns(plan: Plan) -> dict[str, dict[str, str]]:
    """Return the collections that a dataflow plan reads, each with names and types of read columns."""
    return {name: {field.name: name_arrow_type(field.type) for field in schema} for name, schema in _list_sources(plan)}


def _list_sources(plan: Plan) -> Iterator[tuple[str, pa.Schema]]:
    """Yield each collection that a plan reads, with the columns that are read."""
    for node in plan.nodes.values():
        if isinstance(node.operator, Source):
            yield node.operator.collection, node.schema


def lower_relation(relation: Relation, columns: Sequence[tuple[str, str]] = (), *, optimise: bool = True) -> Plan:
    """Return the dataflow plan of one rewritten relation.

    Args:
        columns: the answer's columns with their types; without them, columns are named c0, c1, …
        optimise: also merge operators. Otherwise, only unused columns and records are left out.
    """
    program = Program("view")
    sources = {
        name: program.source(
            name, schema=pa.schema([(column, to_arrow(kind)) for column, kind in sorted(kinds.items())])
        )
        for name, kinds in list_scans(relation).items()
    }
    Lowering(program, sources.__getitem__).lower_rewritten(relation, [name for name, _ in columns]).probe()
    plan = optimise_plan(program.plan) if optimise else trim_plan(program.plan)
    [end] = [node for node in plan.nodes.values() if isinstance(node.operator, Probe)]
    del plan.nodes[end.number]
    plan.nodes[end.inputs[0]] = plan.nodes.pop(end.inputs[0])
    return plan


def list_functions(relation: Relation) -> tuple[tuple[str, str], ...]:
    """Return name and version of the functions of Python that a relation calls."""
    return tuple(dict.fromkeys(list_python_calls(iterate_terms(relation))))


def list_columns_read(definition: Definition) -> dict[str, dict[str, str]]:
    """Return the columns that a view reads, with types, by collection id."""
    stored = read_plan(definition.program)
    plan = lower_relation(rewrite_plan(definition.plan)) if stored is None else stored.plan()
    types_by_id: dict[str, dict[str, str]] = {}
    for name, columns in list_read_columns(plan).items():
        types_by_id.setdefault(definition.reads[name], {}).update(columns)
    return types_by_id


@dataclass(frozen=True, slots=True)
class LoadedView:
    """A view with its handle and definition, and handles of what it reads, by id."""

    handle: CollectionHandle
    definition: Definition
    sources: Mapping[str, CollectionHandle]


class ViewProgram(Program):
    """The program of some views: from their stored plans, or from their definitions if a plan does not fit.

    Args:
        views: each after the views that it reads.
        is_rehearsal: compute the views without storing them.
    """

    def __init__(self, engine: Engine, views: Sequence[LoadedView], *, is_rehearsal: bool = False) -> None:
        self._as_defined: Plan | None = None
        super().__init__(f"view {views[-1].handle.loaded_as}"[:100])
        self.using(engine)
        self._views = {view.handle.loaded_as: view for view in views}
        self._is_rehearsal = is_rehearsal
        self._sources: dict[str, CollectionHandle] = {}  # By their present names.
        self._stored = [_find_fitting_plan(engine, view.definition) for view in views]
        self._optimised: Plan | None = None
        for view, stored in zip(views, self._stored, strict=True):
            functions = list_functions(view.definition.plan) if stored is None else stored.functions
            check_functions(view.handle.loaded_as, functions)
            self.local_functions |= {name for name, _ in functions}

    @property
    def plan(self) -> Plan:
        """The plan from the definitions, without merged operators; computed at its first use."""
        if self._as_defined is None:
            self._as_defined = self._merge_plans(
                [self._lower_view(view, optimise=False) for view in self._views.values()]
            )
        return self._as_defined

    @plan.setter
    def plan(self, plan: Plan) -> None:
        """Do nothing: a program begins with a plan of no operators."""

    def optimise(self) -> Plan:
        """Return the optimised plan of all views, from their stored plans where these fit."""
        if self._optimised is None:
            stored = zip(self._views.values(), self._stored, strict=True)
            plans = (self._lower_view(view) if plan is None else plan.plan() for view, plan in stored)
            self._optimised = self._merge_plans([*plans])
        return self._optimised

    def make_outline(self) -> Plan:
        """Return the optimised plan, which shows each output's sources."""
        return self.optimise()

    def check(self) -> None:
        """Do nothing: the plan of a view is always whole."""

    def _lower_view(self, view: LoadedView, *, optimise: bool = True) -> Plan:
        """Return the plan of the definition of a view."""
        assert self.engine is not None
        relation = rewrite_plan(view.definition.plan, estimate_sizes(self.engine, view.definition.reads))
        return lower_relation(relation, view.definition.columns, optimise=optimise)

    def _merge_plans(self, plans: Sequence[Plan]) -> Plan:
        """Merge the plans of all views; each collection is read once."""
        columns: dict[str, dict[str, pa.DataType]] = {}  # By id of collection.
        for view, plan in zip(self._views.values(), plans, strict=True):
            for name, schema in _list_sources(plan):
                columns.setdefault(view.definition.reads[name], {}).update(zip(schema.names, schema.types, strict=True))
        whole, numbers = Plan(self.name, 1), dict[str, int]()  # By id of collection.
        for (view_name, view), plan in zip(self._views.items(), plans, strict=True):
            places, last = {}, [*plan.nodes][-1]
            for node in [*plan.nodes.values()]:
                if not isinstance(node.operator, Source):
                    continue
                id_ = view.definition.reads[node.operator.collection]
                if id_ not in numbers:
                    name, schema = view.sources[id_].loaded_as, pa.schema(sorted(columns[id_].items()))
                    self._sources[name] = view.sources[id_]
                    numbers[id_] = whole.add(Source(name), (), schema, name=f"read {name}").number
                places[node.number] = numbers[id_]
                _adapt_readers(plan, node, whole.nodes[numbers[id_]].schema)
            answer = whole.add_plan(plan, places)[last]
            numbers[view.handle.id] = answer
            answered = whole.replace_node(answer, name=self._make_title(view_name))
            end = Probe("probe") if self._is_rehearsal else Persist(view_name, view.definition.key)
            node = whole.add(end, (answer,), answered.schema)
            if self._is_rehearsal:
                self.add_probe(node.number)
        return whole

    def _make_title(self, name: str) -> str:
        """Return how explanations name a view."""
        id_ = find_owner(name)
        owner = next((name for name, view in self._views.items() if view.handle.id == id_), None) if id_ else None
        return f"view {name}" if owner is None else f"groups of view {owner}"

    def makes_holds(self) -> bool:
        """False: the commit that creates a view makes its holds."""
        return False

    def output(self, collection: str) -> CollectionHandle | None:
        """Return the collection of a view."""
        return self._views[collection].handle

    def definition(self, collection: str) -> DefinedAs | None:
        """Return since when a view has its present definition, and where it begins."""
        definition = self._views[collection].definition
        return DefinedAs(definition.number, definition.since, definition.start, has_past=find_owner(collection) is None)

    def list_holds(self, collection: str) -> list[str]:
        """Return the names of the permanent holds on a source: one for each view that depends on it."""
        id_ = self._sources[collection].id
        return [make_view_hold_name(view.handle.id) for view in self._views.values() if id_ in view.definition.inputs]

    def load_source(self, engine: Engine, collection: str) -> CollectionHandle:
        """Return a source, which was loaded with the views."""
        return self._sources[collection]


def _find_fitting_plan(engine: Engine, definition: Definition) -> StoredPlan | None:
    """Return the plan stored with a view; None if missing, or if collection sizes have changed."""
    stored = read_plan(definition.program)
    if stored is None or not stored.rows:
        return stored
    sizes = estimate_sizes(engine, {name: definition.reads[name] for name in stored.rows})
    return stored if stored.fits(sizes) else None


def _adapt_readers(plan: Plan, source: Node, schema: pa.Schema) -> None:
    """Rewrite a source's readers for the columns of a newer schema, unless they pick columns by name."""
    if schema == source.schema:
        return
    readers = [node for node in plan.nodes.values() if source.number in node.inputs]
    outputs: list[tuple[str, Term]] = []
    for field in source.schema:
        is_so = schema.field(field.name).type == field.type
        outputs.append((field.name, Col(field.name) if is_so else Call("cast", (Col(field.name),), (field.type,))))
    if all(isinstance(term, Col) for _, term in outputs):
        readers = [node for node in readers if not isinstance(node.operator, Linear | Reduce)]
    if readers:
        picked = plan.add(Linear((Map(tuple(outputs)),)), (source.number,), source.schema).number
        for node in readers:
            inputs = tuple(picked if number == source.number else number for number in node.inputs)
            plan.replace_node(node.number, inputs=inputs)


def estimate_sizes(engine: Engine, reads: Mapping[str, str]) -> dict[str, Statistics]:
    """Estimate the statistics of collections, by their names. `reads`: their ids by name.

    A missing collection has no statistics: opening it raises the error.
    """
    sizes = {}
    for name, id_ in reads.items():
        with suppress(CollectionNotFound):
            sizes[name] = estimate_collection(load_handle_by_id(engine, id_, name))
    return sizes


def load_views(engine: Engine, wanted: Mapping[str, str]) -> list[LoadedView]:
    """Return views and all views that they depend on, each after its inputs.

    `wanted`: the names of the views, by id.

    Raises:
        InvalidUsage: a collection is not a view.
        CollectionNotFound: a view was dropped.
    """
    views: dict[str, LoadedView] = {}
    handles: dict[str, CollectionHandle] = {}
    engine.follower.refresh()

    def load(id_: str, name: str) -> CollectionHandle:
        contents = engine.follower.require(id_, name)
        handles[id_] = handle = open_handle(engine, contents, contents.schema)
        return handle

    def visit(handle: CollectionHandle) -> bool:
        """Add a view after its inputs; return whether it is one."""
        definition = _decode_definition(handle.get_known_state().view)  # It was loaded just now.
        if definition is None:
            return False
        sources = {}
        for read_name, below in definition.reads.items():
            if below not in handles:
                visit(load(below, read_name))
            sources[below] = handles[below]
        views[handle.id] = LoadedView(handle, definition, sources)
        return True

    for id_, name in wanted.items():
        if not visit(load(id_, name)):
            raise InvalidUsage(f"collection {name!r} is not a view: it is written by its users")
    return list(views.values())


def load_definition(handle: CollectionHandle) -> Definition | None:
    """Return the definition of a view; None of another collection, such as an index."""
    return _decode_definition(handle.contents().view)


def _decode_definition(stored: dict[str, Any] | None) -> Definition | None:
    """Return a view's stored definition; None for an index or a plain collection."""
    return None if stored is None or "index" in stored else Definition.from_json(stored)
