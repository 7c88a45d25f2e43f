"""The implementation of `persist.View`: the definition of a view, and its refreshes."""

import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from os import PathLike
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias, get_args

from persist.codecs.errors import DiffOverflow
from persist.compute.dataflow.running.refreshed import Policy, Refreshed, explain, refresh
from persist.compute.dataflow.running.reports import OperatorReport
from persist.compute.dataflow.running.running import Options, Running, list_requested_indexes
from persist.compute.index import create_index, is_indexable, refresh_indexes
from persist.compute.sql.definition import Definition, InputBehind, Start, explain_lag
from persist.compute.sql.draft import Catalog, Draft, draft_view, has_groups
from persist.compute.sql.first_build import build_first
from persist.compute.sql.graph import ViewProgram, load_definition, load_views
from persist.compute.sql.redefine import load_dependents, plan_redefinition, steps_to_describe
from persist.core.closing import Closes
from persist.core.errors import (
    CollectionNotFound,
    HoldMoved,
    HoldNotFound,
    InvalidUsage,
    LimitReached,
    NotConverging,
    OperatorFailed,
    OutputConflict,
    PersistError,
    SchemaMismatch,
    SchemaMoved,
    SourceLost,
    Superseded,
    UpperMismatch,
    ViewRedefined,
)
from persist.core.progress import limit_work
from persist.core.state_rules.collection_rules import ExpectDerived, list_derived_holds
from persist.core.state_rules.contents import get_definition_number
from persist.engine.collection.failures import record_failures
from persist.engine.location.arrangements import make_drop_steps
from persist.engine.location.collection_handle import CollectionHandle
from persist.engine.location.engine import Engine
from persist.engine.location.opening import load_handle, load_handle_by_id
from persist.engine.write.retrying import commit_with_retry

STALE = (SourceLost, OutputConflict)  # So a program fails that was opened before another client went on.
FAILURES = (OperatorFailed, NotConverging, DiffOverflow)  # Caused by the rows, so retractions may end them.


class OnView(Protocol):
    """An object of a live view: a `persist.View`, with its attribute `live`."""

    @property
    def live(self) -> "LiveView":
        """Its live view."""


class LiveView:
    """A view by its definition, with the state of its refreshes; `persist.View` documents its methods.

    Attributes:
        handle: the collection.
        definition: the query, its plan, and what it reads.
        together: runs its refreshes.
    """

    def __init__(
        self, handle: CollectionHandle, definition: Definition, options: Mapping[str, Any] = MappingProxyType({})
    ) -> None:
        self.handle = handle
        self.definition = definition
        self.together = ViewsTogether([self], options)
        self._lock = threading.RLock()

    @property
    def options(self) -> Mapping[str, Any]:
        """The options of `Program.open` for its refreshes."""
        return self.together.options

    @property
    def engine(self) -> Engine:
        """The engine of its reads and writes."""
        return self.handle.engine

    def refresh(
        self,
        policy: Policy = "auto",
        *,
        first: "First | None" = None,
        timeout_s: float | None = None,
        memory_limit: int | None = None,
    ) -> Refreshed:
        """Bring the view, and the views that it reads, up to the sealed times of their inputs; see `View.refresh`.

        `first`: a function that is tried first; it returns None if this handle must refresh.
        """
        check_policy(policy)
        self.engine.writer("refresh")
        is_limited = timeout_s is not None or memory_limit is not None
        limits = limit_work(timeout_s, memory_limit) if is_limited else nullcontext()
        with self._lock, limits, record_failures([self.handle]):
            refreshed = self._refresh_from_cache(policy, first)
            if refreshed is None:
                refreshed = self.together.refresh_with_retry(policy, first)
        refresh_indexes(self.engine, self.definition.inputs)
        self.warn_of_behind()
        return refreshed

    def _refresh_from_cache(self, policy: Policy, first: "First | None") -> Refreshed | None:
        """Refresh without reading the log, if this client knows of new input.

        If the commit succeeds as the next record of the log, reading the log before would have found nothing new.
        """
        follower = self.engine.follower
        ids = (self.handle.id, *self.definition.inputs)
        entries = map(follower.entry, ids)
        peeked = [entry.contents for entry in entries if entry is not None and entry.contents is not None]
        if len(peeked) < len(ids):
            follower.refresh_and_load(ids, self.engine.pool)
            return None
        seqno, view_upper = follower.state.seqno, peeked[0].upper
        uppers = [contents.upper for contents in peeked[1:] if contents.view is None]
        if not uppers or not all(upper > view_upper for upper in uppers) or not follower.looks.skip_refresh():
            return None
        try:
            refreshed = self.together.refresh_once(policy, first)
        except LimitReached:
            raise
        except PersistError:
            refreshed = None  # The newest state may not fail.
        if refreshed is not None and refreshed.seqno == seqno + 1:
            return refreshed
        follower.looks.force_next_look()
        return None

    def warn_of_behind(self, *, is_new: bool = False) -> None:
        """Warn if unsealed inputs keep the view from showing an input."""
        reason = self._explain_lag(is_new=is_new)
        if reason is not None:
            warnings.warn(reason, InputBehind, stacklevel=4 + 3 * is_new)  # At the client's caller.

    def _explain_lag(self, *, is_new: bool = False) -> str | None:
        """Return why the view lags behind its inputs; None if it does not, or a new view will be filled."""
        peeked = [self.engine.follower.require(id_, id_) for id_ in self.definition.inputs]
        inputs = [contents for contents in peeked if contents.view is None]
        if is_new and any(contents.upper == 0 for contents in inputs):
            return None  # It will be filled.
        return explain_lag(self.handle.name, self.definition.start, inputs)

    def open_state(self) -> None:
        """Bring the view up to date, and keep what the next refreshes need; see `View.open_state`."""
        self.engine.writer("open_state")
        with self._lock:
            self.follow_recreated()
            self.together.open_state()

    def explain_refresh(self, policy: Policy = "auto") -> str:
        """Explain how `refresh` would proceed now; see `View.explain_refresh`."""
        check_policy(policy)
        with self._lock:
            how = self.together.explain_refresh(policy)
        reason = self._explain_lag()
        return how if reason is None else f"{how}\n{reason}"

    def follow_recreated(self) -> bool:
        """Switch to the view that replaced this one; return whether there is one.

        Raises CollectionNotFound: it was dropped, and no view with the same query has its name.
        """
        with self._lock:
            state, name = self.engine.follower.refresh(), self.handle.name
            if self.handle.id in state.entries:
                return False
            new = load_handle(self.engine, name) if self.engine.follower.find_id(name) is not None else None
            definition = None if new is None else load_definition(new)
            if new is None or definition is None or definition.sql.strip() != self.definition.sql.strip():
                raise CollectionNotFound(name, self.engine.url, state.list_names_in_memory())
            self.close()
            self.handle, self.definition = new, definition
            return True

    def use_definition(self, definition: Definition) -> None:
        """Load the view's present definition."""
        if definition.number != self.definition.number:
            self.definition = definition
            self.handle = self.handle.newest()

    @property
    def is_open(self) -> bool:
        """Whether this handle keeps the state of refreshes in memory, fully or partially."""
        return self.together.is_open

    @property
    def running(self) -> Running | None:
        """The program that this handle keeps; None before its first refresh."""
        return self.together.running

    def make_indexes(self) -> None:
        """Create the indexes that refreshes of the view would use."""
        for name, columns in list_requested_indexes(self.make_program()):
            handle = load_handle(self.engine, name)
            is_key = {*columns} == {*handle.schema.key_names[: len(columns)]}
            if not is_key and all(is_indexable(handle.schema, column) for column in columns):
                create_index(handle, columns)

    def make_program(self) -> ViewProgram:
        """Return the program that a refresh runs: of the view and of the views that it reads."""
        return ViewProgram(self.engine, load_views(self.engine, {self.handle.id: self.handle.name}))

    def redefine(self, sql: str | None, start: Start = None) -> None:
        """Give the view another query, from its upper on; see `View.redefine`."""
        self.engine.writer("redefine")
        if start is not None:
            self._recreate_and_refresh(self.definition.sql if sql is None else sql, start)
            return
        if sql is None:
            raise InvalidUsage("redefine: give a query, or start= to begin the view at another time, or both")

        def refresh_and_submit() -> bool:
            """Refresh, and submit the next definition; return whether there was a change."""
            self._refresh_all()
            change = plan_redefinition(self.engine, self.handle, sql)
            if change is not None:
                self.engine.submit("redefine", *change).result()
            return change is not None

        conflicts = (UpperMismatch, HoldMoved, SchemaMoved)
        if not commit_with_retry(refresh_and_submit, action="redefine", clock=self.engine.clock, conflicts=conflicts):
            return
        with self._lock:
            self.close()
            self.use_definition(
                load_definition(load_handle_by_id(self.engine, self.handle.id, self.handle.name)) or self.definition
            )

    def _recreate_and_refresh(self, sql: str, start: Start) -> None:
        """Recreate the view under its name, with a new history from another time on."""

        def submit_anew() -> Draft:
            self.engine.follower.refresh()
            return self._submit_anew(sql, start)

        draft = commit_with_retry(submit_anew, action="redefine", clock=self.engine.clock, conflicts=(Superseded,))
        with self._lock:
            self.close()
            self.definition = draft.definition
            self.handle = CollectionHandle(self.engine, draft.readable.id, self.handle.name, draft.readable.schema)

    def _submit_anew(self, sql: str, start: Start) -> Draft:
        """Commit the view again, in place of the old one; return its draft.

        Raises Superseded: another client has made or dropped an index of the old view meanwhile.
        """
        view = self.handle
        readers = [reader.name for reader in load_dependents(self.engine, view)]
        if readers:
            raise InvalidUsage(
                f"view {view.name!r} cannot begin anew as long as {readers[0]!r} reads it: drop that "
                "first, or change both by plan_views or `persist apply`"
            )
        catalog = Catalog(self.engine)
        catalog.plan_removal(view.name)
        keeps_groups = has_groups(self.definition)
        draft = draft_view(catalog, view.name, sql, self.definition.key, start, keeps_groups=keeps_groups)
        contents = view.contents()
        drops, names = make_drop_steps(self.engine, [contents])
        expected = ExpectDerived(view.id, list_derived_holds(contents))
        steps = (expected, *drops, *draft.steps, *steps_to_describe(contents, draft))
        self.engine.submit("redefine", steps, names | {**draft.names}).result()
        return draft

    def _refresh_all(self) -> None:
        """Refresh the view and its dependents to one time; views that fail stay behind."""
        views = [
            self,
            *(
                load_view_by_name(self.engine, dependent.name)
                for dependent in load_dependents(self.engine, self.handle)
            ),
        ]
        with suppress(*FAILURES, SchemaMismatch), ViewsTogether(views, self.options) as together:
            together.refresh()

    def explain(self, *, optimise: bool = True) -> str:
        """Return the plan as it is run, or as it was written; see `View.explain`."""
        plan_text = self.make_program().explain(optimise=optimise)
        with self._lock:
            state = [] if self.running is None else self.running.state()
        return "\n".join(
            [
                plan_text,
                *_describe_definitions(self.definition),
                *(f"state of {title}: {rows:,} updates, {size:,} bytes" for title, rows, size in state),
            ]
        )

    def rehearse(self) -> list[OperatorReport]:
        """Compute the view, write nothing, and return what its operators did and keep; see `View.rehearse`."""
        views = load_views(self.engine, {self.handle.id: self.handle.name})
        with ViewProgram(self.engine, views, is_rehearsal=True).open(self.engine, **self.options) as running:
            running.run()
            return running.operators()

    def operators(self) -> list[OperatorReport]:
        """Return reports of the operators since this handle's first refresh; none before it."""
        with self._lock:
            return [] if self.running is None else self.running.operators()

    def close(self) -> None:
        """Free what refreshes keep in memory; idempotent. The view can be refreshed again."""
        with self._lock:
            self.together.close()


First: TypeAlias = Callable[[ViewProgram], Refreshed | None]


def check_policy(policy: Any) -> None:
    """Raise InvalidUsage unless something is a policy of refreshes."""
    if policy not in get_args(Policy):
        raise InvalidUsage(f'policy={policy!r} is not a way to refresh: use "auto" or "incremental"')


def _skip_failing_times(
    program: ViewProgram,
    engine: Engine,
    options: Mapping[str, Any],
    failure: OperatorFailed | NotConverging | DiffOverflow,
) -> int | None:
    """Skip the times at which a query fails; return the commit's seqno.

    Raises OperatorFailed, NotConverging, DiffOverflow: the failure, if the query also fails at the latest time.
    """
    try:
        with program.open(engine, jump=True, **options) as running:
            running.run()
            return running.first_seqno
    except FAILURES:
        raise failure from None


def _describe_definitions(definition: Definition) -> list[str]:
    """Return a description of each definition of a view."""
    earlier = definition.earlier
    if not earlier:
        return []
    now = f"definition {definition.number} holds from {definition.since} on"
    numbers = range(definition.number - len(earlier), definition.number)
    return [now, *(f"definition {n}, from {was.since} on: {was.sql}" for n, was in zip(numbers, earlier, strict=True))]


class ViewsTogether(Closes):
    """Several views that are refreshed as one: common inputs are read once, and all views move in one commit.

    Refreshes read only the past records that changes request. Past records stay in memory for the next refresh, up to
    the memory budget. Make it with `persist.sql.open_together`; close it, or use it in a `with`. For one thread at a
    time.

    `options`: the options of `Program.open` for the refreshes.
    """

    def __init__(self, views: Sequence[LiveView], options: Mapping[str, Any]) -> None:
        if not views or len({id(view.engine) for view in views}) > 1:
            raise InvalidUsage(f"open_together: {list(views)!r} are not views of one client")
        self._views = list(views)
        self._engine = views[0].engine
        self.options = options
        Options.of(options)  # This checks them.
        self._running: Running | None = None
        self._numbers: dict[str, int] = {}  # Numbers of the running definitions, by id of their views.

    @property
    def is_open(self) -> bool:
        """Whether these views keep the state of refreshes in memory; see `LiveView.is_open`."""
        return self._running is not None

    @property
    def running(self) -> Running | None:
        """The program that these views keep; None before their first refresh."""
        return self._running

    def refresh(self) -> None:
        """Refresh all views to the sealed times of their inputs, in one commit; errors are those of `View.refresh`."""
        engine = self._engine
        engine.writer("refresh")
        with engine.follower.looks.share_look(), record_failures([view.handle for view in self._views]):
            self._follow_recreated()
            self.refresh_with_retry("auto")
            refresh_indexes(engine, {id_ for view in self._views for id_ in view.definition.inputs})

    def refresh_with_retry(self, policy: Policy, first: "First | None" = None) -> Refreshed:
        """Refresh; begin again if others redefine a view, or a view below it, or refresh it meanwhile."""
        uppers: list[int | None] = []
        was_open = False
        looks = self._engine.follower.looks

        def refresh_once() -> Refreshed:
            """Refresh; raise Superseded if a definition has changed meanwhile."""
            nonlocal uppers, was_open
            uppers, was_open = self._peek_uppers(), self.is_open
            refreshed = self.refresh_once(policy, first)
            if self._has_changed_definition():
                names = ", ".join(repr(view.handle.name) for view in self._views)
                raise Superseded(f"the view {names}, or one below it, has another definition by now")
            return refreshed

        def begin_again(error: PersistError) -> None:
            if isinstance(error, STALE):
                looks.force_next_look()
                self._engine.follower.refresh()
                if not was_open and self._peek_uppers() == uppers:
                    raise error  # Otherwise another client has refreshed it meanwhile, so it reads from later on.
            elif not isinstance(error, Superseded) and not self._has_changed_definition():
                raise error
            self.close()

        conflicts = (*STALE, ViewRedefined, HoldNotFound, CollectionNotFound, Superseded)
        return commit_with_retry(
            refresh_once, action="refresh", clock=self._engine.clock, conflicts=conflicts, prepare=begin_again
        )

    def refresh_once(self, policy: Policy, first: "First | None" = None) -> Refreshed:
        """Refresh, and keep the state for the next refresh if it fits the memory budget.

        `first`: a function that is tried first; it returns None if this process must refresh.
        """
        program = None if first is None else self._update_program()
        refreshed = None if first is None or program is None else first(program)
        if refreshed is not None:
            return refreshed
        is_new, first_seqno = self._running is None, None
        with self._close_on_failure() as passed:
            if self._running is None:
                program = program or self._update_program()
                if policy != "incremental":
                    first_seqno = build_first(program, self._engine, Options.of(self.options))
                self._running = program.open(self._engine, **self.options, partial=True)
            refreshed = refresh(self._running, policy, is_new=is_new)
            if first_seqno is not None:
                refreshed = Refreshed("here", "everything", "an output begins", seqno=first_seqno)
        if passed:
            return Refreshed("here", "everything", "the query failed on a row", seqno=passed[0])
        assert refreshed is not None
        if self._running.partial is not None and self._running.state_bytes > Options.of(self.options).memory_budget:
            self.close()  # Its next needs are requested again.
        return refreshed

    def open_state(self) -> None:
        """Bring the views up to date, and keep all that the next refreshes need."""
        with self._close_on_failure():
            if self._running is None or self._running.partial is not None:
                self.close()
                self._running = self._update_program().open(self._engine, **self.options)
            self._running.run()

    def explain_refresh(self, policy: Policy = "auto") -> str:
        """Explain how `refresh` would proceed now, why, and what it reads; see `View.explain_refresh`."""
        self._follow_recreated()
        if self._running is not None:
            return str(replace(Refreshed.by(self._running, is_new=False), readings=(), bytes=0, reads="changes"))
        with self._make_program().open(self._engine, **self.options, partial=True) as running:
            return str(explain(running, policy))

    @contextmanager
    def _close_on_failure(self) -> Iterator[list[int | None]]:
        """Close the program if it fails, and skip times whose rows fail."""
        passed: list[int | None] = []
        try:
            yield passed
        except FAILURES as error:
            self.close()
            passed.append(_skip_failing_times(self._make_program(), self._engine, self.options, error))
        except BaseException:
            self.close()
            raise

    def _make_program(self) -> ViewProgram:
        """Return a new program of the views, from their present definitions."""
        return ViewProgram(self._engine, load_views(self._engine, self._names_by_id))

    def _update_program(self) -> ViewProgram:
        """Return the program of the views' present definitions."""
        views = load_views(self._engine, self._names_by_id)
        self._numbers = {view.handle.id: view.definition.number for view in views}
        definitions = {view.handle.id: view.definition for view in views}
        for view in self._views:
            view.use_definition(definitions[view.handle.id])
        return ViewProgram(self._engine, views)

    @property
    def _names_by_id(self) -> dict[str, str]:
        """The names of the views by the ids of their collections."""
        return {view.handle.id: view.handle.name for view in self._views}

    def _peek_uppers(self) -> list[int | None]:
        """Return the views' uppers in the state that this client knows; None if unknown."""
        entries = (self._engine.follower.entry(view.handle.id) for view in self._views)
        return [None if entry is None or entry.contents is None else entry.contents.upper for entry in entries]

    def _follow_recreated(self) -> bool:
        """Load views that other clients recreated; return whether any were."""
        anew = [view.follow_recreated() for view in self._views]
        if any(anew):
            self.close()
        return any(anew)

    def _has_changed_definition(self) -> bool:
        """Return whether a view of the program has another definition in the known state.

        Raises CollectionNotFound: a view was dropped.
        """
        if self._follow_recreated():
            return True
        follower = self._engine.follower
        return any(get_definition_number(follower.require(id_, id_)) != number for id_, number in self._numbers.items())

    def close(self) -> None:
        """Free what refreshes keep in memory; idempotent."""
        running, self._running = self._running, None
        if running is not None:
            running.close()


def open_together(
    views: Sequence[OnView], *, memory_budget: int | None = None, spill_folder: str | PathLike[str] | None = None
) -> ViewsTogether:
    """Refresh several views as one; see `ViewsTogether`. Each can be refreshed alone another time.

    Args:
        memory_budget, spill_folder: for all views together; the options of single views are ignored. See `Client.view`.
    """
    return ViewsTogether([*map(load_live_view, views)], collect_options(memory_budget, spill_folder))


def collect_options(memory_budget: int | None, spill_folder: str | PathLike[str] | None) -> dict[str, Any]:
    """Check the options of refreshes, and return the passed ones."""
    every = {"memory_budget": memory_budget, "spill_folder": spill_folder}
    options = {name: value for name, value in every.items() if value is not None}
    Options.of(options)
    return options


def load_live_view(view: OnView) -> LiveView:
    """Return the live view of a user's view."""
    live = getattr(view, "live", None)
    if not isinstance(live, LiveView):
        raise InvalidUsage(f"{view!r:.200} is not a view: give what client.view(name) returns")
    return live


def load_view_by_name(engine: Engine, name: str, options: Mapping[str, Any] = MappingProxyType({})) -> LiveView:
    """Return the view of a name; errors are those of `Client.view`."""
    handle = load_handle(engine, name)
    definition = load_definition(handle)
    if definition is None:
        raise InvalidUsage(f"collection {name!r} is not a view: it is written by its users.").with_remedy(
            "Use {load:call}."
        )
    return LiveView(handle, definition, options)
