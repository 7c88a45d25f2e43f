"""Changes the views of a location to a set of definitions: first a plan that can be inspected, then one commit.

A view whose definition has changed is dropped and created again, and with it all views that read it, because a view's
times must all come from one definition. Nothing else is touched. The commit creates and drops views; a refresh, which
is a commit of its own, then fills the new ones.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from graphlib import CycleError, TopologicalSorter
from typing import Literal, TypeVar

from persist.compute.sql.compile import find_mentioned
from persist.compute.sql.definition import Start, parse_start
from persist.compute.sql.draft import Catalog, Draft, draft_view, list_reads
from persist.compute.sql.graph import load_definition
from persist.compute.sql.redefine import load_dependents, steps_to_describe
from persist.compute.sql.view import LiveView, ViewsTogether, load_view_by_name
from persist.core.errors import InvalidUsage
from persist.core.log import kinds
from persist.core.names import check_free_name
from persist.core.state_rules.collection_rules import ExpectDerived, list_derived_holds
from persist.engine.location.arrangements import make_drop_steps
from persist.engine.location.engine import Engine
from persist.engine.location.opening import OnEngine, load_handle, to_engine
from persist.engine.write.operations import Step

Found = TypeVar("Found")
Action = Literal["create", "replace", "keep", "drop"]


@dataclass(frozen=True, slots=True)
class Wanted:
    """The requested definition of a view: query, key and start.

    If the start is None or "now", an existing view keeps its own.
    """

    sql: str
    key: tuple[str, ...] | None = None
    start: Start = None


@dataclass(frozen=True, slots=True)
class Change:
    """The planned action for one view, and its reason."""

    view: str
    action: Action
    why: str


class ViewsPlan:
    """The changes to make; create it with `plan_views`.

    `changes`: first the drops, then each view after its inputs.
    """

    def __init__(self, engine: Engine, changes: Sequence[Change], steps: Sequence[Step], names: dict[str, str]) -> None:
        self.changes = tuple(changes)
        self._engine, self._steps, self._names = engine, steps, names

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to change."""
        return not self._steps

    def commit(self) -> int | None:
        """Commit the changes at once; return the seqno, None for no changes.

        Raises:
            CollectionExists, CollectionNotFound, CollectionNeeded, Superseded: another client changed one of the
                views, or the indexes of one. Then nothing was done: plan again.
        """
        if self.is_empty:
            return None
        return self._engine.submit("apply", self._steps, self._names).result()

    def refresh(self) -> None:
        """Refresh all views of the plan in one commit."""
        views = [load_view_by_name(self._engine, change.view) for change in self.changes if change.action != "drop"]
        if views:
            with ViewsTogether(views, {}) as together:
                together.refresh()


def plan_views(client: OnEngine | Engine, wanted: Mapping[str, Wanted], *, prune: bool = False) -> ViewsPlan:
    """Return a plan that brings the views of a location to their definitions. Nothing is written.

    Args:
        wanted: definitions by name; they may read each other.
        prune: also drop views without a wanted definition. Other collections are never touched.

    Cost: what `create_view` costs for each definition; with prune one GET for each collection.
    """
    return _Planner(to_engine("plan_views", client), wanted).plan(prune)


class _Planner:
    """Plans the changes from the existing views to the wanted definitions."""

    def __init__(self, engine: Engine, wanted: Mapping[str, Wanted]) -> None:
        self._engine = engine
        self._wanted = wanted
        self._catalog = Catalog(engine)
        self._present = {name: view for name in wanted if (view := self._load_view(name)) is not None}
        self._gone: dict[str, LiveView] = {}
        self._drafts: list[Draft] = []

    def plan(self, prune: bool) -> ViewsPlan:
        """Plan the drops and the creations, in an order that the commit allows."""
        dropped = self._find_views_to_drop() if prune else {}
        for name, view in dropped.items():
            self._plan_drops(name, view)
        planned = [self._plan_change(name) for name in self._sort_names()]
        self._check_readers()
        gone = {name: view.handle.contents() for name, view in self._gone.items()}
        steps, names = make_drop_steps(self._engine, [*gone.values()])
        holds = {view.id: list_derived_holds(view) for view in gone.values()}
        ids = [step.collection for step in steps if isinstance(step, kinds.Destroy)]
        steps = [*(ExpectDerived(id_, holds[id_]) for id_ in ids if id_ in holds), *steps]  # Readers come first.
        for draft in self._drafts:
            old = gone.get(draft.readable.name)
            steps += [*draft.steps, *([] if old is None else steps_to_describe(old, draft))]
        names |= {id_: name for draft in self._drafts for id_, name in draft.names.items()}
        changes = [*(Change(dropped_name, "drop", "it has no definition") for dropped_name in dropped), *planned]
        return ViewsPlan(self._engine, changes, steps, names)

    def _load_view(self, name: str) -> LiveView | None:
        """Return the existing view of a name; None without one."""
        check_free_name(name)
        if name not in self._engine.names():
            return None
        handle = load_handle(self._engine, name)
        definition = load_definition(handle)
        if definition is None:
            raise InvalidUsage(
                f"there is a collection {name!r} that is not a view: call the view otherwise, or rename it"
            )
        return LiveView(handle, definition)

    def _find_views_to_drop(self) -> dict[str, LiveView]:
        """Return the existing views that have no definition, by name."""
        unwanted = {}
        for name in self._engine.names():
            handle = load_handle(self._engine, name)
            definition = None if name in self._wanted else load_definition(handle)
            if definition is not None:
                unwanted[name] = LiveView(handle, definition)
        return unwanted

    def _sort_names(self) -> list[str]:
        """Return the names of the definitions, each after its inputs."""
        names = list(dict.fromkeys([*self._catalog.names, *self._wanted]))
        reads: dict[str, list[str]] = {}
        for name, view in self._wanted.items():
            read = _add_view_to_errors(name, partial(find_mentioned, view.sql, names))
            reads[name] = [read_name for read_name in read if read_name in self._wanted]
        try:
            return list(TopologicalSorter(reads).static_order())
        except CycleError as error:
            circle = " reads ".join(map(repr, reversed(error.args[1])))
            raise InvalidUsage(f"views cannot read each other in a circle: {circle}") from error

    def _plan_change(self, name: str) -> Change:
        """Return the change for one definition: create, replace or none."""
        spec, view = self._wanted[name], self._present.get(name)
        draft = _add_view_to_errors(name, partial(draft_view, self._catalog, name, spec.sql, spec.key, spec.start))
        why = "it is not there" if view is None else _describe_difference(view, draft, spec.start)
        if view is not None and why is None:
            return Change(name, "keep", "it is as defined")
        assert why is not None
        if view is not None:
            self._plan_drops(name, view)
        self._catalog.plan_addition(draft)
        self._drafts.append(draft)
        return Change(name, "create" if view is None else "replace", why)

    def _plan_drops(self, name: str, view: LiveView) -> None:
        self._gone[name] = view
        self._catalog.plan_removal(name)

    def _check_readers(self) -> None:
        """Raise InvalidUsage if a remaining view reads a dropped one."""
        going = {view.handle.id for view in self._gone.values()}
        for view in self._gone.values():
            for reader in load_dependents(self._engine, view.handle):
                if reader.id not in going:
                    raise InvalidUsage(
                        f"the view {reader.name!r} depends on {view.handle.name!r}, which must be dropped, and the "
                        f"definitions do not include {reader.name!r}: add its definition, or drop it first"
                    )


def _add_view_to_errors(name: str, what: Callable[[], Found]) -> Found:
    """Call a function; errors that it raises get the view's name."""
    try:
        return what()
    except InvalidUsage as error:
        raise InvalidUsage(f"view {name!r}: {error}") from error


def _describe_difference(view: LiveView, draft: Draft, start: Start) -> str | None:
    """Return in which way a view differs from its draft; None if they are equal."""
    old, new = view.definition, draft.definition
    if old.sql.strip() != new.sql.strip():
        return "its query has changed"
    if old.key != new.key:
        return f"its key was {', '.join(old.key)}"
    if list_reads(old) != list_reads(new):
        return "what it reads is replaced"
    if old.columns != new.columns:
        return "the columns of what it reads have changed"
    if start is not None and parse_start(start, draft.readable.timeline) not in (None, old.start):
        return f"it begins at {old.start}"
    return None
